//! Handing rows out: in order, once each, whoever asks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{BulkOptions, Registry, RegistryError};
use support::{in_memory, key_device, master_key, pool_device, pool_device_from, request};

const D: DeviceId = DeviceId(5);
const ANY: RowIndex = RowIndex(0);

async fn with_pool(rows: u32) -> Registry {
    let registry = in_memory().await;
    registry.enrol(pool_device(D.0, rows)).await.unwrap();
    registry
}

#[tokio::test]
async fn rows_go_out_in_order_until_the_pool_ends() {
    let registry = with_pool(10).await;
    let mut rows = Vec::new();
    for _ in 0..3 {
        rows.push(registry.reserve(D, ANY, 4).await.unwrap().rows());
    }
    assert_eq!(rows, [0..4, 4..8, 8..10]);
    assert!(matches!(
        registry.reserve(D, ANY, 4).await,
        Err(RegistryError::RowsExhausted {
            device: D,
            rows_end: 10
        })
    ));
    assert!(matches!(
        registry.reserve(D, ANY, 0).await,
        Err(RegistryError::EmptyReservation { .. })
    ));
    assert!(matches!(
        registry.reserve(DeviceId(6), ANY, 1).await,
        Err(RegistryError::UnknownDevice { .. })
    ));
}

#[tokio::test]
async fn a_hint_skips_rows_but_never_goes_back() {
    let registry = with_pool(20).await;
    assert_eq!(registry.reserve(D, RowIndex(7), 2).await.unwrap().rows(), 7..9);
    assert_eq!(registry.reserve(D, RowIndex(3), 2).await.unwrap().rows(), 9..11);
    assert!(matches!(
        registry.reserve(D, RowIndex(20), 1).await,
        Err(RegistryError::RowsExhausted { .. })
    ));
    assert!(matches!(
        registry.reserve(D, RowIndex(u32::MAX), 1).await,
        Err(RegistryError::RowsExhausted { .. })
    ));
    assert_eq!(registry.get(D).await.unwrap().idx_floor, RowIndex(11));
}

#[tokio::test]
async fn a_pool_may_begin_above_zero() {
    let registry = in_memory().await;
    registry.enrol(pool_device_from(D.0, 1000, 3)).await.unwrap();
    let error = registry.report_used(D, RowIndex(2)).await.unwrap_err();
    assert!(matches!(
        error,
        RegistryError::NoSuchRow {
            idx: 2,
            rows_start: 1000,
            rows_end: 1003,
            ..
        }
    ));
    assert_eq!(registry.reserve(D, ANY, 9).await.unwrap().rows(), 1000..1003);
    let credentials = registry.load(D).await.unwrap().credentials;
    assert!(credentials.row(RowIndex(999)).is_none() && credentials.row(RowIndex(1003)).is_none());
    assert_eq!(
        credentials.row(RowIndex(1001)),
        Some(&support::rows(D.0, 1, 3)[1])
    );
}

#[tokio::test]
async fn key_mode_only_counts() {
    let registry = in_memory().await;
    registry.enrol(key_device(D.0)).await.unwrap();
    assert_eq!(registry.reserve(D, ANY, 4).await.unwrap().rows(), 0..4);
    assert_eq!(
        registry
            .reserve(D, RowIndex(u32::MAX - 2), 9)
            .await
            .unwrap()
            .rows(),
        u32::MAX - 2..u32::MAX
    );
    assert!(matches!(
        registry.reserve(D, ANY, 1).await,
        Err(RegistryError::RowsExhausted { .. })
    ));
}

