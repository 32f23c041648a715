//! Provers and their appraisals: stored, refused and returned values.

use std::collections::HashSet;

use crate::support::attestation::{NOW_S, configuration, fleet, group, name, prover};
use crate::support::{appraising_gateway, master_key, pool_device, sql, unused_location};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    AttestationError, DeviceError, EVIDENCE_BYTES_MAX, NewProver, Protection, ProverLocation,
    QuarantineRequest, Registry, RegistryError,
};
use linewarden_types::EnrollmentTime;

#[test]
async fn a_prover_is_read_as_it_was_enrolled() {
    let registry = fleet(1).await;
    for (at_s, address) in (NOW_S + 1..).zip([None, Some("192.0.2.7"), Some("2001:db8::7")]) {
        let requested = NewProver {
            protection: Protection::Tpm,
            binding: Some(b"{}".to_vec()),
            overlay: Some(configuration(5).encode()),
            location: address.map(|address| ProverLocation {
                gateway: GatewayId(u32::MAX),
                address: address.parse().unwrap(),
            }),
            port: u16::MAX,
            enrolled_period: Period(u64::MAX),
            ..prover(1)
        };
        let revision = registry.enroll_prover(requested.clone(), at_s).await.unwrap();
        let stored = registry.prover(DeviceId(1)).await.unwrap().unwrap();
        assert_eq!(stored.key.as_bytes(), requested.key.as_bytes());
        assert_eq!(
            (stored.device, stored.group, stored.protection),
            (requested.device, requested.group, requested.protection)
        );
        assert_eq!(
            (stored.binding, stored.overlay, stored.location),
            (requested.binding, requested.overlay, requested.location)
        );
        assert_eq!((stored.port, stored.enrolled_at_s), (requested.port, at_s));
        assert_eq!(
            (stored.enrolled_period, stored.revision, stored.removed),
            (requested.enrolled_period, revision, false)
        );
    }
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn an_invalid_prover_is_refused() {
    let registry = fleet(2).await;
    registry.revoke(DeviceId(2), "", NOW_S).await.unwrap();
    let revision_before = registry.attest_revision().await.unwrap();
    let enroll = async |prover| registry.enroll_prover(prover, NOW_S).await.unwrap_err();
    assert!(matches!(
        enroll(prover(2)).await,
        RegistryError::Device(DeviceError::Revoked { .. })
    ));
    assert!(matches!(
        enroll(prover(3)).await,
        RegistryError::Device(DeviceError::UnknownDevice { .. })
    ));
    let unknown = NewProver {
        group: name("unknown"),
        ..prover(1)
    };
    assert!(matches!(
        enroll(unknown).await,
        RegistryError::Attestation(AttestationError::UnknownGroup { .. })
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
        let error = enroll(prover).await;
        let RegistryError::Device(DeviceError::InvalidRecord { field, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!(field, expected);
    }
    assert_eq!(registry.attest_revision().await.unwrap(), revision_before);
    let error = registry.remove_group(&name("pumps")).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::GroupInUse {
                device: DeviceId(1),
                ..
            })
        ),
        "{error}"
    );
}

/// Pages are complete, include removals, and contain each changed prover once, at its newest change.
#[test]
async fn provers_are_listed_in_the_order_of_their_revisions() {
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
        since = page.up_to_revision;
        if !page.has_more {
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
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::NotAProver { .. })
        ),
        "{error}"
    );
    // The removed prover may be enrolled again.
    registry.enroll_prover(prover(9), NOW_S).await.unwrap();
    assert_eq!(registry.provers_since(since, 7).await.unwrap().provers.len(), 1);
}

#[test]
async fn the_two_newest_documents_of_a_prover_are_kept() {
    let registry = fleet(2).await;
    let device = DeviceId(1);
    assert!(registry.evidence(device).await.unwrap().is_none());
    for at_s in 1..=5u8 {
        registry
            .store_evidence(device, &[at_s; 9], u64::from(at_s))
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
        text(registry.previous_evidence(device).await.unwrap()),
        Some((4, vec![4; 9]))
    );
    let longest = vec![7; EVIDENCE_BYTES_MAX];
    registry.store_evidence(DeviceId(2), &longest, 1).await.unwrap();
    assert_eq!(
        text(registry.evidence(DeviceId(2)).await.unwrap()),
        Some((1, longest.clone()))
    );
    assert!(registry.previous_evidence(DeviceId(2)).await.unwrap().is_none());
    for document in [&[][..], &[longest, vec![1]].concat()[..]] {
        let error = registry.store_evidence(device, document, 6).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Device(DeviceError::InvalidRecord { .. })),
            "{error}"
        );
    }
    registry.remove_prover(device).await.unwrap();
    assert!(registry.evidence(device).await.unwrap().is_none());
    let error = registry.store_evidence(device, b"x", 6).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::NotAProver { .. })
        ),
        "{error}"
    );
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn of_many_provers_all_are_enrolled_or_none() {
    let registry = fleet(3).await;
    let revision = registry.attest_revision().await.unwrap();
    let unknown_provers = vec![prover(1), prover(2), prover(99)];
    let error = registry.enroll_provers(unknown_provers, NOW_S).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Device(DeviceError::UnknownDevice { .. })),
        "{error}"
    );
    assert_eq!(registry.attest_revision().await.unwrap(), revision);
    assert_eq!(
        registry.enroll_provers(Vec::new(), NOW_S).await.unwrap(),
        revision
    );
    let provers = (1..=3).map(prover).collect();
    assert_eq!(
        registry.enroll_provers(provers, NOW_S).await.unwrap(),
        revision + 3
    );
    assert_eq!(
        registry.provers_since(revision, 9).await.unwrap().provers.len(),
        3
    );
}

