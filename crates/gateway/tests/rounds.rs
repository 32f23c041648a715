//! Attestation rounds of a node on the `host` data plane, step by step. The test sets the clock. Devices send no proofs,
//! except where a test sends them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod site;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_gateway::audit::AuditEvent;
use linewarden_gateway::{Clock, ControllerRequest, ControllerResponse, Node, Settings};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodKey, PeriodStart, Round};
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::gateway::{ProverKeys, Row};
use linewarden_protocol::ids::{DeviceId, Mode, Period, RoundNumber, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_types::{
    Change, Changes, EnrollmentTime, GroupName, GroupPlan, GroupPolicy, LeaseChunk, LinkError, Plan,
    ProofOutcome, ProverProvision, Provers, Provision, QuarantinedDevice, Revision, RoundAppraisal,
    RoundOutcome, SessionReportResult,
};

use zerocopy::IntoBytes as _;

use self::site::{GATEWAY, TIMEOUT, TestDevice, row_key};

const SECOND_NS: u64 = 1_000_000_000;
/// The result of every draw of random bytes.
const NONCE: [u8; 8] = [7; 8];

fn group_name(number: usize) -> GroupName {
    GroupName::new(format!("group-{number}")).unwrap()
}

fn policy(every_s: u32, timeout_ms: u32) -> GroupPolicy {
    GroupPolicy {
        every_s,
        jitter_s: 0,
        proof_timeout_ms: timeout_ms,
        ..GroupPolicy::default()
    }
}

fn start(period: u64) -> PeriodStart {
    PeriodStart {
        period: Period(period),
        salt: [period as u8; 8],
    }
}

/// Returns the device id, the attestation key and the period key of the only prover in group `number`.
fn keys(number: usize, start: &PeriodStart) -> (DeviceId, AttestationKey, PeriodKey) {
    let device = DeviceId(number as u64 + 1);
    let key = AttestationKey::from_bytes([number as u8 + 1; 32]);
    let k2 = key.for_period(device, start, &ConfigurationHash([1; 32]));
    (device, key, k2)
}

/// A node; the harness answers its requests instead of a controller. Each group has one prover. Only the test sends
/// proofs.
struct NodeHarness {
    node: Node,
    gateway: SocketAddr,
    groups: Vec<GroupPolicy>,
    now_ns: u64,
    /// If false, no random bytes are available.
    is_random: bool,
    /// The address of every prover.
    address: IpAddr,
    /// Whether the provers have sent a proof from this address before.
    is_responsive: bool,
    /// The enrollment time of every prover.
    enrolled_at: EnrollmentTime,
    /// The revision of the prover list.
    revision: u64,
    next_round_number: u32,
    outcomes: Vec<RoundOutcome>,
    /// Changes that the next read of the feed returns.
    changes: Vec<Change>,
    /// The decisions about each round that the node reports; if `None`, each appraisal fails.
    decisions: Option<RoundAppraisal>,
}

impl NodeHarness {
    fn new(groups: &[GroupPolicy]) -> Self {
        let config = linewarden_dataplane::Config {
            provers: 64,
            ..site::config()
        };
        let options = HostOptions {
            threads: 1,
            ..HostOptions::default()
        };
        let host = Host::start(&config, &options).unwrap();
        Self {
            node: Node::new(Box::new(host), Settings::for_data_plane(&config)).unwrap(),
            gateway: (Ipv4Addr::LOCALHOST, config.lap_port).into(),
            groups: groups.to_vec(),
            now_ns: SECOND_NS,
            is_random: true,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            is_responsive: true,
            enrolled_at: EnrollmentTime(1),
            revision: 1,
            next_round_number: 1,
            outcomes: Vec::new(),
            changes: Vec::new(),
            decisions: Some(RoundAppraisal::default()),
        }
    }

    fn clock(&self) -> Clock {
        Clock {
            monotonic_ns: self.now_ns,
            boot_ns: self.now_ns,
        }
    }

    /// Ticks the node, and gives it a response to each of its requests.
    fn tick(&mut self) {
        let is_random = self.is_random;
        let requests = self.node.tick(self.clock(), &mut || is_random.then_some(NONCE));
        for request in requests {
            let response = self.respond(request);
            self.node.handle_response(response, self.clock());
        }
    }

    /// Runs for `ns` nanoseconds, and ticks the node when it is due.
    fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while self.now_ns < until_ns {
            self.tick();
            let due_ns = self.node.due_ns(self.now_ns);
            self.now_ns = due_ns.max(self.now_ns + 1_000_000);
        }
    }

    fn respond(&mut self, request: ControllerRequest) -> ControllerResponse {
        match request {
            ControllerRequest::Register => ControllerResponse::Register(Ok(1)),
            ControllerRequest::ResumeLeases => ControllerResponse::ResumeLeases(Ok(LeaseChunk {
                provisions: Vec::new(),
                damaged: Vec::new(),
                progress: (0, 0),
                is_last: true,
            })),
            ControllerRequest::ListChanges { since } => ControllerResponse::ListChanges {
                result: Ok(Changes {
                    up_to_revision: self.changes.last().map_or(since, |change| change.revision),
                    changes: std::mem::take(&mut self.changes),
                    newer_sessions: Vec::new(),
                    has_more: false,
                }),
                at_ns: self.now_ns,
                trust: None,
            },
            ControllerRequest::GetPlan(plan_request) => {
                let first = self.next_round_number;
                self.next_round_number += 256 * u32::from(plan_request.needs_round_numbers);
                ControllerResponse::GetPlan(Ok(Some(Plan {
                    running: start(1),
                    age_s: 0,
                    next: start(2),
                    revision: self.revision,
                    reference_digest: 1,
                    groups: self.plans(),
                    rounds: first..self.next_round_number,
                })))
            }
            ControllerRequest::ListProvers { start, .. } => {
                ControllerResponse::ListProvers(Ok(self.provers(start)))
            }
            ControllerRequest::AppraiseRound(outcome) => {
                let Some(decisions) = self.decisions.clone() else {
                    return ControllerResponse::AppraiseRound(Err(LinkError::Failed(
                        "the controller does not respond".to_owned(),
                    )));
                };
                self.outcomes.push(*outcome);
                ControllerResponse::AppraiseRound(Ok(decisions))
            }
            ControllerRequest::ReportSessions(openings) => ControllerResponse::ReportSessions {
                result: Ok(vec![SessionReportResult::Newest; openings.len()]),
                at_ns: self.now_ns,
            },
            request => panic!("{request:?}"),
        }
    }

    fn plans(&self) -> Vec<GroupPlan> {
        let plan = |(number, policy): (usize, &GroupPolicy)| GroupPlan {
            name: group_name(number),
            policy: *policy,
            rounds_requested: 0,
        };
        self.groups.iter().enumerate().map(plan).collect()
    }

    fn provers(&self, start: PeriodStart) -> Provers {
        let provision = |number: usize| {
            let (device, key, k2) = keys(number, &start);
            ProverProvision {
                device,
                group: group_name(number),
                enrolled_at: self.enrolled_at,
                port: 9,
                keys: Some(ProverKeys {
                    current: k2.for_gateway(GATEWAY),
                    alternate: None,
                }),
                request_key: key.for_requests(device, GATEWAY, start.period),
                address: Some(self.address),
                is_responsive: self.is_responsive,
            }
        };
        Provers {
            start,
            reference_digest: 1,
            provisions: (0..self.groups.len()).map(provision).collect(),
            removed: Vec::new(),
            damaged: Vec::new(),
            up_to_revision: self.revision,
            has_more: false,
        }
    }

    /// Runs with the machine's clock, as the data plane does.
    fn run_in_real_time_until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_done(self) {
            assert!(Instant::now() < deadline, "timed out");
            self.now_ns = Clock::now().monotonic_ns;
            self.tick();
        }
    }

    fn has_proven(&mut self, device: DeviceId, number: RoundNumber) -> bool {
        let provers = self.node.data_plane_mut().provers().unwrap();
        let records = provers.round_results_of(&[device], number).unwrap();
        records.iter().all(Option::is_some)
    }

    /// Admits a device, in key mode.
    fn admit(&mut self, device: DeviceId) {
        let auth_key = AuthKey::derive(
            &row_key(device, 0),
            Suite::SipHash128,
            Mode::Key,
            RowIndex(0),
            GATEWAY,
        );
        let provision = Provision {
            device,
            mode: Mode::Key,
            epoch: 0,
            first: RowIndex(0),
            rows: vec![Row {
                challenge: [0; 8],
                auth_key,
            }],
            mark: RowIndex(0),
        };
        let chunk = LeaseChunk {
            provisions: vec![provision],
            damaged: Vec::new(),
            progress: (1, 1),
            is_last: true,
        };
        self.node
            .handle_response(ControllerResponse::ResumeLeases(Ok(chunk)), self.clock());
    }

    /// The ended rounds of a group.
    fn rounds(&self, number: usize) -> impl Iterator<Item = &RoundOutcome> {
        let name = group_name(number);
        self.outcomes.iter().filter(move |outcome| outcome.group == name)
    }
}

