//! Locations of devices: which of two sessions at two gateways has ended, for any order of reports.

use crate::abandoned_requests::after_abandoning;
use crate::support::{in_memory, lease, pool_device};
use linewarden_harness::stay_on_one_cpu;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    FencingError, FencingToken, NewestSession, ProvenSession, Registry, RegistryError, SessionOrder,
};
use linewarden_types::{BootId, BootTimestamp, Revision};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

const DEVICE: DeviceId = DeviceId(7);
const BOOT: BootId = BootId([5; 16]);

fn boot_time(ns: i64) -> BootTimestamp {
    BootTimestamp { boot_id: BOOT, ns }
}

fn session_at(ns: i64) -> ProvenSession {
    ProvenSession {
        device: DEVICE,
        started: boot_time(ns),
    }
}

/// A registry with the device. Gateways 1 to `count` have rows of the device.
async fn site(count: u32) -> (Registry, Vec<FencingToken>) {
    let registry = in_memory().await;
    registry.enroll(pool_device(DEVICE.0, 100)).await.unwrap();
    let mut tokens = Vec::new();
    for gateway in 1..=count {
        let fencing_token = registry.register_gateway(GatewayId(gateway), 0).await.unwrap();
        let _ = lease(&registry, &fencing_token, DEVICE.0, 0, 4).await.unwrap();
        tokens.push(fencing_token);
    }
    (registry, tokens)
}

async fn report_session(
    registry: &Registry,
    fencing_token: &FencingToken,
    session: ProvenSession,
) -> SessionOrder {
    report_session_at(registry, fencing_token, session, 1_000_000).await
}

async fn report_session_at(
    registry: &Registry,
    fencing_token: &FencingToken,
    session: ProvenSession,
    now_ns: i64,
) -> SessionOrder {
    let now = BootTimestamp {
        ns: now_ns,
        ..session.started
    };
    let decisions = registry.record_sessions(fencing_token, &[session], now).await;
    decisions.unwrap().remove(0)
}

async fn newest_sessions(registry: &Registry) -> Vec<NewestSession> {
    registry
        .changes_since(Revision::ZERO, 100)
        .await
        .unwrap()
        .newest_sessions
}

#[test]
async fn a_device_of_one_gateway_has_no_newer_session() {
    let (registry, tokens) = site(1).await;
    let leased_elsewhere = async |fencing_token: &FencingToken| {
        registry
            .leased_elsewhere(fencing_token, &[DEVICE, DeviceId(8)])
            .await
    };
    assert!(leased_elsewhere(&tokens[0]).await.unwrap().is_empty());
    let second = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    assert!(leased_elsewhere(&second).await.unwrap().contains(&DEVICE));
    let _ = lease(&registry, &second, DEVICE.0, 0, 4).await.unwrap();
    assert_eq!(leased_elsewhere(&tokens[0]).await.unwrap().len(), 1);

    registry.register_gateway(GatewayId(1), 1).await.unwrap();
    let result = leased_elsewhere(&tokens[0]).await;
    assert!(
        matches!(
            result,
            Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
        ),
        "{result:?}"
    );
    let result = registry
        .record_sessions(&tokens[0], &[session_at(1)], boot_time(1))
        .await;
    assert!(
        matches!(
            result,
            Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
        ),
        "{result:?}"
    );
}

/// A late report states too low an age: its session would count as newer than a session that is in fact newer.
#[test]
async fn a_late_report_of_a_session_is_refused() {
    let (registry, tokens) = site(2).await;
    let later = after_abandoning(1, &tokens[0]);
    registry.record_abandoned_requests(&later).await.unwrap();
    assert_eq!(
        report_session(&registry, &later, session_at(10)).await,
        SessionOrder::Newest
    );
    assert_eq!(
        report_session(&registry, &tokens[1], session_at(20)).await,
        SessionOrder::Newest
    );
    for session in [session_at(30), session_at(10)] {
        let result = registry
            .record_sessions(&tokens[0], &[session], boot_time(40))
            .await;
        assert!(
            matches!(
                result,
                Err(RegistryError::Fencing(FencingError::OutdatedRequest { .. }))
            ),
            "{result:?}"
        );
    }
}

