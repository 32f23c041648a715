//! Renewals by devices: rows that are appended to a pool, and new keys in key mode. Each ticket has effect once.

use crate::support::{
    gateway, in_memory, key_device, lease_request, master_key, pool_device, rows, sql, unused_location,
};
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, DeviceError, OnConflict, PoolRow, Registry, RegistryError, Renewal, RenewalResult,
};
use linewarden_types::{Revision, UnusedRows};

const POOL_DEVICE: DeviceId = DeviceId(0xd1);
const KEY_DEVICE: DeviceId = DeviceId(0xd2);

fn appended_rows(first: u32, count: u32) -> Renewal {
    Renewal::Rows {
        epoch: 0,
        first,
        rows: rows(POOL_DEVICE.0, 9, count),
    }
}

fn new_key(epoch: u32, byte: u8) -> Renewal {
    Renewal::Key {
        epoch,
        key: RowKey::from_bytes([byte; 16]),
    }
}

async fn registry() -> Registry {
    let registry = in_memory().await;
    registry.enroll(pool_device(POOL_DEVICE.0, 4)).await.unwrap();
    registry.enroll(key_device(KEY_DEVICE.0)).await.unwrap();
    registry
}

async fn renewal_result(
    registry: &Registry,
    device: DeviceId,
    number: u64,
    renewal: Renewal,
) -> RenewalResult {
    registry.renew(device, number, renewal).await.unwrap().0
}

