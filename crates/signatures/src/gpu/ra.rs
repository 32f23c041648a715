//! Rapid Authentication: verification with many keys, and online signing of one signer.

use std::collections::VecDeque;

use linewarden_arithmetic::rsa::Size;
use zeroize::Zeroizing;

use super::constants::RsaSecret;
use super::engine::{Goal, Gpu, bytes_of, check_keys, check_length, order_by_key, to_bools};
use super::error::BatchError;
use super::hash::Messages;
use super::keys::{OnDevice as _, RsaKeys, RsaSecrets, size_of_modulus};
use super::layouts::{RaSignArgs, RaVerifyArgs, SEED_BYTES};
use super::private::{PrivateInput, PrivateOutput};
use super::slot::{Field, Job, run};
use super::target::{DeviceMemory, launch};
use crate::ra::Mask;

pub(super) const TOO_MANY_MASKS: BatchError =
    BatchError::Malformed("the masks exceed the capacity of the signer");

/// Number of rows that are hashed at once when a table is made. This number bounds the host memory.
const TABLE_ROWS_AT_ONCE: usize = 1 << 16;

/// Writes the bytes to hash for a value at a position, at most 128 bytes.
pub type Components<'a> = &'a dyn Fn(usize, u32, &mut Vec<u8>);

/// The positions of a message's components, also stored on the device.
pub(super) struct Layout {
    /// First row of each position; one more entry ends the last position.
    offsets: Vec<u32>,
    memory: DeviceMemory,
}

impl Layout {
    fn new(gpu: &mut Gpu, domains: &[u32]) -> Result<Self, BatchError> {
        let mut offsets = vec![0u32];
        let mut end = 0u32;
        for domain in domains {
            if !(1..=1 << 16).contains(domain) {
                return Err(BatchError::Malformed("a component must have 1 to 65,536 values"));
            }
            end = end
                .checked_add(*domain)
                .ok_or(BatchError::Malformed("the components have too many values"))?;
            offsets.push(end);
        }
        if domains.is_empty() {
            return Err(BatchError::Malformed(
                "a message must have at least one component",
            ));
        }
        let memory = gpu.allocate(size_of_val(offsets.as_slice()))?;
        gpu.write(&memory, 0, bytes_of(&offsets))?;
        Ok(Self { offsets, memory })
    }

    fn components(&self) -> usize {
        self.offsets.len() - 1
    }

    fn rows(&self) -> usize {
        self.offsets.last().map_or(0, |rows| *rows as usize)
    }

    /// Position and value of at most `count` rows, from row `first` on.
    fn values(&self, first: usize, count: usize) -> impl Iterator<Item = (usize, u32)> {
        let end = self.rows().min(first + count);
        (first as u32..end as u32).map(|row| {
            let position = self.offsets.partition_point(|offset| *offset <= row) - 1;
            (position, row - self.offsets.get(position).copied().unwrap_or(0))
        })
    }

    /// The byte strings to hash for the rows from `first` on, at most [`TABLE_ROWS_AT_ONCE`] rows.
    fn messages(&self, first: usize, components: Components) -> Result<Messages, BatchError> {
        let mut messages = Messages::default();
        let mut bytes = Vec::new();
        for (position, value) in self.values(first, TABLE_ROWS_AT_ONCE) {
            bytes.clear();
            components(position, value, &mut bytes);
            messages.push(&bytes)?;
        }
        Ok(messages)
    }

    /// Whether all digits are within their domains.
    fn contains(&self, digits: &[u16]) -> bool {
        let domains: Vec<u32> = self
            .offsets
            .array_windows()
            .map(|[start, end]| end - start)
            .collect();
        digits.chunks(domains.len()).all(|item| {
            item.iter()
                .zip(&domains)
                .all(|(digit, domain)| u32::from(*digit) < *domain)
        })
    }
}

/// Public keys of signers with one layout, and the hashes of all their components.
pub struct RaKeys {
    rsa: RsaKeys,
    layout: Layout,
    table: DeviceMemory,
}

impl std::fmt::Debug for RaKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaKeys")
            .field("rsa", &self.rsa)
            .field("rows", &self.layout.rows())
            .finish_non_exhaustive()
    }
}