#[test]
async fn the_feed_reports_where_a_device_moved() {
    let (registry, tokens) = site(2).await;
    let revision_before = registry.revision().await.unwrap();
    assert_eq!(
        report_session(&registry, &tokens[0], session_at(10)).await,
        SessionOrder::Newest
    );
    assert_eq!(
        report_session(&registry, &tokens[1], session_at(20)).await,
        SessionOrder::Newest
    );
    let newest = NewestSession {
        device: DEVICE,
        gateway: GatewayId(2),
        started: boot_time(20),
    };
    assert_eq!(
        newest_sessions(&registry).await,
        [newest],
        "one entry, with the newest session"
    );
    let at_second = registry.revision().await.unwrap();
    assert_eq!(at_second.0, revision_before.0 + 2);

    // A newer session at the same gateway is recorded and not reported to other gateways.
    assert_eq!(
        report_session(&registry, &tokens[1], session_at(30)).await,
        SessionOrder::Newest
    );
    assert_eq!(registry.revision().await.unwrap(), at_second);
    assert_eq!(
        newest_sessions(&registry).await,
        [NewestSession {
            started: boot_time(30),
            ..newest
        }]
    );
    // A repeated or older report changes nothing.
    for ns in [30, 25] {
        assert_eq!(
            report_session(&registry, &tokens[1], session_at(ns)).await,
            SessionOrder::Newest
        );
        assert_eq!(newest_sessions(&registry).await[0].started, boot_time(30));
    }
    // The response to a late report of the other gateway says that its session has ended.
    let older = SessionOrder::Older {
        gateway: GatewayId(2),
        started: boot_time(30),
    };
    for ns in [25, 30] {
        assert_eq!(report_session(&registry, &tokens[0], session_at(ns)).await, older);
    }
    assert_eq!(
        registry
            .changes_since(at_second, 10)
            .await
            .unwrap()
            .newest_sessions,
        []
    );
    assert!(registry.check().await.unwrap().is_empty());
}

/// For any order and repetition of reports, the last session is kept, and each older session at another gateway is
/// ended by the response to its report or by the feed.
#[test]
async fn every_order_of_reports_ends_the_same_way() {
    stay_on_one_cpu();
    for seed in 0..200 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let (registry, tokens) = site(3).await;
        let mut reports: Vec<(usize, i64)> = (1..=rng.random_range(2..9))
            .map(|ns| (rng.random_range(0..3), ns))
            .collect();
        let sessions = reports.clone();
        let repeated: Vec<_> = reports
            .iter()
            .filter(|_| rng.random_ratio(1, 3))
            .copied()
            .collect();
        reports.extend(repeated);
        reports.shuffle(&mut rng);
        let mut is_ended = vec![false; sessions.len() + 1];
        for (gateway, ns) in &reports {
            match report_session(&registry, &tokens[*gateway], session_at(*ns)).await {
                SessionOrder::Older {
                    gateway: newest_gateway,
                    ..
                } => {
                    assert_ne!(newest_gateway.0 as usize, gateway + 1, "seed {seed}");
                    is_ended[*ns as usize] = true;
                }
                unexpected => assert_eq!(unexpected, SessionOrder::Newest, "seed {seed}"),
            }
            // Each gateway now reads the feed.
            for newest in newest_sessions(&registry).await {
                for (session_gateway, started) in &sessions {
                    let is_at_other = *session_gateway as u32 + 1 != newest.gateway.0;
                    is_ended[*started as usize] |= is_at_other && *started < newest.started.ns;
                }
            }
        }
        let (last_gateway, _) = *sessions.last().unwrap();
        for (gateway, ns) in &sessions {
            let is_last = *ns as usize == sessions.len();
            assert!(
                !(is_last && is_ended[*ns as usize]),
                "seed {seed}: the newest session was ended"
            );
            // Of several sessions at one gateway, the newer replaces the older.
            if *gateway != last_gateway {
                assert!(
                    is_ended[*ns as usize],
                    "seed {seed}: {ns} at {gateway} of {sessions:?} is not ended"
                );
            }
        }
    }
}

