//! One device as the gateway holds it: its commit word, current row, rows ahead, window and session.

use alloc::collections::BTreeMap;

use crate::commit::CommitWord;
use crate::data::DownWord;
use crate::frame::{Mac, Meta};
use crate::ids::{RowIndex, SessionId};
use crate::keys::{AuthKey, SessionKey};
use crate::time::BootTime;
use crate::window::Window;

/// One enrolled row as a gateway gets it: 24 bytes, whatever the response's size (LAP/1 1.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Seed that the device expands to its PUF's challenge; zero in key mode.
    pub challenge: [u8; 8],
    /// The row's key at this gateway.
    pub auth_key: AuthKey,
}

impl Row {
    /// What stands where no row is; never used, because the line is not VALID then.
    pub(super) fn zero() -> Self {
        Self {
            challenge: [0; 8],
            auth_key: AuthKey::from_bytes([0; 16]),
        }
    }
}

/// A device's line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) commit: CommitWord,
    pub(super) window: Window,
    pub(super) down: DownWord,
    pub(super) session_id: Option<SessionId>,
    pub(super) row: Row,
    pub(super) lease_until_s: u32,
    pub(super) session: Session,
    /// Rows after the current one.
    pub(super) ahead: BTreeMap<RowIndex, Row>,
    /// Rows below it may be spent; `None`: all, and always in key mode.
    pub(super) mark: Option<RowIndex>,
}

/// What the winning RESPONSE left.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) key: SessionKey,
    pub(super) tag: [u8; 16],
    pub(super) bound: bool,
    pub(super) lease_s: u32,
    /// Where the RESPONSE came from; a destination is not part of it and stays zero.
    pub(super) from: Meta,
}

impl Session {
    pub(super) fn none() -> Self {
        Self {
            key: SessionKey::from_bytes([0; 16]),
            tag: [0; 16],
            bound: false,
            lease_s: 0,
            from: Meta::default(),
        }
    }

    /// Whether a message came from where the winning one came from: address, port, VLANs, interface, MAC.
    pub(super) fn is_from(&self, meta: &Meta) -> bool {
        self.from == origin(meta)
    }
}

/// The part of [`Meta`] that says where a message came from.
pub(super) fn origin(meta: &Meta) -> Meta {
    Meta {
        dst_mac: Mac::default(),
        dst_ip: [0; 16],
        dst_port: 0,
        ..*meta
    }
}

impl Line {
    pub(super) fn new(commit: CommitWord, row: Row) -> Self {
        Self {
            commit,
            window: Window::new(commit.window_generation()),
            down: DownWord::default(),
            session_id: None,
            row,
            lease_until_s: 0,
            session: Session::none(),
            ahead: BTreeMap::new(),
            mark: None,
        }
    }

    /// The whole word is exchanged, or nothing.
    pub(super) fn compare_and_swap(&mut self, seen: CommitWord, next: CommitWord) -> bool {
        let same = self.commit == seen;
        if same {
            self.commit = next;
        }
        same
    }

    /// Leases are whole seconds; a lease is over in the second `lease_until_s`.
    pub(super) fn lease_is_over(&self, now: BootTime) -> bool {
        now.seconds() >= self.lease_until_s
    }

    /// Whether a session was opened here and not closed since: a winner in the middle of its work counts.
    pub(super) fn has_session(&self) -> bool {
        self.session_id.is_some() || self.commit.is_busy()
    }

    /// Whether this line's session owns its addresses.
    pub(super) fn owns_addresses(&self, now: BootTime) -> bool {
        !self.commit.is_revoked() && self.has_session() && !self.lease_is_over(now)
    }

    /// Puts the row of `commit.idx` in place, or zeros: whether there is one.
    pub(super) fn take_next_row(&mut self) -> bool {
        let next = self.ahead.remove(&self.commit.idx());
        let has_row = next.is_some();
        self.row = next.unwrap_or_else(Row::zero);
        has_row
    }
}

/// A copy of a line, for comparison with a data plane's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineView {
    /// The commit word.
    pub commit: CommitWord,
    /// The replay window.
    pub window: Window,
    /// Who counts the numbers towards the device.
    pub down: DownWord,
    /// The session's id on the wire; zero when there is none.
    pub session_id: [u8; 8],
    /// The current row's challenge; zero when there is no row, and in key mode.
    pub challenge: [u8; 8],
    /// The current row's key; zero when there is no row.
    pub auth_key: AuthKey,
    /// The end of the lease on the boot-time clock, whole seconds; 0 before the first session.
    pub lease_until_s: u32,
    /// Interface that the session's RESPONSE came in on; 0 before the first session.
    pub ingress: u32,
    /// Rows held beside the current one.
    pub rows_ahead: usize,
    /// What the last winning RESPONSE left; zeros before the first one.
    pub session: SessionView,
}

/// The second half of a [`LineView`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionView {
    /// The session key.
    pub session_key: SessionKey,
    /// The winning RESPONSE's tag.
    pub tag: [u8; 16],
    /// The source address; IPv4 as ::ffff:a.b.c.d.
    pub addr: [u8; 16],
    /// The lease that the ACK granted, s.
    pub lease_s: u32,
    /// The UDP source port.
    pub port: u16,
    /// The source MAC address.
    pub mac: Mac,
    /// The VLANs, as in [`Meta`].
    pub vlans: [u16; 2],
    /// The RESPONSE carried the BOUND flag.
    pub bound: bool,
}

impl Line {
    pub(super) fn view(&self) -> LineView {
        LineView {
            commit: self.commit,
            window: self.window,
            down: self.down,
            session_id: self.session_id.map(SessionId::to_wire).unwrap_or_default(),
            challenge: self.row.challenge,
            auth_key: self.row.auth_key.clone(),
            lease_until_s: self.lease_until_s,
            ingress: self.session.from.ingress,
            rows_ahead: self.ahead.len(),
            session: SessionView {
                session_key: self.session.key.clone(),
                tag: self.session.tag,
                addr: self.session.from.src_ip,
                lease_s: self.session.lease_s,
                port: self.session.from.src_port,
                mac: self.session.from.src_mac,
                vlans: self.session.from.vlans,
                bound: self.session.bound,
            },
        }
    }
}
