//! Periods, round numbers, rounds and their appraisals.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::support::attestation::{NOW_S, appraisal, fleet, group, name, prover, round, with_enrollment};
use crate::support::{gateway, in_memory, pool_device};
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, AttestationError, AttestationState, FencingError, InvalidRoundCursor, MISSED_ROUNDS_MAX,
    ROUNDS_MAX, Registry, RegistryError, RoundCursor, RoundRecord,
};
use linewarden_types::{EnrollmentTime, GroupName};

#[test]
async fn a_period_is_created_once_and_started_once() {
    let registry = in_memory().await;
    assert_eq!(registry.newest_period().await.unwrap(), None);
    let first = registry.create_period(None, [1; 8], 10).await.unwrap();
    assert_eq!(
        (first.number, first.salt, first.started_at_s),
        (Period(1), [1; 8], None)
    );
    assert_eq!(registry.create_period(None, [2; 8], 11).await.unwrap(), first);
    assert_eq!(registry.newest_started_period().await.unwrap(), None);
    let started = registry.start_period(Period(1), 20).await.unwrap();
    assert_eq!((started.salt, started.started_at_s), ([1; 8], Some(20)));
    assert_eq!(registry.start_period(Period(1), 30).await.unwrap(), started);
    let second = registry.create_period(Some(Period(1)), [3; 8], 40).await.unwrap();
    assert_eq!((second.number, second.salt), (Period(2), [3; 8]));
    assert_eq!(registry.newest_period().await.unwrap(), Some(second));
    assert_eq!(registry.newest_started_period().await.unwrap(), Some(started));
    assert_eq!(registry.period(Period(1)).await.unwrap(), Some(started));
    assert_eq!(registry.period(Period(3)).await.unwrap(), None);
    // A restored older registry continues above the numbers that a gateway has used.
    let later = registry
        .create_period(Some(Period(40)), [4; 8], 50)
        .await
        .unwrap();
    assert_eq!(later.number, Period(41));
    assert!(
        registry
            .create_period(Some(Period(u64::MAX)), [4; 8], 50)
            .await
            .is_err()
    );
    let error = registry.start_period(Period(7), 50).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::UnknownPeriod { .. })
        ),
        "{error}"
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn round_numbers_are_unique_and_require_the_newest_fencing_token() {
    let registry = in_memory().await;
    let old = gateway(&registry).await;
    assert_eq!(registry.reserve_rounds(&old, 10, 0).await.unwrap().numbers, 1..11);
    let fencing_token = gateway(&registry).await;
    assert_eq!(
        registry
            .reserve_rounds(&fencing_token, 0, 0)
            .await
            .unwrap()
            .numbers,
        11..12
    );
    let error = registry.reserve_rounds(&old, 1, 0).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Fencing(FencingError::StaleFencingToken { .. })
        ),
        "{error}"
    );
    let other_gateway = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    assert_eq!(
        registry
            .reserve_rounds(&other_gateway, 3, 0)
            .await
            .unwrap()
            .numbers,
        1..4
    );
    // A requested floor raises the numbers and never lowers them.
    assert_eq!(
        registry
            .reserve_rounds(&other_gateway, 3, 100)
            .await
            .unwrap()
            .numbers,
        100..103
    );
    assert_eq!(
        registry
            .reserve_rounds(&other_gateway, 3, 50)
            .await
            .unwrap()
            .numbers,
        103..106
    );
    assert_eq!(
        registry
            .reserve_rounds(&fencing_token, u32::MAX, 0)
            .await
            .unwrap()
            .numbers,
        12..u32::MAX
    );
    let error = registry.reserve_rounds(&fencing_token, 1, 0).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::RoundNumbersExhausted { .. })
        ),
        "{error}"
    );
}

