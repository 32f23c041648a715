//! Evidence in packets.
//!
//! **Carriers.** In IPv6 packets, an option of the hop-by-hop header: `next header | 12 | 0x37 | 100 | 4 bytes | 96 bytes of content`, 104 in
//! all. A packet that has a hop-by-hop header gets the option added to it, behind two bytes of padding (`1 | 0`). Of any frame, a
//! clone: `ff:ff:ff:ff:ff:ff | the frame's source MAC | its VLAN tags | 0x5241 | content`.
//!
//! **Classic content** (the attesting BMv2's): three fields of 16 bytes, registers, tables, program. In the option the 4 bytes are zero, and
//! three more fields follow, each the XOR over the switches on the way; they are taken from the packet as it came in, never from what
//! the P4 program has made of it. In the clone the three fields are all. Nothing in it is proven.
//!
//! **Default content**, 96 bytes: `registers[16] | tables[16] | program[16] | switch id u64 | boot count u64 | sequence u64 | counter u64 | tag[16]`.
//! In the option the 4 bytes are `1 | 0 | 0 | 0`; in the clone `1 | 0[7] | invariants[48]` stand in front, 152 bytes in all. With the key
//! `F(master, switch id | boot count)`, F being SipHash-2-4 with 128 bits of output:
//!
//! `tag = F(key, "evidence" | registers[32] | tables[32] | program[32] | switch id | sequence | counter | invariants[48])`
//!
//! over the full digests, which the appraiser knows from a signed statement or from reference values. All but the last 56
//! bytes is the same for every packet of a state and is hashed once. The counter never repeats under one key; the appraiser
//! keeps a window of it. [`Invariants`] are what the tag binds of the packet: its payload beyond them is not bound.
//!
//! Whatever a P4 program has written into options 0x37 of a packet is overwritten. Of several switches on a way the last one's
//! default content is in the packet.

mod appraiser;
mod carried;
mod option;
mod packet;
mod resembling;
mod stamper;
mod tag;
mod template;

pub use appraiser::{Appraiser, PacketEvidence, Refused};
pub use carried::{Carried, Content, Route, Tagged, is_clone, read_clone, read_option};
pub use packet::Invariants;
pub use resembling::resembles_evidence;
pub use stamper::{Counts, Form, Stamper};
pub use tag::{EvidenceKey, MasterKey};
pub use template::Template;

/// The Ethernet type of clones.
pub const CLONE_ETHERTYPE: u16 = 0x5241;

/// A tag.
pub type Tag = [u8; 16];

/// The number of a packet under one key, from 1; never the same twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter(pub u64);

/// Why a frame cannot carry evidence, or carries none that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not IPv6: only a clone can tell of it.
    #[error("no IPv6 packet")]
    NotIpv6,
    /// A length that is not what is there, or a header that ends too early.
    #[error("the frame's headers are malformed or cut off")]
    Malformed,
    /// With the option it would be longer than a packet or a header can be, or it is a jumbogram.
    #[error("no room for the option: packet or hop-by-hop header would be too long")]
    TooLong,
}
