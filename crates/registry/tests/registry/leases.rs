//! Row leases: each row to one gateway, in increasing order, and rows are lost only with a process's memory.

use crate::support::{in_memory, key_device, master_key, pool_device, pool_device_from, unused_location};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    DeviceError, FencingError, FencingToken, LeaseGrant, LeaseRequest, OnConflict, Registry, RegistryError,
    Result,
};
use linewarden_types::UnusedRows;

pub(crate) const DEVICE: DeviceId = DeviceId(5);
pub(crate) const NOW_S: u64 = 1_790_000_000;

pub(crate) struct Site {
    pub(crate) registry: Registry,
    pub(crate) gateway_1: FencingToken,
    pub(crate) gateway_2: FencingToken,
}

impl Site {
    pub(crate) async fn of(registry: Registry) -> Self {
        let gateway_1 = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
        let gateway_2 = registry.register_gateway(GatewayId(2), NOW_S).await.unwrap();
        Self {
            registry,
            gateway_1,
            gateway_2,
        }
    }

    pub(crate) async fn with_pool(rows: u32) -> Self {
        let registry = in_memory().await;
        registry.enroll(pool_device(DEVICE.0, rows)).await.unwrap();
        Self::of(registry).await
    }

    pub(crate) async fn floor(&self) -> u32 {
        self.registry.get(DEVICE).await.unwrap().idx_floor.0
    }
}

pub(crate) fn lease_request(from: u32, hold_rows: u32, spendable_rows: u32) -> LeaseRequest {
    LeaseRequest {
        device: DEVICE,
        epoch: 0,
        from: RowIndex(from),
        received: RowIndex(0),
        hold_rows,
        spendable_rows,
        statement: RowStatement::default(),
    }
}

/// Leases rows for a process that received every response.
pub(crate) async fn lease(
    registry: &Registry,
    fencing_token: &FencingToken,
    lease_request: LeaseRequest,
) -> Result<LeaseGrant> {
    let leases = registry.leases_of(lease_request.device).await?;
    let leases = leases
        .iter()
        .find(|lease| lease.gateway == fencing_token.gateway());
    let received = RowIndex(leases.map_or(0, |lease| lease.rows.end));
    registry
        .lease(
            fencing_token,
            &[LeaseRequest {
                received,
                ..lease_request
            }],
        )
        .await?
        .remove(0)
}

pub(crate) async fn report_unused_rows(
    registry: &Registry,
    fencing_token: &FencingToken,
    unused_from: u32,
    keep: bool,
) -> Result<u32> {
    let unused_rows = UnusedRows {
        device: DEVICE,
        epoch: 0,
        unused_from: RowIndex(unused_from),
        keep_leased: keep,
    };
    registry
        .record_unused_rows(fencing_token, &[unused_rows])
        .await?
        .remove(0)
}

#[test]
async fn rows_and_mark_advance_together_until_the_pool_ends() {
    let Site {
        registry, gateway_1, ..
    } = Site::with_pool(10).await;
    let mut grants = Vec::new();
    for (from, hold, ahead) in [(0, 6, 4), (3, 0, 4), (5, 5, 4), (9, 4, 4)] {
        let granted = lease(&registry, &gateway_1, lease_request(from, hold, ahead))
            .await
            .unwrap();
        grants.push((granted.rows, granted.mark.0));
    }
    assert_eq!(grants, [(0..6, 4), (6..6, 6), (6..10, 9), (10..10, 10)]);
    let end = lease(&registry, &gateway_1, lease_request(10, 4, 4))
        .await
        .unwrap_err();
    assert!(
        matches!(
            end,
            RegistryError::Device(DeviceError::RowsExhausted {
                device: DEVICE,
                rows_end: 10
            })
        ),
        "{end}"
    );
}

/// Rows of a lost response are included in the next response and not leased twice.
#[test]
async fn a_lost_response_is_repeated() {
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = Site::with_pool(40).await;
    let request_rows = async |received: u32, lease_request: LeaseRequest| {
        let received = RowIndex(received);
        let requests = [LeaseRequest {
            received,
            ..lease_request
        }];
        registry.lease(&gateway_1, &requests).await.unwrap().remove(0)
    };
    assert_eq!(request_rows(0, lease_request(0, 6, 4)).await.unwrap().rows, 0..6);
    assert_eq!(request_rows(6, lease_request(4, 8, 4)).await.unwrap().rows, 6..12);
    let repeated = request_rows(6, lease_request(4, 8, 4)).await.unwrap();
    assert_eq!((repeated.rows, repeated.mark.0), (6..12, 8));
    // The device moves to another gateway, and a later response to the first gateway is lost.
    assert_eq!(
        lease(&registry, &gateway_2, lease_request(0, 4, 4))
            .await
            .unwrap()
            .rows,
        12..16
    );
    assert_eq!(
        request_rows(12, lease_request(11, 4, 4)).await.unwrap().rows,
        12..12
    );
    assert_eq!(
        request_rows(12, lease_request(12, 4, 4)).await.unwrap().rows,
        16..20
    );
    assert_eq!(
        request_rows(12, lease_request(12, 4, 4)).await.unwrap().rows,
        16..20
    );
    assert_eq!(registry.get(DEVICE).await.unwrap().idx_floor.0, 20);
}

