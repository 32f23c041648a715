//! Rounds of `p4dra-classic` in the node: time and random numbers are arguments, and the `host` data plane verifies
//! the proofs.

use std::net::Ipv4Addr;
use std::process::Command;

use linewarden_dataplane::host::{Engine, Host, HostOptions, P4draBatch, ThreadState};
use linewarden_dataplane::{Config, DataPlane as _, DataPlaneError, P4dra, P4draProver};
use linewarden_gateway::audit::AuditEvent;
use linewarden_gateway::{Clock, Node, P4draStatus, ReconfigureError, Settings};
use linewarden_harness::skip;
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::prover::Prover;
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, ProverId, Round};
use linewarden_protocol::verdict::Verdict;

const PROVERS: u8 = 20;
const SECOND_NS: u64 = 1_000_000_000;
/// The loopback interface's index.
const LOOPBACK: u32 = 1;

fn id(number: u8) -> ProverId {
    ProverId([number; 16])
}

fn key(number: u8) -> AttestationKey {
    AttestationKey::from_bytes([0x40 + number; 32])
}

const H: ConfigurationHash = ConfigurationHash([7; 32]);

fn config() -> Config {
    let prover = |number| P4draProver {
        id: id(number),
        key: key(number),
        configuration_hash: H,
    };
    Config {
        p4dra: Some(P4dra {
            ether_type: ETHER_TYPE,
            controller: CONTROLLER,
            interfaces: Vec::new(),
            provers: (1..=PROVERS).map(prover).collect(),
        }),
        ..crate::site::config()
    }
}

/// A node, and its data plane.
struct NodeHarness {
    node: Node,
    engine: std::sync::Arc<Engine>,
    thread: ThreadState,
    /// All random values that were drawn.
    drawn: Vec<[u8; 8]>,
    settings: Settings,
    config: Config,
}

impl NodeHarness {
    fn new() -> Self {
        let config = config();
        Self::with_host(Host::new(&config).unwrap(), config)
    }

    fn with_host(mut host: Host, config: Config) -> Self {
        let (engine, thread) = (host.engine(), host.thread_state());
        let settings = Settings {
            p4dra_round_s: 60,
            ..Settings::for_data_plane(&config)
        };
        let mut node = Node::new(Box::new(host), settings).unwrap();
        node.set_audit_rate(100);
        Self {
            node,
            engine,
            thread,
            drawn: Vec::new(),
            settings,
            config,
        }
    }

    fn clock(ms: u64) -> Clock {
        let now_ns = SECOND_NS + ms * 1_000_000;
        Clock {
            monotonic_ns: now_ns,
            boot_ns: now_ns,
        }
    }

    /// Ticks the node, and returns the audit events of the rounds that have ended.
    fn tick(&mut self, ms: u64, is_random: bool) -> Vec<AuditEvent> {
        let drawn = &mut self.drawn;
        let mut random = || {
            let value = (drawn.len() as u64 + 1).to_be_bytes();
            is_random.then(|| drawn.push(value)).map(|()| value)
        };
        self.node.tick(Self::clock(ms), &mut random);
        let records = self.node.take_audit_records(false).into_iter();
        let is_round = |event: &AuditEvent| matches!(event, AuditEvent::P4draRound { .. });
        records.map(|record| record.event).filter(is_round).collect()
    }

    /// The newest round: the last two random values are its values.
    fn round(&self) -> Round {
        let [.., r, n] = self.drawn[..] else {
            panic!("no value was drawn");
        };
        Round { r, n }
    }

    /// Prover `number` with configuration `h` replies to a REQUEST of `round`; returns the verdict about the reply.
    fn reply(&mut self, number: u8, h: &ConfigurationHash, round: Round) -> Verdict {
        let mut request = [0; 46];
        Message::Request(round).write(&mut request).unwrap();
        let reply = Prover::new(&key(number), id(number), h).reply(&request).unwrap();
        let frame = [&[2; 6][..], &[4; 6], &ETHER_TYPE.to_be_bytes(), &reply].concat();
        let mut batch = P4draBatch::default();
        assert_eq!(batch.fill(&[frame]), 1);
        self.engine.process_p4dra(&mut self.thread, &mut batch);
        batch.results().next().unwrap().0
    }

    fn status(&self) -> P4draStatus {
        self.node.status().p4dra.clone().unwrap()
    }
}

fn round_ended(round: u64, missed: impl IntoIterator<Item = u8>) -> AuditEvent {
    let missed_numbers: Vec<u8> = missed.into_iter().collect();
    AuditEvent::P4draRound {
        round,
        requested: PROVERS.into(),
        verified: u64::from(PROVERS) - missed_numbers.len() as u64,
        missed: missed_numbers.len() as u64,
        is_incomplete: false,
        missed_ids: missed_numbers
            .iter()
            .take(16)
            .map(|number| id(*number).to_string())
            .collect(),
    }
}

