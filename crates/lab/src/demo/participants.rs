//! The devices of the demonstration: created, enrolled and divided into groups.

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_registry::{Credentials, DeviceRecord, PoolRow};

use super::{DemoError, Options, RunControl, VICTIMS};
use crate::attackers::{CONTROLLED_DEVICES, FIRST_CONTROLLED_DEVICE};
use crate::fleet::{FleetSpec, Member, PufKind, SimulatedDevice, device_id, enroll_fleet};

/// Maximum number of attested devices: each device has files on disk.
const PROVERS_MAX: u32 = 50;
/// Devices that are enrolled and never send a message.
const ABSENT_DEVICES: u32 = 8;
/// Devices that are enrolled between two checks of the stop flag.
const ENROLLMENT_CHUNK: u32 = 512;
/// One in `WEAK_PUF_INTERVAL` devices has a weak PUF and uses key mode.
const WEAK_PUF_INTERVAL: u32 = 10;
/// A 6-XOR arbiter PUF of 64 stages.
const STRONG_PUF: PufKind = PufKind::XorArbiter {
    stages: 64,
    chains: 6,
};

/// The PUF of a device: nine devices with a strong PUF, then one with a weak PUF.
fn puf_kind(index: u32) -> PufKind {
    if index % WEAK_PUF_INTERVAL == WEAK_PUF_INTERVAL - 1 {
        PufKind::WEAK
    } else {
        STRONG_PUF
    }
}

/// A readable description of the fleet.
pub(super) fn describe_fleet(options: &Options) -> String {
    format!(
        "6-XOR arbiter PUFs (64 stages) with {} rows each, every tenth an SRAM PUF (32,768 cells) in key mode; bit error rate {} %",
        options.rows,
        options.bit_error_rate * 100.0
    )
}

/// Number of devices per group. Indices run through the groups in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Devices that authenticate first, are captured, and are attacked.
    pub(super) victims: u32,
    /// Devices that are also used for the latency comparison.
    pub(super) latency_sample: u32,
    /// Devices that are attested.
    pub(super) provers: u32,
    /// All other devices.
    pub(super) remaining: u32,
}

impl Groups {
    pub(super) fn of(options: &Options) -> Self {
        let sampled = options.latency_devices.min(options.devices / 4).max(1);
        let unsampled = options.devices - VICTIMS - sampled;
        let attested = (unsampled / 2).min(PROVERS_MAX);
        Self {
            victims: VICTIMS,
            latency_sample: sampled,
            provers: attested,
            remaining: unsampled - attested,
        }
    }

    /// Index of the first attested device.
    pub(super) fn first_prover(self) -> u32 {
        self.victims + self.latency_sample
    }

    /// Index of the first remaining device.
    pub(super) fn first_remaining(self) -> u32 {
        self.first_prover() + self.provers
    }

    /// Index of the first absent device, chosen so that the eight absent devices include one with a weak PUF, which is
    /// the last device of each ten.
    fn first_absent(self) -> u32 {
        let devices = self.first_remaining() + self.remaining;
        devices.next_multiple_of(WEAK_PUF_INTERVAL) + WEAK_PUF_INTERVAL / 2
    }
}

/// All devices. Records contain keys and go to the registry; all other fields contain only data that exist in
/// production.
pub(super) struct Participants {
    pub(super) victims: Vec<Member>,
    pub(super) latency_sample: Vec<Member>,
    pub(super) provers: Vec<Member>,
    pub(super) remaining: Vec<Member>,
    pub(super) absent_devices: Vec<DeviceId>,
    /// Ids and helper data of the absent devices with other PUF chips.
    pub(super) clones: Vec<Member>,
    /// Legitimate devices that the attacks control.
    pub(super) controlled_devices: Vec<SimulatedDevice>,
    pub(super) records: Vec<DeviceRecord>,
}

