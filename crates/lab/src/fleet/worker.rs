//! One worker: a socket, its devices, and the loop that serves both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_protocol::device::Session;

use super::attester::Attester;
use super::exchange::{Exchange, ExchangeReport};
use super::member::Member;
use super::report::{Outcome, Report};
use super::worker_devices::WorkerDevices;
use super::{FleetOptions, SharedCounters};
use crate::address::Family;
use crate::clock::{boot_ms, real_ns};
use crate::packet_socket::{PacketSocket, PacketSocketError};

/// Longest sleep, so that the stop flag is checked in time.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The goal of a worker's run.
#[derive(Debug)]
pub(super) enum Goal {
    /// Until each device has a session or, with `single_attempt`, has completed one handshake with any result.
    Authenticate { window: usize, single_attempt: bool },
    /// Until each device has its echo or has used all attempts.
    Exchange { exchange: Exchange, window: usize },
    /// Until the run is stopped: devices respond to attestation requests.
    Attest,
}

#[derive(Debug)]
pub(super) struct Worker {
    socket: PacketSocket,
    devices: WorkerDevices,
}

impl Worker {
    pub(super) fn new(socket: PacketSocket, options: &FleetOptions, number: u32, end_index: u32) -> Self {
        Self {
            socket,
            devices: WorkerDevices::new(options, number, end_index),
        }
    }

    pub(super) fn add(&mut self, index: u32, member: Member, family: Family) {
        self.devices.add(index, member, family);
    }

    pub(super) fn power_cycle(&mut self) {
        self.devices.power_cycle();
    }

    pub(super) fn power_cycle_device(&mut self, index: u32) {
        self.devices.power_cycle_device(index);
    }

    pub(super) fn set_attester(&mut self, index: u32, attester: Attester) {
        self.devices.set_attester(index, attester);
    }

    pub(super) fn outcome(&self, index: u32) -> Option<Outcome> {
        self.devices.slot(index).map(|slot| slot.outcome)
    }

    pub(super) fn session(&self, index: u32) -> Option<&Session> {
        self.devices.slot(index)?.device.session()
    }

    pub(super) fn received_echo(&self, index: u32) -> bool {
        self.devices.slot(index).is_some_and(|slot| slot.echo.echoed)
    }

    pub(super) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.devices.report)
    }

    pub(super) fn begin_exchange(&mut self) {
        self.devices.begin_exchange();
    }

    pub(super) fn take_exchange_report(&mut self) -> ExchangeReport {
        std::mem::take(&mut self.devices.exchange_report)
    }

    /// Runs until the goal of all workers is reached, the run is stopped or the deadline has passed: starts devices while
    /// the window has room, processes received frames, handles expired timers, sleeps.
    pub(super) fn run(
        &mut self,
        goal: &Goal,
        stop: &AtomicBool,
        deadline: Instant,
        shared: &SharedCounters,
    ) -> Result<(), PacketSocketError> {
        let started = Instant::now();
        let mut done_after: Option<Duration> = None;
        self.devices.begin(goal);
        self.socket.statistics()?; // resets the counter of earlier drops
        loop {
            self.devices.start_waiting_devices(goal);
            self.flush()?;
            let mut frames = 0;
            while self.receive_one(goal, shared) {
                frames += 1;
                // The reply is sent now, because processing the next frame may include a PUF reading, which would delay
                // the reply.
                self.flush()?;
            }
            while let Some(slot_index) = self.devices.timers.pop_due(boot_ms()) {
                self.devices.on_timer(slot_index, goal, shared);
                if self.devices.batch.is_full() {
                    self.flush()?;
                }
            }
            self.flush()?;
            if done_after.is_none() && self.devices.is_done() {
                done_after = Some(started.elapsed());
                shared.busy_workers.fetch_sub(1, Ordering::Relaxed);
            }
            // Devices of other workers may still need this worker's replies to ARP and neighbor discovery.
            let all_done = done_after.is_some() && shared.busy_workers.load(Ordering::Relaxed) == 0;
            if all_done || stop.load(Ordering::Relaxed) || Instant::now() >= deadline {
                break;
            }
            if frames == 0 {
                let wait_ms = self
                    .devices
                    .timers
                    .next_ms()
                    .map(|at| at.saturating_sub(boot_ms()));
                self.socket
                    .wait(wait_ms.map_or(SLEEP_MAX, Duration::from_millis).min(SLEEP_MAX))?;
            }
        }
        self.devices
            .finish(goal, done_after.unwrap_or_else(|| started.elapsed()));
        self.devices.report.ring_drops += u64::from(self.socket.statistics()?.dropped);
        Ok(())
    }

    fn receive_one(&mut self, goal: &Goal, shared: &SharedCounters) -> bool {
        let Self { socket, devices } = self;
        socket.receive(1, |received| devices.on_frame(&received, goal, shared)) == 1
    }

    fn flush(&mut self) -> Result<(), PacketSocketError> {
        let frames = self.devices.batch.len();
        if frames == 0 {
            return Ok(());
        }
        self.devices.record_send_time(real_ns());
        let accepted = self.socket.send(&mut self.devices.batch)?;
        self.devices.report.not_sent += (frames - accepted) as u64;
        Ok(())
    }
}
