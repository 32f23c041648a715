//! Requests that receive a PROOF, requests that the agent rejects, and the effect of a changed file.

use std::os::unix::fs::PermissionsExt as _;

use linewarden_agent::attest::KeyFile;
use linewarden_agent::{AgentEvent, AttestOptions};
use linewarden_protocol::attest::{AttestationKey, Round};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::verdict::Verdict;
use linewarden_tpm::Protection;

use crate::attest::site::{
    DeviceDirectory, GATEWAY, K, RunningAgent, Site, TagKey, h, period_start, rejection_count, round, state,
};

fn attested_configurations(reports: &[AgentEvent]) -> Vec<(u64, &str)> {
    let attestation = |report| match report {
        &AgentEvent::Attested {
            gateway_id,
            period,
            ref configuration,
            protection,
        } => {
            assert_eq!((gateway_id, protection), (GATEWAY.0, Protection::Software));
            Some((period, configuration.as_str()))
        }
        _ => None,
    };
    reports.iter().filter_map(attestation).collect()
}

#[test]
fn in_a_session_every_round_is_proven_and_each_period_reported_once() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let options = directory.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    // In a session the device accepts a period that is far ahead of the previous period.
    for (period, number) in [(500, 1), (500, 2), (501, 3)] {
        site.expect(period_start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), TagKey::Session, port);
        assert_eq!(verdict, Verdict::ProofOk, "round {number}");
    }
    let reports = agent.end();
    let h = h.to_string();
    assert_eq!(
        attested_configurations(&reports),
        [(500, h.as_str()), (501, h.as_str())]
    );
}

/// The gateway has closed the session long before the session expires, as after a quarantine. Only the request shows
/// the device that the session is closed.
#[test]
fn a_request_without_a_session_makes_the_device_authenticate_again() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let options = directory.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions == 1);
    site.expect(period_start(5), h);
    let verdict = site.verdict(&mut agent, round(5, 1), TagKey::Session, port);
    assert_eq!(verdict, Verdict::ProofOk);
    // The last repetition of a request always has a tag under the request key. The round began in the session, so this
    // repetition does not close the session.
    let count = site.proofs.len();
    site.send_request(&round(5, 1), TagKey::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let verdict = site.verdict(&mut agent, round(5, 2), TagKey::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    site.serve(&mut agent, |site, _| site.sessions == 2);
    // A copy of an earlier request does not close the new session.
    let count = site.proofs.len();
    site.send_request(&round(5, 2), TagKey::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let verdict = site.verdict(&mut agent, round(5, 3), TagKey::Session, port);
    assert_eq!(verdict, Verdict::ProofOk);
    assert_eq!(site.sessions, 2);
    let reports = agent.end();
    let is_session_lost = |report: &&AgentEvent| matches!(report, AgentEvent::SessionLost { gateway_id } if *gateway_id == GATEWAY.0);
    assert_eq!(reports.iter().filter(is_session_lost).count(), 1, "{reports:?}");
}

#[test]
fn without_a_session_requests_use_the_request_key_and_the_device_stores_their_period() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(None));
    let options = directory.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options.clone());
    for (period, number) in [(5, 1), (5, 2), (6, 3)] {
        site.expect(period_start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), TagKey::Request, port);
        assert_eq!(verdict, Verdict::ProofOk, "round {number}");
    }
    agent.end();
    assert_eq!(state(&options.state)["period"], 6);
    assert_eq!(state(&options.state)["gateways"], serde_json::json!([GATEWAY.0]));
    // The device was enrolled in period 4. Without its stored state, the device would reject period 7.
    let mut agent = RunningAgent::start(&site, options);
    site.expect(period_start(7), h);
    let verdict = site.verdict(&mut agent, round(7, 4), TagKey::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    agent.end();
}

/// An operator can enroll a quarantined device again. Then only a PROOF with the new key ends the quarantine.
#[test]
fn a_replaced_key_file_is_used_without_a_restart() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(None));
    let write = |key: [u8; 32]| {
        directory.write("next.key", &hex::encode(key));
        let (next, path) = (directory.path("next.key"), directory.path("attest.key"));
        std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(next, &path).unwrap();
        path
    };
    let mut key_file = KeyFile::new(write([0x41; 32]), None);
    let key = key_file.read().unwrap();
    // The key file is replaced after it was read, before the agent starts.
    write(K);
    let options = AttestOptions {
        key,
        key_file: Some(key_file),
        ..directory.options()
    };
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options);
    for (round, key) in [
        (round(5, 1), K),
        (round(5, 2), [0x43; 32]),
        (round(5, 3), [0x44; 32]),
    ] {
        if key != K {
            write(key);
        }
        site.k = AttestationKey::from_bytes(key);
        site.expect(period_start(5), h);
        let verdict = site.verdict(&mut agent, round, TagKey::Request, port);
        assert_eq!(verdict, Verdict::ProofOk, "{round:?}");
    }
    // The agent ignores an invalid key file.
    directory.write("attest.key", "half of a k");
    let verdict = site.verdict(&mut agent, round(5, 4), TagKey::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    let reports = agent.end();
    let is_key_replaced = |report: &&AgentEvent| matches!(report, AgentEvent::AttestationKeyReplaced);
    assert_eq!(reports.iter().filter(is_key_replaced).count(), 3, "{reports:?}");
}

