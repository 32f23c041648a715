//! Devices that go from gateway to gateway (LAP/1 1.4.11): sessions opened here are reported, older ones here end when
//! the device has opened another one elsewhere. Nothing waits for either.

use std::collections::{HashMap, VecDeque};

use linewarden_controller::{Elsewhere, Reported};
use linewarden_dataplane::Opening;
use linewarden_protocol::ids::{DeviceId, GatewayId, SessionId};

use super::Node;
use crate::audit::{CloseReason, Happening, session_name};

/// Reports in one question.
const REPORTS_PER_ASK: usize = 256;
/// Reports that may wait; of further ones the oldest is dropped, and what it would have ended ends with its lease.
const WAITING_MAX: usize = 65_536;

/// Sessions that the controller has not heard of yet: of each device the newest.
#[derive(Debug, Default)]
pub(super) struct Reports {
    waiting: HashMap<DeviceId, Opening>,
    /// In the order in which they came.
    order: VecDeque<DeviceId>,
    /// In the question that is out.
    asked: Vec<(DeviceId, Opening)>,
}

impl Reports {
    /// A session was opened. Whether an older report had to be dropped for it.
    fn push(&mut self, device: DeviceId, opening: Opening) -> bool {
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

    /// The next question.
    pub(super) fn ask(&mut self) -> Vec<Opening> {
        while self.asked.len() < REPORTS_PER_ASK
            && let Some(device) = self.order.pop_front()
        {
            let opening = self.waiting.remove(&device);
            self.asked.extend(opening.map(|opening| (device, opening)));
        }
        self.asked.iter().map(|(_, opening)| *opening).collect()
    }

    fn answered(&mut self) -> Vec<(DeviceId, Opening)> {
        std::mem::take(&mut self.asked)
    }

    /// No answer came: they are asked again, in front, unless a newer one waits.
    fn ask_again(&mut self) {
        for (device, opening) in std::mem::take(&mut self.asked).into_iter().rev() {
            if let std::collections::hash_map::Entry::Vacant(place) = self.waiting.entry(device) {
                place.insert(opening);
                self.order.push_front(device);
            }
        }
    }
}

impl Node {
    pub(super) fn note_opening(&mut self, device: DeviceId, opening: Opening) {
        if let Some(held) = self.devices.get_mut(&device) {
            held.opened = Some((opening.session, opening.began_ns));
        }
        if self.reports.push(device, opening) {
            self.status.reports_dropped += 1;
        }
    }

    /// Takes the controller's answers to reports; `None`: there are none.
    /// `at_ns` is when ages in them count from, boot-time clock.
    pub(super) fn take_reported(&mut self, answers: Option<Vec<Reported>>, at_ns: u64) {
        let Some(answers) = answers else {
            self.reports.ask_again();
            return;
        };
        for ((device, _), answer) in self.reports.answered().into_iter().zip(answers) {
            match answer {
                Reported::Newest => {}
                // It may have been renewed since, which is not reported: what is here now is looked at.
                Reported::Older { at, age_ns } => {
                    let elsewhere = Elsewhere {
                        device,
                        gateway: at,
                        age_ns,
                    };
                    self.take_elsewhere(&elsewhere, at_ns);
                }
                Reported::Refused(why) => {
                    self.status.reports_refused += 1;
                    tracing::error!(%device, why, "the controller refuses the report of a session");
                }
            }
        }
    }

    /// The device has opened a session at another gateway, so long before `at_ns` of the boot-time clock: one that it has here
    /// is over, unless it may be newer.
    pub(super) fn take_elsewhere(&mut self, elsewhere: &Elsewhere, at_ns: u64) {
        let began_ns = at_ns.saturating_sub(elsewhere.age_ns);
        let device = elsewhere.device;
        let Some(view) = self.plane.session(device) else {
            return self.attest_elsewhere(device);
        };
        let opened = self.devices.get(&device).and_then(|held| held.opened);
        let here_ns = match opened {
            Some((session, here_ns)) if session == view.id => here_ns,
            // Renewed since, or opened before this process began: the lease tells when, to the second.
            _ => view.proven_before_ns,
        };
        if is_over(here_ns, began_ns) {
            self.attest_elsewhere(device);
            self.close_session(device, view.id, elsewhere.gateway);
        }
    }

    fn close_session(&mut self, device: DeviceId, session: SessionId, newer_at: GatewayId) {
        // One that was renewed or replaced in between stays.
        if self.plane.close_session(device, session) != Ok(true) {
            return;
        }
        self.status.sessions_closed += 1;
        self.trail.note(Happening::SessionClosed {
            device,
            session: session_name(session),
            reason: CloseReason::Elsewhere { newer_at },
        });
        tracing::debug!(%device, %newer_at, "its session here is over: it has a newer one elsewhere");
    }
}

/// Whether a session that began here then is over for one that is noted elsewhere. Of equal beginnings the one that was
/// noted stays: its gateway is told nothing, and this one that its own is older.
fn is_over(here_ns: u64, elsewhere_ns: u64) -> bool {
    here_ns <= elsewhere_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_beginnings_the_one_that_is_noted_stays() {
        assert!(is_over(6, 7) && is_over(7, 7) && !is_over(8, 7));
    }

    fn opening(number: u64) -> Opening {
        Opening {
            session: SessionId::from_wire(number.to_be_bytes()).unwrap(),
            began_ns: number,
            response: [0; 64],
            loc: [0; 8],
        }
    }

    fn numbers(openings: &[Opening]) -> Vec<u64> {
        openings.iter().map(|opening| opening.began_ns).collect()
    }

    #[test]
    fn of_each_device_the_newest_is_reported_until_it_is_answered() {
        let mut reports = Reports::default();
        for (device, number) in [(1, 10), (2, 11), (1, 12)] {
            assert!(!reports.push(DeviceId(device), opening(number)));
        }
        assert_eq!(numbers(&reports.ask()), [12, 11]);
        assert!(reports.is_empty());
        // While the question is out a device has opened another one.
        reports.push(DeviceId(2), opening(13));
        reports.push(DeviceId(3), opening(14));
        reports.ask_again();
        assert_eq!(numbers(&reports.ask()), [12, 13, 14]);
        assert_eq!(reports.answered().len(), 3);
        assert!(reports.ask().is_empty() && reports.is_empty());
    }

    #[test]
    fn a_flood_is_bounded_and_the_oldest_go() {
        let mut reports = Reports::default();
        let count = WAITING_MAX as u64 + 10;
        let dropped = (1..=count).filter(|number| reports.push(DeviceId(*number), opening(*number)));
        assert_eq!(dropped.count(), 10);
        let again = (1..=3 * count).filter(|_| reports.push(DeviceId(count), opening(count)));
        assert_eq!(again.count(), 0);
        assert_eq!(reports.order.len(), WAITING_MAX);
        assert_eq!(numbers(&reports.ask()), (11..=266).collect::<Vec<_>>());
    }
}
