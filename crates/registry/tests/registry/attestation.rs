//! Provers and their evidence: what is kept, what is refused, what comes back.

use std::collections::HashSet;

use crate::support::attestation::{NOW_S, configuration, fleet, group, name, prover};
use crate::support::{master_key, nowhere, pool_device, sql};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    EVIDENCE_BYTES_MAX, EnrolledAt, Home, NewProver, Protection, Registry, RegistryError, Suspect,
};

#[tokio::test]
async fn a_prover_comes_back_as_it_was_enrolled() {
    let registry = fleet(1).await;
    for (at_s, home) in (NOW_S + 1..).zip([None, Some("192.0.2.7"), Some("2001:db8::7")]) {
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
        let revision = registry.enrol_prover(wanted.clone(), at_s).await.unwrap();
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
        assert_eq!((stored.port, stored.enrolled_at_s), (wanted.port, at_s));
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

/// Whatever the clock says, and also where it was removed in between.
#[tokio::test]
async fn no_device_has_the_same_enrolment_twice() {
    let registry = fleet(1).await;
    let device = DeviceId(1);
    let last_s = i64::MAX.cast_unsigned();
    let mut before = EnrolledAt(NOW_S);
    for (is_removed, at_s, expected) in [
        (false, NOW_S, NOW_S + 1),
        (true, NOW_S, NOW_S + 2),
        (true, NOW_S - 1_000, NOW_S + 3),
        (false, 0, NOW_S + 4),
        (false, NOW_S + 9, NOW_S + 9),
        (false, last_s - 1, last_s - 1),
        (true, 0, last_s),
    ] {
        if is_removed {
            assert!(registry.remove_prover(device).await.unwrap());
        }
        registry.enrol_prover(prover(1), at_s).await.unwrap();
        let stored = registry.prover(device).await.unwrap().unwrap();
        assert_eq!(stored.enrolled_at(), EnrolledAt(expected));
        assert!(stored.enrolled_at() > before);
        before = stored.enrolled_at();
        // What the device has of its own is no other enrolment.
        registry.set_overlay(device, None).await.unwrap();
        assert_eq!(
            registry.prover(device).await.unwrap().unwrap().enrolled_at(),
            before
        );
    }
    // There is none after the last that a clock can tell, and nothing is spoiled by that.
    registry.enrol_prover(prover(1), last_s).await.unwrap();
    assert!(registry.check().await.unwrap().is_empty());
}

/// 1 to 4 are as they were; 5 is enrolled anew, 6 is removed, 7 was never a prover.
#[tokio::test]
async fn what_was_seen_of_an_enrolment_before_shuts_nobody_out_and_lets_nobody_in() {
    let registry = fleet(6).await;
    registry.enrol(pool_device(7, 2)).await.unwrap();
    let first = EnrolledAt(NOW_S);
    let suspect = |id, enrolled_at| Suspect {
        device: DeviceId(id),
        enrolled_at,
        reason: String::new(),
    };
    let all = |ids: std::ops::RangeInclusive<u64>| ids.map(|id| suspect(id, first)).collect::<Vec<_>>();
    registry.quarantine(&all(3..=4), NOW_S).await.unwrap();
    registry.enrol_prover(prover(4), NOW_S).await.unwrap();
    registry.enrol_prover(prover(5), 0).await.unwrap();
    assert!(registry.remove_prover(DeviceId(6)).await.unwrap());

    let overtaken = HashSet::from([4, 5, 6].map(DeviceId));
    let seen: Vec<_> = (1..=7).map(|id| (DeviceId(id), first)).collect();
    assert_eq!(registry.overtaken(&seen).await.unwrap(), overtaken);
    let before = registry.revision().await.unwrap();
    let told = registry.quarantine(&all(1..=7), NOW_S + 9).await.unwrap();
    assert_eq!(told.overtaken, overtaken);
    assert_eq!(told.revision.0, before.0 + 3);
    for (id, at_s) in [
        (1, Some(9)),
        (2, Some(9)),
        (3, Some(0)),
        (4, Some(0)),
        (5, None),
        (6, None),
        (7, Some(9)),
    ] {
        let quarantine = registry.get(DeviceId(id)).await.unwrap().quarantine;
        assert_eq!(
            quarantine.map(|quarantine| quarantine.at_s),
            at_s.map(|at_s| NOW_S + at_s),
            "device {id}"
        );
    }
    let readmit = async |id, enrolled_at| registry.readmit_prover(DeviceId(id), enrolled_at).await.unwrap();
    assert_eq!(readmit(4, first).await, None);
    assert!(registry.get(DeviceId(4)).await.unwrap().quarantine.is_some());
    let anew = EnrolledAt(NOW_S + 1);
    for (id, enrolled_at) in [(3, first), (4, anew)] {
        let newest = registry.revision().await.unwrap();
        assert_eq!(readmit(id, enrolled_at).await.unwrap().0, newest.0 + 1);
        assert!(registry.get(DeviceId(id)).await.unwrap().quarantine.is_none());
    }
    // It is not told again.
    let newest = registry.get(DeviceId(4)).await.unwrap().revision;
    assert_eq!(readmit(4, anew).await, Some(newest));
}

/// One that was damaged when it was removed is on record as removed at no time.
#[tokio::test]
async fn a_prover_that_was_removed_is_judged_no_more_though_its_record_was_damaged() {
    let (_directory, path) = nowhere();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    registry.enrol(pool_device(1, 2)).await.unwrap();
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.enrol_prover(prover(1), NOW_S).await.unwrap();
    let seen = [(DeviceId(1), EnrolledAt(NOW_S))];
    sql(&path, "UPDATE prover SET port = port + 1, removed = 1").await;
    assert!(
        registry.overtaken(&seen).await.unwrap().is_empty(),
        "nobody says so who may"
    );
    assert!(registry.remove_prover(DeviceId(1)).await.unwrap());
    assert_eq!(
        registry.overtaken(&seen).await.unwrap(),
        HashSet::from([DeviceId(1)])
    );
}