impl Participants {
    /// Creates and enrolls all devices.
    pub(super) fn enroll(
        options: &Options,
        bound: bool,
        control: &mut RunControl<'_>,
    ) -> Result<Self, DemoError> {
        let groups = Groups::of(options);
        let total = u64::from(options.devices + 2 * ABSENT_DEVICES + CONTROLLED_DEVICES);
        let mut enroller = FleetEnroller {
            spec: FleetSpec {
                rows: options.rows,
                bit_error_rate: options.bit_error_rate,
                puf_kind,
                mac_bound: bound,
                ..FleetSpec::new(0, options.seed)
            },
            enrolled_at_s: now_s(),
            records: Vec::with_capacity(total as usize),
            enrolled: 0,
            total,
        };
        let victims = enroller.enroll(0, groups.victims, control)?;
        let latency_sample = enroller.enroll(groups.victims, groups.latency_sample, control)?;
        let provers = enroller.enroll(groups.first_prover(), groups.provers, control)?;
        let remaining = enroller.enroll(groups.first_remaining(), groups.remaining, control)?;
        let absent = enroller.enroll(groups.first_absent(), ABSENT_DEVICES, control)?;
        let controlled_devices = enroller.enroll(FIRST_CONTROLLED_DEVICE, CONTROLLED_DEVICES, control)?;
        let mut records = std::mem::take(&mut enroller.records);
        // The clones' chips are enrolled under another seed, and their credentials are discarded.
        enroller.spec.seed = !options.seed;
        let chips = enroller.enroll(groups.first_absent(), ABSENT_DEVICES, control)?;
        records.shrink_to_fit();
        Ok(Self {
            victims: members(victims),
            latency_sample: members(latency_sample),
            provers: members(provers),
            remaining: members(remaining),
            absent_devices: absent.iter().map(|device| device_id(device.index)).collect(),
            clones: clones(absent, chips),
            controlled_devices,
            records,
        })
    }
}

/// Creates and enrolls devices.
struct FleetEnroller {
    spec: FleetSpec,
    enrolled_at_s: u64,
    records: Vec<DeviceRecord>,
    /// Number of enrolled devices, for the progress.
    enrolled: u64,
    /// Number of devices to enroll.
    total: u64,
}

impl FleetEnroller {
    fn enroll(
        &mut self,
        first: u32,
        devices: u32,
        control: &mut RunControl<'_>,
    ) -> Result<Vec<SimulatedDevice>, DemoError> {
        let mut created = Vec::with_capacity(devices as usize);
        for chunk_start in (first..first + devices).step_by(ENROLLMENT_CHUNK as usize) {
            control.check_stop()?;
            let spec = FleetSpec {
                first_index: chunk_start,
                devices: ENROLLMENT_CHUNK.min(first + devices - chunk_start),
                ..self.spec.clone()
            };
            let (done, total) = (self.enrolled, self.total);
            let mut chunk = enroll_fleet(&spec, &mut |new| {
                control.report_progress(done + u64::from(new), total);
            })?;
            self.enrolled += u64::from(spec.devices);
            for device in &mut chunk {
                self.records.push(record(device, self.enrolled_at_s));
            }
            created.append(&mut chunk);
        }
        Ok(created)
    }
}

/// The registry's record of a device; moves the keys out of `device`.
fn record(device: &mut SimulatedDevice, enrolled_at_s: u64) -> DeviceRecord {
    let keys = std::mem::take(&mut device.keys);
    let credentials = match (device.member.config.mode, keys.as_slice()) {
        (Mode::Key, [key, ..]) => Credentials::Key(key.row_key.clone()),
        _ => Credentials::pool(
            keys.iter()
                .map(|key| PoolRow {
                    challenge: key.challenge,
                    row_key: key.row_key.clone(),
                })
                .collect(),
        ),
    };
    DeviceRecord {
        device: device.member.config.device,
        name: format!("simulated {}", device.index),
        suite: Suite::SipHash128,
        enrolled_at_s,
        puf_profile: format!("{:?}", puf_kind(device.index)),
        credentials,
    }
}

fn members(devices: Vec<SimulatedDevice>) -> Vec<Member> {
    devices.into_iter().map(|device| device.member).collect()
}

fn clones(originals: Vec<SimulatedDevice>, chips: Vec<SimulatedDevice>) -> Vec<Member> {
    originals
        .into_iter()
        .zip(chips)
        .map(|(original, chip)| Member {
            puf: chip.member.puf,
            ..original.member
        })
        .collect()
}

/// Seconds since 1970, for registry records.
pub(super) fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::{DEVICES_MAX, DEVICES_MIN, DataPlaneKind};
    use super::*;
    use crate::address::FIRST_ATTACKER;

    #[test]
    fn groups_add_up_and_absent_devices_have_both_modes_and_addresses_of_their_own() {
        for devices in [DEVICES_MIN, 17, 64, 999, 10_000, DEVICES_MAX] {
            let options = Options::new(devices, DataPlaneKind::Xdp, 1);
            let groups = Groups::of(&options);
            assert_eq!(groups.first_remaining() + groups.remaining, devices);
            assert!(groups.provers > 0);
            let absent = groups.first_absent()..groups.first_absent() + ABSENT_DEVICES;
            assert!(absent.start >= devices && absent.end <= FIRST_ATTACKER);
            assert!(absent.clone().any(|index| puf_kind(index) == STRONG_PUF));
            assert!(absent.clone().any(|index| puf_kind(index) == PufKind::WEAK));
        }
    }
}
