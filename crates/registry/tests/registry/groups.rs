//! Groups of provers: stored values, refusals, and compatibility with their provers.

use std::collections::BTreeMap;

use crate::support::attestation::{NOW_S, configuration, fleet, group, name, prover};
use crate::support::in_memory;
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration as MeasuredConfiguration;
use linewarden_measurement::pcr::{PcrIndex, PcrValues};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{AttestationError, DeviceError, NewGroup, NewProver, RegistryError, RollOut};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

#[test]
fn names_of_groups_are_short_and_plain() {
    for valid in ["a", "pumps", "hall-2_north.east", &"x".repeat(64)] {
        assert_eq!(GroupName::new(valid).unwrap().to_string(), valid);
    }
    for invalid in ["", "Pumps", "a b", "ä", "a/b", "a\n", &"x".repeat(65)] {
        let error = GroupName::new(invalid).unwrap_err().to_string();
        assert!(error.contains("1 to 64"), "{error}");
    }
}

#[test]
async fn a_group_is_read_as_it_was_set() {
    let registry = in_memory().await;
    assert_eq!(registry.attest_revision().await.unwrap(), 0);
    assert_eq!(registry.group(&name("pumps")).await.unwrap(), None);
    let mut requested = NewGroup {
        policy: GroupPolicy {
            every_s: 7,
            jitter_s: 3,
            proof_timeout_ms: 6_999,
            missed_limit: 64,
            window_rounds: 64,
            late_is_missed: true,
            release_mode: ReleaseMode::Manual,
        },
        roll_out: Some(RollOut {
            reference: configuration(9).encode(),
            until_s: NOW_S + 1,
        }),
        ..group("pumps")
    };
    assert_eq!(registry.set_group(&requested, NOW_S).await.unwrap(), 1);
    registry.set_group(&group("fans"), NOW_S).await.unwrap();
    assert_eq!(registry.request_round(&requested.name).await.unwrap(), 1);
    assert_eq!(registry.request_round(&requested.name).await.unwrap(), 2);
    let stored = registry.group(&requested.name).await.unwrap().unwrap();
    assert_eq!(
        (&stored.name, stored.policy, &stored.reference, &stored.roll_out),
        (
            &requested.name,
            requested.policy,
            &requested.reference,
            &requested.roll_out
        )
    );
    assert_eq!((stored.rounds_requested, stored.revision), (2, 4));
    assert_eq!(registry.attest_revision().await.unwrap(), 4);
    let names = |list: linewarden_registry::GroupList| {
        assert!(list.damaged.is_empty());
        list.groups
            .into_iter()
            .map(|group| group.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(registry.groups().await.unwrap()), ["fans", "pumps"]);

    // An expired roll-out does not block changes.
    requested.policy.window_rounds = 63;
    requested.policy.missed_limit = 1;
    registry.set_group(&requested, NOW_S + 10).await.unwrap();
    let stored = registry.group(&requested.name).await.unwrap().unwrap();
    assert_eq!((stored.rounds_requested, stored.revision), (2, 5));

    registry.remove_group(&name("fans")).await.unwrap();
    assert_eq!(registry.attest_revision().await.unwrap(), 6);
    let error = registry.remove_group(&name("fans")).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::UnknownGroup { .. })
        ),
        "{error}"
    );
    let error = registry.request_round(&name("fans")).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Attestation(AttestationError::UnknownGroup { .. })
        ),
        "{error}"
    );
}

