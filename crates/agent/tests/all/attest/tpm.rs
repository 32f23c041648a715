//! A device with its attestation key in a TPM (swtpm). The TPM has the PCR values of a recorded boot.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use linewarden_agent::attest::{self, KeySource, MeasurementScope, TpmScope};
use linewarden_agent::{AgentEvent, AttestOptions};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::eventlog::{EventLog, EventType, verify_replay};
use linewarden_measurement::pcr::PcrSelection;
use linewarden_protocol::attest::{AttestationKey, quote_nonce};
use linewarden_protocol::verdict::Verdict;
use linewarden_tpm::Protection;
use linewarden_tpm::device::EndorsementKind;
use linewarden_tpm::enroll::{self, EnrolledDevice, from_json};
use linewarden_tpm::evidence::Evidence;
use linewarden_tpm::policy::PcrPolicy;
use linewarden_tpm::public::Public;
use linewarden_tpm::quote::verify_quote;
use linewarden_tpm::template::AttestationSigner;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use crate::attest::require_emulator;
use crate::attest::site::{
    DEVICE, DeviceDirectory, RunningAgent, Site, TagKey, h, period_start, rejection_count, round,
};
use crate::attest::swtpm::{Emulator, TpmManufacturer, tcti, two_listeners};

/// Time within the validity of the emulator's certificates.
const NOW_S: i64 = 4_000_000_000;
const BANK: HashAlgorithm = HashAlgorithm::Sha256;

fn selection() -> PcrSelection {
    "2,4,7".parse().unwrap()
}

/// Path of an event log that real firmware has written.
fn recorded_log() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../measurement/tests/data/direct/log.bin")
}

/// A TPM that can be disconnected and connected again at the same address.
struct Machine {
    emulator: Emulator,
    manufacturer: TpmManufacturer,
    proxy: TcpProxy,
}

impl Machine {
    fn new() -> Self {
        let manufacturer = TpmManufacturer::new();
        let emulator = Emulator::made_by(&manufacturer);
        let proxy = TcpProxy::start(emulator.port());
        let machine = Self {
            emulator,
            manufacturer,
            proxy,
        };
        machine.boot();
        machine
    }

    /// Extends the PCRs with the digests in the recorded event log.
    fn boot(&self) {
        let log = EventLog::parse(&std::fs::read(recorded_log()).unwrap()).unwrap();
        let extends = log.events().iter().filter_map(|event| {
            let pcr = event.pcr().filter(|pcr| selection().contains(*pcr))?;
            let digest = event
                .digest(BANK)
                .filter(|_| event.kind() != EventType::EV_NO_ACTION)?;
            Some(format!("{pcr}:sha256={digest}"))
        });
        for extend in extends {
            self.tool(&["tpm2_pcrextend", &extend]);
        }
    }

    fn tool(&self, command: &[&str]) {
        self.emulator.tool(Path::new("/"), command);
    }

    fn restart(&mut self) {
        self.emulator.start();
        self.boot();
        self.proxy.set_target(self.emulator.port());
    }

    /// Enrolls a device with this machine's TPM and the event log `log`, as the `attest` commands do.
    fn enroll(
        &self,
        directory: &DeviceDirectory,
        site: &mut Site,
        log: &[u8],
    ) -> (AttestOptions, EnrolledDevice) {
        std::fs::write(directory.path("log.bin"), log).unwrap();
        let scope = TpmScope {
            tcti: tcti(self.proxy.port),
            bank: BANK,
            pcrs: selection(),
            event_log: directory.path("log.bin"),
        };
        let key_file = directory.path("attest.key");
        let (identity, _) = attest::identity(&scope, EndorsementKind::Rsa2048, &key_file).unwrap();
        let pending_enrollment = KeySource::in_tpm(&scope.tcti, &key_file).unwrap_err();
        assert!(
            pending_enrollment.to_string().contains("linewarden-agent answer"),
            "{pending_enrollment}"
        );
        let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let (offer, mut enrollment) =
            enroll::offer(&identity, &self.manufacturer.trust(), policy, NOW_S, &mut rng).unwrap();
        let enrollment_response = attest::accept_offer(&scope.tcti, &offer, &key_file).unwrap();
        let enrolled = enrollment.finish(&enrollment_response, NOW_S + 1).unwrap();
        site.k = AttestationKey::from_bytes(*enrolled.key.expose());
        let options = AttestOptions {
            scope: MeasurementScope {
                tpm: Some(scope.clone()),
                ..directory.options().scope
            },
            key: KeySource::in_tpm(&scope.tcti, &key_file).unwrap(),
            ..directory.options()
        };
        (options, enrolled)
    }
}

