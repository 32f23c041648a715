//! The change feed, and the listing of the active fleet that precedes it.

use std::collections::BTreeMap;

use crate::support::{
    fleet_of_40, gateway, in_memory, lease, lease_all, open, pool_device, pool_device_from, sql, try_sql,
};
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{OnConflict, Registry};
use linewarden_types::{Revision, UnusedRows};

async fn fleet(devices: u64) -> Registry {
    let registry = in_memory().await;
    registry
        .enroll_bulk(
            (1..=devices).map(|id| pool_device(id, 4)),
            Default::default(),
            |_| (),
        )
        .await
        .unwrap();
    registry
}

#[test]
async fn each_change_has_its_own_higher_revision() {
    let registry = fleet(3).await;
    assert_eq!(registry.revision().await.unwrap(), Revision(3));
    assert_eq!(registry.revoke(DeviceId(2), "", 0).await.unwrap(), Revision(4));
    registry
        .enroll_chunk(vec![pool_device_from(1, 50, 2)], OnConflict::Replace)
        .await
        .unwrap();

    let page = registry.changes_since(Revision::ZERO, 100).await.unwrap();
    let changes: Vec<_> = page
        .changes
        .iter()
        .map(|c| (c.device.0, c.revision.0, c.active, c.epoch))
        .collect();
    assert_eq!(changes, [(3, 3, true, 0), (2, 4, false, 0), (1, 5, true, 1)]);
    assert_eq!((page.up_to_revision, page.has_more), (Revision(5), false));

    let next_page = registry.changes_since(page.up_to_revision, 100).await.unwrap();
    assert_eq!(
        (next_page.changes.len(), next_page.up_to_revision),
        (0, Revision(5))
    );
}

#[test]
async fn pages_of_the_feed_lose_nothing() {
    let registry = fleet(25).await;
    let (mut since, mut devices) = (Revision::ZERO, Vec::new());
    loop {
        let page = registry.changes_since(since, 7).await.unwrap();
        devices.extend(page.changes.iter().map(|change| change.device.0));
        since = page.up_to_revision;
        if !page.has_more {
            break;
        }
    }
    assert_eq!(devices, (1..=25).collect::<Vec<_>>());
}

#[test]
async fn marks_and_refusals_are_not_in_the_feed() {
    let registry = fleet(2).await;
    let revision_before = registry.revision().await.unwrap();
    let fencing_token = gateway(&registry).await;
    let _ = lease(&registry, &fencing_token, 1, 0, 2).await.unwrap();
    let unused_rows = UnusedRows {
        device: DeviceId(1),
        epoch: 0,
        unused_from: RowIndex(1),
        keep_leased: false,
    };
    assert_eq!(
        registry
            .record_unused_rows(&fencing_token, &[unused_rows])
            .await
            .unwrap()
            .remove(0)
            .unwrap(),
        1
    );
    registry.enroll(pool_device(1, 1)).await.unwrap_err();
    registry.revoke(DeviceId(9), "", 0).await.unwrap_err();
    assert_eq!(registry.revision().await.unwrap(), revision_before);
}

/// A gateway lists the fleet while the fleet changes, and then reads the feed. It then has the state of the registry.
#[test]
async fn the_listing_and_the_feed_together_miss_no_change() {
    let registry = fleet(30).await;
    let mut view = BTreeMap::new();
    let fencing_token = lease_all(&registry, 1..=30).await;
    let mut stream = registry.stream_leased(fencing_token, 7);
    let mut step = 0;
    while let Some(chunk) = stream.next_chunk().await.unwrap() {
        assert!(chunk.damaged.is_empty());
        for device in chunk.devices {
            assert!(
                device.info.revision <= stream.feed_from(),
                "a listing that follows changes might never end"
            );
            view.insert(device.info.device, device.info.epoch);
        }
        step += 1;
        if step == 2 {
            registry.revoke(DeviceId(1), "seen already", 0).await.unwrap();
            registry.revoke(DeviceId(29), "not seen yet", 0).await.unwrap();
            registry.enroll(pool_device(31, 4)).await.unwrap();
            registry
                .enroll_chunk(vec![pool_device_from(2, 50, 2)], OnConflict::Replace)
                .await
                .unwrap();
        }
    }
    for change in registry
        .changes_since(stream.feed_from(), 1000)
        .await
        .unwrap()
        .changes
    {
        if change.active {
            view.insert(change.device, change.epoch);
        } else {
            view.remove(&change.device);
        }
    }
    let expected: BTreeMap<_, _> = (2..=31)
        .filter(|id| *id != 29)
        .map(|id| (DeviceId(id), u32::from(id == 2)))
        .collect();
    assert_eq!(view, expected);
}

/// Reads the feed after revision `since`, page by page. Returns the last revision, and whether each changed device is
/// active.
async fn read_feed(registry: &Registry, mut since: Revision, limit: u32) -> (Revision, BTreeMap<u64, bool>) {
    let mut active = BTreeMap::new();
    for _ in 0..100 {
        let page = registry.changes_since(since, limit).await.unwrap();
        active.extend(page.changes.iter().map(|change| (change.device.0, change.active)));
        since = page.up_to_revision;
        if !page.has_more {
            return (since, active);
        }
    }
    panic!("the feed does not end, at {since:?}")
}

/// Write access to the file without the master key does not hide later changes from gateways.
#[test]
async fn a_forged_revision_does_not_stop_the_feed() {
    for revision in ["60", "9223372036854775807", "9e99", "'text'"] {
        for limit in [100, 7, 1] {
            let (_directory, path) = fleet_of_40().await;
            let registry = open(&path).await.unwrap();
            let (revision_before, _) = read_feed(&registry, Revision::ZERO, limit).await;
            let edit = format!("UPDATE device SET revision = {revision} WHERE device_id = 3");
            if !try_sql(&path, &edit).await {
                continue;
            }
            let revoked = registry.revoke(DeviceId(2), "", 0).await.unwrap();
            // The feed is read from its start, and from a later revision.
            for since in [Revision::ZERO, revision_before] {
                let (upto, active) = read_feed(&registry, since, limit).await;
                assert_eq!(active.get(&2), Some(&false), "{revision}");
                assert_eq!(upto, revoked, "{revision}");
                if revision.parse::<u64>().is_ok_and(|revision| revision > since.0) {
                    assert_eq!(
                        active.get(&3),
                        Some(&false),
                        "{revision}: the device is reported as inactive"
                    );
                }
                assert!(read_feed(&registry, upto, limit).await.1.len() <= 1, "{revision}");
            }
            let next = registry.revoke(DeviceId(4), "", 0).await.unwrap();
            let (upto, active) = read_feed(&registry, revoked, limit).await;
            assert_eq!((upto, active.get(&4)), (next, Some(&false)), "{revision}");
        }
    }
}

/// Before the valid records, the feed reports any number of devices with damaged records as inactive.
#[test]
async fn pages_of_damaged_records_do_not_stop_the_feed() {
    let (_directory, path) = fleet_of_40().await;
    sql(&path, "UPDATE device SET name = 'another' WHERE device_id <= 30").await;
    let registry = open(&path).await.unwrap();
    let (upto, active) = read_feed(&registry, Revision::ZERO, 4).await;
    let expected: BTreeMap<u64, bool> = (1..=40).map(|id| (id, id > 30)).collect();
    assert_eq!((upto, active), (registry.revision().await.unwrap(), expected));
}
