//! Rounds of attestation step by step: the node over the `host` data plane, by a clock that the test moves. Nobody answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod site;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use linewarden_controller::attest::{
    Appraised, GroupPlan, Plan, ProverProvision, Provers, Quarantined, RoundOutcome, Seen,
};
use linewarden_controller::{Changes, Chunk, Provision, Reported};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_gateway::audit::Happening;
use linewarden_gateway::{Answer, Ask, Clock, LinkError, Node, Settings};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodKey, PeriodStart, Round};
use linewarden_protocol::gateway::Configuration::Current;
use linewarden_protocol::gateway::{ProverKeys, Row};
use linewarden_protocol::ids::{DeviceId, Mode, Period, RoundNumber, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_registry::{Change, EnrolledAt, GroupName, GroupPolicy, Revision};

use zerocopy::IntoBytes as _;

use self::site::{Client, GATEWAY, LONG, row_key};

const SECOND_NS: u64 = 1_000_000_000;
/// All random bytes are these.
const NONCE: [u8; 8] = [7; 8];

fn name(number: usize) -> GroupName {
    GroupName::new(format!("group-{number}")).unwrap()
}

fn policy(every_s: u32, answer_ms: u32) -> GroupPolicy {
    GroupPolicy {
        every_s,
        jitter_s: 0,
        answer_ms,
        ..GroupPolicy::default()
    }
}

fn start(period: u64) -> PeriodStart {
    PeriodStart {
        period: Period(period),
        salt: [period as u8; 8],
    }
}

/// What the prover of a group proves by in a period.
fn keys(number: usize, start: &PeriodStart) -> (DeviceId, AttestationKey, PeriodKey) {
    let device = DeviceId(number as u64 + 1);
    let key = AttestationKey::from_bytes([number as u8 + 1; 32]);
    let k2 = key.for_period(device, start, &ConfigurationHash([1; 32]));
    (device, key, k2)
}

/// A node with its controller, played by the test. Each group has one prover, which is silent.
struct Bench {
    node: Node,
    gateway: SocketAddr,
    groups: Vec<GroupPolicy>,
    now_ns: u64,
    /// Without, no random byte is to be had.
    is_random: bool,
    /// Where the provers are asked.
    address: IpAddr,
    /// They have proven something there before.
    is_answering: bool,
    /// As which enrolment of theirs.
    enrolled_at: EnrolledAt,
    /// Of the provers.
    revision: u64,
    numbers: u32,
    outcomes: Vec<RoundOutcome>,
    /// What the feed tells next.
    changes: Vec<Change>,
    /// What the next round has brought about; without, the controller decides about none.
    decisions: Option<Appraised>,
}

impl Bench {
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
            node: Node::new(Box::new(host), Settings::for_plane(&config)).unwrap(),
            gateway: (Ipv4Addr::LOCALHOST, config.lap_port).into(),
            groups: groups.to_vec(),
            now_ns: SECOND_NS,
            is_random: true,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            is_answering: true,
            enrolled_at: EnrolledAt(1),
            revision: 1,
            numbers: 1,
            outcomes: Vec::new(),
            changes: Vec::new(),
            decisions: Some(Appraised::default()),
        }
    }

    fn clock(&self) -> Clock {
        Clock {
            monotonic_ns: self.now_ns,
            boot_ns: self.now_ns,
        }
    }

    /// A tick, and the answers to what it asks.
    fn tick(&mut self) {
        let is_random = self.is_random;
        let asks = self.node.tick(self.clock(), &mut || is_random.then_some(NONCE));
        for ask in asks {
            let answer = self.answer(ask);
            self.node.answer(answer, self.clock());
        }
    }

    /// Goes on, always to when the node wants to be woken.
    fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while self.now_ns < until_ns {
            self.tick();
            let due_ns = self.node.due_ns(self.now_ns);
            self.now_ns = due_ns.max(self.now_ns + 1_000_000);
        }
    }

    fn answer(&mut self, ask: Ask) -> Answer {
        match ask {
            Ask::Enter => Answer::Entered(Ok(1)),
            Ask::Resume => Answer::Chunk(Ok(Chunk {
                provisions: Vec::new(),
                damaged: Vec::new(),
                progress: (0, 0),
                last: true,
            })),
            Ask::Changes { since } => Answer::Changes {
                result: Ok(Changes {
                    upto: self.changes.last().map_or(since, |change| change.revision),
                    changes: std::mem::take(&mut self.changes),
                    elsewhere: Vec::new(),
                    more: false,
                }),
                at_ns: self.now_ns,
                scrutiny: None,
            },
            Ask::Plan(wish) => {
                let first = self.numbers;
                self.numbers += 256 * u32::from(wish.numbers);
                Answer::Plan(Ok(Some(Plan {
                    running: start(1),
                    age_s: 0,
                    next: start(2),
                    revision: self.revision,
                    references: 1,
                    groups: self.plans(),
                    rounds: first..self.numbers,
                })))
            }
            Ask::Provers { start, .. } => Answer::Provers(Ok(self.provers(start))),
            Ask::Appraise(outcome) => {
                let Some(decisions) = self.decisions.clone() else {
                    return Answer::Appraised(Err(LinkError::Failed("it is away".to_owned())));
                };
                self.outcomes.push(*outcome);
                Answer::Appraised(Ok(decisions))
            }
            Ask::Report(openings) => Answer::Reported {
                result: Ok(vec![Reported::Newest; openings.len()]),
                at_ns: self.now_ns,
            },
            ask => panic!("{ask:?}"),
        }
    }

    fn plans(&self) -> Vec<GroupPlan> {
        let plan = |(number, policy): (usize, &GroupPolicy)| GroupPlan {
            name: name(number),
            policy: *policy,
            rounds_wanted: 0,
        };
        self.groups.iter().enumerate().map(plan).collect()
    }

    fn provers(&self, start: PeriodStart) -> Provers {
        let provision = |number: usize| {
            let (device, key, k2) = keys(number, &start);
            ProverProvision {
                device,
                group: name(number),
                enrolled_at: self.enrolled_at,
                port: 9,
                keys: Some(ProverKeys {
                    current: k2.for_gateway(GATEWAY),
                    alternate: None,
                }),
                request_key: key.for_requests(device, GATEWAY, start.period),
                address: Some(self.address),
                is_answering: self.is_answering,
            }
        };
        Provers {
            start,
            references: 1,
            provisions: (0..self.groups.len()).map(provision).collect(),
            removed: Vec::new(),
            damaged: Vec::new(),
            upto: self.revision,
            more: false,
        }
    }

    /// Goes on by the machine's own clock, as the data plane does.
    fn live_until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + LONG;
        while !is_done(self) {
            assert!(Instant::now() < until, "in vain");
            self.now_ns = Clock::now().monotonic_ns;
            self.tick();
        }
    }

    fn has_proven(&mut self, device: DeviceId, number: RoundNumber) -> bool {
        let provers = self.node.plane_mut().provers().unwrap();
        let proved = provers.proved_of(&[device], number).unwrap();
        proved.iter().all(Option::is_some)
    }

    /// A device that the controller has let in here, in key mode.
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
        let chunk = Chunk {
            provisions: vec![provision],
            damaged: Vec::new(),
            progress: (1, 1),
            last: true,
        };
        self.node.answer(Answer::Chunk(Ok(chunk)), self.clock());
    }

    /// Rounds of a group that have ended.
    fn rounds(&self, number: usize) -> impl Iterator<Item = &RoundOutcome> {
        let name = name(number);
        self.outcomes.iter().filter(move |outcome| outcome.group == name)
    }
}