#[test]
async fn rows_are_appended_and_leased_like_all_others() {
    let registry = registry().await;
    let fencing_token = gateway(&registry).await;
    let granted = registry
        .lease(&fencing_token, &[lease_request(POOL_DEVICE, 0, 16)])
        .await
        .unwrap();
    assert_eq!(granted[0].as_ref().unwrap().rows, 0..4);
    let exhausted = registry
        .lease(&fencing_token, &[lease_request(POOL_DEVICE, 4, 16)])
        .await
        .unwrap();
    assert!(matches!(
        exhausted[0],
        Err(RegistryError::Device(DeviceError::RowsExhausted { .. }))
    ));

    let revision_before = registry.revision().await.unwrap();
    let (outcome, enrollment) = registry.renew(POOL_DEVICE, 1, appended_rows(4, 3)).await.unwrap();
    assert_eq!((outcome, enrollment.ticket_number), (RenewalResult::Stored, 1));
    assert_eq!((enrollment.info.rows_total, enrollment.info.epoch), (7, 0));
    assert_eq!(enrollment.info.revision, Revision(revision_before.0 + 1));
    assert_eq!(registry.enrollment(POOL_DEVICE).await.unwrap(), enrollment);
    let granted = registry
        .lease(&fencing_token, &[lease_request(POOL_DEVICE, 4, 16)])
        .await
        .unwrap();
    let granted = granted[0].as_ref().unwrap();
    assert_eq!((granted.rows.clone(), granted.mark), (4..7, RowIndex(7)));

    let device = registry.load(POOL_DEVICE).await.unwrap();
    let row = device.credentials.row(RowIndex(5)).unwrap();
    assert_eq!(
        *row,
        rows(POOL_DEVICE.0, 9, 3)[1],
        "the new rows as they were sent"
    );
    assert_eq!(
        *device.credentials.row(RowIndex(3)).unwrap(),
        rows(POOL_DEVICE.0, 0, 4)[3]
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn repeated_or_misplaced_renewals_change_nothing() {
    let registry = registry().await;
    assert_eq!(
        renewal_result(&registry, POOL_DEVICE, 5, appended_rows(4, 2)).await,
        RenewalResult::Stored
    );
    let state = registry.enrollment(POOL_DEVICE).await.unwrap();
    for (number, renewal, expected) in [
        (5, appended_rows(4, 2), RenewalResult::StaleTicket),
        (4, appended_rows(6, 2), RenewalResult::StaleTicket),
        (0, appended_rows(6, 2), RenewalResult::StaleTicket),
        (u64::MAX, appended_rows(6, 2), RenewalResult::StaleTicket),
        (6, appended_rows(4, 2), RenewalResult::WrongPosition),
        (6, appended_rows(5, 2), RenewalResult::WrongPosition),
        (6, appended_rows(7, 2), RenewalResult::WrongPosition),
        (6, new_key(0, 1), RenewalResult::WrongPosition),
        (6, appended_rows(6, 5_000), RenewalResult::Rejected),
    ] {
        let (outcome, enrollment) = registry.renew(POOL_DEVICE, number, renewal).await.unwrap();
        assert_eq!((outcome, &enrollment), (expected, &state), "number {number}");
    }
    let other_epoch = Renewal::Rows {
        epoch: 1,
        first: 6,
        rows: rows(POOL_DEVICE.0, 9, 1),
    };
    assert_eq!(
        renewal_result(&registry, POOL_DEVICE, 6, other_epoch).await,
        RenewalResult::WrongPosition
    );
    let zero = PoolRow {
        challenge: [1; 8],
        row_key: RowKey::from_bytes([0; 16]),
    };
    let zero = Renewal::Rows {
        epoch: 0,
        first: 6,
        rows: vec![zero],
    };
    assert_eq!(
        renewal_result(&registry, POOL_DEVICE, 6, zero).await,
        RenewalResult::Rejected
    );
    assert_eq!(registry.enrollment(POOL_DEVICE).await.unwrap(), state);
    // None of the refused renewals used the ticket number.
    assert_eq!(
        renewal_result(&registry, POOL_DEVICE, 6, appended_rows(6, 1)).await,
        RenewalResult::Stored
    );
}

#[test]
async fn a_new_key_replaces_the_old_key_and_ends_its_leases() {
    let registry = registry().await;
    let fencing_token = gateway(&registry).await;
    let granted = registry
        .lease(&fencing_token, &[lease_request(KEY_DEVICE, 0, 1)])
        .await
        .unwrap();
    assert!(granted[0].is_ok());
    assert_eq!(registry.leases_of(KEY_DEVICE).await.unwrap().len(), 1);
    for (renewal, expected) in [
        (new_key(1, 3), RenewalResult::WrongPosition),
        (new_key(0, 0), RenewalResult::Rejected),
        (appended_rows(0, 1), RenewalResult::WrongPosition),
    ] {
        assert_eq!(renewal_result(&registry, KEY_DEVICE, 1, renewal).await, expected);
    }
    let revision_before = registry.revision().await.unwrap();
    let (outcome, enrollment) = registry.renew(KEY_DEVICE, 1, new_key(0, 3)).await.unwrap();
    assert_eq!((outcome, enrollment.info.epoch), (RenewalResult::Stored, 1));
    let changes = registry.changes_since(revision_before, 10).await.unwrap().changes;
    assert_eq!((changes.len(), changes[0].epoch), (1, 1));
    assert!(registry.leases_of(KEY_DEVICE).await.unwrap().is_empty());
    let device = registry.load(KEY_DEVICE).await.unwrap();
    assert_eq!(device.credentials, Credentials::Key(RowKey::from_bytes([3; 16])));
    assert_eq!(
        renewal_result(&registry, KEY_DEVICE, 1, new_key(1, 4)).await,
        RenewalResult::StaleTicket
    );
    // Rows of the old credentials cannot be returned.
    let unused_rows = UnusedRows {
        device: KEY_DEVICE,
        epoch: 0,
        unused_from: RowIndex(0),
        keep_leased: false,
    };
    assert!(matches!(
        registry
            .record_unused_rows(&fencing_token, &[unused_rows])
            .await
            .unwrap()[0],
        Ok(0)
    ));
}

#[test]
async fn a_device_with_exhausted_ticket_numbers_can_renew_after_a_new_enrollment() {
    let registry = registry().await;
    let last_number = i64::MAX.cast_unsigned();
    for number in [last_number + 1, u64::MAX] {
        let repeated = renewal_result(&registry, POOL_DEVICE, number, appended_rows(4, 1)).await;
        assert_eq!(repeated, RenewalResult::StaleTicket);
    }
    let stored = renewal_result(&registry, POOL_DEVICE, last_number, appended_rows(4, 1)).await;
    assert_eq!(stored, RenewalResult::Stored);
    let repeated = renewal_result(&registry, POOL_DEVICE, last_number, appended_rows(5, 1)).await;
    assert_eq!(repeated, RenewalResult::StaleTicket);
    assert_eq!(
        registry.enrollment(POOL_DEVICE).await.unwrap().ticket_number,
        last_number
    );
    registry
        .enroll_chunk(vec![pool_device(POOL_DEVICE.0, 4)], OnConflict::Replace)
        .await
        .unwrap();
    assert_eq!(registry.enrollment(POOL_DEVICE).await.unwrap().ticket_number, 0);
    // Earlier requests belong to another epoch.
    let replayed = renewal_result(&registry, POOL_DEVICE, last_number, appended_rows(4, 1)).await;
    assert_eq!(replayed, RenewalResult::WrongPosition);
    let new_renewal = Renewal::Rows {
        epoch: 1,
        first: 4,
        rows: rows(POOL_DEVICE.0, 9, 1),
    };
    assert_eq!(
        renewal_result(&registry, POOL_DEVICE, 1, new_renewal).await,
        RenewalResult::Stored
    );
}

#[test]
async fn a_revoked_or_unknown_device_cannot_renew() {
    let registry = registry().await;
    registry.revoke(POOL_DEVICE, "", 1_790_000_000).await.unwrap();
    let result = registry.renew(POOL_DEVICE, 1, appended_rows(4, 1)).await;
    assert!(matches!(
        result,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));
    assert!(matches!(
        registry.enrollment(POOL_DEVICE).await,
        Err(RegistryError::Device(DeviceError::Revoked { .. }))
    ));
    let result = registry.renew(DeviceId(9), 1, new_key(0, 1)).await;
    assert!(matches!(
        result,
        Err(RegistryError::Device(DeviceError::UnknownDevice { .. }))
    ));
}

#[test]
async fn a_ticket_number_lowered_in_the_file_is_detected() {
    let (_directory, path) = unused_location();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    registry.enroll(pool_device(POOL_DEVICE.0, 4)).await.unwrap();
    for number in [1, 2] {
        let first = 3 + u32::try_from(number).unwrap();
        assert_eq!(
            renewal_result(&registry, POOL_DEVICE, number, appended_rows(first, 1)).await,
            RenewalResult::Stored
        );
    }
    registry.close().await;
    sql(&path, "UPDATE ticket SET number = 1").await;
    let registry = Registry::open(&path, &master_key()).await.unwrap();
    let result = registry.renew(POOL_DEVICE, 3, appended_rows(6, 1)).await;
    assert!(
        matches!(
            result,
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. }))
        ),
        "{result:?}"
    );
    assert_eq!(registry.check().await.unwrap().len(), 1);
}