#[test]
fn groups_with_slow_members_do_not_delay_other_groups() {
    let mut fixture = NodeHarness::new(&[policy(60, 15_000), policy(60, 15_000), policy(2, 500)]);
    fixture.run_for(300 * SECOND_NS);
    let counts = [0, 1, 2].map(|group| fixture.rounds(group).count());
    assert!(counts[0] >= 3 && counts[1] >= 3, "{counts:?}");
    assert!(counts[2] >= 140, "{counts:?}");
    let mut numbers: Vec<u32> = fixture.outcomes.iter().map(|outcome| outcome.number.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), fixture.outcomes.len(), "no number twice");
}

#[test]
fn a_missing_proof_keeps_a_round_open_for_at_most_half_the_interval() {
    let mut fixture = NodeHarness::new(&[policy(8, 7_999)]);
    fixture.run_for(40 * SECOND_NS);
    assert!(fixture.rounds(0).count() >= 4);
    for round in fixture.rounds(0) {
        assert!((4_000..4_200).contains(&round.duration_ms), "{round:?}");
    }
}

/// The gateway has no address of the provers' address family. The kernel rejects each challenge, as it does without a
/// route when an interface is down.
#[test]
fn unreachable_provers_are_not_missed_and_are_reported_once() {
    let mut fixture = NodeHarness::new(&[policy(2, 500), policy(2, 500)]);
    fixture.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    fixture.node.set_audit_rate(1_000);
    fixture.run_for(60 * SECOND_NS);
    assert!(fixture.rounds(0).count() > 20 && fixture.rounds(1).count() > 20);
    for round in &fixture.outcomes {
        assert_eq!(round.observations, [], "no prover was challenged");
        assert!(
            round.duration_ms < 100,
            "the round has no pending request: {round:?}"
        );
    }
    let status = fixture.node.status();
    assert_eq!((status.attest.unreachable, status.attest.requests), (2, 0));
    let records = fixture.node.take_audit_records(false);
    let reported: Vec<_> = records
        .iter()
        .filter(|record| matches!(record.event, AuditEvent::DevicesUnreachable { .. }))
        .collect();
    assert_eq!(reported.len(), 2, "once for each group: {reported:?}");
}

