//! Who takes part: made, enrolled, and split into groups.

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_registry::{Credentials, DeviceRecord, PoolRow};

use super::{Audience, DemoError, Options, WITNESSES};
use crate::attackers::{PUPPETS, PUPPETS_FROM};
use crate::fleet::{FleetSpec, Member, PufKind, SimulatedDevice, device_id, enrol_fleet};

/// Devices that prove what they run: each has files of its own on disk.
const ATTESTED_MAX: u32 = 50;
/// Devices that are enrolled and never show up.
const ABSENT: u32 = 8;
/// Enrolled between two looks at whether the run is to stop.
const CHUNK: u32 = 512;
/// One device in so many has a weak PUF and works in key mode.
const WEAK_EVERY: u32 = 10;
/// A 6-XOR arbiter PUF of 64 stages.
const STRONG: PufKind = PufKind::XorArbiter {
    stages: 64,
    chains: 6,
};

/// The PUF of a device: nine strong ones, then a weak one.
fn kind(index: u32) -> PufKind {
    if index % WEAK_EVERY == WEAK_EVERY - 1 {
        PufKind::WEAK
    } else {
        STRONG
    }
}

/// What the fleet is made of, for people.
pub(super) fn describe(options: &Options) -> String {
    format!(
        "6-XOR arbiter PUFs (64 stages) with {} rows each, every tenth an SRAM PUF (32,768 cells) in key mode; {} % of the bits of a reading are wrong",
        options.rows,
        options.bit_error_rate * 100.0
    )
}

/// How many devices do what. Indices run through the groups in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Authenticate first, listened to, and are attacked.
    pub(super) witnesses: u32,
    /// Serve the comparison of latencies, too.
    pub(super) sampled: u32,
    /// Prove what they run.
    pub(super) attested: u32,
    /// All others.
    pub(super) crowd: u32,
}

impl Groups {
    pub(super) fn of(options: &Options) -> Self {
        let sampled = options.latency_devices.min(options.devices / 4).max(1);
        let others = options.devices - WITNESSES - sampled;
        let attested = (others / 2).min(ATTESTED_MAX);
        Self {
            witnesses: WITNESSES,
            sampled,
            attested,
            crowd: others - attested,
        }
    }

    /// Index of the first device that proves what it runs.
    pub(super) fn attested_from(self) -> u32 {
        self.witnesses + self.sampled
    }

    /// Index of the first of the crowd.
    pub(super) fn crowd_from(self) -> u32 {
        self.attested_from() + self.attested
    }

    /// Index of the first absent device. Ten consecutive ones would do to have both modes among them; these eight
    /// lie so that the ninth of a ten, which is weak, is one of them.
    fn absent_from(self) -> u32 {
        let devices = self.crowd_from() + self.crowd;
        devices.next_multiple_of(WEAK_EVERY) + WEAK_EVERY / 2
    }
}

/// All who take part. Records hold keys and go to the registry; everybody else has only what it would have in the field.
pub(super) struct Cast {
    pub(super) witnesses: Vec<Member>,
    pub(super) sampled: Vec<Member>,
    pub(super) attested: Vec<Member>,
    pub(super) crowd: Vec<Member>,
    pub(super) absent: Vec<DeviceId>,
    /// Absent devices' names and helper data with other chips.
    pub(super) clones: Vec<Member>,
    /// Honest devices for the attackers' hands.
    pub(super) puppets: Vec<SimulatedDevice>,
    pub(super) records: Vec<DeviceRecord>,
}