#[test]
fn each_round_is_reported_when_the_next_starts() {
    let mut harness = NodeHarness::new();
    assert_eq!(harness.tick(0, true), []);
    let first = harness.round();
    for number in [1, 2, 3] {
        assert_eq!(harness.reply(number, &H, first), Verdict::ReplyP4draVerified);
    }
    // Another configuration, and a proof of a round that was never requested.
    let other_h = ConfigurationHash([8; 32]);
    assert_eq!(harness.reply(4, &other_h, first), Verdict::DropP4draProof);
    let unknown_round = Round { r: [1; 8], n: [2; 8] };
    assert_eq!(harness.reply(5, &H, unknown_round), Verdict::DropP4draRound);
    assert_eq!(harness.tick(59_999, true), []);
    assert_eq!(harness.status().rounds, 0);
    // All missed provers are counted, but only 16 ids are listed.
    assert_eq!(harness.tick(60_000, true), [round_ended(1, 4..=PROVERS)]);
    let expected = P4draStatus {
        provers: 20,
        rounds: 1,
        verified: 3,
        missed: 17,
        incomplete: 0,
    };
    assert_eq!(harness.status(), expected);
    let second = harness.round();
    assert_ne!(first, second);
    // Late for the first round: the proof is verified, and counts in neither round.
    assert_eq!(harness.reply(4, &H, first), Verdict::ReplyP4draVerified);
    for number in (1..=PROVERS).filter(|number| *number != 4) {
        assert_eq!(harness.reply(number, &H, second), Verdict::ReplyP4draVerified);
    }
    assert_eq!(harness.tick(120_000, true), [round_ended(2, [4])]);
    let quarantined = harness.node.status().attest.quarantined;
    assert_eq!(quarantined, 0, "no device is quarantined");
}

/// The interface is the loopback interface of a new network namespace; this interface is down at first.
#[test]
fn a_round_that_could_not_be_sent_is_reported_as_incomplete() {
    // SAFETY: the call takes no pointer, and affects only the calling thread and the threads that this thread starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        skip!("a network namespace: {}", std::io::Error::last_os_error());
    }
    let mut config = config();
    config.local = vec![Ipv4Addr::UNSPECIFIED.into()];
    config.p4dra.as_mut().unwrap().interfaces = vec![LOOPBACK];
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let host = match Host::start(&config, &options) {
        Err(error @ DataPlaneError::Privilege { .. }) => skip!("{error}"),
        host => host.unwrap(),
    };
    let mut harness = NodeHarness::with_host(host, config);
    assert_eq!(harness.tick(0, true), []);
    assert_eq!(harness.status().incomplete, 1);
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.unwrap().success());
    let incomplete = |mut event: AuditEvent| {
        if let AuditEvent::P4draRound { is_incomplete, .. } = &mut event {
            *is_incomplete = true;
        }
        event
    };
    assert_eq!(
        harness.tick(60_000, true),
        [incomplete(round_ended(1, 1..=PROVERS))]
    );
    assert_eq!(
        harness.tick(120_000, true),
        [round_ended(2, 1..=PROVERS)],
        "requested, without proofs"
    );
    assert_eq!(harness.status().incomplete, 1);
}

#[test]
fn without_randomness_the_round_continues() {
    let mut harness = NodeHarness::new();
    harness.tick(0, true);
    let first = harness.round();
    let draws = harness.drawn.len();
    assert_eq!(harness.tick(60_000, false), []);
    assert!(harness.node.status().draws_failed > 0);
    assert_eq!(harness.drawn.len(), draws);
    assert_eq!(harness.reply(1, &H, first), Verdict::ReplyP4draVerified);
    assert_eq!(harness.tick(61_000, true), [round_ended(1, 2..=PROVERS)]);
    assert_ne!(harness.round(), first);
}

#[test]
fn a_new_interval_applies_to_the_open_round() {
    let mut harness = NodeHarness::new();
    harness.tick(0, true);
    let mut change = |round_s, ms| {
        let settings = Settings {
            p4dra_round_s: round_s,
            ..harness.settings
        };
        let live = harness.config.live_settings();
        harness.node.reconfigure(settings, &live, NodeHarness::clock(ms))
    };
    for wrong in [0, 86_401] {
        assert!(matches!(change(wrong, 1000), Err(ReconfigureError::Settings(_))));
    }
    change(5, 1000).unwrap();
    assert_eq!(harness.tick(4999, true), []);
    assert_eq!(harness.tick(5000, true), [round_ended(1, 1..=PROVERS)]);
}

#[test]
fn a_stopping_gateway_opens_no_round() {
    let mut harness = NodeHarness::new();
    harness.node.begin_stop();
    harness.tick(0, true);
    let round = harness.round();
    assert_eq!(harness.reply(1, &H, round), Verdict::DropP4draRound);
    // A gateway without the profile opens no round either.
    let mut config = config();
    config.p4dra = None;
    let mut host = Host::new(&config).unwrap();
    assert!(host.p4dra().is_none());
    let node = Node::new(Box::new(host), Settings::for_data_plane(&config)).unwrap();
    assert_eq!(node.status().p4dra, None);
}
