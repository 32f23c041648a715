//! Whoever can write the file but lacks the master key changes nothing of attestation unseen, and spoils only what he
//! touches.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::support::attestation::{NOW_S, appraisal, group, name, prover, round, told};
use crate::support::{fleet_file, gateway, open, sql};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{LOST_NUMBERS, Registry, RegistryError};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

const PROVERS: u64 = 20;

fn document(id: u64, number: u8) -> Vec<u8> {
    [&id.to_be_bytes()[..], &[0x80 + number; 300]].concat()
}

fn salt(period: u8) -> [u8; 8] {
    [0x70 + period; 8]
}

/// Provers 1 to 20 of one group, each with an appraisal and two documents; two periods, of which one has begun.
async fn attested_file() -> (TempDir, PathBuf) {
    let (directory, path) = fleet_file().await;
    let registry = open(&path).await.unwrap();
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.set_group(&group("fans"), NOW_S).await.unwrap();
    for id in 1..=PROVERS {
        registry.enrol_prover(prover(id), NOW_S).await.unwrap();
        for number in [1, 2] {
            registry
                .put_evidence(DeviceId(id), &document(id, number), NOW_S + u64::from(number))
                .await
                .unwrap();
        }
    }
    registry.draw_period(None, salt(1), NOW_S).await.unwrap();
    registry.begin_period(Period(1), NOW_S).await.unwrap();
    registry
        .draw_period(Some(Period(1)), salt(2), NOW_S)
        .await
        .unwrap();
    let fence = gateway(&registry).await;
    registry.reserve_rounds(&fence, 50, 0).await.unwrap();
    let told = told((1..=PROVERS).map(|id| appraisal(id, 7)));
    registry.record_round(&fence, &round(1, 7), &told).await.unwrap();
    registry.close().await;
    (directory, path)
}

/// Reads everything; what comes out must be what was put in. How many answers were errors, or left something out.
async fn examine(registry: &Registry) -> usize {
    let mut missing = 0;
    for id in 1..=PROVERS {
        let device = DeviceId(id);
        match registry.prover(device).await {
            Ok(Some(found)) => {
                assert_eq!(found.key.as_bytes(), prover(id).key.as_bytes(), "device {id}");
                assert_eq!((found.group, found.overlay, found.home), {
                    let put = prover(id);
                    (put.group, put.overlay, put.home)
                });
            }
            _ => missing += 1,
        }
        match registry.appraisal(device).await {
            Ok(Some(found)) => assert_eq!(found, appraisal(id, 7)),
            _ => missing += 1,
        }
        match registry.evidence(device).await {
            Ok(Some((at_s, found))) => {
                let number = u8::try_from(at_s - NOW_S).unwrap();
                assert_eq!(*found, document(id, number));
            }
            _ => missing += 1,
        }
    }
    for group_name in ["pumps", "fans"] {
        match registry.group(&name(group_name)).await {
            Ok(Some(found)) => assert_eq!(
                (found.policy, found.reference, found.rounds_wanted),
                (group(group_name).policy, group(group_name).reference, 0)
            ),
            _ => missing += 1,
        }
    }
    for (number, begun_at_s) in [(1, Some(NOW_S)), (2, None)] {
        match registry.period(Period(u64::from(number))).await {
            Ok(Some(found)) => assert_eq!((found.salt, found.begun_at_s), (salt(number), begun_at_s)),
            _ => missing += 1,
        }
    }
    match registry.rounds(None, 10).await {
        Ok(found) if found == [round(1, 7)] => {}
        Ok(found) => {
            assert_eq!(found, []);
            missing += 1;
        }
        Err(_) => missing += 1,
    }
    missing
}

