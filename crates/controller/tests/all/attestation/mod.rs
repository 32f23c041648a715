//! The verifier of a gateway with a real registry: effects of rounds, also after failures and restarts.

mod enrollments;
mod site;

use std::collections::HashSet;

use linewarden_controller::attest::Verifier;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{AttestationState, QuarantineRequest};
use linewarden_types::{PlanRequest, ProofOutcome, Revision, RoundOutcome};
use sqlx::{Connection as _, Executor as _};

use self::site::{DEVICES, FIRST_ENROLLMENT, OK, Site, ids, miss_rounds, prover, round};

#[tokio::test]
async fn a_compliant_device_that_is_no_longer_challenged_is_not_listed_as_compliant() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier(1).await;
    let [first, second] = DEVICES;
    verifier
        .appraise_round(&round(number, &[(first, OK), (second, OK)]), 10, 10)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (AttestationState::Ok, GatewayId(1)));
    for offset in 1..9 {
        let appraised = verifier
            .appraise_round(&round(number + offset, &[(first, OK)]), 20, 20)
            .await
            .unwrap();
        assert_eq!(appraised.quarantined, [], "the second device was not challenged");
    }
    assert_eq!(site.state(first).await, (AttestationState::Ok, GatewayId(1)));
    assert_eq!(site.state(second).await, (AttestationState::Missed, GatewayId(1)));
}

#[tokio::test]
async fn an_appraisal_of_another_gateway_stays_until_the_device_returns() {
    let site = Site::new().await;
    let (mut first_gateway, number) = site.verifier(1).await;
    let (mut second_gateway, second_number) = site.verifier(2).await;
    let [first, second] = DEVICES;
    first_gateway
        .appraise_round(&round(number, &[(first, OK), (second, OK)]), 10, 10)
        .await
        .unwrap();
    second_gateway
        .appraise_round(&round(second_number, &[(second, OK)]), 20, 20)
        .await
        .unwrap();
    first_gateway
        .appraise_round(&round(number + 1, &[(first, OK)]), 30, 30)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (AttestationState::Ok, GatewayId(2)));
    first_gateway
        .appraise_round(&round(number + 2, &[(first, OK), (second, OK)]), 40, 40)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (AttestationState::Ok, GatewayId(1)));
}

#[tokio::test]
async fn a_quarantine_survives_a_restart_and_ends_with_a_proof_at_any_gateway() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier_after_proofs(1).await;
    let [first, _] = DEVICES;
    let mut quarantined = Vec::new();
    for offset in 0..5 {
        let missed = round(number + offset, &[(first, ProofOutcome::Missed)]);
        quarantined.extend(
            verifier
                .appraise_round(&missed, 10, 10)
                .await
                .unwrap()
                .quarantined,
        );
    }
    assert_eq!(quarantined.len(), 1, "reported once: {quarantined:?}");
    assert!(site.is_quarantined(first).await);
    drop(verifier);
    let (mut next_verifier, number) = site.verifier(2).await;
    let appraised = next_verifier
        .appraise_round(&round(number, &[(first, OK)]), 20, 20)
        .await
        .unwrap();
    assert_eq!(ids(&appraised.remediated), [first]);
    assert!(!site.is_quarantined(first).await);
}

/// An attacker with write access to the file but without the key cannot release a device, even one that proves
/// itself.
#[tokio::test]
async fn a_quarantine_that_was_deleted_from_the_file_stays() {
    for statement in [
        "UPDATE device SET quarantined_at_s = NULL, quarantined_reason = NULL, revision = revision + 1",
        "UPDATE device SET quarantined_at_s = 1, revision = revision + 1",
        "PRAGMA foreign_keys = OFF; DELETE FROM device",
    ] {
        let site = Site::new().await;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        let [first, _] = DEVICES;
        for offset in 0..3 {
            let missed = round(number + offset, &[(first, ProofOutcome::Missed)]);
            verifier.appraise_round(&missed, 10, 10).await.unwrap();
        }
        assert_eq!(
            site.state(first).await,
            (AttestationState::Quarantined, GatewayId(1))
        );
        let mut file = site.file().await;
        file.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "{statement} WHERE device_id = {}; UPDATE registry SET revision = revision + 1",
            first.0
        ))))
        .await
        .unwrap();
        file.close().await.unwrap();
        for offset in 3..6 {
            let proven = round(number + offset, &[(first, OK)]);
            let appraised = verifier.appraise_round(&proven, 20, 20).await.unwrap();
            assert_eq!(appraised.remediated, [], "{statement}");
            assert_eq!(
                site.state(first).await,
                (AttestationState::Quarantined, GatewayId(1)),
                "{statement}"
            );
        }
        let feed = site.registry.changes_since(Revision::ZERO, 100).await.unwrap();
        let changes = feed.changes.iter().filter(|change| change.device == first);
        assert!(changes.clone().all(|change| !change.active), "{statement}");
        assert_eq!(feed.damaged.len(), changes.count(), "{statement}");
        assert!(!site.registry.check().await.unwrap().is_empty(), "{statement}");
    }
}