impl Cast {
    /// Makes and enrols everybody.
    pub(super) fn enrol(
        options: &Options,
        bound: bool,
        audience: &mut Audience<'_>,
    ) -> Result<Self, DemoError> {
        let groups = Groups::of(options);
        let total = u64::from(options.devices + 2 * ABSENT + PUPPETS);
        let mut office = Office {
            spec: FleetSpec {
                rows: options.rows,
                bit_error_rate: options.bit_error_rate,
                kind,
                bound,
                ..FleetSpec::new(0, options.seed)
            },
            enrolled_at_s: now_s(),
            records: Vec::with_capacity(total as usize),
            done: 0,
            total,
        };
        let witnesses = office.enrol(0, groups.witnesses, audience)?;
        let sampled = office.enrol(groups.witnesses, groups.sampled, audience)?;
        let attested = office.enrol(groups.attested_from(), groups.attested, audience)?;
        let crowd = office.enrol(groups.crowd_from(), groups.crowd, audience)?;
        let absent = office.enrol(groups.absent_from(), ABSENT, audience)?;
        let puppets = office.enrol(PUPPETS_FROM, PUPPETS, audience)?;
        let mut records = std::mem::take(&mut office.records);
        // The chips of the clones are enrolled under another seed, and what was enrolled of them is thrown away.
        office.spec.seed = !options.seed;
        let chips = office.enrol(groups.absent_from(), ABSENT, audience)?;
        records.shrink_to_fit();
        Ok(Self {
            witnesses: members(witnesses),
            sampled: members(sampled),
            attested: members(attested),
            crowd: members(crowd),
            absent: absent.iter().map(|device| device_id(device.index)).collect(),
            clones: clones(absent, chips),
            puppets,
            records,
        })
    }
}

/// Where devices are made and enrolled.
struct Office {
    spec: FleetSpec,
    enrolled_at_s: u64,
    records: Vec<DeviceRecord>,
    done: u64,
    total: u64,
}

impl Office {
    fn enrol(
        &mut self,
        first: u32,
        devices: u32,
        audience: &mut Audience<'_>,
    ) -> Result<Vec<SimulatedDevice>, DemoError> {
        let mut made = Vec::with_capacity(devices as usize);
        for from in (first..first + devices).step_by(CHUNK as usize) {
            audience.check()?;
            let spec = FleetSpec {
                first_index: from,
                devices: CHUNK.min(first + devices - from),
                ..self.spec.clone()
            };
            let (done, total) = (self.done, self.total);
            let mut chunk = enrol_fleet(&spec, &mut |new| {
                audience.progress(done + u64::from(new), total);
            })?;
            self.done += u64::from(spec.devices);
            for device in &mut chunk {
                self.records.push(record(device, self.enrolled_at_s));
            }
            made.append(&mut chunk);
        }
        Ok(made)
    }
}

/// The registry's record of a device, which takes its keys away.
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
        puf_profile: format!("{:?}", kind(device.index)),
        credentials,
    }
}

fn members(devices: Vec<SimulatedDevice>) -> Vec<Member> {
    devices.into_iter().map(|device| device.member).collect()
}

fn clones(of: Vec<SimulatedDevice>, chips: Vec<SimulatedDevice>) -> Vec<Member> {
    of.into_iter()
        .zip(chips)
        .map(|(original, chip)| Member {
            puf: chip.member.puf,
            ..original.member
        })
        .collect()
}

/// Seconds since 1970, for the registry's books.
pub(super) fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::{Backend, DEVICES_MAX, DEVICES_MIN};
    use super::*;
    use crate::address::ATTACKERS_FROM;

    #[test]
    fn groups_add_up_and_absent_devices_have_both_modes_and_addresses_of_their_own() {
        for devices in [DEVICES_MIN, 17, 64, 999, 10_000, DEVICES_MAX] {
            let options = Options::new(devices, Backend::Xdp, 1);
            let groups = Groups::of(&options);
            assert_eq!(groups.crowd_from() + groups.crowd, devices);
            assert!(groups.attested > 0);
            let absent = groups.absent_from()..groups.absent_from() + ABSENT;
            assert!(absent.start >= devices && absent.end <= ATTACKERS_FROM);
            assert!(absent.clone().any(|index| kind(index) == STRONG));
            assert!(absent.clone().any(|index| kind(index) == PufKind::WEAK));
        }
    }
}