#[test]
fn groups_with_slow_members_keep_no_other_waiting() {
    let mut bench = Bench::new(&[policy(60, 15_000), policy(60, 15_000), policy(2, 500)]);
    bench.run_for(300 * SECOND_NS);
    let counts = [0, 1, 2].map(|group| bench.rounds(group).count());
    assert!(counts[0] >= 3 && counts[1] >= 3, "{counts:?}");
    assert!(counts[2] >= 140, "{counts:?}");
    let mut numbers: Vec<u32> = bench.outcomes.iter().map(|outcome| outcome.number.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), bench.outcomes.len(), "no number twice");
}

#[test]
fn a_silent_member_keeps_a_round_open_for_half_the_interval_at_most() {
    let mut bench = Bench::new(&[policy(8, 7_999)]);
    bench.run_for(40 * SECOND_NS);
    assert!(bench.rounds(0).count() >= 4);
    for round in bench.rounds(0) {
        assert!((4_000..4_200).contains(&round.lasted_ms), "{round:?}");
    }
}

/// The gateway has no address of the family, as it has no route when an interface is down: the kernel refuses each request.
#[test]
fn who_cannot_be_asked_is_not_silent_and_is_told_of_once() {
    let mut bench = Bench::new(&[policy(2, 500), policy(2, 500)]);
    bench.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    bench.node.set_audit_rate(1_000);
    bench.run_for(60 * SECOND_NS);
    assert!(bench.rounds(0).count() > 20 && bench.rounds(1).count() > 20);
    for round in &bench.outcomes {
        assert_eq!(round.verdicts, [], "nobody was asked");
        assert!(round.lasted_ms < 100, "there is nothing to wait for: {round:?}");
    }
    let status = bench.node.status();
    assert_eq!((status.attest.unreached, status.attest.requests), (2, 0));
    let records = bench.node.take_records(false);
    let told: Vec<_> = records
        .iter()
        .filter(|record| matches!(record.what, Happening::Unreached { .. }))
        .collect();
    assert_eq!(told.len(), 2, "once of each group: {told:?}");
}

