//! The state of one device at the gateway: commit word, current row, rows ahead, window and session.

use alloc::collections::BTreeMap;

use crate::commit::CommitWord;
use crate::data::DownCounter;
use crate::frame::{Mac, Meta};
use crate::ids::{RowIndex, SessionId};
use crate::keys::{AuthKey, SessionKey};
use crate::time::BootTime;
use crate::window::Window;

/// One enrolled row at a gateway: 24 bytes, independent of the response size (LAP/1 1.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Seed that the device expands to its PUF's challenge; zero in key mode.
    pub challenge: [u8; 8],
    /// The row's key at this gateway.
    pub auth_key: AuthKey,
}

impl Row {
    /// The content of an absent row. The content is never used, because a line without a current row is not VALID.
    pub(super) fn absent() -> Self {
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
    pub(super) down_counter: DownCounter,
    pub(super) session_id: Option<SessionId>,
    pub(super) row: Row,
    pub(super) session_expires_s: u32,
    pub(super) session: Session,
    /// Rows after the current row.
    pub(super) rows_ahead: BTreeMap<RowIndex, Row>,
    /// Rows below the mark may be spent; `None`: all rows, as always in key mode.
    pub(super) mark: Option<RowIndex>,
}

/// Session data from the winning RESPONSE.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) key: SessionKey,
    pub(super) tag: [u8; 16],
    pub(super) bound: bool,
    pub(super) session_lifetime_s: u32,
    /// The origin of the RESPONSE; the destination is not part of it and stays zero.
    pub(super) origin: Meta,
}

impl Session {
    pub(super) fn empty() -> Self {
        Self {
            key: SessionKey::from_bytes([0; 16]),
            tag: [0; 16],
            bound: false,
            session_lifetime_s: 0,
            origin: Meta::default(),
        }
    }

    /// Whether a message came from the origin of the winning RESPONSE: address, port, VLANs, interface, MAC address.
    pub(super) fn is_from(&self, meta: &Meta) -> bool {
        self.origin == origin_of(meta)
    }
}

/// The origin in a [`Meta`]; the destination is set to zero.
pub(super) fn origin_of(meta: &Meta) -> Meta {
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
            down_counter: DownCounter::default(),
            session_id: None,
            row,
            session_expires_s: 0,
            session: Session::empty(),
            rows_ahead: BTreeMap::new(),
            mark: None,
        }
    }

    /// Replaces the whole commit word if the word equals `expected`; returns whether the word was replaced.
    pub(super) fn compare_and_swap(&mut self, expected: CommitWord, next: CommitWord) -> bool {
        let is_equal = self.commit == expected;
        if is_equal {
            self.commit = next;
        }
        is_equal
    }

    /// Whether the session has expired. It expires at the start of the second `session_expires_s`.
    pub(super) fn is_session_expired(&self, now: BootTime) -> bool {
        now.seconds() >= self.session_expires_s
    }

    /// Whether a session was opened and not closed. The session of a winner that is still writing counts.
    pub(super) fn has_session(&self) -> bool {
        self.session_id.is_some() || self.commit.is_busy()
    }

    /// Whether the session of this line owns its addresses.
    pub(super) fn owns_addresses(&self, now: BootTime) -> bool {
        !self.commit.is_revoked() && self.has_session() && !self.is_session_expired(now)
    }

    /// Installs the row of `commit.idx`, or zeros; returns whether there is a row.
    pub(super) fn take_next_row(&mut self) -> bool {
        let next = self.rows_ahead.remove(&self.commit.idx());
        let has_row = next.is_some();
        self.row = next.unwrap_or_else(Row::absent);
        has_row
    }
}

/// A copy of a line, for comparison with the memory of a data plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineView {
    /// The commit word.
    pub commit: CommitWord,
    /// The replay window.
    pub window: Window,
    /// The counter of messages to the device.
    pub down_counter: DownCounter,
    /// The session's id on the wire; zero when there is none.
    pub session_id: [u8; 8],
    /// The current row's challenge; zero when there is no row, and in key mode.
    pub challenge: [u8; 8],
    /// The current row's key; zero when there is no row.
    pub auth_key: AuthKey,
    /// When the session expires on the boot-time clock, whole seconds; 0 before the first session.
    pub session_expires_s: u32,
    /// Ingress interface of the session's RESPONSE; 0 before the first session.
    pub ingress: u32,
    /// Number of installed rows after the current row.
    pub rows_ahead: usize,
    /// The data of the last winning RESPONSE; zeros before the first winning RESPONSE.
    pub session: SessionView,
}

/// The session part of a [`LineView`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionView {
    /// The session key.
    pub session_key: SessionKey,
    /// The winning RESPONSE's tag.
    pub tag: [u8; 16],
    /// The source address; IPv4 as ::ffff:a.b.c.d.
    pub addr: [u8; 16],
    /// The session lifetime that the ACK granted, s.
    pub session_lifetime_s: u32,
    /// The UDP source port.
    pub port: u16,
    /// The source MAC address.
    pub mac: Mac,
    /// The VLANs, as in [`Meta`].
    pub vlans: [u16; 2],
    /// Whether the RESPONSE carried the BOUND flag.
    pub bound: bool,
}

impl Line {
    pub(super) fn view(&self) -> LineView {
        LineView {
            commit: self.commit,
            window: self.window,
            down_counter: self.down_counter,
            session_id: self.session_id.map(SessionId::to_wire).unwrap_or_default(),
            challenge: self.row.challenge,
            auth_key: self.row.auth_key.clone(),
            session_expires_s: self.session_expires_s,
            ingress: self.session.origin.ingress,
            rows_ahead: self.rows_ahead.len(),
            session: SessionView {
                session_key: self.session.key.clone(),
                tag: self.session.tag,
                addr: self.session.origin.src_ip,
                session_lifetime_s: self.session.session_lifetime_s,
                port: self.session.origin.src_port,
                mac: self.session.origin.src_mac,
                vlans: self.session.origin.vlans,
                bound: self.session.bound,
            },
        }
    }
}