/// A TCP proxy to an emulator. Its target port can be changed, and new connections can be blocked.
struct TcpProxy {
    port: u16,
    target_port: Arc<AtomicU16>,
    is_blocked: Arc<(Mutex<bool>, Condvar)>,
}

impl TcpProxy {
    fn start(port: u16) -> Self {
        let (data, control) = two_listeners();
        let proxy = Self {
            port: data.local_addr().unwrap().port(),
            target_port: Arc::new(AtomicU16::new(port)),
            is_blocked: Arc::default(),
        };
        for (listener, offset) in [(data, 0), (control, 1)] {
            let (target_port, is_blocked) = (Arc::clone(&proxy.target_port), Arc::clone(&proxy.is_blocked));
            std::thread::spawn(move || forward(&listener, &target_port, offset, &is_blocked));
        }
        proxy
    }

    fn set_target(&self, port: u16) {
        self.target_port.store(port, Ordering::Release);
    }

    fn set_blocked(&self, is_blocked: bool) {
        *self.is_blocked.0.lock().unwrap() = is_blocked;
        self.is_blocked.1.notify_all();
    }
}

fn forward(
    listener: &TcpListener,
    target_port: &AtomicU16,
    offset: u16,
    (is_blocked, changed): &(Mutex<bool>, Condvar),
) {
    while let Ok((client, _)) = listener.accept() {
        let guard = is_blocked.lock().unwrap();
        drop(changed.wait_while(guard, |is_blocked| *is_blocked).unwrap());
        let port = target_port.load(Ordering::Acquire) + offset;
        let Ok(tpm) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
            continue;
        };
        std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for (from, to) in [(&client, &tpm), (&tpm, &client)] {
                    scope.spawn(move || {
                        let (mut from, mut to) = (from, to);
                        io::copy(&mut from, &mut to).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            });
        });
    }
}

fn attestation_failure(report: &AgentEvent) -> Option<(&str, Option<u64>)> {
    match report {
        AgentEvent::AttestationFailed { reason, retry_in_ms } => Some((reason, *retry_in_ms)),
        _ => None,
    }
}

#[test]
fn a_device_that_the_commands_have_enrolled_proves_its_pcrs_and_quotes_them() {
    require_emulator();
    let machine = Machine::new();
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let log = std::fs::read(recorded_log()).unwrap();
    let (mut options, enrolled) = machine.enroll(&directory, &mut site, &log);
    use std::os::unix::fs::PermissionsExt as _;
    let mode = directory
        .path("attest.key")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    (options.send_log, options.quote_every) = (true, 4);
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options.clone());
    site.expect(period_start(5), h);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), TagKey::Request, port),
        Verdict::ProofOk
    );
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), TagKey::Session, port),
        Verdict::ProofOk
    );
    let is_accepted = |report: &AgentEvent| {
        matches!(
            report,
            AgentEvent::EvidenceAccepted {
                period: 5,
                quote: true,
                ..
            }
        )
    };
    site.serve(&mut agent, |_, agent| agent.has(is_accepted));
    // The next quote is due in period 9.
    for (period, number) in [(6, 3), (8, 4)] {
        site.expect(period_start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), TagKey::Session, port);
        assert_eq!(verdict, Verdict::ProofOk);
    }
    let reports = agent.end();
    let is_attested = |report: &AgentEvent| matches!(report, AgentEvent::Attested { protection: Protection::Tpm, configuration, .. } if *configuration == h.to_string());
    assert!(reports.iter().any(is_attested), "{reports:?}");
    assert_eq!(site.documents.len(), 1);

    let evidence: Evidence = from_json(&site.documents[0]).unwrap();
    assert_eq!(evidence.protection, Protection::Tpm);
    let configuration = Configuration::decode(&evidence.configuration).unwrap();
    assert_eq!(configuration.hash().0, h.0);
    let event_log = EventLog::parse(&evidence.event_log.unwrap()).unwrap();
    verify_replay(&event_log, configuration.pcrs()).unwrap();
    let quote = evidence.quote.unwrap();
    let public = Public::from_sized(&enrolled.binding.attestation_key).unwrap();
    let signer = AttestationSigner::new(public).unwrap();
    let nonce = quote_nonce(DEVICE, &period_start(5));
    let (selected_pcrs, values) = ((BANK, selection()), configuration.pcrs());
    verify_quote(
        &signer,
        &quote.quote,
        &quote.signature,
        &nonce,
        selected_pcrs,
        values,
    )
    .unwrap();
    let other_nonce = quote_nonce(DEVICE, &period_start(6));
    assert!(
        verify_quote(
            &signer,
            &quote.quote,
            &quote.signature,
            &other_nonce,
            selected_pcrs,
            values
        )
        .is_err()
    );
}