#[test]
async fn a_key_mode_device_continues_after_its_last_used_row() {
    let registry = in_memory().await;
    registry.enroll(key_device(DEVICE.0)).await.unwrap();
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = Site::of(registry).await;
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 1, 1))
            .await
            .unwrap()
            .rows,
        0..1
    );
    assert_eq!(
        report_unused_rows(&registry, &gateway_1, 7, false).await.unwrap(),
        0
    );
    let leases = registry.leases_of(DEVICE).await.unwrap();
    assert_eq!(leases[0].rows, 7..7, "the device has left");
    assert!(
        registry
            .stream_leased(gateway_1, 10)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        lease(&registry, &gateway_2, lease_request(0, 1, 1))
            .await
            .unwrap()
            .rows,
        7..8
    );
    assert_eq!(
        report_unused_rows(&registry, &gateway_2, 3, true).await.unwrap(),
        0
    );
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 1, 1))
            .await
            .unwrap()
            .rows,
        7..8,
        "the row never decreases"
    );
    assert!(
        registry
            .stream_leased(gateway_2, 10)
            .next_chunk()
            .await
            .unwrap()
            .is_some()
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn the_spent_mark_stays_monotonic_and_within_the_lease() {
    let Site {
        registry, gateway_1, ..
    } = Site::with_pool(10).await;
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 5, 9))
            .await
            .unwrap()
            .mark
            .0,
        5
    );
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 0, 1))
            .await
            .unwrap()
            .mark
            .0,
        5
    );
}

#[test]
async fn two_gateways_never_hold_one_row() {
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = Site::with_pool(20).await;
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 8, 4))
            .await
            .unwrap()
            .rows,
        0..8
    );
    assert_eq!(
        lease(&registry, &gateway_2, lease_request(0, 4, 4))
            .await
            .unwrap()
            .rows,
        8..12
    );
    // Not all rows of the first lease are usable yet: a lease of other rows would lose some of them.
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(2, 10, 2))
            .await
            .unwrap()
            .rows,
        8..8
    );
    // Now all rows of the first lease are usable.
    let granted = lease(&registry, &gateway_1, lease_request(6, 6, 4))
        .await
        .unwrap();
    assert_eq!((granted.rows, granted.mark.0), (8..8, 8));
    let granted = lease(&registry, &gateway_1, lease_request(8, 4, 4))
        .await
        .unwrap();
    assert_eq!((granted.rows, granted.mark.0), (12..16, 16));
    let leases = registry.leases_of(DEVICE).await.unwrap();
    let leases: Vec<_> = leases
        .iter()
        .map(|lease| (lease.gateway.0, lease.rows.clone()))
        .collect();
    assert_eq!(leases, [(1, 12..16), (2, 8..12)]);
}

#[test]
async fn a_replaced_gateway_process_gets_nothing_and_changes_nothing() {
    let site = Site::with_pool(20).await;
    let Site {
        registry, gateway_1, ..
    } = &site;
    let _ = lease(registry, gateway_1, lease_request(0, 8, 4)).await.unwrap();
    let newer = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    assert_eq!((gateway_1.number(), newer.number()), (1, 2));
    let leases_before = registry.leases_of(DEVICE).await.unwrap();
    let assert_stale = |error: RegistryError| {
        assert!(
            matches!(
                error,
                RegistryError::Fencing(FencingError::StaleFencingToken {
                    gateway: GatewayId(1),
                    presented: 1,
                    newest: 2
                })
            ),
            "{error}"
        );
    };
    assert_stale(
        lease(registry, gateway_1, lease_request(4, 4, 4))
            .await
            .unwrap_err(),
    );
    assert_stale(
        report_unused_rows(registry, gateway_1, 0, false)
            .await
            .unwrap_err(),
    );
    assert_stale(
        registry
            .stream_leased(*gateway_1, 10)
            .next_chunk()
            .await
            .unwrap_err(),
    );
    assert_eq!(registry.leases_of(DEVICE).await.unwrap(), leases_before);
    assert_eq!(site.floor().await, 8);
}

