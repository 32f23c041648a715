//! Rows that gateways return or leave unused are leased again.

use crate::leases::{DEVICE, NOW_S, Site, lease, lease_request, report_unused_rows};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{DeviceError, RegistryError};

#[test]
async fn unused_rows_are_leased_again() {
    let site = Site::with_pool(20).await;
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = &site;
    let _ = lease(registry, gateway_1, lease_request(0, 8, 4)).await.unwrap();
    assert_eq!(
        report_unused_rows(registry, gateway_1, 3, false).await.unwrap(),
        5
    );
    assert_eq!(
        site.floor().await,
        3,
        "the returned rows were the highest leased rows"
    );
    assert_eq!(
        lease(registry, gateway_2, lease_request(0, 4, 4))
            .await
            .unwrap()
            .rows,
        3..7
    );
    assert_eq!(
        lease(registry, gateway_1, lease_request(3, 4, 4))
            .await
            .unwrap()
            .rows,
        7..11
    );
    // Higher rows are leased: the returned rows become an unleased range, and the floor stays.
    assert_eq!(
        report_unused_rows(registry, gateway_2, 4, false).await.unwrap(),
        3
    );
    assert_eq!(site.floor().await, 11);
    // Gateway 1 had higher rows. There the device answers no lower rows, so gateway 1 gets none of the returned rows 4..7.
    assert_eq!(
        report_unused_rows(registry, gateway_1, 9, false).await.unwrap(),
        2
    );
    assert_eq!(site.floor().await, 9);
    assert_eq!(
        lease(registry, gateway_1, lease_request(9, 1, 1))
            .await
            .unwrap()
            .rows,
        9..10
    );
    let gateway_3 = registry.register_gateway(GatewayId(3), NOW_S).await.unwrap();
    assert_eq!(
        lease(registry, &gateway_3, lease_request(0, 9, 4))
            .await
            .unwrap()
            .rows,
        4..7
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn rows_that_one_gateway_may_no_longer_use_are_leased_to_other_gateways() {
    let site = Site::with_pool(30).await;
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = &site;
    let _ = lease(registry, gateway_2, lease_request(0, 10, 0)).await.unwrap();
    assert_eq!(
        lease(registry, gateway_1, lease_request(0, 8, 0))
            .await
            .unwrap()
            .rows,
        10..18
    );
    assert_eq!(
        report_unused_rows(registry, gateway_1, 18, false).await.unwrap(),
        0
    );
    assert_eq!(
        report_unused_rows(registry, gateway_2, 2, false).await.unwrap(),
        8
    );
    let gateway_3 = registry.register_gateway(GatewayId(3), NOW_S).await.unwrap();
    assert_eq!(
        lease(registry, &gateway_3, lease_request(0, 30, 0))
            .await
            .unwrap()
            .rows,
        2..10
    );
    assert_eq!(
        report_unused_rows(registry, &gateway_3, 2, false).await.unwrap(),
        8
    );
    // The return lowers the floor. The first gateway continues above its own rows.
    let _ = lease(registry, gateway_1, lease_request(18, 4, 0)).await.unwrap();
    assert_eq!(
        report_unused_rows(registry, gateway_1, 18, false).await.unwrap(),
        4
    );
    assert_eq!(site.floor().await, 18);
    let mut leased_rows = Vec::new();
    let gateway_4 = registry.register_gateway(GatewayId(4), NOW_S).await.unwrap();
    let mut from = 0;
    while let Ok(granted) = lease(registry, &gateway_4, lease_request(from, 30, 30)).await {
        leased_rows.extend(granted.rows.clone());
        from = granted.rows.end;
    }
    assert_eq!(leased_rows, (2..10).chain(18..30).collect::<Vec<u32>>());
}

#[test]
async fn adjacent_unleased_ranges_are_joined_with_each_other_and_with_the_floor() {
    let site = Site::with_pool(20).await;
    let registry = &site.registry;
    let mut tokens = Vec::new();
    for gateway in 10..14 {
        let fencing_token = registry
            .register_gateway(GatewayId(gateway), NOW_S)
            .await
            .unwrap();
        let _ = lease(registry, &fencing_token, lease_request(0, 4, 0))
            .await
            .unwrap();
        tokens.push(fencing_token);
    }
    for gateway in [1, 0, 2] {
        let start = 4 * gateway as u32;
        assert_eq!(
            report_unused_rows(registry, &tokens[gateway], start, false)
                .await
                .unwrap(),
            4
        );
        assert_eq!(site.floor().await, 16);
    }
    assert_eq!(
        lease(registry, &site.gateway_1, lease_request(0, 20, 20))
            .await
            .unwrap()
            .rows,
        0..12
    );
    assert_eq!(
        report_unused_rows(registry, &site.gateway_1, 0, false)
            .await
            .unwrap(),
        12
    );
    assert_eq!(
        report_unused_rows(registry, &tokens[3], 12, false).await.unwrap(),
        4
    );
    assert_eq!(site.floor().await, 0, "no row was used");
}

#[test]
async fn a_gateway_that_shuts_down_keeps_its_rows_and_loses_none() {
    let Site {
        registry, gateway_1, ..
    } = Site::with_pool(20).await;
    let _ = lease(&registry, &gateway_1, lease_request(0, 8, 4))
        .await
        .unwrap();
    assert_eq!(
        report_unused_rows(&registry, &gateway_1, 2, true).await.unwrap(),
        0
    );
    let restarted_token = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    let mut stream = registry.stream_leased(restarted_token, 10);
    let chunk = stream.next_chunk().await.unwrap().unwrap();
    let device = &chunk.devices[0];
    assert_eq!(
        (device.info.device, device.lease.rows.clone(), device.lease.mark.0),
        (DEVICE, 2..8, 2)
    );
    assert_eq!(device.credentials.indices(), 0..20);
    assert!(stream.next_chunk().await.unwrap().is_none());
    assert_eq!(
        lease(&registry, &restarted_token, lease_request(2, 0, 4))
            .await
            .unwrap()
            .mark
            .0,
        6
    );
}

#[test]
async fn rows_that_are_not_leased_cannot_be_returned() {
    let site = Site::with_pool(20).await;
    let Site {
        registry,
        gateway_1,
        gateway_2,
    } = &site;
    let _ = lease(registry, gateway_1, lease_request(0, 8, 4)).await.unwrap();
    let error = report_unused_rows(registry, gateway_1, 9, false)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Device(DeviceError::InvalidUnusedRows {
                unused_from: 9,
                rows_start: 0,
                rows_end: 8,
                ..
            })
        ),
        "{error}"
    );
    assert_eq!(
        report_unused_rows(registry, gateway_2, 4, false).await.unwrap(),
        0,
        "the gateway never had rows"
    );
    assert_eq!(registry.leases_of(DEVICE).await.unwrap().len(), 1);
    assert_eq!(
        report_unused_rows(registry, gateway_1, 8, false).await.unwrap(),
        0,
        "all rows are used"
    );
    assert_eq!(site.floor().await, 8);
    // The gateway has reported all its rows as used: a lower report is too late.
    assert_eq!(
        report_unused_rows(registry, gateway_1, 3, false).await.unwrap(),
        0
    );
    assert_eq!(site.floor().await, 8);
}
