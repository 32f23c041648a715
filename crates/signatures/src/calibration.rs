//! What lanes take for the messages that will come, measured before any has.
//!
//! A lane takes as long for a wrong signature as for a right one, so messages of the signers that are known, with
//! random numbers for signatures, do as samples. Nobody accepts them: they never meet [`Receiver::admit`].
//!
//! But RA's hashed components are kept of messages that hold alone, and multiples of points made for their signers.
//! Those of the samples are kept and made as if they did: for a few signers, so that what is measured is what a
//! signer's messages take but for the first ones.

use linewarden_arithmetic::Backend;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::key::{Material, PublicKey};
use crate::lane::Places;
use crate::message::{Draft, MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs, Unsigned};
use crate::receive::{Checked, Receiver};
use crate::refusal::Refusal;
use crate::scheduler::engine::{Lane, LaneLost, measure};
use crate::scheduler::{Class, LaneKind, LaneSpec};
use crate::service::class;

/// Signers of each class that samples are of.
const SIGNERS_MAX: usize = 8;
/// Samples of each signer, which differ by their signatures.
const OF_A_SIGNER: usize = 8;
/// Bytes of a payload where a layout does not say.
const PAYLOAD_BYTES: usize = 64;
/// Signatures that are tried for one that is in its range: of Ed25519's numbers, one in 16 is.
const TRIES: usize = 512;
/// Times that each size is measured; the median counts.
const REPEATS: usize = 3;

/// Messages to measure lanes with.
pub struct Samples(Vec<(Class, Vec<Checked>)>);

impl Samples {
    /// Of the receiver's signers, for each class that they have keys of; of those with places on devices if any has. Numbers follow from
    /// `random`.
    #[must_use]
    pub fn new(receiver: &Receiver, places: Option<&Places>, now: TimeMs, random: [u8; 32]) -> Self {
        let mut random = ChaCha8Rng::from_seed(random);
        let mut samples = Vec::new();
        for class in Class::all() {
            let of_class = receiver
                .signers()
                .filter(|key| self::class(key.scheme()) == class);
            let (placed, others): (Vec<_>, Vec<_>) =
                of_class.partition(|key| places.is_none_or(|places| places.has(key)));
            let of_class = if placed.is_empty() { others } else { placed };
            let of_keys = of_class
                .into_iter()
                .filter_map(|key| of_key(receiver, key, now, &mut random));
            let of_keys: Vec<Vec<Checked>> = of_keys.take(SIGNERS_MAX).collect();
            // By turns, as messages of many signers come.
            let turns = 0..of_keys.iter().map(Vec::len).max().unwrap_or(0);
            let messages =
                turns.flat_map(|turn| of_keys.iter().filter_map(move |of_key| of_key.get(turn).cloned()));
            let messages: Vec<Checked> = messages.collect();
            if !messages.is_empty() {
                samples.push((class, messages));
            }
        }
        Self(samples)
    }

    /// Classes that there are samples of.
    pub fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.0.iter().map(|(class, _)| *class)
    }

    /// What is known of a lane, with what it takes for each class that it can do and there are samples of.
    ///
    /// # Errors
    /// The lane is lost.
    pub fn measure(&self, spec: LaneSpec, lane: &mut dyn Lane<Checked>) -> Result<LaneSpec, LaneLost> {
        let mut measured = spec;
        for (class, messages) in &self.0 {
            if measured.lines.of(*class).is_none() {
                continue;
            }
            let some = |count| messages.iter().cycle().take(count).cloned().collect();
            let line = measure(lane, *class, &sizes(&measured), REPEATS, some)?;
            measured = measured.with(*class, line);
        }
        Ok(measured)
    }
}

/// Batches whose times tell what a batch and what a job takes.
fn sizes(spec: &LaneSpec) -> Vec<usize> {
    let grains = match spec.kind {
        LaneKind::Cpu | LaneKind::Reserved => [1, 8],
        LaneKind::Accelerator => [1, 64],
    };
    let sizes = grains.map(|grains| (spec.grain * grains).min(spec.batch_max));
    sizes.into_iter().collect()
}

/// Messages of one signer that only their equations refuse. `None` of one who was revoked.
fn of_key(
    receiver: &Receiver,
    key: &PublicKey,
    now: TimeMs,
    random: &mut ChaCha8Rng,
) -> Option<Vec<Checked>> {
    let (kind, payload) = payload(key, random);
    let stamp = Stamp {
        time: now,
        priority: Priority::LEAST,
    };
    let unsigned = Unsigned {
        scheme: key.scheme(),
        key_id: key.id(),
        stamp,
        kind,
        payload: &payload,
    };
    let draft = unsigned.encode()?;
    let messages = (0..OF_A_SIGNER).map(|_| sample(receiver, key, &draft, now, random));
    let messages = messages.collect::<Option<Vec<_>>>()?;
    if let Some(ra) = key.ra() {
        ra.components(&ra.layout().digits(stamp, kind, &payload).ok()?)?
            .keep();
    }
    if let Some(backend) = Backend::widest() {
        key.make_table(backend);
    }
    Some(messages)
}

fn sample(
    receiver: &Receiver,
    key: &PublicKey,
    draft: &Draft,
    now: TimeMs,
    random: &mut ChaCha8Rng,
) -> Option<Checked> {
    for _ in 0..TRIES {
        let mut signature = vec![0; key.scheme().signature_bytes()];
        random.fill_bytes(&mut signature);
        let draft = draft.clone();
        let bytes = match key.ra() {
            None => draft.with_signature(&signature),
            Some(_) => {
                let mut mask = [0; MASK_NAME_BYTES];
                random.fill_bytes(&mut mask);
                draft.with_mask(&mask, &signature)
            }
        };
        match receiver.screen(bytes, now) {
            Ok(message) => return Some(message),
            Err(Refusal::OutOfRange | Refusal::Malleable) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Something that a key's messages may say.
fn payload(key: &PublicKey, random: &mut ChaCha8Rng) -> (PayloadKind, Vec<u8>) {
    let Material::Ra(ra) = key.material() else {
        let mut payload = vec![0; PAYLOAD_BYTES];
        random.fill_bytes(&mut payload);
        return (PayloadKind::Opaque, payload);
    };
    let mut payload = Vec::with_capacity(ra.layout().payload_bytes());
    for domain in ra.layout().payload_components() {
        // A domain has at most 65,536 values.
        let digit = (random.next_u32() % domain.len() as u32).to_be_bytes();
        payload.extend(digit.into_iter().skip(4 - domain.digit_bytes()));
    }
    (ra.layout().kind(), payload)
}
