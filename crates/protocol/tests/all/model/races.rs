//! One gateway, two devices, every access interleaved: CPUs with RESPONSEs, repeated RESPONSEs and DATA, and user
//! space that refills, fills, revokes, crashes and recovers.

use std::cell::RefCell;
use std::rc::Rc;

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::{Meta, ip_bytes};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_protocol::keys::{AuthKey, SessionKey, halves};
use linewarden_protocol::tag;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, Data, FLAG_BOUND, LAP_PORT, Response, message_type};
use zerocopy::IntoBytes as _;

use super::cpu::{Config, Cpu, Outcome};
use super::enrollment::{Enrollment, SUITE};
use super::invariants::Invariants;
use super::memory::{Actor, Control, Line, Memory, State, Word, finish, step};
use super::random::Random;
use super::rules::Rules;
use super::user_space::UserSpace;

const GATEWAY: GatewayId = GatewayId(1);
const GATEWAY_IP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 66, 255, 254];
const STEPS: usize = 900;
const CPUS_MAX: usize = 4;
const NOW: Now = Now {
    monotonic_ms: 50_000,
    boot_ms: 70_000,
};

/// Statistics of a run, to check its coverage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    pub accepted: usize,
    pub repeated_acks: usize,
    pub data: usize,
    pub lost_races: usize,
    pub busy: usize,
    pub crashes: usize,
}

impl Statistics {
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.repeated_acks += other.repeated_acks;
        self.data += other.data;
        self.lost_races += other.lost_races;
        self.busy += other.busy;
        self.crashes += other.crashes;
    }
}

/// An actor that pauses, as a preempted thread does, until `awake_at`.
struct RunningActor<T> {
    actor: Actor<T>,
    /// A value of the clock, in accesses.
    awake_at: usize,
}

impl<T> RunningActor<T> {
    fn new(actor: impl Future<Output = T> + 'static) -> Self {
        Self {
            actor: Box::pin(actor),
            awake_at: 0,
        }
    }
}

struct Race {
    random: Random,
    memory: Memory,
    invariants: Rc<RefCell<Invariants>>,
    config: Config,
    devices: Rc<[DeviceId]>,
    user: UserSpace,
    cpus: Vec<RunningActor<Outcome>>,
    user_operations: Vec<RunningActor<()>>,
    /// Accesses made so far.
    clock: usize,
    /// Messages sent so far and their origins: each sender may repeat them.
    history: Vec<(Meta, Vec<u8>)>,
    next_actor: u32,
    statistics: Statistics,
}

/// Runs one seed.
///
/// # Errors
/// The first violation.
pub fn run(seed: u64, rules: Rules) -> Result<Statistics, String> {
    let mut race = Race::new(seed, rules);
    for _ in 0..STEPS {
        race.begin_random();
        race.step_one();
        race.check()?;
    }
    while !race.cpus.is_empty() || !race.user_operations.is_empty() {
        race.step_one();
        race.check()?;
    }
    race.check_all_devices_authenticate()?;
    Ok(race.statistics)
}