/// Each edit is found, by the check and by whoever reads the row, and nobody else's rows are missing.
#[tokio::test]
async fn an_edited_or_moved_row_is_left_out_and_spares_the_others() {
    let cases = [
        ("UPDATE attest_group SET silent = 5 WHERE name = 'fans'", 1),
        (
            "UPDATE attest_group SET reopen = 2, late_is_silent = 1 WHERE name = 'fans'",
            1,
        ),
        ("UPDATE attest_group SET rounds_wanted = 9 WHERE name = 'fans'", 1),
        ("UPDATE attest_group SET reference = NULL WHERE name = 'fans'", 1),
        (
            "UPDATE attest_group SET roll_out = reference, roll_out_until_s = 9e9 WHERE name = 'fans'",
            1,
        ),
        (
            "DELETE FROM attest_group WHERE name = 'fans'; UPDATE attest_group SET name = 'fans'",
            2,
        ),
        (
            "UPDATE prover SET sealed = (SELECT sealed FROM prover WHERE device_id = 8) WHERE device_id = 7",
            1,
        ),
        ("UPDATE prover SET removed = 1 WHERE device_id = 7", 1),
        (
            "UPDATE prover SET removed = 1, sealed = NULL WHERE device_id = 7",
            1,
        ),
        ("UPDATE prover SET overlay = NULL WHERE device_id = 7", 1),
        ("UPDATE prover SET group_name = 'fans' WHERE device_id = 7", 1),
        (
            "UPDATE prover SET home_address = x'c0000202' WHERE device_id = 7",
            1,
        ),
        ("UPDATE prover SET revision = 0 WHERE device_id = 7", 1),
        (
            "DELETE FROM prover WHERE device_id = 8; UPDATE prover SET device_id = 8 WHERE device_id = 7",
            2,
        ),
        ("UPDATE period SET begun_at_s = 5 WHERE number = 2", 1),
        ("UPDATE period SET begun_at_s = NULL WHERE number = 1", 1),
        (
            "UPDATE period SET sealed = (SELECT sealed FROM period WHERE number = 1) WHERE number = 2",
            1,
        ),
        (
            "DELETE FROM period WHERE number = 2; UPDATE period SET number = 2",
            2,
        ),
        ("UPDATE attest_round SET silent = 0", 1),
        ("UPDATE attest_round SET ended_at_s = ended_at_s + 3600", 1),
        ("UPDATE appraisal SET state = 3 WHERE device_id = 7", 1),
        ("UPDATE appraisal SET silences = NULL WHERE device_id = 7", 1),
        (
            "UPDATE appraisal SET since_s = since_s + 3600 WHERE device_id = 7",
            1,
        ),
        (
            "DELETE FROM appraisal WHERE device_id = 8; UPDATE appraisal SET device_id = 8 WHERE device_id = 7",
            2,
        ),
        (
            "UPDATE evidence SET at_s = at_s + 1 WHERE device_id = 7 AND number = 2",
            1,
        ),
        (
            "UPDATE evidence SET number = 5 WHERE device_id = 7 AND number = 1",
            1,
        ),
        (
            "DELETE FROM evidence WHERE device_id = 8; UPDATE evidence SET device_id = 8 WHERE device_id = 7",
            2,
        ),
    ];
    let (_directory, path) = attested_file().await;
    let whole = fs::read(&path).unwrap();
    for (statement, expected) in cases {
        fs::write(&path, &whole).unwrap();
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        assert_eq!(examine(&registry).await, expected, "{statement}");
        assert!(!registry.check().await.unwrap().is_empty(), "{statement}");
        let page = registry.provers_since(0, 100).await.unwrap();
        assert!(page.provers.len() + 2 >= PROVERS as usize, "{statement}");
        registry.close().await;
    }
}

#[tokio::test]
async fn flipped_bytes_give_no_wrong_answer() {
    let (_directory, path) = attested_file().await;
    let whole = fs::read(&path).unwrap();
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..100 {
        let mut damaged = whole.clone();
        // Most of the file is empty pages.
        let position = loop {
            let position = rng.next_u64() as usize % damaged.len();
            if damaged[position] != 0 {
                break position;
            }
        };
        damaged[position] ^= 1 << (rng.next_u32() % 8);
        fs::write(&path, &damaged).unwrap();
        if let Ok(registry) = open(&path).await {
            let missing = examine(&registry).await;
            let found = registry.check().await;
            assert!(
                missing == 0 || !matches!(found, Ok(ref found) if found.is_empty()),
                "seed {seed}"
            );
            registry.close().await;
        }
        for sibling in ["fleet.registry-wal", "fleet.registry-shm"] {
            let _ = fs::remove_file(path.with_file_name(sibling));
        }
    }
}