/// It may have chosen the address, to which no gateway can send.
#[test]
fn who_has_proven_nothing_where_it_cannot_be_asked_is_silent() {
    let mut bench = Bench::new(&[policy(2, 500)]);
    bench.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    bench.is_answering = false;
    bench.run_for(20 * SECOND_NS);
    assert!(bench.rounds(0).count() > 5);
    for round in bench.rounds(0) {
        let seen: Vec<Seen> = round.verdicts.iter().map(|verdict| verdict.seen).collect();
        assert_eq!(seen, [Seen::Silent], "{round:?}");
    }
    assert_eq!(bench.node.status().attest.unreached, 0);
}

/// Where a device is asked, as far as it matters for what it then proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    There,
    /// The kernel refuses each request.
    Nowhere,
    /// It refuses the first; then the device has a session elsewhere.
    Elsewhere,
}

/// What the device has shown that has the round's nonce from others, and where it was asked.
fn proven(asked: Asked) -> (Seen, IpAddr) {
    let mut bench = Bench::new(&[policy(60, 15_000)]);
    bench.is_answering = false;
    if asked != Asked::There {
        bench.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    }
    let (device, _, k2) = keys(0, &start(1));
    let round = Round {
        gateway: GATEWAY,
        number: RoundNumber(1),
        nonce: NONCE,
        start: start(1),
    };
    let proof = round.answer(device, k2.for_gateway(GATEWAY).prove(&round));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let gateway = bench.gateway;
    let requests = |bench: &Bench| bench.node.status().attest.requests;
    // Who had proven it before would not be asked.
    bench.live_until(|bench| asked != Asked::There || requests(bench) == 1);
    bench.live_until(|bench| {
        socket.send_to(proof.as_bytes(), gateway).unwrap();
        bench.has_proven(device, round.number)
    });
    assert_eq!(requests(&bench), u64::from(asked == Asked::There));
    if asked == Asked::Elsewhere {
        bench.admit(device);
        let mut client = Client::new(device, Mode::Key, gateway);
        assert!(client.authenticate(LONG).is_some());
    }
    bench.run_for(40 * SECOND_NS);
    assert_eq!(requests(&bench), u64::from(asked != Asked::Nowhere));
    let [round] = &bench.outcomes[..] else {
        panic!("{:?}", bench.outcomes)
    };
    let [verdict] = round.verdicts[..] else {
        panic!("{round:?}")
    };
    (verdict.seen, verdict.address)
}

