//! Puts evidence into packets.

use super::carried::{CONTENT_BYTES, Content, Route, SWITCH_BYTES, Tagged};
use super::option::{DATA_BYTES, GROWTH, write};
use super::packet::{Ethernet, HOP_BY_HOP, Invariants, Ipv6};
use super::tag::{EvidenceKey, Midstate};
use super::{CLONE_ETHERTYPE, Counter, FrameError, Tag};
use crate::state::Snapshot;

/// Bytes of the option's data before its content.
const HEAD_BYTES: usize = DATA_BYTES - CONTENT_BYTES;

/// Which content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The attesting BMv2's: nothing in it is proven.
    Classic,
    /// With a tag.
    Default,
}

/// What a stamper has done, packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets with an option.
    pub stamped: u64,
    /// Clones.
    pub cloned: u64,
    /// Left alone: no IPv6.
    pub not_ipv6: u64,
    /// Left alone: malformed or cut off.
    pub malformed: u64,
    /// Left alone: no room.
    pub too_long: u64,
}

/// Puts evidence of one state into packets, for one core. Holds a key's hash state, never shown.
#[derive(Clone, Debug)]
pub struct Stamper {
    key: EvidenceKey,
    form: Form,
    snapshot: Snapshot,
    /// Of the snapshot, once a packet has been stamped with it: where packets write registers, many a state is never shown.
    prepared: Option<Prepared>,
    counts: Counts,
}

/// What is the same for all packets of a state.
#[derive(Clone, Debug)]
struct Prepared {
    midstate: Midstate,
    /// The option's data but for what is each packet's own: counter and tag, or the way of classic content.
    data: [u8; DATA_BYTES],
}

impl Stamper {
    /// For this state. `key` is [`super::MasterKey::key`] of the snapshot's switch and boot count.
    #[must_use]
    pub fn new(key: EvidenceKey, form: Form, snapshot: &Snapshot) -> Self {
        Self {
            key,
            form,
            snapshot: *snapshot,
            prepared: None,
            counts: Counts::default(),
        }
    }

    /// Goes on with another state of the same data plane.
    pub fn update(&mut self, snapshot: &Snapshot) {
        if self.snapshot != *snapshot {
            self.snapshot = *snapshot;
            self.prepared = None;
        }
    }