impl Race {
    fn new(seed: u64, rules: Rules) -> Self {
        let mut random = Random::new(seed);
        let second_mode = if random.chance(50) { Mode::Pool } else { Mode::Key };
        let enrollments = [
            Enrollment::new(2, Mode::Pool, random.chance(70)),
            Enrollment::new(4, second_mode, random.chance(70)),
        ];
        let invariants = Rc::new(RefCell::new(Invariants::new(&enrollments)));
        let config = Config {
            gateway: GATEWAY,
            lifetime_s: 3_600,
            ring_rows: 1 + random.below(3),
            rules,
            sealed: true,
        };
        let memory = Memory::new(State {
            gateway: GATEWAY,
            lines: vec![Line::new(config.ring_rows); enrollments.len()],
            installed: vec![false; enrollments.len()],
            control: Control {
                fresh_current: 0xF1,
                fresh_previous: 0xF0,
                drawn_at_monotonic_ms: NOW.monotonic_ms,
                stopping: false,
            },
            invariants: Rc::clone(&invariants),
        });
        let user = UserSpace::new(memory.clone(), config, vec![u32::MAX; enrollments.len()]);
        for (line, enrollment) in enrollments.iter().enumerate() {
            user.install(line, enrollment.mode, random.below(9) as u32);
            if random.chance(70) {
                finish(&mut boxed(user.clone().fill(line)));
            }
        }
        Self {
            random,
            memory,
            invariants,
            config,
            devices: enrollments.iter().map(|enrollment| enrollment.device).collect(),
            user,
            cpus: Vec::new(),
            user_operations: Vec::new(),
            clock: 0,
            history: Vec::new(),
            next_actor: 1,
            statistics: Statistics::default(),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.invariants.borrow().violation.clone().map_or(Ok(()), Err)
    }

    fn memory_for_next_actor(&mut self) -> Memory {
        self.next_actor += 1;
        self.memory.for_actor(self.next_actor)
    }

    fn begin_random(&mut self) {
        if self.cpus.len() < CPUS_MAX && self.random.chance(25) {
            self.begin_message();
        }
        if self.user_operations.is_empty() && self.random.chance(15) {
            self.begin_user_space();
        }
        if self.random.below(1_500) == 0 {
            self.crash();
        }
        if self.random.below(1_200) == 0 {
            let line = self.random.below(2);
            let memory = self.memory_for_next_actor();
            let user = self.user.with_memory(memory);
            self.user_operations.push(RunningActor::new(user.revoke(line)));
        }
    }

    fn begin_message(&mut self) {
        let line = self.random.below(2);
        let (meta, message) = match self.random.below(100) {
            0..45 => self.genuine_response(line),
            45..60 => self.repeated_message(),
            60..68 => self.zero_key_response(line),
            68..76 => self.guessed_repetition(line),
            76..94 => self.data(line),
            _ => self.zero_key_data(line),
        };
        self.begin(meta, message);
    }

    fn begin(&mut self, meta: Meta, message: Vec<u8>) {
        let cpu = Cpu {
            memory: self.memory_for_next_actor(),
            config: self.config,
            devices: Rc::clone(&self.devices),
            now: NOW,
            true_ms: NOW.boot_ms,
        };
        self.cpus.push(RunningActor::new(cpu.handle(meta, message)));
    }

    fn begin_user_space(&mut self) {
        let line = self.random.below(2);
        let memory = self.memory_for_next_actor();
        let user = self.user.with_memory(memory);
        let fresh: [u8; 8] = self.random.bytes();
        self.user_operations.push(match self.random.below(10) {
            0..5 => RunningActor::new(user.refill(line)),
            5..9 => RunningActor::new(user.fill(line)),
            _ => RunningActor::new(user.rotate_fresh(u64::from_be_bytes(fresh) | 1, NOW.monotonic_ms)),
        });
    }

    /// Lets an actor that does not pause perform its next access; sometimes the actor pauses afterwards.
    fn step_one(&mut self) {
        self.clock += 1;
        let is_awake = |at: usize| at <= self.clock;
        let cpus = (0..self.cpus.len())
            .filter(|cpu| is_awake(self.cpus[*cpu].awake_at))
            .map(Ok);
        let users = (0..self.user_operations.len())
            .filter(|user| is_awake(self.user_operations[*user].awake_at))
            .map(Err);
        let choices: Vec<Result<usize, usize>> = cpus.chain(users).collect();
        let awake_at = if self.random.chance(4) {
            self.clock + self.random.below(80)
        } else {
            0
        };
        match self.random.pick(&choices) {
            Some(Ok(cpu)) => {
                let running = &mut self.cpus[*cpu];
                running.awake_at = awake_at;
                if let Some((verdict, _)) = step(&mut running.actor) {
                    drop(self.cpus.swap_remove(*cpu));
                    self.count(verdict);
                }
            }
            Some(Err(user)) => {
                let running = &mut self.user_operations[*user];
                running.awake_at = awake_at;
                if step(&mut running.actor).is_some() {
                    drop(self.user_operations.swap_remove(*user));
                }
            }
            None => {}
        }
    }

    fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::ReplyAck => self.statistics.accepted += 1,
            Verdict::ReplyAckRepeated => self.statistics.repeated_acks += 1,
            Verdict::PassSession => self.statistics.data += 1,
            Verdict::DropLostRace => self.statistics.lost_races += 1,
            Verdict::DropBusy => self.statistics.busy += 1,
            _ => {}
        }
    }

    /// Stops all actors between two of their accesses, and starts a new process, which recovers.
    fn crash(&mut self) {
        self.cpus.clear();
        self.user_operations.clear();
        self.user.recover();
        self.statistics.crashes += 1;
    }

    fn enrollment(&self, line: usize) -> Enrollment {
        self.invariants.borrow().enrollments[line]
    }

    fn commit(&self, line: usize) -> CommitWord {
        CommitWord(self.memory.inspect(|state| state.lines[line].get(Word::Commit)))
    }

    /// Returns the origin of a device's message, sometimes with the address of the other device.
    fn origin(&mut self, line: usize) -> Meta {
        let endpoint = self.enrollment(line).endpoint;
        let ip = if self.random.chance(5) {
            self.enrollment(1 - line).endpoint.ip
        } else {
            endpoint.ip
        };
        Meta {
            ingress: 3,
            src_mac: endpoint.mac,
            src_ip: ip_bytes(ip),
            dst_ip: GATEWAY_IP,
            src_port: endpoint.port,
            dst_port: LAP_PORT,
            ..Meta::default()
        }
    }

    fn response(&mut self, line: usize, idx: u32, key: &AuthKey, bound: Option<[u8; 6]>) -> Response {
        let fresh = self.memory.inspect(|state| state.control.fresh_current);
        let flags = if bound.is_some() { FLAG_BOUND } else { 0 };
        let mut response = Response {
            header: wire::Header::new(message_type::RESPONSE, SUITE, flags, self.devices[line]),
            nonce: self.random.bytes(),
            idx: idx.into(),
            gateway_id: GATEWAY.0.into(),
            fresh: fresh.to_be_bytes(),
            tag: [0; 16],
        };
        response.tag = tag::response(key, &response, &tag::location(bound));
        response
    }

    /// The device's RESPONSE for the current row; it may have responded to that row before, with another nonce.
    fn genuine_response(&mut self, line: usize) -> (Meta, Vec<u8>) {
        let enrollment = self.enrollment(line);
        let idx = self.commit(line).idx();
        let key = enrollment.row(GATEWAY, idx).auth_key;
        let response = self.response(line, idx.0, &key, enrollment.bound_mac());
        self.invariants
            .borrow_mut()
            .record_response(&enrollment, &response, NOW.boot_ms);
        let meta = self.origin(line);
        self.history.push((meta, response.as_bytes().to_vec()));
        (meta, response.as_bytes().to_vec())
    }

    /// Returns a repeated message, sometimes from another origin.
    fn repeated_message(&mut self) -> (Meta, Vec<u8>) {
        let recent = self.history.len().saturating_sub(8);
        let Some((mut meta, message)) = self.random.pick(&self.history[recent..]).cloned() else {
            return self.genuine_response(0);
        };
        match self.random.below(10) {
            0 => meta.src_mac = [2, 0, 0, 0, 0xEE, 0xEE],
            1 => meta.src_port ^= 1,
            2 => meta.vlans[0] = 0x1007,
            _ => {}
        }
        (meta, message)
    }

    /// An attacker responds with the key of an absent row.
    fn zero_key_response(&mut self, line: usize) -> (Meta, Vec<u8>) {
        let idx = self.commit(line).idx().0;
        let response = self.response(line, idx, &AuthKey::from_bytes([0; 16]), None);
        (self.origin(line), response.as_bytes().to_vec())
    }

    /// An attacker at the device's origin requests an ACK without knowing the tag.
    fn guessed_repetition(&mut self, line: usize) -> (Meta, Vec<u8>) {
        let idx = self.commit(line).idx().0.wrapping_sub(1);
        let key = AuthKey::from_bytes(self.random.bytes());
        let bound = self.enrollment(line).bound_mac();
        let response = self.response(line, idx, &key, bound);
        (self.origin(line), response.as_bytes().to_vec())
    }

    /// A datagram of the session whose tag is in the line; if the line has no such session, a repeated message.
    fn data(&mut self, line: usize) -> (Meta, Vec<u8>) {
        let tag = self.memory.inspect(|state| state.lines[line].pair(Word::Tag));
        let session = self.invariants.borrow().accepted.get(&halves(&tag)[0]).cloned();
        let Some(session) = session else {
            return self.repeated_message();
        };
        let seq = self.random.between(1, 12);
        self.invariants
            .borrow_mut()
            .record_sealed(halves(&session.tag)[0], seq);
        let meta = Meta {
            dst_ip: [9; 16],
            ..session.origin
        };
        (
            meta,
            seal(
                session.device,
                &session.session_key,
                &session.tag,
                seq,
                &meta.dst_ip,
            ),
        )
    }

    /// An attacker seals under the key of a line that never had a session.
    fn zero_key_data(&mut self, line: usize) -> (Meta, Vec<u8>) {
        let tag = self.memory.inspect(|state| state.lines[line].pair(Word::Tag));
        let meta = self.origin(line);
        let key = SessionKey::from_bytes([0; 16]);
        (meta, seal(self.devices[line], &key, &tag, 3, &meta.dst_ip))
    }

    /// Checks that without interference each device that is not revoked authenticates.
    fn check_all_devices_authenticate(&mut self) -> Result<(), String> {
        for line in 0..self.devices.len() {
            if self.commit(line).is_revoked() {
                continue;
            }
            finish(&mut boxed(self.user.clone().fill(line)));
            finish(&mut boxed(self.user.clone().refill(line)));
            let (meta, message) = self.genuine_response(line);
            let genuine_origin = Meta {
                src_ip: ip_bytes(self.enrollment(line).endpoint.ip),
                ..meta
            };
            let is_address_taken = self.memory.inspect(|state| {
                let line = &state.lines[1 - line];
                let is_revoked = CommitWord(line.get(Word::Commit)).is_revoked();
                !is_revoked
                    && line.get(Word::SessionId) != 0
                    && line.pair(Word::Addr) == genuine_origin.src_ip
            });
            self.begin(genuine_origin, message);
            let Some(mut cpu) = self.cpus.pop() else {
                continue;
            };
            let (verdict, _) = finish(&mut cpu.actor);
            self.check()?;
            let expected = if is_address_taken {
                Verdict::DropAddressOwned
            } else {
                Verdict::ReplyAck
            };
            if verdict != expected {
                return Err(format!(
                    "device {} gets {verdict} without interference, at {:?}",
                    self.devices[line],
                    self.commit(line)
                ));
            }
        }
        Ok(())
    }
}

fn boxed<T>(actor: impl Future<Output = T> + 'static) -> Actor<T> {
    Box::pin(actor)
}

fn seal(device: DeviceId, key: &SessionKey, session_tag: &[u8; 16], seq: u64, peer: &[u8; 16]) -> Vec<u8> {
    let body = b"telemetry";
    let length = wire::DATA_HEADER_BYTES + body.len();
    let mut data = Data {
        header: wire::Header::with_length(message_type::DATA_UP, SUITE, 0, device, length as u16),
        session_id: halves(session_tag)[0],
        seq: seq.into(),
        port: 8_080.into(),
        reserved: [0; 6],
        tag: [0; 16],
    };
    data.tag = tag::data(key, &data, 0, peer, body);
    [data.as_bytes(), body].concat()
}
