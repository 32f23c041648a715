//! One worker: a socket, the devices behind it, and the loop that serves both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_protocol::device::Session;

use super::attester::Attester;
use super::crew::Crew;
use super::exchange::{Exchange, ExchangeReport};
use super::member::Member;
use super::report::{Outcome, Report};
use super::{FleetOptions, Shared};
use crate::address::Family;
use crate::clock::{boot_ms, real_ns};
use crate::packet_socket::{PacketSocket, PacketSocketError};

/// The longest sleep, so that a stop is seen soon.
const NAP: Duration = Duration::from_millis(20);

/// What a worker runs for.
#[derive(Debug)]
pub(super) enum Goal {
    /// Until each device has a session; or, if `once`, has had one handshake, whatever came of it.
    Authenticate { window: usize, once: bool },
    /// Until each device has its echo or has given up.
    Exchange { exchange: Exchange, window: usize },
    /// Until it is stopped: devices prove what they run.
    Attest,
}

#[derive(Debug)]
pub(super) struct Worker {
    socket: PacketSocket,
    crew: Crew,
}

impl Worker {
    pub(super) fn new(socket: PacketSocket, options: &FleetOptions, number: u32, past_last: u32) -> Self {
        Self {
            socket,
            crew: Crew::new(options, number, past_last),
        }
    }

    pub(super) fn add(&mut self, index: u32, member: Member, family: Family) {
        self.crew.add(index, member, family);
    }

    pub(super) fn power_cycle(&mut self) {
        self.crew.power_cycle();
    }

    pub(super) fn power_cycle_device(&mut self, index: u32) {
        self.crew.power_cycle_device(index);
    }

    pub(super) fn set_attester(&mut self, index: u32, attester: Attester) {
        self.crew.set_attester(index, attester);
    }

    pub(super) fn outcome(&self, index: u32) -> Option<Outcome> {
        self.crew.seat_of(index).map(|seat| seat.outcome)
    }

    pub(super) fn session(&self, index: u32) -> Option<&Session> {
        self.crew.seat_of(index)?.device.session()
    }

    pub(super) fn got_echo(&self, index: u32) -> bool {
        self.crew.seat_of(index).is_some_and(|seat| seat.data.answered)
    }

    pub(super) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.crew.report)
    }

    pub(super) fn begin_exchange(&mut self) {
        self.crew.begin_exchange();
    }

    pub(super) fn take_exchange_report(&mut self) -> ExchangeReport {
        std::mem::take(&mut self.crew.exchange_report)
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
        self.crew.begin(goal);
        self.socket.statistics()?; // forget what was dropped before
        loop {
            self.crew.start_seats(goal);
            self.flush()?;
            let mut frames = 0;
            while self.receive_one(goal, shared) {
                frames += 1;
                // What a device answers leaves before the next frame is looked at, which may take a PUF reading.
                self.flush()?;
            }
            while let Some(place) = self.crew.timers.pop_due(boot_ms()) {
                self.crew.on_timer(place, goal, shared);
                if self.crew.batch.is_full() {
                    self.flush()?;
                }
            }
            self.flush()?;
            if finished.is_none() && self.crew.is_done() {
                finished = Some(started.elapsed());
                shared.busy_workers.fetch_sub(1, Ordering::Relaxed);
            }
            // The others' devices may still need our answers to ARP and neighbour discovery.
            let all_done = finished.is_some() && shared.busy_workers.load(Ordering::Relaxed) == 0;
            if all_done || stop.load(Ordering::Relaxed) || Instant::now() >= until {
                break;
            }
            if frames == 0 {
                let due_ms = self.crew.timers.next_ms().map(|at| at.saturating_sub(boot_ms()));
                self.socket
                    .wait(due_ms.map_or(NAP, Duration::from_millis).min(NAP))?;
            }
        }
        self.crew
            .finish(goal, finished.unwrap_or_else(|| started.elapsed()));
        self.crew.report.ring_drops += u64::from(self.socket.statistics()?.dropped);
        Ok(())
    }

    fn receive_one(&mut self, goal: &Goal, shared: &Shared) -> bool {
        let Self { socket, crew } = self;
        socket.receive(1, |received| crew.on_frame(&received, goal, shared)) == 1
    }

    fn flush(&mut self) -> Result<(), PacketSocketError> {
        let frames = self.crew.batch.len();
        if frames == 0 {
            return Ok(());
        }
        self.crew.stamp(real_ns());
        let taken = self.socket.send(&mut self.crew.batch)?;
        self.crew.report.not_taken += (frames - taken) as u64;
        Ok(())
    }
}
