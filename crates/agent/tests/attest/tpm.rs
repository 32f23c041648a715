//! A device with its key in a TPM (swtpm) and the PCRs of recorded firmware.

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

use crate::site::{DEVICE, Home, Running, Site, Tag, h, refused, round, start};
use crate::swtpm::{Emulator, TpmManufacturer, installed, tcti, two_listeners};

/// Within the validity of the emulator's certificates.
const NOW_S: i64 = 4_000_000_000;
const BANK: HashAlgorithm = HashAlgorithm::Sha256;

fn selection() -> PcrSelection {
    "2,4,7".parse().unwrap()
}

/// The event log of real firmware.
fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../measurement/tests/data/direct/log.bin")
}

/// A TPM that can be disconnected and connected again at the same address.
struct Machine {
    emulator: Emulator,
    maker: TpmManufacturer,
    wire: Wire,
}

impl Machine {
    fn new() -> Self {
        let maker = TpmManufacturer::new();
        let emulator = Emulator::made_by(&maker);
        let wire = Wire::to(emulator.port());
        let machine = Self {
            emulator,
            maker,
            wire,
        };
        machine.boot();
        machine
    }

    /// Extends the PCRs as the recorded firmware did.
    fn boot(&self) {
        let log = EventLog::parse(&std::fs::read(recorded()).unwrap()).unwrap();
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
        self.wire.lead_to(self.emulator.port());
    }

    /// Enrolls a device of this machine, with this event log, as the commands do.
    fn enrolled(&self, home: &Home, site: &mut Site, log: &[u8]) -> (AttestOptions, EnrolledDevice) {
        std::fs::write(home.path("log.bin"), log).unwrap();
        let subject = TpmScope {
            tcti: tcti(self.wire.port),
            bank: BANK,
            pcrs: selection(),
            event_log: home.path("log.bin"),
        };
        let key_file = home.path("attest.key");
        let (identity, _) = attest::identity(&subject, EndorsementKind::Rsa2048, &key_file).unwrap();
        let pending_enrollment = KeySource::in_tpm(&subject.tcti, &key_file).unwrap_err();
        assert!(
            pending_enrollment.to_string().contains("attest answer"),
            "{pending_enrollment}"
        );
        let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let (offer, mut enrollment) =
            enroll::offer(&identity, &self.maker.trust(), policy, NOW_S, &mut rng).unwrap();
        let enrollment_answer = attest::accept_offer(&subject.tcti, &offer, &key_file).unwrap();
        let enrolled = enrollment.finish(&enrollment_answer, NOW_S + 1).unwrap();
        site.k = AttestationKey::from_bytes(*enrolled.key.expose());
        let options = AttestOptions {
            scope: MeasurementScope {
                tpm: Some(subject.clone()),
                ..home.options().scope
            },
            key: KeySource::in_tpm(&subject.tcti, &key_file).unwrap(),
            ..home.options()
        };
        (options, enrolled)
    }
}

/// A network link whose other end can be changed, and which can be interrupted.
struct Wire {
    port: u16,
    to: Arc<AtomicU16>,
    held: Arc<(Mutex<bool>, Condvar)>,
}

impl Wire {
    fn to(port: u16) -> Self {
        let (data, control) = two_listeners();
        let wire = Self {
            port: data.local_addr().unwrap().port(),
            to: Arc::new(AtomicU16::new(port)),
            held: Arc::default(),
        };
        for (listener, offset) in [(data, 0), (control, 1)] {
            let (to, held) = (Arc::clone(&wire.to), Arc::clone(&wire.held));
            std::thread::spawn(move || carry(&listener, &to, offset, &held));
        }
        wire
    }

    fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::Release);
    }

    fn hold(&self, held: bool) {
        *self.held.0.lock().unwrap() = held;
        self.held.1.notify_all();
    }
}