#[test]
fn replays_receive_the_same_proof_and_invalid_requests_no_reply() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(None));
    let options = directory.options();
    let port = options.port;
    site.expect(period_start(5), h(&options));
    let mut agent = RunningAgent::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), TagKey::Request, port),
        Verdict::ProofOk
    );
    // The agent handles requests in order: when the last request receives a PROOF, the agent has rejected the other
    // requests.
    site.send_request(&round(5, 3), TagKey::Wrong, port);
    site.send_request(&round(5, 1), TagKey::Request, port);
    site.send_request(&round(7, 4), TagKey::Wrong, port);
    site.send_request(&round(4, 4), TagKey::Request, port);
    let count = site.proofs.len();
    site.send_request(&round(5, 2), TagKey::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let repeated = site.proofs.pop().unwrap();
    assert_eq!(repeated.0, Verdict::DropProved);
    assert!(site.proofs.iter().all(|(_, proof)| *proof == repeated.1));
    let reports = agent.end();
    for (reason, count) in [("wrong_tag", 2), ("stale_round", 1), ("stale_period", 1)] {
        assert_eq!(rejection_count(&reports, reason), count, "{reason}: {reports:?}");
    }
}

/// With a key in software, deriving a request key is as fast as checking a tag: forged requests of unknown gateways delay
/// no other request.
#[test]
fn with_a_key_in_software_requests_of_unknown_gateways_are_verified() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(None));
    let options = directory.options();
    let port = options.port;
    site.expect(period_start(5), h(&options));
    let mut agent = RunningAgent::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), TagKey::Request, port),
        Verdict::ProofOk
    );
    for gateway in 100..140 {
        let forged = Round {
            gateway: GatewayId(gateway),
            ..round(5, 2)
        };
        site.send_request(&forged, TagKey::Wrong, port);
    }
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), TagKey::Request, port),
        Verdict::ProofOk
    );
    let reports = agent.end();
    assert_eq!(rejection_count(&reports, "limited"), 0, "{reports:?}");
    assert_eq!(rejection_count(&reports, "wrong_tag"), 40, "{reports:?}");
}

#[test]
fn file_change_between_periods_changes_the_configuration() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(None));
    let options = directory.options();
    let (port, first_hash) = (options.port, h(&options));
    site.expect(period_start(5), first_hash);
    let mut agent = RunningAgent::start(&site, options.clone());
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), TagKey::Request, port),
        Verdict::ProofOk
    );
    directory.write("sensord", "other");
    let changed_hash = h(&options);
    assert_ne!(first_hash, changed_hash);
    // Until the end of the period, the device proves the measurement from the start of the period.
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), TagKey::Request, port),
        Verdict::ProofOk
    );
    site.expect(period_start(6), first_hash);
    assert_eq!(
        site.verdict(&mut agent, round(6, 3), TagKey::Request, port),
        Verdict::DropProof
    );
    assert!(!site.is_proved(3));
    // The PROOF is valid if the gateway expects the new configuration.
    site.expect(period_start(6), changed_hash);
    assert_eq!(
        site.verdict(&mut agent, round(6, 3), TagKey::Request, port),
        Verdict::ProofOk
    );
    assert!(site.is_proved(3));
    let reports = agent.end();
    let change = reports.iter().find_map(|report| match report {
        AgentEvent::ConfigurationChanged {
            configuration,
            changes,
        } => Some((configuration, changes.as_deref()?)),
        _ => None,
    });
    let (configuration, changes) = change.unwrap();
    assert_eq!(*configuration, changed_hash.to_string());
    assert_eq!(changes.files.len(), 1);
    assert_eq!(changes.files[0].path, directory.file("sensord"));
}

#[test]
fn a_missing_file_is_measured_and_an_unreadable_file_is_an_error() {
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(None));
    let options = directory.options();
    let port = options.port;
    std::fs::remove_file(directory.path("sensord")).unwrap();
    let hash_without_file = h(&options);
    site.expect(period_start(5), hash_without_file);
    // A directory loop cannot be read, not even by root.
    std::os::unix::fs::symlink("loop", directory.path("loop")).unwrap();
    let mut unreadable = options.clone();
    unreadable.scope.files = vec![directory.file("loop/sensord")];
    let mut agent = RunningAgent::start(&site, unreadable);
    site.open(round(5, 1));
    let is_failure = |report: &AgentEvent| matches!(report, AgentEvent::AttestationFailed { reason, retry_in_ms: Some(_) } if reason.contains("loop"));
    site.serve(&mut agent, |site, agent| {
        site.send_request(&round(5, 1), TagKey::Request, port);
        agent.has(is_failure)
    });
    agent.end();
    assert!(site.proofs.is_empty(), "{:?}", site.proofs);
    let mut agent = RunningAgent::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), TagKey::Request, port),
        Verdict::ProofOk
    );
    agent.end();
}
