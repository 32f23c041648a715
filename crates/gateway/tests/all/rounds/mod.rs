//! Attestation rounds of a node on the `host` data plane, step by step. The test sets the clock. Devices send no proofs,
//! except where a test sends them.

mod decisions;
mod groups;
mod proofs;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use linewarden_gateway::audit::AuditEvent;
use linewarden_gateway::{Clock, Node};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodKey, PeriodStart, Round};
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::gateway::{ProverKeys, Row};
use linewarden_protocol::ids::{DeviceId, Mode, Period, RoundNumber, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_types::{
    AppraiseRound, Change, Changes, ControllerRequest, ControllerResponse, EnrollmentTime, GetPlan,
    GroupName, GroupPlan, GroupPolicy, LeaseChunk, LeasedCursor, LinkError, ListChanges, ListProvers, Plan,
    ProofOutcome, ProverProvision, Provers, Provision, QuarantinedDevice, ReportSessions, Revision,
    RoundAppraisal, RoundOutcome, SessionReportResult,
};

use zerocopy::IntoBytes as _;

use crate::site::{GATEWAY, TIMEOUT, TestDevice, host_node, row_key};

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
            ..crate::site::config()
        };
        Self {
            node: host_node(&config),
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
            self.node.handle_response(response, self.clock(), 0);
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
            ControllerRequest::ResumeLeases(_) => ControllerResponse::ResumeLeases(Ok(LeaseChunk {
                provisions: Vec::new(),
                damaged: Vec::new(),
                progress: (0, 0),
                is_last: true,
                cursor: LeasedCursor::default(),
            })),
            ControllerRequest::ListChanges(ListChanges { since }) => {
                let changes = Changes {
                    up_to_revision: self.changes.last().map_or(since, |change| change.revision),
                    changes: std::mem::take(&mut self.changes),
                    newer_sessions: Vec::new(),
                    has_more: false,
                };
                ControllerResponse::ListChanges(Ok((changes, None)))
            }
            ControllerRequest::GetPlan(GetPlan(plan_request)) => {
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
            ControllerRequest::ListProvers(ListProvers { start, .. }) => {
                ControllerResponse::ListProvers(Ok(self.provers(start)))
            }
            ControllerRequest::AppraiseRound(AppraiseRound { round, .. }) => {
                let Some(decisions) = self.decisions.clone() else {
                    return ControllerResponse::AppraiseRound(Err(LinkError::Failed(
                        "the controller does not respond".to_owned(),
                    )));
                };
                self.outcomes.push(*round);
                ControllerResponse::AppraiseRound(Ok(decisions))
            }
            ControllerRequest::ReportSessions(ReportSessions { reports, .. }) => {
                ControllerResponse::ReportSessions(Ok(vec![SessionReportResult::Newest; reports.len()]))
            }
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
            cursor: LeasedCursor::default(),
        };
        self.node
            .handle_response(ControllerResponse::ResumeLeases(Ok(chunk)), self.clock(), 0);
    }

    /// The ended rounds of a group.
    fn rounds(&self, number: usize) -> impl Iterator<Item = &RoundOutcome> {
        let name = group_name(number);
        self.outcomes.iter().filter(move |outcome| outcome.group == name)
    }
}
