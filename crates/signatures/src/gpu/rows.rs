//! The rows for GPUs in the output of `linewarden-lab bench signatures`.

use super::bench::{BenchEnvironment, BenchKey, Measurement, Multiplier, Plan, measure};
use super::constants::RsaSecret;
use super::engine::{Goal, Gpu};
use super::error::{BatchError, GpuUnavailable};
use super::options::Options;
use super::target::DeviceInfo;
use crate::key::PrivateKey;
use crate::ra::Layout;
use crate::scheme::Scheme;

/// Name and operation of each output row. Operations on RSA have 2,048 bits, and all operations use the kernels for
/// throughput.
const ROWS: [(&str, &str); 5] = [
    ("gpu.rsa2048_verify_per_s", "rsa-2048-pss-verify"),
    ("gpu.ra32_online_per_s", "ra-2048-sign-32"),
    ("gpu.ra32_verify_per_s", "ra-2048-verify-32"),
    ("gpu.rsa2048_sign_per_s", "rsa-2048-private"),
    ("gpu.p256_verify_per_s", "ecdsa-p256-verify"),
];

/// A row and its measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchRow {
    /// For example `gpu.rsa2048_verify_per_s`; the value is [`Measurement::items_per_s`].
    pub name: &'static str,
    /// Rate, duration, and share of the multipliers' limit.
    pub measurement: Measurement,
}

/// Measurements of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchRows {
    /// The device.
    pub device: DeviceInfo,
    /// The multipliers' throughput in the same run.
    pub multiplier: Multiplier,
    /// The five rows.
    pub rows: Vec<BenchRow>,
    /// All measurements, including the measurements of kernels for latency, and with other numbers of components.
    pub measurements: Vec<Measurement>,
}

/// Measures the first device.
///
/// # Errors
/// No usable device, or an error of the device.
pub fn rows(options: &Options, plan: &Plan, sources: BenchEnvironment) -> Result<BenchRows, GpuUnavailable> {
    let devices = Gpu::discover()?;
    let device = devices.first().ok_or(GpuUnavailable::NoDevice)?;
    rows_of(&mut Gpu::open(device, options)?, plan, sources)
}

/// Items per second of an open device in the plan's stage of Rapid Authentication.
///
/// # Errors
/// An error of the device.
pub fn stage_of(gpu: &mut Gpu, plan: &Plan, sources: BenchEnvironment) -> Result<f64, GpuUnavailable> {
    let measurements = with_key(|key| measure(gpu, &[key], plan, sources))?.1;
    let measured = measurements
        .first()
        .ok_or(BatchError::Malformed("no operation was measured"))?;
    Ok(measured.items_per_s)
}

/// Like [`rows`], for an open device. The plan must include messages of 32 components, or rows are missing.
///
/// # Errors
/// An error of the device.
pub fn rows_of(gpu: &mut Gpu, plan: &Plan, sources: BenchEnvironment) -> Result<BenchRows, GpuUnavailable> {
    let (multiplier, measurements) = with_key(|key| measure(gpu, &[key], plan, sources))?;
    let row = |(name, operation): (&'static str, &str)| {
        let measured = measurements
            .iter()
            .find(|measurement| measurement.operation == operation && measurement.goal == Goal::Throughput);
        measured.map(|measurement| BenchRow {
            name,
            measurement: measurement.clone(),
        })
    };
    Ok(BenchRows {
        device: gpu.info().clone(),
        multiplier,
        rows: ROWS.into_iter().filter_map(row).collect(),
        measurements,
    })
}

/// Runs a function with a new key of 2,048 bits.
fn with_key<T>(operation: impl FnOnce(BenchKey<'_>) -> Result<T, BatchError>) -> Result<T, BatchError> {
    let no_key = |_| BatchError::Malformed("making a key failed");
    let layout = Layout::bytes(1).map_err(|_| BatchError::Malformed("making a layout failed"))?;
    let key = PrivateKey::generate(Scheme::RaRsa2048, Some(layout)).map_err(no_key)?;
    let key = key.ra().ok_or(BatchError::Malformed("making a key failed"))?;
    let [p, q, dp, dq, qinv] = key.rsa().numbers();
    operation(BenchKey {
        modulus: key.public().rsa().as_bytes(),
        secret: RsaSecret {
            p: &p,
            q: &q,
            dp: &dp,
            dq: &dq,
            qinv: &qinv,
        },
    })
}
