//! The devices of one worker, and all that is done for them but sending and receiving.

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
use super::neighbour;
use super::report::{Outcome, Report};
use super::timers::Timers;
use super::worker::Goal;
use super::{DATA_PORT, DEVICE_PORT, FleetOptions, Shared, ip_of};
use crate::address::{DeviceAddress, Family};
use crate::clock::{boot_ms, real_ns};
use crate::packet_socket::{FRAME_BYTES_MAX, Received, TxBatch};

/// Frames sent by one system call. Small, because on a veth the peer's work is done inside the call, and the frames
/// behind it wait.
const BATCH: usize = 16;

/// One device.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) address: DeviceAddress,
    pub(super) ip: IpAddr,
    pub(super) device: Device,
    pub(super) member: Member,
    pub(super) outcome: Outcome,
    pub(super) times: Times,
    pub(super) data: Data,
    /// What proves what it runs, where it is a prover.
    pub(super) attester: Option<Attester>,
}

/// Moments of a device's present handshake, ns of the real-time clock; 0 is not yet.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) request_sent: u64,
    pub(super) challenge_at: u64,
    pub(super) response_sent: u64,
    pub(super) puf: u64,
}

/// A device's present exchange.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) attempts: u8,
    pub(super) sent_ns: u64,
    pub(super) answered: bool,
    pub(super) under_way: bool,
}

/// What stands in the batch, so that its time of sending can be noted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stamp {
    Request(u32),
    Response(u32),
    Data(u32),
    None,
}

/// Everything but the socket, so that a frame in the socket's ring can be worked on.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) seats: Vec<Seat>,
    pub(super) first_index: u32,
    /// One past the last index of the whole fleet, for whose addresses any worker answers.
    pub(super) past_last: u32,
    pub(super) stride: u32,
    pub(super) number: u32,
    pub(super) gateway: fn(Family) -> Endpoint,
    pub(super) batch: TxBatch,
    pub(super) stamps: Vec<Stamp>,
    pub(super) timers: Timers,
    pub(super) rng: ChaCha20Rng,
    pub(super) report: Report,
    pub(super) exchange_report: ExchangeReport,
    pub(super) payload: Vec<u8>,
    /// Seats before this one have had their turn.
    pub(super) next_seat: usize,
    pub(super) under_way: usize,
    pub(super) done: usize,
    /// Devices give up after their first handshake.
    once: bool,
    /// Nothing that devices do ends the run.
    endless: bool,
    /// Those that have, of those done.
    given_up: usize,
}

impl Crew {
    pub(super) fn new(options: &FleetOptions, number: u32, past_last: u32) -> Self {
        let mut seed = options.nonce_seed;
        for (byte, mix) in seed.iter_mut().zip(number.to_be_bytes()) {
            *byte ^= mix;
        }
        Self {
            seats: Vec::new(),
            first_index: options.first_index,
            past_last,
            stride: options.workers as u32,
            number,
            gateway: options.gateway,
            batch: TxBatch::new(BATCH),
            stamps: Vec::with_capacity(BATCH),
            timers: Timers::default(),
            rng: ChaCha20Rng::from_seed(seed),
            report: Report::default(),
            exchange_report: ExchangeReport::default(),
            payload: Vec::new(),
            next_seat: 0,
            under_way: 0,
            done: 0,
            once: false,
            endless: false,
            given_up: 0,
        }
    }

    pub(super) fn add(&mut self, index: u32, mut member: Member, family: Family) {
        let address = DeviceAddress::new(index);
        if let Some(mac) = &mut member.config.bound_mac {
            *mac = address.mac().0;
        }
        self.seats.push(Seat {
            address,
            ip: ip_of(address, family),
            device: Device::new(member.config.clone()),
            member,
            outcome: Outcome::Waiting,
            times: Times::default(),
            data: Data::default(),
            attester: None,
        });
        self.timers.add();
    }

