//! The devices of one worker and all their processing except sending and receiving.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use linewarden_protocol::device::{Device, Output, PufQuery};
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{self, ip_bytes};
use linewarden_protocol::wire::{ATTEST_PORT, LAP_PORT, MESSAGE_BYTES, message_type};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;

use super::attester::Attester;
use super::exchange::ExchangeReport;
use super::member::Member;
use super::neighbor;
use super::report::{Outcome, Report};
use super::timers::Timers;
use super::worker::Goal;
use super::{DATA_PORT, DEVICE_PORT, FleetOptions, SharedCounters, ip_of};
use crate::address::{DeviceAddress, Family};
use crate::clock::{boot_ms, real_ns};
use crate::packet_socket::{FRAME_BYTES_MAX, Received, TxBatch};

/// Maximum number of frames sent by one system call. Small, because on a veth the peer processes frames inside the call
/// while the later frames wait.
const FRAMES_PER_CALL: usize = 16;

/// One device.
#[derive(Debug)]
pub(super) struct DeviceSlot {
    pub(super) address: DeviceAddress,
    pub(super) ip: IpAddr,
    pub(super) device: Device,
    pub(super) member: Member,
    pub(super) outcome: Outcome,
    pub(super) times: HandshakeTimes,
    pub(super) echo: EchoState,
    /// The prover of the device, if the device is attested.
    pub(super) attester: Option<Attester>,
}

/// Times of a device's current handshake, ns of the real-time clock; 0: not reached.
#[derive(Debug, Default)]
pub(super) struct HandshakeTimes {
    pub(super) request_sent: u64,
    pub(super) challenge_received: u64,
    pub(super) response_sent: u64,
    /// Duration of the PUF readings, ns.
    pub(super) puf_duration: u64,
}

/// A device's current echo exchange.
#[derive(Debug, Default)]
pub(super) struct EchoState {
    pub(super) attempts: u8,
    pub(super) sent_ns: u64,
    pub(super) echoed: bool,
    pub(super) in_progress: bool,
}

/// The kind of a frame in the batch, so that its send time can be recorded.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendStamp {
    Request(u32),
    Response(u32),
    Data(u32),
    None,
}

/// All state except the socket, so that a frame in the socket's ring can be processed without a copy.
#[derive(Debug)]
pub(super) struct WorkerDevices {
    pub(super) slots: Vec<DeviceSlot>,
    pub(super) first_index: u32,
    /// The index after the last device of the complete fleet; every worker replies to ARP for all addresses of the fleet.
    pub(super) end_index: u32,
    pub(super) worker_count: u32,
    pub(super) worker_number: u32,
    pub(super) gateway: fn(Family) -> Endpoint,
    pub(super) batch: TxBatch,
    /// The stamp of each frame in `batch`.
    pub(super) stamps: Vec<SendStamp>,
    pub(super) timers: Timers,
    pub(super) rng: ChaCha20Rng,
    pub(super) report: Report,
    pub(super) exchange_report: ExchangeReport,
    pub(super) payload: Vec<u8>,
    /// The first slot that has not been started.
    pub(super) next_slot: usize,
    /// Number of devices in progress.
    pub(super) in_progress: usize,
    /// Number of devices that need no more processing in this run.
    pub(super) done: usize,
    /// Devices stop after their first handshake.
    single_attempt: bool,
    /// Only the stop flag or the time limit ends the run.
    runs_until_stopped: bool,
    /// Number of devices that stopped without a session, included in `done`.
    abandoned: usize,
}

impl WorkerDevices {
    pub(super) fn new(options: &FleetOptions, number: u32, end_index: u32) -> Self {
        let mut seed = options.nonce_seed;
        for (byte, mix) in seed.iter_mut().zip(number.to_be_bytes()) {
            *byte ^= mix;
        }
        Self {
            slots: Vec::new(),
            first_index: options.first_index,
            end_index,
            worker_count: options.workers as u32,
            worker_number: number,
            gateway: options.gateway,
            batch: TxBatch::new(FRAMES_PER_CALL),
            stamps: Vec::with_capacity(FRAMES_PER_CALL),
            timers: Timers::default(),
            rng: ChaCha20Rng::from_seed(seed),
            report: Report::default(),
            exchange_report: ExchangeReport::default(),
            payload: Vec::new(),
            next_slot: 0,
            in_progress: 0,
            done: 0,
            single_attempt: false,
            runs_until_stopped: false,
            abandoned: 0,
        }
    }

