//! Roaming devices: of two sessions the older one ends, and never the newer one.

use std::collections::HashMap;

use linewarden_protocol::ids::{DeviceId, SessionId};
use linewarden_types::{ReportSessions, SessionReport};

use super::{GATEWAYS, Mechanism, SESSION_LIFETIME_S, STEP_MS, Simulation};

/// The gateway and the time of each accepted session.
#[derive(Default)]
pub(super) struct SessionLocations {
    sessions: HashMap<(DeviceId, [u8; 8]), (usize, u64)>,
}

impl SessionLocations {
    pub(super) fn record_accepted(&mut self, device: DeviceId, tag: [u8; 16], gateway: usize, now_ms: u64) {
        let [session, _] = *tag.as_chunks().0 else {
            return;
        };
        self.sessions.insert((device, session), (gateway, now_ms));
    }

    /// Forgets all sessions: after a suspend of a host, earlier times are not comparable.
    pub(super) fn forget(&mut self) {
        self.sessions.clear();
    }

    /// Checks a closed session: the device must have authenticated at another gateway since, or in the same step.
    pub(super) fn check_closed(
        &self,
        device: DeviceId,
        session: SessionId,
        gateway: usize,
        problem: &mut Option<String>,
    ) {
        let Some((_, began_ms)) = self.sessions.get(&(device, session.to_wire())).copied() else {
            return;
        };
        let is_newer_elsewhere = self.sessions.iter().any(|((other, _), (location, opened_ms))| {
            *other == device && *location != gateway && *opened_ms >= began_ms
        });
        if !is_newer_elsewhere {
            problem.get_or_insert(format!(
                "gateway {} closed a session of device {device} of {began_ms} ms, and no other gateway had a newer one",
                gateway + 1
            ));
        }
    }
}

/// Returns the session reports at `boot_ns` of the gateway's boot-time clock.
pub(super) fn reports(
    ReportSessions { reports, at_ns }: ReportSessions,
    boot_ns: u64,
    without: Option<Mechanism>,
) -> Vec<SessionReport> {
    let report = |report: SessionReport| SessionReport {
        age_ns: match without {
            Some(Mechanism::Age) => 0,
            _ => report.age_ns + (boot_ns - at_ns),
        },
        ..report
    };
    reports.into_iter().map(report).collect()
}

impl Simulation {
    /// After the faults, each device goes from gateway to gateway and back. Checks that the device then has a session only
    /// at the gateway where it authenticated last.
    pub(super) fn expect_one_session_each(&mut self) -> Result<(), String> {
        // Wait until earlier sessions have expired, so that all sessions found below were opened below.
        self.steps(SESSION_LIFETIME_S * 1000 / STEP_MS as u32 + 100)?;
        for device_index in 0..self.devices.len() {
            for gateway in [0, 1, 0] {
                let before = self.devices[device_index].sessions;
                self.begin(device_index, Some(gateway));
                for _ in 0..100 {
                    self.step()?;
                    if self.devices[device_index].sessions > before {
                        break;
                    }
                }
                if self.devices[device_index].sessions == before {
                    // The device is revoked, or has no rows or no slot.
                    break;
                }
                // A gateway reads the feed at least once in 900 ms.
                self.steps(120)?;
                self.expect_session_only_at(device_index, gateway)?;
            }
        }
        Ok(())
    }

    fn expect_session_only_at(&self, device_index: usize, last_gateway: usize) -> Result<(), String> {
        let device = self.devices[device_index].id;
        for process in &self.processes {
            let now_s = process.clock.moment(self.now_ms).boot_s();
            let inner = process.data_plane.0.lock().unwrap();
            let Some(line) = inner.host.store().status(device) else {
                continue;
            };
            let has_session = line.has_session && !line.commit.is_revoked();
            let is_expected = match process.gateway == last_gateway {
                // The session may have expired since, but must not be closed.
                true => has_session,
                false => !has_session || line.session_until_s <= now_s,
            };
            if !is_expected {
                return Err(format!(
                    "device {device} was last at gateway {} of {GATEWAYS}; it has a session at gateway {}: {has_session}",
                    last_gateway + 1,
                    process.gateway + 1
                ));
            }
        }
        Ok(())
    }
}