#[test]
async fn sessions_that_cannot_be_compared_end_nothing() {
    let (registry, tokens) = site(2).await;
    assert_eq!(
        report_session(&registry, &tokens[0], session_at(1_000)).await,
        SessionOrder::Newest
    );
    let later = BootId([6; 16]);
    let before_start = ProvenSession {
        device: DEVICE,
        started: BootTimestamp {
            boot_id: later,
            ns: 50,
        }
        .earlier_by(100),
    };
    assert_eq!(before_start.started.ns, -50);
    assert_eq!(
        report_session(&registry, &tokens[1], before_start).await,
        SessionOrder::Unknown
    );
    assert_eq!(newest_sessions(&registry).await[0].started, boot_time(1_000));
    assert_eq!(
        newest_sessions(&registry).await[0].started.age_ns(BootTimestamp {
            boot_id: later,
            ns: 5
        }),
        None
    );

    // Sessions started after the boot are newer than all sessions of an earlier boot, regardless of their times.
    let after_start = ProvenSession {
        device: DEVICE,
        started: BootTimestamp {
            boot_id: later,
            ns: 60,
        },
    };
    assert_eq!(
        report_session(&registry, &tokens[1], after_start).await,
        SessionOrder::Newest
    );
    assert_eq!(newest_sessions(&registry).await[0].gateway, GatewayId(2));
    let now = BootTimestamp {
        boot_id: later,
        ns: 100,
    };
    assert_eq!(after_start.started.age_ns(now), Some(40));
    assert_eq!(
        now.age_ns(after_start.started),
        Some(0),
        "a time in the future has age 0"
    );
}

/// A machine restored from a snapshot has the same boot id, and its clock continues from the time of the snapshot.
/// Records with a later time do not lock devices out.
#[test]
async fn a_report_from_the_future_counts_as_from_an_earlier_boot() {
    const DAY_NS: i64 = 86_400_000_000_000;
    let (registry, tokens) = site(2).await;
    let decisions = report_session_at(&registry, &tokens[0], session_at(DAY_NS), DAY_NS + 5).await;
    assert_eq!(decisions, SessionOrder::Newest);
    assert_eq!(boot_time(DAY_NS).age_ns(boot_time(100)), None);
    assert_eq!(
        report_session_at(&registry, &tokens[1], session_at(90), 100).await,
        SessionOrder::Newest
    );
    assert_eq!(newest_sessions(&registry).await[0].started, boot_time(90));
}

/// The feed's pages contain devices and their locations in one order, completely.
#[test]
async fn pages_of_the_feed_contain_changes_and_locations() {
    let registry = in_memory().await;
    let tokens = [
        registry.register_gateway(GatewayId(1), 0).await.unwrap(),
        registry.register_gateway(GatewayId(2), 0).await.unwrap(),
    ];
    for id in 1..=10 {
        registry.enroll(pool_device(id, 8)).await.unwrap();
        let device = DeviceId(id);
        let started = boot_time(id as i64);
        registry
            .record_sessions(
                &tokens[id as usize % 2],
                &[ProvenSession { device, started }],
                started,
            )
            .await
            .unwrap();
    }
    for limit in [1, 2, 3, 7, 100] {
        let (mut since, mut devices, mut located) = (Revision::ZERO, Vec::new(), Vec::new());
        loop {
            let page = registry.changes_since(since, limit).await.unwrap();
            devices.extend(page.changes.iter().map(|change| change.device.0));
            located.extend(page.newest_sessions.iter().map(|session| session.device.0));
            since = page.up_to_revision;
            if !page.has_more {
                break;
            }
        }
        assert_eq!(devices, (1..=10).collect::<Vec<_>>(), "pages of {limit}");
        assert_eq!(located, devices, "pages of {limit}");
    }
}
