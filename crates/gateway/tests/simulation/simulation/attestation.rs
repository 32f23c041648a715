//! Invariants of attestation after the faults.

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::AttestationState;
use linewarden_types::ReleaseMode;

use super::fleet::EVERY_S;
use super::{GATEWAYS, STEP_MS, Simulation};

/// Number of steps after which `rounds` rounds of all devices are appraised, and all gateways have read the results.
fn steps_of_rounds(rounds: u32) -> u32 {
    (rounds + 2) * EVERY_S * 1_000 / STEP_MS as u32
}

impl Simulation {
    /// Checks that each device is compliant after all devices have run an allowed configuration for a while, and that a
    /// changed device is quarantined, and is released after its remediation.
    pub(super) fn expect_true_states(&mut self) -> Result<(), String> {
        if self.fleet.policy.release_mode == ReleaseMode::Manual {
            for device_index in 0..self.devices.len() {
                self.release(self.devices[device_index].id);
            }
            self.steps(steps_of_rounds(2))?;
        }
        let mut victim = None;
        for device_index in 0..self.devices.len() {
            if self.devices[device_index].revoked {
                continue;
            }
            if self.is_quarantined(device_index) {
                let device = self.devices[device_index].id;
                return Err(format!(
                    "device {device} is compliant, and stays in quarantine: {}",
                    self.fleet.rounds.summary(device)
                ));
            }
            let device = self.devices[device_index].id;
            if !self.fleet.rounds.has_proven(device, self.now_ms - 3_000) {
                continue;
            }
            victim = Some(device_index);
            if self.state(device_index) != Some(AttestationState::Ok) {
                return Err(format!(
                    "device {device} has sent a valid proof, and is {:?}",
                    self.state(device_index)
                ));
            }
        }
        match victim {
            Some(victim) => self.expect_change_to_be_seen(victim),
            None => Ok(()),
        }
    }

    /// Checks that no outcome counts as recent after a while without rounds.
    pub(super) fn expect_outcomes_to_expire(&mut self) -> Result<(), String> {
        let validity_s = self.fleet.policy.validity_s();
        let now_s = self.wall_s() + validity_s + 1;
        for gateway in 0..GATEWAYS {
            let gateway = GatewayId(gateway as u32 + 1);
            let rounds = self.controller_host.registry().rounds(Some(gateway), 1);
            let rounds = self.runtime.block_on(rounds).unwrap();
            let recent = rounds
                .iter()
                .find(|round| now_s.abs_diff(round.ended_at_s) <= validity_s);
            if let Some(round) = recent {
                return Err(format!(
                    "round {} of gateway {gateway} is recorded to have ended at {} s: at {now_s} s its outcomes still count",
                    round.number, round.ended_at_s
                ));
            }
        }
        Ok(())
    }

    fn is_quarantined(&self, device_index: usize) -> bool {
        let info = self
            .runtime
            .block_on(self.controller_host.registry().get(self.devices[device_index].id));
        info.unwrap().quarantine.is_some()
    }

    fn state(&self, device_index: usize) -> Option<AttestationState> {
        let device = self.devices[device_index].id;
        let appraisal = self
            .runtime
            .block_on(self.controller_host.registry().appraisal(device));
        appraisal.unwrap().map(|appraisal| appraisal.state)
    }

    fn has_session(&self, device_index: usize) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.data_plane.sessions(&self.devices)[device_index].is_some())
    }

    fn expect_change_to_be_seen(&mut self, victim: usize) -> Result<(), String> {
        let device = self.devices[victim].id;
        let policy = self.fleet.policy;
        self.tamper(victim);
        self.steps(steps_of_rounds(policy.missed_limit))?;
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
            let before = self.devices[victim].sessions;
            self.begin(victim, Some(gateway));
            self.steps(50)?;
            if self.devices[victim].sessions > before {
                return Err(format!("device {device} is in quarantine and was served"));
            }
        }
        self.remediate(victim);
        self.steps(steps_of_rounds(1))?;
        if policy.release_mode == ReleaseMode::Manual {
            if !self.is_quarantined(victim) {
                return Err(format!("device {device} was released without a command"));
            }
            self.release(device);
            self.steps(steps_of_rounds(1))?;
        }
        if self.devices[victim].has_session() && !self.has_session(victim) {
            // Another device has taken this device's slot in the data plane. The device cannot know that, so the
            // simulation starts a handshake.
            self.begin(victim, None);
            self.steps(steps_of_rounds(1))?;
        }
        match (self.is_quarantined(victim), self.state(victim)) {
            (false, Some(AttestationState::Ok)) => Ok(()),
            (is_quarantined, state) => Err(format!(
                "device {device} is remediated: it is {state:?}, in quarantine {is_quarantined}: {}",
                self.fleet.rounds.summary(device)
            )),
        }
    }
}
