//! Quarantine: it cannot be bypassed and is not lost.

use crate::support::{
    appraising_gateway, fleet_of_40, in_memory, lease, lease_all, lease_request, open, pool_device,
    pool_device_from, rows, sql,
};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{
    BulkOptions, DeviceError, DeviceFilter, ExportKey, FencingError, OnConflict, OnDamage, Quarantine,
    QuarantineRequest, Registry, RegistryError, Renewal,
};
use linewarden_types::{Change, EnrollmentTime, Revision};

const NOW_S: u64 = 1_800_000_000;

fn suspect(id: u64, reason: String) -> QuarantineRequest {
    QuarantineRequest {
        device: DeviceId(id),
        enrolled_at: EnrollmentTime(NOW_S),
        reason,
    }
}

/// Quarantine requests for devices that are not provers.
fn suspects(ids: &[u64]) -> Vec<QuarantineRequest> {
    ids.iter()
        .map(|id| suspect(*id, format!("silent, device {id}")))
        .collect()
}

/// Quarantines the devices; returns the revision of the last quarantine.
async fn quarantine_all(registry: &Registry, suspects: &[QuarantineRequest], now_s: u64) -> Revision {
    let token = appraising_gateway(registry).await;
    let result = registry.quarantine(&token, suspects, now_s).await.unwrap();
    assert!(result.superseded.is_empty());
    result.revision
}

async fn fleet(devices: u64) -> Registry {
    let registry = in_memory().await;
    let records = (1..=devices).map(|id| pool_device(id, 100));
    registry
        .enroll_bulk(records, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    registry
}

async fn newest_change(registry: &Registry, since: Revision, device: u64) -> Option<Change> {
    let feed = registry.changes_since(since, 1000).await.unwrap();
    feed.changes.into_iter().find(|change| change.device.0 == device)
}

fn is_refused(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::Device(DeviceError::Quarantined { device: DeviceId(2) })
    )
}

