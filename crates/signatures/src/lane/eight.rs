//! Eight messages side by side on a processor's vectors, each with its own key, and with the verdict that it has alone.

use linewarden_arithmetic::rsa::{RsaPublic, check_eight, power_eight};
use linewarden_arithmetic::{Backend, edwards, p256};

use super::{Lost, OneByOne, Verifier, digest, halves};
use crate::key::{Ed25519Key, Material, P256Key, pss_matches};
use crate::ra::Factors;
use crate::receive::Checked;
use crate::scheme::Scheme;

const EIGHT: usize = 8;
/// From so many messages on, eight of RSA or RA are faster than as many one by one, with some that are computed twice.
const WORTH: usize = 4;
/// The same of ECDSA and Ed25519, with tables and without, on AVX2.
const WORTH_OF_KNOWN: usize = 3;
const WORTH_OF_NEW: usize = 6;
/// From so many without tables on, eight of both kinds are faster together, as if none had one, than some of them one by one.
const WORTH_TOGETHER: usize = 4;
/// A table, which takes as long as seven signatures of new signers, is made beside so many messages: an immediate message waits for one at
/// most, and a lane is slower by a fifth while all its signers are new.
const MESSAGES_A_TABLE: usize = 32;

/// Eight messages at a time.
#[derive(Debug)]
pub struct Eight {
    backend: Backend,
    name: String,
    one: OneByOne,
    /// Messages beside which no table was made yet.
    beside: usize,
}

impl Eight {
    /// On the widest vectors of this processor; `None` where one at a time is faster.
    #[must_use]
    pub fn widest() -> Option<Self> {
        Backend::widest().map(Self::on)
    }

    /// On these vectors.
    #[must_use]
    pub fn on(backend: Backend) -> Self {
        Self {
            backend,
            name: format!("cpu, eight at a time ({})", backend.name()),
            one: OneByOne::default(),
            beside: 0,
        }
    }

    /// Whether each message is its signer's, in their order.
    #[must_use]
    pub fn holds(&mut self, messages: &[Checked]) -> Vec<bool> {
        let mut holds = vec![false; messages.len()];
        for scheme in Scheme::ALL {
            let of_scheme = (0..)
                .zip(messages)
                .filter(|(_, message)| message.key().scheme() == scheme);
            // Asked once, for another lane may make a table meanwhile. One without makes all eight slow that it is among.
            let (mut known, mut new): (Vec<_>, Vec<_>) =
                of_scheme.partition(|(_, message)| message.key().has_table());
            let is_one_group = known.len() + new.len() <= EIGHT && new.len() >= WORTH_TOGETHER;
            if known.len() < WORTH_OF_KNOWN || is_one_group {
                new.append(&mut known);
            }
            let size = self.group(scheme);
            let worth = match scheme {
                Scheme::EcdsaP256 | Scheme::Ed25519 => WORTH_OF_NEW,
                _ => WORTH,
            };
            let known = known.chunks(size).map(|group| (group, WORTH_OF_KNOWN));
            let new = new.chunks(size).map(|group| (group, worth));
            for (group, worth) in known.chain(new) {
                let verdicts = match group.len() < worth {
                    true => group.iter().map(|(_, message)| self.one.holds(message)).collect(),
                    false => self.of_scheme(scheme, group),
                };
                self.make_tables(group, &verdicts);
                for ((place, _), verdict) in group.iter().zip(verdicts) {
                    if let Some(holds) = holds.get_mut(*place) {
                        *holds = verdict;
                    }
                }
            }
        }
        holds
    }

    /// Makes tables of those signers of whose messages enough have held by now.
    fn make_tables(&mut self, group: &[(usize, &Checked)], holds: &[bool]) {
        let held = group.iter().zip(holds).filter(|(_, holds)| **holds);
        let held = || held.clone().map(|((_, message), _)| message.key());
        held().for_each(|key| key.has_held());
        self.beside = (self.beside + group.len()).min(group.len().max(MESSAGES_A_TABLE));
        for key in held().filter(|key| key.is_due_for_table()) {
            if self.beside < MESSAGES_A_TABLE {
                return;
            }
            if key.make_table(self.backend) {
                self.beside -= MESSAGES_A_TABLE;
            }
        }
    }

    /// How many are handed over together.
    fn group(&self, scheme: Scheme) -> usize {
        match scheme {
            Scheme::EcdsaP256 | Scheme::Ed25519 => 128,
            _ => EIGHT,
        }
    }

    fn of_scheme(&self, scheme: Scheme, group: &[(usize, &Checked)]) -> Vec<bool> {
        match scheme {
            Scheme::RaRsa2048 | Scheme::RaRsa3072 => self.rapid(group),
            Scheme::RsaPss2048 | Scheme::RsaPss3072 => self.pss(group),
            Scheme::EcdsaP256 => self.p256(group),
            Scheme::Ed25519 => self.ed25519(group),
        }
    }

