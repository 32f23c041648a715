//! Requests that get a proof, requests that do not, and the effect of a changed file.

use std::os::unix::fs::PermissionsExt as _;

use linewarden_agent::attest::KeyFile;
use linewarden_agent::{AgentEvent, AttestOptions};
use linewarden_protocol::attest::{AttestationKey, Round};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::verdict::Verdict;
use linewarden_tpm::Protection;

use crate::site::{GATEWAY, Home, K, Running, Site, Tag, h, refused, round, start, state};

fn attested(reports: &[AgentEvent]) -> Vec<(u64, &str)> {
    let has_result = |report| match report {
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
    reports.iter().filter_map(has_result).collect()
}

#[test]
fn in_a_session_every_round_is_proven_and_each_period_reported_once() {
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let options = home.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    // In a session the device accepts a period far ahead.
    for (period, number) in [(500, 1), (500, 2), (501, 3)] {
        site.expect(start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), Tag::Session, port);
        assert_eq!(verdict, Verdict::ProofOk, "round {number}");
    }
    let reports = agent.end();
    let h = h.to_string();
    assert_eq!(attested(&reports), [(500, h.as_str()), (501, h.as_str())]);
}

/// As after a quarantine: only the request shows the device that its session is closed, long before the session expires.
#[test]
fn a_request_without_a_session_makes_the_device_authenticate_again() {
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let options = home.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions == 1);
    site.expect(start(5), h);
    let verdict = site.verdict(&mut agent, round(5, 1), Tag::Session, port);
    assert_eq!(verdict, Verdict::ProofOk);
    // The same applies to the last repetition in a round with lost or late proofs.
    let count = site.proofs.len();
    site.send_request(&round(5, 1), Tag::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let verdict = site.verdict(&mut agent, round(5, 2), Tag::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    site.serve(&mut agent, |site, _| site.sessions == 2);
    // A copy of an earlier request has no effect: the new session stays.
    let count = site.proofs.len();
    site.send_request(&round(5, 2), Tag::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let verdict = site.verdict(&mut agent, round(5, 3), Tag::Session, port);
    assert_eq!(verdict, Verdict::ProofOk);
    assert_eq!(site.sessions, 2);
    let reports = agent.end();
    let is_session_lost = |report: &&AgentEvent| matches!(report, AgentEvent::SessionLost { gateway_id } if *gateway_id == GATEWAY.0);
    assert_eq!(reports.iter().filter(is_session_lost).count(), 1, "{reports:?}");
}

#[test]
fn without_a_session_requests_use_the_controllers_key_and_their_periods_are_stored() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options.clone());
    for (period, number) in [(5, 1), (5, 2), (6, 3)] {
        site.expect(start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), Tag::Request, port);
        assert_eq!(verdict, Verdict::ProofOk, "round {number}");
    }
    agent.end();
    assert_eq!(state(&options.state)["period"], 6);
    assert_eq!(state(&options.state)["gateways"], serde_json::json!([GATEWAY.0]));
    // The device is enrolled in period 4, and would refuse this period without its stored state.
    let mut agent = Running::start(&site, options);
    site.expect(start(7), h);
    let verdict = site.verdict(&mut agent, round(7, 4), Tag::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    agent.end();
}

/// As after a new enrollment in quarantine, which only a proof with the new key ends.
#[test]
fn a_replaced_key_file_is_used_without_a_restart() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let write = |key: [u8; 32]| {
        home.write("next.key", &hex::encode(key));
        let (next, path) = (home.path("next.key"), home.path("attest.key"));
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
        ..home.options()
    };
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    for (round, key) in [
        (round(5, 1), K),
        (round(5, 2), [0x43; 32]),
        (round(5, 3), [0x44; 32]),
    ] {
        if key != K {
            write(key);
        }
        site.k = AttestationKey::from_bytes(key);
        site.expect(start(5), h);
        let verdict = site.verdict(&mut agent, round, Tag::Request, port);
        assert_eq!(verdict, Verdict::ProofOk, "{round:?}");
    }
    // An invalid key file changes nothing.
    home.write("attest.key", "half of a k");
    let verdict = site.verdict(&mut agent, round(5, 4), Tag::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    let reports = agent.end();
    let replaced = |report: &&AgentEvent| matches!(report, AgentEvent::AttestationKeyReplaced);
    assert_eq!(reports.iter().filter(replaced).count(), 3, "{reports:?}");
}

