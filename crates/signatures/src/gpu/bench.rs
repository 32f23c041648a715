//! Throughput of a device, from arrays on the host to results on the host, and the share of the multipliers' limit.
//!
//! The speed of all kernels is limited by products of 32 by 32 bits that are added with carry to 64 bits. The number of
//! these products per item is known. Their rate per clock cycle is measured first.

use std::time::Duration;

use linewarden_arithmetic::p256::{BASE_POINT, PublicPoint};
use linewarden_arithmetic::rsa::Size;

use super::constants::RsaSecret;
use super::engine::{Goal, Gpu};
use super::error::BatchError;
use super::kernels::{self, BLOCK_THREADS};
use super::keys::size_of_modulus;
use super::layouts::LimitArgs;
use super::p256::P256Batch;
use super::private::PrivateBatch;
use super::pss::PssBatch;
use super::ra::RaBatch;
use super::target::launch;

/// Products of one round of `imad_limit`.
const ROUND_PRODUCTS: u32 = 256;

/// Throughput of a device's multipliers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multiplier {
    /// Products with carry that one multiprocessor computes in a clock cycle.
    pub products_per_clock: f64,
    /// Products with carry that the whole device computes in a second at its highest clock.
    pub products_per_s: f64,
}

/// Measurement of one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// For example `ra-2048-verify-32`; the last number is the number of components of a message.
    pub operation: String,
    /// Goal by which the kernel was chosen.
    pub goal: Goal,
    /// Items in a batch.
    pub items: usize,
    /// Timed batches, after the warm-up.
    pub batches: usize,
    /// Total time of the batches.
    pub seconds: f64,
    /// Items per second, from host to host.
    pub items_per_s: f64,
    /// Products per item.
    pub products_per_item: f64,
    /// Share of the products that the device could compute in that time, 0 to 1.
    pub share_of_limit: f64,
}

/// A key for measurements.
#[derive(Clone, Copy)]
pub struct BenchKey<'a> {
    /// The modulus of 2,048 or 3,072 bits, most significant byte first.
    pub modulus: &'a [u8],
    /// The secret part of the key.
    pub secret: RsaSecret<'a>,
}

/// Operations to measure, and the duration.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Items in a batch. A large device is fully used from some 30,000 items on; from some 100,000 items on, copies
    /// overlap with computation.
    pub items: usize,
    /// Duration of each measurement, and of the warm-up before it, in which the device raises its clocks.
    pub duration: Duration,
    /// Numbers of components of messages of Rapid Authentication, one measurement each.
    pub components: &'a [usize],
    /// Number of values of each component, which determines the number of table rows.
    pub values: u32,
    /// Measures only this stage of Rapid Authentication, with the kernel that a batch would use; `None` measures all
    /// operations.
    pub stage: Option<Stage>,
}

/// A stage of Rapid Authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The private operation that makes a mask.
    Offline,
    /// Signing with available masks.
    Online,
    /// Verification.
    Verify,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        Self {
            items: 1 << 17,
            duration: Duration::from_secs(2),
            components: &[32],
            values: 256,
            stage: None,
        }
    }
}

/// Sources of time and of random bytes.
pub struct BenchEnvironment<'a> {
    /// A monotonic clock.
    pub now: &'a mut dyn FnMut() -> Duration,
    /// Fills a buffer with random bytes.
    pub random: &'a mut dyn FnMut(&mut [u8]),
}