    pub(super) fn power_cycle(&mut self) {
        for place in 0..self.seats.len() {
            self.power_cycle_seat(place as u32);
        }
    }

    fn power_cycle_seat(&mut self, place: u32) {
        if let Some(seat) = self.seats.get_mut(place as usize) {
            seat.device = Device::new(seat.member.config.clone());
            seat.outcome = Outcome::Waiting;
            seat.times = Times::default();
            self.timers.arm(place, None);
        }
    }

    pub(super) fn power_cycle_device(&mut self, index: u32) {
        if let Some(place) = self.place_of(index) {
            self.power_cycle_seat(place);
        }
    }

    pub(super) fn set_attester(&mut self, index: u32, attester: Attester) {
        let seat = self
            .place_of(index)
            .and_then(|place| self.seats.get_mut(place as usize));
        if let Some(seat) = seat {
            seat.attester = Some(attester);
        }
    }

    pub(super) fn begin_exchange(&mut self) {
        for seat in &mut self.seats {
            seat.data = Data::default();
        }
    }

    /// The seat's place among this worker's.
    fn place_of(&self, index: u32) -> Option<u32> {
        if !(self.first_index..self.past_last).contains(&index) || index % self.stride != self.number {
            return None;
        }
        // Seats are filled in order of their indices, of which the first of ours is at or above `first_index`.
        let first_of_ours =
            self.first_index + (self.number + self.stride - self.first_index % self.stride) % self.stride;
        Some((index - first_of_ours) / self.stride)
    }

    pub(super) fn seat_of(&self, index: u32) -> Option<&Seat> {
        self.seats.get(self.place_of(index)? as usize)
    }

    pub(super) fn begin(&mut self, goal: &Goal) {
        self.next_seat = 0;
        self.under_way = 0;
        self.done = 0;
        self.given_up = 0;
        self.endless = matches!(goal, Goal::Attest);
        if let Goal::Authenticate { once, .. } = goal {
            self.once = *once;
            for seat in &mut self.seats {
                seat.outcome = Outcome::Waiting;
            }
        }
        if let Goal::Exchange { exchange, .. } = goal {
            self.payload.resize(exchange.payload_bytes.clamp(16, 1024), 0);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.endless && self.done == self.seats.len()
    }

    pub(super) fn finish(&mut self, goal: &Goal, elapsed: Duration) {
        self.report.elapsed = elapsed;
        let left = (self.seats.len() - self.done) as u64;
        match goal {
            Goal::Authenticate { .. } => self.report.unfinished = left + self.given_up as u64,
            Goal::Attest => {}
            Goal::Exchange { .. } => {
                self.exchange_report.elapsed = elapsed;
                self.exchange_report.unanswered += left;
                // Timers that were borrowed for echoes go back to the devices.
                for (place, seat) in (0..).zip(&self.seats) {
                    self.timers.arm(place, seat.device.next_deadline());
                }
            }
        }
    }

    /// Gives further devices their turn while the window and the batch have room.
    pub(super) fn start_seats(&mut self, goal: &Goal) {
        let (Goal::Authenticate { window, .. } | Goal::Exchange { window, .. }) = goal else {
            return;
        };
        while self.under_way < (*window).max(1) && self.next_seat < self.seats.len() && !self.batch.is_full()
        {
            let place = self.next_seat as u32;
            self.next_seat += 1;
            match goal {
                Goal::Exchange { exchange, .. } => {
                    self.under_way += 1;
                    if let Some(seat) = self.seats.get_mut(place as usize) {
                        seat.data.under_way = true;
                    }
                    self.send_data(place, exchange);
                }
                _ => self.start_handshake(place),
            }
        }
    }

    fn start_handshake(&mut self, place: u32) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        if seat.device.session().is_some() {
            seat.outcome = Outcome::Authenticated;
            self.done += 1;
            return;
        }
        self.under_way += 1;
        seat.outcome = Outcome::UnderWay;
        // A device left over from an earlier run goes on where it stands.
        let output = self.start_device(place).unwrap_or(Output::None);
        self.drive(place, output, 0, &Shared::default());
    }

