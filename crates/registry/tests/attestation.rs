//! Provers, groups, periods, rounds, appraisals and evidence: what is kept, what is refused, what comes back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration as Measured;
use linewarden_measurement::pcr::{PcrIndex, PcrValues};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, EVIDENCE_BYTES_MAX, GroupName, GroupPolicy, Home, NewGroup, NewProver, Protection,
    ROUNDS_KEPT, Registry, RegistryError, Reopen, RollOut, RoundRecord, SILENCES_MAX, State,
};
use support::attestation::{NOW_S, appraisal, configuration, group, name, prover, round};
use support::{gateway, in_memory, pool_device};

/// Devices 1 to `devices`, all of them provers of the group "pumps".
async fn fleet(devices: u64) -> Registry {
    let registry = in_memory().await;
    let records = (1..=devices).map(|id| pool_device(id, 2));
    registry
        .enrol_bulk(records, Default::default(), |_| ())
        .await
        .unwrap();
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    for id in 1..=devices {
        registry.enrol_prover(prover(id), NOW_S).await.unwrap();
    }
    registry
}

#[test]
fn names_of_groups_are_short_and_plain() {
    for good in ["a", "pumps", "hall-2_north.east", &"x".repeat(64)] {
        assert_eq!(GroupName::new(good).unwrap().to_string(), good);
    }
    for bad in ["", "Pumps", "a b", "ä", "a/b", "a\n", &"x".repeat(65)] {
        let error = GroupName::new(bad).unwrap_err().to_string();
        assert!(error.contains("1 to 64"), "{error}");
    }
}