impl Gpu {
    /// Measures the multipliers; takes some milliseconds.
    ///
    /// # Errors
    /// The device is lost.
    pub fn multiplier(&mut self, rounds: u32) -> Result<Multiplier, BatchError> {
        self.guard(|gpu| {
            let kernel = kernels::IMAD_LIMIT;
            let blocks = gpu.target.resident_blocks(kernel.info)?;
            let threads = blocks as usize * BLOCK_THREADS as usize;
            let cycles = gpu.allocate(blocks as usize * size_of::<u64>())?;
            let sink = gpu.allocate(threads * size_of::<u32>())?;
            let arguments = LimitArgs {
                cycles: cycles.address(),
                sink: sink.address(),
                count: threads as u32,
                rounds,
            };
            let mut bytes = vec![0; blocks as usize * size_of::<u64>()];
            // SAFETY: both arrays have room for all blocks and threads, and are released after `read` has synchronized
            // the stream.
            let launched = unsafe { launch(&*gpu.target, 0, kernel, threads, &arguments) };
            launched.and_then(|()| gpu.read(&cycles, 0, &mut bytes))?;
            let total_cycles: u64 = bytes
                .as_chunks()
                .0
                .iter()
                .map(|word_bytes| u64::from_le_bytes(*word_bytes))
                .sum();
            let mean_cycles = total_cycles as f64 / f64::from(blocks);
            let info = gpu.info();
            let multiprocessors = f64::from(info.multiprocessors.max(1));
            let products = threads as f64 * f64::from(rounds) * f64::from(ROUND_PRODUCTS) / multiprocessors;
            let products_per_clock = products / mean_cycles.max(1.0);
            Ok(Multiplier {
                products_per_clock,
                products_per_s: products_per_clock * multiprocessors * f64::from(info.clock_khz) * 1e3,
            })
        })
    }
}

/// Measures every operation with every given key. Inputs are random; signatures of Rapid Authentication are made on
/// the device first, and the measurement fails if the device does not verify them. The duration of the other operations
/// does not depend on the validity of the inputs.
///
/// # Errors
/// An inconsistent key, or a device that returns wrong results or is lost.
pub fn measure(
    gpu: &mut Gpu,
    keys: &[BenchKey],
    plan: &Plan,
    sources: BenchEnvironment,
) -> Result<(Multiplier, Vec<Measurement>), BatchError> {
    let multiplier = gpu.multiplier(2_000)?;
    let mut bench = Bench {
        gpu,
        plan,
        multiplier,
        sources,
        measurements: Vec::new(),
    };
    for key in keys {
        if plan.stage.is_none() {
            bench.pss(key)?;
        }
        if plan.stage.is_none_or(|stage| stage == Stage::Offline) {
            bench.private(key)?;
        }
        if plan.stage != Some(Stage::Offline) {
            for components in plan.components {
                bench.ra(key, *components)?;
            }
        }
    }
    if plan.stage.is_none() {
        bench.p256()?;
    }
    Ok((multiplier, bench.measurements))
}

struct Bench<'a, 's> {
    gpu: &'a mut Gpu,
    plan: &'a Plan<'a>,
    multiplier: Multiplier,
    sources: BenchEnvironment<'s>,
    measurements: Vec<Measurement>,
}

/// The measured operation.
struct Operation {
    name: String,
    goal: Goal,
    products_per_item: f64,
}

impl Bench<'_, '_> {
    /// Times batches: `prepare` makes a batch outside the measurement, and `run` processes it.
    fn time<T>(
        &mut self,
        operation: Operation,
        mut prepare: impl FnMut(&mut Gpu) -> Result<T, BatchError>,
        mut run: impl FnMut(&mut Gpu, T) -> Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        let (mut batches, mut elapsed) = (0, Duration::ZERO);
        // The first pass is the warm-up.
        for _ in 0..2 {
            (batches, elapsed) = (0, Duration::ZERO);
            while batches == 0 || elapsed < self.plan.duration {
                let batch = prepare(self.gpu)?;
                let begin = (self.sources.now)();
                run(self.gpu, batch)?;
                elapsed += (self.sources.now)().saturating_sub(begin);
                batches += 1;
            }
        }
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let items_per_s = (batches * self.plan.items) as f64 / seconds;
        self.measurements.push(Measurement {
            operation: operation.name,
            goal: operation.goal,
            items: self.plan.items,
            batches,
            seconds,
            items_per_s,
            products_per_item: operation.products_per_item,
            share_of_limit: items_per_s * operation.products_per_item
                / self.multiplier.products_per_s.max(1.0),
        });
        Ok(())
    }