#[test]
async fn a_quarantined_device_gets_no_rows_until_its_release() {
    let registry = fleet(3).await;
    let fencing_token = lease_all(&registry, 1..=3).await;
    registry.allow_pair(DeviceId(1), DeviceId(2)).await.unwrap();
    let revision_before = registry.revision().await.unwrap();
    let revision = quarantine_all(&registry, &suspects(&[2]), NOW_S).await;
    assert!(revision > revision_before);
    let change = newest_change(&registry, revision_before, 2).await.unwrap();
    assert_eq!((change.active, change.revision), (false, revision));
    let info = registry.get(DeviceId(2)).await.unwrap();
    assert!(info.status.is_active() && !info.may_authenticate());
    let reason = "silent, device 2".to_owned();
    assert_eq!(info.quarantine, Some(Quarantine { at_s: NOW_S, reason }));

    assert!(is_refused(&registry.load(DeviceId(2)).await.unwrap_err()));
    assert!(is_refused(
        &lease(&registry, &fencing_token, 2, 0, 4).await.unwrap_err()
    ));
    let request = lease_request(DeviceId(2), 0, 4);
    assert!(is_refused(
        &registry.first_row(&fencing_token, &request).await.unwrap_err()
    ));
    assert!(is_refused(&registry.enrollment(DeviceId(2)).await.unwrap_err()));
    let renewal = Renewal::Rows {
        epoch: 0,
        first: 100,
        rows: rows(2, 0, 1),
    };
    assert!(is_refused(
        &registry.renew(DeviceId(2), 1, renewal).await.unwrap_err()
    ));
    assert_eq!(
        registry.pair_key(DeviceId(1), DeviceId(2), NOW_S).await.unwrap(),
        None
    );
    assert_eq!(
        registry.pair_key(DeviceId(2), DeviceId(1), NOW_S).await.unwrap(),
        None
    );
    // A gateway that starts now does not receive the device; the others are served.
    let mut stream = registry.stream_leased(fencing_token, 10);
    let chunk = stream.next_chunk().await.unwrap().unwrap();
    let ids: Vec<u64> = chunk.devices.iter().map(|device| device.info.device.0).collect();
    assert_eq!((ids, chunk.damaged.len()), (vec![1, 3], 0));
    let _ = lease(&registry, &fencing_token, 1, 0, 4).await.unwrap();

    let release_revision = registry.release(DeviceId(2)).await.unwrap();
    let change = newest_change(&registry, revision, 2).await.unwrap();
    assert_eq!((change.active, change.revision), (true, release_revision));
    assert!(registry.get(DeviceId(2)).await.unwrap().may_authenticate());
    let _ = lease(&registry, &fencing_token, 2, 0, 4).await.unwrap();
    assert!(
        registry
            .pair_key(DeviceId(1), DeviceId(2), NOW_S)
            .await
            .unwrap()
            .is_some()
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn repeated_quarantines_and_unknown_devices_change_nothing() {
    let registry = fleet(4).await;
    registry.revoke(DeviceId(4), "lost", NOW_S).await.unwrap();
    let first = quarantine_all(&registry, &suspects(&[2]), NOW_S).await;
    let requests = suspects(&[2, 4, 99]);
    assert_eq!(quarantine_all(&registry, &requests, NOW_S + 1).await, first);
    assert_eq!(
        registry.get(DeviceId(2)).await.unwrap().quarantine.unwrap().at_s,
        NOW_S
    );
    assert_eq!(registry.get(DeviceId(4)).await.unwrap().quarantine, None);
    assert_eq!(quarantine_all(&registry, &[], NOW_S).await, first);
    // Each of several quarantines has its own revision; the newest one is returned.
    let newest = quarantine_all(&registry, &suspects(&[99, 1, 3, 2]), NOW_S).await;
    let feed = registry.changes_since(first, 10).await.unwrap();
    let changes: Vec<_> = feed
        .changes
        .iter()
        .map(|c| (c.device.0, c.revision.0, c.active))
        .collect();
    assert_eq!(changes, [(1, newest.0 - 1, false), (3, newest.0, false)]);
    // A reason with a control character is refused before any change.
    let invalid = vec![suspect(1, "\u{1b}[2J".to_owned())];
    let token = appraising_gateway(&registry).await;
    assert!(registry.quarantine(&token, &invalid, NOW_S).await.is_err());
    // A replaced process makes no decision.
    let _newer = appraising_gateway(&registry).await;
    for result in [
        registry
            .quarantine(&token, &suspects(&[5]), NOW_S)
            .await
            .map(|_| ()),
        registry
            .release_prover(&token, DeviceId(1), EnrollmentTime(NOW_S))
            .await
            .map(|_| ()),
    ] {
        assert!(
            matches!(
                result,
                Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
            ),
            "{result:?}"
        );
    }

    assert_eq!(registry.release(DeviceId(2)).await.unwrap().0, newest.0 + 1);
    assert_eq!(registry.release(DeviceId(2)).await.unwrap().0, newest.0 + 1);
    assert!(matches!(
        registry.release(DeviceId(4)).await,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));
    assert!(matches!(
        registry.release(DeviceId(99)).await,
        Err(RegistryError::Device(DeviceError::UnknownDevice { .. }))
    ));
    let list = async |filter: DeviceFilter| -> Vec<u64> {
        let page = registry.list(&filter, None, 10).await.unwrap();
        assert_eq!(registry.count(&filter).await.unwrap(), page.devices.len() as u64);
        page.devices.iter().map(|info| info.device.0).collect()
    };
    assert_eq!(
        list(DeviceFilter {
            active: Some(true),
            ..DeviceFilter::default()
        })
        .await,
        [2]
    );
    assert_eq!(
        list(DeviceFilter {
            active: Some(false),
            ..DeviceFilter::default()
        })
        .await,
        [4]
    );
    assert_eq!(
        list(DeviceFilter {
            quarantined: true,
            ..DeviceFilter::default()
        })
        .await,
        [1, 3]
    );
}

/// A quarantine is not lifted by new credentials, by an export and import, or by a backup. A revocation takes precedence.
#[test]
async fn a_quarantine_survives_replacement_export_and_backup() {
    let (directory, path) = fleet_of_40().await;
    let registry = open(&path).await.unwrap();
    quarantine_all(&registry, &suspects(&[2, 3]), NOW_S).await;
    let new = vec![pool_device_from(2, 100, 9)];
    registry.enroll_chunk(new, OnConflict::Replace).await.unwrap();
    let quarantine = registry.get(DeviceId(2)).await.unwrap().quarantine;
    assert_eq!(quarantine.as_ref().unwrap().reason, "silent, device 2");
    assert!(is_refused(&registry.load(DeviceId(2)).await.unwrap_err()));
    registry.revoke(DeviceId(3), "stolen", NOW_S).await.unwrap();
    assert!(matches!(
        registry.load(DeviceId(3)).await,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));

    let key = ExportKey::from_bytes([9; 32]);
    let file = directory.path().join("fleet.jsonl");
    registry
        .export_file(&file, Some(&key), OnDamage::Refuse, |_| ())
        .await
        .unwrap();
    let copy = directory.path().join("copy.registry");
    registry.copy_to(&copy, |_| ()).await.unwrap();
    let imported = in_memory().await;
    imported
        .import_file(&file, &key, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    for registry in [&imported, &open(&copy).await.unwrap()] {
        assert!(is_refused(&registry.load(DeviceId(2)).await.unwrap_err()));
        assert_eq!(registry.get(DeviceId(2)).await.unwrap().quarantine, quarantine);
        assert!(matches!(
            registry.load(DeviceId(3)).await,
            Err(RegistryError::Device(DeviceError::Revoked { .. }))
        ));
        assert!(registry.check().await.unwrap().is_empty());
    }

    // Neither an export made after the release nor an edited line without the quarantine lifts the quarantine.
    let replace = BulkOptions {
        on_conflict: OnConflict::Replace,
        ..BulkOptions::default()
    };
    imported.release(DeviceId(2)).await.unwrap();
    let lifted = directory.path().join("lifted.jsonl");
    imported
        .export_file(&lifted, Some(&key), OnDamage::Refuse, |_| ())
        .await
        .unwrap();
    quarantine_all(&imported, &suspects(&[2]), NOW_S).await;
    let third_registry = in_memory().await;
    third_registry
        .import_file(&file, &key, replace, |_| ())
        .await
        .unwrap();
    // All rows of its pool are unspent, so they may be replaced by the same rows.
    third_registry
        .import_file(&lifted, &key, replace, |_| ())
        .await
        .unwrap();
    assert!(is_refused(&third_registry.load(DeviceId(2)).await.unwrap_err()));
    let text = std::fs::read_to_string(&file).unwrap();
    let start = text.find(",\"quarantined_at_s\"").unwrap();
    let end = text.find("\"silent, device 2\"").unwrap() + "\"silent, device 2\"".len();
    let edited = [&text[..start], &text[end..]].concat();
    for (edited, expected) in [
        (edited.clone(), "are inconsistent"),
        (
            edited.replace("\"quarantined\"", "\"active\""),
            "does not authenticate",
        ),
    ] {
        std::fs::write(&lifted, edited).unwrap();
        let fourth_registry = in_memory().await;
        let error = fourth_registry
            .import_file(&lifted, &key, replace, |_| ())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Write access to the file without the master key can neither lift a quarantine nor avoid one by damaging a record.
#[test]
async fn a_quarantine_cannot_be_edited() {
    for statement in [
        "UPDATE device SET quarantined_at_s = NULL, quarantined_reason = NULL WHERE device_id = 2",
        "UPDATE device SET quarantined_at_s = NULL WHERE device_id = 2",
        "UPDATE device SET quarantined_reason = NULL WHERE device_id = 2",
        "UPDATE device SET quarantined_at_s = 1 WHERE device_id = 2",
        "UPDATE device SET quarantined_reason = 'other' WHERE device_id = 2",
    ] {
        let (_directory, path) = fleet_of_40().await;
        let registry = open(&path).await.unwrap();
        let fencing_token = lease_all(&registry, 1..=3).await;
        quarantine_all(&registry, &suspects(&[2]), NOW_S).await;
        registry.close().await;
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        let error = registry.load(DeviceId(2)).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Device(DeviceError::DamagedRecord { .. })),
            "{statement}: {error}"
        );
        assert!(
            lease(&registry, &fencing_token, 2, 0, 4).await.is_err(),
            "{statement}"
        );
        assert!(registry.release(DeviceId(2)).await.is_err(), "{statement}");
        assert_eq!(registry.check().await.unwrap().len(), 1, "{statement}");
        let feed = registry.changes_since(Revision::ZERO, 1000).await.unwrap();
        let result: Vec<_> = feed.changes.iter().filter(|change| !change.active).collect();
        assert!(
            matches!(
                result[..],
                [Change {
                    device: DeviceId(2),
                    ..
                }]
            ),
            "{statement}"
        );
        assert!(
            matches!(&feed.damaged[..], [result] if result.contains("0000000000000002")),
            "{statement}: {:?}",
            feed.damaged
        );
        // A forged quarantine does not affect other devices.
        let _ = lease(&registry, &fencing_token, 1, 0, 4).await.unwrap();
    }
    let (_directory, path) = fleet_of_40().await;
    sql(&path, "UPDATE device SET tag = zeroblob(16) WHERE device_id = 2").await;
    let registry = open(&path).await.unwrap();
    let revision_before = registry.revision().await.unwrap();
    let revision = quarantine_all(&registry, &suspects(&[2, 3]), NOW_S).await;
    for id in [2, 3] {
        assert!(
            !newest_change(&registry, revision_before, id)
                .await
                .unwrap()
                .active,
            "device {id}"
        );
    }
    assert_eq!(revision.0, revision_before.0 + 2);
    assert!(matches!(
        registry.load(DeviceId(2)).await,
        Err(RegistryError::Device(DeviceError::DamagedRecord { .. }))
    ));
    // The damaged device can still be revoked.
    registry.revoke(DeviceId(2), "spoilt", NOW_S).await.unwrap();
    assert!(registry.get(DeviceId(2)).await.unwrap().quarantine.is_none());
}

/// A manual quarantine remains until it is released.
#[test]
async fn a_manual_quarantine_is_not_lifted_by_a_proof() {
    let registry = fleet(3).await;
    registry
        .set_group(&crate::support::attestation::group("pumps"), NOW_S)
        .await
        .unwrap();
    let prover = crate::support::attestation::prover(2);
    registry.enroll_prover(prover, NOW_S).await.unwrap();
    let enrolled_at = registry.prover(DeviceId(2)).await.unwrap().unwrap().enrolled_at();
    let revision = registry
        .quarantine_manually(DeviceId(2), "odd traffic", NOW_S)
        .await
        .unwrap();
    assert_eq!(registry.get(DeviceId(2)).await.unwrap().revision, revision);
    let token = appraising_gateway(&registry).await;
    assert_eq!(
        registry
            .release_prover(&token, DeviceId(2), enrolled_at)
            .await
            .unwrap(),
        None
    );
    assert!(is_refused(&registry.load(DeviceId(2)).await.unwrap_err()));
    // A device in automatic quarantine can also be quarantined manually.
    quarantine_all(&registry, &suspects(&[3]), NOW_S).await;
    registry
        .quarantine_manually(DeviceId(3), "odd traffic", NOW_S)
        .await
        .unwrap();
    registry.release(DeviceId(2)).await.unwrap();
    registry.load(DeviceId(2)).await.unwrap();
    quarantine_all(&registry, &suspects(&[2]), NOW_S).await;
    assert!(
        registry
            .release_prover(&appraising_gateway(&registry).await, DeviceId(2), enrolled_at)
            .await
            .unwrap()
            .is_some()
    );
    registry.revoke(DeviceId(1), "lost", NOW_S).await.unwrap();
    let revoked = registry
        .quarantine_manually(DeviceId(1), "odd traffic", NOW_S)
        .await;
    assert!(matches!(
        revoked,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));
    let unknown = registry
        .quarantine_manually(DeviceId(9), "odd traffic", NOW_S)
        .await;
    assert!(matches!(
        unknown,
        Err(RegistryError::Device(DeviceError::UnknownDevice { .. }))
    ));
    assert!(registry.check().await.unwrap().is_empty());
}
