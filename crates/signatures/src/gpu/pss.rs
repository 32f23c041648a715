//! RSA-PSS verification.

use super::engine::{Goal, Gpu, bytes_of, check_keys, check_length, order_by_key, to_bools};
use super::error::BatchError;
use super::keys::{OnDevice as _, RsaKeys};
use super::layouts::PssArgs;
use super::slot::{Field, Job, run};
use super::target::launch;

/// RSA-PSS signatures with SHA-256, MGF1 with SHA-256 and a salt of 32 bytes.
#[derive(Debug, Clone, Copy)]
pub struct PssBatch<'a> {
    /// The signers' keys.
    pub keys: &'a RsaKeys,
    /// Key number of each item.
    pub key_of: &'a [u32],
    /// SHA-256 of each message.
    pub digests: &'a [[u8; 32]],
    /// The signatures, concatenated, as many bytes as a modulus each.
    pub signatures: &'a [u8],
}

impl Gpu {
    /// Whether each signature is valid for its key and message.
    ///
    /// # Errors
    /// A malformed batch, or a lost device.
    pub fn verify_pss(&mut self, batch: &PssBatch, goal: Goal) -> Result<Vec<bool>, BatchError> {
        let PssBatch {
            keys,
            key_of,
            digests,
            signatures,
        } = *batch;
        let (count, number_bytes) = (key_of.len(), keys.size.bytes());
        check_length(digests.len(), count, 1)?;
        check_length(signatures.len(), count, number_bytes)?;
        check_keys(key_of, keys.capacity)?;
        self.check_owner(&keys.memory)?;
        self.guard(|gpu| {
            let (throughput, latency) = keys.size.pss();
            let (kernel, slice) = gpu.choose(goal, count, throughput, latency)?;
            let order = order_by_key(key_of, keys.capacity);
            let job = Job {
                count,
                slice,
                order: order.as_deref(),
                inputs: [
                    Field::new(bytes_of(key_of), 4),
                    Field::new(signatures, number_bytes),
                    Field::new(bytes_of(digests), 32),
                ],
                outputs: [1],
                scratch_bytes: 0,
                secret: false,
            };
            let [results] = run(&mut gpu.slots, &job, |slice| {
                let [key_of, signatures, digests] = slice.inputs;
                let [verdicts] = slice.outputs;
                let arguments = PssArgs {
                    keys: keys.memory.address(),
                    key_of,
                    signatures,
                    digests,
                    verdicts,
                    count: slice.count as u32,
                    unused: 0,
                };
                // SAFETY: the slice's arrays have `count` entries each; key numbers were checked against the keys,
                // which outlive the call.
                unsafe { launch(slice.target, slice.stream, kernel, slice.count, &arguments) }
            })?;
            Ok(to_bools(&results))
        })
    }
}