/// No number of a round comes again, whoever edits or deletes the count, and nobody stops rounds by that.
#[tokio::test]
async fn numbers_of_rounds_cannot_be_put_back() {
    let (_directory, path) = attested_file().await;
    let whole = fs::read(&path).unwrap();
    for statement in [
        "UPDATE round_number SET next = 8",
        "UPDATE round_number SET gateway_id = 2",
        "UPDATE round_number SET mac = x''",
        "UPDATE round_number SET next = 4294967295",
        "DELETE FROM round_number",
        // A round that nobody has had does not use up the numbers.
        "DELETE FROM round_number; INSERT INTO attest_round SELECT gateway_id, 4294967295, group_name, period, started_at_s, \
         ended_at_s, asked, ok, late, silent, last_verdict_ms, mac FROM attest_round",
    ] {
        fs::write(&path, &whole).unwrap();
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        let is_named = async || {
            let found = registry.check().await.unwrap();
            let named = |error: &RegistryError| {
                matches!(
                    error,
                    RegistryError::DamagedRoundCount {
                        gateway: GatewayId(1 | 2)
                    }
                )
            };
            found.iter().any(named)
        };
        assert!(is_named().await, "{statement}");
        let fence = gateway(&registry).await;
        // What was found meanwhile is not lost.
        let told = told([appraisal(3, 9)]);
        registry.record_round(&fence, &round(1, 9), &told).await.unwrap();
        let reserved = registry.reserve_rounds(&fence, 4, 30).await.unwrap();
        assert_eq!(
            reserved.numbers,
            30 + LOST_NUMBERS..34 + LOST_NUMBERS,
            "{statement}"
        );
        assert!(
            matches!(
                reserved.damage,
                Some(RegistryError::DamagedRoundCount {
                    gateway: GatewayId(1)
                })
            ),
            "{statement}"
        );
        // Once.
        let reserved = registry.reserve_rounds(&fence, 1, 30).await.unwrap();
        assert_eq!(reserved.numbers, 34 + LOST_NUMBERS..35 + LOST_NUMBERS);
        assert!(reserved.damage.is_none(), "{statement}");
        if !statement.contains("gateway_id = 2") && !statement.contains("4294967295, group") {
            assert!(!is_named().await, "{statement}");
        }
        registry.close().await;
    }
}

