//! Enrollment, replacement, look-up, lists and revocation of devices.

use crate::support::{
    gateway, in_memory, key_device, lease, lease_all, pool_device, pool_device_from, record, rows,
};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    BulkError, BulkOptions, Credentials, DeviceError, DeviceFilter, OnConflict, Progress, RegistryError,
    Status,
};
use linewarden_types::Revision;

const REPLACE: BulkOptions = BulkOptions {
    chunk_devices: 1000,
    on_conflict: OnConflict::Replace,
};

#[test]
async fn an_enrolled_device_is_read_as_it_was_written() {
    let registry = in_memory().await;
    let pool = pool_device(u64::MAX, 100);
    let key = key_device(1);
    registry.enroll(pool.clone()).await.unwrap();
    registry.enroll(key.clone()).await.unwrap();

    let info = registry.get(pool.device).await.unwrap();
    assert_eq!(
        (info.name, info.mode, info.status),
        (pool.name.clone(), Mode::Pool, Status::Active)
    );
    assert_eq!(
        (info.first_idx, info.rows_total, info.idx_floor, info.epoch),
        (RowIndex(0), 100, RowIndex(0), 0)
    );
    assert_eq!(
        (info.enrolled_at_s, info.puf_profile, info.revision),
        (1_790_000_000, "arbiter".into(), Revision(1))
    );
    assert_eq!(
        registry.load(pool.device).await.unwrap().credentials,
        pool.credentials
    );

    let info = registry.get(key.device).await.unwrap();
    assert_eq!(
        (info.mode, info.rows_total, info.rows_left()),
        (Mode::Key, 0, None)
    );
    assert_eq!(
        registry.load(key.device).await.unwrap().credentials,
        key.credentials
    );
}

#[test]
async fn an_unknown_device_is_an_error_that_names_it() {
    let error = in_memory().await.get(DeviceId(0xabc)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "device 0000000000000abc is not enrolled; check the id"
    );
}

#[test]
async fn invalid_records_are_refused_and_the_field_is_named() {
    let registry = in_memory().await;
    let valid = pool_device(1, 3);
    let with_rows = |credentials| record(1, credentials);
    let mut zero_row = rows(1, 0, 3);
    zero_row[1].row_key = RowKey::from_bytes([0; 16]);
    let cases = [
        ("device_id", pool_device(0, 1)),
        (
            "name",
            linewarden_registry::DeviceRecord {
                name: "a\u{1b}[2J".into(),
                ..valid.clone()
            },
        ),
        (
            "name",
            linewarden_registry::DeviceRecord {
                name: "x".repeat(256),
                ..valid.clone()
            },
        ),
        (
            "puf_profile",
            linewarden_registry::DeviceRecord {
                puf_profile: "a\0b".into(),
                ..valid.clone()
            },
        ),
        (
            "enrolled_at_s",
            linewarden_registry::DeviceRecord {
                enrolled_at_s: u64::MAX,
                ..valid.clone()
            },
        ),
        ("credentials", with_rows(Credentials::pool(Vec::new()))),
        ("credentials", with_rows(Credentials::pool(zero_row))),
        (
            "credentials",
            with_rows(Credentials::Key(RowKey::from_bytes([0; 16]))),
        ),
        ("credentials", pool_device_from(1, u32::MAX, 1)),
    ];
    for (expected, bad) in cases {
        match registry.enroll(bad).await.unwrap_err() {
            RegistryError::Device(DeviceError::InvalidRecord { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other}"),
        }
    }
    assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), 0);
    assert_eq!(registry.revision().await.unwrap(), Revision::ZERO);
}

