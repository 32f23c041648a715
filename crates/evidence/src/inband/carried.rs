//! Evidence as it is read from packets: nothing in it is proven yet.

use super::option::{DATA_BYTES, find};
use super::packet::{Ethernet, Invariants, Ipv6};
use super::{CLONE_ETHERTYPE, Counter, FrameError, Tag};
use crate::ids::{BootCount, Sequence, SwitchId};

/// The three fields of a switch.
pub(super) const SWITCH_BYTES: usize = 48;
/// Of the option.
pub(super) const CONTENT_BYTES: usize = 96;

/// The XOR of the three fields over the switches that a packet has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(pub [u8; 48]);

/// What a packet carries, with what the tag binds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The content.
    pub content: Content,
    /// Of the packet, or as the clone tells them.
    pub invariants: Invariants,
}

/// Either content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Classic.
    Classic {
        /// Registers, tables, program of the last switch, 16 bytes each.
        fields: [u8; 48],
        /// Over all switches; a clone has none.
        route: Option<Route>,
    },
    /// Default.
    Default(Tagged),
}

/// The default content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Registers, tables, program, the first 16 bytes of each digest.
    pub fields: [u8; 48],
    /// Which switch.
    pub switch: SwitchId,
    /// Since which start.
    pub boot_count: BootCount,
    /// Of which state.
    pub sequence: Sequence,
    /// Which packet.
    pub counter: Counter,
    /// What proves it.
    pub tag: Tag,
}

impl Route {
    /// A switch's fields and those of the switches before it.
    pub(super) fn joined(upstream: Option<&Self>, fields: &[u8; SWITCH_BYTES]) -> Self {
        let mut joined = *fields;
        if let Some(Self(upstream)) = upstream {
            joined
                .iter_mut()
                .zip(upstream)
                .for_each(|(byte, other)| *byte ^= other);
        }
        Self(joined)
    }

    /// What a packet carries that has passed these switches, in any order; two equal ones cancel each other.
    #[must_use]
    pub fn over<'a>(switches: impl IntoIterator<Item = &'a crate::state::Snapshot>) -> Self {
        let join = |route, snapshot| Self::joined(Some(&route), &super::stamper::fields(snapshot));
        switches.into_iter().fold(Self([0; SWITCH_BYTES]), join)
    }
}

impl Content {
    /// As in the option, without the 4 bytes in front.
    pub(super) fn to_bytes(self) -> [u8; CONTENT_BYTES] {
        let mut bytes = [0; CONTENT_BYTES];
        let (first, rest) = bytes.split_at_mut(SWITCH_BYTES);
        match self {
            Self::Classic { fields, route } => {
                first.copy_from_slice(&fields);
                rest.copy_from_slice(&route.map_or([0; SWITCH_BYTES], |route| route.0));
            }
            Self::Default(content) => {
                first.copy_from_slice(&content.fields);
                let Tagged {
                    switch,
                    boot_count,
                    sequence,
                    counter,
                    ..
                } = content;
                let (numbers, tag) = rest.split_at_mut(32);
                let values = [switch.0, boot_count.0, sequence.0, counter.0];
                for (place, value) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(values) {
                    *place = value.to_be_bytes();
                }
                tag.copy_from_slice(&content.tag);
            }
        }
        bytes
    }

    fn default_from(bytes: &[u8; CONTENT_BYTES]) -> Option<Self> {
        let (fields, rest) = bytes.split_first_chunk::<SWITCH_BYTES>()?;
        let (numbers, tag) = rest.split_first_chunk::<32>()?;
        let [switch, boot_count, sequence, counter] = numbers.as_chunks::<8>().0 else {
            return None;
        };
        Some(Self::Default(Tagged {
            fields: *fields,
            switch: SwitchId(u64::from_be_bytes(*switch)),
            boot_count: BootCount(u64::from_be_bytes(*boot_count)),
            sequence: Sequence(u64::from_be_bytes(*sequence)),
            counter: Counter(u64::from_be_bytes(*counter)),
            tag: *tag.first_chunk()?,
        }))
    }

    fn of_option(data: &[u8; DATA_BYTES]) -> Option<Self> {
        let (head, content) = data.split_first_chunk::<4>()?;
        let content = content.first_chunk::<CONTENT_BYTES>()?;
        match head {
            [0, 0, 0, 0] => Some(Self::Classic {
                fields: *content.first_chunk()?,
                route: Some(Route(*content.last_chunk()?)),
            }),
            [1, 0, 0, 0] => Self::default_from(content),
            _ => None,
        }
    }
}

/// Whether a frame is of evidence's Ethernet type, behind its VLAN tags.
#[must_use]
pub fn is_clone(frame: &[u8]) -> bool {
    Ethernet::of(frame).is_ok_and(|ethernet| ethernet.ethertype == CLONE_ETHERTYPE)
}

/// Reads the evidence of an IPv6 packet; nothing if there is none. A frame that says two things at once is malformed.
///
/// # Errors
/// No packet to read it from.
pub fn read_option(frame: &[u8]) -> Result<Option<Carried>, FrameError> {
    let packet = Ipv6::of(&Ethernet::of(frame)?)?;
    let found = find(packet.options)?;
    let data = match found.as_slice() {
        [] => return Ok(None),
        [one] => packet.options.get(one.clone()),
        _ => None,
    };
    let content = data
        .and_then(|data| data.try_into().ok())
        .and_then(Content::of_option)
        .ok_or(FrameError::Malformed)?;
    let invariants = Invariants::of_ipv6(&packet);
    Ok(Some(Carried { content, invariants }))
}

/// Reads a clone; nothing if the frame is none.
///
/// # Errors
/// Its Ethernet type says that it is one, but it has no content.
pub fn read_clone(frame: &[u8]) -> Result<Option<Carried>, FrameError> {
    let ethernet = Ethernet::of(frame)?;
    if ethernet.ethertype != CLONE_ETHERTYPE {
        return Ok(None);
    }
    let classic = |fields: &[u8; SWITCH_BYTES]| Carried {
        content: Content::Classic {
            fields: *fields,
            route: None,
        },
        invariants: Invariants([0; Invariants::BYTES]),
    };
    let default = |payload: &[u8]| {
        let rest = payload.strip_prefix(&[1, 0, 0, 0, 0, 0, 0, 0])?;
        let (invariants, content) = rest.split_first_chunk()?;
        Some(Carried {
            content: Content::default_from(content.try_into().ok()?)?,
            invariants: Invariants(*invariants),
        })
    };
    let carried = match <&[u8; SWITCH_BYTES]>::try_from(ethernet.payload) {
        Ok(fields) => Some(classic(fields)),
        Err(_) => default(ethernet.payload),
    };
    carried.map(Some).ok_or(FrameError::Malformed)
}
