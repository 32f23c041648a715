//! Evidence in packets.
//!
//! **Carriers.** In IPv6 packets, an option of the hop-by-hop header: `next header | 12 | 0x37 | 100 | 4 bytes | 96
//! bytes of content`, 104 bytes in all. If a packet has a hop-by-hop header, the option is added to that header, after
//! two bytes of padding (`1 | 0`). For any frame, a separate frame, its clone: `ff:ff:ff:ff:ff:ff | the frame's source
//! MAC | its VLAN tags | 0x5241 | content`.
//!
//! **Content**, 96 bytes: `registers[16] | tables[16] | program[16] | switch id u64 | boot count u64 |
//! sequence u64 | counter u64 | tag[16]`. In the option the 4 bytes are `1 | 0 | 0 | 0`; in the clone `1 | 0[7] |
//! invariants[48]` precede it, 152 bytes in all. With the key `F(master, switch id | boot count)`, where F is
//! SipHash-2-4 with 128 bits of output:
//!
//! `tag = F(key, "evidence" | registers[32] | tables[32] | program[32] | switch id | sequence | counter |
//! invariants[48])`
//!
//! over the full digests, which the appraiser knows from a signed statement or from reference values. All but the
//! last 56 bytes are the same for every packet of a state and are hashed once. The counter never repeats under one
//! key; the appraiser records the last counters in a window. [`Invariants`] are the part of the packet that the tag
//! binds: the tag does not bind the remaining payload.
//!
//! Options 0x37 written by a P4 program are overwritten. A packet that passes several switches carries the content of
//! the last switch.

mod appraiser;
mod content;
mod detection;
mod option;
mod packet;
mod stamper;
mod tag;
mod template;

pub use appraiser::{Appraiser, PacketEvidence, PacketEvidenceError};
pub use content::{CarriedEvidence, Content, is_clone, read_clone, read_option};
pub use detection::resembles_evidence;
pub use packet::Invariants;
pub use stamper::{Stamper, StamperCounters};
pub use tag::{EvidenceKey, MasterKey};
pub use template::Template;

/// The Ethernet type of clones.
pub const CLONE_ETHERTYPE: u16 = 0x5241;

/// The tag of the content.
pub type Tag = [u8; 16];

/// The number of a packet under one key, from 1; never repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter(pub u64);

/// Why a frame cannot carry evidence, or its evidence cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not IPv6: only a clone can carry evidence of the frame.
    #[error("not an IPv6 packet")]
    NotIpv6,
    /// A length contradicts the frame, or a header is truncated.
    #[error("malformed or truncated headers")]
    Malformed,
    /// The option would exceed the maximum length of the packet or header, or the packet is a jumbogram.
    #[error("no room for the option: the packet or hop-by-hop header would be too long")]
    TooLong,
}