    pub(super) fn add(&mut self, index: u32, mut member: Member, family: Family) {
        let address = DeviceAddress::new(index);
        if let Some(mac) = &mut member.config.bound_mac {
            *mac = address.mac().0;
        }
        self.slots.push(DeviceSlot {
            address,
            ip: ip_of(address, family),
            device: Device::new(member.config.clone()),
            member,
            outcome: Outcome::Waiting,
            times: HandshakeTimes::default(),
            echo: EchoState::default(),
            attester: None,
        });
        self.timers.add();
    }

    pub(super) fn power_cycle(&mut self) {
        for slot_index in 0..self.slots.len() {
            self.power_cycle_slot(slot_index as u32);
        }
    }

    fn power_cycle_slot(&mut self, slot_index: u32) {
        if let Some(slot) = self.slots.get_mut(slot_index as usize) {
            slot.device = Device::new(slot.member.config.clone());
            slot.outcome = Outcome::Waiting;
            slot.times = HandshakeTimes::default();
            self.timers.arm(slot_index, None);
        }
    }

    pub(super) fn power_cycle_device(&mut self, index: u32) {
        if let Some(slot_index) = self.slot_index(index) {
            self.power_cycle_slot(slot_index);
        }
    }

    pub(super) fn set_attester(&mut self, index: u32, attester: Attester) {
        let slot = self
            .slot_index(index)
            .and_then(|slot_index| self.slots.get_mut(slot_index as usize));
        if let Some(slot) = slot {
            slot.attester = Some(attester);
        }
    }

    pub(super) fn begin_exchange(&mut self) {
        for slot in &mut self.slots {
            slot.echo = EchoState::default();
        }
    }

    /// The slot index of a device of this worker.
    fn slot_index(&self, index: u32) -> Option<u32> {
        if !(self.first_index..self.end_index).contains(&index)
            || index % self.worker_count != self.worker_number
        {
            return None;
        }
        // Slots are filled in the order of device indices; this worker's first index is at or above `first_index`.
        let first_own_index = self.first_index
            + (self.worker_number + self.worker_count - self.first_index % self.worker_count)
                % self.worker_count;
        Some((index - first_own_index) / self.worker_count)
    }

    pub(super) fn slot(&self, index: u32) -> Option<&DeviceSlot> {
        self.slots.get(self.slot_index(index)? as usize)
    }

    pub(super) fn begin(&mut self, goal: &Goal) {
        self.next_slot = 0;
        self.in_progress = 0;
        self.done = 0;
        self.abandoned = 0;
        self.runs_until_stopped = matches!(goal, Goal::Attest);
        if let Goal::Authenticate { single_attempt, .. } = goal {
            self.single_attempt = *single_attempt;
            for slot in &mut self.slots {
                slot.outcome = Outcome::Waiting;
            }
        }
        if let Goal::Exchange { exchange, .. } = goal {
            self.payload.resize(exchange.payload_bytes.clamp(16, 1024), 0);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.runs_until_stopped && self.done == self.slots.len()
    }

    pub(super) fn finish(&mut self, goal: &Goal, elapsed: Duration) {
        self.report.elapsed = elapsed;
        let unfinished = (self.slots.len() - self.done) as u64;
        match goal {
            Goal::Authenticate { .. } => self.report.unfinished = unfinished + self.abandoned as u64,
            Goal::Attest => {}
            Goal::Exchange { .. } => {
                self.exchange_report.elapsed = elapsed;
                self.exchange_report.not_echoed += unfinished;
                // Timers that were used for echo timeouts are reset to the devices' deadlines.
                for (slot_index, slot) in (0..).zip(&self.slots) {
                    self.timers.arm(slot_index, slot.device.next_deadline());
                }
            }
        }
    }

    /// Starts further devices while the window and the batch have room.
    pub(super) fn start_waiting_devices(&mut self, goal: &Goal) {
        let (Goal::Authenticate { window, .. } | Goal::Exchange { window, .. }) = goal else {
            return;
        };
        while self.in_progress < (*window).max(1)
            && self.next_slot < self.slots.len()
            && !self.batch.is_full()
        {
            let slot_index = self.next_slot as u32;
            self.next_slot += 1;
            match goal {
                Goal::Exchange { exchange, .. } => {
                    self.in_progress += 1;
                    if let Some(slot) = self.slots.get_mut(slot_index as usize) {
                        slot.echo.in_progress = true;
                    }
                    self.send_data(slot_index, exchange);
                }
                _ => self.start_handshake(slot_index),
            }
        }
    }

    fn start_handshake(&mut self, slot_index: u32) {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return;
        };
        if slot.device.session().is_some() {
            slot.outcome = Outcome::Authenticated;
            self.done += 1;
            return;
        }
        self.in_progress += 1;
        slot.outcome = Outcome::InProgress;
        // A device with a handshake from an earlier run continues that handshake.
        let output = self.start_device(slot_index).unwrap_or(Output::None);
        self.apply_outputs(slot_index, output, 0, &SharedCounters::default());
    }

