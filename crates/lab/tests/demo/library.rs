//! Small demonstrations on all data planes, with and without injected faults that the checks must detect. Needs root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::require;
use linewarden_lab::attackers::{ATTACKS, FORGED_PROOFS, Requirement};
use linewarden_lab::capability::{FOR_LOAD_GENERATOR, FOR_NETWORK};
use linewarden_lab::demo::{self, DataPlaneKind, DemoError, Event, InjectedFault, Options, Report, Stage};

fn options(data_plane: DataPlaneKind, devices: u32) -> Options {
    Options {
        messages_per_attack: 500,
        ..Options::new(devices, data_plane, 7)
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
    assert_passed_with_comparison(report, devices, ["xdp", "host"]);
}

/// Asserts that all checks passed, and that the comparison measured the data planes `compared`.
fn assert_passed_with_comparison(report: &Report, devices: u64, compared: [&str; 2]) {
    assert!(report.passed, "{:?}", report.findings);
    assert_eq!(report.attacks.len(), ATTACKS.len() + 1);
    assert_attested(report);
    assert_eq!((report.false_accepts, report.false_rejects), (0, 0));
    assert_eq!((report.authenticated, report.inconclusive_attacks), (devices, 0));
    assert!(report.auth_per_s > 0.0);
    assert!(report.latency_us.p50 > 0.0 && report.latency_us.p50 <= report.latency_us.p99);
    let revocation = report.revocation.as_ref().unwrap();
    assert_eq!(revocation.others_authenticated, u64::from(demo::VICTIMS) - 1);
    let data_planes: Vec<_> = report.comparison.iter().map(|pass| pass.dataplane).collect();
    assert_eq!(data_planes, compared);
    for pass in &report.comparison {
        assert_eq!(pass.devices, devices / 4);
    }
    let svg = demo::picture::latency_cdf(&report.comparison).unwrap();
    assert!(compared.iter().all(|name| svg.contains(name)));
}

/// Asserts that the modified device was detected, quarantined and released, and that forged PROOFs had no effect.
fn assert_attested(report: &Report) {
    let attestation = report.attestation.as_ref().unwrap();
    assert!(
        attestation.provers > 1 && attestation.rounds >= 6,
        "{attestation:?}"
    );
    assert!(
        attestation.all_proved_initially
            && attestation.quarantined
            && attestation.released
            && attestation.access_restored
    );
    let (detected, quarantined) = (
        attestation.detected_after_rounds,
        attestation.quarantined_after_rounds,
    );
    assert!(
        detected > 0 && detected < quarantined && quarantined < attestation.rounds,
        "{attestation:?}"
    );
    assert!(!attestation.authenticated_in_quarantine);
    assert_eq!(attestation.wrongly_quarantined, 0);
    // The attacker received requests under request keys (before authentication) and later under session keys. The gateway
    // received forged PROOFs and valid PROOFs.
    assert!(attestation.requests_overheard > attestation.provers && attestation.forged_proofs_sent > 0);
    assert!(attestation.drop_proof > 0 && attestation.drop_round > 0 && attestation.proofs_accepted > 0);
    let forgery = report.attacks.last().unwrap();
    assert_eq!(
        (forgery.name, forgery.attempts),
        (FORGED_PROOFS, attestation.forged_proofs_sent)
    );
}

#[test]
fn on_xdp_all_devices_authenticate_and_no_attack_succeeds() {
    require(FOR_LOAD_GENERATOR);
    let (report, events) = run(&options(DataPlaneKind::Xdp, 64));
    assert_passed(&report, 64);
    for attack in &report.attacks {
        assert!(attack.attempts > 0 && attack.skipped.is_none(), "{attack:?}");
    }
    let service = report.service.as_ref().unwrap();
    assert_eq!(
        (service.devices_with_echo, service.delivered_before_authentication),
        (64, 0)
    );
    assert_eq!(
        report.attestation.as_ref().unwrap().delivered_in_quarantine,
        Some(0)
    );
    assert!(service.sent_before_authentication > 0);
    for stage in [
        Stage::Enrolling,
        Stage::Loading,
        Stage::Authenticating,
        Stage::AccessingService,
        Stage::Attesting,
        Stage::Measuring(DataPlaneKind::Host),
    ] {
        assert!(events.contains(&Event::Stage(stage)), "{stage:?}");
    }
    let attack_events = events.iter().filter(|event| matches!(event, Event::Attack(_)));
    assert_eq!(attack_events.count(), ATTACKS.len() + 1);
}

#[test]
fn on_host_all_devices_authenticate_and_no_attack_succeeds() {
    require(FOR_LOAD_GENERATOR);
    let (report, _) = run(&options(DataPlaneKind::Host, 64));
    assert_passed(&report, 64);
    // The last report is about forged PROOFs. `zip` skips that report, because ATTACKS does not contain this attack.
    for (attack, definition) in report.attacks.iter().zip(ATTACKS) {
        let needs_gate = definition.requirement == Requirement::BoundGate;
        assert_eq!(attack.skipped.is_some(), needs_gate, "{attack:?}");
        assert_eq!(attack.attempts > 0, !needs_gate, "{attack:?}");
    }
    assert!(report.service.is_none());
    assert!(report.skipped_checks.iter().any(|check| check.contains("gate")));
}

#[test]
fn on_a_p4_switch_all_devices_authenticate_and_no_attack_succeeds() {
    require(FOR_LOAD_GENERATOR);
    let (report, events) = run(&options(DataPlaneKind::P4, 64));
    assert_passed_with_comparison(&report, 64, ["xdp", "p4"]);
    for attack in &report.attacks {
        assert!(attack.attempts > 0 && attack.skipped.is_none(), "{attack:?}");
    }
    let service = report.service.as_ref().unwrap();
    assert_eq!(
        (service.devices_with_echo, service.delivered_before_authentication),
        (64, 0)
    );
    assert!(service.sent_before_authentication > 0);
    assert!(report.skipped_checks.is_empty() && events.contains(&Event::Stage(Stage::Attesting)));
    // Enrolled devices take the slow path; the switch drops frames of unknown devices.
    let count = |verdict: &str| report.verdicts.get(verdict).copied().unwrap_or(0);
    assert!(
        count("slow_path") > 0 && count("drop_unknown_device") > 0,
        "{:?}",
        report.verdicts
    );
}

#[test]
fn the_checks_detect_injected_faults_on_a_p4_switch() {
    require(FOR_LOAD_GENERATOR);
    let with_fault = |fault| Options {
        fault: Some(fault),
        timeout: Duration::from_secs(20),
        ..options(DataPlaneKind::P4, 32)
    };
    let (revoked_run, _) = run(&with_fault(InjectedFault::RevokeBeforeAuthentication));
    assert_eq!((revoked_run.false_accepts, revoked_run.false_rejects), (0, 1));
    assert_eq!(
        (revoked_run.authenticated, revoked_run.line_check.without_session),
        (31, 1)
    );
    let (ungated_run, _) = run(&with_fault(InjectedFault::GateDisabled));
    let service = ungated_run.service.as_ref().unwrap();
    assert!(service.delivered_before_authentication > 0 && service.unauthorized_datagrams > 0);
    assert!(ungated_run.revocation.as_ref().unwrap().delivered_after > 0);
    assert!(ungated_run.false_accepts > 0 && !revoked_run.passed && !ungated_run.passed);
}

#[test]
fn a_refused_legitimate_device_fails_the_run() {
    require(FOR_LOAD_GENERATOR);
    let (report, _) = run(&Options {
        fault: Some(InjectedFault::RevokeBeforeAuthentication),
        timeout: Duration::from_secs(20),
        ..options(DataPlaneKind::Xdp, 32)
    });
    assert_eq!((report.false_accepts, report.false_rejects), (0, 1));
    assert_eq!((report.authenticated, report.line_check.without_session), (31, 1));
    assert!(!report.passed);
}

#[test]
fn a_disabled_gate_fails_the_run() {
    require(FOR_LOAD_GENERATOR);
    let (report, _) = run(&Options {
        fault: Some(InjectedFault::GateDisabled),
        ..options(DataPlaneKind::Xdp, 32)
    });
    let service = report.service.as_ref().unwrap();
    assert!(service.delivered_before_authentication > 0 && service.unauthorized_datagrams > 0);
    let attack = report
        .attacks
        .iter()
        .find(|attack| attack.name == "traffic to the service without a session")
        .unwrap();
    assert!(attack.successes > 0, "{attack:?}");
    assert!(report.revocation.as_ref().unwrap().delivered_after > 0);
    assert!(report.false_accepts > 0 && !report.passed);
}

#[test]
fn an_unmodified_device_or_a_second_modified_device_fails_the_run() {
    require(FOR_LOAD_GENERATOR);
    let (report, _) = run(&Options {
        fault: Some(InjectedFault::FileUnchanged),
        timeout: Duration::from_secs(15),
        ..options(DataPlaneKind::Xdp, 32)
    });
    assert_eq!(
        (report.false_accepts, report.false_rejects),
        (1, 0),
        "{:?}",
        report.findings
    );
    assert!(!report.attestation.as_ref().unwrap().quarantined && !report.passed);
    let (report, _) = run(&Options {
        fault: Some(InjectedFault::SecondFileChanged),
        ..options(DataPlaneKind::Host, 32)
    });
    let attestation = report.attestation.as_ref().unwrap();
    assert!(
        attestation.quarantined && attestation.wrongly_quarantined == 1,
        "{attestation:?}"
    );
    assert!(report.false_rejects > 0 && !report.passed);
}

/// Runs `work` in a thread without capabilities, as an unprivileged user runs it.
fn without_capabilities<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // Header (version 3, this thread) and two empty sets of three words, as capset(2) expects them.
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
fn without_privileges_the_demonstration_runs_on_loopback_and_lists_skipped_checks() {
    without_capabilities(|| {
        let (report, _) = run(&options(DataPlaneKind::Host, 64));
        assert!(report.passed, "{:?}", report.findings);
        assert_eq!((report.authenticated, report.line_check.without_session), (64, 0));
        assert_eq!(report.attacks.len(), 6);
        assert_attested(&report);
        for attack in &report.attacks {
            assert!(attack.attempts > 0 && attack.inconclusive.is_none(), "{attack:?}");
            let is_known =
                ATTACKS.iter().any(|known| known.name == attack.name) || attack.name == FORGED_PROOFS;
            assert!(is_known, "{attack:?}");
        }
        let skipped_checks = report.skipped_checks.join("\n");
        for keyword in ["CAP_NET_ADMIN", "xdp", "gate", "MAC", "VLAN"] {
            assert!(skipped_checks.contains(keyword), "{keyword}: {skipped_checks}");
        }
        let revocation = report.revocation.unwrap();
        assert!(!revocation.authenticated_after && revocation.others_authenticated == 7);

        // The checks detect a refused device on loopback, too.
        let (report, _) = run(&Options {
            fault: Some(InjectedFault::RevokeBeforeAuthentication),
            timeout: Duration::from_secs(10),
            ..options(DataPlaneKind::Host, 32)
        });
        assert_eq!((report.false_accepts, report.false_rejects), (0, 1));
        assert!(!report.passed);

        for data_plane in [DataPlaneKind::Xdp, DataPlaneKind::P4] {
            let result = demo::run(&options(data_plane, 64), &AtomicBool::new(false), &mut |_| {});
            assert!(matches!(result, Err(DemoError::Capability(_))), "{result:?}");
        }
    });
}

#[test]
fn a_run_can_be_stopped() {
    require(FOR_NETWORK);
    let stop = AtomicBool::new(false);
    let result = demo::run(&options(DataPlaneKind::Host, 1_000), &stop, &mut |event| {
        if event == Event::Stage(Stage::Enrolling) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(result, Err(DemoError::Interrupted)), "{result:?}");
}

#[test]
fn unsupported_sizes_are_refused() {
    for devices in [0, demo::DEVICES_MIN - 1, demo::DEVICES_MAX + 1] {
        let result = demo::run(
            &options(DataPlaneKind::Host, devices),
            &AtomicBool::new(false),
            &mut |_| {},
        );
        assert!(matches!(result, Err(DemoError::DeviceCount(_))), "{devices}");
    }
    let rows = Options {
        rows: demo::ROWS_MIN - 1,
        ..options(DataPlaneKind::Host, 64)
    };
    let result = demo::run(&rows, &AtomicBool::new(false), &mut |_| {});
    assert!(matches!(result, Err(DemoError::RowCount(_))));
}
