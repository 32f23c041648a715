//! Groups, provers and rounds for the tests.

use std::collections::BTreeMap;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration as MeasuredConfiguration;
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, AttestationState, NewGroup, NewProver, Protection, ProverLocation, Registry, RoundRecord,
};
use linewarden_types::{EnrollmentTime, GroupName, GroupPolicy};

use super::{in_memory, pool_device};

pub const NOW_S: u64 = 1_790_000_000;

pub fn name(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

/// A configuration of one file with this content.
pub fn configuration(content: u8) -> MeasuredConfiguration {
    let entry = FileEntry::File {
        mode: Mode::new(0o644).unwrap(),
        content: ContentHash([content; 32]),
    };
    let files = BTreeMap::from([(FilePath::new(b"/etc/pump").unwrap(), entry)]);
    MeasuredConfiguration::new(PcrValues::new(HashAlgorithm::Sha256), files).unwrap()
}

pub fn group(group: &str) -> NewGroup {
    NewGroup {
        name: name(group),
        policy: GroupPolicy::default(),
        reference: Some(configuration(1).encode()),
        roll_out: None,
    }
}

/// A prover of the group "pumps", with a key derived from its id.
pub fn prover(device: u64) -> NewProver {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&device.to_be_bytes());
    NewProver {
        device: DeviceId(device),
        group: name("pumps"),
        key: AttestationKey::from_bytes(key),
        protection: Protection::Software,
        binding: None,
        overlay: Some(configuration(2).encode()),
        location: Some(ProverLocation {
            gateway: GatewayId(1),
            address: "192.0.2.1".parse().unwrap(),
        }),
        port: 20_554,
        enrolled_period: Period(3),
    }
}

pub fn round(gateway: u32, number: u32) -> RoundRecord {
    RoundRecord {
        gateway: GatewayId(gateway),
        number,
        group: name("pumps"),
        period: Period(u64::MAX),
        started_at_s: NOW_S + u64::from(number),
        ended_at_s: NOW_S + u64::from(number) + 2,
        requested: 10,
        ok: 7,
        late: 2,
        missed: 1,
        last_proof_ms: 1_999,
    }
}

/// An appraisal by gateway 1.
pub fn appraisal(device: u64, number: u32) -> Appraisal {
    Appraisal {
        device: DeviceId(device),
        gateway: GatewayId(1),
        address: Some("192.0.2.1".parse().unwrap()),
        state: AttestationState::Ok,
        since_s: NOW_S + u64::from(number),
        since_round: number,
        configuration: Configuration::Current,
        missed_rounds: vec![1, 2],
        rounds_total: 3,
    }
}

/// Appraisals of provers that were enrolled at [`NOW_S`].
pub fn with_enrollment(appraisals: impl IntoIterator<Item = Appraisal>) -> Vec<(Appraisal, EnrollmentTime)> {
    let appraisals = appraisals.into_iter();
    appraisals
        .map(|appraisal| (appraisal, EnrollmentTime(NOW_S)))
        .collect()
}

/// A registry of the devices 1 to `devices`, all of them provers of the group "pumps".
pub async fn fleet(devices: u64) -> Registry {
    let registry = in_memory().await;
    let records = (1..=devices).map(|id| pool_device(id, 2));
    registry
        .enroll_bulk(records, Default::default(), |_| ())
        .await
        .unwrap();
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    for id in 1..=devices {
        registry.enroll_prover(prover(id), NOW_S).await.unwrap();
    }
    registry
}
