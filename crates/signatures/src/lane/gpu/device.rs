//! An open device with its keys.

use std::sync::Arc;

use super::keys::{KeyNumbers, NumberLookup};
use super::placement::{Group, KeyPlacement, Shape};
use crate::gpu::{BatchError, Goal, Gpu, P256Batch, P256Keys, PssBatch, RaBatch, RaKeys, RsaKeys};
use crate::key::{Material, PublicKey};
use crate::lane::digest;
use crate::message::MASK_NAME_BYTES;
use crate::receive::Checked;

/// A message and its index in the batch.
pub(super) type IndexedMessage<'a> = (usize, &'a Checked);

/// Keys of one shape, and their numbers.
struct KeyStore {
    keys: Keys,
    numbers: KeyNumbers,
}

enum Keys {
    Pss(RsaKeys),
    Ra(RaKeys),
    P256(P256Keys),
}

/// The first messages of a batch, and the numbers of their keys.
struct KeyedBatch<'a> {
    messages: Vec<IndexedMessage<'a>>,
    key_of: Vec<u32>,
    new_keys: Vec<(usize, &'a Arc<PublicKey>)>,
}

impl<'a> KeyedBatch<'a> {
    /// Takes messages from the front of `remaining` while their keys have numbers; at least one.
    fn take_from(numbers: &mut KeyNumbers, remaining: &mut &[IndexedMessage<'a>], batch_number: u64) -> Self {
        let mut batch = Self {
            messages: Vec::with_capacity(remaining.len()),
            key_of: Vec::with_capacity(remaining.len()),
            new_keys: Vec::new(),
        };
        while let Some((message, tail)) = remaining.split_first() {
            let key = message.1.key();
            let number = match numbers.look_up(key, batch_number) {
                NumberLookup::Full => break,
                NumberLookup::Present(number) => number,
                NumberLookup::Assigned(number) => {
                    batch.new_keys.push((number as usize, key));
                    number
                }
            };
            batch.messages.push(*message);
            batch.key_of.push(number);
            *remaining = tail;
        }
        batch
    }
}

pub(super) struct GpuVerifier {
    pub(super) gpu: Gpu,
    placement: Arc<KeyPlacement>,
    /// The goal by which kernels are chosen.
    pub(super) goal: Goal,
    /// Number of the latest batch that [`KeyNumbers`] counts.
    batch_number: u64,
    /// One store for each group of keys, created by the group's first message.
    stores: Vec<Option<KeyStore>>,
}

impl GpuVerifier {
    pub(super) fn new(gpu: Gpu, placement: Arc<KeyPlacement>) -> Self {
        Self {
            gpu,
            stores: placement.groups().iter().map(|_| None).collect(),
            placement,
            goal: Goal::Automatic,
            batch_number: 0,
        }
    }

    /// Closes the device, and returns whether the device stopped responding: see [`Gpu::close`]. Keys are dropped
    /// afterwards, since releasing their memory would wait for a device that does not respond.
    pub(super) fn close(self) -> bool {
        self.gpu.close()
    }

    /// Verifies messages, and returns the messages whose keys belong to no group of the device. After an error the
    /// device must be closed: keys may have numbers without being on the device.
    pub(super) fn verify<'a>(
        &mut self,
        messages: &[IndexedMessage<'a>],
        results: &mut [bool],
    ) -> Result<Vec<IndexedMessage<'a>>, BatchError> {
        let placement = Arc::clone(&self.placement);
        let mut group_messages: Vec<Vec<IndexedMessage>> =
            placement.groups().iter().map(|_| Vec::new()).collect();
        let mut unplaced = Vec::new();
        for message in messages {
            let group = placement.group_of(message.1.key());
            match group.and_then(|group| group_messages.get_mut(group)) {
                Some(group) => group.push(*message),
                None => unplaced.push(*message),
            }
        }
        for ((group, mut messages), store) in placement
            .groups()
            .iter()
            .zip(group_messages)
            .zip(&mut self.stores)
        {
            if group.is_oversubscribed {
                // With more keys than fit, the order of keys ensures that each key is uploaded once per batch.
                messages.sort_by_key(|(_, message)| Arc::as_ptr(message.key()));
            }
            let mut remaining = messages.as_slice();
            while !remaining.is_empty() {
                let store = match store {
                    Some(store) => store,
                    None => store.insert(KeyStore::new(&mut self.gpu, &placement, group)?),
                };
                self.batch_number += 1;
                let batch = KeyedBatch::take_from(&mut store.numbers, &mut remaining, self.batch_number);
                let batch_results = store.verify(&mut self.gpu, &batch, self.goal)?;
                store_results(&batch.messages, &batch_results, results);
            }
        }
        Ok(unplaced)
    }
}

