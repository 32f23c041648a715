//! One worker: a socket, the devices behind it, and the loop that serves both.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_protocol::device::{Device, Output, PufQuery, Session};
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{self, ip_bytes};
use linewarden_protocol::wire::{LAP_PORT, MESSAGE_BYTES, message_type};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;

use super::exchange::{Exchange, ExchangeReport, read_payload, write_payload};
use super::member::Member;
use super::neighbour;
use super::report::{Outcome, Report};
use super::timers::Timers;
use super::{DATA_PORT, DEVICE_PORT, FleetOptions, Shared, ip_of};
use crate::address::{DeviceAddress, Family};
use crate::clock::{boot_ms, real_ns};
use crate::packet_socket::{PacketSocket, PacketSocketError, Received, TxBatch};

/// Frames sent by one system call. Small, because on a veth the peer's work is done inside the call, and the frames
/// behind it wait.
const BATCH: usize = 16;
/// The longest sleep, so that a stop is seen soon.
const NAP: Duration = Duration::from_millis(20);

/// What a worker runs for.
#[derive(Debug)]
pub(super) enum Goal {
    /// Until each device has a session.
    Authenticate { window: usize },
    /// Until told to stop.
    KeepAlive,
    /// Until each device has its echo or has given up.
    Exchange { exchange: Exchange, window: usize },
}

/// One device.
#[derive(Debug)]
struct Seat {
    address: DeviceAddress,
    ip: IpAddr,
    device: Device,
    member: Member,
    outcome: Outcome,
    times: Times,
    data: Data,
}

/// Moments of a device's present handshake, ns of the real-time clock; 0 is not yet.
#[derive(Debug, Default)]
struct Times {
    request_sent: u64,
    challenge_at: u64,
    response_sent: u64,
    puf: u64,
}

/// A device's present exchange.
#[derive(Debug, Default)]
struct Data {
    attempts: u8,
    sent_ns: u64,
    answered: bool,
    under_way: bool,
}

/// What stands in the batch, so that its time of sending can be noted.
#[derive(Clone, Copy, Debug)]
enum Stamp {
    Request(u32),
    Response(u32),
    Data(u32),
    None,
}

#[derive(Debug)]
pub(super) struct Worker {
    socket: PacketSocket,
    core: Core,
}

/// Everything but the socket, so that a frame in the socket's ring can be worked on.
#[derive(Debug)]
struct Core {
    seats: Vec<Seat>,
    first_index: u32,
    /// One past the last index of the whole fleet, for whose addresses any worker answers.
    past_last: u32,
    stride: u32,
    number: u32,
    gateway: fn(Family) -> Endpoint,
    batch: TxBatch,
    stamps: Vec<Stamp>,
    timers: Timers,
    rng: ChaCha20Rng,
    report: Report,
    exchange_report: ExchangeReport,
    payload: Vec<u8>,
    /// Seats before this one have had their turn.
    next_seat: usize,
    under_way: usize,
    done: usize,
}

impl Worker {
    pub(super) fn new(socket: PacketSocket, options: &FleetOptions, number: u32, past_last: u32) -> Self {
        let mut seed = options.nonce_seed;
        for (byte, mix) in seed.iter_mut().zip(number.to_be_bytes()) {
            *byte ^= mix;
        }
        Self {
            socket,
            core: Core {
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
            },
        }
    }

    pub(super) fn add(&mut self, index: u32, mut member: Member, family: Family) {
        let address = DeviceAddress::new(index);
        if let Some(mac) = &mut member.config.bound_mac {
            *mac = address.mac().0;
        }
        self.core.seats.push(Seat {
            address,
            ip: ip_of(address, family),
            device: Device::new(member.config.clone()),
            member,
            outcome: Outcome::Waiting,
            times: Times::default(),
            data: Data::default(),
        });
        self.core.timers.add();
    }

    pub(super) fn outcome(&self, index: u32) -> Option<Outcome> {
        self.core.seat_of(index).map(|seat| seat.outcome)
    }

    pub(super) fn session(&self, index: u32) -> Option<&Session> {
        self.core.seat_of(index)?.device.session()
    }

    pub(super) fn got_echo(&self, index: u32) -> bool {
        self.core.seat_of(index).is_some_and(|seat| seat.data.answered)
    }

