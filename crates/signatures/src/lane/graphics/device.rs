//! An open device with the keys that it holds.

use std::sync::Arc;

use super::keys::{Number, Numbers};
use super::places::{Group, Places, Shape};
use crate::gpu::{BatchError, Goal, Gpu, P256Batch, P256Keys, PssBatch, RaBatch, RaKeys, RsaKeys};
use crate::key::{Material, PublicKey};
use crate::lane::digest;
use crate::message::MASK_NAME_BYTES;
use crate::receive::Checked;

/// A message and its place in the batch.
pub(super) type Placed<'a> = (usize, &'a Checked);

/// Keys of one shape, and their numbers.
struct Store {
    keys: Keys,
    numbers: Numbers,
}

enum Keys {
    Pss(RsaKeys),
    Ra(RaKeys),
    P256(P256Keys),
}

/// The first messages of some, and their keys' numbers.
struct Run<'a> {
    messages: Vec<Placed<'a>>,
    key_of: Vec<u32>,
    newcomers: Vec<(usize, &'a Arc<PublicKey>)>,
}

impl<'a> Run<'a> {
    /// Takes messages from the front of `rest` while there are numbers for their keys; at least one.
    fn take(numbers: &mut Numbers, rest: &mut &[Placed<'a>], round: u64) -> Self {
        let mut run = Self {
            messages: Vec::with_capacity(rest.len()),
            key_of: Vec::with_capacity(rest.len()),
            newcomers: Vec::new(),
        };
        while let Some((placed, behind)) = rest.split_first() {
            let key = placed.1.key();
            let number = match numbers.of(key, round) {
                Number::None => break,
                Number::Known(number) => number,
                Number::New(number) => {
                    run.newcomers.push((number as usize, key));
                    number
                }
            };
            run.messages.push(*placed);
            run.key_of.push(number);
            *rest = behind;
        }
        run
    }
}

pub(super) struct Device {
    pub(super) gpu: Gpu,
    places: Arc<Places>,
    /// For how many messages kernels are chosen.
    pub(super) goal: Goal,
    round: u64,
    /// For each group of keys, once a message of it has come.
    stores: Vec<Option<Store>>,
}

impl Device {
    pub(super) fn new(gpu: Gpu, places: Arc<Places>) -> Self {
        Self {
            gpu,
            stores: places.groups().iter().map(|_| None).collect(),
            places,
            goal: Goal::Best,
            round: 0,
        }
    }

    /// Whether it hangs: see [`Gpu::close`]. Keys go after it, for to give their memory back would mean to wait for a device that hangs.
    pub(super) fn close(self) -> bool {
        self.gpu.close()
    }

    /// Verifies; messages of keys that the device does not take come back. After an error the device is to be closed: keys may have numbers
    /// and not be there.
    pub(super) fn verify<'a>(
        &mut self,
        messages: &[Placed<'a>],
        holds: &mut [bool],
    ) -> Result<Vec<Placed<'a>>, BatchError> {
        let places = Arc::clone(&self.places);
        let mut of_group: Vec<Vec<Placed>> = places.groups().iter().map(|_| Vec::new()).collect();
        let mut others = Vec::new();
        for placed in messages {
            let group = places.group_of(placed.1.key());
            match group.and_then(|group| of_group.get_mut(group)) {
                Some(group) => group.push(*placed),
                None => others.push(*placed),
            }
        }
        for ((group, mut messages), store) in places.groups().iter().zip(of_group).zip(&mut self.stores) {
            if group.crowded {
                // Where keys take turns, each comes once a batch.
                messages.sort_by_key(|(_, message)| Arc::as_ptr(message.key()));
            }
            let mut rest = messages.as_slice();
            while !rest.is_empty() {
                let store = match store {
                    Some(store) => store,
                    None => store.insert(Store::new(&mut self.gpu, &places, group)?),
                };
                self.round += 1;
                let run = Run::take(&mut store.numbers, &mut rest, self.round);
                let verdicts = store.verify(&mut self.gpu, &run, self.goal)?;
                put_verdicts(&run.messages, &verdicts, holds);
            }
        }
        Ok(others)
    }
}