#[tokio::test]
async fn a_round_submitted_twice_counts_once_in_the_registry() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier(1).await;
    let outcome = round(number, &[(DEVICES[0], OK), (DEVICES[1], ProofOutcome::Missed)]);
    verifier.appraise_round(&outcome, 10, 10).await.unwrap();
    verifier.appraise_round(&outcome, 10, 10).await.unwrap();
    let rounds = site.registry.rounds(Some(GatewayId(1)), 10).await.unwrap();
    assert_eq!(rounds.len(), 1);
    assert_eq!((rounds[0].requested, rounds[0].ok, rounds[0].missed), (2, 1, 1));
}

/// Data planes store the keys of two periods by the parity of their numbers.
#[tokio::test]
async fn the_next_period_never_replaces_the_running_one_after_any_pause() {
    let site = Site::new().await;
    let link = site.controller.register(GatewayId(1), 1).await.unwrap();
    let mut verifier = Verifier::open(link).await.unwrap();
    let mut now_s = 1_800_000_000;
    let mut start_period = None;
    for pause in 0..40u64 {
        now_s += 3_600 * (1 + pause % 7);
        let plan_request = PlanRequest {
            start_period,
            period_s: 3_600,
            needs_round_numbers: false,
        };
        let plan = verifier
            .plan(plan_request, now_s, &mut || Some([5; 8]))
            .await
            .unwrap()
            .unwrap();
        let (running, next) = (plan.running.period.0, plan.next.period.0);
        assert!(
            next > running && (next - running) % 2 == 1,
            "{running} then {next}"
        );
        start_period = Some(plan.next.period);
    }
}

#[tokio::test]
async fn a_verifier_of_an_old_registration_decides_nothing() {
    let site = Site::new().await;
    let (mut old, number) = site.verifier(1).await;
    let (_new, _) = site.verifier(1).await;
    assert!(
        old.appraise_round(&round(number, &[(DEVICES[0], OK)]), 10, 10)
            .await
            .is_err()
    );
    assert!(site.registry.appraisal(DEVICES[0]).await.unwrap().is_none());
}

/// The device goes to the other gateway and back within one round. At the first gateway it was compliant in each round.
#[tokio::test]
async fn a_device_that_returned_between_two_rounds_is_listed_at_the_first_gateway_again() {
    let site = Site::new().await;
    let (mut first_gateway, number) = site.verifier(1).await;
    let (mut second_gateway, second_number) = site.verifier(2).await;
    let [first, second] = DEVICES;
    first_gateway
        .appraise_round(&round(number, &[(first, OK), (second, OK)]), 10, 10)
        .await
        .unwrap();
    second_gateway
        .appraise_round(&round(second_number, &[(second, OK)]), 20, 20)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (AttestationState::Ok, GatewayId(2)));
    first_gateway
        .appraise_round(&round(number + 1, &[(first, OK), (second, OK)]), 30, 30)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (AttestationState::Ok, GatewayId(1)));
    // The other gateway no longer challenges the device, and reports nothing about it.
    second_gateway
        .appraise_round(&round(second_number + 1, &[]), 40, 40)
        .await
        .unwrap();
    assert_eq!(site.state(second).await, (AttestationState::Ok, GatewayId(1)));
}