#[test]
async fn an_invalid_group_is_refused_and_the_field_is_named() {
    let registry = in_memory().await;
    let policy = GroupPolicy::default();
    let with = |policy| NewGroup {
        policy,
        ..group("pumps")
    };
    let ended = RollOut {
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
            "proof_timeout_ms",
            with(GroupPolicy {
                proof_timeout_ms: 0,
                ..policy
            }),
        ),
        (
            "proof_timeout_ms",
            with(GroupPolicy {
                proof_timeout_ms: 60_000,
                ..policy
            }),
        ),
        (
            "window_rounds",
            with(GroupPolicy {
                window_rounds: 0,
                ..policy
            }),
        ),
        (
            "window_rounds",
            with(GroupPolicy {
                window_rounds: 65,
                ..policy
            }),
        ),
        (
            "missed_limit",
            with(GroupPolicy {
                missed_limit: 0,
                ..policy
            }),
        ),
        (
            "missed_limit",
            with(GroupPolicy {
                missed_limit: 6,
                ..policy
            }),
        ),
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
                roll_out: Some(ended.clone()),
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
                roll_out: Some(ended),
                ..group("pumps")
            },
        ),
    ];
    for (expected, group) in cases {
        let error = registry.set_group(&group, NOW_S).await.unwrap_err();
        let RegistryError::Attestation(AttestationError::InvalidGroup { field, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!(field, expected);
    }
    assert_eq!(registry.attest_revision().await.unwrap(), 0);
}

/// No other change occurs between the read and the write of a change.
#[test]
async fn a_change_of_a_group_is_atomic() {
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

/// A configuration with a PCR 0 value in this bank.
fn configuration_in_bank(bank: HashAlgorithm) -> Vec<u8> {
    let index = PcrIndex::try_from(0).unwrap();
    let mut pcrs = PcrValues::new(bank);
    pcrs.set(index, index.start_value(bank)).unwrap();
    MeasuredConfiguration::new(pcrs, BTreeMap::new())
        .unwrap()
        .encode()
}

/// The expected proof of a device with an overlay of another bank could not be computed.
#[test]
async fn an_overlay_that_the_group_does_not_allow_is_refused() {
    let registry = fleet(4).await;
    let sha256 = configuration_in_bank(HashAlgorithm::Sha256);
    registry.set_overlay(DeviceId(3), Some(sha256)).await.unwrap();
    let sha384 = configuration_in_bank(HashAlgorithm::Sha384);
    let is_refused = |error: RegistryError, field: &str| {
        let message = error.to_string();
        assert!(
            matches!(error, RegistryError::Attestation(AttestationError::InvalidGroup { field: found, .. }) if found == field)
                && message.contains("device 0000000000000003"),
            "{message}"
        );
    };
    let revision = registry.attest_revision().await.unwrap();
    let group_with_reference = NewGroup {
        reference: Some(sha384.clone()),
        ..group("pumps")
    };
    is_refused(
        registry
            .set_group(&group_with_reference, NOW_S)
            .await
            .unwrap_err(),
        "reference",
    );
    let group_with_roll_out = NewGroup {
        roll_out: Some(RollOut {
            reference: sha384.clone(),
            until_s: NOW_S + 9,
        }),
        ..group("pumps")
    };
    is_refused(
        registry.set_group(&group_with_roll_out, NOW_S).await.unwrap_err(),
        "roll_out",
    );
    assert_eq!(registry.attest_revision().await.unwrap(), revision);
    // The overlay does not affect other groups. After the device is removed, the overlay affects no group.
    let fans = NewGroup {
        reference: Some(sha384.clone()),
        ..group("fans")
    };
    registry.set_group(&fans, NOW_S).await.unwrap();
    registry.remove_prover(DeviceId(3)).await.unwrap();
    registry.set_group(&group_with_roll_out, NOW_S).await.unwrap();
    // A prover that is enrolled during a roll-out must fit the roll-out, so that the roll-out can be completed. Unchanged
    // provers are not checked.
    registry.enroll_prover(prover(3), NOW_S).await.unwrap();
    registry.set_group(&group_with_roll_out, NOW_S).await.unwrap();
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
    accepted.unwrap();
}

/// A device with an overlay that does not fit cannot join the group.
#[test]
async fn an_overlay_that_does_not_fit_its_group_is_refused() {
    let registry = fleet(2).await;
    let pumps = NewGroup {
        reference: Some(configuration_in_bank(HashAlgorithm::Sha256)),
        ..group("pumps")
    };
    registry.set_group(&pumps, NOW_S).await.unwrap();
    let sha384 = configuration_in_bank(HashAlgorithm::Sha384);
    let is_refused = |result: Result<u64, RegistryError>| {
        let error = result.unwrap_err();
        let message = error.to_string();
        assert!(
            matches!(
                error,
                RegistryError::Device(DeviceError::InvalidRecord { field: "overlay", .. })
            ) && message.contains("pumps"),
            "{message}"
        );
    };
    let revision = registry.attest_revision().await.unwrap();
    is_refused(registry.set_overlay(DeviceId(1), Some(sha384.clone())).await);
    let unfit = NewProver {
        overlay: Some(sha384.clone()),
        ..prover(2)
    };
    is_refused(registry.enroll_prover(unfit.clone(), NOW_S).await);
    is_refused(
        registry
            .enroll_provers(vec![prover(1), unfit.clone()], NOW_S)
            .await,
    );
    assert_eq!(registry.attest_revision().await.unwrap(), revision);
    // A device that does not fit the roll-out is refused, too: otherwise the roll-out could not be completed.
    let updated = NewGroup {
        roll_out: Some(RollOut {
            reference: sha384.clone(),
            until_s: NOW_S + 9,
        }),
        ..pumps.clone()
    };
    let revision = registry.set_group(&updated, NOW_S).await.unwrap();
    let sha256 = configuration_in_bank(HashAlgorithm::Sha256);
    let error = registry.set_overlay(DeviceId(1), Some(sha256.clone())).await;
    let message = error.unwrap_err().to_string();
    assert!(
        message.contains("is rolling out") && message.contains("withdraw"),
        "{message}"
    );
    let with_sha256 = NewProver {
        overlay: Some(sha256.clone()),
        ..prover(1)
    };
    is_refused(registry.enroll_prover(with_sha256, NOW_S).await);
    is_refused(registry.set_overlay(DeviceId(1), Some(sha384.clone())).await);
    assert_eq!(registry.attest_revision().await.unwrap(), revision);
    registry.set_group(&pumps, NOW_S).await.unwrap();
    registry.set_overlay(DeviceId(1), Some(sha256)).await.unwrap();
    // A group without a reference value accepts any overlay.
    let group_without_reference = NewGroup {
        reference: None,
        ..group("fans")
    };
    registry.set_group(&group_without_reference, NOW_S).await.unwrap();
    let prover_without_reference = NewProver {
        group: name("fans"),
        ..unfit
    };
    registry
        .enroll_prover(prover_without_reference, NOW_S)
        .await
        .unwrap();
    registry.set_overlay(DeviceId(2), Some(sha384)).await.unwrap();
}