    /// The goals for whose kernels a stage is measured.
    fn goals(&self, stage: Stage) -> &'static [Goal] {
        match self.plan.stage {
            None => &[Goal::Throughput, Goal::Latency],
            Some(measured) if measured == stage => &[Goal::Automatic],
            Some(_) => &[],
        }
    }

    fn random<const N: usize>(&mut self) -> Vec<[u8; N]> {
        let mut arrays = vec![[0; N]; self.plan.items];
        (self.sources.random)(arrays.as_flattened_mut());
        arrays
    }

    /// Numbers below any modulus of this size, most significant byte first.
    fn numbers(&mut self, size: Size) -> Vec<u8> {
        let mut numbers = vec![0; self.plan.items * size.bytes()];
        (self.sources.random)(&mut numbers);
        for number in numbers.chunks_exact_mut(size.bytes()) {
            if let Some(first) = number.first_mut() {
                *first &= 0x7f;
            }
        }
        numbers
    }

    fn pss(&mut self, key: &BenchKey) -> Result<(), BatchError> {
        let size = size_of_modulus(key.modulus)?;
        let bits = size.bits();
        let mut keys = self.gpu.rsa_keys(size, 1)?;
        self.gpu.put_rsa_key(&mut keys, 0, key.modulus)?;
        let key_of = vec![0; self.plan.items];
        let (digests, signatures) = (self.random(), self.numbers(size));
        let batch = PssBatch {
            keys: &keys,
            key_of: &key_of,
            digests: &digests,
            signatures: &signatures,
        };
        for goal in [Goal::Throughput, Goal::Latency] {
            let operation = Operation {
                name: format!("rsa-{bits}-pss-verify"),
                goal,
                products_per_item: E_MULTIPLICATIONS * product(size),
            };
            let run = |gpu: &mut Gpu, ()| gpu.verify_pss(&batch, goal).map(drop);
            self.time(operation, |_| Ok(()), run)?;
        }
        Ok(())
    }

    fn private(&mut self, key: &BenchKey) -> Result<(), BatchError> {
        let size = size_of_modulus(key.modulus)?;
        let bits = size.bits();
        let mut secrets = self.gpu.rsa_secrets(size, 1)?;
        self.gpu
            .put_rsa_secret(&mut secrets, 0, key.modulus, &[], &key.secret)?;
        let key_of = vec![0; self.plan.items];
        let numbers = self.numbers(size);
        let batch = PrivateBatch {
            secrets: &secrets,
            key_of: &key_of,
            numbers: &numbers,
        };
        // Numbers modulo p or q have half the size, so a multiplication takes a quarter of the products. The exponents
        // have windows of four bits, with five multiplications each. The join and the check follow.
        let half = product(size) / 4.0;
        let steps = 5.0 * bits as f64 / 8.0 + 18.0;
        for &goal in self.goals(Stage::Offline) {
            let operation = Operation {
                name: format!("rsa-{bits}-private"),
                goal,
                products_per_item: 2.0 * steps * half
                    + half
                    + product(size) / 2.0
                    + E_MULTIPLICATIONS * product(size),
            };
            let run = |gpu: &mut Gpu, ()| {
                let (_, results) = gpu.private(&batch, goal)?;
                check_all_valid(&results)
            };
            self.time(operation, |_| Ok(()), run)?;
        }
        Ok(())
    }

    fn ra(&mut self, key: &BenchKey, components: usize) -> Result<(), BatchError> {
        let size = size_of_modulus(key.modulus)?;
        let bits = size.bits();
        let (items, values) = (self.plan.items, self.plan.values.clamp(1, 1 << 16));
        let domains = vec![values; components];
        let message = |position: usize, value: u32, out: &mut Vec<u8>| {
            out.extend((position as u32).to_be_bytes());
            out.extend(value.to_be_bytes());
        };
        let mut signer = self
            .gpu
            .ra_signer(key.modulus, &key.secret, &[], &domains, &message, items)?;
        let mut keys = self.gpu.ra_keys(size, &domains, 1)?;
        self.gpu.put_ra_key(&mut keys, 0, key.modulus, &[], &message)?;
        let mut digits = vec![[0; 2]; items * components];
        (self.sources.random)(digits.as_flattened_mut());
        let digits: Vec<u16> = digits
            .into_iter()
            .map(|bytes| (u32::from(u16::from_le_bytes(bytes)) % values) as u16)
            .collect();
        // Every batch of a measurement uses the same masks. This is safe because the signatures are never sent.
        let seeds: Vec<[u8; 32]> = self.random();
        let component_products = components as f64 * product(size);
        // Both closures, for preparing and for running, need the signer.
        let signer = std::cell::RefCell::new(&mut signer);
        let mut signed = None;
        for &goal in self.goals(Stage::Online) {
            let operation = Operation {
                name: format!("ra-{bits}-sign-{components}"),
                goal,
                products_per_item: component_products,
            };
            let fill = |gpu: &mut Gpu| gpu.fill_masks(&mut signer.borrow_mut(), &seeds);
            let run = |gpu: &mut Gpu, ()| {
                signed = Some(gpu.sign_ra(&mut signer.borrow_mut(), &digits, goal)?);
                Ok(())
            };
            self.time(operation, fill, run)?;
        }
        let signed = match signed {
            Some(signed) => signed,
            None => {
                self.gpu.fill_masks(&mut signer.borrow_mut(), &seeds)?;
                self.gpu
                    .sign_ra(&mut signer.borrow_mut(), &digits, Goal::Throughput)?
            }
        };
        let key_of = vec![0; items];
        let batch = RaBatch {
            keys: &keys,
            key_of: &key_of,
            digits: &digits,
            seeds: &signed.seeds,
            signatures: &signed.numbers,
        };
        for &goal in self.goals(Stage::Verify) {
            let operation = Operation {
                name: format!("ra-{bits}-verify-{components}"),
                goal,
                products_per_item: component_products + E_MULTIPLICATIONS * product(size),
            };
            let run = |gpu: &mut Gpu, ()| check_all_valid(&gpu.verify_ra(&batch, goal)?);
            self.time(operation, |_| Ok(()), run)?;
        }
        Ok(())
    }

    fn p256(&mut self) -> Result<(), BatchError> {
        let key_of = vec![0; self.plan.items];
        let (digests, signatures) = (self.random(), self.random());
        let mut keys = self.gpu.p256_keys(1)?;
        let base_point = PublicPoint::from_sec1(&[&[4], BASE_POINT.as_slice()].concat());
        let base_point = base_point.map_err(|_| BatchError::Malformed("the base point is invalid"))?;
        self.gpu.put_p256_keys(&mut keys, &[(0, &base_point)])?;
        let batch = P256Batch {
            keys: &keys,
            key_of: &key_of,
            digests: &digests,
            signatures: &signatures,
        };
        for goal in [Goal::Throughput, Goal::Latency] {
            let operation = Operation {
                name: "ecdsa-p256-verify".to_owned(),
                goal,
                products_per_item: p256_products(goal),
            };
            let run = |gpu: &mut Gpu, ()| gpu.verify_p256(&batch, goal).map(drop);
            self.time(operation, |_| Ok(()), run)?;
        }
        Ok(())
    }
}

