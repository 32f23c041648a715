//! What devices renew by themselves: rows at the end of a pool, keys of key mode, each ticket once.

use crate::support::{gateway, in_memory, key_device, master_key, nowhere, pool_device, rows, sql, wish};
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, OnConflict, PoolRow, Registry, RegistryError, Renewal, RenewalResult, Revision, Settlement,
};

const POOL: DeviceId = DeviceId(0xd1);
const KEY: DeviceId = DeviceId(0xd2);

fn behind(first: u32, count: u32) -> Renewal {
    Renewal::Rows {
        epoch: 0,
        first,
        rows: rows(POOL.0, 9, count),
    }
}

fn key(epoch: u32, byte: u8) -> Renewal {
    Renewal::Key {
        epoch,
        key: RowKey::from_bytes([byte; 16]),
    }
}

async fn registry() -> Registry {
    let registry = in_memory().await;
    registry.enrol(pool_device(POOL.0, 4)).await.unwrap();
    registry.enrol(key_device(KEY.0)).await.unwrap();
    registry
}

async fn result(registry: &Registry, device: DeviceId, number: u64, renewal: Renewal) -> RenewalResult {
    registry.renew(device, number, renewal).await.unwrap().0
}

#[tokio::test]
async fn rows_are_added_behind_the_last_one_and_leased_like_all_others() {
    let registry = registry().await;
    let fence = gateway(&registry).await;
    let granted = registry.lease(&fence, &[wish(POOL, 0, 16)]).await.unwrap();
    assert_eq!(granted[0].as_ref().unwrap().rows, 0..4);
    let spent = registry.lease(&fence, &[wish(POOL, 4, 16)]).await.unwrap();
    assert!(matches!(spent[0], Err(RegistryError::RowsExhausted { .. })));

    let before = registry.revision().await.unwrap();
    let (done, now) = registry.renew(POOL, 1, behind(4, 3)).await.unwrap();
    assert_eq!((done, now.number), (RenewalResult::Stored, 1));
    assert_eq!((now.info.rows_total, now.info.epoch), (7, 0));
    assert_eq!(now.info.revision, Revision(before.0 + 1));
    assert_eq!(registry.enrolment(POOL).await.unwrap(), now);
    let granted = registry.lease(&fence, &[wish(POOL, 4, 16)]).await.unwrap();
    let granted = granted[0].as_ref().unwrap();
    assert_eq!((granted.rows.clone(), granted.mark), (4..7, RowIndex(7)));

    let found = registry.load(POOL).await.unwrap();
    let row = found.credentials.row(RowIndex(5)).unwrap();
    assert_eq!(*row, rows(POOL.0, 9, 3)[1], "the new rows as they came");
    assert_eq!(
        *found.credentials.row(RowIndex(3)).unwrap(),
        rows(POOL.0, 0, 4)[3]
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_comes_twice_or_out_of_place_changes_nothing() {
    let registry = registry().await;
    assert_eq!(
        result(&registry, POOL, 5, behind(4, 2)).await,
        RenewalResult::Stored
    );
    let stands = registry.enrolment(POOL).await.unwrap();
    for (number, renewal, wanted) in [
        (5, behind(4, 2), RenewalResult::OldNumber),
        (4, behind(6, 2), RenewalResult::OldNumber),
        (0, behind(6, 2), RenewalResult::OldNumber),
        (u64::MAX, behind(6, 2), RenewalResult::OldNumber),
        (6, behind(4, 2), RenewalResult::Misplaced),
        (6, behind(5, 2), RenewalResult::Misplaced),
        (6, behind(7, 2), RenewalResult::Misplaced),
        (6, key(0, 1), RenewalResult::Misplaced),
        (6, behind(6, 5_000), RenewalResult::Refused),
    ] {
        let (got, now) = registry.renew(POOL, number, renewal).await.unwrap();
        assert_eq!((got, &now), (wanted, &stands), "number {number}");
    }
    let other_epoch = Renewal::Rows {
        epoch: 1,
        first: 6,
        rows: rows(POOL.0, 9, 1),
    };
    assert_eq!(
        result(&registry, POOL, 6, other_epoch).await,
        RenewalResult::Misplaced
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
    assert_eq!(result(&registry, POOL, 6, zero).await, RenewalResult::Refused);
    assert_eq!(registry.enrolment(POOL).await.unwrap(), stands);
    // The number was not used up by any of them.
    assert_eq!(
        result(&registry, POOL, 6, behind(6, 1)).await,
        RenewalResult::Stored
    );
}

#[tokio::test]
async fn a_new_key_takes_the_place_of_the_old_one_and_of_its_leases() {
    let registry = registry().await;
    let fence = gateway(&registry).await;
    let granted = registry.lease(&fence, &[wish(KEY, 0, 1)]).await.unwrap();
    assert!(granted[0].is_ok());
    assert_eq!(registry.leases_of(KEY).await.unwrap().len(), 1);
    for (renewal, wanted) in [
        (key(1, 3), RenewalResult::Misplaced),
        (key(0, 0), RenewalResult::Refused),
        (behind(0, 1), RenewalResult::Misplaced),
    ] {
        assert_eq!(result(&registry, KEY, 1, renewal).await, wanted);
    }
    let before = registry.revision().await.unwrap();
    let (done, now) = registry.renew(KEY, 1, key(0, 3)).await.unwrap();
    assert_eq!((done, now.info.epoch), (RenewalResult::Stored, 1));
    let changes = registry.changes_since(before, 10).await.unwrap().changes;
    assert_eq!((changes.len(), changes[0].epoch), (1, 1));
    assert!(registry.leases_of(KEY).await.unwrap().is_empty());
    let found = registry.load(KEY).await.unwrap();
    assert_eq!(found.credentials, Credentials::Key(RowKey::from_bytes([3; 16])));
    assert_eq!(
        result(&registry, KEY, 1, key(1, 4)).await,
        RenewalResult::OldNumber
    );
    // Unused rows of the old credentials cannot come back.
    let settlement = Settlement {
        device: KEY,
        epoch: 0,
        unused_from: RowIndex(0),
        keep: false,
    };
    assert!(matches!(
        registry.settle(&fence, &[settlement]).await.unwrap()[0],
        Ok(0)
    ));
}

#[tokio::test]
async fn a_device_that_has_used_up_its_numbers_renews_again_once_it_is_enrolled_anew() {
    let registry = registry().await;
    let last = i64::MAX.cast_unsigned();
    for number in [last + 1, u64::MAX] {
        let refused = result(&registry, POOL, number, behind(4, 1)).await;
        assert_eq!(refused, RenewalResult::OldNumber);
    }
    let stored = result(&registry, POOL, last, behind(4, 1)).await;
    assert_eq!(stored, RenewalResult::Stored);
    let refused = result(&registry, POOL, last, behind(5, 1)).await;
    assert_eq!(refused, RenewalResult::OldNumber);
    assert_eq!(registry.enrolment(POOL).await.unwrap().number, last);
    registry
        .enrol_chunk(vec![pool_device(POOL.0, 4)], OnConflict::Replace)
        .await
        .unwrap();
    assert_eq!(registry.enrolment(POOL).await.unwrap().number, 0);
    // What was asked for before is of another epoch.
    let replayed = result(&registry, POOL, last, behind(4, 1)).await;
    assert_eq!(replayed, RenewalResult::Misplaced);
    let now = Renewal::Rows {
        epoch: 1,
        first: 4,
        rows: rows(POOL.0, 9, 1),
    };
    assert_eq!(result(&registry, POOL, 1, now).await, RenewalResult::Stored);
}

#[tokio::test]
async fn a_revoked_or_unknown_device_renews_nothing() {
    let registry = registry().await;
    registry.revoke(POOL, "", 1_790_000_000).await.unwrap();
    let refused = registry.renew(POOL, 1, behind(4, 1)).await;
    assert!(matches!(refused, Err(RegistryError::Revoked { .. })));
    assert!(matches!(
        registry.enrolment(POOL).await,
        Err(RegistryError::Revoked { .. })
    ));
    let refused = registry.renew(DeviceId(9), 1, key(0, 1)).await;
    assert!(matches!(refused, Err(RegistryError::UnknownDevice { .. })));
}

#[tokio::test]
async fn a_number_set_back_in_the_file_is_found() {
    let (_directory, path) = nowhere();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    registry.enrol(pool_device(POOL.0, 4)).await.unwrap();
    for number in [1, 2] {
        let first = 3 + u32::try_from(number).unwrap();
        assert_eq!(
            result(&registry, POOL, number, behind(first, 1)).await,
            RenewalResult::Stored
        );
    }
    registry.close().await;
    sql(&path, "UPDATE ticket SET number = 1").await;
    let registry = Registry::open(&path, &master_key()).await.unwrap();
    let refused = registry.renew(POOL, 3, behind(6, 1)).await;
    assert!(
        matches!(refused, Err(RegistryError::DamagedRecord { .. })),
        "{refused:?}"
    );
    assert_eq!(registry.check().await.unwrap().len(), 1);
}