#[test]
fn replays_receive_the_same_proof_and_other_messages_no_reply() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let port = options.port;
    site.expect(start(5), h(&options));
    let mut agent = Running::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), Tag::Request, port),
        Verdict::ProofOk
    );
    // Requests are handled in order: when the last one gets a proof, the earlier ones were refused.
    site.send_request(&round(5, 3), Tag::Wrong, port);
    site.send_request(&round(5, 1), Tag::Request, port);
    site.send_request(&round(7, 4), Tag::Wrong, port);
    site.send_request(&round(4, 4), Tag::Request, port);
    let count = site.proofs.len();
    site.send_request(&round(5, 2), Tag::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let again = site.proofs.pop().unwrap();
    assert_eq!(again.0, Verdict::DropProved);
    assert!(site.proofs.iter().all(|(_, proof)| *proof == again.1));
    let reports = agent.end();
    for (reason, count) in [("wrong_tag", 2), ("stale_round", 1), ("stale_period", 1)] {
        assert_eq!(refused(&reports, reason), count, "{reason}: {reports:?}");
    }
}

/// With a key in software, deriving a request key is as fast as checking a tag: forged requests of unknown gateways delay
/// no other request.
#[test]
fn with_a_key_in_software_requests_of_unknown_gateways_are_verified() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let port = options.port;
    site.expect(start(5), h(&options));
    let mut agent = Running::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), Tag::Request, port),
        Verdict::ProofOk
    );
    for gateway in 100..140 {
        let forged = Round {
            gateway: GatewayId(gateway),
            ..round(5, 2)
        };
        site.send_request(&forged, Tag::Wrong, port);
    }
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), Tag::Request, port),
        Verdict::ProofOk
    );
    let reports = agent.end();
    assert_eq!(refused(&reports, "limited"), 0, "{reports:?}");
    assert_eq!(refused(&reports, "wrong_tag"), 40, "{reports:?}");
}

#[test]
fn a_file_that_changes_between_periods_makes_another_configuration() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let (port, before) = (options.port, h(&options));
    site.expect(start(5), before);
    let mut agent = Running::start(&site, options.clone());
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), Tag::Request, port),
        Verdict::ProofOk
    );
    home.write("sensord", "other");
    let after = h(&options);
    assert_ne!(before, after);
    // The measurement from the start of the period is proven until its end.
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), Tag::Request, port),
        Verdict::ProofOk
    );
    site.expect(start(6), before);
    assert_eq!(
        site.verdict(&mut agent, round(6, 3), Tag::Request, port),
        Verdict::DropProof
    );
    assert!(!site.is_proved(3));
    // The same proof is valid if the new configuration is expected.
    site.expect(start(6), after);
    assert_eq!(
        site.verdict(&mut agent, round(6, 3), Tag::Request, port),
        Verdict::ProofOk
    );
    assert!(site.is_proved(3));
    let reports = agent.end();
    let changed = reports.iter().find_map(|report| match report {
        AgentEvent::ConfigurationChanged {
            configuration,
            changes,
        } => Some((configuration, changes.as_deref()?)),
        _ => None,
    });
    let (configuration, changes) = changed.unwrap();
    assert_eq!(*configuration, after.to_string());
    assert_eq!(changes.files.len(), 1);
    assert_eq!(changes.files[0].path, home.file("sensord"));
}

#[test]
fn a_missing_file_is_measured_and_an_unreadable_file_is_an_error() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let port = options.port;
    std::fs::remove_file(home.path("sensord")).unwrap();
    let absent = h(&options);
    site.expect(start(5), absent);
    // A directory loop cannot be read, not even by root.
    std::os::unix::fs::symlink("loop", home.path("loop")).unwrap();
    let mut unreadable = options.clone();
    unreadable.scope.files = vec![home.file("loop/sensord")];
    let mut agent = Running::start(&site, unreadable);
    site.open(round(5, 1));
    let is_failure = |report: &AgentEvent| matches!(report, AgentEvent::AttestationFailed { reason, retry_in_ms: Some(_) } if reason.contains("loop"));
    site.serve(&mut agent, |site, agent| {
        site.send_request(&round(5, 1), Tag::Request, port);
        agent.has(is_failure)
    });
    agent.end();
    assert!(site.proofs.is_empty(), "{:?}", site.proofs);
    let mut agent = Running::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), Tag::Request, port),
        Verdict::ProofOk
    );
    agent.end();
}