/// It would be excused ever after where nothing can be sent to it.
#[test]
fn what_is_proven_counts_only_where_something_was_sent() {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert_eq!(proven(Asked::There), (Seen::Ok(Current), here));
    let nowhere = IpAddr::V6(Ipv6Addr::LOCALHOST);
    assert_eq!(proven(Asked::Nowhere), (Seen::Silent, nowhere));
    let session = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));
    assert_eq!(proven(Asked::Elsewhere), (Seen::Ok(Current), session));
}

/// What it proves in that round may be by its old key, and it is not asked by the new one before the next.
#[test]
fn who_is_enrolled_anew_in_mid_round_is_told_as_who_was_asked() {
    let mut bench = Bench::new(&[policy(60, 15_000)]);
    while bench.node.status().attest.requests == 0 {
        bench.tick();
        bench.now_ns += 1_000_000;
    }
    (bench.enrolled_at, bench.revision) = (EnrolledAt(2), 2);
    bench.run_for(40 * SECOND_NS);
    assert_eq!(bench.node.status().attest.requests, 1, "it is not asked again");
    bench.run_for(60 * SECOND_NS);
    assert_eq!(bench.node.status().attest.requests, 5, "with all repeats");
    let told = bench.rounds(0).flat_map(|round| &round.verdicts);
    let told: Vec<_> = told
        .map(|verdict| (verdict.enrolled_at.0, verdict.seen))
        .collect();
    assert_eq!(told, [(1, Seen::Silent), (2, Seen::Silent)]);
}

/// For the keys of both periods, and however often they come.
#[test]
fn provers_without_room_are_counted_once() {
    const PROVERS: usize = 200;
    let mut bench = Bench::new(&vec![policy(60, 500); PROVERS]);
    bench.run_for(5 * SECOND_NS);
    let attest = bench.node.status().attest.clone();
    assert!(attest.provers >= 64 && attest.provers_refused > 0, "{attest:?}");
    assert_eq!(
        attest.provers + attest.provers_refused,
        PROVERS as u64,
        "{attest:?}"
    );
}

#[test]
fn without_random_bytes_no_round_begins_and_the_node_does_not_spin() {
    let mut bench = Bench::new(&[policy(2, 500)]);
    bench.run_for(3 * SECOND_NS);
    assert!(bench.rounds(0).count() > 0);
    bench.is_random = false;
    // Over the end of what is under way.
    bench.run_for(3 * SECOND_NS);
    let (before, failed) = (bench.outcomes.len(), bench.node.status().draws_failed);
    let mut ticks = 0;
    let until_ns = bench.now_ns + 10 * SECOND_NS;
    while bench.now_ns < until_ns && ticks < 1_000 {
        bench.tick();
        ticks += 1;
        let due_ns = bench.node.due_ns(bench.now_ns);
        // A spin would come back at the same moment for ever.
        bench.now_ns = due_ns.max(bench.now_ns + 1_000);
    }
    assert!(ticks < 1_000, "{ticks} ticks in 10 s");
    assert!(bench.node.status().draws_failed > failed, "it goes on trying");
    assert_eq!(bench.outcomes.len(), before);
    bench.is_random = true;
    bench.run_for(10 * SECOND_NS);
    assert!(bench.outcomes.len() > before);
}

const DEVICE: DeviceId = DeviceId(1);

/// What happens, in the order in which the node hears of it.
enum Heard {
    /// By the feed, of a revision: whether the device may authenticate.
    Feed(u64, bool),
    /// The controller has quarantined it by this change.
    Quarantined(u64),
    /// The controller has let it in again by this change.
    Readmitted(u64),
}

