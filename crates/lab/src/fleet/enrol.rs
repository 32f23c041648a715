//! Makes simulated devices and enrols them, on several threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use linewarden_agent::Credential;
use linewarden_protocol::device::{DeviceConfig, GatewayPolicy};
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::extractor::{ExtractorError, KeyEnrolment, PoolEnrolment, enrol_pool, enrol_puf};
use linewarden_puf::model::{Simulated, SramParameters, SramPuf, XorArbiterPuf};
use linewarden_puf::{Puf, PufError};
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::member::Member;

/// The suite of all simulated devices.
const SUITE: Suite = Suite::SipHash128;

/// Why enrolment failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// A model's parameter.
    #[error("device {index}: {source}")]
    Puf {
        /// Which device.
        index: u32,
        /// What is wrong.
        source: PufError,
    },
    /// The extractor refused.
    #[error("device {index}: {source}")]
    Extractor {
        /// Which device.
        index: u32,
        /// What is wrong.
        source: ExtractorError,
    },
    /// A thread ended early.
    #[error("an enrolling thread panicked")]
    Panicked,
}

/// The PUF of one simulated device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PufKind {
    /// A strong PUF, pool mode.
    XorArbiter {
        /// Stages of each chain.
        stages: usize,
        /// Chains.
        chains: usize,
    },
    /// A weak PUF, key mode.
    Sram {
        /// Cells; 32,768 are enough for the standard profile, 64 KiB of memory.
        cells: usize,
    },
}

impl PufKind {
    /// A 4-XOR arbiter PUF of 64 stages.
    pub const STRONG: Self = Self::XorArbiter {
        stages: 64,
        chains: 4,
    };
    /// 32,768 cells of SRAM.
    pub const WEAK: Self = Self::Sram { cells: 32_768 };
}

/// What fleet to make.
#[derive(Clone, Debug)]
pub struct FleetSpec {
    /// How many devices.
    pub devices: u32,
    /// Index of the first; names, PUFs and addresses follow from the index and the seed.
    pub first_index: u32,
    /// Rows of each pool-mode device.
    pub rows: u32,
    /// Bit error rate of the PUFs against their most frequent reading.
    pub bit_error_rate: f64,
    /// The PUF of each device.
    pub kind: fn(u32) -> PufKind,
    /// Sessions are bound to the devices' MAC addresses, as the open gate demands.
    pub bound: bool,
    /// Makes every device, its noise and its enrolment repeatable. Two fleets with different seeds have different
    /// PUFs behind the same names: a fleet of clones.
    pub seed: u64,
    /// Threads to enrol on.
    pub threads: usize,
}

impl FleetSpec {
    /// Pool mode with two rows each, 5 % bit errors, bound, all processors.
    #[must_use]
    pub fn new(devices: u32, seed: u64) -> Self {
        Self {
            devices,
            first_index: 0,
            rows: 2,
            bit_error_rate: 0.05,
            kind: |_| PufKind::STRONG,
            bound: true,
            seed,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// One row, or the key, as the registry keeps it.
#[derive(Clone, Debug)]
pub struct EnrolledKey {
    /// The row; 0 in key mode.
    pub idx: RowIndex,
    /// The challenge's seed; zero in key mode.
    pub challenge: [u8; 8],
    /// The key.
    pub row_key: RowKey,
}

/// A device, and what the registry has to know of it.
#[derive(Debug)]
pub struct SimulatedDevice {
    /// Its place in the fleet.
    pub index: u32,
    /// The device.
    pub member: Member,
    /// Its rows in order, or its one key.
    pub keys: Vec<EnrolledKey>,
    /// Chips that were sorted out before this one because their responses had too little entropy.
    pub rejected_chips: u32,
}

/// The name of the device with that index: sparse over 64 bits, never 0, and different for different indices.
#[must_use]
pub fn device_id(index: u32) -> DeviceId {
    // Odd multiplier and xor-shift are bijections, and only 0 would be mapped to 0.
    let spread = (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    DeviceId(spread ^ (spread >> 32))
}

/// Makes and enrols the devices, in order of their indices. `progress` gets the number done, ten times a second and at
/// the end, on the calling thread.
///
/// # Errors
/// The first device that could not be enrolled.
pub fn enrol_fleet(
    spec: &FleetSpec,
    progress: &mut dyn FnMut(u32),
) -> Result<Vec<SimulatedDevice>, EnrolError> {
    let next = AtomicU32::new(0);
    let (sender, receiver) = mpsc::channel::<()>();
    // Every thread holds a sender; all gone means all done.
    let work = |_alive: mpsc::Sender<()>| {
        let mut made = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= spec.devices {
                return Ok(made);
            }
            made.push(enrol_one(spec, spec.first_index + at)?);
        }
    };
    let mut fleet = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..spec.threads.max(1))
            .map(|_| {
                let (work, sender) = (&work, sender.clone());
                scope.spawn(move || work(sender))
            })
            .collect();
        drop(sender);
        while let Err(RecvTimeoutError::Timeout) = receiver.recv_timeout(Duration::from_millis(100)) {
            progress(next.load(Ordering::Relaxed).min(spec.devices));
        }
        let mut fleet = Vec::with_capacity(spec.devices as usize);
        for thread in threads {
            fleet.extend(thread.join().map_err(|_| EnrolError::Panicked)??);
        }
        Ok(fleet)
    })?;
    fleet.sort_unstable_by_key(|device: &SimulatedDevice| device.index);
    progress(spec.devices);
    Ok(fleet)
}

/// Chips that are tried for one device before the kind of PUF counts as unfit.
const CHIPS_MAX: u32 = 16;

