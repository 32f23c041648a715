//! The verifier of a gateway over a real registry: what rounds bring about, and what survives it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use linewarden_controller::attest::{PlanWish, RoundOutcome, Seen, Verdict, Verifier};
use linewarden_controller::{Controller, Policy};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RoundNumber, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, DeviceRecord, GroupName, GroupPolicy, MasterKey, NewGroup, NewProver, Protection, Registry,
    Revision, State,
};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, SqliteConnection};

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const DEVICES: [DeviceId; 2] = [DeviceId(1), DeviceId(2)];

fn group() -> GroupName {
    GroupName::new("pumps").unwrap()
}

fn prover(device: DeviceId) -> NewProver {
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

struct Site {
    directory: tempfile::TempDir,
    registry: Registry,
    controller: Controller,
}

impl Site {
    async fn new() -> Self {
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
            registry.enrol_prover(prover(device), 1).await.unwrap();
        }
        Self {
            controller: Controller::new(registry.clone(), Policy::default()),
            registry,
            directory,
        }
    }

    /// The verifier of a gateway that has its provers and may open rounds from this number on.
    async fn verifier(&self, gateway: u32) -> (Verifier, u32) {
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
    async fn enrol_anew(&self, verifier: &mut Verifier, device: DeviceId, at_s: u64) {
        let anew = NewProver {
            key: AttestationKey::from_bytes([3; 32]),
            ..prover(device)
        };
        self.enrol(verifier, anew, at_s).await;
    }

    async fn enrol(&self, verifier: &mut Verifier, prover: NewProver, at_s: u64) {
        self.registry.enrol_prover(prover, at_s).await.unwrap();
        let plan = verifier
            .plan(PlanWish::default(), at_s, &mut || Some([5; 8]))
            .await;
        verifier.provers(plan.unwrap().unwrap().running, 0).await.unwrap();
    }

    /// A verifier to which all devices have proven themselves once, and the number of its next round.
    async fn proven(&self, gateway: u32) -> (Verifier, u32) {
        let (mut verifier, number) = self.verifier(gateway).await;
        let proofs = DEVICES.map(|device| (device, OK));
        verifier.appraise(&round(number, &proofs), 5, 5).await.unwrap();
        (verifier, number + 1)
    }

    async fn is_out(&self, device: DeviceId) -> bool {
        self.registry.get(device).await.unwrap().quarantine.is_some()
    }

    async fn state(&self, device: DeviceId) -> (State, GatewayId) {
        let appraisal = self.registry.appraisal(device).await.unwrap().unwrap();
        (appraisal.state, appraisal.gateway)
    }
}

fn round(number: u32, seen: &[(DeviceId, Seen)]) -> RoundOutcome {
    RoundOutcome {
        number: RoundNumber(number),
        group: group(),
        period: Period(1),
        lasted_ms: 10,
        ended_ns: 0,
        last_verdict_ms: 5,
        verdicts: seen
            .iter()
            .map(|(device, seen)| Verdict {
                device: *device,
                seen: *seen,
                address: ADDRESS,
            })
            .collect(),
    }
}

const OK: Seen = Seen::Ok(Current);

#[tokio::test]
async fn who_was_well_and_is_not_asked_any_more_is_not_shown_as_well() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier(1).await;
    let [first, second] = DEVICES;
    verifier
        .appraise(&round(number, &[(first, OK), (second, OK)]), 10, 10)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (State::Ok, GatewayId(1)));
    for rounds in 1..9 {
        let appraised = verifier
            .appraise(&round(number + rounds, &[(first, OK)]), 20, 20)
            .await
            .unwrap();
        assert_eq!(appraised.quarantined, [], "nobody has asked it");
    }
    assert_eq!(site.state(first).await, (State::Ok, GatewayId(1)));
    assert_eq!(site.state(second).await, (State::Silent, GatewayId(1)));
}

#[tokio::test]
async fn what_another_gateway_has_seen_since_is_left_alone_until_the_device_is_back() {
    let site = Site::new().await;
    let (mut here, number) = site.verifier(1).await;
    let (mut there, other) = site.verifier(2).await;
    let [first, second] = DEVICES;
    here.appraise(&round(number, &[(first, OK), (second, OK)]), 10, 10)
        .await
        .unwrap();
    there
        .appraise(&round(other, &[(second, OK)]), 20, 20)
        .await
        .unwrap();
    here.appraise(&round(number + 1, &[(first, OK)]), 30, 30)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (State::Ok, GatewayId(2)));
    here.appraise(&round(number + 2, &[(first, OK), (second, OK)]), 40, 40)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (State::Ok, GatewayId(1)));
}