    fn start_device(&mut self, place: u32) -> Option<Output> {
        let mut nonce = [0u8; 16];
        self.rng.fill_bytes(&mut nonce);
        let seat = self.seats.get_mut(place as usize)?;
        seat.times = Times::default();
        seat.device.start(nonce, boot_ms()).ok()
    }

    pub(super) fn on_frame(&mut self, received: &Received<'_>, goal: &Goal, shared: &Shared) {
        let frame = received.frame;
        let (first, past_last) = (self.first_index, self.past_last);
        let ours = |device: DeviceAddress| (first..past_last).contains(&device.index);
        if let Some(place) = neighbour::destination(frame).and_then(|device| self.place_of(device.index))
            && self.on_datagram(place, received, goal, shared)
        {
            return;
        }
        // A group address reaches one worker of the fanout group, which answers for all.
        if neighbour::is_group(frame) || neighbour::destination(frame).is_some_and(ours) {
            self.batch_with(Stamp::None, |out| neighbour::answer(frame, ours, out));
        }
    }

    /// Takes a UDP datagram to one of our devices; false when it is something else.
    fn on_datagram(&mut self, place: u32, received: &Received<'_>, goal: &Goal, shared: &Shared) -> bool {
        let Some((ip, udp)) = frame::parse(received.frame)
            .ok()
            .and_then(|frame| frame.datagram())
        else {
            return false;
        };
        let Some(payload) = received.frame.get(udp.payload()) else {
            return false;
        };
        let Some(seat) = self
            .seats
            .get_mut(place as usize)
            .filter(|seat| seat.ip == ip.dst)
        else {
            return false;
        };
        match (udp.src_port, udp.dst_port) {
            (LAP_PORT, DEVICE_PORT) => match seat.device.handle(payload, &ip_bytes(seat.ip), boot_ms()) {
                Ok(output) => self.drive(place, output, received.at_ns, shared),
                Err(ignored) => *self.report.ignored.entry(ignored).or_default() += 1,
            },
            (LAP_PORT, ATTEST_PORT) => self.on_attest_request(place, payload),
            (_, DATA_PORT) => {
                if let Goal::Exchange { .. } = goal {
                    self.on_echo(place, payload, received.at_ns);
                }
            }
            _ => {}
        }
        true
    }