    fn prepared(&mut self) -> &Prepared {
        let (key, form, snapshot) = (&self.key, self.form, &self.snapshot);
        self.prepared.get_or_insert_with(|| Prepared {
            midstate: Midstate::new(key, snapshot),
            data: data(form, snapshot),
        })
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes the headers that stand at the frame's front instead of its first bytes, whose number is returned: the frame to send is `out`,
    /// then the frame from there on. `upstream` is [`super::carried::read_option`]'s route of the packet as it came in.
    ///
    /// # Errors
    /// The packet has to leave as it is; it is counted. `out` is empty then.
    pub fn stamp(
        &mut self,
        frame: &[u8],
        counter: Counter,
        upstream: Option<&Route>,
        out: &mut Vec<u8>,
    ) -> Result<usize, FrameError> {
        let stamped = self.write_headers((frame, 0), counter, upstream, out);
        match stamped {
            Ok(_) => self.counts.stamped += 1,
            Err(error) => {
                out.clear();
                self.count(error);
            }
        }
        stamped
    }

    /// The same by a frame's front, so that a long frame need not lie in one piece: behind it lie so many more bytes. Nothing if more
    /// must be read, or nothing can be stamped: [`Self::stamp`] tells, and counts. What `out` holds is worth nothing then.
    pub fn stamp_front(
        &mut self,
        front: &[u8],
        behind: usize,
        counter: Counter,
        upstream: Option<&Route>,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let taken = self.write_headers((front, behind), counter, upstream, out).ok()?;
        self.counts.stamped += 1;
        Some(taken)
    }

    fn write_headers(
        &mut self,
        (front, behind): (&[u8], usize),
        counter: Counter,
        upstream: Option<&Route>,
        out: &mut Vec<u8>,
    ) -> Result<usize, FrameError> {
        out.clear();
        let packet = Ipv6::of_front(&Ethernet::of(front)?, behind)?;
        let form = self.form;
        let prepared = self.prepared();
        // First, so that it is computed while the rest is copied.
        let tag = match form {
            Form::Classic => Tag::default(),
            Form::Default => prepared.midstate.tag(counter, &Invariants::of_ipv6(&packet)),
        };
        let at = packet.at;
        let options_at = at + packet.header.len();
        let taken = options_at + packet.options.len();
        out.extend_from_slice(front.get(..options_at).unwrap_or_default());
        let data_at = write(packet.options, packet.next(), &prepared.data, out)?;
        let length = packet.after_bytes + out.len() - options_at;
        let length = u16::try_from(length).map_err(|_| FrameError::TooLong)?;
        let header = out.get_mut(at..).unwrap_or_default();
        if let [_, _, _, _, high, low, next, ..] = header {
            [*high, *low] = length.to_be_bytes();
            *next = HOP_BY_HOP;
        }
        if let Some(data) = out.get_mut(data_at..).and_then(<[u8]>::first_chunk_mut) {
            match form {
                Form::Classic => pass_on(upstream, data),
                Form::Default => sign(counter, &tag, data),
            }
        }
        debug_assert!(
            out.len() == taken || out.len() == taken + GROWTH,
            "one option more or none"
        );
        Ok(taken)
    }

    /// Writes a clone of the frame.
    ///
    /// # Errors
    /// No frame; it is counted. `out` is empty then.
    pub fn clone_frame(
        &mut self,
        frame: &[u8],
        counter: Counter,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        out.clear();
        let (ethernet, invariants) = match Ethernet::of(frame) {
            // Of a packet that is cut off, its frame is told.
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
        out.extend_from_slice(ethernet.head.get(6..).unwrap_or_default());
        out.extend_from_slice(&CLONE_ETHERTYPE.to_be_bytes());
        let form = self.form;
        let prepared = self.prepared();
        match form {
            Form::Classic => out.extend_from_slice(fields_of(&prepared.data).unwrap_or(&[0; SWITCH_BYTES])),
            Form::Default => {
                let mut data = prepared.data;
                sign(counter, &prepared.midstate.tag(counter, &invariants), &mut data);
                let (head, content) = data.split_at(HEAD_BYTES);
                out.extend_from_slice(head);
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&invariants.0);
                out.extend_from_slice(content);
            }
        }
        self.counts.cloned += 1;
        Ok(())
    }

    const fn count(&mut self, error: FrameError) {
        match error {
            FrameError::NotIpv6 => self.counts.not_ipv6 += 1,
            FrameError::Malformed => self.counts.malformed += 1,
            FrameError::TooLong => self.counts.too_long += 1,
        }
    }
}

/// The option's data of a state, with zeros for what is each packet's own.
pub(super) fn data(form: Form, snapshot: &Snapshot) -> [u8; DATA_BYTES] {
    let fields = fields(snapshot);
    let (head, content) = match form {
        Form::Classic => ([0; HEAD_BYTES], Content::Classic { fields, route: None }),
        Form::Default => {
            let content = Content::Default(Tagged {
                fields,
                switch: snapshot.switch,
                boot_count: snapshot.boot_count,
                sequence: snapshot.sequence,
                counter: Counter(0),
                tag: Tag::default(),
            });
            ([1, 0, 0, 0], content)
        }
    };
    let mut data = [0; DATA_BYTES];
    let (front, rest) = data.split_at_mut(HEAD_BYTES);
    front.copy_from_slice(&head);
    rest.copy_from_slice(&content.to_bytes());
    data
}

/// Writes what is each packet's own in default content.
fn sign(counter: Counter, tag: &Tag, data: &mut [u8; DATA_BYTES]) {
    let (before, place) = data.split_at_mut(DATA_BYTES - tag.len());
    place.copy_from_slice(tag);
    if let Some(place) = before.last_chunk_mut() {
        *place = counter.0.to_be_bytes();
    }
}

/// Likewise the way of classic content.
pub(super) fn pass_on(upstream: Option<&Route>, data: &mut [u8; DATA_BYTES]) {
    let route = fields_of(data).map(|fields| Route::joined(upstream, fields));
    if let (Some(place), Some(route)) = (data.last_chunk_mut(), route) {
        *place = route.0;
    }
}

/// The three fields in an option's data.
fn fields_of(data: &[u8; DATA_BYTES]) -> Option<&[u8; SWITCH_BYTES]> {
    let (_, content) = data.split_at(HEAD_BYTES);
    content.first_chunk()
}

/// The three fields of 16 bytes.
pub(super) fn fields(snapshot: &Snapshot) -> [u8; SWITCH_BYTES] {
    let digests = &snapshot.digests;
    let mut fields = [0; SWITCH_BYTES];
    let shorts = [digests.registers, digests.tables, digests.program].map(|digest| digest.short());
    for (place, short) in fields.as_chunks_mut::<16>().0.iter_mut().zip(shorts) {
        *place = short;
    }
    fields
}