#[tokio::test]
async fn a_report_raises_the_mark_and_never_lowers_it() {
    let registry = with_pool(10).await;
    assert_eq!(registry.report_used(D, RowIndex(5)).await.unwrap(), RowIndex(6));
    assert_eq!(registry.report_used(D, RowIndex(2)).await.unwrap(), RowIndex(6));
    assert_eq!(registry.reserve(D, ANY, 1).await.unwrap().rows(), 6..7);
    assert_eq!(registry.report_used(D, RowIndex(9)).await.unwrap(), RowIndex(10));
    assert!(matches!(
        registry.report_used(D, RowIndex(10)).await,
        Err(RegistryError::NoSuchRow { .. })
    ));
}

#[tokio::test]
async fn an_unused_tail_can_be_given_back_once() {
    let registry = with_pool(20).await;
    let lease = registry.reserve(D, ANY, 8).await.unwrap();
    assert!(registry.give_back(lease, RowIndex(3)).await.unwrap());
    assert_eq!(registry.reserve(D, ANY, 2).await.unwrap().rows(), 3..5);
}

#[tokio::test]
async fn rows_behind_another_reservation_are_not_taken_back() {
    let registry = with_pool(20).await;
    let first = registry.reserve(D, ANY, 4).await.unwrap();
    let second = registry.reserve(D, ANY, 4).await.unwrap();
    assert!(!registry.give_back(first, RowIndex(0)).await.unwrap());
    assert!(registry.give_back(second, RowIndex(4)).await.unwrap());
}

/// The mark looks the same twice, yet the rows belong to somebody else by then.
#[tokio::test]
async fn the_same_mark_reached_again_does_not_fool_a_give_back() {
    let registry = with_pool(20).await;
    let first = registry.reserve(D, ANY, 4).await.unwrap();
    let second = registry.reserve(D, ANY, 4).await.unwrap();
    assert!(registry.give_back(second, RowIndex(4)).await.unwrap());
    // The mark stands at the end of `first` again, but its version has moved on.
    assert!(!registry.give_back(first, RowIndex(0)).await.unwrap());
    assert_eq!(registry.get(D).await.unwrap().idx_floor, RowIndex(4));
}

