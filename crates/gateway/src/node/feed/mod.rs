//! The change feed: enrollments, releases and blocks of devices, in the order of the registry's revisions.
//!
//! ```text
//!  Reading (first) ── no more changes ──► Current ◄──────────► Reading ── no more changes ──┐
//!       ▲                                    │   interval            ▲                      │
//!       └──────── registry restored ─────────┘                       └──────────────────────┘
//! ```
//!
//! Until the first complete read, the gateway requests no rows: a device in a lease may be blocked meanwhile.

mod blocked;

use std::collections::HashMap;

use linewarden_protocol::ids::DeviceId;
use linewarden_types::{Change, Changes, ControllerRequest, Kind, LinkError, ListChanges, Revision};

use self::blocked::BlockedDevices;
use super::channel::Channel;
use super::context::Context;
use crate::audit::AuditEvent;

/// The state of the feed, and the devices that it has blocked.
#[derive(Debug)]
pub(super) struct ChangeFeed {
    channel: Channel,
    /// All changes up to this revision are applied.
    revision: Revision,
    due_ns: u64,
    /// Time of the request of the last complete read, boot-time clock: all earlier revocations are applied.
    complete_at_ns: Option<u64>,
    blocked: BlockedDevices,
    /// Epochs that the feed has reported while a response that may contain the rows of devices was in flight.
    epochs_reported_meanwhile: HashMap<DeviceId, u32>,
    /// Number of releases that were recorded.
    released: u64,
}

impl Default for ChangeFeed {
    fn default() -> Self {
        Self {
            channel: Channel::new(Kind::ListChanges),
            revision: Revision::ZERO,
            due_ns: 0,
            complete_at_ns: None,
            blocked: BlockedDevices::default(),
            epochs_reported_meanwhile: HashMap::new(),
            released: 0,
        }
    }
}

impl ChangeFeed {
    /// All changes up to this revision are applied.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether the feed has been read completely at least once.
    pub(super) fn has_been_read(&self) -> bool {
        self.complete_at_ns.is_some()
    }

    /// Time of the last complete read, boot-time clock, ns.
    pub(super) fn complete_at_ns(&self) -> Option<u64> {
        self.complete_at_ns
    }

    /// When the next request is due, monotonic clock; `None` while a request is in flight.
    pub(super) fn due_ns(&self) -> Option<u64> {
        (!self.channel.in_flight).then(|| self.channel.retry.due_ns(self.due_ns))
    }

    /// Makes the next read due at once: it was planned with an interval that may have been longer.
    pub(super) fn read_now(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.min(now_ns);
    }

    pub(super) fn request(&mut self, context: &Context) -> Option<ControllerRequest> {
        let is_due = self.due_ns <= context.now_ns();
        (is_due && self.channel.try_send(context.clock)).then(|| ListChanges { since: self.revision }.into())
    }

    /// The time at which the ages in the response to the last request end, boot-time clock, ns.
    pub(super) fn sent_ns(&self) -> u64 {
        self.channel.sent_ns
    }

    /// Handles the response to a request; the caller applies the changes, and then calls [`ChangeFeed::finish`].
    pub(super) fn accept(
        &mut self,
        result: Result<Changes, LinkError>,
        context: &mut Context,
    ) -> Option<Changes> {
        context.receive(&mut self.channel, result)
    }

    /// Records that the changes are applied.
    pub(super) fn finish(&mut self, changes: &Changes, context: &mut Context) {
        self.revision = changes.up_to_revision;
        let now_ns = context.now_ns();
        if changes.has_more {
            self.due_ns = now_ns;
            return;
        }
        self.due_ns = now_ns.saturating_add(context.settings.feed_poll_ms.saturating_mul(1_000_000));
        if !self.has_been_read() {
            context.data_plane.set_enrollment_filter(true);
        }
        self.complete_at_ns = self.complete_at_ns.max(Some(self.channel.sent_ns));
    }

    /// Records a reported epoch while a response that may contain the rows of devices is in flight.
    pub(super) fn record_epoch(&mut self, change: &Change) {
        self.epochs_reported_meanwhile.insert(change.device, change.epoch);
    }

    /// Whether the feed has reported newer credentials of a device than those of a response.
    pub(super) fn has_newer_epoch(&self, device: DeviceId, epoch: u32) -> bool {
        let reported = self.epochs_reported_meanwhile.get(&device);
        reported.is_some_and(|reported| *reported > epoch)
    }

    /// Discards the recorded epochs: no response that may contain the rows of devices is in flight.
    pub(super) fn forget_epochs(&mut self) {
        self.epochs_reported_meanwhile.clear();
    }

    /// Records a block; returns whether it is new.
    pub(super) fn block(&mut self, change: &Change, context: &mut Context) -> bool {
        self.record_released(Some(change.device), context);
        self.blocked.block(change)
    }