#[tokio::test]
async fn a_group_comes_back_as_it_was_set() {
    let registry = in_memory().await;
    assert_eq!(registry.attest_revision().await.unwrap(), 0);
    assert_eq!(registry.group(&name("pumps")).await.unwrap(), None);
    let mut wanted = NewGroup {
        policy: GroupPolicy {
            every_s: 7,
            jitter_s: 3,
            answer_ms: 6_999,
            silent: 64,
            of: 64,
            late_is_silent: true,
            reopen: Reopen::ByCommand,
        },
        roll_out: Some(RollOut {
            reference: configuration(9).encode(),
            until_s: NOW_S + 1,
        }),
        ..group("pumps")
    };
    assert_eq!(registry.set_group(&wanted, NOW_S).await.unwrap(), 1);
    registry.set_group(&group("fans"), NOW_S).await.unwrap();
    assert_eq!(registry.want_round(&wanted.name).await.unwrap(), 1);
    assert_eq!(registry.want_round(&wanted.name).await.unwrap(), 2);
    let stored = registry.group(&wanted.name).await.unwrap().unwrap();
    assert_eq!(
        (&stored.name, stored.policy, &stored.reference, &stored.roll_out),
        (&wanted.name, wanted.policy, &wanted.reference, &wanted.roll_out)
    );
    assert_eq!((stored.rounds_wanted, stored.revision), (2, 4));
    assert_eq!(registry.attest_revision().await.unwrap(), 4);
    let names = |list: linewarden_registry::GroupList| {
        assert!(list.damaged.is_empty());
        list.groups
            .into_iter()
            .map(|group| group.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(registry.groups().await.unwrap()), ["fans", "pumps"]);

    // A roll-out that has ended by itself is in nobody's way.
    wanted.policy.of = 63;
    wanted.policy.silent = 1;
    registry.set_group(&wanted, NOW_S + 10).await.unwrap();
    let stored = registry.group(&wanted.name).await.unwrap().unwrap();
    assert_eq!((stored.rounds_wanted, stored.revision), (2, 5));

    registry.remove_group(&name("fans")).await.unwrap();
    assert_eq!(registry.attest_revision().await.unwrap(), 6);
    let error = registry.remove_group(&name("fans")).await.unwrap_err();
    assert!(matches!(error, RegistryError::UnknownGroup { .. }), "{error}");
    let error = registry.want_round(&name("fans")).await.unwrap_err();
    assert!(matches!(error, RegistryError::UnknownGroup { .. }), "{error}");
}

#[tokio::test]
async fn a_group_that_makes_no_sense_is_refused_by_its_field() {
    let registry = in_memory().await;
    let policy = GroupPolicy::default();
    let with = |policy| NewGroup {
        policy,
        ..group("pumps")
    };
    let over = RollOut {
        reference: configuration(9).encode(),
        until_s: NOW_S,
    };
    let garbage = RollOut {
        reference: vec![1, 2, 3],
        until_s: NOW_S + 1,
    };
    let cases = [
        ("every_s", with(GroupPolicy { every_s: 0, ..policy })),
        (
            "jitter_s",
            with(GroupPolicy {
                jitter_s: 31,
                ..policy
            }),
        ),
        (
            "answer_ms",
            with(GroupPolicy {
                answer_ms: 0,
                ..policy
            }),
        ),
        (
            "answer_ms",
            with(GroupPolicy {
                answer_ms: 60_000,
                ..policy
            }),
        ),
        ("of", with(GroupPolicy { of: 0, ..policy })),
        ("of", with(GroupPolicy { of: 65, ..policy })),
        ("silent", with(GroupPolicy { silent: 0, ..policy })),
        ("silent", with(GroupPolicy { silent: 6, ..policy })),
        (
            "reference",
            NewGroup {
                reference: Some(vec![]),
                ..group("pumps")
            },
        ),
        (
            "roll_out",
            NewGroup {
                roll_out: Some(over.clone()),
                ..group("pumps")
            },
        ),
        (
            "roll_out",
            NewGroup {
                roll_out: Some(garbage),
                ..group("pumps")
            },
        ),
        (
            "roll_out",
            NewGroup {
                reference: None,
                roll_out: Some(over),
                ..group("pumps")
            },
        ),
    ];
    for (expected, group) in cases {
        let error = registry.set_group(&group, NOW_S).await.unwrap_err();
        let RegistryError::InvalidGroup { field, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(field, expected);
    }
    assert_eq!(registry.attest_revision().await.unwrap(), 0);
}

#[tokio::test]
async fn a_prover_comes_back_as_it_was_enrolled() {
    let registry = fleet(1).await;
    for home in [None, Some("192.0.2.7"), Some("2001:db8::7")] {
        let wanted = NewProver {
            protection: Protection::Tpm,
            binding: Some(b"{}".to_vec()),
            overlay: Some(configuration(5).encode()),
            home: home.map(|address| Home {
                gateway: GatewayId(u32::MAX),
                address: address.parse().unwrap(),
            }),
            port: u16::MAX,
            enrolled_period: Period(u64::MAX),
            ..prover(1)
        };
        let revision = registry.enrol_prover(wanted.clone(), NOW_S).await.unwrap();
        let stored = registry.prover(DeviceId(1)).await.unwrap().unwrap();
        assert_eq!(stored.key.as_bytes(), wanted.key.as_bytes());
        assert_eq!(
            (stored.device, stored.group, stored.protection),
            (wanted.device, wanted.group, wanted.protection)
        );
        assert_eq!(
            (stored.binding, stored.overlay, stored.home),
            (wanted.binding, wanted.overlay, wanted.home)
        );
        assert_eq!((stored.port, stored.enrolled_at_s), (wanted.port, NOW_S));
        assert_eq!(
            (stored.enrolled_period, stored.revision, stored.removed),
            (wanted.enrolled_period, revision, false)
        );
    }
    assert!(registry.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn who_cannot_be_a_prover_is_refused() {
    let registry = fleet(2).await;
    registry.revoke(DeviceId(2), "", NOW_S).await.unwrap();
    let before = registry.attest_revision().await.unwrap();
    let enrol = async |prover| registry.enrol_prover(prover, NOW_S).await.unwrap_err();
    assert!(matches!(enrol(prover(2)).await, RegistryError::Revoked { .. }));
    assert!(matches!(
        enrol(prover(3)).await,
        RegistryError::UnknownDevice { .. }
    ));
    let stranger = NewProver {
        group: name("nobody"),
        ..prover(1)
    };
    assert!(matches!(
        enrol(stranger).await,
        RegistryError::UnknownGroup { .. }
    ));
    let cases = [
        (
            "key",
            NewProver {
                key: AttestationKey::from_bytes([0; 32]),
                ..prover(1)
            },
        ),
        ("port", NewProver { port: 0, ..prover(1) }),
        (
            "binding",
            NewProver {
                binding: Some(Vec::new()),
                ..prover(1)
            },
        ),
        (
            "overlay",
            NewProver {
                overlay: Some(vec![7; 9]),
                ..prover(1)
            },
        ),
    ];
    for (expected, prover) in cases {
        let error = enrol(prover).await;
        let RegistryError::InvalidRecord { field, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(field, expected);
    }
    assert_eq!(registry.attest_revision().await.unwrap(), before);
    let error = registry.remove_group(&name("pumps")).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::GroupInUse {
                device: DeviceId(1),
                ..
            }
        ),
        "{error}"
    );
}

/// Pages lose nobody, tell removals, and tell who has changed once, at the newest change.
#[tokio::test]
async fn provers_are_followed_by_their_revisions() {
    let registry = fleet(25).await;
    registry
        .set_overlay(DeviceId(3), Some(configuration(4).encode()))
        .await
        .unwrap();
    assert!(registry.remove_prover(DeviceId(9)).await.unwrap());
    assert!(!registry.remove_prover(DeviceId(9)).await.unwrap());
    assert!(!registry.remove_prover(DeviceId(99)).await.unwrap());
    let (mut since, mut seen) = (0, Vec::new());
    loop {
        let page = registry.provers_since(since, 7).await.unwrap();
        assert!(page.damaged.is_empty());
        seen.extend(page.provers);
        since = page.upto;
        if !page.more {
            break;
        }
    }
    assert_eq!(since, registry.attest_revision().await.unwrap());
    let ids: Vec<u64> = seen.iter().map(|prover| prover.device.0).collect();
    let expected: Vec<u64> = (1..=25).filter(|id| ![3, 9].contains(id)).chain([3, 9]).collect();
    assert_eq!(ids, expected);
    let [.., third, ninth] = &seen[..] else { panic!() };
    assert_eq!(third.overlay, Some(configuration(4).encode()));
    assert_eq!((ninth.removed, ninth.key.as_bytes()), (true, &[0; 32]));
    assert!(registry.prover(DeviceId(9)).await.unwrap().is_none());
    assert!(registry.provers_since(since, 7).await.unwrap().provers.is_empty());
    let error = registry.set_overlay(DeviceId(9), None).await.unwrap_err();
    assert!(matches!(error, RegistryError::NotAProver { .. }), "{error}");
    // It may come back.
    registry.enrol_prover(prover(9), NOW_S).await.unwrap();
    assert_eq!(registry.provers_since(since, 7).await.unwrap().provers.len(), 1);
}

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
    let told = [appraisal(1, 7), appraisal(2, 7), silent.clone(), appraisal(3, 7)];
    registry.record_round(&fence, &round(1, 7), &told).await.unwrap();
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
        .record_round(&fence, &round(1, 8), std::slice::from_ref(&late))
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
            .record_round(&fence, &round, &appraisals)
            .await
            .unwrap_err();
        assert!(matches!(error, RegistryError::InvalidRound { .. }), "{error}");
    }
    let newer = gateway(&registry).await;
    let error = registry
        .record_round(&fence, &round(1, 9), &[appraisal(2, 9)])
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::OldFence { .. }), "{error}");
    assert_eq!(registry.rounds(Some(GatewayId(1)), 10).await.unwrap().len(), 2);
    assert_eq!(
        registry.appraisal(DeviceId(2)).await.unwrap(),
        Some(appraisal(2, 7))
    );

    // Another enrolment begins anew.
    registry.enrol_prover(prover(2), NOW_S).await.unwrap();
    assert_eq!(registry.appraisal(DeviceId(2)).await.unwrap(), None);
    registry.record_round(&newer, &round(1, 9), &[]).await.unwrap();
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
    let seldom = RoundRecord {
        group: GroupName::new("seldom").unwrap(),
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
}

