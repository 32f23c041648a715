//! Damaged and edited records: each causes a clear error, never a panic or a wrong result.

use std::fs;
use std::path::Path;

use crate::support::{
    fleet_file, fleet_of_40, gateway, lease, lease_all, lease_request, master_key, open, pool_device, sql,
    try_sql,
};
use linewarden_harness::stay_on_one_cpu;
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{
    DeviceError, DeviceFilter, ExportKey, FencingError, OnConflict, OnDamage, Registry, RegistryError,
};
use linewarden_types::{Revision, UnusedRows};
use rand::{Rng as _, SeedableRng as _};

/// A truncated file does not open, or the missing records are reported and the other records are intact.
#[test]
async fn truncated_files_give_errors_and_no_wrong_answer() {
    let (_directory, path) = fleet_file().await;
    let original = fs::read(&path).unwrap();
    let mut lengths: Vec<usize> = (0..original.len()).step_by(4096).collect();
    lengths.extend([99, 100, 101, 4095, original.len() - 1]);
    for length in lengths {
        // SQLite reads missing bytes of the last page as zeros, so truncated zeros are no loss.
        if original.len() - length < 4096 && original[length..].iter().all(|byte| *byte == 0) {
            continue;
        }
        fs::write(&path, &original[..length]).unwrap();
        let result = examine(&path).await;
        assert!(result.is_err(), "{length} of {} B: {result:?}", original.len());
        for sibling in ["fleet.registry-wal", "fleet.registry-shm"] {
            let _ = fs::remove_file(path.with_file_name(sibling));
        }
    }
}

/// With flipped bytes, all records that are still returned equal the enrolled ones.
#[test]
async fn flipped_bytes_are_found_or_harmless() {
    stay_on_one_cpu();
    let (_directory, path) = fleet_file().await;
    let original = fs::read(&path).unwrap();
    const FLIPS: u32 = 250;
    let seed = 20;
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut detected = 0;
    for round in 0..FLIPS {
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
        match examine(&path).await {
            Ok(()) => {}
            Err(error) => {
                detected += 1;
                assert!(!error.to_string().is_empty(), "seed {seed}, round {round}");
            }
        }
        for sibling in ["fleet.registry-wal", "fleet.registry-shm"] {
            let _ = fs::remove_file(path.with_file_name(sibling));
        }
    }
    // The other flips hit unused parts of pages.
    assert!(
        detected > 25,
        "seed {seed}: only {detected} of {FLIPS} flips were found"
    );
}

/// Opens, checks and reads everything. All returned credentials must be the enrolled ones.
async fn examine(path: &Path) -> Result<(), RegistryError> {
    let registry = open(path).await?;
    let mut result = Ok(());
    for id in 1..=40 {
        match registry.load(DeviceId(id)).await {
            Ok(device) => {
                assert_eq!(device.credentials, pool_device(id, 100).credentials);
                assert_eq!(
                    (device.info.idx_floor, device.info.name),
                    (RowIndex(0), pool_device(id, 1).name)
                );
            }
            Err(error) => result = Err(error),
        }
    }
    match registry.check().await {
        Ok(damaged) => result = damaged.into_iter().next().map_or(result, Err),
        Err(error) => result = Err(error),
    }
    registry.close().await;
    result
}