#[tokio::test]
async fn a_quarantine_outlives_the_verifier_and_a_proof_at_any_gateway_ends_it() {
    let site = Site::new().await;
    let (mut verifier, number) = site.proven(1).await;
    let [first, _] = DEVICES;
    let mut quarantined = Vec::new();
    for rounds in 0..5 {
        let silent = round(number + rounds, &[(first, Seen::Silent)]);
        quarantined.extend(verifier.appraise(&silent, 10, 10).await.unwrap().quarantined);
    }
    assert_eq!(quarantined.len(), 1, "told once: {quarantined:?}");
    assert!(site.is_out(first).await);
    drop(verifier);
    let (mut next, number) = site.verifier(2).await;
    let appraised = next
        .appraise(&round(number, &[(first, OK)]), 20, 20)
        .await
        .unwrap();
    assert_eq!(ids(&appraised.readmitted), [first]);
    assert!(!site.is_out(first).await);
}

/// Whoever can write the file but lacks the key lets nobody in, however well the device proves.
#[tokio::test]
async fn a_quarantine_that_was_edited_away_stays() {
    for statement in [
        "UPDATE device SET quarantined_at_s = NULL, quarantined_reason = NULL, revision = revision + 1",
        "UPDATE device SET quarantined_at_s = 1, revision = revision + 1",
        "PRAGMA foreign_keys = OFF; DELETE FROM device",
    ] {
        let site = Site::new().await;
        let (mut verifier, number) = site.proven(1).await;
        let [first, _] = DEVICES;
        for rounds in 0..3 {
            let silent = round(number + rounds, &[(first, Seen::Silent)]);
            verifier.appraise(&silent, 10, 10).await.unwrap();
        }
        assert_eq!(site.state(first).await, (State::Quarantined, GatewayId(1)));
        let options = SqliteConnectOptions::new().filename(site.registry.path().unwrap());
        let mut shell = options.connect().await.unwrap();
        shell
            .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
                "{statement} WHERE device_id = {}; UPDATE registry SET revision = revision + 1",
                first.0
            ))))
            .await
            .unwrap();
        shell.close().await.unwrap();
        for rounds in 3..6 {
            let proven = round(number + rounds, &[(first, OK)]);
            let appraised = verifier.appraise(&proven, 20, 20).await.unwrap();
            assert_eq!(appraised.readmitted, [], "{statement}");
            assert_eq!(
                site.state(first).await,
                (State::Quarantined, GatewayId(1)),
                "{statement}"
            );
        }
        let feed = site.registry.changes_since(Revision::ZERO, 100).await.unwrap();
        let told = feed.changes.iter().filter(|change| change.device == first);
        assert!(told.clone().all(|change| !change.active), "{statement}");
        assert_eq!(feed.damaged.len(), told.count(), "{statement}");
        assert!(!site.registry.check().await.unwrap().is_empty(), "{statement}");
    }
}

#[tokio::test]
async fn a_round_that_is_told_twice_counts_once_in_the_registry() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier(1).await;
    let told = round(number, &[(DEVICES[0], OK), (DEVICES[1], Seen::Silent)]);
    verifier.appraise(&told, 10, 10).await.unwrap();
    verifier.appraise(&told, 10, 10).await.unwrap();
    let rounds = site.registry.rounds(Some(GatewayId(1)), 10).await.unwrap();
    assert_eq!(rounds.len(), 1);
    assert_eq!((rounds[0].asked, rounds[0].ok, rounds[0].silent), (2, 1, 1));
}

/// Data planes keep the keys of two periods, by whether their numbers are even.
#[tokio::test]
async fn the_next_period_never_takes_the_place_of_the_running_one_however_long_nobody_was_there() {
    let site = Site::new().await;
    let link = site.controller.connect(GatewayId(1), 1).await.unwrap();
    let mut verifier = Verifier::open(link).await.unwrap();
    let mut now_s = 1_800_000_000;
    let mut begin = None;
    for away in 0..40u64 {
        now_s += 3_600 * (1 + away % 7);
        let wish = PlanWish {
            begin,
            period_s: 3_600,
            numbers: false,
        };
        let plan = verifier
            .plan(wish, now_s, &mut || Some([5; 8]))
            .await
            .unwrap()
            .unwrap();
        let (running, next) = (plan.running.period.0, plan.next.period.0);
        assert!(
            next > running && (next - running) % 2 == 1,
            "{running} then {next}"
        );
        begin = Some(plan.next.period);
    }
}