/// The enrollment time increases regardless of the clock, and also after a removal.
#[test]
async fn no_device_has_the_same_enrollment_twice() {
    let registry = fleet(1).await;
    let device = DeviceId(1);
    let last_s = i64::MAX.cast_unsigned();
    let mut time_before = EnrollmentTime(NOW_S);
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
        registry.enroll_prover(prover(1), at_s).await.unwrap();
        let stored = registry.prover(device).await.unwrap().unwrap();
        assert_eq!(stored.enrolled_at(), EnrollmentTime(expected));
        assert!(stored.enrolled_at() > time_before);
        time_before = stored.enrolled_at();
        // A change of the overlay is not a new enrollment.
        registry.set_overlay(device, None).await.unwrap();
        assert_eq!(
            registry.prover(device).await.unwrap().unwrap().enrolled_at(),
            time_before
        );
    }
    // The last representable enrollment time is used again, and no record is damaged.
    registry.enroll_prover(prover(1), last_s).await.unwrap();
    assert!(registry.check().await.unwrap().is_empty());
}

/// Provers 1 to 3 are unchanged; 4 and 5 are enrolled again, 6 is removed, 7 was never a prover.
#[test]
async fn results_of_a_superseded_enrollment_are_ignored() {
    let registry = fleet(6).await;
    registry.enroll(pool_device(7, 2)).await.unwrap();
    let first = EnrollmentTime(NOW_S);
    let suspect = |id, enrolled_at| QuarantineRequest {
        device: DeviceId(id),
        enrolled_at,
        reason: String::new(),
    };
    let suspects = |ids: std::ops::RangeInclusive<u64>| ids.map(|id| suspect(id, first)).collect::<Vec<_>>();
    let token = appraising_gateway(&registry).await;
    registry
        .quarantine(&token, &suspects(3..=4), NOW_S)
        .await
        .unwrap();
    registry.enroll_prover(prover(4), NOW_S).await.unwrap();
    registry.enroll_prover(prover(5), 0).await.unwrap();
    assert!(registry.remove_prover(DeviceId(6)).await.unwrap());

    let superseded = HashSet::from([4, 5, 6].map(DeviceId));
    let enrollments: Vec<_> = (1..=7).map(|id| (DeviceId(id), first)).collect();
    assert_eq!(registry.superseded(&enrollments).await.unwrap(), superseded);
    let revision_before = registry.revision().await.unwrap();
    let result = registry
        .quarantine(&token, &suspects(1..=7), NOW_S + 9)
        .await
        .unwrap();
    assert_eq!(result.superseded, superseded);
    assert_eq!(result.revision.0, revision_before.0 + 3);
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
    let release = async |id, enrolled_at| {
        registry
            .release_prover(&token, DeviceId(id), enrolled_at)
            .await
            .unwrap()
    };
    assert_eq!(release(4, first).await, None);
    assert!(registry.get(DeviceId(4)).await.unwrap().quarantine.is_some());
    let second = EnrollmentTime(NOW_S + 1);
    for (id, enrolled_at) in [(3, first), (4, second)] {
        let newest = registry.revision().await.unwrap();
        assert_eq!(release(id, enrolled_at).await.unwrap().0, newest.0 + 1);
        assert!(registry.get(DeviceId(id)).await.unwrap().quarantine.is_none());
    }
    // The repeated release does not change the device.
    let newest = registry.get(DeviceId(4)).await.unwrap().revision;
    assert_eq!(release(4, second).await, Some(newest));
}

/// If the record of a prover was damaged before its removal, its enrollment time is unknown.
#[test]
async fn a_removed_prover_with_a_damaged_record_is_not_appraised() {
    let (_directory, path) = unused_location();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    registry.enroll(pool_device(1, 2)).await.unwrap();
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.enroll_prover(prover(1), NOW_S).await.unwrap();
    let enrollment = [(DeviceId(1), EnrollmentTime(NOW_S))];
    sql(&path, "UPDATE prover SET port = port + 1, removed = 1").await;
    assert!(
        registry.superseded(&enrollment).await.unwrap().is_empty(),
        "not confirmed by an authentic record"
    );
    assert!(registry.remove_prover(DeviceId(1)).await.unwrap());
    assert_eq!(
        registry.superseded(&enrollment).await.unwrap(),
        HashSet::from([DeviceId(1)])
    );
}
