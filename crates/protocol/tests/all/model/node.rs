//! A gateway of the simulation, with durable marks of a registry, clocks with suspends, and crashes. The crate's oracle
//! and this model's step machine receive the same frames and are compared after each frame.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::{self, Mac};
use linewarden_protocol::gateway::{DeviceInstall, FreshValue, Gate, Gateway, GatewayConfig};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::LAP_PORT;

use super::cpu::{Config, Cpu, Outcome};
use super::enrollment::Enrollment;
use super::invariants::Invariants;
use super::memory::{Actor, Control, Line, Memory, State, Word, finish, mac_word, split, vlans_word};
use super::random::Random;
use super::rules::{Rule, Rules};
use super::user_space::UserSpace;

/// Number of rows of each device per gateway: gateway 1 has the first range, gateway 2 the next.
pub const RANGE_ROWS: u32 = 100_000;
/// Rows by which the registry's durable mark advances (LAP/1 1.4.6).
const BLOCK_ROWS: u32 = 4;
const RING_ROWS: usize = 3;

pub struct Node {
    pub id: GatewayId,
    pub mac: Mac,
    pub ipv4: IpAddr,
    pub ipv6: IpAddr,
    config: Config,
    /// `None` if a rule is removed, because oracle and step machine then differ.
    oracle: Option<Gateway>,
    memory: Memory,
    user: UserSpace,
    enrollments: Rc<[Enrollment]>,
    devices: Rc<[DeviceId]>,
    invariants: Rc<RefCell<Invariants>>,
    monotonic_behind_ms: u64,
    boot_ahead_ms: u64,
    /// No frame is handled before this time.
    pub asleep_until_ms: u64,
    /// By device, in the registry: the first row that was never given to this gateway.
    marks: Vec<u32>,
    /// By device, in the gateway's memory: the next row to give to the oracle.
    installed_until: Vec<u32>,
    /// By device, in the registry: whether the device is revoked.
    revoked: Vec<bool>,
}