    pub(super) fn on_timer(&mut self, place: u32, goal: &Goal, shared: &Shared) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        match goal {
            Goal::Exchange { exchange, .. } if seat.data.under_way => self.send_data(place, exchange),
            _ => {
                let output = seat.device.poll(boot_ms());
                self.drive(place, output, 0, shared);
            }
        }
    }

    /// Does what the device says until it has nothing more to say.
    fn drive(&mut self, place: u32, mut output: Output, at_ns: u64, shared: &Shared) {
        loop {
            match output {
                Output::None => break,
                Output::Transmit(message) => self.transmit(place, &message),
                Output::EvaluatePuf(query) => {
                    output = self.evaluate(place, &query, at_ns);
                    continue;
                }
                Output::NeedNonce => {
                    if let Some(started) = self.start_device(place) {
                        output = started;
                        continue;
                    }
                }
                Output::Authenticated(_) => self.on_authenticated(place, at_ns, shared),
                Output::Failed { failure, .. } => {
                    *self.report.failures.entry(failure).or_default() += 1;
                    shared.failed.fetch_add(1, Ordering::Relaxed);
                    self.give_up(place);
                }
                Output::Postponed { .. } | Output::SessionExpired => {}
            }
            match self.seats.get_mut(place as usize) {
                Some(seat) => output = seat.device.poll(boot_ms()),
                None => return,
            }
        }
        let deadline = self
            .seats
            .get(place as usize)
            .and_then(|seat| seat.device.next_deadline());
        self.timers.arm(place, deadline);
    }

    /// A handshake has failed: if one is all that is asked for, its device rests.
    fn give_up(&mut self, place: u32) {
        let seat = self.seats.get_mut(place as usize);
        if let Some(seat) = seat.filter(|seat| self.once && seat.outcome == Outcome::UnderWay) {
            seat.device.abandon();
            seat.outcome = Outcome::GaveUp;
            self.under_way = self.under_way.saturating_sub(1);
            self.done += 1;
            self.given_up += 1;
        }
    }

    fn evaluate(&mut self, place: u32, query: &PufQuery, at_ns: u64) -> Output {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return Output::None;
        };
        if at_ns != 0 {
            seat.times.challenge_at = at_ns;
        }
        let started = real_ns();
        let key = seat.member.row_key(query);
        seat.times.puf += real_ns().saturating_sub(started);
        self.report.puf_readings += 1;
        self.report.puf_failures += u64::from(key.is_err());
        seat.device.puf_result(key, boot_ms())
    }

    fn transmit(&mut self, place: u32, message: &[u8; MESSAGE_BYTES]) {
        let Some(seat) = self.seats.get(place as usize) else {
            return;
        };
        let family = if seat.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = seat.address.endpoint(family, DEVICE_PORT);
        let to = (self.gateway)(family);
        let (stamp, sent_before) = match message.get(3) {
            Some(&message_type::RESPONSE) => (Stamp::Response(place), seat.times.response_sent),
            _ => (Stamp::Request(place), seat.times.request_sent),
        };
        self.report.sent += 1;
        self.report.repeated += u64::from(sent_before != 0);
        self.batch_with(stamp, |out| write::udp(out, &from, &to, [0; 2], message));
    }

    /// Appends a frame to the batch. What finds it full is lost, as in any queue, and repeated by its timer; the loop
    /// flushes too often for that to happen.
    pub(super) fn batch_with(
        &mut self,
        stamp: Stamp,
        write: impl FnOnce(&mut [u8; FRAME_BYTES_MAX]) -> Option<usize>,
    ) {
        if self.batch.push_with(write) {
            self.stamps.push(stamp);
        }
    }

    /// Notes when the batch leaves.
    pub(super) fn stamp(&mut self, now_ns: u64) {
        for stamp in self.stamps.drain(..) {
            let (Stamp::Request(place) | Stamp::Response(place) | Stamp::Data(place)) = stamp else {
                continue;
            };
            let Some(seat) = self.seats.get_mut(place as usize) else {
                continue;
            };
            let field = match stamp {
                Stamp::Response(_) => &mut seat.times.response_sent,
                Stamp::Data(_) => &mut seat.data.sent_ns,
                _ => &mut seat.times.request_sent,
            };
            // Repetitions of a handshake's message do not count anew; every attempt of an exchange does.
            if *field == 0 || matches!(stamp, Stamp::Data(_)) {
                *field = now_ns;
            }
        }
    }

    fn on_authenticated(&mut self, place: u32, ack_at: u64, shared: &Shared) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        if seat.outcome != Outcome::UnderWay {
            return; // a renewal
        }
        seat.outcome = Outcome::Authenticated;
        let times = &seat.times;
        let network = times.challenge_at.saturating_sub(times.request_sent)
            + ack_at.saturating_sub(times.response_sent);
        let latency = real_ns().saturating_sub(times.request_sent);
        self.report.latency_ns.saturating_record(latency.max(1));
        self.report.network_ns.saturating_record(network.max(1));
        self.report.puf_ns.saturating_record(times.puf.max(1));
        self.report.authenticated += 1;
        shared.authenticated.fetch_add(1, Ordering::Relaxed);
        self.under_way = self.under_way.saturating_sub(1);
        self.done += 1;
    }
}
