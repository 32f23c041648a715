//! The rows of `linewarden bench signatures` that are measured on a device.

use super::bench::{BenchKey, Measurement, Multiplier, Plan, Sources, measure};
use super::constants::RsaSecret;
use super::engine::{Goal, Gpu, Options};
use super::error::{BatchError, NoGpu};
use super::target::DeviceInfo;
use crate::key::PrivateKey;
use crate::ra::Layout;
use crate::scheme::Scheme;

/// Row and operation of each, all of 2,048 bits and by throughput.
const ROWS: [(&str, &str); 5] = [
    ("gpu.rsa2048_verify_per_s", "rsa-2048-pss-verify"),
    ("gpu.ra32_online_per_s", "ra-2048-sign-32"),
    ("gpu.ra32_verify_per_s", "ra-2048-verify-32"),
    ("gpu.rsa2048_sign_per_s", "rsa-2048-private"),
    ("gpu.p256_verify_per_s", "ecdsa-p256-verify"),
];

/// A row, and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Such as `gpu.rsa2048_verify_per_s`; its value is [`Measurement::items_per_s`].
    pub name: &'static str,
    /// Rate, run length, and share of what the multipliers could do.
    pub measurement: Measurement,
}

/// What a device did.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// The device.
    pub device: DeviceInfo,
    /// What its multipliers did in the same run.
    pub multiplier: Multiplier,
    /// The five rows.
    pub rows: Vec<Row>,
    /// All that was measured, by latency and with other numbers of components too.
    pub all: Vec<Measurement>,
}

/// Measures the first device that there is.
///
/// # Errors
/// Why there is none, and the rows are pending; or what went wrong with it.
pub fn rows(options: &Options, plan: &Plan, sources: Sources) -> Result<Rows, NoGpu> {
    let devices = Gpu::discover()?;
    let device = devices.first().ok_or(NoGpu::NoDevice)?;
    rows_of(&mut Gpu::open(device, options)?, plan, sources)
}

/// What an open device does of the plan's stage of Rapid Authentication, per second.
///
/// # Errors
/// What went wrong with it.
pub fn stage_of(gpu: &mut Gpu, plan: &Plan, sources: Sources) -> Result<f64, NoGpu> {
    let all = with_key(|key| measure(gpu, &[key], plan, sources))?.1;
    let measured = all.first().ok_or(BatchError::Malformed("nothing was measured"))?;
    Ok(measured.items_per_s)
}

/// The same of a device that is open. The plan must have messages of 32 components for all rows to be there.
///
/// # Errors
/// What went wrong with it.
pub fn rows_of(gpu: &mut Gpu, plan: &Plan, sources: Sources) -> Result<Rows, NoGpu> {
    let (multiplier, all) = with_key(|key| measure(gpu, &[key], plan, sources))?;
    let row = |(name, operation): (&'static str, &str)| {
        let measured = all
            .iter()
            .find(|of| of.operation == operation && of.goal == Goal::Throughput);
        measured.map(|measurement| Row {
            name,
            measurement: measurement.clone(),
        })
    };
    Ok(Rows {
        device: gpu.info().clone(),
        multiplier,
        rows: ROWS.into_iter().filter_map(row).collect(),
        all,
    })
}

/// Does something with a new key of 2,048 bits.
fn with_key<T>(what: impl FnOnce(BenchKey<'_>) -> Result<T, BatchError>) -> Result<T, BatchError> {
    let no_key = |_| BatchError::Malformed("no key was made");
    let layout = Layout::bytes(1).map_err(|_| BatchError::Malformed("no layout"))?;
    let key = PrivateKey::generate(Scheme::RaRsa2048, Some(layout)).map_err(no_key)?;
    let key = key.ra().ok_or(BatchError::Malformed("no key was made"))?;
    let [p, q, dp, dq, qinv] = key.rsa().numbers();
    what(BenchKey {
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
