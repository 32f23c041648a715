//! ECDSA verification on P-256.

use std::collections::HashSet;

use linewarden_arithmetic::p256::{BASE_POINT, PublicPoint};

use super::engine::{Goal, Gpu, bytes_of, check_keys, check_length, order_by_key, to_bools};
use super::error::{BatchError, GpuLost};
use super::kernels;
use super::layouts::{P256_BASE_TABLE, P256_KEY_TABLE, P256Args, P256Table, P256TableArgs};
use super::slot::{Field, Job, run};
use super::target::{DeviceMemory, launch};

/// Bytes of a public key on a device: the multiples of its point.
pub(crate) const P256_KEY_BYTES: usize = P256_KEY_TABLE.bytes();

/// Public keys of P-256 with multiples of their points. Batches refer to a key by its number. Verification with an
/// unused number always fails.
pub struct P256Keys {
    memory: DeviceMemory,
    capacity: usize,
}

impl std::fmt::Debug for P256Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("P256Keys")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// ECDSA signatures on P-256 with digests of 32 bytes.
#[derive(Debug, Clone, Copy)]
pub struct P256Batch<'a> {
    /// The signers' keys.
    pub keys: &'a P256Keys,
    /// Key number of each item.
    pub key_of: &'a [u32],
    /// The hash of each message.
    pub digests: &'a [[u8; 32]],
    /// r and s of each signature, most significant byte first.
    pub signatures: &'a [[u8; 64]],
}

impl Gpu {
    /// Allocates memory for public keys on the device, 13 KiB each.
    ///
    /// # Errors
    /// The device is lost or has not enough memory.
    pub fn p256_keys(&mut self, capacity: usize) -> Result<P256Keys, BatchError> {
        self.guard(|gpu| {
            Ok(P256Keys {
                memory: gpu.allocate(P256_KEY_BYTES * capacity)?,
                capacity,
            })
        })
    }

    /// Stores keys under numbers, replacing earlier keys, and waits. The device processes thousands of keys at once,
    /// which takes some milliseconds.
    ///
    /// # Errors
    /// A number that is out of range or occurs twice (then no key is stored), or a lost device.
    pub fn put_p256_keys(
        &mut self,
        keys: &mut P256Keys,
        points: &[(usize, &PublicPoint)],
    ) -> Result<(), BatchError> {
        let distinct_numbers: HashSet<usize> = points.iter().map(|(number, _)| *number).collect();
        if distinct_numbers.iter().any(|number| *number >= keys.capacity) {
            return Err(BatchError::Malformed("a key number is out of range"));
        }
        if distinct_numbers.len() < points.len() {
            return Err(BatchError::Malformed("a key number occurs twice"));
        }
        self.check_owner(&keys.memory)?;
        let (numbers, points): (Vec<u32>, Vec<[u8; 64]>) = points
            .iter()
            .map(|(number, point)| (*number as u32, *point.as_bytes()))
            .unzip();
        self.guard(|gpu| {
            let items_at_once = gpu.items_at_once(kernels::P256_TABLES.info)?;
            let chunk_len = (items_at_once / P256_KEY_TABLE.places as usize).max(1);
            for (points, numbers) in points.chunks(chunk_len).zip(numbers.chunks(chunk_len)) {
                gpu.make_p256_tables(P256_KEY_TABLE, points, numbers, &keys.memory)?;
            }
            Ok(())
        })
    }

    /// Whether each signature is valid for its key and message.
    ///
    /// # Errors
    /// A malformed batch, or a lost device.
    pub fn verify_p256(&mut self, batch: &P256Batch, goal: Goal) -> Result<Vec<bool>, BatchError> {
        let P256Batch {
            keys,
            key_of,
            digests,
            signatures,
        } = *batch;
        let count = key_of.len();
        check_length(digests.len(), count, 1)?;
        check_length(signatures.len(), count, 1)?;
        check_keys(key_of, keys.capacity)?;
        self.check_owner(&keys.memory)?;
        self.guard(|gpu| {
            let base_table = gpu.p256_base_table()?;
            let (throughput, latency) = (kernels::P256_VERIFY_T1, kernels::P256_VERIFY_T4);
            let (kernel, slice) = gpu.choose(goal, count, throughput, latency)?;
            let order = order_by_key(key_of, keys.capacity);
            let job = Job {
                count,
                slice,
                order: order.as_deref(),
                inputs: [
                    Field::new(bytes_of(key_of), 4),
                    Field::new(bytes_of(signatures), 64),
                    Field::new(bytes_of(digests), 32),
                ],
                outputs: [1],
                scratch_bytes: 0,
                secret: false,
            };
            let [results] = run(&mut gpu.slots, &job, |slice| {
                let [key_of, signatures, digests] = slice.inputs;
                let [verdicts] = slice.outputs;
                let arguments = P256Args {
                    base_table,
                    tables: keys.memory.address(),
                    key_of,
                    signatures,
                    digests,
                    verdicts,
                    count: slice.count as u32,
                    unused: 0,
                };
                // SAFETY: the slice's arrays have `count` entries each; key numbers were checked against the keys, which
                // outlive the call, and this device keeps the base point's table.
                unsafe { launch(slice.target, slice.stream, kernel, slice.count, &arguments) }
            })?;
            Ok(to_bools(&results))
        })
    }

    /// The table of the base point, made on the device by the first call.
    fn p256_base_table(&mut self) -> Result<u64, GpuLost> {
        if let Some(table) = &self.p256_base_table {
            return Ok(table.address());
        }
        let table = self.allocate(P256_BASE_TABLE.bytes())?;
        self.make_p256_tables(P256_BASE_TABLE, &[BASE_POINT], &[0], &table)?;
        Ok(self.p256_base_table.insert(table).address())
    }

    /// Makes the tables of points, and waits. The caller has checked the points, and that `tables` has memory for their
    /// numbers.
    fn make_p256_tables(
        &mut self,
        table: P256Table,
        points: &[[u8; 64]],
        numbers: &[u32],
        tables: &DeviceMemory,
    ) -> Result<(), GpuLost> {
        let points_memory = self.allocate(size_of_val(points))?;
        self.write(&points_memory, 0, points.as_flattened())?;
        let numbers_memory = self.allocate(size_of_val(numbers))?;
        self.write(&numbers_memory, 0, bytes_of(numbers))?;
        let items = points.len() * table.places as usize;
        let arguments = P256TableArgs {
            points: points_memory.address(),
            numbers: numbers_memory.address(),
            tables: tables.address(),
            count: items as u32,
            places: table.places,
            bits: table.bits,
            multiples: table.multiples,
        };
        // SAFETY: the caller guarantees room for the tables and a number for each point; the stream is synchronized
        // before any of the memory can be released.
        let launched = unsafe { launch(&*self.target, 0, kernels::P256_TABLES, items, &arguments) };
        launched.and(self.target.synchronize(0))
    }
}
