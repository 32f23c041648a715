//! The demonstration as a whole, small: on all data planes, and spoilt, so that its judge is judged. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linewarden_lab::attackers::{ALL, JUNK_PROOFS, Needs};
use linewarden_lab::capability::{self, Capability, FOR_LOAD_GENERATOR, FOR_NETWORK};
use linewarden_lab::demo::{self, Backend, DemoError, Event, Options, Report, Sabotage, Stage};

fn skipped(needed: &[Capability]) -> bool {
    match capability::require(needed) {
        Ok(()) => false,
        Err(missing) => {
            eprintln!("SKIPPED: {missing}");
            true
        }
    }
}

fn options(backend: Backend, devices: u32) -> Options {
    Options {
        effort: 500,
        ..Options::new(devices, backend, 7)
    }
}

fn run(options: &Options) -> (Report, Vec<Event>) {
    let mut events = Vec::new();
    let report = demo::run(options, &AtomicBool::new(false), &mut |event| events.push(event))
        .unwrap_or_else(|error| panic!("seed {}: {error}", options.seed));
    println!("seed {}: {report:#?}", options.seed);
    (report, events)
}

fn assert_passed(report: &Report, devices: u64) {
    assert_judged(report, devices, ["xdp", "host"]);
}

fn assert_judged(report: &Report, devices: u64, expected: [&str; 2]) {
    assert!(report.passed, "{:?}", report.findings);
    assert_eq!(report.attacks.len(), ALL.len() + 1);
    assert_attested(report);
    assert_eq!((report.false_accepts, report.false_rejects), (0, 0));
    assert_eq!((report.authenticated, report.inconclusive), (devices, 0));
    assert!(report.auth_per_s > 0.0);
    assert!(report.latency_us.p50 > 0.0 && report.latency_us.p50 <= report.latency_us.p99);
    let revocation = report.revocation.as_ref().unwrap();
    assert_eq!(revocation.others_authenticated, u64::from(demo::WITNESSES) - 1);
    let planes: Vec<_> = report.comparison.iter().map(|pass| pass.dataplane).collect();
    assert_eq!(planes, expected);
    for pass in &report.comparison {
        assert_eq!(pass.devices, devices / 4);
    }
    let svg = demo::picture::latency_cdf(&report.comparison).unwrap();
    assert!(expected.iter().all(|name| svg.contains(name)));
}

/// The changed device was found, shut out and let in again; the junk did nothing.
fn assert_attested(report: &Report) {
    let attestation = report.attestation.as_ref().unwrap();
    assert!(
        attestation.provers > 1 && attestation.rounds >= 6,
        "{attestation:?}"
    );
    assert!(
        attestation.all_proved && attestation.quarantined && attestation.readmitted && attestation.back_in
    );
    let (found, out) = (
        attestation.found_after_rounds,
        attestation.quarantined_after_rounds,
    );
    assert!(
        found > 0 && found < out && out < attestation.rounds,
        "{attestation:?}"
    );
    assert!(!attestation.authenticated_after);
    assert_eq!(attestation.wrongly_quarantined, 0);
    // Without a session asked under the request key, with one under the session's: requests, junk and good proofs met.
    assert!(attestation.requests_heard > attestation.provers && attestation.junk_sent > 0);
    assert!(attestation.drop_proof > 0 && attestation.drop_round > 0 && attestation.proofs_ok > 0);
    let junk = report.attacks.last().unwrap();
    assert_eq!((junk.name, junk.attempts), (JUNK_PROOFS, attestation.junk_sent));
}