fn carry(listener: &TcpListener, to: &AtomicU16, offset: u16, held: &(Mutex<bool>, Condvar)) {
    while let Ok((device, _)) = listener.accept() {
        drop(held.1.wait_while(held.0.lock().unwrap(), |held| *held).unwrap());
        let port = to.load(Ordering::Acquire) + offset;
        let Ok(tpm) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
            continue;
        };
        std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for (from, to) in [(&device, &tpm), (&tpm, &device)] {
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

fn not_attesting(report: &AgentEvent) -> Option<(&str, Option<u64>)> {
    match report {
        AgentEvent::AttestationFailed { reason, retry_in_ms } => Some((reason, *retry_in_ms)),
        _ => None,
    }
}

#[test]
fn a_device_that_the_commands_have_enrolled_proves_its_pcrs_and_quotes_them() {
    if !installed() {
        return;
    }
    let machine = Machine::new();
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let log = std::fs::read(recorded()).unwrap();
    let (mut options, enrolled) = machine.enrolled(&home, &mut site, &log);
    use std::os::unix::fs::PermissionsExt as _;
    let mode = home.path("attest.key").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    (options.send_log, options.quote_every) = (true, 4);
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options.clone());
    site.expect(start(5), h);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), Tag::Request, port),
        Verdict::ProofOk
    );
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), Tag::Session, port),
        Verdict::ProofOk
    );
    let is_taken = |report: &AgentEvent| {
        matches!(
            report,
            AgentEvent::EvidenceAccepted {
                period: 5,
                quote: true,
                ..
            }
        )
    };
    site.serve(&mut agent, |_, agent| agent.has(is_taken));
    // Not due again before period 9.
    for (period, number) in [(6, 3), (8, 4)] {
        site.expect(start(period), h);
        let verdict = site.verdict(&mut agent, round(period, number), Tag::Session, port);
        assert_eq!(verdict, Verdict::ProofOk);
    }
    let reports = agent.end();
    let attested = |report: &AgentEvent| matches!(report, AgentEvent::Attested { protection: Protection::Tpm, configuration, .. } if *configuration == h.to_string());
    assert!(reports.iter().any(attested), "{reports:?}");
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
    let nonce = quote_nonce(DEVICE, &start(5));
    let (selected, values) = ((BANK, selection()), configuration.pcrs());
    verify_quote(&signer, &quote.quote, &quote.signature, &nonce, selected, values).unwrap();
    let other = quote_nonce(DEVICE, &start(6));
    assert!(verify_quote(&signer, &quote.quote, &quote.signature, &other, selected, values).is_err());
}

#[test]
fn a_missing_tpm_is_reported_and_nothing_is_proven_until_it_returns() {
    if !installed() {
        return;
    }
    let mut machine = Machine::new();
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let log = std::fs::read(recorded()).unwrap();
    let (options, _) = machine.enrolled(&home, &mut site, &log);
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    site.expect(start(5), h);
    assert_eq!(
        site.verdict(&mut agent, round(5, 1), Tag::Session, port),
        Verdict::ProofOk
    );
    machine.emulator.kill();
    // This period's key is there already.
    assert_eq!(
        site.verdict(&mut agent, round(5, 2), Tag::Session, port),
        Verdict::ProofOk
    );
    site.expect(start(6), h);
    site.open(round(6, 3));
    let proofs = site.proofs.len();
    site.send_request(&round(6, 3), Tag::Session, port);
    let failures = |agent: &mut Running| {
        agent.has(|_| false);
        agent.seen.iter().filter_map(not_attesting).count()
    };
    site.serve(&mut agent, |_, agent| failures(agent) >= 2);
    assert_eq!(site.proofs.len(), proofs);
    let reported: Vec<_> = agent.seen.iter().filter_map(not_attesting).collect();
    let (command, object) = reported[0].0.split_once(" (").unwrap();
    assert!(command.starts_with("TPM2_"), "{command} ({object}");
    assert_eq!(
        (reported[0].1, reported[1].1),
        (Some(1_000), Some(2_000)),
        "{reported:?}"
    );
    machine.restart();
    // The waiting request gets its proof without a repetition.
    site.serve(&mut agent, |site, _| site.proofs.len() > proofs);
    assert_eq!(site.proofs[proofs].0, Verdict::ProofOk);
    assert!(site.is_proved(3));
    agent.end();
}

#[test]
fn authentication_continues_during_slow_tpm_operations() {
    if !installed() {
        return;
    }
    let machine = Machine::new();
    let (home, mut site) = (Home::new(), Site::new(Some(1)));
    let log = std::fs::read(recorded()).unwrap();
    let (options, _) = machine.enrolled(&home, &mut site, &log);
    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options);
    site.serve(&mut agent, |site, _| site.sessions > 0);
    site.expect(start(5), h);
    site.open(round(5, 1));
    machine.wire.hold(true);
    let (sessions, mut last_sessions) = (site.sessions, 0);
    // Requests may use the key of each session.
    let request_again = |site: &mut Site, last_sessions: &mut usize| {
        if *last_sessions != site.sessions {
            *last_sessions = site.sessions;
            site.send_request(&round(5, 1), Tag::Session, port);
        }
    };
    site.serve(&mut agent, |site, _| {
        request_again(site, &mut last_sessions);
        site.sessions >= sessions + 3
    });
    assert!(site.proofs.is_empty(), "{:?}", site.proofs);
    machine.wire.hold(false);
    site.serve(&mut agent, |site, _| {
        request_again(site, &mut last_sessions);
        !site.proofs.is_empty()
    });
    assert_eq!(site.proofs[0].0, Verdict::ProofOk);
    agent.end();
}

