//! Where a device is: which of two sessions at two gateways is over, whatever order reports come in.

use crate::support::{in_memory, lease, pool_device};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    BootId, Fence, Moment, Opened, Registry, RegistryError, Revision, Roamed, Standing,
};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

const DEVICE: DeviceId = DeviceId(7);
const BOOT: BootId = BootId([5; 16]);

fn at(ns: i64) -> Moment {
    Moment { boot: BOOT, ns }
}

fn opened(ns: i64) -> Opened {
    Opened {
        device: DEVICE,
        began: at(ns),
    }
}

/// A registry with the device, which gateways 1 to `count` have rows of.
async fn site(count: u32) -> (Registry, Vec<Fence>) {
    let registry = in_memory().await;
    registry.enrol(pool_device(DEVICE.0, 100)).await.unwrap();
    let mut fences = Vec::new();
    for gateway in 1..=count {
        let fence = registry.register_gateway(GatewayId(gateway), 0).await.unwrap();
        let _ = lease(&registry, &fence, DEVICE.0, 0, 4).await.unwrap();
        fences.push(fence);
    }
    (registry, fences)
}

async fn note(registry: &Registry, fence: &Fence, session: Opened) -> Standing {
    note_at(registry, fence, session, 1_000_000).await
}

async fn note_at(registry: &Registry, fence: &Fence, session: Opened, now_ns: i64) -> Standing {
    let now = Moment {
        ns: now_ns,
        ..session.began
    };
    let noted = registry.note_sessions(fence, &[session], now).await;
    noted.unwrap().remove(0)
}

async fn roamed(registry: &Registry) -> Vec<Roamed> {
    registry.changes_since(Revision::ZERO, 100).await.unwrap().roamed
}

