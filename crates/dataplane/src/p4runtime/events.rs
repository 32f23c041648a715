//! From the switch's digests to events.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::digest::DigestList;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::verdict::Verdict;

use super::book::Session;
use super::program::number;
use super::setup::SESSIONS;
use super::{P4Runtime, SwitchError};
use crate::event::{Event, EventKind};

impl P4Runtime {
    /// Takes what the switch has told, and the rows that were spent out of it.
    pub(super) fn take_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), SwitchError> {
        let sessions = self.link.program.digest(SESSIONS)?;
        for list in self.link.take_lists() {
            for message in fields(&list) {
                if list.id == sessions {
                    self.take_session(&message, sink)?;
                } else {
                    take_alarm(&message, sink);
                }
            }
        }
        Ok(())
    }

    /// `session_digest_t` of lap.p4.
    fn take_session(&mut self, message: &[u128], sink: &mut dyn FnMut(Event)) -> Result<(), SwitchError> {
        let &[id, session, _tag1, idx, address, ingress, at_us] = message else {
            return Ok(());
        };
        let (device, idx) = (DeviceId(low(id)), low(idx) as u32);
        let Some(id) = SessionId::from_wire(low(session).to_be_bytes()) else {
            return Ok(());
        };
        let (low_rows, low_credit) = (self.live.low_rows, self.live.low_credit);
        let until_us = low(at_us).saturating_add(u64::from(self.live.lease_s) * 1_000_000);
        let Some(held) = self.book.devices.get_mut(&device) else {
            return Ok(());
        };
        let next = idx.saturating_add(1);
        let cell = held.cell;
        let [now, place, reached] =
            self.link
                .cells([("session_ids", cell), ("places", cell), ("next_idx", cell)])?;
        if u128::from(next) > reached {
            // Of a time before the device was installed anew.
            return Ok(());
        }
        let opened = Session {
            address,
            // Of a session that is over already nobody knows it.
            place: (now == session).then_some(place),
            until_us,
        };
        let is_renewal = held.told.is_some_and(|told| {
            (told.address, told.place) == (opened.address, opened.place)
                && told.place.is_some()
                && told.until_us > low(at_us)
        });
        held.told = Some(opened);
        let left = held.rows_left(next);
        let few = left <= low_rows
            || held
                .mark
                .is_some_and(|mark| mark.saturating_sub(next) <= low_credit);
        let rows = match (held.mode, left) {
            (Mode::Key, _) => None,
            (Mode::Pool, 0) => Some(EventKind::RowsOut),
            (Mode::Pool, _) => few.then_some(EventKind::RowsLow),
        };
        let event = |kind, idx| Event {
            kind,
            device,
            idx: RowIndex(idx),
            from: IpAddr::V6(Ipv6Addr::from(address)).to_canonical(),
            ingress: low(ingress) as u32,
        };
        if let Some(kind) = rows {
            sink(event(kind, next));
        }
        if !is_renewal {
            sink(event(EventKind::Unproven(id), idx));
        }
        self.delete_spent(device, next)
    }
}

/// `event_digest_t` of lap.p4.
fn take_alarm(message: &[u128], sink: &mut dyn FnMut(Event)) {
    let &[id, verdict, idx, ingress] = message else {
        return;
    };
    let kind = match low(verdict) {
        verdict if verdict == u64::from(Verdict::DropTag.number()) => EventKind::WrongTag,
        verdict if verdict == u64::from(Verdict::DropMark.number()) => EventKind::RowsLow,
        _ => return,
    };
    sink(Event {
        kind,
        device: DeviceId(low(id)),
        idx: RowIndex(low(idx) as u32),
        from: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ingress: low(ingress) as u32,
    });
}

/// Each message's fields, in their order.
fn fields(list: &DigestList) -> Vec<Vec<u128>> {
    let value = |data: &Data| match data {
        Data::Bits(bits) => Some(number(bits)),
        _ => None,
    };
    let message = |data: &Data| match data {
        Data::Struct(members) => members.iter().map(value).collect(),
        _ => None,
    };
    list.data.iter().filter_map(message).collect()
}

/// Of a field of at most 64 bits.
fn low(value: u128) -> u64 {
    value as u64
}
