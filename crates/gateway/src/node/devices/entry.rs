//! A device of a node, and its state.

use linewarden_protocol::commit::CREDIT_MAX;
use linewarden_protocol::ids::{Mode, RowIndex, SessionId};
use linewarden_types::Provision;

use crate::node::eviction::EvictionHandle;

/// The state of a device; the diagram is in the [parent module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The gateway has rows of the device, but the data plane has had no slot yet.
    Waiting,
    /// In the data plane.
    Installed,
    /// To be wiped, because its slot is needed or its credentials were replaced.
    Leaving {
        /// Whether the unused rows are reported; rows of replaced credentials are void.
        reports_unused_rows: bool,
    },
    /// Revoked in the data plane; the unused rows are not reported yet. A pool device is wiped already, because its
    /// mark protects spent rows. A key-mode device is wiped after the report: if its counter were lost with this
    /// process, its last RESPONSE could open a session again.
    ReportingUnusedRows,
    /// The device may not authenticate: it is revoked or in quarantine, or its record is damaged.
    Revoked {
        /// Time of the revocation, monotonic.
        at_ns: u64,
    },
}

/// A device of the node.
#[derive(Debug)]
pub(super) struct DeviceEntry {
    pub(super) state: State,
    pub(super) mode: Mode,
    /// Epoch of the credentials.
    pub(super) epoch: u32,
    /// Whether the device waits for rows, or is in a request in flight.
    pub(super) is_requesting: bool,
    /// Whether the device needed more rows while a request was in flight.
    pub(super) request_again: bool,
    /// Whether the registry has no row left for this gateway.
    pub(super) is_exhausted: bool,
    /// Number in the slot queue.
    pub(super) slot_queue_number: Option<u64>,
    pub(super) mark: Mark,
    /// The number after the last row that was received.
    pub(super) received_end: RowIndex,
    pub(super) eviction_handle: Option<EvictionHandle>,
    /// The last known session and its start, boot-time clock, ns.
    pub(super) last_session: Option<(SessionId, u64)>,
    /// Leased rows that the data plane has no room for yet.
    pub(super) pending: Option<Box<Provision>>,
    /// The next row of a device that was wiped after its revocation; not reported yet.
    pub(super) next_row: Option<RowIndex>,
}

impl DeviceEntry {
    pub(super) fn new(provision: Provision, mark_distance: u32) -> Self {
        Self {
            mode: provision.mode,
            epoch: provision.epoch,
            mark: Mark::new(provision.mark, mark_distance),
            received_end: provision.end(),
            pending: Some(Box::new(provision)),
            ..Self::blank(State::Waiting)
        }
    }

    /// Creates an entry without credentials, for a device that is revoked or being removed.
    pub(super) fn blank(state: State) -> Self {
        Self {
            state,
            mode: Mode::Key,
            epoch: u32::MAX,
            is_requesting: false,
            request_again: false,
            is_exhausted: false,
            slot_queue_number: None,
            mark: Mark::new(RowIndex(0), 0),
            received_end: RowIndex(0),
            eviction_handle: None,
            last_session: None,
            pending: None,
            next_row: None,
        }
    }
}

/// If a device's mark must move again within this time, ns, the distance of the move doubles. Otherwise, the distance
/// halves.
const BUSY_DEVICE_NS: u64 = 60_000_000_000;

/// The mark of a pool device, and how far the next request moves the mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Only rows below this row may be spent.
    pub(super) row: RowIndex,
    /// Number of rows from the current row to the next mark.
    distance: u8,
    /// Whether the response to the last request moved the mark.
    has_moved: bool,
    /// Time of the last request, monotonic clock, ns.
    requested_ns: u64,
}

impl Mark {
    pub(super) fn new(row: RowIndex, distance: u32) -> Self {
        Self {
            row,
            distance: u8::try_from(distance).unwrap_or(u8::MAX),
            has_moved: false,
            requested_ns: 0,
        }
    }

    /// Returns the number of rows from the current row to the next mark, for a request at `now_ns`: at least `block`, and more
    /// for a device that authenticates often. The distance of a request that did not move the mark is repeated.
    pub(super) fn request(&mut self, block: u32, now_ns: u64) -> u32 {
        if std::mem::take(&mut self.has_moved) {
            let block = u8::try_from(block).unwrap_or(u8::MAX);
            let max = u8::try_from(CREDIT_MAX).unwrap_or(u8::MAX);
            self.distance = match now_ns.saturating_sub(self.requested_ns) < BUSY_DEVICE_NS {
                true => self.distance.saturating_mul(2).min(max),
                false => (self.distance / 2).max(block),
            };
        }
        self.requested_ns = now_ns;
        self.distance.into()
    }

    /// Applies the mark in the response to a request; returns whether the mark has moved.
    pub(super) fn advance(&mut self, row: RowIndex) -> bool {
        self.has_moved = row > self.row;
        self.row = self.row.max(row);
        self.has_moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_a_busy_device_moves_farther_each_time() {
        let (block, soon_ns) = (4, BUSY_DEVICE_NS - 1);
        let mut mark = Mark::new(RowIndex(4), block);
        assert_eq!(mark.request(block, 0), 4);
        assert_eq!(
            mark.request(block, soon_ns),
            4,
            "the first request was not answered"
        );
        let mut now_ns = soon_ns;
        // (time since the last request, expected distance)
        for (after_ns, distance) in [
            (soon_ns, 8),
            (soon_ns, CREDIT_MAX),
            (BUSY_DEVICE_NS, CREDIT_MAX / 2),
            (BUSY_DEVICE_NS, 4),
            (BUSY_DEVICE_NS, 4),
        ] {
            assert!(mark.advance(RowIndex(mark.row.0 + 1)));
            now_ns += after_ns;
            assert_eq!(mark.request(block, now_ns), distance);
        }
        assert!(!mark.advance(mark.row), "an equal mark has not moved");
        for _ in 0..10 {
            mark.advance(RowIndex(mark.row.0 + 1));
            mark.request(block, now_ns);
        }
        assert_eq!(mark.request(block, now_ns), CREDIT_MAX);
    }
}