    fn start_device(&mut self, slot_index: u32) -> Option<Output> {
        let mut nonce = [0u8; 16];
        self.rng.fill_bytes(&mut nonce);
        let slot = self.slots.get_mut(slot_index as usize)?;
        slot.times = HandshakeTimes::default();
        slot.device.start(nonce, boot_ms()).ok()
    }

    pub(super) fn on_frame(&mut self, received: &Received<'_>, goal: &Goal, shared: &SharedCounters) {
        let frame = received.frame;
        let (first_index, end_index) = (self.first_index, self.end_index);
        let is_fleet_device = |device: DeviceAddress| (first_index..end_index).contains(&device.index);
        if let Some(slot_index) =
            neighbor::destination(frame).and_then(|device| self.slot_index(device.index))
            && self.on_datagram(slot_index, received, goal, shared)
        {
            return;
        }
        // A group address reaches one worker of the fanout group, which replies for all devices.
        if neighbor::is_group(frame) || neighbor::destination(frame).is_some_and(is_fleet_device) {
            self.queue_frame(SendStamp::None, |out| {
                neighbor::reply(frame, is_fleet_device, out)
            });
        }
    }

    /// Handles a UDP datagram to a device of this worker; returns false if the frame is no UDP datagram to the device.
    fn on_datagram(
        &mut self,
        slot_index: u32,
        received: &Received<'_>,
        goal: &Goal,
        shared: &SharedCounters,
    ) -> bool {
        let Some((ip, udp)) = frame::parse(received.frame)
            .ok()
            .and_then(|frame| frame.datagram())
        else {
            return false;
        };
        let Some(payload) = received.frame.get(udp.payload()) else {
            return false;
        };
        let Some(slot) = self
            .slots
            .get_mut(slot_index as usize)
            .filter(|slot| slot.ip == ip.dst)
        else {
            return false;
        };
        match (udp.src_port, udp.dst_port) {
            (LAP_PORT, DEVICE_PORT) => match slot.device.handle(payload, &ip_bytes(slot.ip), boot_ms()) {
                Ok(output) => self.apply_outputs(slot_index, output, received.at_ns, shared),
                Err(ignored) => *self.report.ignored.entry(ignored).or_default() += 1,
            },
            (LAP_PORT, ATTEST_PORT) => self.on_attest_request(slot_index, payload),
            (_, DATA_PORT) => {
                if let Goal::Exchange { .. } = goal {
                    self.on_echo(slot_index, payload, received.at_ns);
                }
            }
            _ => {}
        }
        true
    }

