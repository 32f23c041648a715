//! Requests to the controller, at most one of each kind in flight.

use linewarden_types::Kind;

use super::retry::RetryTimer;
use crate::time::Clock;

/// State of one kind of request.
#[derive(Debug)]
pub(super) struct Channel {
    kind: Kind,
    pub(super) in_flight: bool,
    /// Whether no further request of this kind is needed.
    pub(super) done: bool,
    /// When the request in flight was sent, boot-time clock.
    pub(super) sent_ns: u64,
    pub(super) retry: RetryTimer,
    /// Whether the response to the request in flight is invalid: the registry was restored, or the leases were dropped.
    is_void: bool,
}

impl Channel {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            in_flight: false,
            done: false,
            sent_ns: 0,
            retry: RetryTimer::default(),
            is_void: false,
        }
    }

    /// The kind of request, in log messages.
    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    pub(super) fn is_free(&self, now_ns: u64) -> bool {
        !self.in_flight && !self.done && self.retry.is_due(now_ns)
    }

    /// Invalidates the request in flight, and the results of all earlier requests.
    pub(super) fn invalidate(&mut self) {
        self.is_void = self.in_flight;
        self.done = false;
    }

    /// Records a response; returns whether the response is valid.
    pub(super) fn accept_response(&mut self) -> bool {
        self.in_flight = false;
        !std::mem::take(&mut self.is_void)
    }

    /// If a request may be sent, marks a request as sent and returns `true`.
    pub(super) fn try_send(&mut self, clock: Clock) -> bool {
        let is_free = self.is_free(clock.monotonic_ns);
        if is_free {
            self.in_flight = true;
            self.sent_ns = clock.boot_ns;
        }
        is_free
    }
}