/// The prover itself may have chosen an address to which no gateway can send.
#[test]
fn provers_at_an_unreachable_unproven_address_are_missed() {
    let mut fixture = NodeHarness::new(&[policy(2, 500)]);
    fixture.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    fixture.is_responsive = false;
    fixture.run_for(20 * SECOND_NS);
    assert!(fixture.rounds(0).count() > 5);
    for round in fixture.rounds(0) {
        let outcomes: Vec<ProofOutcome> = round
            .observations
            .iter()
            .map(|observation| observation.outcome)
            .collect();
        assert_eq!(outcomes, [ProofOutcome::Missed], "{round:?}");
    }
    assert_eq!(fixture.node.status().attest.unreachable, 0);
}

/// Where a device is challenged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestTarget {
    Reachable,
    /// The kernel rejects each challenge.
    Unreachable,
    /// The kernel rejects the first challenge; then the device has a session at another address.
    OtherSession,
}

/// A device gets the round's nonce from another device, and sends a proof. Returns the outcome for the device and the
/// device's address in this outcome.
fn outcome_of_proof(target: RequestTarget) -> (ProofOutcome, IpAddr) {
    let mut fixture = NodeHarness::new(&[policy(60, 15_000)]);
    fixture.is_responsive = false;
    if target != RequestTarget::Reachable {
        fixture.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    }
    let (device, _, k2) = keys(0, &start(1));
    let round = Round {
        gateway: GATEWAY,
        number: RoundNumber(1),
        nonce: NONCE,
        start: start(1),
    };
    let proof = round.proof_message(device, k2.for_gateway(GATEWAY).prove(&round));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let gateway = fixture.gateway;
    let requests = |fixture: &NodeHarness| fixture.node.status().attest.requests;
    // A device that has sent a proof is not challenged again.
    fixture.run_in_real_time_until(|fixture| target != RequestTarget::Reachable || requests(fixture) == 1);
    fixture.run_in_real_time_until(|fixture| {
        socket.send_to(proof.as_bytes(), gateway).unwrap();
        fixture.has_proven(device, round.number)
    });
    assert_eq!(requests(&fixture), u64::from(target == RequestTarget::Reachable));
    if target == RequestTarget::OtherSession {
        fixture.admit(device);
        let mut client = TestDevice::new(device, Mode::Key, gateway);
        assert!(client.authenticate(TIMEOUT).is_some());
    }
    fixture.run_for(40 * SECOND_NS);
    assert_eq!(
        requests(&fixture),
        u64::from(target != RequestTarget::Unreachable)
    );
    let [round] = &fixture.outcomes[..] else {
        panic!("{:?}", fixture.outcomes)
    };
    let [observation] = round.observations[..] else {
        panic!("{round:?}")
    };
    (observation.outcome, observation.address)
}