/// The first submission fails, because its round number is not reserved. The decisions about devices are durable
/// nevertheless, but the round record is not.
#[tokio::test]
async fn decisions_before_a_failure_are_returned_with_the_next_success() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier_after_proofs(1).await;
    let [first, _] = DEVICES;
    let more_numbers = PlanRequest {
        start_period: None,
        period_s: 3_600,
        needs_round_numbers: true,
    };
    for offset in 0..2 {
        let missed = round(number + offset, &[(first, ProofOutcome::Missed)]);
        verifier.appraise_round(&missed, 10, 10).await.unwrap();
    }
    let unreserved = number + 256;
    let third = round(unreserved, &[(first, ProofOutcome::Missed)]);
    verifier.appraise_round(&third, 20, 20).await.unwrap_err();
    assert!(site.registry.get(first).await.unwrap().quarantine.is_some());
    verifier
        .plan(more_numbers, 1, &mut || Some([5; 8]))
        .await
        .unwrap();
    let repeated = verifier.appraise_round(&third, 20, 20).await.unwrap();
    assert_eq!(repeated.quarantined.len(), 1);
    let appraisal = site.registry.appraisal(first).await.unwrap().unwrap();
    assert_eq!(
        (appraisal.state, appraisal.since_s),
        (AttestationState::Quarantined, 20)
    );

    let fourth = round(unreserved + 256, &[(first, OK)]);
    verifier.appraise_round(&fourth, 30, 30).await.unwrap_err();
    assert!(site.registry.get(first).await.unwrap().quarantine.is_none());
    verifier
        .plan(more_numbers, 1, &mut || Some([5; 8]))
        .await
        .unwrap();
    let repeated = verifier.appraise_round(&fourth, 30, 30).await.unwrap();
    assert_eq!(ids(&repeated.remediated), [first]);
    let second_repeat = verifier.appraise_round(&fourth, 30, 30).await.unwrap();
    assert_eq!(second_repeat, repeated, "the gateway may have lost the response");
    let fifth = round(unreserved + 257, &[(first, OK)]);
    let repeated = verifier.appraise_round(&fifth, 40, 40).await.unwrap();
    assert_eq!(
        (repeated.quarantined, repeated.remediated),
        (vec![], vec![]),
        "the decisions were returned before"
    );
}

/// This holds also for the verifier of the gateway's next registration.
#[tokio::test]
async fn a_missed_proof_submitted_twice_counts_once() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier_after_proofs(1).await;
    let [first, _] = DEVICES;
    let missed = round(number, &[(first, ProofOutcome::Missed)]);
    for _ in 0..4 {
        let decided = verifier.appraise_round(&missed, 10, 10).await.unwrap();
        assert_eq!(decided.quarantined, []);
    }
    let (mut next_verifier, _) = site.verifier(1).await;
    for _ in 0..4 {
        next_verifier.appraise_round(&missed, 10, 10).await.unwrap();
    }
    let appraisal = site.registry.appraisal(first).await.unwrap().unwrap();
    assert_eq!(appraisal.missed_rounds.len(), 1, "{appraisal:?}");
}

/// Only a round that started after the gateway had read the quarantine ends the quarantine, whatever the clock shows.
#[tokio::test]
async fn a_clock_change_neither_prolongs_nor_ends_a_quarantine() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    let (mut verifier, number) = site.verifier_after_proofs(1).await;
    let rounds = number..number + 3;
    assert_eq!(miss_rounds(&mut verifier, rounds, first, 1_000).await, [first]);
    let old = RoundOutcome {
        feed_revision: Revision(0),
        ..round(number + 3, &[(first, OK)])
    };
    verifier.appraise_round(&old, 9_000, 9_000).await.unwrap();
    assert!(
        site.is_quarantined(first).await,
        "the round started before the quarantine was read"
    );
    let proven = round(number + 4, &[(first, OK)]);
    let appraisal = verifier.appraise_round(&proven, 20, 20).await.unwrap();
    assert_eq!(ids(&appraisal.remediated), [first], "the clock was set back");
}

#[tokio::test]
async fn a_device_that_is_not_released_is_not_reported_as_released() {
    let site = Site::new().await;
    let (mut verifier, number) = site.verifier_after_proofs(1).await;
    let [first, _] = DEVICES;
    for offset in 0..4 {
        let missed = round(number + offset, &[(first, ProofOutcome::Missed)]);
        verifier.appraise_round(&missed, 10, 10).await.unwrap();
    }
    // An attacker without the key edits the file: no revision records the edit.
    let mut file = site.file().await;
    sqlx::query("UPDATE device SET name = 'another' WHERE device_id = 1")
        .execute(&mut file)
        .await
        .unwrap();
    let appraisal = verifier
        .appraise_round(&round(number + 4, &[(first, OK)]), 20, 20)
        .await
        .unwrap();
    assert_eq!(appraisal.remediated, []);
    assert_eq!(site.state(first).await.0, AttestationState::Quarantined);
}