/// Signatures of Rapid Authentication.
#[derive(Debug, Clone, Copy)]
pub struct RaBatch<'a> {
    /// The signers' keys.
    pub keys: &'a RaKeys,
    /// Key number of each item.
    pub key_of: &'a [u32],
    /// The digits of each item, one per position of the layout.
    pub digits: &'a [u16],
    /// r of each signature.
    pub seeds: &'a [[u8; SEED_BYTES]],
    /// Sigma of each signature, concatenated, as many bytes as a modulus each, most significant byte first.
    pub signatures: &'a [u8],
}

/// Signatures: r and sigma of each message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaSignature {
    /// r of each message.
    pub seeds: Vec<[u8; SEED_BYTES]>,
    /// Sigma of each message, as many bytes as a modulus each, most significant byte first.
    pub numbers: Vec<u8>,
}

/// A signer's key on a device.
pub(super) enum SignerKeys {
    /// The public key: for signing with masks that were made elsewhere.
    Public(RsaKeys),
    /// The private key: for making masks.
    Private(RsaSecrets),
}

impl SignerKeys {
    fn public(&self) -> &RsaKeys {
        match self {
            Self::Public(keys) => keys,
            Self::Private(secrets) => &secrets.public,
        }
    }

    fn private(&self) -> Result<&RsaSecrets, BatchError> {
        match self {
            Self::Public(_) => Err(BatchError::Malformed(
                "the signer's private key is not on the device",
            )),
            Self::Private(secrets) => Ok(secrets),
        }
    }
}

/// A signer's table and masks on the device. Host and device both ensure that each mask is used once.
pub struct RaSigner {
    keys: SignerKeys,
    prefix: Vec<u8>,
    layout: Layout,
    table: DeviceMemory,
    /// A ring of slots with one mask each.
    masks: DeviceMemory,
    /// For each slot, whether it contains a mask.
    filled: DeviceMemory,
    capacity: usize,
    /// The slot to fill next.
    next_slot: usize,
    /// Slots with checked masks, oldest first, and the random numbers of the masks.
    ready_masks: VecDeque<(u32, [u8; SEED_BYTES])>,
}

impl std::fmt::Debug for RaSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaSigner")
            .field("capacity", &self.capacity)
            .field("masks", &self.ready_masks.len())
            .finish_non_exhaustive()
    }
}

impl RaSigner {
    /// Number of masks that are ready for use.
    #[must_use]
    pub fn masks(&self) -> usize {
        self.ready_masks.len()
    }

    /// Number of masks that can be added. Slots become free in the order in which they were filled.
    #[must_use]
    pub fn room(&self) -> usize {
        match self.ready_masks.front() {
            None => self.capacity,
            Some((oldest, _)) => (*oldest as usize + self.capacity - self.next_slot) % self.capacity,
        }
    }
}

impl Gpu {
    /// Allocates memory for signers' keys of one layout; `domains` has the number of values of each position. A table row takes as
    /// many bytes as a modulus.
    ///
    /// # Errors
    /// A layout without positions or values, or a device that is lost or has not enough memory.
    pub fn ra_keys(&mut self, size: Size, domains: &[u32], capacity: usize) -> Result<RaKeys, BatchError> {
        let rsa = self.rsa_keys(size, capacity)?;
        self.guard(|gpu| {
            let layout = Layout::new(gpu, domains)?;
            let rows = layout
                .rows()
                .checked_mul(capacity)
                .filter(|rows| u32::try_from(*rows).is_ok());
            let rows = rows.ok_or(BatchError::Malformed("the tables of all keys have too many rows"))?;
            Ok(RaKeys {
                rsa,
                layout,
                table: gpu.allocate(rows * size.bytes())?,
            })
        })
    }

