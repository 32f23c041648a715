//! What packets carry between switch and controller: the headers in front of frames, and digests.
//!
//! The packet path looks here for what runs now; a program is exchanged in one store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids::DigestId;
use linewarden_p4runtime::p4info::{ControllerHeader, Format};
use linewarden_p4runtime::target::{Event, EventSender};
use num_bigint::BigUint;

use super::values::{Shape, bits, join, number, split};
use crate::ports::memory::{MemoryPeer, memory_port};
use crate::ports::{Port, PortError, Transmit, TxCounters};
use crate::serve::Told;

/// Packets from controllers that wait for the worker.
const PACKETS_WAITING: usize = 1024;

/// A header of packet-ins or packet-outs: how wide its fields are.
#[derive(Clone, Debug, Default)]
pub(super) struct Header(Vec<u32>);

impl Header {
    /// The header as P4Info has it; one without fields if the program declares none.
    pub(super) fn of(header: Option<&ControllerHeader>) -> Result<Self, EntityError> {
        let fields = header.map_or(&[][..], |header| header.fields.as_slice());
        let width = |format: Format| match format {
            Format::Bits(width) => Ok(width),
            Format::Unwritable => Err(EntityError::unimplemented(
                "a field has no bit<W>: names (sdn_string) are not translated here",
            )),
        };
        let widths: Vec<u32> = fields
            .iter()
            .map(|field| width(field.format).map_err(|error| error.at(format!("field \"{}\"", field.name))))
            .collect::<Result<_, _>>()?;
        match widths.iter().sum::<u32>() % 8 {
            0 => Ok(Self(widths)),
            _ => Err(EntityError::invalid("its fields are not a whole number of bytes")),
        }
    }

    fn bytes(&self) -> usize {
        self.0.iter().sum::<u32>() as usize / 8
    }

    /// The header of these values.
    pub(super) fn encode(&self, values: &[Bits]) -> Vec<u8> {
        let numbers: Vec<BigUint> = values.iter().map(number).collect();
        join(self.0.iter().copied().zip(&numbers))
    }

    /// Takes the header off a frame; none if the frame is too short.
    fn decode(&self, frame: &[u8]) -> Option<(Vec<Bits>, Vec<u8>)> {
        let (header, payload) = frame.split_at_checked(self.bytes())?;
        let numbers = split(header, &self.0);
        let values = self.0.iter().zip(&numbers);
        Some((
            values.map(|(width, number)| bits(*width, number)).collect(),
            payload.to_vec(),
        ))
    }
}

/// What of the program that runs now reaches controllers.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) packet_in: Header,
    pub(super) digests: BTreeMap<u32, (DigestId, Shape)>,
}

/// The packet path's way to the controllers. It never waits: what nobody takes is lost and counted.
#[derive(Debug)]
pub struct Wire {
    shown: ArcSwapOption<Shown>,
    events: EventSender,
    lost: AtomicU64,
}

impl Wire {
    pub(super) fn new(events: EventSender) -> Self {
        Self {
            shown: ArcSwapOption::empty(),
            events,
            lost: AtomicU64::new(0),
        }
    }

    pub(super) fn show(&self, shown: Shown) {
        self.shown.store(Some(Arc::new(shown)));
    }

    /// Hands on what a program tells. Without a P4Info nobody knows what it means.
    pub fn digest(&self, (number, values): Told) {
        let shown = self.shown.load();
        let known = shown.as_ref().and_then(|shown| shown.digests.get(&number));
        if let Some((id, shape)) = known {
            let numbers: Vec<BigUint> = values.iter().map(|value| BigUint::from_bytes_be(value)).collect();
            let data = shape.of_numbers(&numbers);
            self.tell(Event::Digest { id: *id, data });
        }
    }

    /// Events that were lost because nobody took them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether it was taken.
    pub(super) fn tell(&self, event: Event) -> bool {
        let taken = self.events.send(event);
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// A CPU port: what the program sends there goes to the controllers as packet-ins. The other end takes packet-outs and
/// wakes the worker.
///
/// # Errors
/// When the system has no file descriptor left.
pub(super) fn cpu_port(wire: &Arc<Wire>) -> Result<(Port, MemoryPeer), PortError> {
    let (port, peer) = memory_port(PACKETS_WAITING)?;
    let sender = PacketIns {
        wire: Arc::clone(wire),
        counters: TxCounters::default(),
    };
    let port = Port {
        receiver: port.receiver,
        sender: Box::new(sender),
    };
    Ok((port, peer))
}

#[derive(Debug)]
struct PacketIns {
    wire: Arc<Wire>,
    counters: TxCounters,
}

impl Transmit for PacketIns {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        let shown = self.wire.shown.load();
        let Some(shown) = shown.as_ref() else {
            // A program that runs without a P4Info.
            self.counters.dropped_down += 1;
            return Ok(());
        };
        let Some((metadata, payload)) = shown.packet_in.decode(&[headers, payload].concat()) else {
            self.counters.dropped_short += 1;
            return Ok(());
        };
        let bytes = payload.len() as u64;
        if self.wire.tell(Event::PacketIn { metadata, payload }) {
            self.counters.frames += 1;
            self.counters.bytes += bytes;
        } else {
            self.counters.dropped_full += 1;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
