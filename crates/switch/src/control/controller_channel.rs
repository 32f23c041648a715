//! Channel from the packet path to the controllers: packet-ins and digests. Also the headers of packet-ins and packet-outs.
//!
//! The packet path reads the view of the current program from the channel; a program change replaces the view in one
//! atomic store.

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

use super::values::{ValueLayout, bits, join, number, split};
use crate::ports::memory::{MemoryPeer, memory_port};
use crate::ports::{Port, PortError, Transmit, TxCounters};
use crate::serve::DigestMessage;

/// Capacity of the queue of packet-outs for the worker.
const PACKET_QUEUE_LENGTH: usize = 1024;

/// Header of packet-ins or packet-outs: widths of the fields, bits.
#[derive(Clone, Debug, Default)]
pub(super) struct PacketIoHeader(Vec<u32>);

impl PacketIoHeader {
    /// Creates the header from the P4Info. If the program declares no header, the result has no fields.
    pub(super) fn from_p4info(header: Option<&ControllerHeader>) -> Result<Self, EntityError> {
        let fields = header.map_or(&[][..], |header| header.fields.as_slice());
        let width = |format: Format| match format {
            Format::Bits(width) => Ok(width),
            Format::Unwritable => Err(EntityError::unimplemented(
                "field has no bit<W> representation: translated types of kind sdn_string are not supported",
            )),
        };
        let widths: Vec<u32> = fields
            .iter()
            .map(|field| width(field.format).map_err(|error| error.at(format!("field \"{}\"", field.name))))
            .collect::<Result<_, _>>()?;
        match widths.iter().sum::<u32>() % 8 {
            0 => Ok(Self(widths)),
            _ => Err(EntityError::invalid("fields do not fill whole bytes")),
        }
    }

    fn bytes(&self) -> usize {
        self.0.iter().sum::<u32>() as usize / 8
    }

    /// Encodes the header.
    pub(super) fn encode(&self, values: &[Bits]) -> Vec<u8> {
        let numbers: Vec<BigUint> = values.iter().map(number).collect();
        join(self.0.iter().copied().zip(&numbers))
    }

    /// Splits a frame into header values and payload; `None` if the frame is too short.
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

/// View of the running program: headers and digests for controllers.
#[derive(Debug)]
pub(super) struct ControllerView {
    pub(super) packet_in: PacketIoHeader,
    pub(super) digests: BTreeMap<u32, (DigestId, ValueLayout)>,
}

/// Channel to the controllers. The channel never blocks: if the queue is full, an event is dropped and counted.
#[derive(Debug)]
pub struct ControllerChannel {
    view: ArcSwapOption<ControllerView>,
    events: EventSender,
    lost_events: AtomicU64,
}

impl ControllerChannel {
    pub(super) fn new(events: EventSender) -> Self {
        Self {
            view: ArcSwapOption::empty(),
            events,
            lost_events: AtomicU64::new(0),
        }
    }

    pub(super) fn set_view(&self, view: ControllerView) {
        self.view.store(Some(Arc::new(view)));
    }

    /// Forwards a digest message. Without a P4Info the message has no type and is dropped.
    pub fn send_digest(&self, (number, values): DigestMessage) {
        let view = self.view.load();
        let digest = view.as_ref().and_then(|view| view.digests.get(&number));
        if let Some((id, layout)) = digest {
            let numbers: Vec<BigUint> = values.iter().map(|value| BigUint::from_bytes_be(value)).collect();
            let data = layout.value_of_all(&numbers);
            self.send_event(Event::Digest { id: *id, data });
        }
    }

    /// Number of events lost because the queue was full.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.lost_events.load(Ordering::Relaxed)
    }

    /// Queues an event; returns `false` if the queue is full and the event is dropped.
    pub(super) fn send_event(&self, event: Event) -> bool {
        let is_queued = self.events.send(event);
        if !is_queued {
            self.lost_events.fetch_add(1, Ordering::Relaxed);
        }
        is_queued
    }
}

/// Creates a CPU port: packets that the program sends to the port become packet-ins. The returned peer accepts
/// packet-outs and wakes the worker.
///
/// # Errors
/// No file descriptor is available.
pub(super) fn cpu_port(channel: &Arc<ControllerChannel>) -> Result<(Port, MemoryPeer), PortError> {
    let (port, peer) = memory_port(PACKET_QUEUE_LENGTH)?;
    let sender = PacketInSender {
        channel: Arc::clone(channel),
        counters: TxCounters::default(),
    };
    let port = Port {
        receiver: port.receiver,
        sender: Box::new(sender),
    };
    Ok((port, peer))
}

#[derive(Debug)]
struct PacketInSender {
    channel: Arc<ControllerChannel>,
    counters: TxCounters,
}

impl Transmit for PacketInSender {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        let view = self.channel.view.load();
        let Some(view) = view.as_ref() else {
            // The program runs without a P4Info.
            self.counters.dropped_down += 1;
            return Ok(());
        };
        let Some((metadata, payload)) = view.packet_in.decode(&[headers, payload].concat()) else {
            self.counters.dropped_short += 1;
            return Ok(());
        };
        let bytes = payload.len() as u64;
        if self.channel.send_event(Event::PacketIn { metadata, payload }) {
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
