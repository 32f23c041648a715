//! Checks at the end of a run.

use linewarden_protocol::device::Phase;
use linewarden_protocol::ids::Mode;

use super::super::enrollment::Enrollment;
use super::{Attack, Simulation};

impl Simulation {
    /// Checks that after the attack every legitimate device is authenticated, and that an off-path attacker has spent
    /// no rows.
    pub(super) fn check_end_state(&mut self) -> Result<(), String> {
        for number in 0..self.stations.len() {
            self.statistics.sessions += self.stations[number].sessions_opened;
            if self.stations[number].revoked {
                self.check_revoked(number)?;
            } else {
                self.check_legitimate_device(number)?;
            }
        }
        Ok(())
    }

    fn check_revoked(&self, number: usize) -> Result<(), String> {
        let has_session = self
            .gateways
            .iter()
            .any(|gateway| gateway.session(number, self.now_ms).is_some());
        if has_session {
            return Err(format!(
                "revoked device {} has a session",
                self.stations[number].enrollment.device
            ));
        }
        Ok(())
    }

    fn check_legitimate_device(&self, number: usize) -> Result<(), String> {
        let station = &self.stations[number];
        let Enrollment { device, mode, .. } = station.enrollment;
        let phase = station.machine.phase();
        let session = station
            .machine
            .session()
            .filter(|_| station.last_opened_ms >= self.quiet_from_ms);
        let Some(session) = session else {
            return Err(format!(
                "legitimate device {device} ({mode:?}) is locked out: {phase:?} at the end of the run"
            ));
        };
        let gateway_session = self.gateways[station.gateway].session(number, self.now_ms);
        if phase == Phase::Authenticated && gateway_session != Some(session.id.to_wire()) {
            return Err(format!(
                "device {device} and its gateway do not agree on the session"
            ));
        }
        let spent = self
            .invariants
            .borrow()
            .spent
            .iter()
            .filter(|(spender, _)| *spender == device)
            .count();
        if self.attack == Attack::OffPath && mode == Mode::Pool && spent != station.sessions_opened {
            return Err(format!(
                "device {device} opened {} sessions, and {spent} of its rows are spent",
                station.sessions_opened
            ));
        }
        Ok(())
    }
}