/// Makes chips until one is good enough, as a factory sorts them.
fn enrol_one(spec: &FleetSpec, index: u32) -> Result<SimulatedDevice, EnrolError> {
    let mut chip = 0;
    loop {
        match enrol_chip(spec, index, chip) {
            Err(EnrolError::Extractor {
                source: ExtractorError::TooLittleEntropy { .. },
                ..
            }) if chip + 1 < CHIPS_MAX => chip += 1,
            result => return result,
        }
    }
}

fn enrol_chip(spec: &FleetSpec, index: u32, chip: u32) -> Result<SimulatedDevice, EnrolError> {
    let device = device_id(index);
    // Three streams of one chip: the chip itself, its noise, the enrolment's randomness.
    let lot = spec.seed ^ device.0.rotate_left(17) ^ u64::from(chip).rotate_left(40);
    let seed = |stream: u64| lot ^ (stream << 60);
    let mut rng = ChaCha20Rng::seed_from_u64(seed(3));
    let (puf, credential, keys) = match (spec.kind)(index) {
        PufKind::XorArbiter { stages, chains } => {
            let model = XorArbiterPuf::with_bit_error_rate(stages, chains, spec.bit_error_rate, seed(1))
                .map_err(|source| EnrolError::Puf { index, source })?;
            enrol_strong(Simulated::new(model, seed(2)), spec.rows, device, &mut rng)
        }
        PufKind::Sram { cells } => {
            let parameters = SramParameters {
                cells,
                ones: 0.5,
                bit_error_rate: spec.bit_error_rate,
            };
            let model =
                SramPuf::new(parameters, seed(1)).map_err(|source| EnrolError::Puf { index, source })?;
            enrol_weak(Simulated::new(model, seed(2)), cells, device, &mut rng)
        }
    }
    .map_err(|source| EnrolError::Extractor { index, source })?;
    let config = DeviceConfig {
        device,
        suite: SUITE,
        mode: credential.mode(),
        gateways: GatewayPolicy::ANY,
        bound_mac: spec.bound.then_some([0; 6]),
    };
    Ok(SimulatedDevice {
        index,
        member: Member {
            config,
            credential,
            puf,
        },
        keys,
        rejected_chips: chip,
    })
}

/// What enrolment makes of a chip.
type Made = (Box<dyn Puf>, Credential, Vec<EnrolledKey>);

fn enrol_strong(
    mut puf: Simulated<XorArbiterPuf>,
    rows: u32,
    device: DeviceId,
    rng: &mut ChaCha20Rng,
) -> Result<Made, ExtractorError> {
    let pool = enrol_pool(&mut puf, &PoolEnrolment::rows(rows), rng)?;
    let keys = pool.rows.iter().map(|row| {
        let idx = RowIndex(row.idx);
        EnrolledKey {
            idx,
            challenge: row.challenge,
            row_key: RowKey::for_row(row.secret.expose(), &row.digest, SUITE, device, idx),
        }
    });
    let keys = keys.collect();
    Ok((Box::new(puf), Credential::Pool(pool.helper), keys))
}

fn enrol_weak(
    mut puf: Simulated<SramPuf>,
    cells: usize,
    device: DeviceId,
    rng: &mut ChaCha20Rng,
) -> Result<Made, ExtractorError> {
    let enrolled = enrol_puf(&mut puf, cells, 3, &KeyEnrolment::default(), rng)?;
    let digest = enrolled.helper.digest();
    let key = EnrolledKey {
        idx: RowIndex(0),
        challenge: [0; 8],
        row_key: RowKey::for_device(enrolled.secret.expose(), &digest, SUITE, device),
    };
    Ok((Box::new(puf), Credential::Key(enrolled.helper), vec![key]))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use linewarden_protocol::device::PufQuery;

    use super::*;

    #[test]
    fn names_are_distinct_and_never_zero() {
        let names: HashSet<_> = (0..100_000).map(device_id).collect();
        assert_eq!(names.len(), 100_000);
        assert!(!names.contains(&DeviceId(0)));
    }

    #[test]
    fn devices_rebuild_the_keys_that_were_enrolled_and_clones_do_not() {
        let mixed = |index| {
            if index % 2 == 0 {
                PufKind::STRONG
            } else {
                PufKind::WEAK
            }
        };
        let spec = FleetSpec {
            kind: mixed,
            ..FleetSpec::new(4, 7)
        };
        let mut shown = Vec::new();
        let mut fleet = enrol_fleet(&spec, &mut |done| shown.push(done)).unwrap();
        assert_eq!(shown.last(), Some(&4));
        let clones = enrol_fleet(&FleetSpec { seed: 8, ..spec }, &mut |_| {}).unwrap();
        for (device, clone) in fleet.iter_mut().zip(clones) {
            assert_eq!(device.member.config.device, device_id(device.index));
            for key in &device.keys {
                let query = PufQuery {
                    mode: device.member.config.mode,
                    idx: key.idx,
                    challenge: key.challenge,
                };
                assert_eq!(device.member.row_key(&query).unwrap(), key.row_key);
            }
            // A clone knows the public helper data, but has another chip.
            let mut clone = Member {
                config: device.member.config.clone(),
                credential: device.member.credential.clone(),
                puf: clone.member.puf,
            };
            let query = PufQuery {
                mode: clone.config.mode,
                idx: device.keys[0].idx,
                challenge: device.keys[0].challenge,
            };
            if let Ok(key) = clone.row_key(&query) {
                assert_ne!(key, device.keys[0].row_key);
            }
        }
    }
}
