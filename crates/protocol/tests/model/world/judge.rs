//! What must hold when a run is over.

use linewarden_protocol::device::Phase;
use linewarden_protocol::ids::Mode;

use super::super::enrolment::Enrolment;
use super::{Attack, World};

impl World {
    /// After the quiet: every honest device is in, and nobody paid for what an outsider sent.
    pub(super) fn judge_the_end(&mut self) -> Result<(), String> {
        for number in 0..self.stations.len() {
            self.tally.sessions += self.stations[number].sessions_opened;
            if self.stations[number].revoked {
                self.judge_revoked(number)?;
            } else {
                self.judge_honest(number)?;
            }
        }
        Ok(())
    }

    fn judge_revoked(&self, number: usize) -> Result<(), String> {
        let open = self
            .gateways
            .iter()
            .any(|gateway| gateway.session(number, self.now_ms).is_some());
        if open {
            return Err(format!(
                "revoked device {} has a session",
                self.stations[number].enrolment.device
            ));
        }
        Ok(())
    }

    fn judge_honest(&self, number: usize) -> Result<(), String> {
        let station = &self.stations[number];
        let Enrolment { device, mode, .. } = station.enrolment;
        let phase = station.machine.phase();
        let session = station
            .machine
            .session()
            .filter(|_| station.last_opened_ms >= self.quiet_from_ms);
        let Some(session) = session else {
            return Err(format!(
                "honest device {device} ({mode:?}) is locked out: {phase:?} at the end of the quiet"
            ));
        };
        let held = self.gateways[station.gateway].session(number, self.now_ms);
        if phase == Phase::Authenticated && held != Some(session.id.to_wire()) {
            return Err(format!(
                "device {device} and its gateway do not agree on the session"
            ));
        }
        let spent = self
            .ledger
            .borrow()
            .spent
            .iter()
            .filter(|(of, _)| *of == device)
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