#[test]
fn on_xdp_all_devices_get_in_and_no_attack_does() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let (report, events) = run(&options(Backend::Xdp, 64));
    assert_passed(&report, 64);
    for attack in &report.attacks {
        assert!(attack.attempts > 0 && attack.skipped.is_none(), "{attack:?}");
    }
    let service = report.service.as_ref().unwrap();
    assert_eq!((service.reached, service.reached_before), (64, 0));
    assert_eq!(report.attestation.as_ref().unwrap().reached_after, Some(0));
    assert!(service.tried_before > 0);
    for stage in [
        Stage::Enrolling,
        Stage::Loading,
        Stage::Authenticating,
        Stage::Reaching,
        Stage::Attesting,
        Stage::Measuring(Backend::Host),
    ] {
        assert!(events.contains(&Event::Stage(stage)), "{stage:?}");
    }
    let told = events.iter().filter(|event| matches!(event, Event::Attack(_)));
    assert_eq!(told.count(), ALL.len() + 1);
}

#[test]
fn on_host_all_devices_get_in_and_no_attack_does() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let (report, _) = run(&options(Backend::Host, 64));
    assert_passed(&report, 64);
    // Behind all of them stands the junk.
    for (attack, known) in report.attacks.iter().zip(ALL) {
        let needs_gate = known.needs == Needs::OpenGate;
        assert_eq!(attack.skipped.is_some(), needs_gate, "{attack:?}");
        assert_eq!(attack.attempts > 0, !needs_gate, "{attack:?}");
    }
    assert!(report.service.is_none());
    assert!(report.left_out.iter().any(|left_out| left_out.contains("gate")));
}

#[test]
fn on_a_p4_switch_all_devices_get_in_and_no_attack_does() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let (report, events) = run(&options(Backend::P4, 64));
    assert_judged(&report, 64, ["xdp", "p4"]);
    for attack in &report.attacks {
        assert!(attack.attempts > 0 && attack.skipped.is_none(), "{attack:?}");
    }
    let service = report.service.as_ref().unwrap();
    assert_eq!((service.reached, service.reached_before), (64, 0));
    assert!(service.tried_before > 0);
    assert!(report.left_out.is_empty() && events.contains(&Event::Stage(Stage::Attesting)));
    // Who is enrolled is asked about, all others are dropped at the switch.
    let count = |verdict: &str| report.verdicts.get(verdict).copied().unwrap_or(0);
    assert!(
        count("slow_path") > 0 && count("drop_unknown_device") > 0,
        "{:?}",
        report.verdicts
    );
}

#[test]
fn the_judge_of_a_p4_switch_notices_what_is_spoilt() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let spoilt = |sabotage| Options {
        sabotage: Some(sabotage),
        limit: Duration::from_secs(20),
        ..options(Backend::P4, 32)
    };
    let (refused, _) = run(&spoilt(Sabotage::RevokeBeforeTurn));
    assert_eq!((refused.false_accepts, refused.false_rejects), (0, 1));
    assert_eq!((refused.authenticated, refused.audit.refused), (31, 1));
    let (open, _) = run(&spoilt(Sabotage::GateLeftOff));
    let service = open.service.as_ref().unwrap();
    assert!(service.reached_before > 0 && service.strangers > 0);
    assert!(open.revocation.as_ref().unwrap().reached_after > 0);
    assert!(open.false_accepts > 0 && !refused.passed && !open.passed);
}

#[test]
fn an_honest_device_that_is_refused_fails_the_run() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let (report, _) = run(&Options {
        sabotage: Some(Sabotage::RevokeBeforeTurn),
        limit: Duration::from_secs(20),
        ..options(Backend::Xdp, 32)
    });
    assert_eq!((report.false_accepts, report.false_rejects), (0, 1));
    assert_eq!((report.authenticated, report.audit.refused), (31, 1));
    assert!(!report.passed);
}

#[test]
fn a_gate_that_is_left_off_fails_the_run() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let (report, _) = run(&Options {
        sabotage: Some(Sabotage::GateLeftOff),
        ..options(Backend::Xdp, 32)
    });
    let service = report.service.as_ref().unwrap();
    assert!(service.reached_before > 0 && service.strangers > 0);
    let through = report
        .attacks
        .iter()
        .find(|attack| attack.name == "through the gate without a session")
        .unwrap();
    assert!(through.successes > 0, "{through:?}");
    assert!(report.revocation.as_ref().unwrap().reached_after > 0);
    assert!(report.false_accepts > 0 && !report.passed);
}