#[test]
fn a_missing_tpm_is_reported_and_nothing_is_proven_until_it_returns() {
    require_emulator();
    let mut machine = Machine::new();
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let log = std::fs::read(recorded_log()).unwrap();
    let (options, _) = machine.enroll(&directory, &mut site, &log);
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    site.expect(period_start(5), h);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), TagKey::Session, port),
        Verdict::ProofOk
    );
    machine.emulator.kill();
    // The agent derived the key of this period before the TPM stopped.
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), TagKey::Session, port),
        Verdict::ProofOk
    );
    site.expect(period_start(6), h);
    site.open(round(6, 3));
    let proofs = site.proofs.len();
    site.send_request(&round(6, 3), TagKey::Session, port);
    let failure_count = |agent: &mut RunningAgent| {
        agent.has(|_| false);
        agent.events.iter().filter_map(attestation_failure).count()
    };
    site.serve(&mut agent, |_, agent| failure_count(agent) >= 2);
    assert_eq!(site.proofs.len(), proofs);
    let failures: Vec<_> = agent.events.iter().filter_map(attestation_failure).collect();
    let (command, object) = failures[0].0.split_once(" (").unwrap();
    assert!(command.starts_with("TPM2_"), "{command} ({object}");
    for (failure, retry_ms_max) in failures.iter().zip([1_000, 2_000]) {
        let retry_in_ms = failure.1.unwrap();
        assert!(
            (retry_ms_max / 2..=retry_ms_max).contains(&retry_in_ms),
            "{failures:?}"
        );
    }
    machine.restart();
    // The agent proves the pending request without a repetition of the request.
    site.serve(&mut agent, |site, _| site.proofs.len() > proofs);
    assert_eq!(site.proofs[proofs].0, Verdict::ProofOk);
    assert!(site.is_proved(3));
    agent.end();
}

#[test]
fn authentication_continues_during_slow_tpm_operations() {
    require_emulator();
    let machine = Machine::new();
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(1)));
    let log = std::fs::read(recorded_log()).unwrap();
    let (options, _) = machine.enroll(&directory, &mut site, &log);
    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    site.expect(period_start(5), h);
    site.open(round(5, 1));
    machine.proxy.set_blocked(true);
    let (sessions, mut sessions_at_last_request) = (site.sessions, 0);
    // Sends one request per session, with a tag under the key of that session.
    let request_in_new_session = |site: &mut Site, sessions_at_last_request: &mut usize| {
        if *sessions_at_last_request != site.sessions {
            *sessions_at_last_request = site.sessions;
            site.send_request(&round(5, 1), TagKey::Session, port);
        }
    };
    site.serve(&mut agent, |site, _| {
        request_in_new_session(site, &mut sessions_at_last_request);
        site.sessions >= sessions + 3
    });
    assert!(site.proofs.is_empty(), "{:?}", site.proofs);
    machine.proxy.set_blocked(false);
    site.serve(&mut agent, |site, _| {
        request_in_new_session(site, &mut sessions_at_last_request);
        !site.proofs.is_empty()
    });
    assert_eq!(site.proofs[0].0, Verdict::ProofOk);
    agent.end();
}

#[test]
fn with_a_log_that_contradicts_the_pcrs_nothing_is_proven_in_the_period() {
    require_emulator();
    let log = std::fs::read(recorded_log()).unwrap();
    let event_log = EventLog::parse(&log).unwrap();
    let is_event_of_pcr_4 = |event: &linewarden_measurement::eventlog::Event| {
        event.pcr().is_some_and(|pcr| pcr.get() == 4) && event.kind() != EventType::EV_NO_ACTION
    };
    let last_entry = event_log.events().iter().rposition(is_event_of_pcr_4).unwrap();
    let machine = Machine::new();
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let (options, _) = machine.enroll(&directory, &mut site, &log);
    // The TPM extends a PCR with an event that is not in the log.
    machine.tool(&["tpm2_pcrextend", &format!("4:sha256={}", "11".repeat(32))]);
    // Enrollment rejects this log.
    let scope = options.scope.tpm.as_ref().unwrap();
    let error = attest::identity(scope, EndorsementKind::Rsa2048, &directory.path("attest.key")).unwrap_err();
    assert!(
        error.to_string().contains("does not replay to the PCRs"),
        "{error}"
    );
    let port = options.port;
    let mut agent = RunningAgent::start(&site, options.clone());
    site.serve(&mut agent, |site, _| site.sessions > 0);
    let rejection_reason = |site: &mut Site, agent: &mut RunningAgent, period: u64, number: u32| -> String {
        let earlier_failures = agent.events.iter().filter_map(attestation_failure).count();
        site.send_request(&round(period, number), TagKey::Session, port);
        site.serve(agent, |_, agent| {
            agent.has(|_| false);
            agent.events.iter().filter_map(attestation_failure).count() > earlier_failures
        });
        let (reason, retry) = agent
            .events
            .iter()
            .filter_map(attestation_failure)
            .next_back()
            .unwrap();
        assert_eq!(retry, None, "{reason}");
        reason.to_owned()
    };
    let reason = rejection_reason(&mut site, &mut agent, 5, 1);
    assert!(reason.contains("PCR 4"), "{reason}");
    assert!(
        reason.contains(&format!("the last entry of this PCR is {last_entry}")),
        "{reason}"
    );
    // The agent rejects further rounds of the period without another measurement.
    site.send_request(&round(5, 2), TagKey::Session, port);
    site.send_request(&round(5, 3), TagKey::Session, port);
    // The next period begins with another measurement, which has the same result.
    let reason = rejection_reason(&mut site, &mut agent, 6, 4);
    assert!(reason.contains("PCR 4"), "{reason}");
    assert!(site.proofs.is_empty(), "{:?}", site.proofs);
    let reports = agent.end();
    assert_eq!(rejection_count(&reports, "not_measured"), 4);
}