#[test]
async fn bulk_enrollment_stores_whole_chunks_and_names_the_refused_one() {
    let registry = in_memory().await;
    registry.enroll(pool_device(25, 2)).await.unwrap();
    let mut progress_reports = Vec::new();
    let options = BulkOptions {
        chunk_devices: 10,
        on_conflict: OnConflict::Refuse,
    };
    let error = registry
        .enroll_bulk((1..=40).map(|id| pool_device(id, 2)), options, |progress| {
            progress_reports.push(progress)
        })
        .await
        .unwrap_err();
    match &error {
        RegistryError::Bulk(BulkError::ChunkRefused {
            committed: 20,
            first: 20,
            end: 30,
            source,
        }) => {
            assert!(matches!(
                **source,
                RegistryError::Device(DeviceError::AlreadyEnrolled { device: DeviceId(25) })
            ));
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("0000000000000019"), "{error}");
    assert_eq!(
        progress_reports,
        [10, 20].map(|done| Progress {
            done,
            total: Some(40)
        })
    );
    // The registry has 20 devices from the earlier chunks, and the existing device.
    assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), 21);
    assert!(registry.get(DeviceId(21)).await.is_err());
}

#[test]
async fn a_device_twice_in_one_input_is_refused() {
    let registry = in_memory().await;
    let devices = [pool_device(1, 1), pool_device(2, 1), pool_device(1, 1)];
    let error = registry.enroll_bulk(devices, REPLACE, |_| ()).await.unwrap_err();
    let RegistryError::Bulk(BulkError::ChunkRefused { source, .. }) = error else {
        panic!("{error}")
    };
    assert!(matches!(
        *source,
        RegistryError::Device(DeviceError::DuplicateDevice { device: DeviceId(1) })
    ));
    assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), 0);
}

#[test]
async fn more_devices_than_one_statement_holds_are_all_found() {
    let registry = in_memory().await;
    let devices = (1..=1234u64).map(|id| pool_device(id.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1));
    assert_eq!(
        registry
            .enroll_bulk(devices.clone(), BulkOptions::default(), |_| ())
            .await
            .unwrap(),
        1234
    );
    for device in devices {
        assert_eq!(
            registry.load(device.device).await.unwrap().credentials,
            device.credentials
        );
    }
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn a_replacement_never_lowers_the_mark() {
    let registry = in_memory().await;
    let device = DeviceId(9);
    registry.enroll(pool_device(9, 10)).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let _ = lease(&registry, &fencing_token, 9, 0, 4).await.unwrap();

    let replacement = vec![record(9, Credentials::pool(rows(9, 1, 10)))];
    registry
        .enroll_chunk(replacement.clone(), OnConflict::Replace)
        .await
        .unwrap();
    let info = registry.get(device).await.unwrap();
    assert_eq!(
        (info.idx_floor, info.epoch, info.rows_left()),
        (RowIndex(4), 1, Some(6))
    );
    assert_eq!(
        registry.load(device).await.unwrap().credentials,
        replacement[0].credentials
    );
    // A pool that starts above the floor raises the floor.
    registry
        .enroll_chunk(vec![pool_device_from(9, 100, 5)], OnConflict::Replace)
        .await
        .unwrap();
    assert_eq!(
        lease(&registry, &fencing_token, 9, 0, 9).await.unwrap().rows,
        100..105
    );

    // Every row of this pool has been leased before.
    let error = registry
        .enroll_chunk(replacement, OnConflict::Replace)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("start at row 105"), "{error}");
    assert_eq!(registry.get(device).await.unwrap().epoch, 2);
}

