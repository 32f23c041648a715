//! Devices that go from gateway to gateway: of two sessions the older ends, and never the newer.

use std::collections::HashMap;

use linewarden_controller::SessionReport;
use linewarden_dataplane::Opening;
use linewarden_protocol::ids::{DeviceId, SessionId};

use super::{GATEWAYS, LEASE_S, Rule, STEP_MS, World};

/// Who accepted which session, and when.
#[derive(Default)]
pub(super) struct Whereabouts {
    sessions: HashMap<(DeviceId, [u8; 8]), (usize, u64)>,
}

impl Whereabouts {
    pub(super) fn accepted(&mut self, device: DeviceId, tag: [u8; 16], gateway: usize, now_ms: u64) {
        let [session, _] = *tag.as_chunks().0 else {
            return;
        };
        self.sessions.insert((device, session), (gateway, now_ms));
    }

    /// A host has been suspended: for the others no time has gone, so what was before is compared with nothing.
    pub(super) fn forget(&mut self) {
        self.sessions.clear();
    }

    /// A gateway has closed a session: the device must have authenticated at another one since, or in the same step.
    pub(super) fn closed(
        &self,
        device: DeviceId,
        session: SessionId,
        gateway: usize,
        problem: &mut Option<String>,
    ) {
        let Some((_, began_ms)) = self.sessions.get(&(device, session.to_wire())).copied() else {
            return;
        };
        let is_newer_elsewhere = self
            .sessions
            .iter()
            .any(|((other, _), (at, at_ms))| *other == device && *at != gateway && *at_ms >= began_ms);
        if !is_newer_elsewhere {
            problem.get_or_insert(format!(
                "gateway {} closed a session of device {device} of {began_ms} ms, and there was no newer one elsewhere",
                gateway + 1
            ));
        }
    }
}

/// At `boot_ns` of the gateway's boot-time clock.
pub(super) fn reports(openings: &[Opening], boot_ns: u64, without: Option<Rule>) -> Vec<SessionReport> {
    let report = |opening: &Opening| SessionReport {
        message: opening.response,
        loc: opening.loc,
        age_ns: match without {
            Some(Rule::Age) => 0,
            _ => boot_ns - opening.began_ns,
        },
    };
    openings.iter().map(report).collect()
}

impl World {
    /// Once all is calm each device goes from gateway to gateway and back: it has a session at the last one only.
    pub(super) fn expect_one_session_each(&mut self) -> Result<(), String> {
        // Sessions of before are over: what is found was opened here.
        self.steps(LEASE_S * 1000 / STEP_MS as u32 + 100)?;
        for station in 0..self.stations.len() {
            for gateway in [0, 1, 0] {
                let before = self.stations[station].sessions;
                self.begin(station, Some(gateway));
                for _ in 0..100 {
                    self.step()?;
                    if self.stations[station].sessions > before {
                        break;
                    }
                }
                if self.stations[station].sessions == before {
                    // Revoked, without rows, or without a place.
                    break;
                }
                // The feed is asked every 900 ms at least.
                self.steps(120)?;
                self.expect_session_only_at(station, gateway)?;
            }
        }
        Ok(())
    }

    fn expect_session_only_at(&self, station: usize, last: usize) -> Result<(), String> {
        let device = self.stations[station].id;
        for process in &self.processes {
            let now_s = process.clock.moment(self.now_ms).boot_s();
            let inner = process.plane.0.lock().unwrap();
            let Some(line) = inner.host.store().status(device) else {
                continue;
            };
            let has_session = line.has_session && !line.commit.is_revoked();
            let is_right = match process.gateway == last {
                // Its lease may have ended since, but nobody has closed it.
                true => has_session,
                false => !has_session || line.lease_until_s <= now_s,
            };
            if !is_right {
                return Err(format!(
                    "device {device} was last at gateway {} of {GATEWAYS}; it has a session at gateway {}: {has_session}",
                    last + 1,
                    process.gateway + 1
                ));
            }
        }
        Ok(())
    }
}