#[test]
fn device_proves_its_pcrs_with_unexplained_data_or_an_empty_log() {
    require_emulator();
    let machine = Machine::new();
    let (directory, mut site) = (DeviceDirectory::new(), Site::new(Some(3_600)));
    let log = std::fs::read(recorded_log()).unwrap();
    let event_log = EventLog::parse(&log).unwrap();
    let mut separators = (0..).zip(event_log.events()).filter(|(_, event)| {
        event.kind() == EventType::EV_SEPARATOR && event.pcr().is_some_and(|pcr| selection().contains(pcr))
    });
    let (separator, _) = separators.next().unwrap();
    let (mut options, _) = machine.enroll(&directory, &mut site, &with_unexplained_data(&log, separator));
    (options.send_log, options.quote_every) = (true, 4);
    let measurement = options.scope.measure().unwrap();
    let notice_texts: Vec<String> = measurement.notices().iter().map(ToString::to_string).collect();
    assert_eq!(notice_texts.len(), 1, "{notice_texts:?}");
    assert!(
        notice_texts[0].starts_with("1 event with data")
            && notice_texts[0].contains(&format!("entry {separator}, ")),
        "{notice_texts:?}"
    );

    let (port, h) = (options.port, h(&options));
    let mut agent = RunningAgent::start(&site, options.clone());
    let mut prove = |site: &mut Site, period: u64, number: u32, tag: TagKey| {
        site.expect(period_start(period), h);
        assert_eq!(
            site.verdict(&mut agent, round(period, number), tag, port),
            Verdict::ProofOk
        );
        let is_accepted = |report: &AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { period: accepted_period, .. } if *accepted_period == period);
        site.serve(&mut agent, |_, agent| agent.has(is_accepted));
    };
    prove(&mut site, 5, 1, TagKey::Request);
    // The event log is empty, as after an update to firmware without a log. The configuration does not change.
    std::fs::write(directory.path("log.bin"), b"").unwrap();
    prove(&mut site, 9, 2, TagKey::Session);
    agent.end();
    let evidence: Vec<Evidence> = site
        .documents
        .iter()
        .map(|document| from_json(document).unwrap())
        .collect();
    assert_eq!(evidence.len(), 2);
    assert_eq!(evidence[0].configuration, evidence[1].configuration);
    let replayed = verify_replay(
        &EventLog::parse(evidence[0].event_log.as_ref().unwrap()).unwrap(),
        measurement.configuration.pcrs(),
    )
    .unwrap();
    assert_eq!(
        replayed
            .unexplained()
            .map(|event| event.entry)
            .collect::<Vec<_>>(),
        [separator]
    );
    assert_eq!(evidence[1].event_log, None);
    assert!(
        evidence[1].quote.is_some(),
        "the agent quotes the PCRs even without a log"
    );
    let notices = options.scope.measure().unwrap().notices();
    assert!(
        notices[0]
            .to_string()
            .starts_with("event log is empty: PCRs 2,4,7"),
        "{}",
        notices[0]
    );
}

/// Returns the log with a changed last byte in the data of this entry.
fn with_unexplained_data(log: &[u8], entry: usize) -> Vec<u8> {
    let event_log = EventLog::parse(log).unwrap();
    // The shortest prefix that contains the entry ends with the entry's data.
    let end = (1..=log.len())
        .find(|length| EventLog::parse(&log[..*length]).is_ok_and(|part| part.events().len() == entry + 1))
        .unwrap();
    assert!(!event_log.events()[entry].data().is_empty());
    let mut changed = log.to_vec();
    changed[end - 1] ^= 1;
    changed
}