    /// Stores a signer's key under a number and hashes all its components. `prefix` precedes r in the hash of a mask, at most 96
    /// bytes.
    ///
    /// # Errors
    /// A modulus, number or byte string that does not fit, or a lost device.
    pub fn put_ra_key(
        &mut self,
        keys: &mut RaKeys,
        number: usize,
        modulus: &[u8],
        prefix: &[u8],
        components: Components,
    ) -> Result<(), BatchError> {
        self.guard(|gpu| {
            let rows = keys.layout.rows();
            // The product was checked when the table was made, and put_public checks the number.
            let first_row = number.saturating_mul(rows) as u32;
            gpu.put_public(&mut keys.rsa, number, modulus, prefix, first_row)?;
            for first in (0..rows).step_by(TABLE_ROWS_AT_ONCE) {
                let messages = keys.layout.messages(first, components)?;
                let key_of = vec![number as u32; messages.len()];
                let row = (first_row as usize + first) * keys.rsa.size.bytes();
                gpu.hash_to_rows(&keys.rsa, &key_of, &messages, keys.table.address() + row as u64)?;
            }
            Ok(())
        })
    }

    /// Whether each signature is valid for its key and digits. A digit outside its domain makes a signature invalid; the caller checks
    /// whether r was used before.
    ///
    /// # Errors
    /// A malformed batch, or a lost device.
    pub fn verify_ra(&mut self, batch: &RaBatch, goal: Goal) -> Result<Vec<bool>, BatchError> {
        let RaBatch {
            keys,
            key_of,
            digits,
            seeds,
            signatures,
        } = *batch;
        let (count, number_bytes, components) =
            (key_of.len(), keys.rsa.size.bytes(), keys.layout.components());
        check_length(digits.len(), count, components)?;
        check_length(seeds.len(), count, 1)?;
        check_length(signatures.len(), count, number_bytes)?;
        check_keys(key_of, keys.rsa.capacity)?;
        self.check_owner(&keys.table)?;
        self.guard(|gpu| {
            let (throughput, latency) = keys.rsa.size.ra_verify();
            let (kernel, slice) = gpu.choose(goal, count, throughput, latency)?;
            let order = order_by_key(key_of, keys.rsa.capacity);
            let job = Job {
                count,
                slice,
                order: order.as_deref(),
                inputs: [
                    Field::new(bytes_of(key_of), 4),
                    Field::new(signatures, number_bytes),
                    Field::new(bytes_of(seeds), SEED_BYTES),
                    Field::new(bytes_of(digits), 2 * components),
                ],
                outputs: [1],
                scratch_bytes: 0,
                secret: false,
            };
            let [results] = run(&mut gpu.slots, &job, |slice| {
                let [key_of, signatures, seeds, digits] = slice.inputs;
                let [verdicts] = slice.outputs;
                let arguments = RaVerifyArgs {
                    keys: keys.rsa.memory.address(),
                    key_of,
                    signatures,
                    seeds,
                    digits,
                    offsets: keys.layout.memory.address(),
                    table: keys.table.address(),
                    verdicts,
                    count: slice.count as u32,
                    components: components as u32,
                };
                // SAFETY: the slice's arrays have `count` entries each; key numbers were checked, the kernel checks digits; keys,
                // offsets and table outlive the call.
                unsafe { launch(slice.target, slice.stream, kernel, slice.count, &arguments) }
            })?;
            Ok(to_bools(&results))
        })
    }

    /// Stores a signer on the device: the key, the table with the signatures of all component values, and memory for
    /// masks. The device makes and checks the signatures of the table.
    ///
    /// # Errors
    /// Numbers or a layout that do not fit, an inconsistent key, or a device that is lost or has not enough memory.
    pub fn ra_signer(
        &mut self,
        modulus: &[u8],
        secret: &RsaSecret,
        prefix: &[u8],
        domains: &[u32],
        components: Components,
        masks: usize,
    ) -> Result<RaSigner, BatchError> {
        let size = size_of_modulus(modulus)?;
        let mut secrets = self.rsa_secrets(size, 1)?;
        self.put_rsa_secret(&mut secrets, 0, modulus, prefix, secret)?;
        let keys = SignerKeys::Private(secrets);
        self.signer_with(keys, prefix, domains, masks, |gpu, layout, keys, memory| {
            let secrets = keys.private()?;
            for first in (0..layout.rows()).step_by(TABLE_ROWS_AT_ONCE) {
                let messages = layout.messages(first, components)?;
                let address = memory.address() + (first * size.bytes()) as u64;
                let destination = PrivateOutput::Rows {
                    address,
                    montgomery: true,
                };
                let key_of = vec![0; messages.len()];
                let results = gpu.run_private(
                    secrets,
                    &key_of,
                    &PrivateInput::Hashes(&messages),
                    destination,
                    Goal::Automatic,
                )?;
                check_statuses(&results.statuses)?;
            }
            Ok(())
        })
    }

