//! Row statements of devices and reports of gateways move leases, also after a restore of the registry.

use crate::leases::{Site, lease, lease_request, report_unused_rows};
use linewarden_protocol::ids::RowIndex;
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{DeviceError, LeaseRequest, RegistryError};

#[test]
async fn a_gateway_report_of_more_used_rows_is_accepted() {
    let site = Site::with_pool(30).await;
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = &site;
    // The registry has no such lease, like a restored old copy.
    let granted = lease(registry, gateway_1, lease_request(7, 4, 4)).await.unwrap();
    assert_eq!((granted.rows, granted.mark.0), (7..11, 11));
    assert_eq!(
        lease(registry, gateway_2, lease_request(0, 4, 4))
            .await
            .unwrap()
            .rows,
        11..15
    );
    assert!(matches!(
        lease(registry, gateway_1, lease_request(u32::MAX, 1, 1)).await,
        Err(RegistryError::Device(DeviceError::RowsExhausted { .. }))
    ));
    assert_eq!(
        lease(registry, gateway_1, lease_request(11, 1, 1))
            .await
            .unwrap()
            .rows,
        15..16
    );
}

/// A device statement moves its lease only if the device has answered unleased rows, or was challenged with an
/// answered row. Rows of other gateways and unleased ranges are kept.
#[test]
async fn a_devices_statement_moves_a_registry_that_has_forgotten_leases() {
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = Site::with_pool(60).await;
    let request_stating = |unanswered_from, has_refused| LeaseRequest {
        statement: RowStatement {
            first_unanswered_row: RowIndex(unanswered_from),
            has_refused_row: has_refused,
        },
        ..lease_request(0, 4, 2)
    };
    assert_eq!(
        lease(&registry, &gateway_1, lease_request(0, 8, 2))
            .await
            .unwrap()
            .rows,
        0..8
    );
    // The device visited both gateways and answered rows above the lowest unleased row.
    assert_eq!(
        report_unused_rows(&registry, &gateway_1, 2, false).await.unwrap(),
        6
    );
    assert_eq!(
        lease(&registry, &gateway_2, request_stating(2, false))
            .await
            .unwrap()
            .rows,
        2..6
    );
    assert_eq!(
        report_unused_rows(&registry, &gateway_2, 4, false).await.unwrap(),
        2
    );
    // The new lease starts at the stated row, above all leased rows: the rows between them are never leased.
    let granted = lease(&registry, &gateway_1, request_stating(20, false))
        .await
        .unwrap();
    assert_eq!((granted.held_rows, granted.mark.0), (20..24, 22));
    let repeated = lease(&registry, &gateway_1, request_stating(20, false))
        .await
        .unwrap();
    assert_eq!(repeated.held_rows, 20..24, "the same rows again");
    // After a refused row the new lease is above all leased rows, although the device answered fewer rows. The skipped
    // rows become unleased.
    assert_eq!(
        report_unused_rows(&registry, &gateway_1, 22, false)
            .await
            .unwrap(),
        2
    );
    assert_eq!(
        lease(&registry, &gateway_2, request_stating(21, false))
            .await
            .unwrap()
            .rows,
        22..26
    );
    let granted = lease(&registry, &gateway_1, request_stating(21, true))
        .await
        .unwrap();
    assert_eq!(granted.held_rows, 26..30);
    // Statements beyond the pool are ignored. After a refused row, however, the device would answer none of the rows.
    let Site {
        registry, gateway_1, ..
    } = Site::with_pool(10).await;
    assert_eq!(
        lease(&registry, &gateway_1, request_stating(11, false))
            .await
            .unwrap()
            .rows,
        0..4
    );
    for row in [10, 11] {
        assert!(matches!(
            lease(&registry, &gateway_1, request_stating(row, true)).await,
            Err(RegistryError::Device(DeviceError::RowsExhausted { .. }))
        ));
    }
}

/// After a restart, a device without persistent memory states a lower row than the registry has leased. Rows leased
/// after the backup are above all rows that the backup records as leased.
#[test]
async fn the_first_lease_after_a_restore_begins_above_the_leased_and_the_stated_rows() {
    for (unanswered_from, highest) in [(0, 4), (3, 4), (8, 8), (60, 60)] {
        let Site {
            registry, gateway_1, ..
        } = Site::with_pool(100).await;
        assert_eq!(
            lease(&registry, &gateway_1, lease_request(0, 4, 4))
                .await
                .unwrap()
                .rows,
            0..4
        );
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy.registry");
        registry.copy_to(&*copy, |_| ()).await.unwrap();
        let restored = crate::support::open(&copy).await.unwrap();
        let fencing_token = crate::support::gateway(&restored).await;
        let request = LeaseRequest {
            statement: RowStatement {
                first_unanswered_row: RowIndex(unanswered_from),
                has_refused_row: false,
            },
            ..lease_request(0, 4, 2)
        };
        let granted = lease(&restored, &fencing_token, request).await.unwrap();
        assert_eq!(granted.rows.start, highest + 2 * 4, "{unanswered_from}");
    }
}

/// A repeated row statement, in the same or another request, yields the same rows, and none of these rows becomes
/// unleased.
#[test]
async fn a_repeated_statement_moves_a_lease_once() {
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = Site::with_pool(60).await;
    assert_eq!(
        lease(&registry, &gateway_2, lease_request(0, 8, 2))
            .await
            .unwrap()
            .rows,
        0..8
    );
    assert_eq!(
        report_unused_rows(&registry, &gateway_2, 3, false).await.unwrap(),
        5
    );
    let request = LeaseRequest {
        statement: RowStatement {
            first_unanswered_row: RowIndex(5),
            has_refused_row: true,
        },
        ..lease_request(0, 4, 2)
    };
    let mut held_rows = Vec::new();
    for _ in 0..2 {
        let results = registry.lease(&gateway_1, &[request, request]).await.unwrap();
        held_rows.extend(results.into_iter().map(|result| result.unwrap().held_rows));
    }
    assert_eq!(held_rows, [5..9, 5..9, 5..9, 5..9]);
    assert_eq!(
        lease(&registry, &gateway_2, lease_request(3, 4, 4))
            .await
            .unwrap()
            .rows,
        9..13
    );
}