#[tokio::test]
async fn a_device_of_one_gateway_is_nowhere_else() {
    let (registry, fences) = site(1).await;
    let elsewhere = async |fence: &Fence| registry.leased_elsewhere(fence, &[DEVICE, DeviceId(8)]).await;
    assert!(elsewhere(&fences[0]).await.unwrap().is_empty());
    let second = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    assert!(elsewhere(&second).await.unwrap().contains(&DEVICE));
    let _ = lease(&registry, &second, DEVICE.0, 0, 4).await.unwrap();
    assert_eq!(elsewhere(&fences[0]).await.unwrap().len(), 1);

    registry.register_gateway(GatewayId(1), 1).await.unwrap();
    let refused = elsewhere(&fences[0]).await;
    assert!(
        matches!(refused, Err(RegistryError::OldFence { .. })),
        "{refused:?}"
    );
    let refused = registry.note_sessions(&fences[0], &[opened(1)], at(1)).await;
    assert!(
        matches!(refused, Err(RegistryError::OldFence { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn the_feed_tells_where_a_device_went_and_only_then() {
    let (registry, fences) = site(2).await;
    let before = registry.revision().await.unwrap();
    assert_eq!(note(&registry, &fences[0], opened(10)).await, Standing::Newest);
    assert_eq!(note(&registry, &fences[1], opened(20)).await, Standing::Newest);
    let word = Roamed {
        device: DEVICE,
        gateway: GatewayId(2),
        began: at(20),
    };
    assert_eq!(roamed(&registry).await, [word], "once, with the newest");
    let at_second = registry.revision().await.unwrap();
    assert_eq!(at_second.0, before.0 + 2);

    // A newer one there is noted, and nobody need hear of it.
    assert_eq!(note(&registry, &fences[1], opened(30)).await, Standing::Newest);
    assert_eq!(registry.revision().await.unwrap(), at_second);
    assert_eq!(
        roamed(&registry).await,
        [Roamed {
            began: at(30),
            ..word
        }]
    );
    // The same report again, and one before it, change nothing.
    for ns in [30, 25] {
        assert_eq!(note(&registry, &fences[1], opened(ns)).await, Standing::Newest);
        assert_eq!(roamed(&registry).await[0].began, at(30));
    }
    // A late one of the other gateway is told that it is over.
    let older = Standing::Older {
        at: GatewayId(2),
        began: at(30),
    };
    for ns in [25, 30] {
        assert_eq!(note(&registry, &fences[0], opened(ns)).await, older);
    }
    assert_eq!(registry.changes_since(at_second, 10).await.unwrap().roamed, []);
    assert!(registry.check().await.unwrap().is_empty());
}

/// However reports are ordered and repeated: of all sessions the last is spared, and each older one at another gateway
/// is told of, by the answer to its report or by the feed.
#[tokio::test]
async fn every_order_of_reports_ends_the_same_way() {
    for seed in 0..200 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let (registry, fences) = site(3).await;
        let mut reports: Vec<(usize, i64)> = (1..=rng.random_range(2..9))
            .map(|ns| (rng.random_range(0..3), ns))
            .collect();
        let sessions = reports.clone();
        let again: Vec<_> = reports
            .iter()
            .filter(|_| rng.random_ratio(1, 3))
            .copied()
            .collect();
        reports.extend(again);
        reports.shuffle(&mut rng);
        let mut over = vec![false; sessions.len() + 1];
        for (gateway, ns) in &reports {
            match note(&registry, &fences[*gateway], opened(*ns)).await {
                Standing::Older { at, .. } => {
                    assert_ne!(at.0 as usize, gateway + 1, "seed {seed}");
                    over[*ns as usize] = true;
                }
                standing => assert_eq!(standing, Standing::Newest, "seed {seed}"),
            }
            // Each gateway looks at the feed now.
            for word in roamed(&registry).await {
                for (other, began) in &sessions {
                    let is_elsewhere = *other as u32 + 1 != word.gateway.0;
                    over[*began as usize] |= is_elsewhere && *began < word.began.ns;
                }
            }
        }
        let (last_at, _) = *sessions.last().unwrap();
        for (gateway, ns) in &sessions {
            let is_last = *ns as usize == sessions.len();
            assert!(
                !(is_last && over[*ns as usize]),
                "seed {seed}: the newest session was ended"
            );
            // Of several at one gateway the newer has taken the older one's place there.
            if *gateway != last_at {
                assert!(
                    over[*ns as usize],
                    "seed {seed}: {ns} at {gateway} of {sessions:?} goes on"
                );
            }
        }
    }
}

#[tokio::test]
async fn what_cannot_be_compared_ends_nothing() {
    let (registry, fences) = site(2).await;
    assert_eq!(note(&registry, &fences[0], opened(1_000)).await, Standing::Newest);
    let later = BootId([6; 16]);
    let before_start = Opened {
        device: DEVICE,
        began: Moment { boot: later, ns: 50 }.before(100),
    };
    assert_eq!(before_start.began.ns, -50);
    assert_eq!(note(&registry, &fences[1], before_start).await, Standing::Unknown);
    assert_eq!(roamed(&registry).await[0].began, at(1_000));
    assert_eq!(
        roamed(&registry).await[0]
            .began
            .age_ns(Moment { boot: later, ns: 5 }),
        None
    );

    // What began after the start is newer than all from before, whatever the numbers say.
    let after_start = Opened {
        device: DEVICE,
        began: Moment { boot: later, ns: 60 },
    };
    assert_eq!(note(&registry, &fences[1], after_start).await, Standing::Newest);
    assert_eq!(roamed(&registry).await[0].gateway, GatewayId(2));
    let now = Moment { boot: later, ns: 100 };
    assert_eq!(after_start.began.age_ns(now), Some(40));
    assert_eq!(now.age_ns(after_start.began), Some(0), "never of the future");
}

/// A machine that was set back to a snapshot has the same name, and its clock goes on from then: what was noted since
/// shuts nobody out.
#[tokio::test]
async fn a_note_from_ahead_is_as_one_of_an_earlier_start() {
    const DAY_NS: i64 = 86_400_000_000_000;
    let (registry, fences) = site(2).await;
    let noted = note_at(&registry, &fences[0], opened(DAY_NS), DAY_NS + 5).await;
    assert_eq!(noted, Standing::Newest);
    assert_eq!(at(DAY_NS).age_ns(at(100)), None);
    assert_eq!(
        note_at(&registry, &fences[1], opened(90), 100).await,
        Standing::Newest
    );
    assert_eq!(roamed(&registry).await[0].began, at(90));
}

/// The feed's pages go through devices and where they are in one order, and lose nothing.
#[tokio::test]
async fn pages_of_the_feed_hold_both_kinds() {
    let registry = in_memory().await;
    let fences = [
        registry.register_gateway(GatewayId(1), 0).await.unwrap(),
        registry.register_gateway(GatewayId(2), 0).await.unwrap(),
    ];
    for id in 1..=10 {
        registry.enrol(pool_device(id, 8)).await.unwrap();
        let device = DeviceId(id);
        let began = at(id as i64);
        registry
            .note_sessions(&fences[id as usize % 2], &[Opened { device, began }], began)
            .await
            .unwrap();
    }
    for limit in [1, 2, 3, 7, 100] {
        let (mut since, mut devices, mut places) = (Revision::ZERO, Vec::new(), Vec::new());
        loop {
            let page = registry.changes_since(since, limit).await.unwrap();
            devices.extend(page.changes.iter().map(|change| change.device.0));
            places.extend(page.roamed.iter().map(|word| word.device.0));
            since = page.upto;
            if !page.more {
                break;
            }
        }
        assert_eq!(devices, (1..=10).collect::<Vec<_>>(), "pages of {limit}");
        assert_eq!(places, devices, "pages of {limit}");
    }
}
