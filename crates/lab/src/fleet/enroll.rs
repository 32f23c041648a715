//! Creates simulated devices and enrolls them, on several threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use linewarden_agent::Credential;
use linewarden_protocol::device::{DeviceConfig, GatewayPolicy};
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::extractor::{ExtractorError, KeyEnrollment, PoolEnrollment, enroll_pool, enroll_puf};
use linewarden_puf::model::{Simulated, SramParameters, SramPuf, XorArbiterPuf};
use linewarden_puf::{Puf, PufError};
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::member::Member;

/// The suite of all simulated devices.
const SUITE: Suite = Suite::SipHash128;

/// Why enrollment failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// A parameter of the PUF model is invalid.
    #[error("enrollment of device {index} failed: {source}")]
    Puf {
        /// Index of the device.
        index: u32,
        /// The cause.
        source: PufError,
    },
    /// The fuzzy extractor failed.
    #[error("enrollment of device {index} failed: {source}")]
    Extractor {
        /// Index of the device.
        index: u32,
        /// The cause.
        source: ExtractorError,
    },
    /// An enrollment thread panicked.
    #[error("an enrollment thread panicked")]
    Panicked,
}

/// The PUF of one simulated device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PufKind {
    /// A strong PUF, pool mode.
    XorArbiter {
        /// Stages of each chain.
        stages: usize,
        /// Number of chains.
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

/// The specification of a fleet.
#[derive(Clone, Debug)]
pub struct FleetSpec {
    /// Number of devices.
    pub devices: u32,
    /// Index of the first device. Ids and addresses are computed from the index, PUFs from id and seed.
    pub first_index: u32,
    /// Rows of each pool-mode device.
    pub rows: u32,
    /// Bit error rate of the PUFs against their most frequent reading.
    pub bit_error_rate: f64,
    /// The PUF of each device.
    pub puf_kind: fn(u32) -> PufKind,
    /// Sessions are bound to the devices' MAC addresses, as the bound gate requires.
    pub mac_bound: bool,
    /// Seed of every device, its noise and its enrollment. Two fleets with different seeds have the same ids and different
    /// PUFs: a fleet of clones.
    pub seed: u64,
    /// Number of enrollment threads.
    pub threads: usize,
}

impl FleetSpec {
    /// Pool mode with two rows per device, a bit error rate of 5 %, sessions bound to MAC addresses, one thread per CPU.
    #[must_use]
    pub fn new(devices: u32, seed: u64) -> Self {
        Self {
            devices,
            first_index: 0,
            rows: 2,
            bit_error_rate: 0.05,
            puf_kind: |_| PufKind::STRONG,
            mac_bound: true,
            seed,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// One row, or the device key, as the registry stores it.
#[derive(Clone, Debug)]
pub struct EnrolledKey {
    /// The row; 0 in key mode.
    pub idx: RowIndex,
    /// The challenge's seed; zero in key mode.
    pub challenge: [u8; 8],
    /// The key.
    pub row_key: RowKey,
}

/// A device with its credential for the registry.
#[derive(Debug)]
pub struct SimulatedDevice {
    /// Index of the device in the fleet.
    pub index: u32,
    /// The device.
    pub member: Member,
    /// The device's rows in order, or its single key.
    pub keys: Vec<EnrolledKey>,
    /// Number of chips that were rejected before this chip, because their responses had too little entropy.
    pub rejected_chips: u32,
}

/// The id of the device with that index: sparse over 64 bits, never 0, and unique.
#[must_use]
pub fn device_id(index: u32) -> DeviceId {
    // Odd multiplier and xor-shift are bijections, and only 0 would be mapped to 0.
    let spread = (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    DeviceId(spread ^ (spread >> 32))
}

/// Creates and enrolls the devices; returns the devices in the order of their indices. `progress` receives the number of devices
/// with a started enrollment ten times a second and at the end, on the calling thread.
///
/// # Errors
/// A device could not be enrolled.
pub fn enroll_fleet(
    spec: &FleetSpec,
    progress: &mut dyn FnMut(u32),
) -> Result<Vec<SimulatedDevice>, EnrollError> {
    let next_number = AtomicU32::new(0);
    let (sender, receiver) = mpsc::sync_channel::<()>(0);
    // Every thread holds a sender; the channel closes when all threads have ended.
    let work = |_sender: mpsc::SyncSender<()>| {
        let mut devices = Vec::new();
        loop {
            let number = next_number.fetch_add(1, Ordering::Relaxed);
            if number >= spec.devices {
                return Ok(devices);
            }
            devices.push(enroll_one(spec, spec.first_index + number)?);
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
            progress(next_number.load(Ordering::Relaxed).min(spec.devices));
        }
        let mut fleet = Vec::with_capacity(spec.devices as usize);
        for thread in threads {
            fleet.extend(thread.join().map_err(|_| EnrollError::Panicked)??);
        }
        Ok(fleet)
    })?;
    fleet.sort_unstable_by_key(|device: &SimulatedDevice| device.index);
    progress(spec.devices);
    Ok(fleet)
}

/// Chips that are tried for one device before the enrollment fails.
const CHIPS_MAX: u32 = 16;

/// Creates chips until one has enough entropy, as a factory rejects unsuitable chips.
fn enroll_one(spec: &FleetSpec, index: u32) -> Result<SimulatedDevice, EnrollError> {
    let mut chip = 0;
    loop {
        match enroll_chip(spec, index, chip) {
            Err(EnrollError::Extractor {
                source: ExtractorError::TooLittleEntropy { .. },
                ..
            }) if chip + 1 < CHIPS_MAX => chip += 1,
            result => return result,
        }
    }
}

fn enroll_chip(spec: &FleetSpec, index: u32, chip: u32) -> Result<SimulatedDevice, EnrollError> {
    let device = device_id(index);
    // Three random streams per chip: the chip itself, its noise, its enrollment.
    let chip_seed = spec.seed ^ device.0.rotate_left(17) ^ u64::from(chip).rotate_left(40);
    let seed = |stream: u64| chip_seed ^ (stream << 60);
    let mut rng = ChaCha20Rng::seed_from_u64(seed(3));
    let (puf, credential, keys) = match (spec.puf_kind)(index) {
        PufKind::XorArbiter { stages, chains } => {
            let model = XorArbiterPuf::with_bit_error_rate(stages, chains, spec.bit_error_rate, seed(1))
                .map_err(|source| EnrollError::Puf { index, source })?;
            enroll_strong(Simulated::new(model, seed(2)), spec.rows, device, &mut rng)
        }
        PufKind::Sram { cells } => {
            let parameters = SramParameters {
                cells,
                ones: 0.5,
                bit_error_rate: spec.bit_error_rate,
            };
            let model =
                SramPuf::new(parameters, seed(1)).map_err(|source| EnrollError::Puf { index, source })?;
            enroll_weak(Simulated::new(model, seed(2)), cells, device, &mut rng)
        }
    }
    .map_err(|source| EnrollError::Extractor { index, source })?;
    let config = DeviceConfig {
        device,
        suite: SUITE,
        mode: credential.mode(),
        gateways: GatewayPolicy::ANY,
        bound_mac: spec.mac_bound.then_some([0; 6]),
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

/// An enrolled chip: the PUF, its credential and its keys.
type EnrolledPuf = (Box<dyn Puf>, Credential, Vec<EnrolledKey>);

fn enroll_strong(
    mut puf: Simulated<XorArbiterPuf>,
    rows: u32,
    device: DeviceId,
    rng: &mut ChaCha20Rng,
) -> Result<EnrolledPuf, ExtractorError> {
    let pool = enroll_pool(&mut puf, &PoolEnrollment::rows(rows), rng)?;
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

fn enroll_weak(
    mut puf: Simulated<SramPuf>,
    cells: usize,
    device: DeviceId,
    rng: &mut ChaCha20Rng,
) -> Result<EnrolledPuf, ExtractorError> {
    let enrolled = enroll_puf(&mut puf, cells, 3, &KeyEnrollment::default(), rng)?;
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
    fn device_ids_are_unique_and_never_zero() {
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
            puf_kind: mixed,
            ..FleetSpec::new(4, 7)
        };
        let mut progress = Vec::new();
        let mut fleet = enroll_fleet(&spec, &mut |done| progress.push(done)).unwrap();
        assert_eq!(progress.last(), Some(&4));
        let clones = enroll_fleet(&FleetSpec { seed: 8, ..spec }, &mut |_| {}).unwrap();
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
            // A clone has the public helper data, but another chip.
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