/// The records that this leaves of the device, and how often it was shut out.
fn records(heard: &[Heard]) -> (Vec<&'static str>, u64) {
    let mut bench = Bench::new(&[policy(60, 500)]);
    bench.node.set_audit_rate(100);
    // Until a round has ended that the controller says nothing of.
    bench.decisions = None;
    bench.run_for(70 * SECOND_NS);
    for heard in heard {
        match *heard {
            Heard::Feed(revision, active) => bench.changes.push(Change {
                device: DEVICE,
                revision: Revision(revision),
                active,
                epoch: 0,
            }),
            Heard::Quarantined(revision) => {
                bench.decisions = Some(Appraised {
                    quarantined: vec![Quarantined {
                        device: DEVICE,
                        reason: String::new(),
                        revision: Revision(revision),
                    }],
                    ..Appraised::default()
                });
            }
            Heard::Readmitted(revision) => {
                bench.decisions = Some(Appraised {
                    readmitted: vec![(DEVICE, Revision(revision))],
                    ..Appraised::default()
                });
            }
        }
        let decided = bench.outcomes.len() + usize::from(bench.decisions.is_some());
        while !bench.changes.is_empty() || bench.outcomes.len() < decided {
            bench.tick();
            bench.now_ns = bench.node.due_ns(bench.now_ns).max(bench.now_ns + 1_000_000);
        }
        // The next round ends, and waits again.
        bench.decisions = None;
        bench.run_for(70 * SECOND_NS);
    }
    let records = bench.node.take_records(true).into_iter();
    let names = records.filter_map(|record| match record.what {
        Happening::Revoked { device: DEVICE, .. } => Some("revoked"),
        Happening::Quarantined { device: DEVICE, .. } => Some("quarantined"),
        Happening::Readmitted { device: DEVICE } => Some("readmitted"),
        Happening::Reopened { device: DEVICE } => Some("reopened"),
        _ => None,
    });
    (names.collect(), bench.node.status().revoked)
}

/// Between two looks at the feed: it was let in, has come again, and was silent too often.
#[test]
fn who_came_again_before_the_feed_has_told_of_it_is_shut_out_at_once() {
    let mut bench = Bench::new(&[policy(60, 500)]);
    bench.decisions = None;
    bench.run_for(70 * SECOND_NS);
    bench.changes.push(Change {
        device: DEVICE,
        revision: Revision(3),
        active: false,
        epoch: 0,
    });
    // Long enough for what was shut out to be forgotten.
    bench.run_for(200 * SECOND_NS);
    bench.admit(DEVICE);
    let is_revoked = |bench: &Bench| bench.node.plane().status(DEVICE).unwrap().commit.is_revoked();
    assert!(!is_revoked(&bench));
    bench.decisions = Some(Appraised {
        quarantined: vec![Quarantined {
            device: DEVICE,
            reason: String::new(),
            revision: Revision(5),
        }],
        ..Appraised::default()
    });
    while bench.outcomes.is_empty() {
        bench.tick();
        bench.now_ns = bench.node.due_ns(bench.now_ns).max(bench.now_ns + 1_000_000);
    }
    assert!(is_revoked(&bench));
}

#[test]
fn what_the_operator_lets_in_is_recorded_once_and_in_its_order() {
    use Heard::{Feed, Quarantined, Readmitted};
    // The feed is first, or the controller's decision.
    let told = (vec!["quarantined", "revoked", "reopened"], 1);
    assert_eq!(records(&[Quarantined(5), Feed(5, false), Feed(6, true)]), told);
    assert_eq!(records(&[Quarantined(5), Feed(6, true)]), told);
    // Told late, after the operator's word: nobody is shut out by it.
    let told = (vec!["revoked", "quarantined", "reopened"], 1);
    assert_eq!(records(&[Feed(5, false), Feed(6, true), Quarantined(5)]), told);
    // Several devices are quarantined by as many changes, of which the decision knows the last.
    let told = (vec!["quarantined", "revoked", "reopened"], 1);
    assert_eq!(records(&[Quarantined(5), Feed(4, false), Feed(6, true)]), told);
    // A record that is damaged, and then revoked.
    assert_eq!(
        records(&[Feed(99, false), Feed(99, false), Feed(5, false)]),
        (vec!["revoked", "revoked"], 2)
    );
    // Another gateway's quarantine.
    assert_eq!(
        records(&[Feed(5, false), Feed(5, false), Feed(6, true), Feed(7, true)]),
        (vec!["revoked", "reopened"], 1)
    );
    // A proof lets it in, and is recorded as that alone.
    for end in [[Feed(6, true), Readmitted(6)], [Readmitted(6), Feed(6, true)]] {
        let [first, second] = end;
        assert_eq!(
            records(&[Quarantined(5), Feed(5, false), first, second]),
            (vec!["quarantined", "revoked", "readmitted"], 1)
        );
    }
    // It was let in and is out again before the decision is told.
    assert_eq!(
        records(&[Feed(5, false), Feed(6, true), Feed(7, false)]),
        (vec!["revoked", "reopened", "revoked"], 2)
    );
}

