//! Eight messages side by side in vector registers, each with its own key and its own result.

use linewarden_arithmetic::rsa::{RsaPublic, check_batch, power_batch};
use linewarden_arithmetic::{Backend, edwards, p256};

use super::{SingleLane, Verifier, VerifierLost, digest, signature_numbers};
use crate::key::{Ed25519Key, Material, P256Key, pss_matches};
use crate::ra::Factors;
use crate::receive::Checked;
use crate::scheme::Scheme;

const GROUP_SIZE: usize = 8;
/// From this number of messages on, a batch of eight RSA or RA messages is faster than single messages, even with
/// repeated messages in unused lanes.
const GROUP_MIN_RSA: usize = 4;
/// From this number of messages on, a batch of eight ECDSA or Ed25519 messages with tables is faster than single messages, on AVX2.
const GROUP_MIN_PRECOMPUTED: usize = 3;
/// From this number of messages on, a batch of eight ECDSA or Ed25519 messages without tables is faster than single messages, on AVX2.
const GROUP_MIN_PLAIN: usize = 6;
/// For up to eight messages of which at least this number have no table, one batch that uses no tables is faster than a
/// batch with tables and single verification of the messages without a table.
const GROUP_MIN_MIXED: usize = 4;
/// A table, which costs as much as seven signatures without a table, is made at most once per this number of messages: an immediate
/// message waits for at most one table, and a lane is slower by a fifth while all its signers are new.
const MESSAGES_PER_TABLE: usize = 32;

/// A lane that verifies eight messages at a time.
#[derive(Debug)]
pub struct BatchLane {
    backend: Backend,
    name: String,
    single: SingleLane,
    /// Number of messages since the latest table was made, up to a maximum.
    messages_without_table: usize,
}

impl BatchLane {
    /// A lane with the widest vectors of this CPU; `None` if single messages are faster.
    #[must_use]
    pub fn widest() -> Option<Self> {
        Backend::widest().map(Self::with_backend)
    }

    /// A lane with these vectors.
    #[must_use]
    pub fn with_backend(backend: Backend) -> Self {
        Self {
            backend,
            name: format!("cpu, eight at a time ({})", backend.name()),
            single: SingleLane::default(),
            messages_without_table: 0,
        }
    }

    /// Whether each message's signature is valid, in order.
    #[must_use]
    pub fn verify_all(&mut self, messages: &[Checked]) -> Vec<bool> {
        let mut results = vec![false; messages.len()];
        for scheme in Scheme::ALL {
            let messages_of_scheme = (0..)
                .zip(messages)
                .filter(|(_, message)| message.key().scheme() == scheme);
            // The code looks a table up only once, since another lane may make a table at the same time. A message
            // without a table slows down all eight messages of a batch.
            let (mut with_table, mut without_table): (Vec<_>, Vec<_>) =
                messages_of_scheme.partition(|(_, message)| message.key().has_table());
            let is_one_group = with_table.len() + without_table.len() <= GROUP_SIZE
                && without_table.len() >= GROUP_MIN_MIXED;
            if with_table.len() < GROUP_MIN_PRECOMPUTED || is_one_group {
                without_table.append(&mut with_table);
            }
            let size = self.group_size(scheme);
            let group_min = match scheme {
                Scheme::EcdsaP256 | Scheme::Ed25519 => GROUP_MIN_PLAIN,
                _ => GROUP_MIN_RSA,
            };
            let with_table = with_table
                .chunks(size)
                .map(|group| (group, GROUP_MIN_PRECOMPUTED));
            let without_table = without_table.chunks(size).map(|group| (group, group_min));
            for (group, group_min) in with_table.chain(without_table) {
                let group_results = match group.len() < group_min {
                    true => group
                        .iter()
                        .map(|(_, message)| self.single.verify_one(message))
                        .collect(),
                    false => self.verify_group(scheme, group),
                };
                self.make_tables(group, &group_results);
                for ((index, _), is_valid) in group.iter().zip(group_results) {
                    if let Some(result) = results.get_mut(*index) {
                        *result = is_valid;
                    }
                }
            }
        }
        results
    }

    /// Makes tables for signers with enough valid messages.
    fn make_tables(&mut self, group: &[(usize, &Checked)], results: &[bool]) {
        let valid = group.iter().zip(results).filter(|(_, is_valid)| **is_valid);
        let valid = || valid.clone().map(|((_, message), _)| message.key());
        valid().for_each(|key| key.record_valid());
        self.messages_without_table =
            (self.messages_without_table + group.len()).min(group.len().max(MESSAGES_PER_TABLE));
        for key in valid().filter(|key| key.is_due_for_table()) {
            if self.messages_without_table < MESSAGES_PER_TABLE {
                return;
            }
            if key.make_table(self.backend) {
                self.messages_without_table -= MESSAGES_PER_TABLE;
            }
        }
    }

