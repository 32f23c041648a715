//! From the switch's digests to events.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::digest::DigestList;
use linewarden_p4runtime::entity::Update;
use linewarden_protocol::ids::{DeviceId, RoundNumber, RowIndex, SessionId, Suite};
use linewarden_protocol::tag;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{FLAG_BOUND, Header, message_type};
use zerocopy::IntoBytes as _;

use super::book::Session;
use super::program::number;
use super::setup::SESSIONS;
use super::{P4Runtime, SwitchError};
use crate::event::{Event, EventKind, Opening};

/// Of all that lap.p4 answers (`LAP_SUITE`).
const SUITE: Suite = Suite::SipHash128;

impl P4Runtime {
    /// Takes what the switch has told, and the rows that were spent out of it. Of a device that has opened several sessions since,
    /// only the last is told.
    pub(super) fn take_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), SwitchError> {
        self.low.drain(..).for_each(&mut *sink);
        let sessions = self.link.program.digest(SESSIONS)?;
        let mut newest: BTreeMap<DeviceId, Told> = BTreeMap::new();
        for list in self.link.take_lists() {
            for message in fields(&list) {
                if list.id != sessions {
                    take_alarm(&message, sink);
                    continue;
                }
                self.wins_told += 1;
                if let Some(told) = Told::read(&message)
                    && self.book.devices.contains_key(&told.device)
                {
                    newest.insert(told.device, told);
                }
            }
        }
        let cells: Vec<_> = newest
            .keys()
            .filter_map(|device| Some(self.book.devices.get(device)?.cell))
            .flat_map(|cell| ["session_ids", "places", "next_idx"].map(|name| (name, cell)))
            .collect();
        let read = self.link.read_cells(&cells)?;
        let mut updates = Vec::new();
        for (told, now) in newest.into_values().zip(read.as_chunks().0) {
            updates.extend(self.take_session(told, now, sink)?);
        }
        match updates.is_empty() {
            true => Ok(()),
            false => self.link.write(&updates),
        }
    }

    /// `now`: session, place and next row of its device. Returns what takes the rows that it has spent out of the switch.
    fn take_session(
        &mut self,
        told: Told,
        now: &[u128; 3],
        sink: &mut dyn FnMut(Event),
    ) -> Result<Vec<Update>, SwitchError> {
        let Told {
            device,
            idx,
            opening,
            address,
            ingress,
            at_us,
        } = told;
        let (low_rows, low_credit) = (self.live.low_rows, self.live.low_credit);
        let until_us = at_us.saturating_add(u64::from(self.live.lease_s) * 1_000_000);
        let Some(held) = self.book.devices.get_mut(&device) else {
            return Ok(Vec::new());
        };
        let next = idx.saturating_add(1);
        let [now, place, reached] = *now;
        let session = u128::from(u64::from_be_bytes(opening.session.to_wire()));
        if u128::from(next) > reached {
            // Of a time before the device was installed anew.
            return Ok(Vec::new());
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
                && told.until_us > at_us
        });
        held.told = Some(opened);
        let rows = held.lacks_rows(next, low_rows);
        let rows = rows.or_else(|| held.lacks_credit(next, low_credit));
        held.told_at = next;
        let event = |kind, idx| Event {
            kind,
            device,
            idx: RowIndex(idx),
            from: sender(address),
            ingress,
        };
        if let Some(kind) = rows {
            sink(event(kind, next));
        }
        if !is_renewal {
            let opening = Opening {
                began_ns: self.clock.boot_us(at_us) * 1000,
                ..opening
            };
            sink(event(EventKind::Session(opening), idx));
        }
        self.take_out_spent(device, next)
    }
}

/// `session_digest_t` of lap.p4.
struct Told {
    device: DeviceId,
    idx: u32,
    /// But for when it began.
    opening: Opening,
    address: u128,
    ingress: u32,
    /// On the switch's clock.
    at_us: u64,
}

impl Told {
    /// `None` for what no session can be.
    fn read(message: &[u128]) -> Option<Self> {
        let &[id, flags, w0, w1, w2, w3, w4, w5, mac, address, ingress, at_us] = message else {
            return None;
        };
        let (device, flags) = (DeviceId(low(id)), low(flags) as u8);
        let header = Header::new(message_type::RESPONSE, SUITE, flags, device);
        let words = [w0, w1, w2, w3, w4, w5].map(|word| low(word).to_be_bytes());
        let response = [header.as_bytes(), words.as_flattened()].concat();
        let [_, _, mac @ ..] = low(mac).to_be_bytes();
        Some(Self {
            device,
            idx: (low(w2) >> 32) as u32,
            opening: Opening {
                session: SessionId::from_wire(low(w4).to_be_bytes())?,
                began_ns: 0,
                response: response.try_into().ok()?,
                loc: tag::loc((flags & FLAG_BOUND != 0).then_some(mac)),
            },
            address,
            ingress: low(ingress) as u32,
            at_us: low(at_us),
        })
    }
}

/// `event_digest_t` of lap.p4.
fn take_alarm(message: &[u128], sink: &mut dyn FnMut(Event)) {
    let &[id, verdict, number, address, ingress] = message else {
        return;
    };
    let number = low(number) as u32;
    let (kind, idx) = match low(verdict) {
        verdict if verdict == u64::from(Verdict::DropTag.number()) => (EventKind::WrongTag, number),
        verdict if verdict == u64::from(Verdict::DropMark.number()) => (EventKind::RowsLow, number),
        verdict if verdict == u64::from(Verdict::DropProof.number()) => {
            (EventKind::WrongProof(RoundNumber(number)), 0)
        }
        _ => return,
    };
    sink(Event {
        kind,
        device: DeviceId(low(id)),
        idx: RowIndex(idx),
        from: sender(address),
        ingress: low(ingress) as u32,
    });
}

fn sender(address: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(address)).to_canonical()
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
