//! Roaming devices (LAP/1 1.4.11): sessions opened at this gateway are reported, and older sessions end when the device
//! has opened another session at another gateway. Authentication does not wait for the reports.

use std::collections::{HashMap, VecDeque};

use linewarden_dataplane::SessionOpening;
use linewarden_protocol::ids::{DeviceId, GatewayId, SessionId};
use linewarden_types::{NewerSession, SessionReportResult};

use super::Node;
use crate::audit::{AuditEvent, CloseReason, session_name};

/// Maximum number of reports in a request.
const REPORTS_PER_REQUEST: usize = 256;
/// Maximum number of waiting reports. Above this number, the oldest report is dropped; older sessions of its device end
/// only when they expire.
const WAITING_MAX: usize = 65_536;

/// Sessions that are not reported yet: the newest session of each device.
#[derive(Debug, Default)]
pub(super) struct SessionReports {
    waiting: HashMap<DeviceId, SessionOpening>,
    /// The devices of the waiting reports, in the order in which the reports arrived.
    order: VecDeque<DeviceId>,
    /// The reports in the request in flight.
    in_flight: Vec<(DeviceId, SessionOpening)>,
}

impl SessionReports {
    /// Adds a session; returns whether an older report was dropped.
    fn push(&mut self, device: DeviceId, opening: SessionOpening) -> bool {
        if self.waiting.insert(device, opening).is_none() {
            self.order.push_back(device);
        }
        let mut dropped = false;
        while self.waiting.len() > WAITING_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            dropped |= self.waiting.remove(&oldest).is_some();
        }
        dropped
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves waiting reports into the next request; returns the reports of this request.
    pub(super) fn next_request(&mut self) -> Vec<SessionOpening> {
        while self.in_flight.len() < REPORTS_PER_REQUEST
            && let Some(device) = self.order.pop_front()
        {
            let opening = self.waiting.remove(&device);
            self.in_flight.extend(opening.map(|opening| (device, opening)));
        }
        self.in_flight.iter().map(|(_, opening)| *opening).collect()
    }

    fn take_in_flight(&mut self) -> Vec<(DeviceId, SessionOpening)> {
        std::mem::take(&mut self.in_flight)
    }

    /// Queues the reports of a failed request again, at the front, unless a newer report of the device waits.
    fn requeue(&mut self) {
        for (device, opening) in std::mem::take(&mut self.in_flight).into_iter().rev() {
            if let std::collections::hash_map::Entry::Vacant(vacant) = self.waiting.entry(device) {
                vacant.insert(opening);
                self.order.push_front(device);
            }
        }
    }
}

impl Node {
    pub(super) fn record_opening(&mut self, device: DeviceId, opening: SessionOpening) {
        if let Some(entry) = self.devices.get_mut(&device) {
            entry.last_session = Some((opening.session, opening.opened_ns));
        }
        if self.session_reports.push(device, opening) {
            self.status.reports_dropped += 1;
        }
    }

    /// Handles the results of reports; `None` after a failure. The ages in the results end at `at_ns` of the boot-time
    /// clock.
    pub(super) fn handle_report_results(&mut self, results: Option<Vec<SessionReportResult>>, at_ns: u64) {
        let Some(results) = results else {
            self.session_reports.requeue();
            return;
        };
        for ((device, _), result) in self.session_reports.take_in_flight().into_iter().zip(results) {
            match result {
                SessionReportResult::Newest => {}
                // Renewals are not reported, so the current session is checked, not the reported session.
                SessionReportResult::Superseded { by: gateway, age_ns } => {
                    let newer = NewerSession {
                        device,
                        gateway,
                        age_ns,
                    };
                    self.handle_newer_session(&newer, at_ns);
                }
                SessionReportResult::Rejected(reason) => {
                    self.status.reports_refused += 1;
                    tracing::error!(
                        device_id = %device,
                        reason,
                        action = "no action if the device renewed its key or was enrolled again at this time; otherwise examine this machine: the gateway reports a session that the device has not proved",
                        "controller rejected the report of a session; older sessions of the device at other gateways end only when they expire"
                    );
                }
            }
        }
    }