    /// Makes a signer. `fill` writes the signer's table into device memory.
    pub(super) fn signer_with(
        &mut self,
        keys: SignerKeys,
        prefix: &[u8],
        domains: &[u32],
        masks: usize,
        fill: impl FnOnce(&mut Self, &Layout, &SignerKeys, &DeviceMemory) -> Result<(), BatchError>,
    ) -> Result<RaSigner, BatchError> {
        if masks == 0 || u32::try_from(masks).is_err() {
            return Err(BatchError::Malformed(
                "the mask capacity of a signer must be 1 to 2^32 - 1",
            ));
        }
        let number_bytes = keys.public().size.bytes();
        self.guard(|gpu| {
            let layout = Layout::new(gpu, domains)?;
            let table = gpu.allocate(layout.rows() * number_bytes)?;
            fill(gpu, &layout, &keys, &table)?;
            Ok(RaSigner {
                prefix: prefix.to_vec(),
                layout,
                table,
                masks: gpu.allocate(masks * number_bytes)?,
                filled: gpu.allocate(masks * size_of::<u32>())?,
                capacity: masks,
                next_slot: 0,
                ready_masks: VecDeque::new(),
                keys,
            })
        })
    }

    /// Makes masks of these random numbers, which must never have been used before, and adds them to the signer.
    ///
    /// # Errors
    /// Too many masks, no private key on the device, a failed check of a result (the other masks are kept), or a lost device.
    pub fn fill_masks(
        &mut self,
        signer: &mut RaSigner,
        seeds: &[[u8; SEED_BYTES]],
    ) -> Result<(), BatchError> {
        self.check_owner(&signer.masks)?;
        if seeds.len() > signer.room() {
            return Err(TOO_MANY_MASKS);
        }
        self.guard(|gpu| {
            let (up_to_end, from_start) = seeds.split_at(seeds.len().min(signer.capacity - signer.next_slot));
            gpu.fill_run(signer, up_to_end)?;
            gpu.fill_run(signer, from_start)
        })
    }

    /// Fills consecutive slots.
    fn fill_run(&mut self, signer: &mut RaSigner, seeds: &[[u8; SEED_BYTES]]) -> Result<(), BatchError> {
        let mut messages = Messages::default();
        for seed in seeds {
            messages.push(&[signer.prefix.as_slice(), seed].concat())?;
        }
        let head = signer.next_slot;
        let address = signer.masks.address() + (head * signer.keys.public().size.bytes()) as u64;
        let destination = PrivateOutput::Rows {
            address,
            montgomery: false,
        };
        let key_of = vec![0; seeds.len()];
        let results = self.run_private(
            signer.keys.private()?,
            &key_of,
            &PrivateInput::Hashes(&messages),
            destination,
            Goal::Automatic,
        )?;
        let filled: Vec<u32> = results.statuses.iter().map(|status| u32::from(*status)).collect();
        self.write(&signer.filled, head * size_of::<u32>(), bytes_of(&filled))?;
        let slots = (head as u32..).zip(seeds).zip(&results.statuses);
        signer.ready_masks.extend(
            slots
                .filter(|(_, status)| **status == 1)
                .map(|((slot, seed), _)| (slot, *seed)),
        );
        signer.next_slot = (head + seeds.len()) % signer.capacity;
        check_statuses(&results.statuses)
    }