#[test]
async fn a_revoked_device_stays_revoked() {
    let registry = in_memory().await;
    let device = DeviceId(3);
    registry.enroll(pool_device(3, 4)).await.unwrap();
    let fencing_token = lease_all(&registry, 3..=3).await;
    let revision = registry.revoke(device, "lost", 1_800_000_000).await.unwrap();
    assert_eq!(
        registry.revoke(device, "again", 1_900_000_000).await.unwrap(),
        revision
    );
    let revoked = Status::Revoked {
        at_s: 1_800_000_000,
        reason: "lost".into(),
    };
    assert_eq!(registry.get(device).await.unwrap().status, revoked);

    assert!(matches!(
        registry.load(device).await,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));
    assert!(matches!(
        lease(&registry, &fencing_token, 3, 0, 1).await,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));
    for on_conflict in [OnConflict::Replace, OnConflict::Refuse] {
        let result = registry.enroll_chunk(vec![pool_device(3, 4)], on_conflict).await;
        assert!(
            matches!(result, Err(RegistryError::Device(DeviceError::Revoked { .. }))),
            "{on_conflict:?}"
        );
    }
    assert!(
        registry
            .stream_leased(fencing_token, 10)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
    assert!(matches!(
        registry.revoke(DeviceId(4), "", 0).await,
        Err(RegistryError::Device(DeviceError::UnknownDevice {
            device: DeviceId(4)
        }))
    ));
}

#[test]
async fn lists_page_through_all_ids_in_unsigned_order() {
    let registry = in_memory().await;
    let mut ids: Vec<u64> = (1..=20)
        .map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    ids.extend([1, (1 << 63) - 1, 1 << 63, u64::MAX]);
    registry
        .enroll_bulk(
            ids.iter().map(|id| pool_device(*id, 1)),
            BulkOptions::default(),
            |_| (),
        )
        .await
        .unwrap();
    ids.sort_unstable();
    for limit in [1, 3, 7, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = registry
                .list(&DeviceFilter::default(), after, limit)
                .await
                .unwrap();
            assert!(page.devices.len() <= limit as usize && page.damaged.is_empty());
            listed.extend(page.devices.iter().map(|info| info.device.0));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, ids, "limit {limit}");
    }
}

#[test]
async fn filters_choose_by_name_mode_and_status() {
    let registry = in_memory().await;
    for (id, name) in [(1, "pump é 1"), (2, "pump é 2"), (3, "Pump"), (4, "100%_")] {
        let mut device = if id == 2 {
            key_device(id)
        } else {
            pool_device(id, 1)
        };
        device.name = name.to_owned();
        registry.enroll(device).await.unwrap();
    }
    registry.revoke(DeviceId(1), "", 0).await.unwrap();
    let cases = [
        (DeviceFilter::default(), vec![1, 2, 3, 4]),
        (
            DeviceFilter {
                name_prefix: Some("pump é".into()),
                ..DeviceFilter::default()
            },
            vec![1, 2],
        ),
        (
            DeviceFilter {
                name_prefix: Some("%".into()),
                ..DeviceFilter::default()
            },
            vec![],
        ),
        (
            DeviceFilter {
                name_prefix: Some("100%_".into()),
                ..DeviceFilter::default()
            },
            vec![4],
        ),
        (
            DeviceFilter {
                mode: Some(Mode::Key),
                ..DeviceFilter::default()
            },
            vec![2],
        ),
        (
            DeviceFilter {
                active: Some(false),
                ..DeviceFilter::default()
            },
            vec![1],
        ),
        (
            DeviceFilter {
                name_prefix: Some("pump".into()),
                mode: Some(Mode::Pool),
                active: Some(true),
                ..DeviceFilter::default()
            },
            vec![],
        ),
        (
            DeviceFilter {
                ids: Some(DeviceId(2)..=DeviceId(3)),
                ..DeviceFilter::default()
            },
            vec![2, 3],
        ),
        (
            DeviceFilter {
                ids: Some(DeviceId(4)..=DeviceId(u64::MAX)),
                name_prefix: Some("1".into()),
                ..DeviceFilter::default()
            },
            vec![4],
        ),
        (
            DeviceFilter {
                ids: Some(DeviceId(1 << 63)..=DeviceId(u64::MAX)),
                ..DeviceFilter::default()
            },
            vec![],
        ),
    ];
    for (filter, expected) in cases {
        let listed = registry.list(&filter, None, 10).await.unwrap().devices;
        assert_eq!(
            listed.iter().map(|info| info.device.0).collect::<Vec<_>>(),
            expected,
            "{filter:?}"
        );
        assert_eq!(
            registry.count(&filter).await.unwrap(),
            expected.len() as u64,
            "{filter:?}"
        );
    }
}
