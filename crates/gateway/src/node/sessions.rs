//! Roaming devices (LAP/1 1.4.11): sessions opened at this gateway are reported, and older sessions end when the device
//! has opened another session at another gateway. Authentication does not wait for the reports.
//!
//! ```text
//!  opened ──► waiting ──► in flight ──► reported
//!               ▲             │
//!               └─────────────┘ the request failed, and no newer session of the device waits
//! ```

use std::collections::{HashMap, VecDeque};

use linewarden_dataplane::SessionOpening;
use linewarden_protocol::ids::{DeviceId, GatewayId, SessionId};
use linewarden_types::{
    ControllerRequest, Kind, LinkError, NewerSession, ReportSessions, SessionReport, SessionReportResult,
};

use super::channel::Channel;
use super::context::Context;
use super::status::Status;
use crate::audit::{AuditEvent, CloseReason, session_name};

/// Maximum number of reports in a request.
const REPORTS_PER_REQUEST: usize = 256;
/// Maximum number of waiting reports. Above this number, the oldest report is dropped; older sessions of its device end
/// only when they expire.
const WAITING_MAX: usize = 65_536;

/// Reports of the sessions that were opened at this gateway, and sessions that were closed because of sessions at other
/// gateways.
#[derive(Debug)]
pub(super) struct SessionReports {
    channel: Channel,
    queue: ReportQueue,
    closed: u64,
    dropped: u64,
    refused: u64,
}

impl Default for SessionReports {
    fn default() -> Self {
        Self {
            channel: Channel::new(Kind::ReportSessions),
            queue: ReportQueue::default(),
            closed: 0,
            dropped: 0,
            refused: 0,
        }
    }
}

impl SessionReports {
    pub(super) fn push(&mut self, device: DeviceId, opening: SessionOpening) {
        self.dropped += u64::from(self.queue.push(device, opening));
    }

    pub(super) fn request(&mut self, context: &Context) -> Option<ControllerRequest> {
        (!self.queue.is_empty() && self.channel.try_send(context.clock))
            .then(|| self.queue.next_request(context.clock.boot_ns).into())
    }

    /// The time at which the ages in the response to the last request end, boot-time clock, ns.
    pub(super) fn sent_ns(&self) -> u64 {
        self.channel.sent_ns
    }

    /// Handles the results of reports; returns sessions at other gateways that are newer than the reported sessions.
    pub(super) fn accept(
        &mut self,
        result: Result<Vec<SessionReportResult>, LinkError>,
        context: &mut Context,
    ) -> Vec<NewerSession> {
        let Some(results) = context.receive(&mut self.channel, result) else {
            self.queue.requeue();
            return Vec::new();
        };
        let mut newer = Vec::new();
        for ((device, _), result) in self.queue.take_in_flight().into_iter().zip(results) {
            match result {
                SessionReportResult::Newest => {}
                SessionReportResult::Superseded { by: gateway, age_ns } => newer.push(NewerSession {
                    device,
                    gateway,
                    age_ns,
                }),
                SessionReportResult::Rejected(reason) => {
                    self.refused += 1;
                    tracing::error!(
                        device_id = %device,
                        reason,
                        action = "no action if the device renewed its key or was enrolled again at this time; otherwise examine this machine: the gateway reports a session that the device has not proved",
                        "controller rejected the report of a session; older sessions of the device at other gateways end only when they expire"
                    );
                }
            }
        }
        newer
    }

    /// Handles a session that the device has opened at another gateway, `age_ns` before `at_ns` of the boot-time clock.
    /// Closes an older session at this gateway. Returns whether the device's newest session is at the other gateway.
    /// `last_recorded` is the last recorded session at this gateway, with its start.
    pub(super) fn handle_newer_session(
        &mut self,
        newer: &NewerSession,
        at_ns: u64,
        last_recorded: Option<(SessionId, u64)>,
        context: &mut Context,
    ) -> bool {
        // Renewals are not reported, so the current session is checked, not the reported session.
        let Some(view) = context.data_plane.session(newer.device) else {
            return true;
        };
        let opened_here_ns = match last_recorded {
            Some((session, opened_here_ns)) if session == view.id => opened_here_ns,
            // The session was renewed, or opened before this process started: its expiry shows its start, to the
            // second.
            _ => view.proven_before_ns,
        };
        let opened_elsewhere_ns = at_ns.saturating_sub(newer.age_ns);
        let is_newer = is_superseded(opened_here_ns, opened_elsewhere_ns);
        if is_newer {
            self.close(newer.device, view.id, newer.gateway, context);
        }
        is_newer
    }