impl Node {
    pub fn new(
        number: u8,
        lifetime_s: u32,
        rules: Rules,
        enrollments: &Rc<[Enrollment]>,
        invariants: &Rc<RefCell<Invariants>>,
    ) -> Self {
        let id = GatewayId(u32::from(number));
        let (ipv4, ipv6) = (
            IpAddr::V4(Ipv4Addr::new(10, 66, 255, number)),
            IpAddr::V6(Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0xff, u16::from(number))),
        );
        let config = Config {
            gateway: id,
            lifetime_s,
            ring_rows: RING_ROWS,
            rules,
            sealed: false,
        };
        let has_all_rules = Rule::ALL.iter().all(|rule| rules.contains(*rule));
        let oracle = has_all_rules.then(|| {
            Gateway::new(GatewayConfig {
                gate: Gate::Bound,
                session_lifetime_s: lifetime_s,
                nak_per_s: u32::MAX,
                rows_ahead: RING_ROWS as u32,
                // The model covers the memory shared by CPUs, not the origin of messages.
                sources: None,
                own_macs: None,
                ..GatewayConfig::new(id, &[ipv4, ipv6])
            })
        });
        let first = RANGE_ROWS * (u32::from(number) - 1);
        let memory = empty_memory(id, enrollments.len(), invariants);
        Self {
            id,
            mac: [2, 0, 0, 0, 0xAA, number],
            ipv4,
            ipv6,
            config,
            oracle,
            user: UserSpace::new(memory.clone(), config, vec![first; enrollments.len()]),
            memory,
            enrollments: Rc::clone(enrollments),
            devices: enrollments.iter().map(|enrollment| enrollment.device).collect(),
            invariants: Rc::clone(invariants),
            monotonic_behind_ms: 0,
            boot_ahead_ms: 1_000 * u64::from(number),
            asleep_until_ms: 0,
            marks: vec![first; enrollments.len()],
            installed_until: vec![first; enrollments.len()],
            revoked: vec![false; enrollments.len()],
        }
    }

    pub fn now(&self, true_ms: u64) -> Now {
        Now {
            monotonic_ms: true_ms.saturating_sub(self.monotonic_behind_ms),
            boot_ms: true_ms + self.boot_ahead_ms,
        }
    }

    /// Starts, or restarts after a crash of the machine: memory is empty, rows continue at the registry's mark.
    pub fn start(&mut self, true_ms: u64, random: &mut Random) {
        if let Some(oracle) = &mut self.oracle {
            oracle.crash();
        }
        self.memory = empty_memory(self.id, self.devices.len(), &self.invariants);
        self.user = UserSpace::new(self.memory.clone(), self.config, self.marks.clone());
        self.installed_until.clone_from(&self.marks);
        self.restart_fresh(true_ms, random);
        for line in 0..self.devices.len() {
            self.install(line);
        }
    }

    fn install(&mut self, line: usize) {
        if self.revoked[line] {
            return;
        }
        let enrollment = self.enrollments[line];
        let (next_idx, rows) = match enrollment.mode {
            Mode::Pool => (RowIndex(self.marks[line]), Vec::new()),
            // Only freshness protects a key-mode device from recorded messages.
            Mode::Key => (RowIndex(0), vec![enrollment.row(self.id, RowIndex(0))]),
        };
        if let Some(oracle) = &mut self.oracle {
            let install = DeviceInstall {
                device: enrollment.device,
                mode: enrollment.mode,
                next_idx,
                rows,
                mark: None,
            };
            oracle.install(install).expect("an empty line accepts a device");
        }
        self.user.install(line, enrollment.mode, next_idx.0);
        self.refill(line);
    }

    /// User space's work for one device: reserve durably, then provide rows.
    pub fn refill(&mut self, line: usize) {
        let commit = self.commit(line);
        if self.revoked[line] || commit.is_revoked() {
            return;
        }
        if self.enrollments[line].mode == Mode::Key {
            return finish(&mut boxed(self.user.clone().fill(line)));
        }
        let current = commit.idx().0;
        while self.marks[line] < current + 2 {
            self.marks[line] += BLOCK_ROWS;
        }
        self.user.rows_until.borrow_mut()[line] = self.marks[line];
        finish(&mut boxed(self.user.clone().fill(line)));
        finish(&mut boxed(self.user.clone().refill(line)));
        let Some(oracle) = &mut self.oracle else {
            return;
        };
        let first = self.installed_until[line].max(current);
        let end = self.marks[line].min(current + 1 + RING_ROWS as u32).max(first);
        let enrollment = self.enrollments[line];
        let rows = (first..end)
            .map(|idx| enrollment.row(self.id, RowIndex(idx)))
            .collect();
        oracle
            .refill(enrollment.device, RowIndex(first), rows)
            .expect("rows in order, within the ring");
        self.installed_until[line] = end;
    }

    pub fn refill_all(&mut self) {
        (0..self.devices.len()).for_each(|line| self.refill(line));
    }

    /// Restarts the process that feeds the data plane after a crash; the memory stays.
    pub fn recover(&mut self) {
        if let Some(oracle) = &mut self.oracle {
            oracle.recover();
        }
        self.user.recover();
        self.refill_all();
    }

    /// The registry and this gateway revoke the device.
    pub fn revoke(&mut self, line: usize) {
        if std::mem::replace(&mut self.revoked[line], true) {
            return;
        }
        finish(&mut boxed(self.user.clone().revoke(line)));
        if let Some(oracle) = &mut self.oracle {
            oracle
                .revoke(self.devices[line])
                .expect("the device is installed");
        }
    }

    pub fn rotate_fresh(&mut self, true_ms: u64, random: &mut Random) {
        let now = self.now(true_ms);
        let value = draw(random);
        if let Some(oracle) = &mut self.oracle {
            oracle.rotate_fresh_value(value, now);
        }
        let word = u64::from_be_bytes(value.to_wire());
        finish(&mut boxed(self.user.clone().rotate_fresh(word, now.monotonic_ms)));
    }

    fn restart_fresh(&mut self, true_ms: u64, random: &mut Random) {
        let now = self.now(true_ms);
        let (current, previous) = (draw(random), draw(random));
        if let Some(oracle) = &mut self.oracle {
            oracle.replace_fresh_values(current, previous, now);
        }
        self.memory.arrange(|state| {
            state.control.fresh_current = u64::from_be_bytes(current.to_wire());
            state.control.fresh_previous = u64::from_be_bytes(previous.to_wire());
            state.control.drawn_at_monotonic_ms = now.monotonic_ms;
        });
    }

    /// Suspends: the monotonic clock stops, and new freshness values are drawn on resume.
    pub fn suspend(&mut self, true_ms: u64, for_ms: u64, random: &mut Random) {
        self.asleep_until_ms = true_ms + for_ms;
        self.monotonic_behind_ms += for_ms;
        self.restart_fresh(self.asleep_until_ms, random);
    }

    /// Moves the boot-time clock forward: sessions at this gateway expire early.
    pub fn jump_clock(&mut self, by_ms: u64) {
        self.boot_ahead_ms += by_ms;
    }

    pub fn set_stopping(&mut self, stopping: bool) {
        if let Some(oracle) = &mut self.oracle {
            oracle.set_stopping(stopping);
        }
        self.memory.arrange(|state| state.control.stopping = stopping);
    }

    /// Handles a frame; returns the reply, if any. Both implementations must agree.
    pub fn deliver(&mut self, true_ms: u64, ingress: u32, mut bytes: Vec<u8>) -> (Verdict, Option<Vec<u8>>) {
        let now = self.now(true_ms);
        let step_outcome = self.step_through(now, true_ms, ingress, &bytes);
        let Some(oracle) = &mut self.oracle else {
            return match step_outcome {
                Some((verdict, Some(payload))) => (verdict, reply_frame(bytes, &payload)),
                Some((verdict, None)) => (verdict, None),
                None => (Verdict::DropGate, None),
            };
        };
        let verdict = oracle.handle_frame(now, ingress, &mut bytes);
        let is_reply = verdict.disposition() == Disposition::Reply;
        if let Some((stepped_verdict, stepped_reply)) = step_outcome {
            let payload = is_reply.then(|| payload_of(&bytes)).flatten();
            if stepped_verdict != verdict || stepped_reply.map(Vec::from) != payload {
                self.invariants.borrow_mut().violate(format!(
                    "gateway {}: the verdict of the oracle is {verdict}, the verdict of the step machine is {stepped_verdict}",
                    self.id
                ));
            }
            self.compare_lines();
        }
        (verdict, is_reply.then_some(bytes))
    }

    /// Handles a frame to the gateway's own port with the step machine.
    fn step_through(&self, now: Now, true_ms: u64, ingress: u32, bytes: &[u8]) -> Option<Outcome> {
        let parsed = frame::parse(bytes).ok()?;
        let (ip, udp) = parsed.datagram()?;
        if ![self.ipv4, self.ipv6].contains(&ip.dst) || udp.dst_port != LAP_PORT {
            return None;
        }
        if !parsed.is_answerable(&ip) {
            return Some((Verdict::DropUnanswerable, None));
        }
        let payload = bytes.get(udp.payload())?.to_vec();
        let cpu = Cpu {
            memory: self.memory.clone(),
            config: self.config,
            devices: Rc::clone(&self.devices),
            now,
            true_ms,
        };
        Some(finish(&mut boxed(cpu.handle(parsed.meta(ingress)?, payload))))
    }

    /// Compares all words of the oracle and the step machine.
    fn compare_lines(&self) {
        let Some(oracle) = &self.oracle else {
            return;
        };
        for (number, device) in self.devices.iter().enumerate() {
            let Some(view) = oracle.line(*device) else {
                continue;
            };
            let session = &view.session;
            let is_same = self.memory.inspect(|state| {
                let line = &state.lines[number];
                let ring = (0..RING_ROWS).filter(|slot| line.get(Word::RingKey(*slot, 1)) != 0);
                line.get(Word::Commit) == view.commit.0
                    && line.get(Word::Window) == view.window.0
                    && line.get(Word::SessionId) == u64::from_be_bytes(view.session_id)
                    && line.get(Word::Challenge) == u64::from_be_bytes(view.challenge)
                    && line.pair(Word::Key) == *view.auth_key.as_bytes()
                    && line.get(Word::SessionExpires) == u64::from(view.session_expires_s)
                    && line.get(Word::Ingress) == u64::from(view.ingress)
                    && line.pair(Word::SessionKey) == *session.session_key.as_bytes()
                    && line.pair(Word::Tag) == session.tag
                    && [line.get(Word::Addr(0)), line.get(Word::Addr(1))] == split(&session.addr)
                    && line.get(Word::SessionLifetime) == u64::from(session.session_lifetime_s)
                    && line.get(Word::Port) == u64::from(session.port)
                    && line.get(Word::Mac) == mac_word(session.mac)
                    && line.get(Word::Vlans) == vlans_word(session.vlans)
                    && line.get(Word::Bound) == u64::from(session.bound)
                    // A revoked line gets no more rows, so a ring emptied by recovery stays empty.
                    && (ring.count() == view.rows_ahead || view.commit.is_revoked())
            });
            if !is_same {
                let message = format!(
                    "gateway {}: the line of device {device} differs from {view:?}",
                    self.id
                );
                self.invariants.borrow_mut().violate(message);
            }
        }
    }

    fn commit(&self, line: usize) -> CommitWord {
        CommitWord(self.memory.inspect(|state| state.lines[line].get(Word::Commit)))
    }

    /// Returns the session id, as on the wire, of the device at this gateway, if the session has not expired.
    pub fn session(&self, line: usize, true_ms: u64) -> Option<[u8; 8]> {
        let seconds = u64::from(self.now(true_ms).boot().seconds());
        self.memory.inspect(|state| {
            let line = &state.lines[line];
            let is_live = line.get(Word::SessionId) != 0
                && seconds < line.get(Word::SessionExpires)
                && !CommitWord(line.get(Word::Commit)).is_revoked();
            is_live.then(|| line.get(Word::SessionId).to_be_bytes())
        })
    }
}

fn empty_memory(gateway: GatewayId, lines: usize, invariants: &Rc<RefCell<Invariants>>) -> Memory {
    Memory::new(State {
        gateway,
        lines: vec![Line::new(RING_ROWS); lines],
        installed: vec![false; lines],
        control: Control::default(),
        invariants: Rc::clone(invariants),
    })
}

fn draw(random: &mut Random) -> FreshValue {
    loop {
        if let Some(value) = FreshValue::from_wire(random.bytes()) {
            return value;
        }
    }
}

fn payload_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let (_, udp) = frame::parse(bytes).ok()?.datagram()?;
    Some(bytes.get(udp.payload())?.to_vec())
}

fn reply_frame(mut bytes: Vec<u8>, payload: &[u8; 64]) -> Option<Vec<u8>> {
    let parsed = frame::parse(&bytes).ok()?;
    let (_, udp) = parsed.datagram()?;
    bytes.get_mut(udp.payload())?.copy_from_slice(payload);
    frame::reverse_frame(&mut bytes, &parsed)?;
    Some(bytes)
}

fn boxed<T>(actor: impl Future<Output = T> + 'static) -> Actor<T> {
    Box::pin(actor)
}