/// Otherwise, a proof without a challenge would count as a proof from an unreachable address. The device would then be
/// excused whenever the gateway cannot send to this address.
#[test]
fn a_proof_counts_only_after_a_challenge_was_sent() {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert_eq!(
        outcome_of_proof(RequestTarget::Reachable),
        (ProofOutcome::Ok(Current), loopback)
    );
    let unknown_address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    assert_eq!(
        outcome_of_proof(RequestTarget::Unreachable),
        (ProofOutcome::Missed, unknown_address)
    );
    let session = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));
    assert_eq!(
        outcome_of_proof(RequestTarget::OtherSession),
        (ProofOutcome::Ok(Current), session)
    );
}

/// The device's proof in that round may use the old key; the new key is used from the next round on.
#[test]
fn a_device_enrolled_again_during_a_round_is_reported_with_its_old_enrollment() {
    let mut fixture = NodeHarness::new(&[policy(60, 15_000)]);
    while fixture.node.status().attest.requests == 0 {
        fixture.tick();
        fixture.now_ns += 1_000_000;
    }
    (fixture.enrolled_at, fixture.revision) = (EnrollmentTime(2), 2);
    fixture.run_for(40 * SECOND_NS);
    assert_eq!(
        fixture.node.status().attest.requests,
        1,
        "the device is not challenged again"
    );
    fixture.run_for(60 * SECOND_NS);
    assert_eq!(
        fixture.node.status().attest.requests,
        5,
        "the second round sends four challenges"
    );
    let observations = fixture.rounds(0).flat_map(|round| &round.observations);
    let observations: Vec<_> = observations
        .map(|observation| (observation.enrolled_at.0, observation.outcome))
        .collect();
    assert_eq!(
        observations,
        [(1, ProofOutcome::Missed), (2, ProofOutcome::Missed)]
    );
}

