//! Write access to the file without the master key cannot change attestation data unnoticed, and affects only the
//! modified records.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::support::attestation::{NOW_S, appraisal, group, name, prover, round, with_enrollment};
use crate::support::{fleet_file, gateway, open, sql};
use linewarden_harness::stay_on_one_cpu;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    AttestationError, DeviceError, FencingError, LOST_COUNTER_GAP, Registry, RegistryError,
};
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

/// Provers 1 to 20 of one group, each with an appraisal and two documents; two periods, one of them started.
async fn attested_file() -> (TempDir, PathBuf) {
    let (directory, path) = fleet_file().await;
    let registry = open(&path).await.unwrap();
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.set_group(&group("fans"), NOW_S).await.unwrap();
    for id in 1..=PROVERS {
        registry.enroll_prover(prover(id), NOW_S).await.unwrap();
        for number in [1, 2] {
            registry
                .store_evidence(DeviceId(id), &document(id, number), NOW_S + u64::from(number))
                .await
                .unwrap();
        }
    }
    registry.create_period(None, salt(1), NOW_S).await.unwrap();
    registry.start_period(Period(1), NOW_S).await.unwrap();
    registry
        .create_period(Some(Period(1)), salt(2), NOW_S)
        .await
        .unwrap();
    let fencing_token = gateway(&registry).await;
    registry.reserve_rounds(&fencing_token, 50, 0).await.unwrap();
    let appraisals = with_enrollment((1..=PROVERS).map(|id| appraisal(id, 7)));
    registry
        .record_round(&fencing_token, &round(1, 7), &appraisals)
        .await
        .unwrap();
    registry.close().await;
    (directory, path)
}

