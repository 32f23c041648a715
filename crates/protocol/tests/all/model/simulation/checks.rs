//! Checks at the end of a run.

use linewarden_protocol::device::Phase;
use linewarden_protocol::ids::Mode;

use super::super::enrollment::Enrollment;
use super::{Attack, Simulation};

impl Simulation {
    /// Checks that after the attack every legitimate device is authenticated, and that an off-path attacker has spent
    /// no rows.
    pub(super) fn check_end_state(&mut self) -> Result<(), String> {
        for device_index in 0..self.devices.len() {
            self.statistics.sessions += self.devices[device_index].sessions_opened;
            if self.devices[device_index].revoked {
                self.check_revoked(device_index)?;
            } else {
                self.check_legitimate_device(device_index)?;
            }
        }
        Ok(())
    }

    fn check_revoked(&self, device_index: usize) -> Result<(), String> {
        let has_session = self
            .gateways
            .iter()
            .any(|gateway| gateway.session(device_index, self.now_ms).is_some());
        if has_session {
            return Err(format!(
                "revoked device {} has a session",
                self.devices[device_index].enrollment.device
            ));
        }
        Ok(())
    }

    fn check_legitimate_device(&self, device_index: usize) -> Result<(), String> {
        let simulated = &self.devices[device_index];
        let Enrollment { device, mode, .. } = simulated.enrollment;
        let phase = simulated.machine.phase();
        let session = simulated
            .machine
            .session()
            .filter(|_| simulated.last_opened_ms >= self.quiet_from_ms);
        let Some(session) = session else {
            return Err(format!(
                "legitimate device {device} ({mode:?}) is locked out: {phase:?} at the end of the run"
            ));
        };
        let gateway_session = self.gateways[simulated.gateway].session(device_index, self.now_ms);
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
            .filter(|(row_device, _)| *row_device == device)
            .count();
        if self.attack == Attack::OffPath && mode == Mode::Pool && spent != simulated.sessions_opened {
            return Err(format!(
                "device {device} opened {} sessions, and {spent} of its rows are spent",
                simulated.sessions_opened
            ));
        }
        Ok(())
    }
}
