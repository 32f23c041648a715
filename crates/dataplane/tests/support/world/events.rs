//! What the data planes must report of one frame: told by what it did to the oracle's line (LAP/1 1.4.5, 1.4.6, 1.4.11).

use linewarden_dataplane::{DataPlane as _, Event, EventKind, Opening};
use linewarden_protocol::frame::parse;
use linewarden_protocol::gateway::LineView;
use linewarden_protocol::ids::{DeviceId, RoundNumber, RowIndex, SessionId};
use linewarden_protocol::tag;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, FLAG_BOUND, MESSAGE_BYTES, Message};
use zerocopy::IntoBytes as _;

use super::{INGRESS, World, read_clock};

/// A frame before it is sent: what its events are judged by.
pub(super) struct Before {
    /// Of the device that it names.
    line: Option<LineView>,
    /// Of the boot-time clock: the real one, and that of oracle and `host`.
    pub(super) real_ns: u64,
    now_ms: u64,
}

/// The device that a message to LAP's port names, whatever its address.
fn named(frame: &[u8]) -> Option<DeviceId> {
    let (_, udp) = parse(frame).ok()?.datagram()?;
    let id = frame[udp.payload()].get(8..16)?.try_into().unwrap();
    (udp.dst_port == wire::LAP_PORT).then_some(DeviceId(u64::from_be_bytes(id)))
}

impl World {
    pub(super) fn before(&self, frame: &[u8], now_ms: u64) -> Before {
        Before {
            line: named(frame).and_then(|id| self.oracle.line(id)),
            real_ns: read_clock(libc::CLOCK_BOOTTIME),
            now_ms,
        }
    }

    /// Compares what the data planes report of a frame with what they must, and with when it was.
    pub(super) fn compare_events(&mut self, before: &Before, frame: &[u8], verdict: Verdict) {
        let expected = self.expected(before, frame, verdict);
        let is_opening = |event: &Event| matches!(event.kind, EventKind::Session(_));
        self.openings += expected.iter().filter(|event| is_opening(event)).count() as u64;
        let is_seen = super::seen_by_a_socket(frame).is_some();
        if let Some(side) = &mut self.host {
            let mut got = Vec::new();
            side.host.drain_events(&mut |event| got.push(event)).unwrap();
            assert_eq!(side.host.counters().unwrap().events_lost, 0);
            let began_ns = began(&mut got);
            let expected = if is_seen { expected.as_slice() } else { &[] };
            assert_eq!(got, expected, "events of host, {verdict}");
            assert!(began_ns.is_none_or(|ns| ns == before.now_ms * 1_000_000));
        }
        if let Some(side) = &mut self.xdp {
            let mut got = Vec::new();
            side.xdp.drain_events(&mut |event| got.push(event)).unwrap();
            assert_eq!(side.counted.events_lost, 0);
            let after_ns = read_clock(libc::CLOCK_BOOTTIME);
            let began_ns = began(&mut got);
            assert_eq!(got, expected, "events of xdp, {verdict}");
            assert!(began_ns.is_none_or(|ns| (before.real_ns..=after_ns).contains(&ns)));
        }
        self.compare_switch_events(&expected, frame, before);
    }

    fn expected(&self, before: &Before, frame: &[u8], verdict: Verdict) -> Vec<Event> {
        let Some(id) = named(frame) else {
            return Vec::new();
        };
        let (ip, udp) = parse(frame).unwrap().datagram().unwrap();
        if verdict == Verdict::DropProof && self.settings.live.alarm_per_s > 0 {
            let Ok(Message::Proof(proof)) = wire::parse(&frame[udp.payload()]) else {
                panic!("no PROOF");
            };
            return vec![Event {
                kind: EventKind::WrongProof(RoundNumber(proof.round.get())),
                device: id,
                idx: RowIndex(0),
                from: ip.src,
                ingress: INGRESS,
            }];
        }
        let Some(line) = &before.line else {
            return Vec::new();
        };
        let event = |kind, idx| Event {
            kind,
            device: id,
            idx,
            from: ip.src,
            ingress: INGRESS,
        };
        let idx = line.commit.idx();
        match verdict {
            Verdict::DropTag if self.settings.live.alarm_per_s > 0 => vec![event(EventKind::WrongTag, idx)],
            Verdict::DropMark => vec![event(EventKind::RowsLow, idx)],
            Verdict::ReplyAck => {
                let after = self.oracle.line(id).unwrap();
                let rows = self.rows(&after).map(|kind| event(kind, after.commit.idx()));
                let opening = opening(before, &frame[udp.payload()], frame);
                let session = opening.map(|opening| event(EventKind::Session(opening), idx));
                rows.into_iter().chain(session).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What the line reports of its rows after a win.
    fn rows(&self, after: &LineView) -> Option<EventKind> {
        let live = &self.settings.live;
        let is_low = (after.rows_ahead as u32) < live.low_rows
            || after
                .commit
                .credit()
                .is_some_and(|credit| credit <= live.low_credit);
        match after.commit.is_valid() {
            false => Some(EventKind::RowsOut),
            true => (is_low && !after.commit.is_key_mode()).then_some(EventKind::RowsLow),
        }
    }
}

/// Of a session that is new or has moved; none of one that is renewed where it is bound.
fn opening(before: &Before, payload: &[u8], frame: &[u8]) -> Option<Opening> {
    let line = before.line.as_ref()?;
    let Ok(Message::Response(response)) = wire::parse(payload) else {
        panic!("no RESPONSE");
    };
    let meta = parse(frame).unwrap().meta(INGRESS).unwrap();
    let bound = response.header.flags & FLAG_BOUND != 0;
    let old = &line.session;
    let is_live = line.session_id != [0; 8] && u64::from(line.lease_until_s) > before.now_ms / 1000 + 1;
    let is_there = (old.addr, old.port, old.mac) == (meta.src_ip, meta.src_port, meta.src_mac)
        && (old.vlans, line.ingress) == (meta.vlans, meta.ingress);
    if is_live && is_there && old.bound == bound {
        return None;
    }
    Some(Opening {
        session: SessionId::from_wire(response.tag[..8].try_into().unwrap()).unwrap(),
        began_ns: 0,
        response: <[u8; MESSAGE_BYTES]>::try_from(response.as_bytes()).unwrap(),
        loc: tag::loc(bound.then_some(meta.src_mac)),
    })
}

/// Takes out when the session began, if there is one.
pub(super) fn began(events: &mut [Event]) -> Option<u64> {
    let mut openings = events.iter_mut().filter_map(|event| match &mut event.kind {
        EventKind::Session(opening) => Some(opening),
        _ => None,
    });
    openings
        .next()
        .map(|opening| std::mem::take(&mut opening.began_ns))
}
