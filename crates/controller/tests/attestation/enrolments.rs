//! Devices that are enrolled anew, moved or removed while rounds go on.

use linewarden_controller::attest::{PlanWish, Seen, Verifier};
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{EnrolledAt, State};
use sqlx::Executor as _;

use super::site::{DEVICES, OK, Site, anew, ids, keep_silent, keep_silent_as, prover, round, round_of};

/// Whatever the clock says meanwhile.
#[tokio::test]
async fn an_enrolment_anew_counts_from_itself() {
    for (at_s, anew) in [(20, EnrolledAt(20)), (0, EnrolledAt(2)), (1, EnrolledAt(2))] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        let (mut verifier, number) = site.proven(1).await;
        let rounds = number..number + 2;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, []);
        site.enrol_anew(&mut verifier, first, at_s).await;
        // By the key of before, in a round that had begun.
        for (rounds, seen) in [(2, OK), (3, Seen::Silent)] {
            let old = round(number + rounds, &[(first, seen)]);
            verifier.appraise(&old, 23, 23).await.unwrap();
            assert!(site.registry.appraisal(first).await.unwrap().is_none());
        }
        let rounds = number + 4..number + 12;
        assert_eq!(keep_silent_as(anew, &mut verifier, rounds, first, 30).await, []);
        assert_eq!(site.state(first).await.0, State::Unproven);
        let proven = round_of(anew, number + 12, &[(first, OK)]);
        verifier.appraise(&proven, at_s, at_s).await.unwrap();
        assert_eq!(site.state(first).await.0, State::Ok);
        let rounds = number + 13..number + 16;
        assert_eq!(
            keep_silent_as(anew, &mut verifier, rounds, first, 50).await,
            [first]
        );
    }
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
    // In mid-round it was asked where it was before.
    let old = round(number + 1, &[(first, Seen::Silent), (second, OK)]);
    verifier.appraise(&old, 23, 23).await.unwrap();
    for device in DEVICES {
        assert!(site.registry.appraisal(device).await.unwrap().is_none());
    }
    let moved = EnrolledAt(20);
    let rounds = number + 2..number + 4;
    assert_eq!(keep_silent_as(moved, &mut verifier, rounds, first, 30).await, []);
    let rounds = number + 4..number + 5;
    assert_eq!(
        keep_silent_as(moved, &mut verifier, rounds, first, 30).await,
        [first]
    );
    let rounds = number + 5..number + 12;
    assert_eq!(
        keep_silent_as(moved, &mut verifier, rounds, second, 30).await,
        [],
        "it never proved"
    );
}

/// A round that had begun is decided about before the verifier hears of the enrolment.
#[tokio::test]
async fn a_round_of_before_an_enrolment_does_not_speak_of_it() {
    for at_s in [20, 0] {
        let site = Site::new().await;
        let [first, second] = DEVICES;
        let (mut verifier, number) = site.proven(1).await;
        site.registry.enrol_prover(anew(first), at_s).await.unwrap();
        let late = Seen::Late(Current);
        for (rounds, of_second, results) in [(0, OK, 0), (1, late, 1)] {
            let old = round(number + rounds, &[(first, late), (second, of_second)]);
            let told = verifier.appraise(&old, 23, 23).await.unwrap();
            assert_eq!(told.results.len(), results, "only of the other is there news");
        }
        assert!(site.registry.appraisal(first).await.unwrap().is_none());
        let (mut next, number) = site.verifier(1).await;
        let anew = site.registry.prover(first).await.unwrap().unwrap().enrolled_at();
        let rounds = number..number + 9;
        assert_eq!(keep_silent_as(anew, &mut next, rounds, first, 30).await, []);
    }
}

/// Another enrolment, or none any more, of which no verifier hears.
async fn leave(site: &Site, device: DeviceId, is_removed: bool) {
    match is_removed {
        true => assert!(site.registry.remove_prover(device).await.unwrap()),
        false => drop(site.registry.enrol_prover(anew(device), 0).await.unwrap()),
    }
}

/// The device that was silent is another one now, or proves by another key, or nothing at all.
#[tokio::test]
async fn no_round_of_before_an_enrolment_shuts_out_or_lets_in() {
    let [first, _] = DEVICES;
    for is_removed in [false, true] {
        let site = Site::new().await;
        let (mut verifier, number) = site.proven(1).await;
        let rounds = number..number + 2;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, []);
        leave(&site, first, is_removed).await;
        let rounds = number + 2..number + 5;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, []);
        assert!(!site.is_out(first).await);

        let site = Site::new().await;
        let (mut verifier, number) = site.proven(1).await;
        let rounds = number..number + 3;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, [first]);
        leave(&site, first, is_removed).await;
        let proven = round(number + 3, &[(first, OK)]);
        let told = verifier.appraise(&proven, 20, 20).await.unwrap();
        assert_eq!(told.readmitted, []);
        assert!(site.is_out(first).await, "until it proves what it is now");
    }
}

/// It was read how all stood; then one was enrolled anew, of which the gateway gets the keys.
#[tokio::test]
async fn who_is_enrolled_anew_while_a_gateway_starts_is_new() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    drop(site.proven(1).await);
    let link = site.controller.connect(GatewayId(1), 1).await.unwrap();
    let mut verifier = Verifier::open(link).await.unwrap();
    site.enrol_anew(&mut verifier, first, 0).await;
    let numbers = PlanWish {
        numbers: true,
        ..PlanWish::default()
    };
    let plan = verifier.plan(numbers, 1, &mut || Some([5; 8])).await;
    let number = plan.unwrap().unwrap().rounds.start;
    let anew = EnrolledAt(2);
    let rounds = number..number + 9;
    assert_eq!(keep_silent_as(anew, &mut verifier, rounds, first, 30).await, []);
    assert_eq!(site.state(first).await.0, State::Unproven);
}

/// Who can write the file puts back the row of an enrolment before, or spoils it, or deletes it: the gateway knows better.
#[tokio::test]
async fn an_enrolment_that_was_put_back_excuses_no_silence() {
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
        site.enrol_anew(&mut verifier, first, 20).await;
        let anew = EnrolledAt(20);
        let proven = round_of(anew, number, &[(first, OK)]);
        verifier.appraise(&proven, 30, 30).await.unwrap();
        file.execute(sqlx::raw_sql(statement)).await.unwrap();
        let rounds = number + 1..number + 4;
        assert_eq!(
            keep_silent_as(anew, &mut verifier, rounds, first, 40).await,
            [first],
            "{statement}"
        );
        assert!(site.is_out(first).await, "{statement}");
    }
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
        let anew = EnrolledAt(20);
        assert!(site.is_out(first).await);
        if lets_in {
            site.registry.readmit(first).await.unwrap();
        } else {
            let rounds = number + 3..number + 6;
            assert_eq!(keep_silent_as(anew, &mut verifier, rounds, first, 30).await, []);
            assert!(site.is_out(first).await);
            site.registry.readmit(first).await.unwrap();
        }
        let rounds = number + 6..number + 9;
        assert_eq!(
            keep_silent_as(anew, &mut verifier, rounds, first, 40).await,
            [first]
        );
        let proven = round_of(anew, number + 9, &[(first, OK)]);
        let told = verifier.appraise(&proven, 50, 50).await.unwrap();
        assert_eq!(ids(&told.readmitted), [first]);
        assert!(!site.is_out(first).await);
    }
}