#[test]
async fn only_existing_leases_are_extended() {
    let site = Site::with_pool(30).await;
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = &site;
    let extend = async |fencing_token: &FencingToken, request: LeaseRequest| {
        let results = registry
            .extend_leases(fencing_token, &[request, request])
            .await
            .unwrap();
        assert_eq!(results.len(), 2);
        results.into_iter().next().unwrap()
    };
    let is_not_leased = |result: Result<LeaseGrant>| {
        matches!(
            result,
            Err(RegistryError::Device(DeviceError::NoLease { device: DEVICE, .. }))
        )
    };
    assert!(
        is_not_leased(extend(gateway_1, lease_request(0, 8, 4)).await),
        "not leased"
    );
    let _ = lease(registry, gateway_1, lease_request(0, 8, 4)).await.unwrap();
    assert_eq!(
        extend(gateway_1, lease_request(4, 8, 4)).await.unwrap().rows,
        0..12
    );
    assert!(
        is_not_leased(extend(gateway_2, lease_request(0, 8, 4)).await),
        "not leased by the other gateway"
    );
    // All rows of the gateway may be spent. The lease remains, also after a restart.
    let restarted_token = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    assert_eq!(
        extend(&restarted_token, lease_request(12, 4, 4))
            .await
            .unwrap()
            .held_rows
            .end,
        16
    );
    assert_eq!(
        report_unused_rows(registry, &restarted_token, 13, false)
            .await
            .unwrap(),
        3
    );
    assert!(
        is_not_leased(extend(&restarted_token, lease_request(13, 4, 4)).await),
        "the device has left"
    );
    let _ = lease(registry, &restarted_token, lease_request(0, 4, 4))
        .await
        .unwrap();
    // No rows of new credentials are leased.
    registry
        .enroll_chunk(vec![pool_device_from(DEVICE.0, 16, 10)], OnConflict::Replace)
        .await
        .unwrap();
    assert!(
        is_not_leased(extend(&restarted_token, lease_request(0, 4, 4)).await),
        "a lease of the old rows"
    );
    assert_eq!(
        report_unused_rows(registry, &restarted_token, 0, false)
            .await
            .unwrap(),
        0
    );
}

#[test]
async fn a_pool_may_begin_above_zero() {
    let registry = in_memory().await;
    registry
        .enroll(pool_device_from(DEVICE.0, 1000, 3))
        .await
        .unwrap();
    let Site {
        registry, gateway_1, ..
    } = Site::of(registry).await;
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 9, 2))
            .await
            .unwrap()
            .rows,
        1000..1003
    );
    assert_eq!(registry.leases_of(DEVICE).await.unwrap()[0].mark.0, 1002);
    let credentials = registry.load(DEVICE).await.unwrap().credentials;
    assert!(credentials.row(RowIndex(999)).is_none() && credentials.row(RowIndex(1003)).is_none());
    assert_eq!(
        credentials.row(RowIndex(1001)),
        Some(&crate::support::rows(DEVICE.0, 1, 3)[1])
    );
}

#[test]
async fn key_mode_spends_no_rows_and_allows_several_leases() {
    let registry = in_memory().await;
    registry.enroll(key_device(DEVICE.0)).await.unwrap();
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = Site::of(registry).await;
    for fencing_token in [&gateway_1, &gateway_2, &gateway_1] {
        assert_eq!(
            lease(&registry, fencing_token, lease_request(0, 4, 4))
                .await
                .unwrap()
                .rows,
            0..1
        );
    }
    assert_eq!(registry.get(DEVICE).await.unwrap().idx_floor, RowIndex(0));
    assert_eq!(
        report_unused_rows(&registry, &gateway_1, 900, true)
            .await
            .unwrap(),
        0
    );
    let chunk = registry
        .stream_leased(gateway_1, 9)
        .next_chunk()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(chunk.devices.len(), 1);
}

#[test]
async fn new_credentials_end_all_leases_and_use_no_row_again() {
    let site = Site::with_pool(20).await;
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = &site;
    let _ = lease(registry, gateway_1, lease_request(0, 8, 4)).await.unwrap();
    let _ = lease(registry, gateway_2, lease_request(0, 4, 4)).await.unwrap();
    assert_eq!(
        report_unused_rows(registry, gateway_1, 4, false).await.unwrap(),
        4
    );
    let new_credentials = pool_device_from(DEVICE.0, 12, 10);
    registry
        .enroll_chunk(vec![new_credentials], OnConflict::Replace)
        .await
        .unwrap();
    assert!(registry.leases_of(DEVICE).await.unwrap().is_empty());
    assert!(
        registry
            .stream_leased(*gateway_2, 9)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        report_unused_rows(registry, gateway_2, 8, false).await.unwrap(),
        0,
        "a report about the old rows"
    );
    let granted = lease(registry, gateway_1, lease_request(0, 4, 4)).await.unwrap();
    assert_eq!((granted.rows, granted.epoch), (12..16, 1));
}