/// Of a prover the check knows that it was one, unless all that tells is deleted with it.
#[tokio::test]
async fn a_deleted_prover_is_missed() {
    let (_directory, path) = attested_file().await;
    sql(
        &path,
        "DELETE FROM prover WHERE device_id IN (7, 8, 9); DELETE FROM appraisal WHERE device_id IN (8, 9); \
         DELETE FROM evidence WHERE device_id IN (7, 9)",
    )
    .await;
    let registry = open(&path).await.unwrap();
    // One that was removed is on record as that.
    assert!(registry.remove_prover(DeviceId(10)).await.unwrap());
    // One that was never asked.
    registry.enrol_prover(prover(11), NOW_S).await.unwrap();
    sql(&path, "DELETE FROM prover WHERE device_id = 11").await;
    let found = registry.check().await.unwrap();
    let ids: Vec<u64> = found
        .iter()
        .map(|error| match error {
            RegistryError::DamagedRecord { device, problem } if problem.contains("is gone") => device.0,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(ids, [7, 8, 11], "of the third nothing is left that tells");
}

/// Nor does a record that does not authenticate keep anybody from hearing of other provers.
#[tokio::test]
async fn a_prover_of_a_made_up_revision_hides_no_other() {
    for revision in ["4", "9223372036854775807", "'text'"] {
        let (_directory, path) = attested_file().await;
        let registry = open(&path).await.unwrap();
        let heard = registry.provers_since(0, 100).await.unwrap().upto;
        sql(
            &path,
            &format!("UPDATE prover SET revision = {revision} WHERE device_id IN (7, 8, 9)"),
        )
        .await;
        let enrolled = registry.enrol_prover(prover(3), NOW_S).await.unwrap();
        registry.remove_prover(DeviceId(4)).await.unwrap();
        let newest = registry.attest_revision().await.unwrap();
        for (since, limit) in [(0, 100), (0, 2), (heard, 2), (enrolled - 1, 1)] {
            let (mut keys, mut ids, mut from) = (Vec::new(), Vec::new(), since);
            for _ in 0..=PROVERS {
                let page = registry.provers_since(from, limit).await.unwrap();
                let told = registry.prover_ids_since(from, limit).await.unwrap();
                assert_eq!((page.upto, page.more), (told.upto, told.more), "{revision}");
                assert_eq!(page.damaged, told.damaged, "{revision}");
                keys.extend(page.provers.iter().map(|prover| (prover.device, prover.removed)));
                ids.extend(told.provers.into_iter().map(|device| (device, false)));
                ids.extend(told.removed.into_iter().map(|device| (device, true)));
                from = page.upto;
                if !page.more {
                    break;
                }
            }
            assert_eq!(from, newest, "{revision} from {since}");
            assert_eq!(ids, keys, "{revision} from {since}");
            let expected = [(DeviceId(3), false), (DeviceId(4), true)];
            assert!(keys.ends_with(&expected), "{revision} from {since}: {keys:?}");
        }
    }
}

/// What is damaged can be set right: groups are set anew, provers enrolled anew or removed, periods passed by.
#[tokio::test]
async fn damage_can_be_mended() {
    let (_directory, path) = attested_file().await;
    sql(
        &path,
        "UPDATE attest_group SET silent = 5, rounds_wanted = 4000; UPDATE prover SET port = 1 WHERE device_id IN (7, 8); \
         UPDATE period SET begun_at_s = NULL; UPDATE appraisal SET state = 2; UPDATE evidence SET at_s = 1",
    )
    .await;
    let registry = open(&path).await.unwrap();
    assert_eq!(registry.groups().await.unwrap().damaged.len(), 2);
    assert_eq!(registry.newest_begun_period().await.unwrap(), None);
    let before = registry.attest_revision().await.unwrap();
    for name in ["pumps", "fans"] {
        registry.set_group(&group(name), NOW_S).await.unwrap();
    }
    // Higher than any number that a gateway may have seen.
    assert!(registry.want_round(&name("pumps")).await.unwrap() > before);
    registry.enrol_prover(prover(7), NOW_S).await.unwrap();
    assert!(registry.remove_prover(DeviceId(8)).await.unwrap());
    let removed = registry.provers_since(before, 100).await.unwrap();
    assert!(
        removed
            .provers
            .iter()
            .any(|prover| prover.device.0 == 8 && prover.removed)
    );
    assert!(removed.damaged.is_empty());
    let period = registry.draw_period(None, [5; 8], NOW_S).await.unwrap();
    assert_eq!(period.number, Period(2), "the one that was drawn is sound");
    let fence = gateway(&registry).await;
    let told = told((1..=PROVERS).map(|id| appraisal(id, 9)));
    registry.record_round(&fence, &round(1, 9), &told).await.unwrap();
    // A number that is none stands in nobody's way either.
    sql(
        &path,
        "UPDATE evidence SET number = 'last' WHERE device_id = 7 AND number = 2",
    )
    .await;
    for id in (1..=PROVERS).filter(|id| *id != 8) {
        for number in [1, 2] {
            registry
                .put_evidence(DeviceId(id), &document(id, number), NOW_S)
                .await
                .unwrap();
        }
    }
    let found = registry.check().await.unwrap();
    assert!(
        matches!(found[..], [RegistryError::DamagedPeriod { period: Period(1) }]),
        "{found:?}"
    );
}

/// Nor is anybody lost behind a count that was put back, once that is mended.
#[tokio::test]
async fn a_count_of_provers_that_was_put_back_is_lifted_to_what_authenticates() {
    let (_directory, path) = attested_file().await;
    let registry = open(&path).await.unwrap();
    let fence = gateway(&registry).await;
    let newest = registry.attest_revision().await.unwrap();
    assert_eq!(
        registry.mend_attest_revision(&fence).await.unwrap(),
        newest,
        "it is sound"
    );
    // Made up, of a prover and of a group.
    sql(
        &path,
        "UPDATE registry SET attest_revision = 3; UPDATE prover SET revision = 9000 WHERE device_id = 7; \
         UPDATE attest_group SET revision = 9000 WHERE name = 'fans'",
    )
    .await;
    assert_eq!(registry.mend_attest_revision(&fence).await.unwrap(), newest);
    assert_eq!(registry.attest_revision().await.unwrap(), newest);
    let (mut told, mut from) = (BTreeSet::new(), 0);
    loop {
        let page = registry.provers_since(from, 3).await.unwrap();
        told.extend(page.provers.iter().map(|prover| prover.device.0));
        from = page.upto;
        if !page.more {
            break;
        }
    }
    assert_eq!(told, (1..=PROVERS).filter(|id| *id != 7).collect());
    let other = gateway(&registry).await;
    let error = registry.mend_attest_revision(&fence).await.unwrap_err();
    assert!(matches!(error, RegistryError::OldFence { .. }), "{error}");
    assert_eq!(registry.mend_attest_revision(&other).await.unwrap(), newest);
}

/// Neither a prover's key, nor a salt, nor evidence is to be found in the file.
#[tokio::test]
async fn no_secret_is_in_the_file() {
    let (_directory, path) = attested_file().await;
    let file = fs::read(&path).unwrap();
    let holds = |secret: &[u8]| file.windows(secret.len()).any(|window| window == secret);
    assert!(holds(b"pumps"), "the search finds what is there");
    assert!(!holds(&[0x5a; 24]), "a key");
    assert!(!holds(&salt(1)) && !holds(&salt(2)), "a salt");
    assert!(!holds(&[0x81; 8]) && !holds(&[0x82; 8]), "evidence");
}