impl KeyStore {
    fn new(gpu: &mut Gpu, placement: &KeyPlacement, group: &Group) -> Result<Self, BatchError> {
        let capacity = group.capacity;
        let mut numbers = KeyNumbers::new(capacity);
        let keys = match &group.shape {
            Shape::Pss(size) => Keys::Pss(gpu.rsa_keys(*size, capacity)?),
            Shape::Ra { size, domains } => Keys::Ra(gpu.ra_keys(*size, domains, capacity)?),
            Shape::P256 => {
                let mut keys = gpu.p256_keys(capacity)?;
                // Making thousands of tables together takes little longer than making one table later, for which a
                // message would wait.
                let placed = placement.placed(group);
                let numbered = placed.iter().map(|key| match numbers.look_up(key, 0) {
                    NumberLookup::Assigned(number) => Some((number as usize, key)),
                    NumberLookup::Present(_) | NumberLookup::Full => None,
                });
                let numbered: Option<Vec<_>> = numbered.collect();
                let too_many = BatchError::Malformed("more signers are placed than the device can hold");
                put_points(gpu, &mut keys, &numbered.ok_or(too_many)?)?;
                Keys::P256(keys)
            }
        };
        Ok(Self { keys, numbers })
    }

    fn verify(&mut self, gpu: &mut Gpu, keyed: &KeyedBatch, goal: Goal) -> Result<Vec<bool>, BatchError> {
        let key_of = &keyed.key_of;
        let digests = || keyed.messages.iter().map(|(_, message)| digest(message));
        match &mut self.keys {
            Keys::Pss(keys) => {
                for (number, key) in &keyed.new_keys {
                    if let Material::Pss(key, _) = key.material() {
                        gpu.put_rsa_key(keys, *number, key.as_bytes())?;
                    }
                }
                let batch = PssBatch {
                    keys,
                    key_of,
                    digests: &digests().collect::<Vec<_>>(),
                    signatures: &signatures(&keyed.messages),
                };
                gpu.verify_pss(&batch, goal)
            }
            Keys::Ra(keys) => {
                for (number, key) in &keyed.new_keys {
                    if let Some(key) = key.ra() {
                        gpu.put_ra_public(keys, *number, key)?;
                    }
                }
                let parts = keyed.messages.iter().filter_map(|(_, message)| message.rapid());
                let (digits, names): (Vec<_>, Vec<[u8; MASK_NAME_BYTES]>) =
                    parts.map(|(digits, name)| (digits.as_slice(), *name)).unzip();
                let batch = RaBatch {
                    keys,
                    key_of,
                    digits: &digits.concat(),
                    seeds: &names,
                    signatures: &signatures(&keyed.messages),
                };
                gpu.verify_ra(&batch, goal)
            }
            Keys::P256(keys) => {
                put_points(gpu, keys, &keyed.new_keys)?;
                let signatures = signatures(&keyed.messages);
                let batch = P256Batch {
                    keys,
                    key_of,
                    digests: &digests().collect::<Vec<_>>(),
                    // A checked message has 64 bytes; other lengths would make the batch malformed.
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
    new_keys: &[(usize, &Arc<PublicKey>)],
) -> Result<(), BatchError> {
    let points = new_keys.iter().map(|(number, key)| match key.material() {
        Material::EcdsaP256(key, _) => Some((*number, key.point())),
        _ => None,
    });
    let points: Option<Vec<_>> = points.collect();
    gpu.put_p256_keys(
        keys,
        &points.ok_or(BatchError::Malformed("a key of another scheme"))?,
    )
}

/// The signatures of messages of one scheme, concatenated.
fn signatures(messages: &[IndexedMessage]) -> Vec<u8> {
    let length = messages
        .first()
        .map_or(0, |(_, message)| message.signature().len());
    let mut bytes = Vec::with_capacity(messages.len() * length);
    for (_, message) in messages {
        bytes.extend_from_slice(message.signature());
    }
    bytes
}

fn store_results(messages: &[IndexedMessage], batch_results: &[bool], results: &mut [bool]) {
    for ((index, _), is_valid) in messages.iter().zip(batch_results) {
        if let Some(result) = results.get_mut(*index) {
            *result = *is_valid;
        }
    }
}

/// Verifies the messages that the device supports; returns the other messages.
pub(super) fn verify_on_device<'a>(
    device: &mut GpuVerifier,
    messages: &'a [Checked],
    results: &mut [bool],
) -> Result<Vec<IndexedMessage<'a>>, BatchError> {
    let indexed: Vec<IndexedMessage> = (0..).zip(messages).collect();
    device.verify(&indexed, results)
}