/// The questions of a node, of which those are held back that the test answers itself.
fn ask_into(bench: &mut Bench, held: &mut Vec<Ask>, holds: impl Fn(&[Ask], &Ask) -> bool) {
    let asks = bench.node.tick(bench.clock(), &mut || Some(NONCE));
    for ask in asks {
        if holds(held, &ask) {
            held.push(ask);
            continue;
        }
        let answer = bench.answer(ask);
        bench.node.answer(answer, bench.clock());
    }
    bench.now_ns += 10_000_000;
    assert!(bench.now_ns < 60 * SECOND_NS, "held: {held:?}");
}

/// Each question in flight is refused. The first refusal wipes the devices; those that are back when the others come stay.
#[test]
fn a_restored_registry_is_acted_on_once_for_all_questions_in_flight() {
    let mut bench = Bench::new(&[policy(2, 500)]);
    bench.node.set_audit_rate(1_000);
    let mut held = Vec::new();
    while held.is_empty() {
        ask_into(&mut bench, &mut held, |_, ask| matches!(ask, Ask::Appraise(_)));
    }
    bench.revision = 2;
    let is_held = |held: &[Ask], kind: fn(&Ask) -> bool| held.iter().any(kind);
    let has_provers = |held: &[Ask]| is_held(held, |ask| matches!(ask, Ask::Provers { .. }));
    while held.len() < 4 {
        ask_into(&mut bench, &mut held, |held, ask| match ask {
            Ask::Changes { .. } | Ask::Provers { .. } => true,
            Ask::Plan(_) => has_provers(held),
            _ => false,
        });
    }
    let ended = bench.node.status().attest.round;
    let restored = || LinkError::Restored("registry restored".to_owned());
    let refused = |ask: &Ask| match ask {
        Ask::Changes { .. } => Answer::Changes {
            result: Err(restored()),
            at_ns: 0,
            scrutiny: None,
        },
        Ask::Plan(_) => Answer::Plan(Err(restored())),
        Ask::Provers { .. } => Answer::Provers(Err(restored())),
        Ask::Appraise(_) => Answer::Appraised(Err(restored())),
        ask => panic!("{ask:?}"),
    };
    held.sort_by_key(|ask| !matches!(ask, Ask::Changes { .. }));
    bench.node.answer(refused(&held[0]), bench.clock());
    // It registers anew, and a device comes back.
    bench.run_for(SECOND_NS);
    bench.admit(DeviceId(1));
    assert_eq!(bench.node.status().devices, 1);
    for ask in &held[1..] {
        bench.node.answer(refused(ask), bench.clock());
        assert_eq!(bench.node.status().devices, 1, "after {ask:?}");
    }
    let records = bench.node.take_records(false);
    let restores = records
        .iter()
        .filter(|record| matches!(record.what, Happening::RegistryRestored));
    assert_eq!(restores.count(), 1);
    bench.run_for(10 * SECOND_NS);
    let numbers: Vec<u32> = bench.outcomes.iter().map(|outcome| outcome.number.0).collect();
    assert!(numbers.contains(&ended), "the round is appraised: {numbers:?}");
    assert!(numbers.len() > 2, "rounds go on: {numbers:?}");
}