#[test]
fn with_a_log_that_contradicts_the_pcrs_nothing_is_proven_in_the_period() {
    if !installed() {
        return;
    }
    let log = std::fs::read(recorded()).unwrap();
    let parsed = EventLog::parse(&log).unwrap();
    let of_pcr_4 = |event: &linewarden_measurement::eventlog::Event| {
        event.pcr().is_some_and(|pcr| pcr.get() == 4) && event.kind() != EventType::EV_NO_ACTION
    };
    let last = parsed.events().iter().rposition(of_pcr_4).unwrap();
    let machine = Machine::new();
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let (options, _) = machine.enrolled(&home, &mut site, &log);
    // A PCR was extended by an event that is in no log.
    machine.tool(&["tpm2_pcrextend", &format!("4:sha256={}", "11".repeat(32))]);
    // The enrollment station would refuse this log.
    let subject = options.scope.tpm.as_ref().unwrap();
    let error = attest::identity(subject, EndorsementKind::Rsa2048, &home.path("attest.key")).unwrap_err();
    assert!(
        error.to_string().contains("does not replay to the PCRs"),
        "{error}"
    );
    let port = options.port;
    let mut agent = Running::start(&site, options.clone());
    site.serve(&mut agent, |site, _| site.sessions > 0);
    let rejection_reason = |site: &mut Site, agent: &mut Running, period: u64, number: u32| -> String {
        let before = agent.seen.iter().filter_map(not_attesting).count();
        site.send_request(&round(period, number), Tag::Session, port);
        site.serve(agent, |_, agent| {
            agent.has(|_| false);
            agent.seen.iter().filter_map(not_attesting).count() > before
        });
        let (rejection_reason, retry) = agent.seen.iter().filter_map(not_attesting).next_back().unwrap();
        assert_eq!(retry, None, "{rejection_reason}");
        rejection_reason.to_owned()
    };
    let reason = rejection_reason(&mut site, &mut agent, 5, 1);
    assert!(reason.contains("PCR 4"), "{reason}");
    assert!(reason.contains(&format!("its last entry is {last}")), "{reason}");
    // Rounds of that period are refused without another measurement.
    site.send_request(&round(5, 2), Tag::Session, port);
    site.send_request(&round(5, 3), Tag::Session, port);
    // The next period begins with another measurement, which has the same result.
    let reason = rejection_reason(&mut site, &mut agent, 6, 4);
    assert!(reason.contains("PCR 4"), "{reason}");
    assert!(site.proofs.is_empty(), "{:?}", site.proofs);
    let reports = agent.end();
    assert_eq!(refused(&reports, "not_measured"), 4);
}

#[test]
fn a_device_with_unexplained_data_or_an_empty_log_proves_its_pcrs_all_the_same() {
    if !installed() {
        return;
    }
    let machine = Machine::new();
    let (home, mut site) = (Home::new(), Site::new(Some(3_600)));
    let log = std::fs::read(recorded()).unwrap();
    let parsed = EventLog::parse(&log).unwrap();
    let mut separators = (0..).zip(parsed.events()).filter(|(_, event)| {
        event.kind() == EventType::EV_SEPARATOR && event.pcr().is_some_and(|pcr| selection().contains(pcr))
    });
    let (separator, _) = separators.next().unwrap();
    let (mut options, _) = machine.enrolled(&home, &mut site, &unexplained(&log, separator));
    (options.send_log, options.quote_every) = (true, 4);
    let measured = options.scope.measure().unwrap();
    let notice_texts: Vec<String> = measured.notices().iter().map(ToString::to_string).collect();
    assert_eq!(notice_texts.len(), 1, "{notice_texts:?}");
    assert!(
        notice_texts[0].starts_with("1 event with data")
            && notice_texts[0].contains(&format!("entry {separator}, ")),
        "{notice_texts:?}"
    );

    let (port, h) = (options.port, h(&options));
    let mut agent = Running::start(&site, options.clone());
    let mut prove = |site: &mut Site, period: u64, number: u32, tag: Tag| {
        site.expect(start(period), h);
        assert_eq!(
            site.verdict(&mut agent, round(period, number), tag, port),
            Verdict::ProofOk
        );
        let is_taken = |report: &AgentEvent| matches!(report, AgentEvent::EvidenceAccepted { period: of, .. } if *of == period);
        site.serve(&mut agent, |_, agent| agent.has(is_taken));
    };
    prove(&mut site, 5, 1, Tag::Request);
    // The firmware's log is missing, as after an update without one; the configuration is the same.
    std::fs::write(home.path("log.bin"), b"").unwrap();
    prove(&mut site, 9, 2, Tag::Session);
    agent.end();
    let sent: Vec<Evidence> = site
        .documents
        .iter()
        .map(|document| from_json(document).unwrap())
        .collect();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].configuration, sent[1].configuration);
    let replayed = verify_replay(
        &EventLog::parse(sent[0].event_log.as_ref().unwrap()).unwrap(),
        measured.configuration.pcrs(),
    )
    .unwrap();
    assert_eq!(
        replayed
            .unexplained()
            .map(|event| event.entry)
            .collect::<Vec<_>>(),
        [separator]
    );
    assert_eq!(sent[1].event_log, None);
    assert!(
        sent[1].quote.is_some(),
        "the TPM vouches for the PCRs, with a log or without"
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

/// The log with another last byte in the data of that entry.
fn unexplained(log: &[u8], entry: usize) -> Vec<u8> {
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
