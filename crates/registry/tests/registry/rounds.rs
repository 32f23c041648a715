//! Periods, numbers of rounds, rounds and the appraisals that they bring about.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::support::attestation::{NOW_S, appraisal, fleet, group, name, prover, round, told};
use crate::support::{gateway, in_memory, pool_device};
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, EnrolledAt, GroupName, NoRoundPlace, ROUNDS_KEPT, Registry, RegistryError, RoundPlace,
    RoundRecord, SILENCES_MAX, State,
};

#[tokio::test]
async fn a_period_is_drawn_once_and_begun_once() {
    let registry = in_memory().await;
    assert_eq!(registry.newest_period().await.unwrap(), None);
    let first = registry.draw_period(None, [1; 8], 10).await.unwrap();
    assert_eq!(
        (first.number, first.salt, first.begun_at_s),
        (Period(1), [1; 8], None)
    );
    assert_eq!(registry.draw_period(None, [2; 8], 11).await.unwrap(), first);
    assert_eq!(registry.newest_begun_period().await.unwrap(), None);
    let begun = registry.begin_period(Period(1), 20).await.unwrap();
    assert_eq!((begun.salt, begun.begun_at_s), ([1; 8], Some(20)));
    assert_eq!(registry.begin_period(Period(1), 30).await.unwrap(), begun);
    let second = registry.draw_period(Some(Period(1)), [3; 8], 40).await.unwrap();
    assert_eq!((second.number, second.salt), (Period(2), [3; 8]));
    assert_eq!(registry.newest_period().await.unwrap(), Some(second));
    assert_eq!(registry.newest_begun_period().await.unwrap(), Some(begun));
    assert_eq!(registry.period(Period(1)).await.unwrap(), Some(begun));
    assert_eq!(registry.period(Period(3)).await.unwrap(), None);
    // A registry put back to an older state goes on above what a gateway has seen.
    let later = registry.draw_period(Some(Period(40)), [4; 8], 50).await.unwrap();
    assert_eq!(later.number, Period(41));
    assert!(
        registry
            .draw_period(Some(Period(u64::MAX)), [4; 8], 50)
            .await
            .is_err()
    );
    let error = registry.begin_period(Period(7), 50).await.unwrap_err();
    assert!(matches!(error, RegistryError::UnknownPeriod { .. }), "{error}");
    assert!(registry.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn numbers_of_rounds_come_once_and_under_the_newest_fence_only() {
    let registry = in_memory().await;
    let old = gateway(&registry).await;
    assert_eq!(registry.reserve_rounds(&old, 10, 0).await.unwrap().numbers, 1..11);
    let fence = gateway(&registry).await;
    assert_eq!(
        registry.reserve_rounds(&fence, 0, 0).await.unwrap().numbers,
        11..12
    );
    let error = registry.reserve_rounds(&old, 1, 0).await.unwrap_err();
    assert!(matches!(error, RegistryError::OldFence { .. }), "{error}");
    let other = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    assert_eq!(registry.reserve_rounds(&other, 3, 0).await.unwrap().numbers, 1..4);
    // A floor lifts them, and never lowers them.
    assert_eq!(
        registry.reserve_rounds(&other, 3, 100).await.unwrap().numbers,
        100..103
    );
    assert_eq!(
        registry.reserve_rounds(&other, 3, 50).await.unwrap().numbers,
        103..106
    );
    assert_eq!(
        registry
            .reserve_rounds(&fence, u32::MAX, 0)
            .await
            .unwrap()
            .numbers,
        12..u32::MAX
    );
    let error = registry.reserve_rounds(&fence, 1, 0).await.unwrap_err();
    assert!(matches!(error, RegistryError::NoRoundsLeft { .. }), "{error}");
}

#[tokio::test]
async fn a_round_and_what_it_has_changed_are_stored_together() {
    let registry = fleet(3).await;
    let fence = gateway(&registry).await;
    registry.reserve_rounds(&fence, 100, 0).await.unwrap();
    registry.remove_prover(DeviceId(3)).await.unwrap();
    let silent = Appraisal {
        state: State::Quarantined,
        configuration: Configuration::Alternate,
        silences: (1..=64).collect(),
        address: Some("2001:db8::1".parse::<IpAddr>().unwrap()),
        asked: u64::MAX,
        ..appraisal(u64::MAX - 1, 7)
    };
    registry.enrol(pool_device(u64::MAX - 1, 2)).await.unwrap();
    registry.enrol_prover(prover(u64::MAX - 1), NOW_S).await.unwrap();
    let appraisals = [appraisal(1, 7), appraisal(2, 7), silent.clone(), appraisal(3, 7)];
    registry
        .record_round(&fence, &round(1, 7), &told(appraisals))
        .await
        .unwrap();
    assert_eq!(registry.rounds(None, 10).await.unwrap(), [round(1, 7)]);
    assert_eq!(
        registry.appraisal(DeviceId(1)).await.unwrap(),
        Some(appraisal(1, 7))
    );
    assert_eq!(
        registry.appraisal(silent.device).await.unwrap(),
        Some(silent.clone())
    );
    assert_eq!(
        registry.appraisal(DeviceId(3)).await.unwrap(),
        None,
        "no prover any more"
    );
    let first = registry.appraisals(None, 2).await.unwrap();
    assert_eq!(first.appraisals, [appraisal(1, 7), appraisal(2, 7)]);
    let second = registry.appraisals(first.next, 2).await.unwrap();
    assert_eq!((second.appraisals, second.next), (vec![silent], None));

    // Only what is told changes.
    let late = Appraisal {
        state: State::Late,
        ..appraisal(1, 8)
    };
    registry
        .record_round(&fence, &round(1, 8), &told([late.clone()]))
        .await
        .unwrap();
    assert_eq!(registry.appraisal(DeviceId(1)).await.unwrap(), Some(late));
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 7))
    );

    // Nothing of what is refused is stored.
    let wrong = [
        (round(2, 9), vec![]),
        (round(1, 101), vec![]),
        (round(1, 0), vec![]),
        (
            RoundRecord {
                ended_at_s: u64::MAX,
                ..round(1, 9)
            },
            vec![],
        ),
        (
            round(1, 9),
            vec![Appraisal {
                gateway: GatewayId(2),
                ..appraisal(2, 9)
            }],
        ),
        (
            round(1, 9),
            vec![Appraisal {
                silences: vec![1; SILENCES_MAX + 1],
                ..appraisal(2, 9)
            }],
        ),
        (
            round(1, 9),
            vec![
                appraisal(2, 9),
                Appraisal {
                    since_s: u64::MAX,
                    ..appraisal(2, 9)
                },
            ],
        ),
    ];
    for (round, appraisals) in wrong {
        let error = registry
            .record_round(&fence, &round, &told(appraisals))
            .await
            .unwrap_err();
        assert!(matches!(error, RegistryError::InvalidRound { .. }), "{error}");
    }
    let newer = gateway(&registry).await;
    let error = registry
        .record_round(&fence, &round(1, 9), &told([appraisal(2, 9)]))
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::OldFence { .. }), "{error}");
    assert_eq!(registry.rounds(Some(GatewayId(1)), 10).await.unwrap().len(), 2);
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 7))
    );

    // Another enrolment begins anew, and what was seen of the one before, or of one to come, is not its own.
    registry.enrol_prover(prover(2), NOW_S).await.unwrap();
    for at_s in [NOW_S, NOW_S + 2] {
        let other = [(appraisal(2, 9), EnrolledAt(at_s))];
        registry.record_round(&newer, &round(1, 9), &other).await.unwrap();
        assert_eq!(registry.appraisal(DeviceId(2)).await.unwrap(), None);
    }
    let its_own = [(appraisal(2, 9), EnrolledAt(NOW_S + 1))];
    registry
        .record_round(&newer, &round(1, 9), &its_own)
        .await
        .unwrap();
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 9))
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_newest_rounds_of_each_gateway_are_kept() {
    let registry = fleet(1).await;
    let fence = gateway(&registry).await;
    let other = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    registry.reserve_rounds(&other, 1, 0).await.unwrap();
    registry.record_round(&other, &round(2, 1), &[]).await.unwrap();
    // The only one of a group that is seldom asked stays, however many of the others there are since.
    let last = ROUNDS_KEPT + 6;
    registry.reserve_rounds(&fence, last, 0).await.unwrap();
    registry.set_group(&group("seldom"), NOW_S).await.unwrap();
    let seldom = RoundRecord {
        group: name("seldom"),
        ..round(1, 1)
    };
    registry.record_round(&fence, &seldom, &[]).await.unwrap();
    for number in 2..=last {
        registry
            .record_round(&fence, &round(1, number), &[])
            .await
            .unwrap();
    }
    let kept = registry.rounds(Some(GatewayId(1)), u32::MAX).await.unwrap();
    let numbers: Vec<u32> = kept.iter().map(|round| round.number).collect();
    assert_eq!(numbers, (7..=last).rev().chain([1]).collect::<Vec<_>>());
    let all = registry.rounds(None, u32::MAX).await.unwrap();
    let gateways: HashSet<u32> = all.iter().map(|round| round.gateway.0).collect();
    assert_eq!((all.len(), gateways.len()), (ROUNDS_KEPT as usize + 2, 2));
    assert_eq!(registry.rounds(None, 3).await.unwrap(), kept[..3]);
    for group in [name("seldom"), kept[0].group.clone()] {
        for (gateway, rounds) in [(None, &all), (Some(GatewayId(1)), &kept)] {
            let of_group: Vec<_> = rounds
                .iter()
                .filter(|round| round.group == group)
                .cloned()
                .collect();
            let found = registry.rounds_of(gateway, Some(&group), u32::MAX).await.unwrap();
            assert_eq!(found, of_group);
            assert!(!found.is_empty());
        }
    }
    for gateway in [None, Some(GatewayId(1))] {
        for group in [None, Some(name("seldom")), Some(kept[0].group.clone())] {
            let whole = registry.rounds_of(gateway, group.as_ref(), u32::MAX);
            let whole = whole.await.unwrap();
            for limit in [1, 167, u32::try_from(whole.len()).unwrap(), u32::MAX] {
                // Some hundreds of parts of one are enough.
                let enough = whole.len().min(300 * limit as usize);
                let found = walk(&registry, gateway, group.as_ref(), limit, enough).await;
                assert_eq!(found, whole[..enough], "{gateway:?} {group:?} {limit}");
            }
        }
    }
    // Of a group that is gone they go like all others.
    registry.remove_group(&name("seldom")).await.unwrap();
    registry.reserve_rounds(&fence, 1, 0).await.unwrap();
    registry
        .record_round(&fence, &round(1, last + 1), &[])
        .await
        .unwrap();
    let kept = registry.rounds(Some(GatewayId(1)), u32::MAX).await.unwrap();
    let numbers: Vec<u32> = kept.iter().map(|round| round.number).collect();
    assert_eq!(numbers, (8..=last + 1).rev().collect::<Vec<_>>());
}

