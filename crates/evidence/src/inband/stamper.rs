//! Writes evidence into packets.

use super::content::{CONTENT_BYTES, Content, fields};
use super::option::{DATA_BYTES, GROWTH, write};
use super::packet::{Ethernet, HOP_BY_HOP, Invariants, Ipv6};
use super::tag::{EvidenceKey, Midstate};
use super::{CLONE_ETHERTYPE, Counter, FrameError, Tag};
use crate::state::Snapshot;

/// Bytes of the option data before its content.
const HEAD_BYTES: usize = DATA_BYTES - CONTENT_BYTES;

/// Packet counters of a stamper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StamperCounters {
    /// Packets into which an option was written.
    pub stamped: u64,
    /// Clones written.
    pub cloned: u64,
    /// Packets left unchanged: not IPv6.
    pub not_ipv6: u64,
    /// Packets left unchanged: malformed or truncated.
    pub malformed: u64,
    /// Packets left unchanged: no room for the option.
    pub too_long: u64,
}

/// Writes evidence of one state into packets. Each worker has its own stamper. The Debug output omits the key and the
/// hash state computed from it.
#[derive(Clone, Debug)]
pub struct Stamper {
    key: EvidenceKey,
    snapshot: Snapshot,
    /// Computed at the first packet of the snapshot. If packets write registers, the snapshot changes often, and many
    /// snapshots have no packet.
    prepared: Option<PreparedState>,
    counters: StamperCounters,
}

/// The part of the evidence that is the same for all packets of a state.
#[derive(Clone, Debug)]
struct PreparedState {
    midstate: Midstate,
    /// The option data except for the per-packet fields, counter and tag.
    data: [u8; DATA_BYTES],
}

impl Stamper {
    /// A stamper for this state. `key` is [`super::MasterKey::key`] of the snapshot's switch and boot count.
    #[must_use]
    pub fn new(key: EvidenceKey, snapshot: &Snapshot) -> Self {
        Self {
            key,
            snapshot: *snapshot,
            prepared: None,
            counters: StamperCounters::default(),
        }
    }

    /// Switches to another state of the same data plane.
    pub fn update(&mut self, snapshot: &Snapshot) {
        if self.snapshot != *snapshot {
            self.snapshot = *snapshot;
            self.prepared = None;
        }
    }