fn check_all_valid(results: &[bool]) -> Result<(), BatchError> {
    match results.iter().filter(|is_valid| !**is_valid).count() {
        0 => Ok(()),
        failed => Err(BatchError::CheckFailed(failed)),
    }
}

/// Multiplications of the public operation.
const E_MULTIPLICATIONS: f64 = 18.0;

/// Word products of a doubling: 64 per multiplication, 36 per square.
const P256_DOUBLING: f64 = 3.0 * 64.0 + 5.0 * 36.0;
/// Word products of the addition of an affine point.
const P256_AFFINE: f64 = 8.0 * 64.0 + 3.0 * 36.0;
/// Word products of the addition of any other point.
const P256_ADDITION: f64 = 12.0 * 64.0 + 4.0 * 36.0;
/// Some 360 multiplications modulo the order, for the inverse of s.
const P256_INVERSE: f64 = 360.0 * 128.0;
/// 50 multiples of the key and 82 - 50 of the base point: one digit in 32 and one in 256 is zero.
const P256_AFFINE_ADDITIONS: f64 = 82.0;

/// With the latency kernel, four threads double 0 to 15 times, add their sums twice, and compute an inverse each.
fn p256_products(goal: Goal) -> f64 {
    let affine = P256_AFFINE_ADDITIONS * P256_AFFINE;
    match goal {
        Goal::Latency => affine + 30.0 * P256_DOUBLING + 8.0 * P256_ADDITION + 4.0 * P256_INVERSE,
        Goal::Throughput | Goal::Automatic => affine + 15.0 * P256_DOUBLING + P256_INVERSE,
    }
}

/// Word products of a Montgomery multiplication modulo n.
fn product(size: Size) -> f64 {
    let limbs = size.bytes() as f64 / 4.0;
    2.0 * limbs * limbs
}
