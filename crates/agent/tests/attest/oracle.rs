//! Who is answered and who is not, and what a changed file does.

use std::os::unix::fs::PermissionsExt as _;

use linewarden_agent::attest::KeyFile;
use linewarden_agent::{AttestOptions, Report};
use linewarden_protocol::attest::{AttestationKey, Round};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::verdict::Verdict;
use linewarden_tpm::Protection;

use crate::site::{GATEWAY, Home, K, Running, Site, Tag, h, refused, round, start, state};

fn attested(reports: &[Report]) -> Vec<(u64, &str)> {
    let told = |report| match report {
        &Report::Attested {
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
    reports.iter().filter_map(told).collect()
}

#[test]
fn in_a_session_every_round_is_proven_and_each_period_told_once() {
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let options = home.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    // In a session the gateway's word is enough for a period far ahead.
    for (period, number) in [(500, 1), (500, 2), (501, 3)] {
        site.expect(start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), Tag::Session, port);
        assert_eq!(verdict, Verdict::ProofOk, "round {number}");
    }
    let reports = agent.end();
    let h = h.to_string();
    assert_eq!(attested(&reports), [(500, h.as_str()), (501, h.as_str())]);
}

/// As after a quarantine: nothing else tells the device that its session is gone, and its lease has most of an hour to go.
#[test]
fn a_gateway_that_asks_as_without_a_session_is_authenticated_to_again() {
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let options = home.options();
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions == 1);
    site.expect(start(5), h);
    let verdict = site.verdict(&mut agent, round(5, 1), Tag::Session, port);
    assert_eq!(verdict, Verdict::ProofOk);
    // The last repeat of a round whose proofs are lost, or late, comes so too.
    let count = site.proofs.len();
    site.ask(&round(5, 1), Tag::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let verdict = site.verdict(&mut agent, round(5, 2), Tag::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    site.serve(&mut agent, |site, _| site.sessions == 2);
    // A copy of what it was asked before says nothing: the new session stays.
    let count = site.proofs.len();
    site.ask(&round(5, 2), Tag::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let verdict = site.verdict(&mut agent, round(5, 3), Tag::Session, port);
    assert_eq!(verdict, Verdict::ProofOk);
    assert_eq!(site.sessions, 2);
    let reports = agent.end();
    let lost =
        |report: &&Report| matches!(report, Report::SessionLost { gateway_id } if *gateway_id == GATEWAY.0);
    assert_eq!(reports.iter().filter(lost).count(), 1, "{reports:?}");
}

#[test]
fn without_a_session_the_controllers_key_asks_and_its_periods_are_remembered() {
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
    // Enrolled in period 4, it would refuse this one if it had forgotten.
    let mut agent = Running::start(&site, options);
    site.expect(start(7), h);
    let verdict = site.verdict(&mut agent, round(7, 4), Tag::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    agent.end();
}

/// As when the device was enrolled anew while it was in quarantine, where nothing but its key lets it out.
#[test]
fn a_key_whose_file_was_replaced_is_used_without_a_restart() {
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
    // Replaced after it was read, before the agent begins.
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
    // One that is no key changes nothing.
    home.write("attest.key", "half of a k");
    let verdict = site.verdict(&mut agent, round(5, 4), Tag::Request, port);
    assert_eq!(verdict, Verdict::ProofOk);
    let reports = agent.end();
    let replaced = |report: &&Report| matches!(report, Report::AttestKeyReplaced);
    assert_eq!(reports.iter().filter(replaced).count(), 3, "{reports:?}");
}

#[test]
fn replays_get_the_same_proof_again_and_everything_else_gets_silence() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let port = options.port;
    site.expect(start(5), h(&options));
    let mut agent = Running::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), Tag::Request, port),
        Verdict::ProofOk
    );
    // Requests are taken in their order: what is sent before one that is answered has got its silence by then.
    site.ask(&round(5, 3), Tag::Wrong, port);
    site.ask(&round(5, 1), Tag::Request, port);
    site.ask(&round(7, 4), Tag::Wrong, port);
    site.ask(&round(4, 4), Tag::Request, port);
    let count = site.proofs.len();
    site.ask(&round(5, 2), Tag::Request, port);
    site.serve(&mut agent, |site, _| site.proofs.len() > count);
    let again = site.proofs.pop().unwrap();
    assert_eq!(again.0, Verdict::DropProved);
    assert!(site.proofs.iter().all(|(_, proof)| *proof == again.1));
    let reports = agent.end();
    for (why, count) in [("wrong_tag", 2), ("round_over", 1), ("period_over", 1)] {
        assert_eq!(refused(&reports, why), count, "{why}: {reports:?}");
    }
}

/// A key in software makes a request key as fast as it checks a tag: forged requests of gateways that nobody has heard of keep nobody
/// waiting.
#[test]
fn with_a_key_in_software_a_flood_of_strangers_is_looked_at_like_everything() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let port = options.port;
    site.expect(start(5), h(&options));
    let mut agent = Running::start(&site, options);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), Tag::Request, port),
        Verdict::ProofOk
    );
    for stranger in 100..140 {
        let forged = Round {
            gateway: GatewayId(stranger),
            ..round(5, 2)
        };
        site.ask(&forged, Tag::Wrong, port);
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
    // What was measured when the period began is proven until it ends.
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
    // The same proof is right where the new configuration is expected.
    site.expect(start(6), after);
    assert_eq!(
        site.verdict(&mut agent, round(6, 3), Tag::Request, port),
        Verdict::ProofOk
    );
    assert!(site.is_proved(3));
    let reports = agent.end();
    let changed = reports.iter().find_map(|report| match report {
        Report::ConfigurationChanged {
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
fn a_file_that_is_gone_is_a_configuration_too_and_an_unreadable_one_is_none() {
    let (home, mut site) = (Home::new(), Site::new(None));
    let options = home.options();
    let port = options.port;
    std::fs::remove_file(home.path("sensord")).unwrap();
    let absent = h(&options);
    site.expect(start(5), absent);
    // A directory that leads round in a circle can be read by nobody, not even by root.
    std::os::unix::fs::symlink("loop", home.path("loop")).unwrap();
    let mut unreadable = options.clone();
    unreadable.subject.files = vec![home.file("loop/sensord")];
    let mut agent = Running::start(&site, unreadable);
    site.open(round(5, 1));
    let told = |report: &Report| matches!(report, Report::NotAttesting { why, retry_in_ms: Some(_) } if why.contains("loop"));
    site.serve(&mut agent, |site, agent| {
        site.ask(&round(5, 1), Tag::Request, port);
        agent.has(told)
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