    pub(super) fn on_timer(&mut self, slot_index: u32, goal: &Goal, shared: &SharedCounters) {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return;
        };
        match goal {
            Goal::Exchange { exchange, .. } if slot.echo.in_progress => self.send_data(slot_index, exchange),
            _ => {
                let output = slot.device.poll(boot_ms());
                self.apply_outputs(slot_index, output, 0, shared);
            }
        }
    }

    /// Applies the device's outputs until there are no more. `received_ns` is the time of the received frame; 0: no frame.
    fn apply_outputs(
        &mut self,
        slot_index: u32,
        mut output: Output,
        received_ns: u64,
        shared: &SharedCounters,
    ) {
        loop {
            match output {
                Output::None => break,
                Output::Transmit(message) => self.transmit(slot_index, &message),
                Output::EvaluatePuf(query) => {
                    output = self.evaluate(slot_index, &query, received_ns);
                    continue;
                }
                Output::NeedNonce => {
                    if let Some(started) = self.start_device(slot_index) {
                        output = started;
                        continue;
                    }
                }
                Output::Authenticated(_) => self.on_authenticated(slot_index, received_ns, shared),
                Output::Failed { failure, .. } => {
                    *self.report.failures.entry(failure).or_default() += 1;
                    shared.failed.fetch_add(1, Ordering::Relaxed);
                    self.abandon_handshake(slot_index);
                }
                Output::Postponed { .. } | Output::SessionExpired => {}
            }
            match self.slots.get_mut(slot_index as usize) {
                Some(slot) => output = slot.device.poll(boot_ms()),
                None => return,
            }
        }
        let deadline = self
            .slots
            .get(slot_index as usize)
            .and_then(|slot| slot.device.next_deadline());
        self.timers.arm(slot_index, deadline);
    }

    /// Handles a failed handshake: in a single-attempt run the device stops.
    fn abandon_handshake(&mut self, slot_index: u32) {
        let slot = self.slots.get_mut(slot_index as usize);
        if let Some(slot) = slot.filter(|slot| self.single_attempt && slot.outcome == Outcome::InProgress) {
            slot.device.abandon();
            slot.outcome = Outcome::Abandoned;
            self.in_progress = self.in_progress.saturating_sub(1);
            self.done += 1;
            self.abandoned += 1;
        }
    }

    fn evaluate(&mut self, slot_index: u32, query: &PufQuery, received_ns: u64) -> Output {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return Output::None;
        };
        if received_ns != 0 {
            slot.times.challenge_received = received_ns;
        }
        let started = real_ns();
        let key = slot.member.row_key(query);
        slot.times.puf_duration += real_ns().saturating_sub(started);
        self.report.puf_readings += 1;
        self.report.puf_failures += u64::from(key.is_err());
        slot.device.puf_result(key, boot_ms())
    }

    fn transmit(&mut self, slot_index: u32, message: &[u8; MESSAGE_BYTES]) {
        let Some(slot) = self.slots.get(slot_index as usize) else {
            return;
        };
        let family = if slot.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = slot.address.endpoint(family, DEVICE_PORT);
        let to = (self.gateway)(family);
        let (stamp, sent_before) = match message.get(3) {
            Some(&message_type::RESPONSE) => (SendStamp::Response(slot_index), slot.times.response_sent),
            _ => (SendStamp::Request(slot_index), slot.times.request_sent),
        };
        self.report.sent += 1;
        self.report.retransmitted += u64::from(sent_before != 0);
        self.queue_frame(stamp, |out| write::udp(out, &from, &to, [0; 2], message));
    }

    /// Appends a frame to the batch. A frame that finds the batch full is lost, as in any queue, and the timer of its
    /// device causes a retransmission. The worker's loop flushes often enough to avoid such losses.
    pub(super) fn queue_frame(
        &mut self,
        stamp: SendStamp,
        write: impl FnOnce(&mut [u8; FRAME_BYTES_MAX]) -> Option<usize>,
    ) {
        if self.batch.push_with(write) {
            self.stamps.push(stamp);
        }
    }

    /// Records the send time of all frames in the batch.
    pub(super) fn record_send_time(&mut self, now_ns: u64) {
        for stamp in self.stamps.drain(..) {
            let (SendStamp::Request(slot_index)
            | SendStamp::Response(slot_index)
            | SendStamp::Data(slot_index)) = stamp
            else {
                continue;
            };
            let Some(slot) = self.slots.get_mut(slot_index as usize) else {
                continue;
            };
            let field = match stamp {
                SendStamp::Response(_) => &mut slot.times.response_sent,
                SendStamp::Data(_) => &mut slot.echo.sent_ns,
                _ => &mut slot.times.request_sent,
            };
            // Retransmissions of a handshake message keep the first send time; every attempt of an exchange sets its
            // own send time.
            if *field == 0 || matches!(stamp, SendStamp::Data(_)) {
                *field = now_ns;
            }
        }
    }

    fn on_authenticated(&mut self, slot_index: u32, ack_received: u64, shared: &SharedCounters) {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return;
        };
        if slot.outcome != Outcome::InProgress {
            return; // a renewal
        }
        slot.outcome = Outcome::Authenticated;
        let times = &slot.times;
        let network = times.challenge_received.saturating_sub(times.request_sent)
            + ack_received.saturating_sub(times.response_sent);
        let latency = real_ns().saturating_sub(times.request_sent);
        self.report.latency_ns.saturating_record(latency.max(1));
        self.report.network_ns.saturating_record(network.max(1));
        self.report.puf_ns.saturating_record(times.puf_duration.max(1));
        self.report.authenticated += 1;
        shared.authenticated.fetch_add(1, Ordering::Relaxed);
        self.in_progress = self.in_progress.saturating_sub(1);
        self.done += 1;
    }
}