#[tokio::test]
async fn a_whole_fleet_gives_back_in_one_go_and_each_device_is_judged_by_itself() {
    let registry = in_memory().await;
    let fleet = (1..=1200).map(|device| pool_device(device, 10));
    registry
        .enrol_bulk(fleet, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    let requests: Vec<_> = (1..=1200).map(|device| request(device, 0, 4)).collect();
    let leases = registry.reserve_bulk(&requests).await.unwrap();
    let mut unused: Vec<_> = leases
        .into_iter()
        .map(|lease| (lease.unwrap(), RowIndex(1)))
        .collect();
    let _moved_since = registry.reserve(DeviceId(7), ANY, 1).await.unwrap();
    registry.revoke(DeviceId(600), "", 1).await.unwrap();
    let (all_used, _) = unused.swap_remove(1199);
    unused.push((all_used, RowIndex(4)));
    assert_eq!(registry.give_back_bulk(unused).await.unwrap(), 1197);
    for (device, floor) in [(1, 1), (7, 5), (600, 4), (1199, 1), (1200, 4)] {
        let info = registry.get(DeviceId(device)).await.unwrap();
        assert_eq!(info.idx_floor, RowIndex(floor), "device {device}");
    }
}

#[tokio::test]
async fn adjacent_reservations_join_and_go_back_together() {
    let registry = with_pool(20).await;
    let one = registry.reserve(D, ANY, 4).await.unwrap();
    let two = registry.reserve(D, ANY, 4).await.unwrap();
    let joined = one.join(two).unwrap();
    assert_eq!((joined.device(), joined.rows()), (D, 0..8));
    assert!(registry.give_back(joined, RowIndex(2)).await.unwrap());
    assert_eq!(registry.get(D).await.unwrap().idx_floor, RowIndex(2));
}

#[tokio::test]
async fn reservations_with_something_in_between_do_not_join() {
    let registry = with_pool(20).await;
    let one = registry.reserve(D, ANY, 4).await.unwrap();
    let other = registry.reserve(D, ANY, 4).await.unwrap();
    let three = registry.reserve(D, ANY, 4).await.unwrap();
    let (one, three) = one.join(three).unwrap_err();
    assert_eq!((one.rows(), other.rows(), three.rows()), (0..4, 4..8, 8..12));
    // Adjacent, but given back and reserved anew in between.
    assert!(registry.give_back(three, RowIndex(8)).await.unwrap());
    let anew = registry.reserve(D, ANY, 4).await.unwrap();
    assert_eq!(anew.rows(), 8..12);
    assert!(other.join(anew).is_err());
}

#[tokio::test]
async fn rows_outside_the_reservation_cannot_be_given_back() {
    let registry = with_pool(20).await;
    let _used = registry.reserve(D, ANY, 4).await.unwrap();
    let lease = registry.reserve(D, ANY, 4).await.unwrap();
    assert!(matches!(
        registry.give_back(lease, RowIndex(3)).await,
        Err(RegistryError::NotReserved { .. })
    ));
    let lease = registry.reserve(D, ANY, 4).await.unwrap();
    assert!(
        !registry.give_back(lease, RowIndex(12)).await.unwrap(),
        "nothing to give back"
    );
    assert_eq!(registry.get(D).await.unwrap().idx_floor, RowIndex(12));
}

#[tokio::test]
async fn a_revoked_devices_rows_are_not_taken_back() {
    let registry = with_pool(20).await;
    let lease = registry.reserve(D, ANY, 4).await.unwrap();
    registry.revoke(D, "", 0).await.unwrap();
    assert!(!registry.give_back(lease, RowIndex(0)).await.unwrap());
}

#[tokio::test]
async fn a_bulk_reservation_serves_whom_it_can() {
    let registry = in_memory().await;
    let devices: Vec<u64> = (1..=1200).collect();
    registry
        .enrol_bulk(
            devices.iter().map(|id| pool_device(*id, 6)),
            Default::default(),
            |_| (),
        )
        .await
        .unwrap();
    registry.revoke(DeviceId(700), "", 0).await.unwrap();
    let mut requests: Vec<_> = devices.iter().map(|id| request(*id, 0, 4)).collect();
    requests.extend([
        request(5000, 0, 4),
        request(1, 0, 4),
        request(1, 0, 4),
        request(2, 0, 0),
    ]);
    let answers = registry.reserve_bulk(&requests).await.unwrap();
    assert_eq!(answers.len(), 1204);
    for (request, answer) in requests.iter().zip(&answers).take(1200) {
        match answer {
            Ok(lease) => assert_eq!((lease.device(), lease.rows()), (request.device, 0..4)),
            Err(RegistryError::Revoked { device }) => assert_eq!(*device, DeviceId(700)),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(matches!(
        answers[1200],
        Err(RegistryError::UnknownDevice {
            device: DeviceId(5000)
        })
    ));
    assert_eq!(answers[1201].as_ref().unwrap().rows(), 4..6);
    assert!(matches!(answers[1202], Err(RegistryError::RowsExhausted { .. })));
    assert!(matches!(
        answers[1203],
        Err(RegistryError::EmptyReservation { .. })
    ));
    assert_eq!(registry.get(DeviceId(1)).await.unwrap().idx_floor, RowIndex(6));
    assert_eq!(registry.get(DeviceId(1200)).await.unwrap().idx_floor, RowIndex(4));
}

/// Two programs (two handles of one file) and several tasks each: no row goes to two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_reservations_never_overlap() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("registry");
    let first = Registry::create(&path, &master_key()).await.unwrap();
    let second = Registry::open(&path, &master_key()).await.unwrap();
    first.enrol(pool_device(D.0, 400)).await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let registry = if n % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                let mut held = Vec::new();
                for count in 1..=6 {
                    held.extend(registry.reserve(D, ANY, count).await.unwrap().rows());
                }
                held
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..8 * 21).collect::<Vec<u32>>());
}