/// Devices are enrolled before they get their keys.
#[tokio::test]
async fn a_device_that_never_proved_itself_is_not_quarantined_for_missed_proofs() {
    let site = Site::new().await;
    let [first, second] = DEVICES;
    let (mut verifier, number) = site.verifier(1).await;
    assert!(site.registry.appraisal(first).await.unwrap().is_none());
    let rounds = number..number + 9;
    assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, []);
    assert_eq!(
        site.state(first).await,
        (AttestationState::Unproven, GatewayId(1))
    );
    // The gateway's next process and another gateway do not quarantine the device either.
    let (mut next_verifier, number) = site.verifier(1).await;
    let rounds = number..number + 9;
    assert_eq!(miss_rounds(&mut next_verifier, rounds, first, 20).await, []);
    let (mut other_gateway, other_number) = site.verifier(2).await;
    let rounds = other_number..other_number + 9;
    assert_eq!(miss_rounds(&mut other_gateway, rounds, first, 30).await, []);
    assert_eq!(
        site.state(first).await,
        (AttestationState::Unproven, GatewayId(2))
    );
    // Proofs that were missed before the first proof do not count after the first proof.
    let proven = round(number + 9, &[(first, OK)]);
    next_verifier.appraise_round(&proven, 40, 40).await.unwrap();
    let rounds = number + 10..number + 12;
    assert_eq!(miss_rounds(&mut next_verifier, rounds, first, 50).await, []);
    let rounds = number + 12..number + 15;
    assert_eq!(miss_rounds(&mut next_verifier, rounds, first, 50).await, [first]);
    // The device has proven itself at the first gateway. The other gateway read the history before this proof.
    site.registry.release(first).await.unwrap();
    let rounds = other_number + 9..other_number + 14;
    assert_eq!(miss_rounds(&mut other_gateway, rounds, first, 60).await, [first]);
    assert!(!site.is_quarantined(second).await);
}

/// An unproven state is authenticated, so write access to the file excuses no missed proofs.
#[tokio::test]
async fn missed_proofs_count_without_an_authentic_record() {
    for statement in [
        "DELETE FROM appraisal",
        "UPDATE appraisal SET since_s = since_s + 1",
        "UPDATE appraisal SET state = 5",
    ] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        drop(site.verifier_after_proofs(1).await);
        let mut file = site.file().await;
        file.execute(statement).await.unwrap();
        let (mut verifier, number) = site.verifier(1).await;
        let rounds = number..number + 5;
        assert_eq!(
            miss_rounds(&mut verifier, rounds, first, 10).await,
            [first],
            "{statement}"
        );
    }
}

/// A round is decided once, even if it is submitted again after a failure: in between, the operator released the device.
#[tokio::test]
async fn a_device_released_before_its_quarantine_is_returned_is_not_quarantined_again() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    let (mut verifier, number) = site.verifier_after_proofs(1).await;
    let rounds = number..number + 2;
    assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, []);
    let unreserved = number + 300;
    let third = round(unreserved, &[(first, ProofOutcome::Missed)]);
    verifier.appraise_round(&third, 20, 20).await.unwrap_err();
    assert!(site.is_quarantined(first).await);
    let release_revision = site.registry.release(first).await.unwrap();
    let more_numbers = PlanRequest {
        start_period: None,
        period_s: 3_600,
        needs_round_numbers: true,
    };
    verifier
        .plan(more_numbers, 1, &mut || Some([5; 8]))
        .await
        .unwrap();
    let appraisal = verifier.appraise_round(&third, 20, 30).await.unwrap();
    assert!(!site.is_quarantined(first).await);
    let [quarantined] = &appraisal.quarantined[..] else {
        panic!("{appraisal:?}")
    };
    assert!(quarantined.device == first && quarantined.revision < release_revision);
    // After the release, the device's missed proofs count from zero.
    assert_eq!(site.state(first).await.0, AttestationState::Missed);
    let rounds = unreserved + 1..unreserved + 3;
    assert_eq!(miss_rounds(&mut verifier, rounds, first, 40).await, []);
    let rounds = unreserved + 3..unreserved + 4;
    assert_eq!(miss_rounds(&mut verifier, rounds, first, 40).await, [first]);
}