    /// Messages of a scheme that are verified together.
    fn group_size(&self, scheme: Scheme) -> usize {
        match scheme {
            Scheme::EcdsaP256 | Scheme::Ed25519 => 128,
            _ => GROUP_SIZE,
        }
    }

    fn verify_group(&self, scheme: Scheme, group: &[(usize, &Checked)]) -> Vec<bool> {
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
        // A checked message always has all parts.
        let prepared = prepared.unwrap_or_default();
        let factors = prepared.iter().map(|parts| parts.3.factors());
        let Some(factors) = factors.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty()) else {
            return vec![false; group.len()];
        };
        let group_of_eight = fill_group(&prepared);
        let result = check_batch(
            self.backend,
            group_of_eight.map(|parts| parts.0),
            group_of_eight.map(|parts| parts.1),
            group_of_eight.map(|parts| parts.2.as_bytes()),
            fill_group(&factors).map(Factors::as_slice),
        );
        let results = result.unwrap_or([false; GROUP_SIZE]);
        for (parts, _) in prepared.iter().zip(results).filter(|(_, is_valid)| *is_valid) {
            parts.3.cache_computed();
        }
        results.to_vec()
    }

    fn pss(&self, group: &[(usize, &Checked)]) -> Vec<bool> {
        let prepared = group.iter().map(|(_, message)| match message.key().material() {
            Material::Pss(key, _) => Some((&**key, *message)),
            _ => None,
        });
        let Some(prepared) = prepared.collect::<Option<Vec<(&RsaPublic, &Checked)>>>() else {
            return vec![false; group.len()];
        };
        let group_of_eight = fill_group(&prepared);
        let mut powers = [[0u8; 384]; GROUP_SIZE];
        let length = group_of_eight.first().map_or(0, |(key, _)| key.size().bytes());
        let outputs = powers
            .each_mut()
            .map(|power| power.get_mut(..length).unwrap_or_default());
        let keys = group_of_eight.map(|(key, _)| *key);
        let signatures = group_of_eight.map(|(_, message)| message.signature());
        let Ok(is_below_n) = power_batch(self.backend, keys, signatures, outputs) else {
            return vec![false; group.len()];
        };
        let encoded = powers.iter().map(|power| power.get(..length).unwrap_or_default());
        let digests = group_of_eight.iter().map(|(_, message)| digest(message));
        is_below_n
            .into_iter()
            .zip(encoded.zip(digests))
            .map(|(is_below_n, (encoded, digest))| is_below_n && pss_matches(encoded, &digest))
            .collect()
    }

    fn p256(&self, group: &[(usize, &Checked)]) -> Vec<bool> {
        let digests: Vec<[u8; 32]> = group.iter().map(|(_, message)| digest(message)).collect();
        let keys = group.iter().map(|(_, message)| match message.key().material() {
            Material::EcdsaP256(key, _) => Some(&**key),
            _ => None,
        });
        // If a key is missing, the function returns one result for each message nevertheless, so that no result shifts
        // to another message.
        let Some(keys) = keys.collect::<Option<Vec<&P256Key>>>() else {
            return vec![false; group.len()];
        };
        let requests = group.iter().zip(keys.iter().zip(&digests));
        let requests = requests.map(|((_, message), (key, digest))| {
            let (r, s) = signature_numbers(message)?;
            let signer = match key.precomputed().get() {
                Some(precomputed) => p256::Signer::Precomputed(precomputed),
                None => p256::Signer::Plain(key.point()),
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
        let numbers = group.iter().map(|(_, message)| signature_numbers(message));
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
                let signer = match key.precomputed().get() {
                    Some(precomputed) => edwards::Signer::Precomputed(precomputed),
                    None => edwards::Signer::Plain(key.key()),
                };
                edwards::Request { signer, r, s, hash }
            })
            .collect();
        edwards::verify(self.backend, &requests)
    }
}

impl Verifier for BatchLane {
    fn name(&self) -> &str {
        &self.name
    }

    fn verify(&mut self, messages: &[Checked], results: &mut Vec<bool>) -> Result<(), VerifierLost> {
        results.extend(self.verify_all(messages));
        Ok(())
    }
}

/// Fills eight lanes with one to eight messages; repeats the last message in unused lanes.
#[allow(clippy::indexing_slicing)] // The index is at most the index of the last element; groups are not empty.
fn fill_group<T>(group: &[T]) -> [&T; GROUP_SIZE] {
    std::array::from_fn(|index| &group[index.min(group.len() - 1)])
}