/// Reads all records, which must equal the stored ones. Returns how many reads failed or omitted records.
async fn examine(registry: &Registry) -> usize {
    let mut missing = 0;
    for id in 1..=PROVERS {
        let device = DeviceId(id);
        match registry.prover(device).await {
            Ok(Some(found)) => {
                assert_eq!(found.key.as_bytes(), prover(id).key.as_bytes(), "device {id}");
                assert_eq!((found.group, found.overlay, found.location), {
                    let enrolled_prover = prover(id);
                    (
                        enrolled_prover.group,
                        enrolled_prover.overlay,
                        enrolled_prover.location,
                    )
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
                (found.policy, found.reference, found.rounds_requested),
                (group(group_name).policy, group(group_name).reference, 0)
            ),
            _ => missing += 1,
        }
    }
    for (number, begun_at_s) in [(1, Some(NOW_S)), (2, None)] {
        match registry.period(Period(u64::from(number))).await {
            Ok(Some(found)) => assert_eq!((found.salt, found.started_at_s), (salt(number), begun_at_s)),
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

/// The check and each reader detect every edit, and other records are unaffected.
#[test]
async fn edited_or_moved_records_are_omitted_and_other_records_kept() {
    let cases = [
        ("UPDATE attest_group SET missed_limit = 5 WHERE name = 'fans'", 1),
        (
            "UPDATE attest_group SET release_mode = 2, late_is_missed = 1 WHERE name = 'fans'",
            1,
        ),
        (
            "UPDATE attest_group SET rounds_requested = 9 WHERE name = 'fans'",
            1,
        ),
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
            "UPDATE prover SET location_address = x'c0000202' WHERE device_id = 7",
            1,
        ),
        ("UPDATE prover SET revision = 0 WHERE device_id = 7", 1),
        (
            "DELETE FROM prover WHERE device_id = 8; UPDATE prover SET device_id = 8 WHERE device_id = 7",
            2,
        ),
        ("UPDATE period SET started_at_s = 5 WHERE number = 2", 1),
        ("UPDATE period SET started_at_s = NULL WHERE number = 1", 1),
        (
            "UPDATE period SET sealed = (SELECT sealed FROM period WHERE number = 1) WHERE number = 2",
            1,
        ),
        (
            "DELETE FROM period WHERE number = 2; UPDATE period SET number = 2",
            2,
        ),
        ("UPDATE attest_round SET missed = 0", 1),
        ("UPDATE attest_round SET ended_at_s = ended_at_s + 3600", 1),
        ("UPDATE appraisal SET state = 3 WHERE device_id = 7", 1),
        ("UPDATE appraisal SET missed_rounds = NULL WHERE device_id = 7", 1),
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
    let original = fs::read(&path).unwrap();
    for (statement, expected) in cases {
        fs::write(&path, &original).unwrap();
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        assert_eq!(examine(&registry).await, expected, "{statement}");
        assert!(!registry.check().await.unwrap().is_empty(), "{statement}");
        let page = registry.provers_since(0, 100).await.unwrap();
        assert!(page.provers.len() + 2 >= PROVERS as usize, "{statement}");
        registry.close().await;
    }
}

#[test]
async fn flipped_bytes_cause_no_wrong_result() {
    stay_on_one_cpu();
    let (_directory, path) = attested_file().await;
    let original = fs::read(&path).unwrap();
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..100 {
        let mut damaged = original.clone();
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

/// Round numbers are never reused after an edit or deletion of the counter, and rounds continue.
#[test]
async fn round_counters_cannot_be_restored_to_older_values() {
    let (_directory, path) = attested_file().await;
    let original = fs::read(&path).unwrap();
    for statement in [
        "UPDATE round_counter SET next_number = 8",
        "UPDATE round_counter SET gateway_id = 2",
        "UPDATE round_counter SET tag = x''",
        "UPDATE round_counter SET next_number = 4294967295",
        "DELETE FROM round_counter",
        // A forged round does not exhaust the numbers.
        "DELETE FROM round_counter; INSERT INTO attest_round SELECT gateway_id, 4294967295, group_name, period, started_at_s, \
         ended_at_s, requested, ok, late, missed, last_proof_ms, tag FROM attest_round",
    ] {
        fs::write(&path, &original).unwrap();
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        let is_named = async || {
            let found = registry.check().await.unwrap();
            let named = |error: &RegistryError| {
                matches!(
                    error,
                    RegistryError::Attestation(AttestationError::DamagedRoundCounter {
                        gateway: GatewayId(1 | 2)
                    })
                )
            };
            found.iter().any(named)
        };
        assert!(is_named().await, "{statement}");
        let fencing_token = gateway(&registry).await;
        // Results recorded before the next reservation are kept.
        let appraisals = with_enrollment([appraisal(3, 9)]);
        registry
            .record_round(&fencing_token, &round(1, 9), &appraisals)
            .await
            .unwrap();
        let reserved = registry.reserve_rounds(&fencing_token, 4, 30).await.unwrap();
        assert_eq!(
            reserved.numbers,
            30 + LOST_COUNTER_GAP..34 + LOST_COUNTER_GAP,
            "{statement}"
        );
        assert!(
            matches!(
                reserved.damage,
                Some(RegistryError::Attestation(
                    AttestationError::DamagedRoundCounter {
                        gateway: GatewayId(1)
                    }
                ))
            ),
            "{statement}"
        );
        // The damage is reported once.
        let reserved = registry.reserve_rounds(&fencing_token, 1, 30).await.unwrap();
        assert_eq!(reserved.numbers, 34 + LOST_COUNTER_GAP..35 + LOST_COUNTER_GAP);
        assert!(reserved.damage.is_none(), "{statement}");
        if !statement.contains("gateway_id = 2") && !statement.contains("4294967295, group") {
            assert!(!is_named().await, "{statement}");
        }
        registry.close().await;
    }
}

/// The check knows that a device was a prover unless all its records are deleted.
#[test]
async fn a_deleted_prover_is_reported_as_missing() {
    let (_directory, path) = attested_file().await;
    sql(
        &path,
        "DELETE FROM prover WHERE device_id IN (7, 8, 9); DELETE FROM appraisal WHERE device_id IN (8, 9); \
         DELETE FROM evidence WHERE device_id IN (7, 9)",
    )
    .await;
    let registry = open(&path).await.unwrap();
    // A removed prover still has a record.
    assert!(registry.remove_prover(DeviceId(10)).await.unwrap());
    // This prover was never attested.
    registry.enroll_prover(prover(11), NOW_S).await.unwrap();
    sql(&path, "DELETE FROM prover WHERE device_id = 11").await;
    let found = registry.check().await.unwrap();
    let ids: Vec<u64> = found
        .iter()
        .map(|error| match error {
            RegistryError::Device(DeviceError::DamagedRecord { device, problem })
                if problem.contains("is missing") =>
            {
                device.0
            }
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(ids, [7, 8, 11], "no record of device 9 is left");
}

/// An unauthentic record does not keep the feed from reporting other provers.
#[test]
async fn a_prover_with_a_forged_revision_hides_no_other_prover() {
    for revision in ["4", "9223372036854775807", "'text'"] {
        let (_directory, path) = attested_file().await;
        let registry = open(&path).await.unwrap();
        let received = registry.provers_since(0, 100).await.unwrap().up_to_revision;
        sql(
            &path,
            &format!("UPDATE prover SET revision = {revision} WHERE device_id IN (7, 8, 9)"),
        )
        .await;
        let enrolled = registry.enroll_prover(prover(3), NOW_S).await.unwrap();
        registry.remove_prover(DeviceId(4)).await.unwrap();
        let newest = registry.attest_revision().await.unwrap();
        for (since, limit) in [(0, 100), (0, 2), (received, 2), (enrolled - 1, 1)] {
            let (mut keys, mut ids, mut from) = (Vec::new(), Vec::new(), since);
            for _ in 0..=PROVERS {
                let page = registry.provers_since(from, limit).await.unwrap();
                let result = registry.prover_ids_since(from, limit).await.unwrap();
                assert_eq!(
                    (page.up_to_revision, page.has_more),
                    (result.up_to_revision, result.has_more),
                    "{revision}"
                );
                assert_eq!(page.damaged, result.damaged, "{revision}");
                keys.extend(page.provers.iter().map(|prover| (prover.device, prover.removed)));
                ids.extend(result.provers.into_iter().map(|device| (device, false)));
                ids.extend(result.removed.into_iter().map(|device| (device, true)));
                from = page.up_to_revision;
                if !page.has_more {
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

/// Damage can be repaired: groups are set again, provers enrolled again or removed, periods superseded.
#[test]
async fn damage_can_be_repaired() {
    let (_directory, path) = attested_file().await;
    sql(
        &path,
        "UPDATE attest_group SET missed_limit = 5, rounds_requested = 4000; UPDATE prover SET port = 1 WHERE device_id IN (7, 8); \
         UPDATE period SET started_at_s = NULL; UPDATE appraisal SET state = 2; UPDATE evidence SET at_s = 1",
    )
    .await;
    let registry = open(&path).await.unwrap();
    assert_eq!(registry.groups().await.unwrap().damaged.len(), 2);
    assert_eq!(registry.newest_started_period().await.unwrap(), None);
    let before = registry.attest_revision().await.unwrap();
    for name in ["pumps", "fans"] {
        registry.set_group(&group(name), NOW_S).await.unwrap();
    }
    // The new number is higher than any number that a gateway may have used.
    assert!(registry.request_round(&name("pumps")).await.unwrap() > before);
    registry.enroll_prover(prover(7), NOW_S).await.unwrap();
    assert!(registry.remove_prover(DeviceId(8)).await.unwrap());
    let removed = registry.provers_since(before, 100).await.unwrap();
    assert!(
        removed
            .provers
            .iter()
            .any(|prover| prover.device.0 == 8 && prover.removed)
    );
    assert!(removed.damaged.is_empty());
    let period = registry.create_period(None, [5; 8], NOW_S).await.unwrap();
    assert_eq!(period.number, Period(2), "the created period is valid");
    let fencing_token = gateway(&registry).await;
    let appraisals = with_enrollment((1..=PROVERS).map(|id| appraisal(id, 9)));
    registry
        .record_round(&fencing_token, &round(1, 9), &appraisals)
        .await
        .unwrap();
    // An invalid number has no effect.
    sql(
        &path,
        "UPDATE evidence SET number = 'last' WHERE device_id = 7 AND number = 2",
    )
    .await;
    for id in (1..=PROVERS).filter(|id| *id != 8) {
        for number in [1, 2] {
            registry
                .store_evidence(DeviceId(id), &document(id, number), NOW_S)
                .await
                .unwrap();
        }
    }
    let found = registry.check().await.unwrap();
    assert!(
        matches!(
            found[..],
            [RegistryError::Attestation(AttestationError::DamagedPeriod {
                period: Period(1)
            })]
        ),
        "{found:?}"
    );
}

/// No prover is lost after a reset counter is repaired.
#[test]
async fn a_restored_prover_counter_is_raised_to_the_newest_authentic_value() {
    let (_directory, path) = attested_file().await;
    let registry = open(&path).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let newest = registry.attest_revision().await.unwrap();
    assert_eq!(
        registry.repair_attest_revision(&fencing_token).await.unwrap(),
        newest,
        "the counter is intact"
    );
    // Forged revisions of a prover and a group.
    sql(
        &path,
        "UPDATE registry SET attest_revision = 3; UPDATE prover SET revision = 9000 WHERE device_id = 7; \
         UPDATE attest_group SET revision = 9000 WHERE name = 'fans'",
    )
    .await;
    assert_eq!(
        registry.repair_attest_revision(&fencing_token).await.unwrap(),
        newest
    );
    assert_eq!(registry.attest_revision().await.unwrap(), newest);
    let (mut result, mut from) = (BTreeSet::new(), 0);
    loop {
        let page = registry.provers_since(from, 3).await.unwrap();
        result.extend(page.provers.iter().map(|prover| prover.device.0));
        from = page.up_to_revision;
        if !page.has_more {
            break;
        }
    }
    assert_eq!(result, (1..=PROVERS).filter(|id| *id != 7).collect());
    let newer_token = gateway(&registry).await;
    let error = registry.repair_attest_revision(&fencing_token).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Fencing(FencingError::StaleFencingToken { .. })
        ),
        "{error}"
    );
    assert_eq!(
        registry.repair_attest_revision(&newer_token).await.unwrap(),
        newest
    );
}

/// The file contains no prover key, salt or evidence in plain text.
#[test]
async fn no_secret_is_in_the_file() {
    let (_directory, path) = attested_file().await;
    let file = fs::read(&path).unwrap();
    let holds = |secret: &[u8]| file.windows(secret.len()).any(|window| window == secret);
    assert!(holds(b"pumps"), "the search finds existing text");
    assert!(!holds(&[0x5a; 24]), "a key");
    assert!(!holds(&salt(1)) && !holds(&salt(2)), "a salt");
    assert!(!holds(&[0x81; 8]) && !holds(&[0x82; 8]), "evidence");
}