    /// Handles a session that the device has opened at another gateway, `age_ns` before `at_ns` of the boot-time clock.
    /// Closes an older session at this gateway.
    pub(super) fn handle_newer_session(&mut self, newer: &NewerSession, at_ns: u64) {
        let opened_elsewhere_ns = at_ns.saturating_sub(newer.age_ns);
        let device = newer.device;
        let Some(view) = self.data_plane.session(device) else {
            return self.stop_attesting(device);
        };
        let opened = self.devices.get(&device).and_then(|entry| entry.last_session);
        let opened_here_ns = match opened {
            Some((session, opened_here_ns)) if session == view.id => opened_here_ns,
            // The session was renewed, or opened before this process started: its expiry shows its start, to the
            // second.
            _ => view.proven_before_ns,
        };
        if is_superseded(opened_here_ns, opened_elsewhere_ns) {
            self.stop_attesting(device);
            self.close_session(device, view.id, newer.gateway);
        }
    }

    fn close_session(&mut self, device: DeviceId, session: SessionId, newer_gateway: GatewayId) {
        // A session that was renewed or replaced meanwhile stays.
        if self.data_plane.close_session(device, session) != Ok(true) {
            return;
        }
        self.status.sessions_closed += 1;
        self.audit.record(AuditEvent::SessionClosed {
            device,
            session: session_name(session),
            reason: CloseReason::NewerSession { newer_gateway },
        });
        tracing::debug!(device_id = %device, gateway_id = %newer_gateway, "session closed: the device has a newer one at another gateway");
    }
}

/// Whether a session at this gateway is superseded by a session at another gateway. Of two sessions with the same
/// start, the session that the controller has recorded stays: the controller notifies only the other gateway.
fn is_superseded(opened_here_ns: u64, opened_elsewhere_ns: u64) -> bool {
    opened_here_ns <= opened_elsewhere_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_sessions_with_the_same_start_the_recorded_one_stays() {
        assert!(is_superseded(6, 7) && is_superseded(7, 7) && !is_superseded(8, 7));
    }

    fn opening(number: u64) -> SessionOpening {
        SessionOpening {
            session: SessionId::from_wire(number.to_be_bytes()).unwrap(),
            opened_ns: number,
            response: [0; 64],
            loc: [0; 8],
        }
    }

    fn numbers(openings: &[SessionOpening]) -> Vec<u64> {
        openings.iter().map(|opening| opening.opened_ns).collect()
    }

    #[test]
    fn newest_session_of_each_device_is_reported_until_a_report_succeeds() {
        let mut reports = SessionReports::default();
        for (device, number) in [(1, 10), (2, 11), (1, 12)] {
            assert!(!reports.push(DeviceId(device), opening(number)));
        }
        assert_eq!(numbers(&reports.next_request()), [12, 11]);
        assert!(reports.is_empty());
        // The device has opened another session while the request was in flight.
        reports.push(DeviceId(2), opening(13));
        reports.push(DeviceId(3), opening(14));
        reports.requeue();
        assert_eq!(numbers(&reports.next_request()), [12, 13, 14]);
        assert_eq!(reports.take_in_flight().len(), 3);
        assert!(reports.next_request().is_empty() && reports.is_empty());
    }

    #[test]
    fn a_flood_is_bounded_and_the_oldest_entries_are_dropped() {
        let mut reports = SessionReports::default();
        let count = WAITING_MAX as u64 + 10;
        let dropped = (1..=count).filter(|number| reports.push(DeviceId(*number), opening(*number)));
        assert_eq!(dropped.count(), 10);
        let repeats = (1..=3 * count).filter(|_| reports.push(DeviceId(count), opening(count)));
        assert_eq!(repeats.count(), 0);
        assert_eq!(reports.order.len(), WAITING_MAX);
        assert_eq!(numbers(&reports.next_request()), (11..=266).collect::<Vec<_>>());
    }
}