#[tokio::test]
async fn the_two_newest_documents_of_a_prover_are_kept() {
    let registry = fleet(2).await;
    let device = DeviceId(1);
    assert!(registry.evidence(device).await.unwrap().is_none());
    for at_s in 1..=5u8 {
        registry
            .put_evidence(device, &[at_s; 9], u64::from(at_s))
            .await
            .unwrap();
    }
    let text = |found: Option<(u64, zeroize::Zeroizing<Vec<u8>>)>| {
        found.map(|(at_s, document)| (at_s, document.to_vec()))
    };
    assert_eq!(
        text(registry.evidence(device).await.unwrap()),
        Some((5, vec![5; 9]))
    );
    assert_eq!(
        text(registry.evidence_before(device).await.unwrap()),
        Some((4, vec![4; 9]))
    );
    let longest = vec![7; EVIDENCE_BYTES_MAX];
    registry.put_evidence(DeviceId(2), &longest, 1).await.unwrap();
    assert_eq!(
        text(registry.evidence(DeviceId(2)).await.unwrap()),
        Some((1, longest.clone()))
    );
    assert!(registry.evidence_before(DeviceId(2)).await.unwrap().is_none());
    for document in [&[][..], &[longest, vec![1]].concat()[..]] {
        let error = registry.put_evidence(device, document, 6).await.unwrap_err();
        assert!(matches!(error, RegistryError::InvalidRecord { .. }), "{error}");
    }
    registry.remove_prover(device).await.unwrap();
    assert!(registry.evidence(device).await.unwrap().is_none());
    let error = registry.put_evidence(device, b"x", 6).await.unwrap_err();
    assert!(matches!(error, RegistryError::NotAProver { .. }), "{error}");
    assert!(registry.check().await.unwrap().is_empty());
}