#[tokio::test]
async fn a_verifier_of_an_old_registration_decides_nothing() {
    let site = Site::new().await;
    let (mut old, number) = site.verifier(1).await;
    let (_new, _) = site.verifier(1).await;
    assert!(
        old.appraise(&round(number, &[(DEVICES[0], OK)]), 10, 10)
            .await
            .is_err()
    );
    assert!(site.registry.appraisal(DEVICES[0]).await.unwrap().is_none());
}

/// From here to the other gateway and back within one round: here it was always well, and has been asked in each round.
#[tokio::test]
async fn who_was_elsewhere_between_two_rounds_is_shown_here_again() {
    let site = Site::new().await;
    let (mut here, number) = site.verifier(1).await;
    let (mut there, other) = site.verifier(2).await;
    let [first, second] = DEVICES;
    here.appraise(&round(number, &[(first, OK), (second, OK)]), 10, 10)
        .await
        .unwrap();
    there
        .appraise(&round(other, &[(second, OK)]), 20, 20)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (State::Ok, GatewayId(2)));
    here.appraise(&round(number + 1, &[(first, OK), (second, OK)]), 30, 30)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (State::Ok, GatewayId(1)));
    // The other one asks it no more, and says nothing of it.
    there.appraise(&round(other + 1, &[]), 40, 40).await.unwrap();
    assert_eq!(site.state(second).await, (State::Ok, GatewayId(1)));
}

/// The number of the round is reserved only after it was told first: what is decided about devices is durable by then, the
/// round is not.
#[tokio::test]
async fn what_was_decided_before_a_failure_is_told_with_the_next_success() {
    let site = Site::new().await;
    let (mut verifier, number) = site.proven(1).await;
    let [first, _] = DEVICES;
    let more_numbers = PlanWish {
        begin: None,
        period_s: 3_600,
        numbers: true,
    };
    for rounds in 0..2 {
        let silent = round(number + rounds, &[(first, Seen::Silent)]);
        verifier.appraise(&silent, 10, 10).await.unwrap();
    }
    let unreserved = number + 256;
    let third = round(unreserved, &[(first, Seen::Silent)]);
    verifier.appraise(&third, 20, 20).await.unwrap_err();
    assert!(site.registry.get(first).await.unwrap().quarantine.is_some());
    verifier
        .plan(more_numbers, 1, &mut || Some([5; 8]))
        .await
        .unwrap();
    let told = verifier.appraise(&third, 20, 20).await.unwrap();
    assert_eq!(told.quarantined.len(), 1);
    let appraisal = site.registry.appraisal(first).await.unwrap().unwrap();
    assert_eq!((appraisal.state, appraisal.since_s), (State::Quarantined, 20));

    let fourth = round(unreserved + 256, &[(first, OK)]);
    verifier.appraise(&fourth, 30, 30).await.unwrap_err();
    assert!(site.registry.get(first).await.unwrap().quarantine.is_none());
    verifier
        .plan(more_numbers, 1, &mut || Some([5; 8]))
        .await
        .unwrap();
    let told = verifier.appraise(&fourth, 30, 30).await.unwrap();
    assert_eq!(ids(&told.readmitted), [first]);
    let told = verifier.appraise(&fourth, 30, 30).await.unwrap();
    assert_eq!((told.quarantined, told.readmitted), (vec![], vec![]), "once");
}

#[tokio::test]
async fn who_may_not_come_in_again_is_not_said_to() {
    let site = Site::new().await;
    let (mut verifier, number) = site.proven(1).await;
    let [first, _] = DEVICES;
    for rounds in 0..4 {
        let silent = round(number + rounds, &[(first, Seen::Silent)]);
        verifier.appraise(&silent, 10, 10).await.unwrap();
    }
    // Somebody writes into the file who does not have the key: no revision tells of it.
    let path = site.directory.path().join("fleet.registry");
    let mut file = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
    sqlx::query("UPDATE device SET name = 'another' WHERE device_id = 1")
        .execute(&mut file)
        .await
        .unwrap();
    let told = verifier
        .appraise(&round(number + 4, &[(first, OK)]), 20, 20)
        .await
        .unwrap();
    assert_eq!(told.readmitted, []);
    assert_eq!(site.state(first).await.0, State::Quarantined);
}

fn ids(readmitted: &[(DeviceId, Revision)]) -> Vec<DeviceId> {
    readmitted.iter().map(|(device, _)| *device).collect()
}

