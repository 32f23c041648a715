//! Measures how long each lane takes for messages of known signers, before the first message arrives.
//!
//! A lane takes as long for an invalid signature as for a valid one. Messages of known signers with random numbers as signatures
//! therefore serve as samples. No sample is ever accepted: samples never reach [`Receiver::accept`].
//!
//! A lane caches hashed components of RA, and makes tables of points, only for messages with valid signatures. This
//! module therefore does both for the signers of its samples. The measured time is then the time of a signer's later
//! messages.

use linewarden_arithmetic::Backend;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::key::{Material, PublicKey};
use crate::lane::KeyPlacement;
use crate::message::{Draft, MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs, UnsignedMessage};
use crate::receive::{Checked, Receiver};
use crate::refusal::Refusal;
use crate::scheduler::engine::{Lane, LaneLost, measure};
use crate::scheduler::{Class, LaneKind, LaneSpec};
use crate::service::class;

/// Signers of each class from whom samples are made.
const SIGNERS_MAX: usize = 8;
/// Samples of each signer, which differ in their signatures.
const SAMPLES_PER_SIGNER: usize = 8;
/// Payload bytes for keys without a layout.
const PAYLOAD_BYTES: usize = 64;
/// Maximum number of attempts to find a signature whose numbers are in their ranges: for Ed25519, one in 16 random
/// signatures is in range.
const TRIES_MAX: usize = 512;
/// Number of measurements of each batch size, of which the median is used.
const REPEATS: usize = 3;

/// Messages for measuring lanes, by class.
pub struct Samples(Vec<(Class, Vec<Checked>)>);

impl Samples {
    /// Samples of the receiver's signers, for each class of their keys. If any signer of a class has a place on a
    /// device, the class uses only signers with a place. `random` determines the signatures.
    #[must_use]
    pub fn new(receiver: &Receiver, placement: Option<&KeyPlacement>, now: TimeMs, random: [u8; 32]) -> Self {
        let mut random = ChaCha8Rng::from_seed(random);
        let mut samples = Vec::new();
        for class in Class::all() {
            let class_keys = receiver
                .signers()
                .filter(|key| self::class(key.scheme()) == class);
            let (placed, unplaced): (Vec<_>, Vec<_>) =
                class_keys.partition(|key| placement.is_none_or(|placement| placement.is_placed(key)));
            let class_keys = if placed.is_empty() { unplaced } else { placed };
            let messages_by_key = class_keys
                .into_iter()
                .filter_map(|key| samples_of_key(receiver, key, now, &mut random));
            let messages_by_key: Vec<Vec<Checked>> = messages_by_key.take(SIGNERS_MAX).collect();
            // Interleaved, like arriving messages of many signers.
            let turns = 0..messages_by_key.iter().map(Vec::len).max().unwrap_or(0);
            let messages = turns.flat_map(|turn| {
                messages_by_key
                    .iter()
                    .filter_map(move |messages| messages.get(turn).cloned())
            });
            let messages: Vec<Checked> = messages.collect();
            if !messages.is_empty() {
                samples.push((class, messages));
            }
        }
        Self(samples)
    }

    /// Classes with samples.
    pub fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.0.iter().map(|(class, _)| *class)
    }

    /// The lane's spec, with the measured cost of each class that the lane supports and that has samples.
    ///
    /// # Errors
    /// The lane is lost.
    pub fn measure(&self, spec: LaneSpec, lane: &mut dyn Lane<Checked>) -> Result<LaneSpec, LaneLost> {
        let mut measured = spec;
        for (class, messages) in &self.0 {
            if measured.costs.of(*class).is_none() {
                continue;
            }
            let take_samples = |count| messages.iter().cycle().take(count).cloned().collect();
            let cost_model = measure(lane, *class, &sizes(&measured), REPEATS, take_samples)?;
            measured = measured.with_class(*class, cost_model);
        }
        Ok(measured)
    }
}

/// Batch sizes that separate the cost of a batch from the cost of a job.
fn sizes(spec: &LaneSpec) -> Vec<usize> {
    let grains = match spec.kind {
        LaneKind::Cpu | LaneKind::Reserved => [1, 8],
        LaneKind::Accelerator => [1, 64],
    };
    let sizes = grains.map(|grains| (spec.grain * grains).min(spec.batch_max));
    sizes.into_iter().collect()
}

/// Messages of one signer that fail only at the verification of the signature. `None` if the receiver refuses them earlier, for example
/// because the signer was revoked.
fn samples_of_key(
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
    let unsigned = UnsignedMessage {
        scheme: key.scheme(),
        key_id: key.id(),
        stamp,
        kind,
        payload: &payload,
    };
    let draft = unsigned.encode()?;
    let messages = (0..SAMPLES_PER_SIGNER).map(|_| sample(receiver, key, &draft, now, random));
    let messages = messages.collect::<Option<Vec<_>>>()?;
    if let Some(ra) = key.ra() {
        ra.components(&ra.layout().digits(stamp, kind, &payload).ok()?)?
            .cache_computed();
    }
    if let Some(backend) = Backend::widest() {
        key.make_table(backend);
    }
    Some(messages)
}

/// A message with a random signature that fails only at the verification of the signature. `None` if the receiver
/// refuses the message earlier, or if no attempt finds a signature in range.
fn sample(
    receiver: &Receiver,
    key: &PublicKey,
    draft: &Draft,
    now: TimeMs,
    random: &mut ChaCha8Rng,
) -> Option<Checked> {
    for _ in 0..TRIES_MAX {
        let mut signature = vec![0; key.scheme().signature_bytes()];
        random.fill_bytes(&mut signature);
        let draft = draft.clone();
        let bytes = match key.ra() {
            None => draft.with_signature(&signature),
            Some(_) => {
                let mut mask_name = [0; MASK_NAME_BYTES];
                random.fill_bytes(&mut mask_name);
                draft.with_mask(&mask_name, &signature)
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

/// A valid payload for this key.
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