impl Store {
    fn new(gpu: &mut Gpu, places: &Places, group: &Group) -> Result<Self, BatchError> {
        let capacity = group.capacity;
        let mut numbers = Numbers::new(capacity);
        let keys = match &group.shape {
            Shape::Pss(size) => Keys::Pss(gpu.rsa_keys(*size, capacity)?),
            Shape::Ra { size, domains } => Keys::Ra(gpu.ra_keys(*size, domains, capacity)?),
            Shape::P256 => {
                let mut keys = gpu.p256_keys(capacity)?;
                // Tables of thousands together take hardly longer than one, for which some message would wait later.
                let placed = places.placed(group);
                let numbered = placed.iter().map(|key| match numbers.of(key, 0) {
                    Number::New(number) => Some((number as usize, key)),
                    Number::Known(_) | Number::None => None,
                });
                let numbered: Option<Vec<_>> = numbered.collect();
                let none = BatchError::Malformed("more signers have places than there are");
                put_points(gpu, &mut keys, &numbered.ok_or(none)?)?;
                Keys::P256(keys)
            }
        };
        Ok(Self { keys, numbers })
    }

    fn verify(&mut self, gpu: &mut Gpu, run: &Run, goal: Goal) -> Result<Vec<bool>, BatchError> {
        let key_of = &run.key_of;
        let digests = || run.messages.iter().map(|(_, message)| digest(message));
        match &mut self.keys {
            Keys::Pss(keys) => {
                for (number, key) in &run.newcomers {
                    if let Material::Pss(key, _) = key.material() {
                        gpu.put_rsa_key(keys, *number, key.as_bytes())?;
                    }
                }
                let batch = PssBatch {
                    keys,
                    key_of,
                    digests: &digests().collect::<Vec<_>>(),
                    signatures: &signatures(&run.messages),
                };
                gpu.verify_pss(&batch, goal)
            }
            Keys::Ra(keys) => {
                for (number, key) in &run.newcomers {
                    if let Some(key) = key.ra() {
                        gpu.put_ra_public(keys, *number, key)?;
                    }
                }
                let parts = run.messages.iter().filter_map(|(_, message)| message.rapid());
                let (digits, names): (Vec<_>, Vec<[u8; MASK_NAME_BYTES]>) =
                    parts.map(|(digits, name)| (digits.as_slice(), *name)).unzip();
                let batch = RaBatch {
                    keys,
                    key_of,
                    digits: &digits.concat(),
                    seeds: &names,
                    signatures: &signatures(&run.messages),
                };
                gpu.verify_ra(&batch, goal)
            }
            Keys::P256(keys) => {
                put_points(gpu, keys, &run.newcomers)?;
                let signatures = signatures(&run.messages);
                let batch = P256Batch {
                    keys,
                    key_of,
                    digests: &digests().collect::<Vec<_>>(),
                    // What a receiver has checked is 64 bytes long; else the batch would be malformed.
                    signatures: signatures.as_chunks().0,
                };
                gpu.verify_p256(&batch, goal)
            }
        }
    }
}

fn put_points(
    gpu: &mut Gpu,
    keys: &mut P256Keys,
    newcomers: &[(usize, &Arc<PublicKey>)],
) -> Result<(), BatchError> {
    let points = newcomers.iter().map(|(number, key)| match key.material() {
        Material::EcdsaP256(key, _) => Some((*number, key.point())),
        _ => None,
    });
    let points: Option<Vec<_>> = points.collect();
    gpu.put_p256_keys(
        keys,
        &points.ok_or(BatchError::Malformed("a key of another scheme"))?,
    )
}

/// Of messages of one scheme the signatures, one after the other.
fn signatures(messages: &[Placed]) -> Vec<u8> {
    let length = messages
        .first()
        .map_or(0, |(_, message)| message.signature().len());
    let mut bytes = Vec::with_capacity(messages.len() * length);
    for (_, message) in messages {
        bytes.extend_from_slice(message.signature());
    }
    bytes
}

fn put_verdicts(messages: &[Placed], verdicts: &[bool], holds: &mut [bool]) {
    for ((place, _), verdict) in messages.iter().zip(verdicts) {
        if let Some(holds) = holds.get_mut(*place) {
            *holds = *verdict;
        }
    }
}