    fn close(
        &mut self,
        device: DeviceId,
        session: SessionId,
        newer_gateway: GatewayId,
        context: &mut Context,
    ) {
        // A session that was renewed or replaced meanwhile stays.
        if context.data_plane.close_session(device, session) != Ok(true) {
            return;
        }
        self.closed += 1;
        context.audit.record(AuditEvent::SessionClosed {
            device,
            session: session_name(session),
            reason: CloseReason::NewerSession { newer_gateway },
        });
        tracing::debug!(device_id = %device, gateway_id = %newer_gateway, "session closed: the device has a newer one at another gateway");
    }

    /// Invalidates the report in flight after a restore of the registry.
    pub(super) fn invalidate(&mut self) {
        self.channel.invalidate();
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.sessions_closed = self.closed;
        status.reports_dropped = self.dropped;
        status.reports_refused = self.refused;
    }
}

/// Sessions that are not reported yet: the newest session of each device.
#[derive(Debug, Default)]
struct ReportQueue {
    waiting: HashMap<DeviceId, SessionOpening>,
    /// The devices of the waiting reports, in the order in which the reports arrived.
    order: VecDeque<DeviceId>,
    /// The reports in the request in flight.
    in_flight: Vec<(DeviceId, SessionOpening)>,
}

impl ReportQueue {
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

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves waiting reports into the next request.
    fn next_request(&mut self, boot_ns: u64) -> ReportSessions {
        while self.in_flight.len() < REPORTS_PER_REQUEST
            && let Some(device) = self.order.pop_front()
        {
            let opening = self.waiting.remove(&device);
            self.in_flight.extend(opening.map(|opening| (device, opening)));
        }
        let reports = self.in_flight.iter().map(|(_, opening)| SessionReport {
            message: opening.response,
            loc: opening.loc,
            age_ns: boot_ns.saturating_sub(opening.opened_ns),
        });
        ReportSessions {
            reports: reports.collect(),
            at_ns: boot_ns,
        }
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

    const NOW_NS: u64 = 1 << 40;

    /// The numbers of the sessions in the next request.
    fn next_numbers(queue: &mut ReportQueue) -> Vec<u64> {
        let ReportSessions { reports, at_ns } = queue.next_request(NOW_NS);
        reports.iter().map(|report| at_ns - report.age_ns).collect()
    }

    #[test]
    fn newest_session_of_each_device_is_reported_until_a_report_succeeds() {
        let mut reports = ReportQueue::default();
        for (device, number) in [(1, 10), (2, 11), (1, 12)] {
            assert!(!reports.push(DeviceId(device), opening(number)));
        }
        assert_eq!(next_numbers(&mut reports), [12, 11]);
        assert!(reports.is_empty());
        // The device has opened another session while the request was in flight.
        reports.push(DeviceId(2), opening(13));
        reports.push(DeviceId(3), opening(14));
        reports.requeue();
        assert_eq!(next_numbers(&mut reports), [12, 13, 14]);
        assert_eq!(reports.take_in_flight().len(), 3);
        assert!(next_numbers(&mut reports).is_empty() && reports.is_empty());
    }

    #[test]
    fn a_flood_is_bounded_and_the_oldest_entries_are_dropped() {
        let mut reports = ReportQueue::default();
        let count = WAITING_MAX as u64 + 10;
        let dropped = (1..=count).filter(|number| reports.push(DeviceId(*number), opening(*number)));
        assert_eq!(dropped.count(), 10);
        let repeats = (1..=3 * count).filter(|_| reports.push(DeviceId(count), opening(count)));
        assert_eq!(repeats.count(), 0);
        assert_eq!(reports.order.len(), WAITING_MAX);
        assert_eq!(next_numbers(&mut reports), (11..=266).collect::<Vec<_>>());
    }
}
