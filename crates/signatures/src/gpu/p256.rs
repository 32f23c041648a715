//! ECDSA verification on P-256.

use super::engine::{Gpu, bytes_of, check_keys, check_length, order_by_key, verdicts};
use super::error::{BatchError, GpuLost};
use super::kernels;
use super::layouts::{P256_MULTIPLE_WORDS, P256_TABLE_PLACES, P256_TABLE_WORDS, P256Args, P256TableArgs};
use super::slot::{Field, Job, run};
use super::target::{launch, threads_of};

/// Signatures by ECDSA on P-256 with digests of 32 bytes.
#[derive(Debug, Clone, Copy)]
pub struct P256Batch<'a> {
    /// Public points, x and y, most significant byte first.
    pub keys: &'a [[u8; 64]],
    /// The place of each item's key among them.
    pub key_of: &'a [u32],
    /// The hash of each message.
    pub digests: &'a [[u8; 32]],
    /// r and s of each signature, most significant byte first.
    pub signatures: &'a [[u8; 64]],
}

impl Gpu {
    /// Whether each signature is one of its key and message. Keys that are no points of the curve verify nothing.
    ///
    /// # Errors
    /// A malformed batch, or the device is lost.
    pub fn verify_p256(&mut self, batch: &P256Batch) -> Result<Vec<bool>, BatchError> {
        let P256Batch {
            keys,
            key_of,
            digests,
            signatures,
        } = *batch;
        let count = key_of.len();
        check_length(digests.len(), count, 1)?;
        check_length(signatures.len(), count, 1)?;
        check_keys(key_of, keys.len())?;
        self.guard(|gpu| {
            let base_table = gpu.p256_base_table()?;
            let points = gpu.p256_points(keys)?;
            let kernel = kernels::P256_VERIFY;
            let slice = gpu.items_at_once(kernel.info)?.min(count);
            let order = order_by_key(key_of, keys.len());
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
                scratch_bytes: threads_of(kernel.info, slice) * P256_MULTIPLE_WORDS * 4,
                secret: false,
            };
            let [results] = run(&mut gpu.slots, &job, |slice| {
                let [key_of, signatures, digests] = slice.inputs;
                let [verdicts] = slice.outputs;
                let arguments = P256Args {
                    base_table,
                    keys: points,
                    key_of,
                    signatures,
                    digests,
                    multiples: slice.scratch,
                    verdicts,
                    count: slice.count as u32,
                    unused: 0,
                };
                // SAFETY: the slice's arrays have `count` entries each and its scratch memory room for every thread;
                // keys' places were checked, and this device keeps points and table.
                unsafe { launch(slice.target, slice.stream, kernel, slice.count, &arguments) }
            })?;
            Ok(verdicts(&results))
        })
    }

    /// The keys of a batch on the device, in memory that is kept for the next.
    fn p256_points(&mut self, keys: &[[u8; 64]]) -> Result<u64, GpuLost> {
        let bytes = bytes_of(keys);
        let points = match self.p256_points.take() {
            Some(points) if points.bytes() >= bytes.len() => points,
            _ => self.allocate(bytes.len().next_power_of_two())?,
        };
        self.write(&points, 0, bytes)?;
        Ok(self.p256_points.insert(points).address())
    }

    /// The table of the base point, made on the device the first time.
    fn p256_base_table(&mut self) -> Result<u64, GpuLost> {
        if let Some(table) = &self.p256_table {
            return Ok(table.address());
        }
        let table = self.allocate(P256_TABLE_WORDS * 4)?;
        let arguments = P256TableArgs {
            base_table: table.address(),
        };
        // SAFETY: the table has room for all places, and the stream is synchronised before it can go.
        let begun = unsafe {
            launch(
                &*self.target,
                0,
                kernels::P256_BASE_TABLE,
                P256_TABLE_PLACES,
                &arguments,
            )
        };
        begun.and(self.target.synchronize(0))?;
        Ok(self.p256_table.insert(table).address())
    }
}