#[test]
async fn a_damaged_or_moved_blob_names_its_device_and_spares_the_others() {
    let swap = "CREATE TABLE other AS SELECT * FROM credential WHERE device_id IN (1, 2); \
                UPDATE credential SET sealed = (SELECT sealed FROM other \
                WHERE other.device_id = 3 - credential.device_id) WHERE device_id IN (1, 2); DROP TABLE other";
    let cases: [(&str, &[u64]); 16] = [
        (swap, &[1, 2]),
        (
            "UPDATE credential SET sealed = zeroblob(2440) WHERE device_id = 7",
            &[7],
        ),
        ("UPDATE credential SET sealed = x'' WHERE device_id = 7", &[7]),
        ("UPDATE credential SET sealed = 'text' WHERE device_id = 7", &[7]),
        (
            "UPDATE credential SET sealed = substr(sealed, 1, 2439) WHERE device_id = 7",
            &[7],
        ),
        ("DELETE FROM credential WHERE device_id = 7", &[7]),
        ("UPDATE device SET epoch = 1 WHERE device_id = 7", &[7]),
        (
            "UPDATE device SET first_idx = 1, rows_total = 99 WHERE device_id = 7",
            &[7],
        ),
        ("UPDATE device SET mode = 2 WHERE device_id = 7", &[7]),
        ("UPDATE device SET suite = 2 WHERE device_id IN (7, 8)", &[7, 8]),
        ("UPDATE device SET idx_floor = 3 WHERE device_id = 7", &[7]),
        ("UPDATE device SET name = 'other' WHERE device_id = 7", &[7]),
        (
            "UPDATE device SET name = CAST(x'f0' AS TEXT) WHERE device_id = 7",
            &[7],
        ),
        (
            "UPDATE device SET puf_profile = CAST(x'ff41' AS TEXT) WHERE device_id = 7",
            &[7],
        ),
        ("UPDATE device SET tag = zeroblob(16) WHERE device_id = 7", &[7]),
        ("UPDATE device SET tag = x'' WHERE device_id = 7", &[7]),
    ];
    for (statement, expected) in cases {
        let (_directory, path) = fleet_of_40().await;
        let registry = open(&path).await.unwrap();
        let fencing_token = lease_all(&registry, 1..=40).await;
        registry.close().await;
        if !try_sql(&path, statement).await {
            continue;
        }
        let registry = open(&path).await.unwrap();
        let mut stream = registry.stream_leased(fencing_token, 16);
        let (mut loaded, mut damaged) = (0, Vec::new());
        while let Some(chunk) = stream.next_chunk().await.unwrap() {
            loaded += chunk.devices.len();
            damaged.extend(chunk.damaged);
        }
        assert_eq!(loaded, 40 - expected.len(), "{statement}");
        for (error, id) in damaged.iter().zip(expected) {
            assert!(
                matches!(error, RegistryError::Device(DeviceError::DamagedRecord { device, .. }) if device.0 == *id),
                "{error}"
            );
            let error = registry.load(DeviceId(*id)).await.unwrap_err();
            assert!(error.to_string().contains(&DeviceId(*id).to_string()), "{error}");
        }
        assert_eq!(registry.check().await.unwrap().len(), expected.len());
        let page = registry.list(&DeviceFilter::default(), None, 100).await.unwrap();
        // Lists do not show damage of credentials.
        assert!(page.devices.len() + page.damaged.len() == 40 && page.damaged.len() <= expected.len());
        let requests = [7, 40].map(|id| lease_request(DeviceId(id), 0, 1));
        let results = registry.lease(&fencing_token, &requests).await.unwrap();
        assert!(results[1].is_ok(), "{statement}");
    }
}

/// Write access to the file without the master key can neither lift a revocation nor lower a spent mark.
#[test]
async fn revocations_and_marks_cannot_be_edited() {
    let (_directory, path) = fleet_of_40().await;
    let registry = open(&path).await.unwrap();
    registry.revoke(DeviceId(1), "lost", 1_800_000_000).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let _ = lease(&registry, &fencing_token, 2, 0, 4).await.unwrap();
    let _ = lease(&registry, &fencing_token, 4, 0, 4).await.unwrap();
    registry.close().await;
    sql(
        &path,
        "UPDATE device SET status = 1, revoked_at_s = NULL, revoked_reason = NULL WHERE device_id = 1",
    )
    .await;
    sql(
        &path,
        "UPDATE device SET idx_floor = 0, floor_version = 0 WHERE device_id = 2",
    )
    .await;
    sql(&path, "UPDATE lease SET mark = 0 WHERE device_id = 4").await;
    sql(
        &path,
        "INSERT INTO unleased_range (device_id, epoch, first_idx, end_idx, tag) VALUES (5, 0, 0, 9, zeroblob(16))",
    )
    .await;
    let registry = open(&path).await.unwrap();
    let damaged = |error| matches!(error, RegistryError::Device(DeviceError::DamagedRecord { .. }));
    assert!(damaged(registry.load(DeviceId(1)).await.unwrap_err()));
    for id in [1, 2, 4, 5] {
        let error = lease(&registry, &fencing_token, id, 0, 4).await.unwrap_err();
        assert!(damaged(error), "device {id}");
        let unused_rows = UnusedRows {
            device: DeviceId(id),
            epoch: 0,
            unused_from: RowIndex(0),
            keep_leased: false,
        };
        let error = registry
            .record_unused_rows(&fencing_token, &[unused_rows])
            .await
            .unwrap()
            .remove(0)
            .unwrap_err();
        assert!(damaged(error), "device {id}");
    }
    let bulk = [2, 3, 2].map(|id| lease_request(DeviceId(id), 0, 1));
    let mut results = registry.lease(&fencing_token, &bulk).await.unwrap();
    assert!(damaged(results.pop().unwrap().unwrap_err()));
    assert!(results.pop().unwrap().is_ok());
    assert!(damaged(results.pop().unwrap().unwrap_err()));
    let again = registry
        .enroll_chunk(vec![pool_device(2, 100)], OnConflict::Replace)
        .await;
    assert!(damaged(again.unwrap_err()), "the mark is unknown");
    let again = registry.enroll(pool_device(2, 100)).await.unwrap_err();
    assert!(matches!(
        again,
        RegistryError::Device(DeviceError::AlreadyEnrolled { .. })
    ));
    let page = registry.list(&DeviceFilter::default(), None, 100).await.unwrap();
    assert_eq!((page.devices.len(), page.damaged.len(), page.next), (38, 2, None));
    assert!(damaged(
        registry
            .export(&mut Vec::new(), None, OnDamage::Refuse, |_| ())
            .await
            .unwrap_err()
    ));
    let key = ExportKey::from_bytes([9; 32]);
    let mut out = Vec::new();
    let exported = registry
        .export(&mut out, Some(&key), OnDamage::Skip, |_| ())
        .await
        .unwrap();
    assert_eq!((exported.devices, exported.damaged.len()), (38, 2));
    assert!(exported.damaged.into_iter().all(damaged));
    assert_eq!(
        out.split(|byte| *byte == b'\n').count(),
        1 + 38 + 1,
        "a header and whole lines"
    );
    // The check also reports the lease and the unleased range.
    assert_eq!(registry.check().await.unwrap().len(), 4);
}

