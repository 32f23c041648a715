//! A registry with two provers, and rounds as a gateway tells them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use linewarden_controller::attest::{PlanWish, RoundOutcome, Seen, Signer, Verdict, Verifier};
use linewarden_controller::{Controller, Policy};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RoundNumber, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, DeviceRecord, EnrolledAt, GroupName, GroupPolicy, MasterKey, NewGroup, NewProver,
    Protection, Registry, Revision, State,
};
use sqlx::{Connection as _, SqliteConnection};

pub const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
pub const DEVICES: [DeviceId; 2] = [DeviceId(1), DeviceId(2)];
/// The enrolment that all devices have at first.
pub const FIRST: EnrolledAt = EnrolledAt(1);

pub fn group() -> GroupName {
    GroupName::new("pumps").unwrap()
}

pub fn prover(device: DeviceId) -> NewProver {
    NewProver {
        device,
        group: group(),
        key: AttestationKey::from_bytes([2; 32]),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        home: None,
        port: 20_554,
        enrolled_period: Period(0),
    }
}

/// With another key.
pub fn anew(device: DeviceId) -> NewProver {
    NewProver {
        key: AttestationKey::from_bytes([3; 32]),
        ..prover(device)
    }
}

pub struct Site {
    _directory: tempfile::TempDir,
    pub registry: Registry,
    pub controller: Controller,
}

impl Site {
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([7; 32]);
        let registry = Registry::create(directory.path().join("fleet.registry"), &key)
            .await
            .unwrap();
        let reference = Configuration::new(PcrValues::new(HashAlgorithm::Sha256), BTreeMap::new()).unwrap();
        let pumps = NewGroup {
            name: group(),
            policy: GroupPolicy::default(),
            reference: Some(reference.encode()),
            roll_out: None,
        };
        registry.set_group(&pumps, 1).await.unwrap();
        for device in DEVICES {
            let record = DeviceRecord {
                device,
                name: String::new(),
                suite: Suite::SipHash128,
                enrolled_at_s: 0,
                puf_profile: String::new(),
                credentials: Credentials::Key(RowKey::from_bytes([1; 16])),
            };
            registry.enrol(record).await.unwrap();
            registry.enrol_prover(prover(device), FIRST.0).await.unwrap();
        }
        let signer = Signer::from_pem(&Signer::generate_pem().unwrap()).unwrap();
        Self {
            controller: Controller::new(registry.clone(), Policy::default()).signing(signer),
            registry,
            _directory: directory,
        }
    }

    /// The verifier of a gateway that has its provers and may open rounds from this number on.
    pub async fn verifier(&self, gateway: u32) -> (Verifier, u32) {
        let link = self.controller.connect(GatewayId(gateway), 1).await.unwrap();
        let mut verifier = Verifier::open(link).await.unwrap();
        let wish = PlanWish {
            begin: None,
            period_s: 3_600,
            numbers: true,
        };
        let plan = verifier
            .plan(wish, 1, &mut || Some([5; 8]))
            .await
            .unwrap()
            .unwrap();
        let provers = verifier.provers(plan.running, 0).await.unwrap();
        assert_eq!(provers.provisions.len(), 2);
        (verifier, plan.rounds.start)
    }

    /// Enrols a device anew, and lets the verifier know.
    pub async fn enrol_anew(&self, verifier: &mut Verifier, device: DeviceId, at_s: u64) {
        self.enrol(verifier, anew(device), at_s).await;
    }

    pub async fn enrol(&self, verifier: &mut Verifier, prover: NewProver, at_s: u64) {
        self.registry.enrol_prover(prover, at_s).await.unwrap();
        let plan = verifier
            .plan(PlanWish::default(), at_s, &mut || Some([5; 8]))
            .await;
        verifier.provers(plan.unwrap().unwrap().running, 0).await.unwrap();
    }

    /// A verifier to which all devices have proven themselves once, and the number of its next round.
    pub async fn proven(&self, gateway: u32) -> (Verifier, u32) {
        let (mut verifier, number) = self.verifier(gateway).await;
        let proofs = DEVICES.map(|device| (device, OK));
        verifier.appraise(&round(number, &proofs), 5, 5).await.unwrap();
        (verifier, number + 1)
    }

    /// The file, for somebody who does not have the key.
    pub async fn file(&self) -> SqliteConnection {
        let path = self.registry.location().unwrap().file().unwrap();
        SqliteConnection::connect(path.to_str().unwrap()).await.unwrap()
    }

    pub async fn is_out(&self, device: DeviceId) -> bool {
        self.registry.get(device).await.unwrap().quarantine.is_some()
    }

    pub async fn state(&self, device: DeviceId) -> (State, GatewayId) {
        let appraisal = self.registry.appraisal(device).await.unwrap().unwrap();
        (appraisal.state, appraisal.gateway)
    }
}

pub fn round(number: u32, seen: &[(DeviceId, Seen)]) -> RoundOutcome {
    round_of(FIRST, number, seen)
}

/// A round that asks all by this enrolment.
pub fn round_of(enrolled_at: EnrolledAt, number: u32, seen: &[(DeviceId, Seen)]) -> RoundOutcome {
    RoundOutcome {
        number: RoundNumber(number),
        group: group(),
        period: Period(1),
        heard: Revision(u64::MAX),
        lasted_ms: 10,
        ended_ns: 0,
        last_verdict_ms: 5,
        verdicts: seen
            .iter()
            .map(|(device, seen)| Verdict {
                device: *device,
                enrolled_at,
                seen: *seen,
                address: ADDRESS,
            })
            .collect(),
    }
}

pub const OK: Seen = Seen::Ok(Current);

pub fn ids(readmitted: &[(DeviceId, Revision)]) -> Vec<DeviceId> {
    readmitted.iter().map(|(device, _)| *device).collect()
}

/// Silent rounds from this number on, each ending at this time: who is quarantined by them.
pub async fn keep_silent(
    verifier: &mut Verifier,
    rounds: std::ops::Range<u32>,
    device: DeviceId,
    at_s: u64,
) -> Vec<DeviceId> {
    keep_silent_as(FIRST, verifier, rounds, device, at_s).await
}

/// Likewise of a device that is asked by this enrolment.
pub async fn keep_silent_as(
    enrolled_at: EnrolledAt,
    verifier: &mut Verifier,
    rounds: std::ops::Range<u32>,
    device: DeviceId,
    at_s: u64,
) -> Vec<DeviceId> {
    let mut quarantined = Vec::new();
    for number in rounds {
        let silent = round_of(enrolled_at, number, &[(device, Seen::Silent)]);
        let appraised = verifier.appraise(&silent, at_s, at_s).await.unwrap();
        let devices = appraised.quarantined.into_iter().map(|told| told.device);
        quarantined.extend(devices);
    }
    quarantined
}
