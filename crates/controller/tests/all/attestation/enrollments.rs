//! Devices that are enrolled again, get another address, or are removed during rounds.

use linewarden_controller::attest::Verifier;
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::AttestationState;
use linewarden_types::{EnrollmentTime, PlanRequest, ProofOutcome};
use sqlx::Executor as _;

use super::site::{
    DEVICES, OK, Site, ids, miss_rounds, miss_rounds_of_enrollment, prover, re_enrolled_prover, round,
    round_of,
};

/// This holds at any time of the wall clock, even if the clock was set back.
#[tokio::test]
async fn a_new_enrollment_starts_a_new_history() {
    for (at_s, enrollment) in [
        (20, EnrollmentTime(20)),
        (0, EnrollmentTime(2)),
        (1, EnrollmentTime(2)),
    ] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        let rounds = number..number + 2;
        assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, []);
        site.enroll_again(&mut verifier, first, at_s).await;
        // The device was challenged with the key of the earlier enrollment, in a round that had started before.
        for (offset, outcome) in [(2, OK), (3, ProofOutcome::Missed)] {
            let old = round(number + offset, &[(first, outcome)]);
            verifier.appraise_round(&old, 23, 23).await.unwrap();
            assert!(site.registry.appraisal(first).await.unwrap().is_none());
        }
        let rounds = number + 4..number + 12;
        assert_eq!(
            miss_rounds_of_enrollment(enrollment, &mut verifier, rounds, first, 30).await,
            []
        );
        assert_eq!(site.state(first).await.0, AttestationState::Unproven);
        let proven = round_of(enrollment, number + 12, &[(first, OK)]);
        verifier.appraise_round(&proven, at_s, at_s).await.unwrap();
        assert_eq!(site.state(first).await.0, AttestationState::Ok);
        let rounds = number + 13..number + 16;
        assert_eq!(
            miss_rounds_of_enrollment(enrollment, &mut verifier, rounds, first, 50).await,
            [first]
        );
    }
}

/// Otherwise, an operator who moves a device without proofs to another address would excuse its missed proofs.
#[tokio::test]
async fn a_device_with_a_new_address_and_the_same_key_keeps_its_history() {
    let site = Site::new().await;
    let [first, second] = DEVICES;
    let (mut verifier, number) = site.verifier(1).await;
    let proven = round(number, &[(first, OK)]);
    verifier.appraise_round(&proven, 5, 5).await.unwrap();
    for device in DEVICES {
        site.enroll(&mut verifier, prover(device), 20).await;
    }
    // During the round each device was challenged at its previous address.
    let old = round(number + 1, &[(first, ProofOutcome::Missed), (second, OK)]);
    verifier.appraise_round(&old, 23, 23).await.unwrap();
    for device in DEVICES {
        assert!(site.registry.appraisal(device).await.unwrap().is_none());
    }
    let new_enrollment = EnrollmentTime(20);
    let rounds = number + 2..number + 4;
    assert_eq!(
        miss_rounds_of_enrollment(new_enrollment, &mut verifier, rounds, first, 30).await,
        []
    );
    let rounds = number + 4..number + 5;
    assert_eq!(
        miss_rounds_of_enrollment(new_enrollment, &mut verifier, rounds, first, 30).await,
        [first]
    );
    let rounds = number + 5..number + 12;
    assert_eq!(
        miss_rounds_of_enrollment(new_enrollment, &mut verifier, rounds, second, 30).await,
        [],
        "no proof was ever received"
    );
}

/// A round that started before a new enrollment is appraised before the verifier reads this enrollment.
#[tokio::test]
async fn a_round_before_an_enrollment_does_not_change_its_history() {
    for at_s in [20, 0] {
        let site = Site::new().await;
        let [first, second] = DEVICES;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        site.registry
            .enroll_prover(re_enrolled_prover(first), at_s)
            .await
            .unwrap();
        let late = ProofOutcome::Late(Current);
        for (offset, of_second, results) in [(0, OK, 0), (1, late, 1)] {
            let old = round(number + offset, &[(first, late), (second, of_second)]);
            let appraisal = verifier.appraise_round(&old, 23, 23).await.unwrap();
            assert_eq!(
                appraisal.attestation_results.len(),
                results,
                "only the other device has changed"
            );
        }
        assert!(site.registry.appraisal(first).await.unwrap().is_none());
        let (mut next_verifier, number) = site.verifier(1).await;
        let enrollment = site.registry.prover(first).await.unwrap().unwrap().enrolled_at();
        let rounds = number..number + 9;
        assert_eq!(
            miss_rounds_of_enrollment(enrollment, &mut next_verifier, rounds, first, 30).await,
            []
        );
    }
}

/// Removes a device, or enrolls it again, without a read by the verifier.
async fn remove_or_re_enroll(site: &Site, device: DeviceId, is_removed: bool) {
    match is_removed {
        true => assert!(site.registry.remove_prover(device).await.unwrap()),
        false => drop(
            site.registry
                .enroll_prover(re_enrolled_prover(device), 0)
                .await
                .unwrap(),
        ),
    }
}