/// A prover without room counts once, although it has keys of two periods and is updated repeatedly.
#[test]
fn provers_without_room_are_counted_once() {
    const PROVERS: usize = 200;
    let mut fixture = NodeHarness::new(&vec![policy(60, 500); PROVERS]);
    fixture.run_for(5 * SECOND_NS);
    let attest = fixture.node.status().attest.clone();
    assert!(attest.provers >= 64 && attest.provers_refused > 0, "{attest:?}");
    assert_eq!(
        attest.provers + attest.provers_refused,
        PROVERS as u64,
        "{attest:?}"
    );
}

#[test]
fn without_random_bytes_no_round_begins_and_the_node_does_not_spin() {
    let mut fixture = NodeHarness::new(&[policy(2, 500)]);
    fixture.run_for(3 * SECOND_NS);
    assert!(fixture.rounds(0).count() > 0);
    fixture.is_random = false;
    // Run until the open round has ended.
    fixture.run_for(3 * SECOND_NS);
    let (outcomes_before, failed_draws) = (fixture.outcomes.len(), fixture.node.status().draws_failed);
    let mut ticks = 0;
    let until_ns = fixture.now_ns + 10 * SECOND_NS;
    while fixture.now_ns < until_ns && ticks < 1_000 {
        fixture.tick();
        ticks += 1;
        let due_ns = fixture.node.due_ns(fixture.now_ns);
        // A busy loop would return the same time forever.
        fixture.now_ns = due_ns.max(fixture.now_ns + 1_000);
    }
    assert!(ticks < 1_000, "{ticks} ticks in 10 s");
    assert!(
        fixture.node.status().draws_failed > failed_draws,
        "the node keeps retrying"
    );
    assert_eq!(fixture.outcomes.len(), outcomes_before);
    fixture.is_random = true;
    fixture.run_for(10 * SECOND_NS);
    assert!(fixture.outcomes.len() > outcomes_before);
}

const DEVICE: DeviceId = DeviceId(1);

/// An event that the node receives.
enum ReceivedEvent {
    /// A change of the device in the feed: its revision, and whether the device may authenticate.
    Feed(u64, bool),
    /// The controller's decision to quarantine the device, with the revision of the quarantine.
    Quarantined(u64),
    /// The controller's decision to release the device after a proof, with the revision of the release.
    Remediated(u64),
}

/// Delivers the events to a node in this order. Returns the names of the device's audit events, and the number of
/// revocations in the node's status.
fn records(received: &[ReceivedEvent]) -> (Vec<&'static str>, u64) {
    let mut fixture = NodeHarness::new(&[policy(60, 500)]);
    fixture.node.set_audit_rate(100);
    // Run until a round has ended, which is not appraised yet.
    fixture.decisions = None;
    fixture.run_for(70 * SECOND_NS);
    for event in received {
        match *event {
            ReceivedEvent::Feed(revision, active) => fixture.changes.push(Change {
                device: DEVICE,
                revision: Revision(revision),
                active,
                epoch: 0,
            }),
            ReceivedEvent::Quarantined(revision) => {
                fixture.decisions = Some(RoundAppraisal {
                    quarantined: vec![QuarantinedDevice {
                        device: DEVICE,
                        reason: String::new(),
                        revision: Revision(revision),
                    }],
                    ..RoundAppraisal::default()
                });
            }
            ReceivedEvent::Remediated(revision) => {
                fixture.decisions = Some(RoundAppraisal {
                    remediated: vec![(DEVICE, Revision(revision))],
                    ..RoundAppraisal::default()
                });
            }
        }
        let expected_outcomes = fixture.outcomes.len() + usize::from(fixture.decisions.is_some());
        while !fixture.changes.is_empty() || fixture.outcomes.len() < expected_outcomes {
            fixture.tick();
            fixture.now_ns = fixture
                .node
                .due_ns(fixture.now_ns)
                .max(fixture.now_ns + 1_000_000);
        }
        // The next round ends, and waits for its appraisal.
        fixture.decisions = None;
        fixture.run_for(70 * SECOND_NS);
    }
    let records = fixture.node.take_audit_records(true).into_iter();
    let names = records.filter_map(|record| match record.event {
        AuditEvent::Blocked { device: DEVICE, .. } => Some("blocked"),
        AuditEvent::Quarantined { device: DEVICE, .. } => Some("quarantined"),
        AuditEvent::Remediated { device: DEVICE } => Some("remediated"),
        AuditEvent::Released { device: DEVICE } => Some("released"),
        _ => None,
    });
    (names.collect(), fixture.node.status().revoked)
}