    fn prepared(&mut self) -> &PreparedState {
        let (key, snapshot) = (&self.key, &self.snapshot);
        self.prepared.get_or_insert_with(|| PreparedState {
            midstate: Midstate::new(key, snapshot),
            data: option_data(snapshot),
        })
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> StamperCounters {
        self.counters
    }

    /// Writes the new headers to `out` and returns the number of replaced bytes at the front of the frame: the frame
    /// to send is `out`, then the frame without the replaced bytes.
    ///
    /// # Errors
    /// The packet must be sent unchanged; it is counted. `out` is empty.
    pub fn stamp(&mut self, frame: &[u8], counter: Counter, out: &mut Vec<u8>) -> Result<usize, FrameError> {
        let stamped = self.write_headers((frame, 0), counter, out);
        match stamped {
            Ok(_) => self.counters.stamped += 1,
            Err(error) => {
                out.clear();
                self.count(error);
            }
        }
        stamped
    }

    /// Like [`Self::stamp`] with only the front of a frame, so that a long frame need not be contiguous; `bytes_behind`
    /// bytes follow the front. Returns `None` if more bytes are required or nothing can be stamped, with unspecified bytes
    /// in `out`. The caller must then call [`Self::stamp`], which also counts the packet.
    pub fn stamp_front(
        &mut self,
        front: &[u8],
        bytes_behind: usize,
        counter: Counter,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let replaced = self.write_headers((front, bytes_behind), counter, out).ok()?;
        self.counters.stamped += 1;
        Some(replaced)
    }

    fn write_headers(
        &mut self,
        (front, bytes_behind): (&[u8], usize),
        counter: Counter,
        out: &mut Vec<u8>,
    ) -> Result<usize, FrameError> {
        out.clear();
        let packet = Ipv6::parse_front(&Ethernet::parse(front)?, bytes_behind)?;
        let prepared = self.prepared();
        // The tag is computed first, so that its computation overlaps with the copy.
        let tag = prepared.midstate.tag(counter, &Invariants::of_ipv6(&packet));
        let header_offset = packet.offset;
        let options_at = header_offset + packet.header.len();
        let replaced = options_at + packet.options.len();
        out.extend_from_slice(front.get(..options_at).unwrap_or_default());
        let data_at = write(packet.options, packet.next(), &prepared.data, out)?;
        let length = packet.after_bytes + out.len() - options_at;
        let length = u16::try_from(length).map_err(|_| FrameError::TooLong)?;
        let header = out.get_mut(header_offset..).unwrap_or_default();
        if let [_, _, _, _, high, low, next, ..] = header {
            [*high, *low] = length.to_be_bytes();
            *next = HOP_BY_HOP;
        }
        if let Some(data) = out.get_mut(data_at..).and_then(<[u8]>::first_chunk_mut) {
            write_counter_and_tag(counter, &tag, data);
        }
        debug_assert!(
            out.len() == replaced || out.len() == replaced + GROWTH,
            "one option added or replaced"
        );
        Ok(replaced)
    }

    /// Writes a clone of the frame.
    ///
    /// # Errors
    /// The frame is not valid; it is counted. `out` is empty.
    pub fn clone_frame(
        &mut self,
        frame: &[u8],
        counter: Counter,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        out.clear();
        let (ethernet, invariants) = match Ethernet::parse(frame) {
            // A truncated IP packet gets the invariants of a frame that is not IP: the MAC addresses and the length.
            Ok(ethernet) => {
                let invariants = Invariants::of(frame).unwrap_or_else(|_| Invariants::of_other(&ethernet));
                (ethernet, invariants)
            }
            Err(error) => {
                self.count(error);
                return Err(error);
            }
        };
        out.extend_from_slice(&[0xff; 6]);
        out.extend_from_slice(ethernet.addresses_and_tags.get(6..).unwrap_or_default());
        out.extend_from_slice(&CLONE_ETHERTYPE.to_be_bytes());
        let prepared = self.prepared();
        let mut data = prepared.data;
        write_counter_and_tag(counter, &prepared.midstate.tag(counter, &invariants), &mut data);
        let (head, content) = data.split_at(HEAD_BYTES);
        out.extend_from_slice(head);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&invariants.0);
        out.extend_from_slice(content);
        self.counters.cloned += 1;
        Ok(())
    }

    const fn count(&mut self, error: FrameError) {
        match error {
            FrameError::NotIpv6 => self.counters.not_ipv6 += 1,
            FrameError::Malformed => self.counters.malformed += 1,
            FrameError::TooLong => self.counters.too_long += 1,
        }
    }
}

/// The option data of a state, with zeros in the per-packet fields.
pub(super) fn option_data(snapshot: &Snapshot) -> [u8; DATA_BYTES] {
    let content = Content {
        fields: fields(snapshot),
        switch: snapshot.switch,
        boot_count: snapshot.boot_count,
        sequence: snapshot.sequence,
        counter: Counter(0),
        tag: Tag::default(),
    };
    let mut data = [0; DATA_BYTES];
    let (front, rest) = data.split_at_mut(HEAD_BYTES);
    front.copy_from_slice(&[1, 0, 0, 0]);
    rest.copy_from_slice(&content.to_bytes());
    data
}

/// Writes the per-packet fields.
fn write_counter_and_tag(counter: Counter, tag: &Tag, data: &mut [u8; DATA_BYTES]) {
    let (before, field) = data.split_at_mut(DATA_BYTES - tag.len());
    field.copy_from_slice(tag);
    if let Some(field) = before.last_chunk_mut() {
        *field = counter.0.to_be_bytes();
    }
}
