//! What must hold of verdicts once all is calm.

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Reopen, State};

use super::fleet::EVERY_S;
use super::{GATEWAYS, STEP_MS, World};

/// In so many steps a device that was asked this often is decided about, and all gateways have heard of it.
fn steps_of_rounds(rounds: u32) -> u32 {
    (rounds + 2) * EVERY_S * 1_000 / STEP_MS as u32
}

impl World {
    /// All devices run what they are to run for a while now: each is well. One that is changed is shut out, and comes back when
    /// it is mended.
    pub(super) fn expect_true_verdicts(&mut self) -> Result<(), String> {
        if self.fleet.policy.reopen == Reopen::ByCommand {
            for station in 0..self.stations.len() {
                self.let_in(self.stations[station].id);
            }
            self.steps(steps_of_rounds(2))?;
        }
        let mut victim = None;
        for station in 0..self.stations.len() {
            if self.stations[station].revoked {
                continue;
            }
            if self.is_quarantined(station) {
                let device = self.stations[station].id;
                return Err(format!(
                    "device {device} is well, and stays in quarantine: {}",
                    self.fleet.book.told(device)
                ));
            }
            let device = self.stations[station].id;
            if !self.fleet.book.has_proven(device, self.now_ms - 3_000) {
                continue;
            }
            victim = Some(station);
            if self.state(station) != Some(State::Ok) {
                return Err(format!(
                    "device {device} has proven itself, and is {:?}",
                    self.state(station)
                ));
            }
        }
        match victim {
            Some(victim) => self.expect_change_to_be_seen(victim),
            None => Ok(()),
        }
    }

    /// When nobody has asked for a while, no verdict counts as one of now.
    pub(super) fn expect_old_verdicts_to_be_old(&mut self) -> Result<(), String> {
        let good_for_s = self.fleet.policy.good_for_s();
        let now_s = self.wall_s() + good_for_s + 1;
        for gateway in 0..GATEWAYS {
            let gateway = GatewayId(gateway as u32 + 1);
            let rounds = self.office.registry().rounds(Some(gateway), 1);
            let rounds = self.runtime.block_on(rounds).unwrap();
            let fresh = rounds
                .iter()
                .find(|round| now_s.abs_diff(round.ended_at_s) <= good_for_s);
            if let Some(round) = fresh {
                return Err(format!(
                    "round {} of gateway {gateway} is said to have ended at {} s: at {now_s} s its verdicts still count",
                    round.number, round.ended_at_s
                ));
            }
        }
        Ok(())
    }

    fn is_quarantined(&self, station: usize) -> bool {
        let info = self
            .runtime
            .block_on(self.office.registry().get(self.stations[station].id));
        info.unwrap().quarantine.is_some()
    }

    fn state(&self, station: usize) -> Option<State> {
        let device = self.stations[station].id;
        let appraisal = self.runtime.block_on(self.office.registry().appraisal(device));
        appraisal.unwrap().map(|appraisal| appraisal.state)
    }

    fn has_session(&self, station: usize) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.plane.sessions(&self.stations)[station].is_some())
    }

    fn expect_change_to_be_seen(&mut self, victim: usize) -> Result<(), String> {
        let device = self.stations[victim].id;
        let policy = self.fleet.policy;
        self.tamper(victim);
        self.steps(steps_of_rounds(policy.silent))?;
        if !self.is_quarantined(victim) {
            return Err(format!(
                "device {device} was changed and is {:?}, not in quarantine",
                self.state(victim)
            ));
        }
        if self.has_session(victim) {
            return Err(format!("device {device} is in quarantine and has a session"));
        }
        for gateway in 0..GATEWAYS {
            let before = self.stations[victim].sessions;
            self.begin(victim, Some(gateway));
            self.steps(50)?;
            if self.stations[victim].sessions > before {
                return Err(format!("device {device} is in quarantine and was served"));
            }
        }
        self.mend(victim);
        self.steps(steps_of_rounds(1))?;
        if policy.reopen == Reopen::ByCommand {
            if !self.is_quarantined(victim) {
                return Err(format!("device {device} was let in without a command"));
            }
            self.let_in(device);
            self.steps(steps_of_rounds(1))?;
        }
        if self.stations[victim].has_session() && !self.has_session(victim) {
            // Another device has taken its place in the data plane, which it cannot know: it comes again.
            self.begin(victim, None);
            self.steps(steps_of_rounds(1))?;
        }
        match (self.is_quarantined(victim), self.state(victim)) {
            (false, Some(State::Ok)) => Ok(()),
            (is_out, state) => Err(format!(
                "device {device} is mended: it is {state:?}, in quarantine {is_out}: {}",
                self.fleet.book.told(device)
            )),
        }
    }
}