    fn rapid(&self, group: &[(usize, &Checked)]) -> Vec<bool> {
        let prepared: Option<Vec<_>> = group
            .iter()
            .map(|(_, message)| {
                let ra = message.key().ra()?;
                let (digits, name) = message.rapid()?;
                Some((
                    ra.rsa(),
                    message.signature(),
                    ra.mask_hash(name),
                    ra.components(digits)?,
                ))
            })
            .collect();
        // What a receiver has checked always has all of it.
        let prepared = prepared.unwrap_or_default();
        let factors = prepared.iter().map(|of| of.3.factors());
        let Some(factors) = factors.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty()) else {
            return vec![false; group.len()];
        };
        let eight = fill(&prepared);
        let checked = check_eight(
            self.backend,
            eight.map(|of| of.0),
            eight.map(|of| of.1),
            eight.map(|of| of.2.as_bytes()),
            fill(&factors).map(Factors::as_slice),
        );
        let holds = checked.unwrap_or([false; EIGHT]);
        for (of, _) in prepared.iter().zip(holds).filter(|(_, holds)| *holds) {
            of.3.keep();
        }
        holds.to_vec()
    }

    fn pss(&self, group: &[(usize, &Checked)]) -> Vec<bool> {
        let prepared = group.iter().map(|(_, message)| match message.key().material() {
            Material::Pss(key, _) => Some((&**key, *message)),
            _ => None,
        });
        let Some(prepared) = prepared.collect::<Option<Vec<(&RsaPublic, &Checked)>>>() else {
            return vec![false; group.len()];
        };
        let eight = fill(&prepared);
        let mut powers = [[0u8; 384]; EIGHT];
        let length = eight.first().map_or(0, |(key, _)| key.size().bytes());
        let outputs = powers
            .each_mut()
            .map(|power| power.get_mut(..length).unwrap_or_default());
        let keys = eight.map(|(key, _)| *key);
        let signatures = eight.map(|(_, message)| message.signature());
        let Ok(below) = power_eight(self.backend, keys, signatures, outputs) else {
            return vec![false; group.len()];
        };
        let encoded = powers.iter().map(|power| power.get(..length).unwrap_or_default());
        let digests = eight.iter().map(|(_, message)| digest(message));
        below
            .into_iter()
            .zip(encoded.zip(digests))
            .map(|(below, (encoded, digest))| below && pss_matches(encoded, &digest))
            .collect()
    }

    fn p256(&self, group: &[(usize, &Checked)]) -> Vec<bool> {
        let digests: Vec<[u8; 32]> = group.iter().map(|(_, message)| digest(message)).collect();
        let keys = group.iter().map(|(_, message)| match message.key().material() {
            Material::EcdsaP256(key, _) => Some(&**key),
            _ => None,
        });
        // A verdict for each, whatever happens: none may slide to another's place.
        let Some(keys) = keys.collect::<Option<Vec<&P256Key>>>() else {
            return vec![false; group.len()];
        };
        let requests = group.iter().zip(keys.iter().zip(&digests));
        let requests = requests.map(|((_, message), (key, digest))| {
            let (r, s) = halves(message)?;
            let signer = match key.ahead().get() {
                Some(known) => p256::Signer::Known(known),
                None => p256::Signer::New(key.point()),
            };
            Some(p256::Request { signer, digest, r, s })
        });
        let Some(requests) = requests.collect::<Option<Vec<_>>>() else {
            return vec![false; group.len()];
        };
        p256::verify(self.backend, &requests)
    }

    fn ed25519(&self, group: &[(usize, &Checked)]) -> Vec<bool> {
        let keys = group.iter().map(|(_, message)| match message.key().material() {
            Material::Ed25519(key, _) => Some(&**key),
            _ => None,
        });
        let Some(keys) = keys.collect::<Option<Vec<&Ed25519Key>>>() else {
            return vec![false; group.len()];
        };
        let numbers = group.iter().map(|(_, message)| halves(message));
        let Some(numbers) = numbers.collect::<Option<Vec<_>>>() else {
            return vec![false; group.len()];
        };
        let hashes: Vec<[u8; 64]> = group
            .iter()
            .zip(keys.iter().zip(&numbers))
            .map(|((_, message), (key, (r, _)))| {
                edwards::hash(r, key.key(), &message.signed_bytes().concat())
            })
            .collect();
        let requests: Vec<edwards::Request<'_>> = keys
            .iter()
            .zip(numbers.iter().zip(&hashes))
            .map(|(key, ((r, s), hash))| {
                let signer = match key.ahead().get() {
                    Some(known) => edwards::Signer::Known(known),
                    None => edwards::Signer::New(key.key()),
                };
                edwards::Request { signer, r, s, hash }
            })
            .collect();
        edwards::verify(self.backend, &requests)
    }
}

impl Verifier for Eight {
    fn name(&self) -> &str {
        &self.name
    }

    fn verify(&mut self, messages: &[Checked], holds: &mut Vec<bool>) -> Result<(), Lost> {
        holds.extend(self.holds(messages));
        Ok(())
    }
}

/// Eight of at least one and at most eight: the last is repeated.
#[allow(clippy::indexing_slicing)] // The index is at most that of the last; groups are not empty.
fn fill<T>(group: &[T]) -> [&T; EIGHT] {
    std::array::from_fn(|index| &group[index.min(group.len() - 1)])
}