    pub(super) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.core.report)
    }

    pub(super) fn begin_exchange(&mut self) {
        for seat in &mut self.core.seats {
            seat.data = Data::default();
        }
    }

    pub(super) fn take_exchange_report(&mut self) -> ExchangeReport {
        std::mem::take(&mut self.core.exchange_report)
    }

    /// The loop: start devices while the window has room, take all that has arrived, do what is due, sleep.
    pub(super) fn run(
        &mut self,
        goal: &Goal,
        stop: &AtomicBool,
        until: Instant,
        shared: &Shared,
    ) -> Result<(), PacketSocketError> {
        let started = Instant::now();
        let mut finished: Option<Duration> = None;
        self.core.begin(goal);
        self.socket.statistics()?; // forget what was dropped before
        loop {
            self.core.start_seats(goal);
            self.flush()?;
            let mut frames = 0;
            while self.receive_one(goal, shared) {
                frames += 1;
                // What a device answers leaves before the next frame is looked at, which may take a PUF reading.
                self.flush()?;
            }
            while let Some(place) = self.core.timers.pop_due(boot_ms()) {
                self.core.on_timer(place, goal, shared);
                if self.core.batch.is_full() {
                    self.flush()?;
                }
            }
            self.flush()?;
            if finished.is_none() && self.core.is_done(goal) {
                finished = Some(started.elapsed());
                shared.busy_workers.fetch_sub(1, Ordering::Relaxed);
            }
            // The others' devices may still need our answers to ARP and neighbour discovery.
            let all_done = finished.is_some() && shared.busy_workers.load(Ordering::Relaxed) == 0;
            if all_done || stop.load(Ordering::Relaxed) || Instant::now() >= until {
                break;
            }
            if frames == 0 {
                let due_ms = self.core.timers.next_ms().map(|at| at.saturating_sub(boot_ms()));
                self.socket
                    .wait(due_ms.map_or(NAP, Duration::from_millis).min(NAP))?;
            }
        }
        self.core
            .finish(goal, finished.unwrap_or_else(|| started.elapsed()));
        self.core.report.ring_drops += u64::from(self.socket.statistics()?.dropped);
        Ok(())
    }

    fn receive_one(&mut self, goal: &Goal, shared: &Shared) -> bool {
        let Self { socket, core } = self;
        socket.receive(1, |received| core.on_frame(&received, goal, shared)) == 1
    }

    fn flush(&mut self) -> Result<(), PacketSocketError> {
        let frames = self.core.batch.len();
        if frames == 0 {
            return Ok(());
        }
        self.core.stamp(real_ns());
        let taken = self.socket.send(&mut self.core.batch)?;
        self.core.report.not_taken += (frames - taken) as u64;
        Ok(())
    }
}

impl Core {
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

    fn seat_of(&self, index: u32) -> Option<&Seat> {
        self.seats.get(self.place_of(index)? as usize)
    }

    fn begin(&mut self, goal: &Goal) {
        self.next_seat = 0;
        self.under_way = 0;
        self.done = 0;
        if let Goal::Authenticate { .. } = goal {
            for seat in &mut self.seats {
                seat.outcome = Outcome::Waiting;
            }
        }
        if let Goal::Exchange { exchange, .. } = goal {
            self.payload.resize(exchange.payload_bytes.clamp(16, 1024), 0);
        }
    }

    fn is_done(&self, goal: &Goal) -> bool {
        !matches!(goal, Goal::KeepAlive) && self.done == self.seats.len()
    }

    fn finish(&mut self, goal: &Goal, elapsed: Duration) {
        self.report.elapsed = elapsed;
        let left = (self.seats.len() - self.done) as u64;
        match goal {
            Goal::Authenticate { .. } => self.report.unfinished = left,
            Goal::Exchange { .. } => {
                self.exchange_report.elapsed = elapsed;
                self.exchange_report.unanswered += left;
                // Timers that were borrowed for echoes go back to the devices.
                for (place, seat) in (0..).zip(&self.seats) {
                    self.timers.arm(place, seat.device.next_deadline());
                }
            }
            Goal::KeepAlive => {}
        }
    }

    /// Gives further devices their turn while the window and the batch have room.
    fn start_seats(&mut self, goal: &Goal) {
        let (Goal::Authenticate { window } | Goal::Exchange { window, .. }) = goal else {
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

    fn on_frame(&mut self, received: &Received<'_>, goal: &Goal, shared: &Shared) {
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
            (_, DATA_PORT) => {
                if let Goal::Exchange { .. } = goal {
                    self.on_echo(place, payload, received.at_ns);
                }
            }
            _ => {}
        }
        true
    }

    fn on_timer(&mut self, place: u32, goal: &Goal, shared: &Shared) {
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
    fn batch_with(
        &mut self,
        stamp: Stamp,
        write: impl FnOnce(&mut [u8; crate::packet_socket::FRAME_BYTES_MAX]) -> Option<usize>,
    ) {
        if self.batch.push_with(write) {
            self.stamps.push(stamp);
        }
    }

    /// Notes when the batch leaves.
    fn stamp(&mut self, now_ns: u64) {
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

    /// The next attempt of an exchange, or its end.
    fn send_data(&mut self, place: u32, exchange: &Exchange) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        if seat.data.attempts >= exchange.attempts.max(1) {
            seat.data.under_way = false;
            self.timers.arm(place, None);
            self.exchange_report.unanswered += 1;
            self.under_way = self.under_way.saturating_sub(1);
            self.done += 1;
            return;
        }
        seat.data.attempts += 1;
        let family = if seat.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = seat.address.endpoint(family, DATA_PORT);
        let to = (exchange.service)(family);
        write_payload(&mut self.payload, seat.address.index, seat.data.attempts);
        self.exchange_report.sent += 1;
        let payload = std::mem::take(&mut self.payload);
        self.batch_with(Stamp::Data(place), |out| {
            write::udp(out, &from, &to, [0; 2], &payload)
        });
        self.payload = payload;
        let patience_ms = u64::try_from(exchange.patience.as_millis()).unwrap_or(u64::MAX);
        self.timers
            .arm(place, Some(boot_ms().saturating_add(patience_ms)));
    }

    fn on_echo(&mut self, place: u32, payload: &[u8], at_ns: u64) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        let mine = Some((seat.address.index, seat.data.attempts));
        if !seat.data.under_way || read_payload(payload) != mine {
            return;
        }
        seat.data.under_way = false;
        seat.data.answered = true;
        let round_trip = at_ns.saturating_sub(seat.data.sent_ns);
        self.exchange_report
            .round_trip_ns
            .saturating_record(round_trip.max(1));
        self.exchange_report.answered += 1;
        self.timers.arm(place, seat.device.next_deadline());
        self.under_way = self.under_way.saturating_sub(1);
        self.done += 1;
    }
}