#[test]
async fn a_round_and_its_changes_are_stored_together() {
    let registry = fleet(3).await;
    let fencing_token = gateway(&registry).await;
    registry.reserve_rounds(&fencing_token, 100, 0).await.unwrap();
    registry.remove_prover(DeviceId(3)).await.unwrap();
    let missed = Appraisal {
        state: AttestationState::Quarantined,
        configuration: Configuration::Alternate,
        missed_rounds: (1..=64).collect(),
        address: Some("2001:db8::1".parse::<IpAddr>().unwrap()),
        rounds_total: u64::MAX,
        ..appraisal(u64::MAX - 1, 7)
    };
    registry.enroll(pool_device(u64::MAX - 1, 2)).await.unwrap();
    registry.enroll_prover(prover(u64::MAX - 1), NOW_S).await.unwrap();
    let appraisals = [appraisal(1, 7), appraisal(2, 7), missed.clone(), appraisal(3, 7)];
    registry
        .record_round(&fencing_token, &round(1, 7), &with_enrollment(appraisals))
        .await
        .unwrap();
    assert_eq!(registry.rounds(None, 10).await.unwrap(), [round(1, 7)]);
    assert_eq!(
        registry.appraisal(DeviceId(1)).await.unwrap(),
        Some(appraisal(1, 7))
    );
    assert_eq!(
        registry.appraisal(missed.device).await.unwrap(),
        Some(missed.clone())
    );
    assert_eq!(
        registry.appraisal(DeviceId(3)).await.unwrap(),
        None,
        "the device is no longer a prover"
    );
    let first = registry.appraisals(None, 2).await.unwrap();
    assert_eq!(first.appraisals, [appraisal(1, 7), appraisal(2, 7)]);
    let second = registry.appraisals(first.next, 2).await.unwrap();
    assert_eq!((second.appraisals, second.next), (vec![missed], None));

    // Only reported provers change.
    let late = Appraisal {
        state: AttestationState::Late,
        ..appraisal(1, 8)
    };
    registry
        .record_round(&fencing_token, &round(1, 8), &with_enrollment([late.clone()]))
        .await
        .unwrap();
    assert_eq!(registry.appraisal(DeviceId(1)).await.unwrap(), Some(late));
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 7))
    );

    // Refused rounds store nothing.
    let invalid_rounds = [
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
                missed_rounds: vec![1; MISSED_ROUNDS_MAX + 1],
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
    for (round, appraisals) in invalid_rounds {
        let error = registry
            .record_round(&fencing_token, &round, &with_enrollment(appraisals))
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                RegistryError::Attestation(AttestationError::InvalidRound { .. })
            ),
            "{error}"
        );
    }
    let newer = gateway(&registry).await;
    let error = registry
        .record_round(&fencing_token, &round(1, 9), &with_enrollment([appraisal(2, 9)]))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Fencing(FencingError::StaleFencingToken { .. })
        ),
        "{error}"
    );
    assert_eq!(registry.rounds(Some(GatewayId(1)), 10).await.unwrap().len(), 2);
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 7))
    );

    // A new enrollment starts as unproven; results of earlier or later enrollments do not apply.
    registry.enroll_prover(prover(2), NOW_S).await.unwrap();
    for at_s in [NOW_S, NOW_S + 2] {
        let of_other_enrollment = [(appraisal(2, 9), EnrollmentTime(at_s))];
        registry
            .record_round(&newer, &round(1, 9), &of_other_enrollment)
            .await
            .unwrap();
        assert_eq!(registry.appraisal(DeviceId(2)).await.unwrap(), None);
    }
    let of_this_enrollment = [(appraisal(2, 9), EnrollmentTime(NOW_S + 1))];
    registry
        .record_round(&newer, &round(1, 9), &of_this_enrollment)
        .await
        .unwrap();
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 9))
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn the_newest_rounds_of_each_gateway_are_kept() {
    let registry = fleet(1).await;
    let fencing_token = gateway(&registry).await;
    let other_gateway = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    registry.reserve_rounds(&other_gateway, 1, 0).await.unwrap();
    registry
        .record_round(&other_gateway, &round(2, 1), &[])
        .await
        .unwrap();
    // The only round of a rarely attested group is kept, regardless of the number of later rounds of other groups.
    let last = ROUNDS_MAX + 6;
    registry.reserve_rounds(&fencing_token, last, 0).await.unwrap();
    registry.set_group(&group("seldom"), NOW_S).await.unwrap();
    let rare_round = RoundRecord {
        group: name("seldom"),
        ..round(1, 1)
    };
    registry
        .record_round(&fencing_token, &rare_round, &[])
        .await
        .unwrap();
    for number in 2..=last {
        registry
            .record_round(&fencing_token, &round(1, number), &[])
            .await
            .unwrap();
    }
    let kept_rounds = registry.rounds(Some(GatewayId(1)), u32::MAX).await.unwrap();
    let numbers: Vec<u32> = kept_rounds.iter().map(|round| round.number).collect();
    assert_eq!(numbers, (7..=last).rev().chain([1]).collect::<Vec<_>>());
    let all_rounds = registry.rounds(None, u32::MAX).await.unwrap();
    let gateways: HashSet<u32> = all_rounds.iter().map(|round| round.gateway.0).collect();
    assert_eq!((all_rounds.len(), gateways.len()), (ROUNDS_MAX as usize + 2, 2));
    assert_eq!(registry.rounds(None, 3).await.unwrap(), kept_rounds[..3]);
    for group in [name("seldom"), kept_rounds[0].group.clone()] {
        for (gateway, rounds) in [(None, &all_rounds), (Some(GatewayId(1)), &kept_rounds)] {
            let of_group: Vec<_> = rounds
                .iter()
                .filter(|round| round.group == group)
                .cloned()
                .collect();
            let listed = registry
                .rounds_of_group(gateway, Some(&group), u32::MAX)
                .await
                .unwrap();
            assert_eq!(listed, of_group);
            assert!(!listed.is_empty());
        }
    }
    for gateway in [None, Some(GatewayId(1))] {
        for group in [None, Some(name("seldom")), Some(kept_rounds[0].group.clone())] {
            let original = registry.rounds_of_group(gateway, group.as_ref(), u32::MAX);
            let original = original.await.unwrap();
            for limit in [1, 167, u32::try_from(original.len()).unwrap(), u32::MAX] {
                // A few hundred pages are sufficient.
                let count = original.len().min(300 * limit as usize);
                let listed = read_pages(&registry, gateway, group.as_ref(), limit, count).await;
                assert_eq!(listed, original[..count], "{gateway:?} {group:?} {limit}");
            }
        }
    }
    // Old rounds of a removed group are removed like all other old rounds.
    registry.remove_group(&name("seldom")).await.unwrap();
    registry.reserve_rounds(&fencing_token, 1, 0).await.unwrap();
    registry
        .record_round(&fencing_token, &round(1, last + 1), &[])
        .await
        .unwrap();
    let kept_rounds = registry.rounds(Some(GatewayId(1)), u32::MAX).await.unwrap();
    let numbers: Vec<u32> = kept_rounds.iter().map(|round| round.number).collect();
    assert_eq!(numbers, (8..=last + 1).rev().collect::<Vec<_>>());
}

