//! Full-domain hashes of byte strings.

use super::engine::{Gpu, bytes_of, check_keys, check_length};
use super::error::{BatchError, GpuLost};
use super::keys::{OnDevice as _, RsaKeys};
use super::layouts::{FdhArgs, MESSAGE_BYTES_MAX};
use super::slot::{Field, Job, run};
use super::target::launch;

/// Byte strings of at most 128 bytes in the format of the kernels.
#[derive(Default)]
pub(super) struct Messages {
    padded: Vec<u8>,
    lengths: Vec<u32>,
}

impl Messages {
    pub(super) fn push(&mut self, message: &[u8]) -> Result<(), BatchError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(BatchError::Malformed("a byte string to hash exceeds 128 bytes"));
        }
        self.padded.extend_from_slice(message);
        self.lengths.push(message.len() as u32);
        self.padded.resize(self.lengths.len() * MESSAGE_BYTES_MAX, 0);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// The byte strings and their lengths, as fields of a batch.
    pub(super) fn fields(&self) -> [Field<'_>; 2] {
        [
            Field::new(&self.padded, MESSAGE_BYTES_MAX),
            Field::new(bytes_of(&self.lengths), 4),
        ]
    }
}

impl Gpu {
    /// The full-domain hash of each byte string: MGF1 with SHA-256, 128 bits longer than n, reduced modulo the n of the
    /// byte string's key. The numbers are concatenated, most significant byte first.
    ///
    /// # Errors
    /// A malformed batch, a byte string of more than 128 bytes, or a lost device.
    pub fn hash_full_domain(
        &mut self,
        keys: &RsaKeys,
        key_of: &[u32],
        messages: &[&[u8]],
    ) -> Result<Vec<u8>, BatchError> {
        check_length(messages.len(), key_of.len(), 1)?;
        check_keys(key_of, keys.capacity)?;
        self.check_owner(&keys.memory)?;
        let mut padded = Messages::default();
        for message in messages {
            padded.push(message)?;
        }
        let row_bytes = keys.size.bytes();
        self.guard(|gpu| {
            let job = gpu.hash_job(keys, key_of, &padded, [row_bytes])?;
            let [mut rows] = run(&mut gpu.slots, &job, |slice| {
                let [key_of, messages, lengths] = slice.inputs;
                let [out] = slice.outputs;
                let count = slice.count as u32;
                let arguments = FdhArgs {
                    keys: keys.memory.address(),
                    key_of,
                    messages,
                    lengths,
                    out,
                    count,
                    montgomery: 0,
                };
                // SAFETY: the slice's arrays have `count` entries each; key numbers were checked, and the keys
                // outlive the call.
                unsafe {
                    launch(
                        slice.target,
                        slice.stream,
                        keys.size.fdh(),
                        slice.count,
                        &arguments,
                    )
                }
            })?;
            super::constants::reverse_rows(&mut rows, row_bytes);
            Ok(rows)
        })
    }

    /// Like [`Gpu::hash_full_domain`], but writes the numbers to the device in Montgomery form: rows from address `out`
    /// on. The caller guarantees enough memory there. The caller has checked the keys.
    pub(super) fn hash_to_rows(
        &mut self,
        keys: &RsaKeys,
        key_of: &[u32],
        messages: &Messages,
        out: u64,
    ) -> Result<(), GpuLost> {
        let job = self.hash_job(keys, key_of, messages, [])?;
        run(&mut self.slots, &job, |slice| {
            let [key_of, messages, lengths] = slice.inputs;
            let out = out + (slice.first * keys.size.bytes()) as u64;
            let count = slice.count as u32;
            let arguments = FdhArgs {
                keys: keys.memory.address(),
                key_of,
                messages,
                lengths,
                out,
                count,
                montgomery: 1,
            };
            // SAFETY: as above; the caller guarantees memory for the rows.
            unsafe {
                launch(
                    slice.target,
                    slice.stream,
                    keys.size.fdh(),
                    slice.count,
                    &arguments,
                )
            }
        })?;
        Ok(())
    }

    fn hash_job<'a, const O: usize>(
        &self,
        keys: &RsaKeys,
        key_of: &'a [u32],
        messages: &'a Messages,
        outputs: [usize; O],
    ) -> Result<Job<'a, 3, O>, GpuLost> {
        let [padded, lengths] = messages.fields();
        Ok(Job {
            count: messages.len(),
            slice: self.items_at_once(keys.size.fdh().info)?,
            order: None,
            inputs: [Field::new(bytes_of(key_of), 4), padded, lengths],
            outputs,
            scratch_bytes: 0,
            secret: false,
        })
    }
}