    /// Adds masks that were made elsewhere. The masks are lost if the call fails.
    ///
    /// # Errors
    /// Too many masks, masks of another modulus size, or a lost device.
    pub fn put_masks(&mut self, signer: &mut RaSigner, masks: Vec<Mask>) -> Result<(), BatchError> {
        self.check_owner(&signer.masks)?;
        let number_bytes = signer.keys.public().size.bytes();
        if masks.iter().any(|mask| mask.beta().len() != number_bytes) {
            return Err(BatchError::Malformed("a mask belongs to another key"));
        }
        if masks.len() > signer.room() {
            return Err(TOO_MANY_MASKS);
        }
        self.guard(|gpu| {
            let (up_to_end, from_start) = masks.split_at(masks.len().min(signer.capacity - signer.next_slot));
            gpu.put_run(signer, up_to_end)?;
            gpu.put_run(signer, from_start)
        })
    }

    /// Writes masks into consecutive slots.
    fn put_run(&mut self, signer: &mut RaSigner, masks: &[Mask]) -> Result<(), BatchError> {
        let (head, number_bytes) = (signer.next_slot, signer.keys.public().size.bytes());
        let mut numbers = Zeroizing::new(Vec::with_capacity(masks.len() * number_bytes));
        for mask in masks {
            numbers.extend(mask.beta().iter().rev());
        }
        self.write(&signer.masks, head * number_bytes, &numbers)?;
        let filled = vec![1u32; masks.len()];
        self.write(&signer.filled, head * size_of::<u32>(), bytes_of(&filled))?;
        let slots = head as u32..;
        signer
            .ready_masks
            .extend(slots.zip(masks).map(|(slot, mask)| (slot, *mask.name())));
        signer.next_slot = (head + masks.len()) % signer.capacity;
        Ok(())
    }

    /// Signs messages, each with as many digits as the layout has positions. Each message consumes one mask, even if signing fails.
    ///
    /// # Errors
    /// A digit outside its domain or too few masks (no mask is consumed then), or a lost device.
    pub fn sign_ra(
        &mut self,
        signer: &mut RaSigner,
        digits: &[u16],
        goal: Goal,
    ) -> Result<RaSignature, BatchError> {
        let components = signer.layout.components();
        let count = digits.len() / components;
        self.check_owner(&signer.masks)?;
        check_length(digits.len(), count, components)?;
        if !signer.layout.contains(digits) {
            return Err(BatchError::Malformed("a digit is outside its domain"));
        }
        if count > signer.ready_masks.len() {
            return Err(BatchError::TooFewMasks {
                required: count,
                available: signer.ready_masks.len(),
            });
        }
        self.guard(|gpu| {
            let (slots, seeds): (Vec<u32>, Vec<_>) = signer.ready_masks.drain(..count).unzip();
            let public = signer.keys.public();
            let number_bytes = public.size.bytes();
            let (throughput, latency) = public.size.ra_sign();
            let (kernel, slice) = gpu.choose(goal, count, throughput, latency)?;
            let key_of = vec![0u32; count];
            let job = Job {
                count,
                slice,
                order: None,
                inputs: [
                    Field::new(bytes_of(&key_of), 4),
                    Field::new(bytes_of(&slots), 4),
                    Field::new(bytes_of(digits), 2 * components),
                ],
                outputs: [number_bytes, 1],
                scratch_bytes: 0,
                secret: false,
            };
            let [numbers, statuses] = run(&mut gpu.slots, &job, |slice| {
                let [key_of, slots, digits] = slice.inputs;
                let [signatures, statuses] = slice.outputs;
                let arguments = RaSignArgs {
                    keys: public.memory.address(),
                    key_of,
                    digits,
                    offsets: signer.layout.memory.address(),
                    table: signer.table.address(),
                    slots,
                    masks: signer.masks.address(),
                    filled: signer.filled.address(),
                    signatures,
                    statuses,
                    count: slice.count as u32,
                    components: components as u32,
                };
                // SAFETY: the slice's arrays have `count` entries each; digits and slots belong to this signer, whose memory outlives
                // the call.
                unsafe { launch(slice.target, slice.stream, kernel, slice.count, &arguments) }
            })?;
            check_statuses(&statuses)?;
            Ok(RaSignature { seeds, numbers })
        })
    }
}

pub(super) fn check_statuses(statuses: &[u8]) -> Result<(), BatchError> {
    match statuses.iter().filter(|status| **status != 1).count() {
        0 => Ok(()),
        failed => Err(BatchError::CheckFailed(failed)),
    }
}