/// Reads rounds page by page, until at least `count` rounds are read or the list ends.
async fn read_pages(
    registry: &Registry,
    gateway: Option<GatewayId>,
    group: Option<&GroupName>,
    limit: u32,
    count: usize,
) -> Vec<RoundRecord> {
    let (mut rounds, mut after) = (Vec::new(), None);
    while rounds.len() < count {
        let page = registry.rounds_page(gateway, group, after, limit).await.unwrap();
        assert!(page.rounds.len() <= limit as usize);
        rounds.extend(page.rounds);
        after = page.next;
        let Some(next) = after else { break };
        assert_eq!(next.to_string().parse(), Ok(next));
    }
    // The last page has no cursor of a next page.
    assert!(after.is_none() || count < ROUNDS_MAX as usize);
    rounds
}

#[test]
fn a_round_cursor_is_written_as_three_numbers() {
    let cursor = RoundCursor {
        started_at_s: u64::MAX,
        gateway: GatewayId(0),
        number: 7,
    };
    assert_eq!(cursor.to_string(), "18446744073709551615-0-7");
    for text in ["", "1", "1-2", "1-2-3-4", "1-2-x", "-1-2-3", "1-2-4294967296"] {
        assert_eq!(text.parse::<RoundCursor>(), Err(InvalidRoundCursor), "{text}");
    }
}