/// With a value of PCR 0 in this bank.
fn banked(bank: HashAlgorithm) -> Vec<u8> {
    let index = PcrIndex::try_from(0).unwrap();
    let mut pcrs = PcrValues::new(bank);
    pcrs.set(index, index.start_value(bank)).unwrap();
    Measured::new(pcrs, BTreeMap::new()).unwrap().encode()
}

/// Nobody would know what to ask such a device for.
#[tokio::test]
async fn what_a_prover_cannot_be_laid_over_is_refused() {
    let registry = fleet(4).await;
    let own = banked(HashAlgorithm::Sha256);
    registry.set_overlay(DeviceId(3), Some(own)).await.unwrap();
    let other = banked(HashAlgorithm::Sha384);
    let is_refused = |error: RegistryError, field: &str| {
        let said = error.to_string();
        assert!(
            matches!(error, RegistryError::InvalidGroup { field: found, .. } if found == field)
                && said.contains("device 0000000000000003"),
            "{said}"
        );
    };
    let revision = registry.attest_revision().await.unwrap();
    let referred = NewGroup {
        reference: Some(other.clone()),
        ..group("pumps")
    };
    is_refused(
        registry.set_group(&referred, NOW_S).await.unwrap_err(),
        "reference",
    );
    let rolled = NewGroup {
        roll_out: Some(RollOut {
            reference: other.clone(),
            until_s: NOW_S + 9,
        }),
        ..group("pumps")
    };
    is_refused(registry.set_group(&rolled, NOW_S).await.unwrap_err(), "roll_out");
    assert_eq!(registry.attest_revision().await.unwrap(), revision);
    // It is nobody's business of another group, and once the device is gone, of none.
    let fans = NewGroup {
        reference: Some(other.clone()),
        ..group("fans")
    };
    registry.set_group(&fans, NOW_S).await.unwrap();
    registry.remove_prover(DeviceId(3)).await.unwrap();
    registry.set_group(&rolled, NOW_S).await.unwrap();
    // Accepted, after somebody has come who does not fit: refused. What is not new is let be.
    registry.enrol_prover(prover(3), NOW_S).await.unwrap();
    let own = banked(HashAlgorithm::Sha256);
    registry.set_overlay(DeviceId(3), Some(own)).await.unwrap();
    let accepted: Result<u64, RegistryError> = registry
        .change_group(&name("pumps"), NOW_S, |group| {
            let group = group?.unwrap();
            Ok(NewGroup {
                name: group.name,
                policy: group.policy,
                reference: group.roll_out.map(|roll_out| roll_out.reference),
                roll_out: None,
            })
        })
        .await;
    is_refused(accepted.unwrap_err(), "reference");
    registry.set_group(&rolled, NOW_S).await.unwrap();
}

/// Between reading and writing nobody else changes the group.
#[tokio::test]
async fn a_group_is_changed_as_one() {
    let registry = fleet(1).await;
    let changes = (0..20).map(|_| {
        let registry = registry.clone();
        tokio::spawn(async move {
            registry
                .change_group(&name("pumps"), NOW_S, |group| {
                    let group = group?.unwrap();
                    let policy = GroupPolicy {
                        every_s: group.policy.every_s + 1,
                        ..group.policy
                    };
                    Ok::<_, RegistryError>(NewGroup {
                        name: group.name,
                        policy,
                        reference: group.reference,
                        roll_out: group.roll_out,
                    })
                })
                .await
                .unwrap();
        })
    });
    for change in changes.collect::<Vec<_>>() {
        change.await.unwrap();
    }
    let every_s = registry
        .group(&name("pumps"))
        .await
        .unwrap()
        .unwrap()
        .policy
        .every_s;
    assert_eq!(every_s, GroupPolicy::default().every_s + 20);
}

#[tokio::test]
async fn of_many_provers_all_are_enrolled_or_none() {
    let registry = fleet(3).await;
    let revision = registry.attest_revision().await.unwrap();
    let strangers = vec![prover(1), prover(2), prover(99)];
    let error = registry.enrol_provers(strangers, NOW_S).await.unwrap_err();
    assert!(matches!(error, RegistryError::UnknownDevice { .. }), "{error}");
    assert_eq!(registry.attest_revision().await.unwrap(), revision);
    assert_eq!(registry.enrol_provers(Vec::new(), NOW_S).await.unwrap(), revision);
    let all = (1..=3).map(prover).collect();
    assert_eq!(registry.enrol_provers(all, NOW_S).await.unwrap(), revision + 3);
    assert_eq!(
        registry.provers_since(revision, 9).await.unwrap().provers.len(),
        3
    );
}