/// An attacker with write access to the file cannot release a device by damaging its key, and cannot keep a device in
/// quarantine by restoring the revision counter.
#[tokio::test]
async fn edits_of_the_file_neither_release_nor_quarantine() {
    for (statement, is_released) in [
        ("UPDATE prover SET port = port + 1", false),
        ("DELETE FROM prover", false),
        ("UPDATE registry SET revision = revision - 1", true),
    ] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        let rounds = number..number + 3;
        assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, [first]);
        site.file().await.execute(statement).await.unwrap();
        let proven = RoundOutcome {
            feed_revision: site.registry.revision().await.unwrap(),
            ..round(number + 3, &[(first, OK)])
        };
        let appraisal = verifier.appraise_round(&proven, 20, 20).await.unwrap();
        assert_eq!(
            ids(&appraisal.remediated).contains(&first),
            is_released,
            "{statement}"
        );
        assert_eq!(site.is_quarantined(first).await, !is_released, "{statement}");
    }
}

/// An attacker with write access to the file restores the revision counter by which gateways read changes.
#[tokio::test]
async fn a_restored_change_counter_hides_no_quarantine() {
    let site = Site::new().await;
    let link = site.controller.register(GatewayId(1), 1).await.unwrap();
    let mut read_revision = link
        .changes_since(Revision::ZERO, None)
        .await
        .unwrap()
        .up_to_revision;
    let mut file = site.file().await;
    file.execute("UPDATE registry SET revision = 0").await.unwrap();
    for device in DEVICES {
        let suspect = QuarantineRequest {
            device,
            enrolled_at: FIRST_ENROLLMENT,
            reason: String::new(),
        };
        site.registry
            .quarantine(link.fencing_token(), &[suspect], 9)
            .await
            .unwrap();
        let feed = link.changes_since(read_revision, None).await.unwrap();
        let is_reported = |change: &linewarden_types::Change| change.device == device && !change.active;
        assert!(feed.changes.iter().any(is_reported), "{feed:?}");
        read_revision = feed.up_to_revision;
    }
}

/// An attacker with write access to the file restores the revision counter of provers and groups, before devices are
/// enrolled.
#[tokio::test]
async fn a_restored_prover_counter_hides_no_prover() {
    let site = Site::new().await;
    let link = site.controller.register(GatewayId(1), 1).await.unwrap();
    let mut verifier = Verifier::open(link.clone()).await.unwrap();
    let mut file = site.file().await;
    let plan = async |verifier: &mut Verifier| {
        let plan = verifier
            .plan(PlanRequest::default(), 1, &mut || Some([5; 8]))
            .await;
        plan.unwrap().unwrap()
    };
    let before = plan(&mut verifier).await;
    let mut read_revision = link.prover_ids(0).await.unwrap().up_to_revision;
    assert_eq!(read_revision, before.revision);
    let mut references = before.reference_digest;
    for (count, device) in [(0, DEVICES[0]), (1, DEVICES[1])] {
        verifier.provers(before.running, 0).await.unwrap();
        let newest = plan(&mut verifier).await;
        assert_eq!(newest.reference_digest, references, "nothing has changed");
        let statement = format!("UPDATE registry SET attest_revision = {count}");
        file.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
        site.registry.enroll_prover(prover(device), 9).await.unwrap();
        // A gateway that does not attest.
        let page = link.prover_ids(read_revision).await.unwrap();
        assert!(page.provers.contains(&device), "{page:?}");
        read_revision = page.up_to_revision;
        // A gateway that attests gets all keys again, and no revision is used twice.
        let after = plan(&mut verifier).await;
        assert_ne!(after.reference_digest, references);
        references = after.reference_digest;
        let provers = verifier.provers(after.running, 0).await.unwrap();
        let ids = provers.provisions.iter().map(|provision| provision.device);
        assert_eq!(ids.collect::<HashSet<_>>(), HashSet::from(DEVICES));
        let revision = site.registry.enroll_prover(prover(DEVICES[0]), 9).await.unwrap();
        assert!(revision > newest.revision, "{revision} after {}", newest.revision);
    }
    // A restored older copy of the whole file is reported once.
    let newest = plan(&mut verifier).await;
    verifier.provers(newest.running, 0).await.unwrap();
    file.execute(sqlx::raw_sql(
        "UPDATE registry SET attest_revision = 0; DELETE FROM prover",
    ))
    .await
    .unwrap();
    let after = plan(&mut verifier).await;
    assert!(after.revision < newest.revision && after.reference_digest != newest.reference_digest);
    assert_eq!(plan(&mut verifier).await.reference_digest, after.reference_digest);
}