    /// Records that a device may authenticate. Its release is recorded in the audit records, but not at once while decisions
    /// of the controller are pending (`awaits_decisions`): if a decision caused the release, only the decision is recorded.
    /// Releases in the first complete read of the feed are not recorded: they may precede the start of the gateway.
    pub(super) fn unblock(&mut self, change: &Change, awaits_decisions: bool, context: &mut Context) {
        if self.blocked.unblock(change) && self.has_been_read() {
            self.blocked.defer_release(change);
            if !awaits_decisions {
                self.record_released(None, context);
            }
        }
    }

    /// Records a quarantine that the controller decided at `revision`. Returns `None` if a later release that the feed has
    /// already reported takes precedence; otherwise whether the block is new.
    pub(super) fn quarantine(&mut self, device: DeviceId, revision: Revision) -> Option<bool> {
        let is_released = self.blocked.is_released_after(device, revision);
        (!is_released).then(|| self.blocked.quarantine(device, revision))
    }

    /// Handles a decision of the controller that released the device at `revision`.
    pub(super) fn confirm_release(&mut self, device: DeviceId, revision: Revision) {
        self.blocked.confirm_release(device, revision);
    }

    /// Records deferred releases: the release of `device`, or all releases if `device` is `None`.
    pub(super) fn record_released(&mut self, device: Option<DeviceId>, context: &mut Context) {
        for device in self.blocked.take_released(device) {
            self.released += 1;
            tracing::info!(device_id = %device, "device released");
            context.audit.record(AuditEvent::Released { device });
        }
    }

    /// Number of releases that were recorded.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// Begins again at the first revision, after a restore of the registry.
    pub(super) fn restart(&mut self) {
        self.channel.invalidate();
        self.revision = Revision::ZERO;
        self.complete_at_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::test_support::{DEVICE, context, set_time};

    fn changes(up_to_revision: u64, has_more: bool) -> Changes {
        Changes {
            changes: Vec::new(),
            newer_sessions: Vec::new(),
            up_to_revision: Revision(up_to_revision),
            has_more,
        }
    }

    fn change(revision: u64, active: bool) -> Change {
        Change {
            device: DEVICE,
            epoch: 0,
            active,
            revision: Revision(revision),
        }
    }

    /// Sends a request and applies its response.
    fn read(feed: &mut ChangeFeed, response: Changes, context: &mut Context) {
        assert!(feed.request(context).is_some());
        assert_eq!(feed.due_ns(), None, "in flight");
        let changes = feed
            .accept(Ok(response), context)
            .map(|changes| feed.finish(&changes, context));
        assert!(changes.is_some());
    }

    #[test]
    fn the_feed_is_read_to_its_end_then_at_the_interval() {
        let (mut feed, mut context) = (ChangeFeed::default(), context());
        read(&mut feed, changes(5, true), &mut context);
        assert_eq!((feed.has_been_read(), feed.revision()), (false, Revision(5)));
        read(&mut feed, changes(7, false), &mut context);
        assert_eq!((feed.has_been_read(), feed.revision()), (true, Revision(7)));
        assert_eq!(feed.complete_at_ns(), Some(context.clock.boot_ns));
        assert!(feed.request(&context).is_none(), "not due yet");
        feed.read_now(context.now_ns());
        assert_eq!(
            feed.request(&context),
            Some(ListChanges { since: Revision(7) }.into())
        );
        set_time(&mut context, 9);
        assert!(feed.accept(Ok(changes(7, false)), &mut context).is_some());
        feed.finish(&changes(7, false), &mut context);
        assert_eq!(
            feed.complete_at_ns(),
            Some(1_000_000_000),
            "the time of the request"
        );
    }

    #[test]
    fn after_a_restart_the_feed_is_read_from_the_first_revision() {
        let (mut feed, mut context) = (ChangeFeed::default(), context());
        read(&mut feed, changes(7, false), &mut context);
        feed.read_now(0);
        assert!(feed.request(&context).is_some());
        feed.restart();
        assert!(!feed.has_been_read());
        assert!(feed.accept(Ok(changes(9, false)), &mut context).is_none(), "void");
        assert_eq!(
            feed.request(&context),
            Some(
                ListChanges {
                    since: Revision::ZERO
                }
                .into()
            )
        );
    }

    #[test]
    fn a_block_is_new_once_and_a_later_release_takes_precedence() {
        let (mut feed, mut context) = (ChangeFeed::default(), context());
        read(&mut feed, changes(1, false), &mut context);
        assert!(feed.block(&change(2, false), &mut context));
        assert!(!feed.block(&change(2, false), &mut context));
        assert_eq!(
            feed.quarantine(DEVICE, Revision(3)),
            Some(false),
            "blocked already"
        );
        feed.unblock(&change(5, true), true, &mut context);
        assert_eq!(feed.quarantine(DEVICE, Revision(4)), None, "released later");
        assert_eq!(feed.quarantine(DEVICE, Revision(6)), Some(true));
        assert_eq!(feed.released(), 0, "deferred while decisions are pending");
        feed.record_released(None, &mut context);
        assert_eq!(feed.released(), 1);
    }
}