/// Silent rounds from this number on, each ending at this time: who is quarantined by them.
async fn keep_silent(
    verifier: &mut Verifier,
    rounds: std::ops::Range<u32>,
    device: DeviceId,
    at_s: u64,
) -> Vec<DeviceId> {
    let mut quarantined = Vec::new();
    for number in rounds {
        let silent = round(number, &[(device, Seen::Silent)]);
        let appraised = verifier.appraise(&silent, at_s, at_s).await.unwrap();
        let devices = appraised.quarantined.into_iter().map(|told| told.device);
        quarantined.extend(devices);
    }
    quarantined
}

/// Devices are enrolled first and get their keys afterwards.
#[tokio::test]
async fn who_has_never_proven_since_it_was_enrolled_is_not_quarantined_by_silence() {
    let site = Site::new().await;
    let [first, second] = DEVICES;
    let (mut verifier, number) = site.verifier(1).await;
    assert!(site.registry.appraisal(first).await.unwrap().is_none());
    let rounds = number..number + 9;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, []);
    assert_eq!(site.state(first).await, (State::Unproven, GatewayId(1)));
    // Nor by the next process, or another gateway.
    let (mut next, number) = site.verifier(1).await;
    let rounds = number..number + 9;
    assert_eq!(keep_silent(&mut next, rounds, first, 20).await, []);
    let (mut there, other) = site.verifier(2).await;
    let rounds = other..other + 9;
    assert_eq!(keep_silent(&mut there, rounds, first, 30).await, []);
    assert_eq!(site.state(first).await, (State::Unproven, GatewayId(2)));
    // What it was silent in before its first proof counts for nothing then, either.
    let proven = round(number + 9, &[(first, OK)]);
    next.appraise(&proven, 40, 40).await.unwrap();
    let rounds = number + 10..number + 12;
    assert_eq!(keep_silent(&mut next, rounds, first, 50).await, []);
    let rounds = number + 12..number + 15;
    assert_eq!(keep_silent(&mut next, rounds, first, 50).await, [first]);
    // It has proven itself here, which the other gateway has not seen, and of which it has read before that it has not.
    site.registry.readmit(first).await.unwrap();
    let rounds = other + 9..other + 14;
    assert_eq!(keep_silent(&mut there, rounds, first, 60).await, [first]);
    assert!(!site.is_out(second).await);
}

#[tokio::test]
async fn an_enrolment_anew_counts_from_itself() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    let (mut verifier, number) = site.proven(1).await;
    let rounds = number..number + 2;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, []);
    site.enrol_anew(&mut verifier, first, 20).await;
    // By the key of before, in a round that had begun.
    let old = RoundOutcome {
        lasted_ms: 4_000,
        ..round(number + 2, &[(first, OK)])
    };
    verifier.appraise(&old, 23, 23).await.unwrap();
    assert!(site.registry.appraisal(first).await.unwrap().is_none());
    let rounds = number + 3..number + 12;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 30).await, []);
    assert_eq!(site.state(first).await.0, State::Unproven);
    let proven = round(number + 12, &[(first, OK)]);
    verifier.appraise(&proven, 40, 40).await.unwrap();
    let rounds = number + 13..number + 16;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 50).await, [first]);
}

/// Else an operator who looks for a silent device at another address would let it stay in.
#[tokio::test]
async fn who_is_asked_elsewhere_with_the_same_key_is_not_new() {
    let site = Site::new().await;
    let [first, second] = DEVICES;
    let (mut verifier, number) = site.verifier(1).await;
    let proven = round(number, &[(first, OK)]);
    verifier.appraise(&proven, 5, 5).await.unwrap();
    for device in DEVICES {
        site.enrol(&mut verifier, prover(device), 20).await;
    }
    let rounds = number + 1..number + 4;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 30).await, [first]);
    let rounds = number + 4..number + 12;
    assert_eq!(
        keep_silent(&mut verifier, rounds, second, 30).await,
        [],
        "it never proved"
    );
}

/// A round that had begun is decided about before the verifier hears of the enrolment.
#[tokio::test]
async fn a_round_of_before_an_enrolment_does_not_speak_of_it() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    let (mut verifier, number) = site.proven(1).await;
    let anew = NewProver {
        key: AttestationKey::from_bytes([3; 32]),
        ..prover(first)
    };
    site.registry.enrol_prover(anew, 20).await.unwrap();
    let old = RoundOutcome {
        lasted_ms: 4_000,
        ..round(number, &[(first, Seen::Late(Current))])
    };
    verifier.appraise(&old, 23, 23).await.unwrap();
    assert!(site.registry.appraisal(first).await.unwrap().is_none());
    let (mut next, number) = site.verifier(1).await;
    let rounds = number..number + 9;
    assert_eq!(keep_silent(&mut next, rounds, first, 30).await, []);
}