/// Between two reads of the feed, the device was released, returned, and missed too many proofs.
#[test]
fn a_device_that_returned_before_the_feed_reports_its_release_is_revoked_at_once() {
    let mut fixture = NodeHarness::new(&[policy(60, 500)]);
    fixture.decisions = None;
    fixture.run_for(70 * SECOND_NS);
    fixture.changes.push(Change {
        device: DEVICE,
        revision: Revision(3),
        active: false,
        epoch: 0,
    });
    // Run until the node has removed the revoked device.
    fixture.run_for(200 * SECOND_NS);
    fixture.admit(DEVICE);
    let is_revoked = |fixture: &NodeHarness| {
        fixture
            .node
            .data_plane()
            .status(DEVICE)
            .unwrap()
            .commit
            .is_revoked()
    };
    assert!(!is_revoked(&fixture));
    fixture.decisions = Some(RoundAppraisal {
        quarantined: vec![QuarantinedDevice {
            device: DEVICE,
            reason: String::new(),
            revision: Revision(5),
        }],
        ..RoundAppraisal::default()
    });
    while fixture.outcomes.is_empty() {
        fixture.tick();
        fixture.now_ns = fixture
            .node
            .due_ns(fixture.now_ns)
            .max(fixture.now_ns + 1_000_000);
    }
    assert!(is_revoked(&fixture));
}

#[test]
fn a_release_by_the_operator_is_recorded_once_and_in_order() {
    use ReceivedEvent::{Feed, Quarantined, Remediated};
    // The controller's decision arrives before the feed, which reports the quarantine and the release, or only the release.
    let expected = (vec!["quarantined", "blocked", "released"], 1);
    assert_eq!(
        records(&[Quarantined(5), Feed(5, false), Feed(6, true)]),
        expected
    );
    assert_eq!(records(&[Quarantined(5), Feed(6, true)]), expected);
    // The decision arrives after the operator's release, and does not block the device again.
    let expected = (vec!["blocked", "quarantined", "released"], 1);
    assert_eq!(
        records(&[Feed(5, false), Feed(6, true), Quarantined(5)]),
        expected
    );
    // One decision quarantines several devices. Each device has its own change; the decision has the highest revision.
    let expected = (vec!["quarantined", "blocked", "released"], 1);
    assert_eq!(
        records(&[Quarantined(5), Feed(4, false), Feed(6, true)]),
        expected
    );
    // The device's record is damaged: the feed reports a block with an arbitrary revision. Then the device is revoked.
    assert_eq!(
        records(&[Feed(99, false), Feed(99, false), Feed(5, false)]),
        (vec!["blocked", "blocked"], 2)
    );
    // A round of another gateway quarantines the device, so this node receives no decision.
    assert_eq!(
        records(&[Feed(5, false), Feed(5, false), Feed(6, true), Feed(7, true)]),
        (vec!["blocked", "released"], 1)
    );
    // A proof releases the device: the node records the remediation, but no release by the operator.
    for release in [[Feed(6, true), Remediated(6)], [Remediated(6), Feed(6, true)]] {
        let [first, second] = release;
        assert_eq!(
            records(&[Quarantined(5), Feed(5, false), first, second]),
            (vec!["quarantined", "blocked", "remediated"], 1)
        );
    }
    // The device is released and blocked again, and no decision arrives.
    assert_eq!(
        records(&[Feed(5, false), Feed(6, true), Feed(7, false)]),
        (vec!["blocked", "released", "blocked"], 2)
    );
}