/// A deleted gateway record must not restart the gateway's fencing tokens: an old process would be accepted as the
/// newest.
#[test]
async fn a_deleted_gateway_record_keeps_its_fencing_token() {
    let (_directory, path) = fleet_of_40().await;
    let registry = open(&path).await.unwrap();
    gateway(&registry).await;
    let old = gateway(&registry).await;
    let _ = lease(&registry, &old, 1, 0, 4).await.unwrap();
    registry.close().await;
    sql(&path, "DELETE FROM gateway").await;
    let registry = open(&path).await.unwrap();
    let newer = gateway(&registry).await;
    assert_eq!((old.number(), newer.number()), (2, 3));
    let error = lease(&registry, &old, 1, 4, 4).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Fencing(FencingError::StaleFencingToken { .. })
        ),
        "{error}"
    );
}

/// A device with an edited revision is missing from all listings; the check reports it.
#[test]
async fn the_check_finds_a_device_hidden_from_listings() {
    let (_directory, path) = fleet_of_40().await;
    sql(&path, "UPDATE device SET revision = -5 WHERE device_id = 7").await;
    let registry = open(&path).await.unwrap();
    let findings = registry.check().await.unwrap();
    assert!(findings[0].to_string().contains("39 of 40"), "{findings:?}");
    assert!(
        registry
            .export(&mut Vec::new(), None, OnDamage::Skip, |_| ())
            .await
            .is_err()
    );
}

/// The file contains no keys and no key names in plain text.
#[test]
async fn no_key_material_is_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("registry");
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    let device = pool_device(77, 20);
    registry.enroll(device.clone()).await.unwrap();
    registry.close().await;
    let file = fs::read(&path).unwrap();
    for n in 0..20 {
        let row = device.credentials.row(RowIndex(n)).unwrap();
        assert!(
            !file.windows(16).any(|window| window == row.row_key.as_bytes()),
            "row {n}"
        );
    }
    assert!(
        !file.windows(8).any(|window| window == [0x42; 8]),
        "the master key"
    );
    assert!(!format!("{device:?}").contains("77, 0"), "{device:?}");
}

/// A device with a damaged record can be revoked.
#[test]
async fn a_damaged_record_can_be_revoked() {
    for statement in [
        "UPDATE device SET tag = x'' WHERE device_id = 7",
        "UPDATE device SET name = CAST(x'f0' AS TEXT), epoch = 0, floor_version = -1 WHERE device_id = 7",
        "UPDATE device SET revision = 1000000 WHERE device_id = 7",
    ] {
        let (_directory, path) = fleet_of_40().await;
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        let revision_before = registry
            .changes_since(Revision::ZERO, 1000)
            .await
            .unwrap()
            .up_to_revision;
        let revision = registry.revoke(DeviceId(7), "stolen", 9).await.unwrap();
        let info = registry.get(DeviceId(7)).await.unwrap();
        assert!(
            !info.status.is_active() && info.revision == revision,
            "{statement}"
        );
        // The credentials of the device no longer match its record, but a revoked device does not need them.
        assert_eq!(registry.check().await.unwrap().len(), 1, "{statement}");
        let feed = registry
            .changes_since(Revision(revision_before.0.min(revision.0 - 1)), 1000)
            .await
            .unwrap();
        assert!(
            feed.changes
                .iter()
                .any(|change| change.device == DeviceId(7) && !change.active)
        );
    }
}
