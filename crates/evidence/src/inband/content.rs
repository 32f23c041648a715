//! Evidence parsed from packets, not verified.

use super::option::{DATA_BYTES, find};
use super::packet::{Ethernet, Invariants, Ipv6};
use super::{CLONE_ETHERTYPE, Counter, FrameError, Tag};
use crate::ids::{BootCount, Sequence, SwitchId};
use crate::state::Snapshot;

/// Length of the three fields of a switch: registers, tables and program.
pub(super) const SWITCH_BYTES: usize = 48;
/// Length of the option content.
pub(super) const CONTENT_BYTES: usize = 96;

/// The evidence of a packet, with the invariants that its tag binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedEvidence {
    /// The content.
    pub content: Content,
    /// The invariants computed from the packet, or the invariants that the clone carries.
    pub invariants: Invariants,
}

/// The content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The first 16 bytes of each digest: registers, tables and program.
    pub fields: [u8; 48],
    /// The id of the switch.
    pub switch: SwitchId,
    /// The number of starts of the switch.
    pub boot_count: BootCount,
    /// The number of the state since this start.
    pub sequence: Sequence,
    /// The number of the packet.
    pub counter: Counter,
    /// The tag.
    pub tag: Tag,
}

impl Content {
    /// The 96 bytes of content, which follow the first 4 bytes of the option data.
    pub(super) fn to_bytes(self) -> [u8; CONTENT_BYTES] {
        let mut bytes = [0; CONTENT_BYTES];
        let (first, rest) = bytes.split_at_mut(SWITCH_BYTES);
        first.copy_from_slice(&self.fields);
        let (numbers, tag) = rest.split_at_mut(32);
        let values = [self.switch.0, self.boot_count.0, self.sequence.0, self.counter.0];
        for (field, value) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(values) {
            *field = value.to_be_bytes();
        }
        tag.copy_from_slice(&self.tag);
        bytes
    }

    fn from_bytes(bytes: &[u8; CONTENT_BYTES]) -> Option<Self> {
        let (fields, rest) = bytes.split_first_chunk::<SWITCH_BYTES>()?;
        let (numbers, tag) = rest.split_first_chunk::<32>()?;
        let [switch, boot_count, sequence, counter] = numbers.as_chunks::<8>().0 else {
            return None;
        };
        Some(Self {
            fields: *fields,
            switch: SwitchId(u64::from_be_bytes(*switch)),
            boot_count: BootCount(u64::from_be_bytes(*boot_count)),
            sequence: Sequence(u64::from_be_bytes(*sequence)),
            counter: Counter(u64::from_be_bytes(*counter)),
            tag: *tag.first_chunk()?,
        })
    }

    fn of_option(data: &[u8; DATA_BYTES]) -> Option<Self> {
        let (head, content) = data.split_first_chunk::<4>()?;
        match head {
            [1, 0, 0, 0] => Self::from_bytes(content.first_chunk()?),
            _ => None,
        }
    }
}

/// Whether a frame has the Ethernet type of clones, after its VLAN tags.
#[must_use]
pub fn is_clone(frame: &[u8]) -> bool {
    Ethernet::parse(frame).is_ok_and(|ethernet| ethernet.ethertype == CLONE_ETHERTYPE)
}

/// Parses the evidence of an IPv6 packet; `None` if it has none.
///
/// # Errors
/// The frame is not an IPv6 packet or is malformed, or it has several options 0x37, or an option 0x37 of another length or
/// format.
pub fn read_option(frame: &[u8]) -> Result<Option<CarriedEvidence>, FrameError> {
    let packet = Ipv6::parse(&Ethernet::parse(frame)?)?;
    let ranges = find(packet.options)?;
    let data = match ranges.as_slice() {
        [] => return Ok(None),
        [range] => packet.options.get(range.clone()),
        _ => None,
    };
    let content = data
        .and_then(|data| data.try_into().ok())
        .and_then(Content::of_option)
        .ok_or(FrameError::Malformed)?;
    let invariants = Invariants::of_ipv6(&packet);
    Ok(Some(CarriedEvidence { content, invariants }))
}

/// Parses a clone; `None` if the frame is not a clone.
///
/// # Errors
/// The frame is truncated, or has the Ethernet type of a clone but no content of this format.
pub fn read_clone(frame: &[u8]) -> Result<Option<CarriedEvidence>, FrameError> {
    let ethernet = Ethernet::parse(frame)?;
    if ethernet.ethertype != CLONE_ETHERTYPE {
        return Ok(None);
    }
    let parse = |payload: &[u8]| {
        let rest = payload.strip_prefix(&[1, 0, 0, 0, 0, 0, 0, 0])?;
        let (invariants, content) = rest.split_first_chunk()?;
        Some(CarriedEvidence {
            content: Content::from_bytes(content.try_into().ok()?)?,
            invariants: Invariants(*invariants),
        })
    };
    let carried = parse(ethernet.payload);
    carried.map(Some).ok_or(FrameError::Malformed)
}

/// The three fields of 16 bytes.
pub(super) fn fields(snapshot: &Snapshot) -> [u8; SWITCH_BYTES] {
    let digests = &snapshot.digests;
    let mut fields = [0; SWITCH_BYTES];
    let shorts = [digests.registers, digests.tables, digests.program].map(|digest| digest.short());
    for (field, short) in fields.as_chunks_mut::<16>().0.iter_mut().zip(shorts) {
        *field = short;
    }
    fields
}
