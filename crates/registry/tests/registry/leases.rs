//! Leasing rows: to one gateway each, in increasing order, and none lost but to a loss of memory.

use crate::support::{in_memory, key_device, master_key, nowhere, pool_device, pool_device_from};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::Statement;
use linewarden_registry::{
    Fence, Granted, LeaseRequest, OnConflict, Registry, RegistryError, Result, Settlement,
};

const D: DeviceId = DeviceId(5);
const NOW_S: u64 = 1_790_000_000;

struct Site {
    registry: Registry,
    one: Fence,
    two: Fence,
}

impl Site {
    async fn of(registry: Registry) -> Self {
        let one = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
        let two = registry.register_gateway(GatewayId(2), NOW_S).await.unwrap();
        Self { registry, one, two }
    }

    async fn with_pool(rows: u32) -> Self {
        let registry = in_memory().await;
        registry.enrol(pool_device(D.0, rows)).await.unwrap();
        Self::of(registry).await
    }

    async fn floor(&self) -> u32 {
        self.registry.get(D).await.unwrap().idx_floor.0
    }
}

fn wish(from: u32, hold: u32, ahead: u32) -> LeaseRequest {
    LeaseRequest {
        device: D,
        epoch: 0,
        from: RowIndex(from),
        received: RowIndex(0),
        hold,
        ahead,
        stated: Statement::default(),
    }
}

/// As a process asks that every answer has reached.
async fn lease(registry: &Registry, fence: &Fence, wish: LeaseRequest) -> Result<Granted> {
    let held = registry.leases_of(wish.device).await?;
    let held = held.iter().find(|lease| lease.gateway == fence.gateway());
    let received = RowIndex(held.map_or(0, |lease| lease.rows.end));
    registry
        .lease(fence, &[LeaseRequest { received, ..wish }])
        .await?
        .remove(0)
}

async fn settle(registry: &Registry, fence: &Fence, unused_from: u32, keep: bool) -> Result<u32> {
    let settlement = Settlement {
        device: D,
        epoch: 0,
        unused_from: RowIndex(unused_from),
        keep,
    };
    registry.settle(fence, &[settlement]).await?.remove(0)
}

#[tokio::test]
async fn rows_and_mark_go_on_together_until_the_pool_ends() {
    let Site { registry, one, .. } = Site::with_pool(10).await;
    let mut seen = Vec::new();
    for (from, hold, ahead) in [(0, 6, 4), (3, 0, 4), (5, 5, 4), (9, 4, 4)] {
        let granted = lease(&registry, &one, wish(from, hold, ahead)).await.unwrap();
        seen.push((granted.rows, granted.mark.0));
    }
    assert_eq!(seen, [(0..6, 4), (6..6, 6), (6..10, 9), (10..10, 10)]);
    let end = lease(&registry, &one, wish(10, 4, 4)).await.unwrap_err();
    assert!(
        matches!(
            end,
            RegistryError::RowsExhausted {
                device: D,
                rows_end: 10
            }
        ),
        "{end}"
    );
}

/// The rows of an answer that did not arrive are in the next one, and are not leased twice.
#[tokio::test]
async fn a_lost_answer_is_given_again() {
    let Site { registry, one, two } = Site::with_pool(40).await;
    let ask = async |received: u32, wish: LeaseRequest| {
        let received = RowIndex(received);
        let wishes = [LeaseRequest { received, ..wish }];
        registry.lease(&one, &wishes).await.unwrap().remove(0)
    };
    assert_eq!(ask(0, wish(0, 6, 4)).await.unwrap().rows, 0..6);
    assert_eq!(ask(6, wish(4, 8, 4)).await.unwrap().rows, 6..12);
    let again = ask(6, wish(4, 8, 4)).await.unwrap();
    assert_eq!((again.rows, again.mark.0), (6..12, 8));
    // It goes on elsewhere, and the answer that said so is lost.
    assert_eq!(lease(&registry, &two, wish(0, 4, 4)).await.unwrap().rows, 12..16);
    assert_eq!(ask(12, wish(11, 4, 4)).await.unwrap().rows, 12..12);
    assert_eq!(ask(12, wish(12, 4, 4)).await.unwrap().rows, 16..20);
    assert_eq!(ask(12, wish(12, 4, 4)).await.unwrap().rows, 16..20);
    assert_eq!(registry.get(D).await.unwrap().idx_floor.0, 20);
}

