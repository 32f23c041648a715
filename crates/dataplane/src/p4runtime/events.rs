//! Converts the switch's digests to events.

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

use super::device_table::Session;
use super::program::number;
use super::setup::SESSIONS;
use super::{P4Runtime, SwitchError};
use crate::event::{Event, EventKind, SessionOpening};

/// The suite of all messages that lap.p4 answers (`LAP_SUITE`).
const SUITE: Suite = Suite::SipHash128;

impl P4Runtime {
    /// Processes the digests of the switch and deletes the spent rows. If a device opened several sessions since
    /// the previous call, only the newest session is reported.
    pub(super) fn take_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), SwitchError> {
        self.low_row_events.drain(..).for_each(&mut *sink);
        let sessions = self.connection.program.digest(SESSIONS)?;
        let mut newest: BTreeMap<DeviceId, SessionDigest> = BTreeMap::new();
        for list in self.connection.take_lists() {
            for message in fields(&list) {
                if list.id != sessions {
                    report_alarm(&message, sink);
                    continue;
                }
                self.reported_wins += 1;
                if let Some(session_digest) = SessionDigest::read(&message)
                    && self.table.devices.contains_key(&session_digest.device)
                {
                    newest.insert(session_digest.device, session_digest);
                }
            }
        }
        let cells: Vec<_> = newest
            .keys()
            .filter_map(|device| Some(self.table.devices.get(device)?.cell))
            .flat_map(|cell| ["session_ids", "places", "next_idx"].map(|name| (name, cell)))
            .collect();
        let values = self.connection.read_cells(&cells)?;
        let mut updates = Vec::new();
        for (session_digest, registers) in newest.into_values().zip(values.as_chunks().0) {
            updates.extend(self.take_session(session_digest, registers, sink)?);
        }
        match updates.is_empty() {
            true => Ok(()),
            false => self.connection.write(&updates),
        }
    }

    /// Reports an opened session. `registers`: session id, place and next row of the device. Returns the updates that
    /// delete the spent rows of the device.
    fn take_session(
        &mut self,
        session_digest: SessionDigest,
        registers: &[u128; 3],
        sink: &mut dyn FnMut(Event),
    ) -> Result<Vec<Update>, SwitchError> {
        let SessionDigest {
            device,
            idx,
            opening,
            address,
            ingress,
            opened_us,
        } = session_digest;
        let (low_rows, low_credit) = (self.live.low_rows, self.live.low_credit);
        let until_us = opened_us.saturating_add(u64::from(self.live.session_lifetime_s) * 1_000_000);
        let Some(entry) = self.table.devices.get_mut(&device) else {
            return Ok(Vec::new());
        };
        let next = idx.saturating_add(1);
        let [current_session, place, next_row] = *registers;
        let session = u128::from(u64::from_be_bytes(opening.session.to_wire()));
        if u128::from(next) > next_row {
            // The digest predates the device's latest installation.
            return Ok(Vec::new());
        }
        let new_session = Session {
            address,
            // The place of a session that has ended is unknown.
            place: (current_session == session).then_some(place),
            until_us,
        };
        let is_renewal = entry.last_session.is_some_and(|last| {
            (last.address, last.place) == (new_session.address, new_session.place)
                && last.place.is_some()
                && last.until_us > opened_us
        });
        entry.last_session = Some(new_session);
        let event_kind = entry.lacks_rows(next, low_rows);
        let event_kind = event_kind.or_else(|| entry.lacks_credit(next, low_credit));
        entry.rows_checked_at = next;
        let event = |kind, idx| Event {
            kind,
            device,
            idx: RowIndex(idx),
            source: sender(address),
            ingress,
        };
        if let Some(kind) = event_kind {
            sink(event(kind, next));
        }
        if !is_renewal {
            let opening = SessionOpening {
                opened_ns: self.clock.boot_us(opened_us) * 1000,
                ..opening
            };
            sink(event(EventKind::Session(opening), idx));
        }
        self.delete_spent_rows(device, next)
    }
}

/// `session_digest_t` of lap.p4.
struct SessionDigest {
    device: DeviceId,
    idx: u32,
    /// The field `opened_ns` is 0; `opened_us` has the opening time.
    opening: SessionOpening,
    address: u128,
    ingress: u32,
    /// Time of the opening, on the switch's clock.
    opened_us: u64,
}

impl SessionDigest {
    /// `None` if no session can have these fields.
    fn read(message: &[u128]) -> Option<Self> {
        let &[id, flags, w0, w1, w2, w3, w4, w5, mac, address, ingress, at_us] = message else {
            return None;
        };
        let (device, flags) = (DeviceId(to_u64(id)), to_u64(flags) as u8);
        let header = Header::new(message_type::RESPONSE, SUITE, flags, device);
        let words = [w0, w1, w2, w3, w4, w5].map(|word| to_u64(word).to_be_bytes());
        let response = [header.as_bytes(), words.as_flattened()].concat();
        let [_, _, mac @ ..] = to_u64(mac).to_be_bytes();
        Some(Self {
            device,
            idx: (to_u64(w2) >> 32) as u32,
            opening: SessionOpening {
                session: SessionId::from_wire(to_u64(w4).to_be_bytes())?,
                opened_ns: 0,
                response: response.try_into().ok()?,
                loc: tag::location((flags & FLAG_BOUND != 0).then_some(mac)),
            },
            address,
            ingress: to_u64(ingress) as u32,
            opened_us: to_u64(at_us),
        })
    }
}

/// Reports an `event_digest_t` of lap.p4.
fn report_alarm(message: &[u128], sink: &mut dyn FnMut(Event)) {
    let &[id, verdict, number, address, ingress] = message else {
        return;
    };
    let number = to_u64(number) as u32;
    let (kind, idx) = match to_u64(verdict) {
        verdict if verdict == u64::from(Verdict::DropTag.number()) => (EventKind::WrongTag, number),
        verdict if verdict == u64::from(Verdict::DropMark.number()) => (EventKind::RowsLow, number),
        verdict if verdict == u64::from(Verdict::DropProof.number()) => {
            (EventKind::WrongProof(RoundNumber(number)), 0)
        }
        _ => return,
    };
    sink(Event {
        kind,
        device: DeviceId(to_u64(id)),
        idx: RowIndex(idx),
        source: sender(address),
        ingress: to_u64(ingress) as u32,
    });
}

fn sender(address: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(address)).to_canonical()
}

/// The fields of each message, in order.
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

/// The value of a field of at most 64 bits.
fn to_u64(value: u128) -> u64 {
    value as u64
}
