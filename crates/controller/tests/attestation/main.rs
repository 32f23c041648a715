//! The verifier of a gateway over a real registry: what rounds bring about, and what survives it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod enrolments;
mod site;

use std::collections::HashSet;

use linewarden_controller::attest::{PlanWish, RoundOutcome, Seen, Verifier};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Revision, State, Suspect};
use sqlx::{Connection as _, Executor as _};

use self::site::{DEVICES, FIRST, OK, Site, ids, keep_silent, prover, round};

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
        let mut shell = site.file().await;
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
    let again = verifier.appraise(&fourth, 30, 30).await.unwrap();
    assert_eq!(again, told, "the answer was lost");
    let fifth = round(unreserved + 257, &[(first, OK)]);
    let told = verifier.appraise(&fifth, 40, 40).await.unwrap();
    assert_eq!((told.quarantined, told.readmitted), (vec![], vec![]), "once");
}

/// Also by a verifier that is begun anew while its gateway goes on.
#[tokio::test]
async fn a_silence_that_is_told_again_counts_once() {
    let site = Site::new().await;
    let (mut verifier, number) = site.proven(1).await;
    let [first, _] = DEVICES;
    let silent = round(number, &[(first, Seen::Silent)]);
    for _ in 0..4 {
        let told = verifier.appraise(&silent, 10, 10).await.unwrap();
        assert_eq!(told.quarantined, []);
    }
    let (mut next, _) = site.verifier(1).await;
    for _ in 0..4 {
        next.appraise(&silent, 10, 10).await.unwrap();
    }
    let appraisal = site.registry.appraisal(first).await.unwrap().unwrap();
    assert_eq!(appraisal.silences.len(), 1, "{appraisal:?}");
}

/// Only a round that began when its gateway had heard of the quarantine ends it, whatever clocks say.
#[tokio::test]
async fn a_clock_that_is_set_keeps_nobody_in_quarantine_and_lets_nobody_in() {
    let site = Site::new().await;
    let [first, _] = DEVICES;
    let (mut verifier, number) = site.proven(1).await;
    let rounds = number..number + 3;
    assert_eq!(keep_silent(&mut verifier, rounds, first, 1_000).await, [first]);
    let old = RoundOutcome {
        heard: Revision(0),
        ..round(number + 3, &[(first, OK)])
    };
    verifier.appraise(&old, 9_000, 9_000).await.unwrap();
    assert!(site.is_out(first).await, "the round began before");
    let proven = round(number + 4, &[(first, OK)]);
    let told = verifier.appraise(&proven, 20, 20).await.unwrap();
    assert_eq!(ids(&told.readmitted), [first], "the clock was set back");
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
    let mut file = site.file().await;
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
        let mut file = site.file().await;
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

/// Who can write the file lets nobody in by spoiling what says by which key it is to prove itself, and keeps nobody out by putting back
/// the count of changes.
#[tokio::test]
async fn what_is_in_the_file_neither_lets_in_nor_keeps_out() {
    for (statement, gets_in) in [
        ("UPDATE prover SET port = port + 1", false),
        ("DELETE FROM prover", false),
        ("UPDATE registry SET revision = revision - 1", true),
    ] {
        let site = Site::new().await;
        let [first, _] = DEVICES;
        let (mut verifier, number) = site.proven(1).await;
        let rounds = number..number + 3;
        assert_eq!(keep_silent(&mut verifier, rounds, first, 10).await, [first]);
        site.file().await.execute(statement).await.unwrap();
        let proven = RoundOutcome {
            heard: site.registry.revision().await.unwrap(),
            ..round(number + 3, &[(first, OK)])
        };
        let told = verifier.appraise(&proven, 20, 20).await.unwrap();
        assert_eq!(ids(&told.readmitted).contains(&first), gets_in, "{statement}");
        assert_eq!(site.is_out(first).await, !gets_in, "{statement}");
    }
}

/// Who can write the file puts back the count by which gateways ask for changes.
#[tokio::test]
async fn a_count_of_changes_that_was_put_back_hides_no_quarantine() {
    let site = Site::new().await;
    let link = site.controller.connect(GatewayId(1), 1).await.unwrap();
    let mut heard = link.changes(Revision::ZERO, None).await.unwrap().upto;
    let mut file = site.file().await;
    file.execute("UPDATE registry SET revision = 0").await.unwrap();
    for device in DEVICES {
        let suspect = Suspect {
            device,
            enrolled_at: FIRST,
            reason: String::new(),
        };
        site.registry.quarantine(&[suspect], 9).await.unwrap();
        let told = link.changes(heard, None).await.unwrap();
        let is_told = |told: &linewarden_registry::Change| told.device == device && !told.active;
        assert!(told.changes.iter().any(is_told), "{told:?}");
        heard = told.upto;
    }
}

/// Who can write the file puts back the count of provers and groups, too, before others are enrolled.
#[tokio::test]
async fn a_count_of_provers_that_was_put_back_hides_no_prover() {
    let site = Site::new().await;
    let link = site.controller.connect(GatewayId(1), 1).await.unwrap();
    let mut verifier = Verifier::open(link.clone()).await.unwrap();
    let mut file = site.file().await;
    let plan = async |verifier: &mut Verifier| {
        let plan = verifier.plan(PlanWish::default(), 1, &mut || Some([5; 8])).await;
        plan.unwrap().unwrap()
    };
    let before = plan(&mut verifier).await;
    let mut heard = link.prover_ids(0).await.unwrap().upto;
    assert_eq!(heard, before.revision);
    let mut references = before.references;
    for (count, device) in [(0, DEVICES[0]), (1, DEVICES[1])] {
        verifier.provers(before.running, 0).await.unwrap();
        let newest = plan(&mut verifier).await;
        assert_eq!(newest.references, references, "nothing has happened");
        let statement = format!("UPDATE registry SET attest_revision = {count}");
        file.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
        site.registry.enrol_prover(prover(device), 9).await.unwrap();
        // A gateway that attests nobody.
        let told = link.prover_ids(heard).await.unwrap();
        assert!(told.provers.contains(&device), "{told:?}");
        heard = told.upto;
        // One that does gets all keys anew, and no number comes again.
        let after = plan(&mut verifier).await;
        assert_ne!(after.references, references);
        references = after.references;
        let provers = verifier.provers(after.running, 0).await.unwrap();
        let ids = provers.provisions.iter().map(|provision| provision.device);
        assert_eq!(ids.collect::<HashSet<_>>(), HashSet::from(DEVICES));
        let again = site.registry.enrol_prover(prover(DEVICES[0]), 9).await.unwrap();
        assert!(again > newest.revision, "{again} after {}", newest.revision);
    } // An older copy of the whole file: told once.
    let newest = plan(&mut verifier).await;
    verifier.provers(newest.running, 0).await.unwrap();
    file.execute(sqlx::raw_sql(
        "UPDATE registry SET attest_revision = 0; DELETE FROM prover",
    ))
    .await
    .unwrap();
    let after = plan(&mut verifier).await;
    assert!(after.revision < newest.revision && after.references != newest.references);
    assert_eq!(plan(&mut verifier).await.references, after.references);
}
