//! The private operation of RSA, on given numbers or on hashes. The results for hashes are masks and tables.

use linewarden_arithmetic::rsa::Size;
use zeroize::Zeroizing;

use super::constants::reverse_rows;
use super::engine::{Goal, Gpu, bytes_of, check_keys, check_length};
use super::error::{BatchError, GpuLost};
use super::hash::Messages;
use super::kernels::{Kernel, KernelInfo};
use super::keys::{OnDevice as _, RsaSecrets};
use super::layouts::{CRT_POWERS, CrtArgs, FdhArgs};
use super::slot::{Field, Job, Slice, run};
use super::target::{launch, threads_of};

/// Numbers to raise to the private exponents of keys.
#[derive(Clone, Copy)]
pub struct PrivateBatch<'a> {
    /// The keys.
    pub secrets: &'a RsaSecrets,
    /// Key number of each item.
    pub key_of: &'a [u32],
    /// The numbers, concatenated, as many bytes as a modulus each, most significant byte first. The operation fails
    /// for a number that is not below its modulus.
    pub numbers: &'a [u8],
}

/// Input of the private operation.
pub(super) enum PrivateInput<'a> {
    /// Rows of limbs.
    Rows(&'a [u8]),
    /// Byte strings, whose hashes are the input numbers.
    Hashes(&'a Messages),
}

/// Destination of the results.
#[derive(Clone, Copy)]
pub(super) enum PrivateOutput {
    Host,
    /// Rows on the device, plain or in Montgomery form.
    Rows {
        address: u64,
        montgomery: bool,
    },
}

/// Rows of limbs (empty if they stay on the device), and the status of each row: 1, or 0 if the check failed; the row
/// is then zero.
pub(super) struct PrivateResults {
    pub(super) rows: Zeroizing<Vec<u8>>,
    pub(super) statuses: Vec<u8>,
}

impl Gpu {
    /// Raises each number to the private exponent of its key, modulo the modulus. Also returns whether each result is
    /// correct: the device raises the result to e, and zeroes a result that does not match.
    ///
    /// # Errors
    /// A malformed batch, or a lost device.
    pub fn private(
        &mut self,
        batch: &PrivateBatch,
        goal: Goal,
    ) -> Result<(Zeroizing<Vec<u8>>, Vec<bool>), BatchError> {
        let row_bytes = batch.secrets.public.size.bytes();
        check_length(batch.numbers.len(), batch.key_of.len(), row_bytes)?;
        check_keys(batch.key_of, batch.secrets.public.capacity)?;
        self.check_owner(&batch.secrets.memory)?;
        let mut rows = Zeroizing::new(batch.numbers.to_vec());
        reverse_rows(&mut rows, row_bytes);
        let mut results = self.guard(|gpu| {
            Ok(gpu.run_private(
                batch.secrets,
                batch.key_of,
                &PrivateInput::Rows(&rows),
                PrivateOutput::Host,
                goal,
            )?)
        })?;
        reverse_rows(&mut results.rows, row_bytes);
        Ok((results.rows, super::engine::to_bools(&results.statuses)))
    }

    /// Like [`Gpu::private`], for any input and destination. The caller has checked the keys, and guarantees enough
    /// rows at the destination.
    pub(super) fn run_private(
        &mut self,
        secrets: &RsaSecrets,
        key_of: &[u32],
        source: &PrivateInput,
        destination: PrivateOutput,
        goal: Goal,
    ) -> Result<PrivateResults, GpuLost> {
        let size = secrets.public.size;
        let row_bytes = size.bytes();
        let count = key_of.len();
        let (throughput, latency) = size.crt_halves();
        // An item of these kernels is half an input.
        let (halves, resident_items) = self.choose(goal, 2 * count, throughput, latency)?;
        let slice = (resident_items / 2).clamp(1, count.max(1));
        let [data, lengths] = match source {
            PrivateInput::Rows(rows) => [Field::new(rows, row_bytes), Field::new(&[], 0)],
            PrivateInput::Hashes(messages) => messages.fields(),
        };
        let job = Job {
            count,
            slice,
            order: None,
            inputs: [Field::new(bytes_of(key_of), 4), data, lengths],
            outputs: [
                if matches!(destination, PrivateOutput::Host) {
                    row_bytes
                } else {
                    0
                },
                1,
            ],
            scratch_bytes: Scratch::of(size, halves.info, slice).bytes,
            secret: true,
        };
        let is_hashed = matches!(source, PrivateInput::Hashes(_));
        let [rows, statuses] = run(&mut self.slots, &job, |slice| {
            begin(secrets, halves, slice, is_hashed, destination)
        })?;
        Ok(PrivateResults {
            rows: Zeroizing::new(rows),
            statuses,
        })
    }
}

/// Offsets of the parts of a slice's scratch memory: hashes, halves, powers.
struct Scratch {
    halves: usize,
    powers: usize,
    bytes: usize,
}

impl Scratch {
    fn of(size: Size, kernel: &KernelInfo, count: usize) -> Self {
        // Bytes of a thread's part of a number modulo one prime.
        let thread_bytes = size.bytes() / 2 / kernel.threads_per_item as usize;
        let halves = count * size.bytes();
        let powers = 2 * halves;
        Self {
            halves,
            powers,
            bytes: powers + threads_of(kernel, 2 * count) * CRT_POWERS * thread_bytes,
        }
    }
}

/// Starts the kernels of a slice: hashing if the input is hashed, exponentiation modulo both primes, and the join.
fn begin(
    secrets: &RsaSecrets,
    halves: Kernel<CrtArgs>,
    slice: &Slice<3, 2>,
    is_hashed: bool,
    destination: PrivateOutput,
) -> Result<(), GpuLost> {
    let public = &secrets.public;
    let scratch = Scratch::of(public.size, halves.info, slice.count);
    let [key_of, data, lengths] = slice.inputs;
    let [host_rows, statuses] = slice.outputs;
    let count = slice.count as u32;
    let (out, montgomery) = match destination {
        PrivateOutput::Host => (host_rows, false),
        PrivateOutput::Rows { address, montgomery } => {
            (address + (slice.first * public.size.bytes()) as u64, montgomery)
        }
    };
    let inputs = if is_hashed { slice.scratch } else { data };
    if is_hashed {
        let arguments = FdhArgs {
            keys: public.memory.address(),
            key_of,
            messages: data,
            lengths,
            out: inputs,
            count,
            montgomery: 0,
        };
        // SAFETY: the slice's arrays have `count` entries each, scratch memory begins with as many rows; key numbers
        // were checked, and the keys outlive the call.
        unsafe {
            launch(
                slice.target,
                slice.stream,
                public.size.fdh(),
                slice.count,
                &arguments,
            )
        }?;
    }
    let arguments = CrtArgs {
        secrets: secrets.memory.address(),
        keys: public.memory.address(),
        key_of,
        inputs,
        powers: slice.scratch + scratch.powers as u64,
        halves: slice.scratch + scratch.halves as u64,
        out,
        statuses,
        count,
        montgomery: u32::from(montgomery),
    };
    let join = public.size.crt_join();
    // SAFETY: as above; `Scratch` has room for the halves, and for the powers of every thread of the launch; the caller
    // guarantees the rows at the destination.
    unsafe {
        launch(slice.target, slice.stream, halves, 2 * slice.count, &arguments)?;
        launch(slice.target, slice.stream, join, slice.count, &arguments)
    }
}