#[test]
async fn a_revoked_device_is_leased_no_rows_and_is_not_listed() {
    let Site {
        registry, gateway_1, ..
    } = Site::with_pool(20).await;
    let _ = lease(&registry, &gateway_1, lease_request(0, 8, 4))
        .await
        .unwrap();
    registry.revoke(DEVICE, "lost", NOW_S).await.unwrap();
    assert!(matches!(
        lease(&registry, &gateway_1, lease_request(2, 4, 4)).await,
        Err(RegistryError::Device(DeviceError::Revoked { device: DEVICE }))
    ));
    assert!(
        registry
            .stream_leased(gateway_1, 9)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
}

#[test]
async fn a_bulk_lease_serves_all_valid_requests() {
    let registry = in_memory().await;
    let fleet = (1..=1200).map(|id| pool_device(id, 6));
    registry
        .enroll_bulk(fleet, Default::default(), |_| ())
        .await
        .unwrap();
    registry.revoke(DeviceId(700), "", 0).await.unwrap();
    let Site {
        registry, gateway_1, ..
    } = Site::of(registry).await;
    let request_of = |device| LeaseRequest {
        device: DeviceId(device),
        ..lease_request(0, 4, 4)
    };
    let mut requests: Vec<_> = (1..=1200).map(request_of).collect();
    requests.extend([
        request_of(5000),
        LeaseRequest {
            hold_rows: 6,
            received: RowIndex(4),
            ..request_of(1200)
        },
    ]);
    let results = registry.lease(&gateway_1, &requests).await.unwrap();
    assert_eq!(results.len(), 1202);
    for (lease_request, result) in requests.iter().zip(&results).take(1200) {
        match result {
            Ok(granted) => assert_eq!(
                (granted.device, granted.rows.clone()),
                (lease_request.device, 0..4)
            ),
            Err(RegistryError::Device(DeviceError::Revoked { device })) => assert_eq!(*device, DeviceId(700)),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(matches!(
        results[1200],
        Err(RegistryError::Device(DeviceError::UnknownDevice {
            device: DeviceId(5000)
        }))
    ));
    // A second lease request in the same call takes the first into account.
    assert_eq!(results[1201].as_ref().unwrap().rows, 4..6);
    let mut listed_devices = 0;
    let mut stream = registry.stream_leased(gateway_1, 100);
    let mut last = (0, 0);
    while let Some(chunk) = stream.next_chunk().await.unwrap() {
        assert!(chunk.damaged.is_empty() && chunk.progress > last);
        last = chunk.progress;
        listed_devices += chunk.devices.len();
    }
    // The marks of all other devices allow all their rows to be spent, so these devices are not listed.
    assert_eq!(listed_devices, 1);
}

/// Two programs (two handles of one file) lease rows in several tasks, one gateway per task: no row is leased twice.
#[test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_leases_never_overlap() {
    let (_directory, path) = unused_location();
    let first = Registry::create(&path, &master_key()).await.unwrap();
    let second = Registry::open(&path, &master_key()).await.unwrap();
    first.enroll(pool_device(DEVICE.0, 400)).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..8 {
        let registry = if n % 2 == 0 { first.clone() } else { second.clone() };
        tasks.push(tokio::spawn(async move {
            let fencing_token = registry.register_gateway(GatewayId(n), NOW_S).await.unwrap();
            let mut rows = Vec::new();
            let mut next_row = 0;
            for count in 1..=6 {
                let granted = lease(&registry, &fencing_token, lease_request(next_row, count, count))
                    .await
                    .unwrap();
                next_row = granted.rows.end;
                rows.extend(granted.rows);
            }
            rows
        }));
    }
    let mut all_rows = Vec::new();
    for task in tasks {
        all_rows.extend(task.await.unwrap());
    }
    all_rows.sort_unstable();
    assert_eq!(all_rows, (0..8 * 21).collect::<Vec<u32>>());
}

/// A gateway with a wrong clock, ahead or behind, registers like any other.
#[test]
async fn no_time_of_day_damages_a_gateway_record() {
    let registry = in_memory().await;
    let gateway = GatewayId(1);
    for (number, now_s) in (1..).zip([NOW_S, u64::MAX, 0, i64::MAX as u64 + 1, NOW_S]) {
        let fencing_token = registry.register_gateway(gateway, now_s).await.unwrap();
        assert_eq!(fencing_token.number(), number);
        registry.verify_fencing_token(&fencing_token).await.unwrap();
    }
}