/// Nobody gets out of quarantine by another enrolment, nor is treated as new after it once the operator has let it in.
#[tokio::test]
async fn who_is_enrolled_anew_in_quarantine_stays_there_until_it_proves_itself() {
    let [first, _] = DEVICES;
    for lets_in in [false, true] {
        let site = Site::new().await;
        let (mut verifier, number) = site.proven(1).await;
        let rounds = number..number + 3;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, [first]);
        site.enrol_anew(&mut verifier, first, 20).await;
        assert!(site.is_out(first).await);
        if lets_in {
            site.registry.readmit(first).await.unwrap();
        } else {
            let rounds = number + 3..number + 6;
            assert_eq!(keep_silent(&mut verifier, rounds, first, 30).await, []);
            assert!(site.is_out(first).await);
            site.registry.readmit(first).await.unwrap();
        }
        let rounds = number + 6..number + 9;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 40).await, [first]);
        let proven = round(number + 9, &[(first, OK)]);
        let told = verifier.appraise(&proven, 50, 50).await.unwrap();
        assert_eq!(ids(&told.readmitted), [first]);
        assert!(!site.is_out(first).await);
    }
}

/// That a prover has proven nothing is authenticated: who can write the file makes nobody immune.
#[tokio::test]
async fn without_an_authentic_record_silence_counts() {
    for statement in [
        "DELETE FROM appraisal",
        "UPDATE appraisal SET since_s = since_s + 1",
        "UPDATE appraisal SET state = 5",
    ] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        drop(site.proven(1).await);
        let path = site.directory.path().join("fleet.registry");
        let mut file = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
        file.execute(statement).await.unwrap();
        let (mut verifier, number) = site.verifier(1).await;
        let rounds = number..number + 5;
        assert_eq!(
            keep_silent(&mut verifier, rounds, first, 10).await,
            [first],
            "{statement}"
        );
    }
}

/// What a round has decided is decided once, though it is told again after a failure: the operator's word came later.
#[tokio::test]
async fn who_is_let_in_before_its_quarantine_is_told_is_not_put_there_again() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    let (mut verifier, number) = site.proven(1).await;
    let rounds = number..number + 2;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, []);
    let unreserved = number + 300;
    let third = round(unreserved, &[(first, Seen::Silent)]);
    verifier.appraise(&third, 20, 20).await.unwrap_err();
    assert!(site.is_out(first).await);
    let let_in = site.registry.readmit(first).await.unwrap();
    let more_numbers = PlanWish {
        begin: None,
        period_s: 3_600,
        numbers: true,
    };
    verifier
        .plan(more_numbers, 1, &mut || Some([5; 8]))
        .await
        .unwrap();
    let told = verifier.appraise(&third, 20, 30).await.unwrap();
    assert!(!site.is_out(first).await);
    let [quarantined] = &told.quarantined[..] else {
        panic!("{told:?}")
    };
    assert!(quarantined.device == first && quarantined.revision < let_in);
    // From then on it is judged anew.
    assert_eq!(site.state(first).await.0, State::Silent);
    let rounds = unreserved + 1..unreserved + 3;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 40).await, []);
    let rounds = unreserved + 3..unreserved + 4;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 40).await, [first]);
}

/// Who can write the file puts back the count by which gateways ask for changes.
#[tokio::test]
async fn a_count_of_changes_that_was_put_back_hides_no_quarantine() {
    let site = Site::new().await;
    let link = site.controller.connect(GatewayId(1), 1).await.unwrap();
    let mut heard = link.changes(Revision::ZERO, None).await.unwrap().upto;
    let path = site.directory.path().join("fleet.registry");
    let mut file = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
    file.execute("UPDATE registry SET revision = 0").await.unwrap();
    for device in DEVICES {
        let quarantine = [(device, String::new())];
        site.registry.quarantine(&quarantine, 9).await.unwrap();
        let told = link.changes(heard, None).await.unwrap();
        let is_told = |told: &linewarden_registry::Change| told.device == device && !told.active;
        assert!(told.changes.iter().any(is_told), "{told:?}");
        heard = told.upto;
    }
}