/// Ticks the node. Adds the requests that `holds` selects to `held_back`, and responds to the other requests.
fn tick_holding(
    fixture: &mut NodeHarness,
    held_back: &mut Vec<ControllerRequest>,
    holds: impl Fn(&[ControllerRequest], &ControllerRequest) -> bool,
) {
    let requests = fixture.node.tick(fixture.clock(), &mut || Some(NONCE));
    for request in requests {
        if holds(held_back, &request) {
            held_back.push(request);
            continue;
        }
        let response = fixture.respond(request);
        fixture.node.handle_response(response, fixture.clock());
    }
    fixture.now_ns += 10_000_000;
    assert!(
        fixture.now_ns < 60 * SECOND_NS,
        "timed out; held back: {held_back:?}"
    );
}

/// Each request in flight is rejected. The first rejection wipes all devices. The later rejections do not wipe devices
/// that have returned since.
#[test]
fn a_restored_registry_is_handled_once_for_all_pending_requests() {
    let mut fixture = NodeHarness::new(&[policy(2, 500)]);
    fixture.node.set_audit_rate(1_000);
    let mut held_back = Vec::new();
    while held_back.is_empty() {
        tick_holding(&mut fixture, &mut held_back, |_, request| {
            matches!(request, ControllerRequest::AppraiseRound(_))
        });
    }
    fixture.revision = 2;
    let is_held =
        |held_back: &[ControllerRequest], kind: fn(&ControllerRequest) -> bool| held_back.iter().any(kind);
    let has_provers = |held_back: &[ControllerRequest]| {
        is_held(held_back, |request| {
            matches!(request, ControllerRequest::ListProvers { .. })
        })
    };
    while held_back.len() < 4 {
        tick_holding(&mut fixture, &mut held_back, |held_back, request| match request {
            ControllerRequest::ListChanges { .. } | ControllerRequest::ListProvers { .. } => true,
            ControllerRequest::GetPlan(_) => has_provers(held_back),
            _ => false,
        });
    }
    let ended_round = fixture.node.status().attest.round;
    let restore_error = || LinkError::RegistryRestored("registry restored".to_owned());
    let rejection = |request: &ControllerRequest| match request {
        ControllerRequest::ListChanges { .. } => ControllerResponse::ListChanges {
            result: Err(restore_error()),
            at_ns: 0,
            trust: None,
        },
        ControllerRequest::GetPlan(_) => ControllerResponse::GetPlan(Err(restore_error())),
        ControllerRequest::ListProvers { .. } => ControllerResponse::ListProvers(Err(restore_error())),
        ControllerRequest::AppraiseRound(_) => ControllerResponse::AppraiseRound(Err(restore_error())),
        request => panic!("{request:?}"),
    };
    held_back.sort_by_key(|request| !matches!(request, ControllerRequest::ListChanges { .. }));
    fixture
        .node
        .handle_response(rejection(&held_back[0]), fixture.clock());
    // The node registers again, and a device returns.
    fixture.run_for(SECOND_NS);
    fixture.admit(DeviceId(1));
    assert_eq!(fixture.node.status().devices, 1);
    for request in &held_back[1..] {
        fixture.node.handle_response(rejection(request), fixture.clock());
        assert_eq!(fixture.node.status().devices, 1, "after {request:?}");
    }
    let records = fixture.node.take_audit_records(false);
    let restores = records
        .iter()
        .filter(|record| matches!(record.event, AuditEvent::RegistryRestored));
    assert_eq!(restores.count(), 1);
    fixture.run_for(10 * SECOND_NS);
    let numbers: Vec<u32> = fixture.outcomes.iter().map(|outcome| outcome.number.0).collect();
    assert!(
        numbers.contains(&ended_round),
        "the round is appraised: {numbers:?}"
    );
    assert!(numbers.len() > 2, "rounds continue: {numbers:?}");
}