#[test]
fn a_change_that_nobody_made_is_not_found_and_one_too_many_is_noticed() {
    if skipped(FOR_LOAD_GENERATOR) {
        return;
    }
    let (report, _) = run(&Options {
        sabotage: Some(Sabotage::FileLeftAlone),
        limit: Duration::from_secs(15),
        ..options(Backend::Xdp, 32)
    });
    assert_eq!(
        (report.false_accepts, report.false_rejects),
        (1, 0),
        "{:?}",
        report.findings
    );
    assert!(!report.attestation.as_ref().unwrap().quarantined && !report.passed);
    let (report, _) = run(&Options {
        sabotage: Some(Sabotage::SecondFile),
        ..options(Backend::Host, 32)
    });
    let attestation = report.attestation.as_ref().unwrap();
    assert!(
        attestation.quarantined && attestation.wrongly_quarantined == 1,
        "{attestation:?}"
    );
    assert!(report.false_rejects > 0 && !report.passed);
}

/// In a thread without any capability, as somebody who is not root has it.
fn without_rights<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // Header (version 3, this thread) and two empty sets of three words, as capset(2) wants them.
    let header = [0x2008_0522u32, 0];
    let sets = [0u32; 6];
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: both arrays have the sizes of version 3 and live through the call, which changes this thread only.
            let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn without_rights_it_runs_on_loopback_and_says_what_it_leaves_out() {
    without_rights(|| {
        let (report, _) = run(&options(Backend::Host, 64));
        assert!(report.passed, "{:?}", report.findings);
        assert_eq!((report.authenticated, report.audit.refused), (64, 0));
        assert_eq!(report.attacks.len(), 6);
        assert_attested(&report);
        for attack in &report.attacks {
            assert!(attack.attempts > 0 && attack.inconclusive.is_none(), "{attack:?}");
            let is_known = ALL.iter().any(|known| known.name == attack.name) || attack.name == JUNK_PROOFS;
            assert!(is_known, "{attack:?}");
        }
        let left_out = report.left_out.join("\n");
        for word in ["CAP_NET_ADMIN", "xdp", "gate", "MAC", "VLAN"] {
            assert!(left_out.contains(word), "{word}: {left_out}");
        }
        let revocation = report.revocation.unwrap();
        assert!(!revocation.authenticated_after && revocation.others_authenticated == 7);

        // The judge is no blinder there.
        let (spoilt, _) = run(&Options {
            sabotage: Some(Sabotage::RevokeBeforeTurn),
            limit: Duration::from_secs(10),
            ..options(Backend::Host, 32)
        });
        assert_eq!((spoilt.false_accepts, spoilt.false_rejects), (0, 1));
        assert!(!spoilt.passed);

        for backend in [Backend::Xdp, Backend::P4] {
            let refused = demo::run(&options(backend, 64), &AtomicBool::new(false), &mut |_| {});
            assert!(matches!(refused, Err(DemoError::Capability(_))), "{refused:?}");
        }
    });
}

#[test]
fn a_run_can_be_stopped() {
    if skipped(FOR_NETWORK) {
        return;
    }
    let stop = AtomicBool::new(false);
    let result = demo::run(&options(Backend::Host, 1_000), &stop, &mut |event| {
        if event == Event::Stage(Stage::Enrolling) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(result, Err(DemoError::Interrupted)), "{result:?}");
}

#[test]
fn sizes_that_cannot_be_shown_are_refused() {
    for devices in [0, demo::DEVICES_MIN - 1, demo::DEVICES_MAX + 1] {
        let result = demo::run(
            &options(Backend::Host, devices),
            &AtomicBool::new(false),
            &mut |_| {},
        );
        assert!(matches!(result, Err(DemoError::Devices(_))), "{devices}");
    }
    let rows = Options {
        rows: demo::ROWS_MIN - 1,
        ..options(Backend::Host, 64)
    };
    let result = demo::run(&rows, &AtomicBool::new(false), &mut |_| {});
    assert!(matches!(result, Err(DemoError::Rows(_))));
}