/// Rounds part by part, until there are enough or no more.
async fn walk(
    registry: &Registry,
    gateway: Option<GatewayId>,
    group: Option<&GroupName>,
    limit: u32,
    enough: usize,
) -> Vec<RoundRecord> {
    let (mut found, mut after) = (Vec::new(), None);
    while found.len() < enough {
        let page = registry.rounds_page(gateway, group, after, limit).await.unwrap();
        assert!(page.rounds.len() <= limit as usize);
        found.extend(page.rounds);
        after = page.next;
        let Some(next) = after else { break };
        assert_eq!(next.to_string().parse(), Ok(next));
    }
    // The last part knows that it is.
    assert!(after.is_none() || enough < ROUNDS_KEPT as usize);
    found
}

#[test]
fn a_place_in_a_list_of_rounds_is_three_numbers() {
    let place = RoundPlace {
        started_at_s: u64::MAX,
        gateway: GatewayId(0),
        number: 7,
    };
    assert_eq!(place.to_string(), "18446744073709551615-0-7");
    for wrong in ["", "1", "1-2", "1-2-3-4", "1-2-x", "-1-2-3", "1-2-4294967296"] {
        assert_eq!(wrong.parse::<RoundPlace>(), Err(NoRoundPlace), "{wrong}");
    }
}