#[tokio::test]
async fn a_key_device_counts_on_from_where_it_was_settled() {
    let registry = in_memory().await;
    registry.enrol(key_device(D.0)).await.unwrap();
    let Site { registry, one, two } = Site::of(registry).await;
    assert_eq!(lease(&registry, &one, wish(0, 1, 1)).await.unwrap().rows, 0..1);
    assert_eq!(settle(&registry, &one, 7, false).await.unwrap(), 0);
    let held = registry.leases_of(D).await.unwrap();
    assert_eq!(held[0].rows, 7..7, "it has left");
    assert!(
        registry
            .stream_leased(one, 10)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(lease(&registry, &two, wish(0, 1, 1)).await.unwrap().rows, 7..8);
    assert_eq!(settle(&registry, &two, 3, true).await.unwrap(), 0);
    assert_eq!(
        lease(&registry, &one, wish(0, 1, 1)).await.unwrap().rows,
        7..8,
        "never lower"
    );
    assert!(
        registry
            .stream_leased(two, 10)
            .next_chunk()
            .await
            .unwrap()
            .is_some()
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_mark_never_goes_back_nor_beyond_the_lease() {
    let Site { registry, one, .. } = Site::with_pool(10).await;
    assert_eq!(lease(&registry, &one, wish(0, 5, 9)).await.unwrap().mark.0, 5);
    assert_eq!(lease(&registry, &one, wish(0, 0, 1)).await.unwrap().mark.0, 5);
}

#[tokio::test]
async fn two_gateways_never_hold_one_row() {
    let Site { registry, one, two } = Site::with_pool(20).await;
    assert_eq!(lease(&registry, &one, wish(0, 8, 4)).await.unwrap().rows, 0..8);
    assert_eq!(lease(&registry, &two, wish(0, 4, 4)).await.unwrap().rows, 8..12);
    // The first one's rows are not all open to it yet: going on elsewhere would lose some.
    assert_eq!(lease(&registry, &one, wish(2, 10, 2)).await.unwrap().rows, 8..8);
    // Now they are.
    let granted = lease(&registry, &one, wish(6, 6, 4)).await.unwrap();
    assert_eq!((granted.rows, granted.mark.0), (8..8, 8));
    let granted = lease(&registry, &one, wish(8, 4, 4)).await.unwrap();
    assert_eq!((granted.rows, granted.mark.0), (12..16, 16));
    let held = registry.leases_of(D).await.unwrap();
    let held: Vec<_> = held
        .iter()
        .map(|lease| (lease.gateway.0, lease.rows.clone()))
        .collect();
    assert_eq!(held, [(1, 12..16), (2, 8..12)]);
}

#[tokio::test]
async fn rows_given_back_are_leased_again() {
    let site = Site::with_pool(20).await;
    let Site { registry, one, two } = &site;
    let _ = lease(registry, one, wish(0, 8, 4)).await.unwrap();
    assert_eq!(settle(registry, one, 3, false).await.unwrap(), 5);
    assert_eq!(site.floor().await, 3, "the last rows that were leased");
    assert_eq!(lease(registry, two, wish(0, 4, 4)).await.unwrap().rows, 3..7);
    assert_eq!(lease(registry, one, wish(3, 4, 4)).await.unwrap().rows, 7..11);
    // Not the last ones: they are spare.
    assert_eq!(settle(registry, two, 4, false).await.unwrap(), 3);
    assert_eq!(site.floor().await, 11);
    // The first gateway has had higher numbers: a device answers no lower one there.
    assert_eq!(settle(registry, one, 9, false).await.unwrap(), 2);
    assert_eq!(site.floor().await, 9);
    assert_eq!(lease(registry, one, wish(9, 1, 1)).await.unwrap().rows, 9..10);
    let three = registry.register_gateway(GatewayId(3), NOW_S).await.unwrap();
    assert_eq!(lease(registry, &three, wish(0, 9, 4)).await.unwrap().rows, 4..7);
    assert!(registry.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn numbers_that_one_gateway_may_use_no_more_are_still_good_for_others() {
    let site = Site::with_pool(30).await;
    let Site { registry, one, two } = &site;
    let _ = lease(registry, two, wish(0, 10, 0)).await.unwrap();
    assert_eq!(lease(registry, one, wish(0, 8, 0)).await.unwrap().rows, 10..18);
    assert_eq!(settle(registry, one, 18, false).await.unwrap(), 0);
    assert_eq!(settle(registry, two, 2, false).await.unwrap(), 8);
    let three = registry.register_gateway(GatewayId(3), NOW_S).await.unwrap();
    assert_eq!(lease(registry, &three, wish(0, 30, 0)).await.unwrap().rows, 2..10);
    assert_eq!(settle(registry, &three, 2, false).await.unwrap(), 8);
    // The floor goes down behind the first gateway's back, and it goes on above what it has had.
    let _ = lease(registry, one, wish(18, 4, 0)).await.unwrap();
    assert_eq!(settle(registry, one, 18, false).await.unwrap(), 4);
    assert_eq!(site.floor().await, 18);
    let mut left = Vec::new();
    let four = registry.register_gateway(GatewayId(4), NOW_S).await.unwrap();
    let mut from = 0;
    while let Ok(granted) = lease(registry, &four, wish(from, 30, 30)).await {
        left.extend(granted.rows.clone());
        from = granted.rows.end;
    }
    assert_eq!(left, (2..10).chain(18..30).collect::<Vec<u32>>());
}

#[tokio::test]
async fn spare_rows_next_to_each_other_and_to_the_floor_are_joined() {
    let site = Site::with_pool(20).await;
    let registry = &site.registry;
    let mut fences = Vec::new();
    for gateway in 10..14 {
        let fence = registry
            .register_gateway(GatewayId(gateway), NOW_S)
            .await
            .unwrap();
        let _ = lease(registry, &fence, wish(0, 4, 0)).await.unwrap();
        fences.push(fence);
    }
    for gateway in [1, 0, 2] {
        let start = 4 * gateway as u32;
        assert_eq!(settle(registry, &fences[gateway], start, false).await.unwrap(), 4);
        assert_eq!(site.floor().await, 16);
    }
    assert_eq!(
        lease(registry, &site.one, wish(0, 20, 20)).await.unwrap().rows,
        0..12
    );
    assert_eq!(settle(registry, &site.one, 0, false).await.unwrap(), 12);
    assert_eq!(settle(registry, &fences[3], 12, false).await.unwrap(), 4);
    assert_eq!(site.floor().await, 0, "nothing was ever used");
}

#[tokio::test]
async fn a_gateway_that_stops_in_good_order_keeps_its_rows_and_loses_none() {
    let Site { registry, one, .. } = Site::with_pool(20).await;
    let _ = lease(&registry, &one, wish(0, 8, 4)).await.unwrap();
    assert_eq!(settle(&registry, &one, 2, true).await.unwrap(), 0);
    let again = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    let mut stream = registry.stream_leased(again, 10);
    let chunk = stream.next_chunk().await.unwrap().unwrap();
    let held = &chunk.devices[0];
    assert_eq!(
        (held.info.device, held.lease.rows.clone(), held.lease.mark.0),
        (D, 2..8, 2)
    );
    assert_eq!(held.credentials.indices(), 0..20);
    assert!(stream.next_chunk().await.unwrap().is_none());
    assert_eq!(lease(&registry, &again, wish(2, 0, 4)).await.unwrap().mark.0, 6);
}

#[tokio::test]
async fn a_gateway_that_was_replaced_gets_nothing_and_changes_nothing() {
    let site = Site::with_pool(20).await;
    let Site { registry, one, .. } = &site;
    let _ = lease(registry, one, wish(0, 8, 4)).await.unwrap();
    let newer = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    assert_eq!((one.number(), newer.number()), (1, 2));
    let before = registry.leases_of(D).await.unwrap();
    let old = |error: RegistryError| {
        assert!(
            matches!(
                error,
                RegistryError::OldFence {
                    gateway: GatewayId(1),
                    shown: 1,
                    newest: 2
                }
            ),
            "{error}"
        );
    };
    old(lease(registry, one, wish(4, 4, 4)).await.unwrap_err());
    old(settle(registry, one, 0, false).await.unwrap_err());
    old(registry.stream_leased(*one, 10).next_chunk().await.unwrap_err());
    assert_eq!(registry.leases_of(D).await.unwrap(), before);
    assert_eq!(site.floor().await, 8);
}

#[tokio::test]
async fn what_is_not_held_cannot_be_given_back() {
    let site = Site::with_pool(20).await;
    let Site { registry, one, two } = &site;
    let _ = lease(registry, one, wish(0, 8, 4)).await.unwrap();
    let error = settle(registry, one, 9, false).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::NotLeased {
                unused_from: 9,
                rows_start: 0,
                rows_end: 8,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        settle(registry, two, 4, false).await.unwrap(),
        0,
        "it never had any"
    );
    assert_eq!(registry.leases_of(D).await.unwrap().len(), 1);
    assert_eq!(settle(registry, one, 8, false).await.unwrap(), 0, "all used");
    assert_eq!(site.floor().await, 8);
    // Given back already: the number after its highest row is what it can still speak of.
    assert_eq!(settle(registry, one, 3, false).await.unwrap(), 0);
    assert_eq!(site.floor().await, 8);
}

#[tokio::test]
async fn only_what_is_held_is_extended() {
    let site = Site::with_pool(30).await;
    let Site { registry, one, two } = &site;
    let extend = async |fence: &Fence, request: LeaseRequest| {
        let answers = registry.extend_leases(fence, &[request, request]).await.unwrap();
        assert_eq!(answers.len(), 2);
        answers.into_iter().next().unwrap()
    };
    let not_held = |answer: Result<Granted>| matches!(answer, Err(RegistryError::NotHeld { device: D, .. }));
    assert!(not_held(extend(one, wish(0, 8, 4)).await), "it never came");
    let _ = lease(registry, one, wish(0, 8, 4)).await.unwrap();
    assert_eq!(extend(one, wish(4, 8, 4)).await.unwrap().rows, 0..12);
    assert!(not_held(extend(two, wish(0, 8, 4)).await), "nor did it there");
    // All that it has may be spent: it holds it all the same, after a restart too.
    let again = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    assert_eq!(extend(&again, wish(12, 4, 4)).await.unwrap().held.end, 16);
    assert_eq!(settle(registry, &again, 13, false).await.unwrap(), 3);
    assert!(not_held(extend(&again, wish(13, 4, 4)).await), "it has left");
    let _ = lease(registry, &again, wish(0, 4, 4)).await.unwrap();
    // Of new credentials nothing is held.
    registry
        .enrol_chunk(vec![pool_device_from(D.0, 16, 10)], OnConflict::Replace)
        .await
        .unwrap();
    assert!(not_held(extend(&again, wish(0, 4, 4)).await), "others than those");
    assert_eq!(settle(registry, &again, 0, false).await.unwrap(), 0);
}

#[tokio::test]
async fn a_gateway_that_knows_of_more_used_rows_than_the_registry_is_believed() {
    let site = Site::with_pool(30).await;
    let Site { registry, one, two } = &site;
    // An old copy of the registry was put back: it knows of no lease.
    let granted = lease(registry, one, wish(7, 4, 4)).await.unwrap();
    assert_eq!((granted.rows, granted.mark.0), (7..11, 11));
    assert_eq!(lease(registry, two, wish(0, 4, 4)).await.unwrap().rows, 11..15);
    assert!(matches!(
        lease(registry, one, wish(u32::MAX, 1, 1)).await,
        Err(RegistryError::RowsExhausted { .. })
    ));
    assert_eq!(lease(registry, one, wish(11, 1, 1)).await.unwrap().rows, 15..16);
}

/// What a device states moves its lease only where it has answered rows that the registry has leased to nobody, or was offered one that it
/// has answered; rows of others stay theirs, and spare ones are kept.
#[tokio::test]
async fn a_devices_statement_moves_a_registry_that_has_forgotten_leases() {
    let Site { registry, one, two } = Site::with_pool(60).await;
    let stated = |unanswered_from, has_refused| LeaseRequest {
        stated: Statement {
            unanswered_from: RowIndex(unanswered_from),
            has_refused,
        },
        ..wish(0, 4, 2)
    };
    assert_eq!(lease(&registry, &one, wish(0, 8, 2)).await.unwrap().rows, 0..8);
    // It was at both, and has answered more than the lowest row that is free.
    assert_eq!(settle(&registry, &one, 2, false).await.unwrap(), 6);
    assert_eq!(lease(&registry, &two, stated(2, false)).await.unwrap().rows, 2..6);
    assert_eq!(settle(&registry, &two, 4, false).await.unwrap(), 2);
    // Above all that was leased: those in between are nobody's any more.
    let granted = lease(&registry, &one, stated(20, false)).await.unwrap();
    assert_eq!((granted.held, granted.mark.0), (20..24, 22));
    let again = lease(&registry, &one, stated(20, false)).await.unwrap();
    assert_eq!(again.held, 20..24, "the same again");
    // Refused: above all that was leased, though it has answered less. What is left behind is free.
    assert_eq!(settle(&registry, &one, 22, false).await.unwrap(), 2);
    assert_eq!(
        lease(&registry, &two, stated(21, false)).await.unwrap().rows,
        22..26
    );
    let granted = lease(&registry, &one, stated(21, true)).await.unwrap();
    assert_eq!(granted.held, 26..30);
    // Beyond the pool it says nothing, unless it has refused a row: then none is left that it answers.
    let Site { registry, one, .. } = Site::with_pool(10).await;
    assert_eq!(
        lease(&registry, &one, stated(11, false)).await.unwrap().rows,
        0..4
    );
    for row in [10, 11] {
        assert!(matches!(
            lease(&registry, &one, stated(row, true)).await,
            Err(RegistryError::RowsExhausted { .. })
        ));
    }
}

/// A device without durable memory that was restarted since states less than the registry knows as leased. Rows that were leased after the
/// backup lie above what the backup knows.
#[tokio::test]
async fn the_first_lease_after_a_restore_begins_above_what_is_leased_and_what_is_stated() {
    for (unanswered_from, highest) in [(0, 4), (3, 4), (8, 8), (60, 60)] {
        let Site { registry, one, .. } = Site::with_pool(100).await;
        assert_eq!(lease(&registry, &one, wish(0, 4, 4)).await.unwrap().rows, 0..4);
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy.registry");
        registry.copy_to(&*copy, |_| ()).await.unwrap();
        let restored = crate::support::open(&copy).await.unwrap();
        let fence = crate::support::gateway(&restored).await;
        let stated = LeaseRequest {
            stated: Statement {
                unanswered_from: RowIndex(unanswered_from),
                has_refused: false,
            },
            ..wish(0, 4, 2)
        };
        let granted = lease(&restored, &fence, stated).await.unwrap();
        assert_eq!(granted.rows.start, highest + 2 * 4, "{unanswered_from}");
    }
}

/// The same proof again, in one question or in two, gets the same rows, and none of them is free for others meanwhile.
#[tokio::test]
async fn a_statement_that_comes_twice_moves_a_lease_once() {
    let Site { registry, one, two } = Site::with_pool(60).await;
    assert_eq!(lease(&registry, &two, wish(0, 8, 2)).await.unwrap().rows, 0..8);
    assert_eq!(settle(&registry, &two, 3, false).await.unwrap(), 5);
    let refused = LeaseRequest {
        stated: Statement {
            unanswered_from: RowIndex(5),
            has_refused: true,
        },
        ..wish(0, 4, 2)
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        let answers = registry.lease(&one, &[refused, refused]).await.unwrap();
        held.extend(answers.into_iter().map(|answer| answer.unwrap().held));
    }
    assert_eq!(held, [5..9, 5..9, 5..9, 5..9]);
    assert_eq!(lease(&registry, &two, wish(3, 4, 4)).await.unwrap().rows, 9..13);
}

#[tokio::test]
async fn a_pool_may_begin_above_zero() {
    let registry = in_memory().await;
    registry.enrol(pool_device_from(D.0, 1000, 3)).await.unwrap();
    let Site { registry, one, .. } = Site::of(registry).await;
    assert_eq!(
        lease(&registry, &one, wish(0, 9, 2)).await.unwrap().rows,
        1000..1003
    );
    assert_eq!(registry.leases_of(D).await.unwrap()[0].mark.0, 1002);
    let credentials = registry.load(D).await.unwrap().credentials;
    assert!(credentials.row(RowIndex(999)).is_none() && credentials.row(RowIndex(1003)).is_none());
    assert_eq!(
        credentials.row(RowIndex(1001)),
        Some(&crate::support::rows(D.0, 1, 3)[1])
    );
}

#[tokio::test]
async fn key_mode_spends_nothing_and_is_held_by_many() {
    let registry = in_memory().await;
    registry.enrol(key_device(D.0)).await.unwrap();
    let Site { registry, one, two } = Site::of(registry).await;
    for fence in [&one, &two, &one] {
        assert_eq!(lease(&registry, fence, wish(0, 4, 4)).await.unwrap().rows, 0..1);
    }
    assert_eq!(registry.get(D).await.unwrap().idx_floor, RowIndex(0));
    assert_eq!(settle(&registry, &one, 900, true).await.unwrap(), 0);
    let chunk = registry
        .stream_leased(one, 9)
        .next_chunk()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(chunk.devices.len(), 1);
}

#[tokio::test]
async fn new_credentials_end_all_leases_and_use_no_number_again() {
    let site = Site::with_pool(20).await;
    let Site { registry, one, two } = &site;
    let _ = lease(registry, one, wish(0, 8, 4)).await.unwrap();
    let _ = lease(registry, two, wish(0, 4, 4)).await.unwrap();
    assert_eq!(settle(registry, one, 4, false).await.unwrap(), 4);
    let anew = pool_device_from(D.0, 12, 10);
    registry
        .enrol_chunk(vec![anew], OnConflict::Replace)
        .await
        .unwrap();
    assert!(registry.leases_of(D).await.unwrap().is_empty());
    assert!(
        registry
            .stream_leased(*two, 9)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        settle(registry, two, 8, false).await.unwrap(),
        0,
        "of the old rows"
    );
    let granted = lease(registry, one, wish(0, 4, 4)).await.unwrap();
    assert_eq!((granted.rows, granted.epoch), (12..16, 1));
}

#[tokio::test]
async fn a_revoked_device_is_leased_no_rows_and_not_walked_over() {
    let Site { registry, one, .. } = Site::with_pool(20).await;
    let _ = lease(&registry, &one, wish(0, 8, 4)).await.unwrap();
    registry.revoke(D, "lost", NOW_S).await.unwrap();
    assert!(matches!(
        lease(&registry, &one, wish(2, 4, 4)).await,
        Err(RegistryError::Revoked { device: D })
    ));
    assert!(
        registry
            .stream_leased(one, 9)
            .next_chunk()
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_bulk_lease_serves_whom_it_can() {
    let registry = in_memory().await;
    let fleet = (1..=1200).map(|id| pool_device(id, 6));
    registry
        .enrol_bulk(fleet, Default::default(), |_| ())
        .await
        .unwrap();
    registry.revoke(DeviceId(700), "", 0).await.unwrap();
    let Site { registry, one, .. } = Site::of(registry).await;
    let wish_of = |device| LeaseRequest {
        device: DeviceId(device),
        ..wish(0, 4, 4)
    };
    let mut wishes: Vec<_> = (1..=1200).map(wish_of).collect();
    wishes.extend([
        wish_of(5000),
        LeaseRequest {
            hold: 6,
            received: RowIndex(4),
            ..wish_of(1200)
        },
    ]);
    let answers = registry.lease(&one, &wishes).await.unwrap();
    assert_eq!(answers.len(), 1202);
    for (wish, answer) in wishes.iter().zip(&answers).take(1200) {
        match answer {
            Ok(granted) => assert_eq!((granted.device, granted.rows.clone()), (wish.device, 0..4)),
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
    // A second wish in one question sees the first.
    assert_eq!(answers[1201].as_ref().unwrap().rows, 4..6);
    let mut walked = 0;
    let mut stream = registry.stream_leased(one, 100);
    let mut last = (0, 0);
    while let Some(chunk) = stream.next_chunk().await.unwrap() {
        assert!(chunk.damaged.is_empty() && chunk.progress > last);
        last = chunk.progress;
        walked += chunk.devices.len();
    }
    // Of all others no row is left that they may not have used.
    assert_eq!(walked, 1);
}

/// Two programs (two handles of one file), a gateway and several tasks each: no row goes to two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_leases_never_overlap() {
    let (_directory, path) = nowhere();
    let first = Registry::create(&path, &master_key()).await.unwrap();
    let second = Registry::open(&path, &master_key()).await.unwrap();
    first.enrol(pool_device(D.0, 400)).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..8 {
        let registry = if n % 2 == 0 { first.clone() } else { second.clone() };
        tasks.push(tokio::spawn(async move {
            let fence = registry.register_gateway(GatewayId(n), NOW_S).await.unwrap();
            let mut held = Vec::new();
            let mut at = 0;
            for count in 1..=6 {
                let granted = lease(&registry, &fence, wish(at, count, count)).await.unwrap();
                at = granted.rows.end;
                held.extend(granted.rows);
            }
            held
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..8 * 21).collect::<Vec<u32>>());
}

/// A gateway whose clock is far off, before and after, is registered like any other.
#[tokio::test]
async fn no_time_of_day_spoils_a_gateways_record() {
    let registry = in_memory().await;
    let gateway = GatewayId(1);
    for (number, now_s) in (1..).zip([NOW_S, u64::MAX, 0, i64::MAX as u64 + 1, NOW_S]) {
        let fence = registry.register_gateway(gateway, now_s).await.unwrap();
        assert_eq!(fence.number(), number);
        registry.verify_fence(&fence).await.unwrap();
    }
}
