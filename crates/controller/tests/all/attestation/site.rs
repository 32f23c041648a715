//! A registry with two provers, and rounds of a gateway.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use linewarden_controller::attest::{Signer, Verifier};
use linewarden_controller::{Controller, Policy};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RoundNumber, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    AttestationState, Credentials, DeviceRecord, MasterKey, NewGroup, NewProver, Protection, Registry,
};
use linewarden_types::{
    EnrollmentTime, GroupName, GroupPolicy, PlanRequest, ProofOutcome, ProverObservation, Revision,
    RoundOutcome,
};
use sqlx::{Connection as _, SqliteConnection};

pub const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
pub const DEVICES: [DeviceId; 2] = [DeviceId(1), DeviceId(2)];
/// The time of the first enrollment of all devices.
pub const FIRST_ENROLLMENT: EnrollmentTime = EnrollmentTime(1);

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
        location: None,
        port: 20_554,
        enrolled_period: Period(0),
    }
}

/// The same prover with another key.
pub fn re_enrolled_prover(device: DeviceId) -> NewProver {
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
            registry.enroll(record).await.unwrap();
            registry
                .enroll_prover(prover(device), FIRST_ENROLLMENT.0)
                .await
                .unwrap();
        }
        let signer = Signer::from_pem(&Signer::generate_pem().unwrap()).unwrap();
        Self {
            controller: Controller::new(registry.clone(), Policy::default()).with_signer(signer),
            registry,
            _directory: directory,
        }
    }

    /// Creates the verifier of a gateway that has read its provers, and returns it with the number of its first round.
    pub async fn verifier(&self, gateway: u32) -> (Verifier, u32) {
        let link = self.controller.register(GatewayId(gateway), 1).await.unwrap();
        let mut verifier = Verifier::open(link).await.unwrap();
        let plan_request = PlanRequest {
            start_period: None,
            period_s: 3_600,
            needs_round_numbers: true,
        };
        let plan = verifier
            .plan(plan_request, 1, &mut || Some([5; 8]))
            .await
            .unwrap()
            .unwrap();
        let provers = verifier.provers(plan.running, 0).await.unwrap();
        assert_eq!(provers.provisions.len(), 2);
        (verifier, plan.rounds.start)
    }

    /// Enrolls a device again, and makes the verifier read the new enrollment.
    pub async fn enroll_again(&self, verifier: &mut Verifier, device: DeviceId, at_s: u64) {
        self.enroll(verifier, re_enrolled_prover(device), at_s).await;
    }

    pub async fn enroll(&self, verifier: &mut Verifier, prover: NewProver, at_s: u64) {
        self.registry.enroll_prover(prover, at_s).await.unwrap();
        let plan = verifier
            .plan(PlanRequest::default(), at_s, &mut || Some([5; 8]))
            .await;
        verifier.provers(plan.unwrap().unwrap().running, 0).await.unwrap();
    }

    /// A verifier after all devices have proven themselves once, and the number of its next round.
    pub async fn verifier_after_proofs(&self, gateway: u32) -> (Verifier, u32) {
        let (mut verifier, number) = self.verifier(gateway).await;
        let proofs = DEVICES.map(|device| (device, OK));
        verifier
            .appraise_round(&round(number, &proofs), 5, 5)
            .await
            .unwrap();
        (verifier, number + 1)
    }

    /// Opens the registry's file like an attacker without the master key.
    pub async fn file(&self) -> SqliteConnection {
        let path = self.registry.location().unwrap().file().unwrap();
        SqliteConnection::connect(path.to_str().unwrap()).await.unwrap()
    }

    pub async fn is_quarantined(&self, device: DeviceId) -> bool {
        self.registry.get(device).await.unwrap().quarantine.is_some()
    }

    pub async fn state(&self, device: DeviceId) -> (AttestationState, GatewayId) {
        let appraisal = self.registry.appraisal(device).await.unwrap().unwrap();
        (appraisal.state, appraisal.gateway)
    }
}

pub fn round(number: u32, outcomes: &[(DeviceId, ProofOutcome)]) -> RoundOutcome {
    round_of(FIRST_ENROLLMENT, number, outcomes)
}

/// A round in which all challenged devices have this enrollment.
pub fn round_of(
    enrolled_at: EnrollmentTime,
    number: u32,
    outcomes: &[(DeviceId, ProofOutcome)],
) -> RoundOutcome {
    RoundOutcome {
        number: RoundNumber(number),
        group: group(),
        period: Period(1),
        feed_revision: Revision(u64::MAX),
        duration_ms: 10,
        last_proof_ms: 5,
        observations: outcomes
            .iter()
            .map(|(device, outcome)| ProverObservation {
                device: *device,
                enrolled_at,
                outcome: *outcome,
                address: ADDRESS,
            })
            .collect(),
    }
}

pub const OK: ProofOutcome = ProofOutcome::Ok(Current);

pub fn ids(remediated: &[(DeviceId, Revision)]) -> Vec<DeviceId> {
    remediated.iter().map(|(device, _)| *device).collect()
}

/// Appraises rounds in which the device misses its proof, and returns the quarantined devices. All rounds end at `at_s`.
pub async fn miss_rounds(
    verifier: &mut Verifier,
    rounds: std::ops::Range<u32>,
    device: DeviceId,
    at_s: u64,
) -> Vec<DeviceId> {
    miss_rounds_of_enrollment(FIRST_ENROLLMENT, verifier, rounds, device, at_s).await
}

/// Like [`miss_rounds`], for a device with the enrollment time `enrolled_at`.
pub async fn miss_rounds_of_enrollment(
    enrolled_at: EnrollmentTime,
    verifier: &mut Verifier,
    rounds: std::ops::Range<u32>,
    device: DeviceId,
    at_s: u64,
) -> Vec<DeviceId> {
    let mut quarantined = Vec::new();
    for number in rounds {
        let missed = round_of(enrolled_at, number, &[(device, ProofOutcome::Missed)]);
        let appraised = verifier.appraise_round(&missed, at_s, at_s).await.unwrap();
        let devices = appraised.quarantined.into_iter().map(|change| change.device);
        quarantined.extend(devices);
    }
    quarantined
}