/// The device was enrolled again with another key, or is no longer a prover.
#[tokio::test]
async fn a_round_before_an_enrollment_neither_quarantines_nor_releases() {
    let [first, _] = DEVICES;
    for is_removed in [false, true] {
        let site = Site::new().await;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        let rounds = number..number + 2;
        assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, []);
        remove_or_re_enroll(&site, first, is_removed).await;
        let rounds = number + 2..number + 5;
        assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, []);
        assert!(!site.is_quarantined(first).await);

        let site = Site::new().await;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        let rounds = number..number + 3;
        assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, [first]);
        remove_or_re_enroll(&site, first, is_removed).await;
        let proven = round(number + 3, &[(first, OK)]);
        let appraisal = verifier.appraise_round(&proven, 20, 20).await.unwrap();
        assert_eq!(appraisal.remediated, []);
        assert!(
            site.is_quarantined(first).await,
            "until the device proves its configuration"
        );
    }
}

/// The verifier has read the histories. Then a device is enrolled again, and the gateway gets the device's keys.
#[tokio::test]
async fn a_device_enrolled_during_a_gateway_start_has_a_new_history() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    drop(site.verifier_after_proofs(1).await);
    let link = site.controller.register(GatewayId(1), 1).await.unwrap();
    let mut verifier = Verifier::open(link).await.unwrap();
    site.enroll_again(&mut verifier, first, 0).await;
    let numbers = PlanRequest {
        needs_round_numbers: true,
        ..PlanRequest::default()
    };
    let plan = verifier.plan(numbers, 1, &mut || Some([5; 8])).await;
    let number = plan.unwrap().unwrap().rounds.start;
    let enrollment = EnrollmentTime(2);
    let rounds = number..number + 9;
    assert_eq!(
        miss_rounds_of_enrollment(enrollment, &mut verifier, rounds, first, 30).await,
        []
    );
    assert_eq!(site.state(first).await.0, AttestationState::Unproven);
}

/// An attacker with write access to the file restores the record of an earlier enrollment, or damages or deletes the
/// record. The verifier has the current history in memory.
#[tokio::test]
async fn a_restored_enrollment_record_excuses_no_missed_proof() {
    for statement in [
        "UPDATE prover SET enrolled_at_s = enrolled_at_s + 1",
        "UPDATE prover SET removed = 1",
        "DELETE FROM prover",
        "REPLACE INTO prover SELECT * FROM older",
        "DELETE FROM appraisal; REPLACE INTO prover SELECT * FROM older",
    ] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        let mut file = site.file().await;
        file.execute("CREATE TEMP TABLE older AS SELECT * FROM prover")
            .await
            .unwrap();
        let (mut verifier, number) = site.verifier(1).await;
        site.enroll_again(&mut verifier, first, 20).await;
        let enrollment = EnrollmentTime(20);
        let proven = round_of(enrollment, number, &[(first, OK)]);
        verifier.appraise_round(&proven, 30, 30).await.unwrap();
        file.execute(sqlx::raw_sql(statement)).await.unwrap();
        let rounds = number + 1..number + 4;
        assert_eq!(
            miss_rounds_of_enrollment(enrollment, &mut verifier, rounds, first, 40).await,
            [first],
            "{statement}"
        );
        assert!(site.is_quarantined(first).await, "{statement}");
    }
}

/// A new enrollment does not end a quarantine, and gives no new history after the operator has released the device.
#[tokio::test]
async fn a_device_enrolled_again_in_quarantine_stays_there_until_it_proves_itself() {
    let [first, _] = DEVICES;
    for is_released_first in [false, true] {
        let site = Site::new().await;
        let (mut verifier, number) = site.verifier_after_proofs(1).await;
        let rounds = number..number + 3;
        assert_eq!(miss_rounds(&mut verifier, rounds, first, 10).await, [first]);
        site.enroll_again(&mut verifier, first, 20).await;
        let enrollment = EnrollmentTime(20);
        assert!(site.is_quarantined(first).await);
        if is_released_first {
            site.registry.release(first).await.unwrap();
        } else {
            let rounds = number + 3..number + 6;
            assert_eq!(
                miss_rounds_of_enrollment(enrollment, &mut verifier, rounds, first, 30).await,
                []
            );
            assert!(site.is_quarantined(first).await);
            site.registry.release(first).await.unwrap();
        }
        let rounds = number + 6..number + 9;
        assert_eq!(
            miss_rounds_of_enrollment(enrollment, &mut verifier, rounds, first, 40).await,
            [first]
        );
        let proven = round_of(enrollment, number + 9, &[(first, OK)]);
        let appraisal = verifier.appraise_round(&proven, 50, 50).await.unwrap();
        assert_eq!(ids(&appraisal.remediated), [first]);
        assert!(!site.is_quarantined(first).await);
    }
}
