//! Memory that a packet path and user space share: the mirror of `xdp/bpf/lw_layout.h`, field by field.
//!
//! The same structures back the `xdp` data plane (BPF arrays, mapped) and the `host` data plane (anonymous memory),
//! so that rows are installed, refilled, revoked and recovered by one piece of code. Every field that both sides
//! write while packets flow is atomic; plain bytes on the wire are kept as the words that a native load gives.

use core::mem::offset_of;
use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use linewarden_protocol::gateway::DROPPED_TYPES;
use linewarden_protocol::sources::{PREFIXES_MAX, REFUSED_MAX};

/// Types that may be laid over zeroed shared memory.
///
/// # Safety
/// `repr(C)`, no padding that matters, valid when all bytes are zero, and made of atomics only, so that shared
/// references may coexist with writers in the kernel.
pub unsafe trait Shared: Sync {}

/// They hold keys or responses, which no log shall show.
macro_rules! print_nothing {
    ($($name:ident),*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        })*
    };
}
print_nothing!(
    Line,
    Session,
    RingRow,
    ProverLine,
    WaitingProof,
    AlternateKey,
    ClassicCrp,
    P4draProver
);

/// The device's hot line: all that a REQUEST reads, in one cache line.
#[repr(C, align(64))]
pub struct Line {
    /// 0: the slot is empty. As on the wire, loaded natively.
    pub device_id: AtomicU64,
    /// `idx u32 | gen u24 | flags u8`, see [`linewarden_protocol::commit::CommitWord`].
    pub commit: AtomicU64,
    /// `gen u8 | top u32 | bitmap u24`.
    pub window: AtomicU64,
    /// First 8 bytes of the winning tag as loaded; 0: no session.
    pub session_id: AtomicU64,
    /// Challenge of the current row, as on the wire.
    pub challenge: AtomicU64,
    /// Key of the current row; zero, and never used, unless VALID or BUSY.
    pub auth_key: [AtomicU64; 2],
    /// End of the session's lease, boot-time clock, seconds.
    pub lease_until_s: AtomicU32,
    /// Number of its session and of its rows.
    pub slot: AtomicU32,
}

/// The session that the line's `session_id` names.
#[repr(C, align(64))]
pub struct Session {
    /// Key shared with the device.
    pub session_key: [AtomicU64; 2],
    /// The winning RESPONSE.tag.
    pub tag: [AtomicU64; 2],
    /// IPv6, or IPv4 as ::ffff:a.b.c.d.
    pub addr: [AtomicU64; 2],
    /// Interface that the session is bound to.
    pub ingress: AtomicU32,
    /// UDP source port, as on the wire.
    pub port: AtomicU16,
    /// MAC address as three 16-bit loads.
    pub mac: [AtomicU16; 3],
    /// `VID | VLAN_TAGGED`, with [`VLAN_SERVICE`] by the tag's type; the first carries [`BOUND`].
    pub vlan: [AtomicU16; 2],
}

/// Mark of a VLAN word that holds a VLAN.
pub const VLAN_TAGGED: u16 = 0x1000;
/// Mark of a VLAN word whose tag is of type 0x88a8.
pub const VLAN_SERVICE: u16 = 0x2000;
/// Mark, in the session's first VLAN word, of a BOUND session.
pub const BOUND: u16 = 0x8000;

/// A row ahead of the line's own, 24 B. `auth_key[1]` is stored last and taken first; 0 means absent.
#[repr(C)]
pub struct RingRow {
    /// Challenge, as on the wire.
    pub challenge: AtomicU64,
    /// Key.
    pub auth_key: [AtomicU64; 2],
}

/// Lines of a home: a device's home is found by hashing its id; a line's place is `home * 4 + way`.
pub const HOME_WAYS: usize = 4;

/// Four words of a key; the first is 0 where there is none.
pub type KeyCells = [AtomicU64; 4];

/// A prover in the periods of one lane (LAP/1 3.2): all that a PROOF needs, in a cache line. Periods with even and odd numbers
/// have a lane each, and so have rounds.
#[repr(C, align(64))]
pub struct ProverLine {
    /// 0: the place is empty. As on the wire, loaded natively.
    pub device_id: AtomicU64,
    /// By lane of the round: its mark u16, bits 1 to 16 of its number | [`PROVED`] u1 | [`ALTERNATE`] u1 | elapsed u14; 0: none.
    pub proved: [AtomicU32; 2],
    /// What it may prove.
    pub key: KeyCells,
    /// Number of its alternate keys.
    pub slot: AtomicU32,
    /// Zero.
    pub pad: [AtomicU32; 3],
}

/// Where a verdict has its round's mark.
pub const MARK_SHIFT: u32 = 16;
/// There is a verdict.
pub const PROVED: u32 = 1 << 15;
/// The configuration that is being rolled out was proven.
pub const ALTERNATE: u32 = 1 << 14;
/// The longest time that a proof took, in units of [`Round::elapsed_shift`].
pub const ELAPSED_MAX: u32 = ALTERNATE - 1;

/// The key of the configuration that is being rolled out, in one period.
#[repr(C)]
pub struct AlternateKey {
    /// Its words.
    pub word: KeyCells,
}

/// A round that is open.
#[derive(Debug)]
#[repr(C)]
pub struct Round {
    /// gateway_id and number, as on the wire; 0: none.
    pub r: AtomicU64,
    /// As on the wire.
    pub nonce: AtomicU64,
    /// CLOCK_MONOTONIC, ns.
    pub started_ns: AtomicU64,
    /// Likewise.
    pub until_ns: AtomicU64,
    /// Its number.
    pub number: AtomicU32,
    /// Lane of its period.
    pub key_lane: AtomicU32,
    /// The time that a proof took is kept in units of 2^this ns: no division, and the whole round fits.
    pub elapsed_shift: AtomicU32,
    /// Zero.
    pub pad: [AtomicU32; 5],
}

/// The newest round with an even number and the newest with an odd one, by lane; both may be running.
#[derive(Debug)]
#[repr(C)]
pub struct OpenRounds {
    /// Of even and of odd numbers.
    pub lane: [Round; 2],
}

/// By CPU, a PROOF that has passed all checks but that of its block, and waits for the next one there or for user space.
#[repr(C, align(64))]
pub struct WaitingProof {
    /// One of the constants below.
    pub state: AtomicU32,
    /// Of its prover.
    pub line: AtomicU32,
    /// The prover's word, as it was.
    pub before: AtomicU32,
    /// What becomes of that, but for [`ALTERNATE`].
    pub after: AtomicU32,
    /// Where it came from.
    pub addr: [AtomicU64; 2],
    /// Likewise.
    pub ingress: AtomicU32,
    /// Zero.
    pub pad: AtomicU32,
    /// As on the wire, loaded natively.
    pub device_id: AtomicU64,
    /// Likewise.
    pub r: AtomicU64,
    /// Likewise.
    pub nonce: AtomicU64,
    /// Likewise.
    pub proof: [AtomicU64; 8],
    /// User space's: how many of those that it took were ok, ok already, wrong, and without a key.
    pub settled: [AtomicU64; 4],
    /// Zero.
    pub room: [AtomicU64; 4],
}
/// Nothing waits; the packet path fills the place.
pub const WAITING_FREE: u32 = 0;
/// Whoever swaps this settles what waits.
pub const WAITING_FULL: u32 = 1;
/// That is being done: by user space, which reads it, or by the packet path, until it is settled.
pub const WAITING_TAKEN: u32 = 2;

/// Entries of a bucket.
pub const WAYS: usize = 4;

/// Bucket of a two-choice hash table; an entry is `fingerprint << 32 | place of the line + 1`, 0 is free.
#[derive(Debug)]
#[repr(C)]
pub struct Bucket {
    /// The entries.
    pub entry: [AtomicU64; WAYS],
}

/// Words of a filter block.
pub const FILTER_WORDS: usize = 8;

/// Block of a Bloom filter: a cache line.
#[derive(Debug)]
#[repr(C)]
pub struct FilterBlock {
    /// One bit of each is an id's.
    pub word: [AtomicU64; FILTER_WORDS],
}

/// What user space keeps of a device beside its rows; the packet path does not look at it.
#[derive(Debug)]
#[repr(C)]
pub struct Note {
    /// The idx after the last row ever given.
    pub end: AtomicU32,
    /// Rows below it may be spent; all ones: all.
    pub mark: AtomicU32,
    /// Epoch of the credentials, and one; 0: unknown.
    pub epoch: AtomicU32,
    /// Of the newest ticket request that was accepted: `generation u8 | serial u24`, the generation as in the window word.
    pub ticket: AtomicU32,
}

/// Place of an expected RESPONSE; 0 is free.
#[derive(Debug)]
#[repr(C)]
pub struct Expected(pub AtomicU64);

/// RESPONSEs that the slow path remembers.
pub const EXPECTED: u32 = 65_536;
/// Cells in which messages for the slow path are counted by source, per CPU or thread.
pub const SOURCES: usize = 16_384;

/// Interfaces on the devices' side that there is room for, and MAC addresses of each.
pub const PORTS: usize = 64;
#[allow(missing_docs, reason = "see PORTS")]
pub const PORT_MACS: usize = 8;

/// An interface on the devices' side, at the place that its number names, or behind.
#[derive(Debug)]
#[repr(C)]
pub struct Port {
    /// Its number; 0: the place is free.
    pub ifindex: AtomicU64,
    /// As [`crate::host`] has them in words: its own first, then those of what frames go on to from it; all ones where there is
    /// none.
    pub mac: [AtomicU64; PORT_MACS],
}

/// A prefix of source addresses, as loaded.
#[derive(Debug)]
#[repr(C)]
pub struct SourcePrefix {
    /// The address, masked.
    pub net: [AtomicU64; 2],
    /// Ones for the bits that count.
    pub mask: [AtomicU64; 2],
}

/// Which source addresses of one family can be a device's.
#[derive(Debug)]
#[repr(C)]
pub struct Sources {
    /// Not 0: what is in the first prefix, and not one of the first two addresses, is a device's. The packet path reads this field
    /// only for IPv6; for IPv4 it reads [`Control::ip4_prefix`].
    pub quick: AtomicU32,
    /// Not 0: loopback addresses are admitted, if the prefixes contain them.
    pub loopback: AtomicU32,
    /// Prefixes that there are.
    pub prefixes: AtomicU32,
    /// Likewise, of `address`.
    pub refused: AtomicU32,
    /// The prefixes.
    pub prefix: [SourcePrefix; PREFIXES_MAX],
    /// Inside the prefixes, and no device's.
    pub address: [[AtomicU64; 2]; REFUSED_MAX],
}

/// By family: IPv4, IPv6.
#[derive(Debug)]
#[repr(C)]
pub struct SourceBank {
    #[allow(missing_docs, reason = "see the structure")]
    pub family: [Sources; 2],
}

/// What user space writes while packets flow.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// As on the wire; 0: nothing is answered.
    pub fresh_current: AtomicU64,
    /// The value before; 0: none.
    pub fresh_previous: AtomicU64,
    /// CLOCK_MONOTONIC when `fresh_current` was drawn, ns.
    pub fresh_at_ns: AtomicU64,
    /// Not 0: REQUESTs are answered with a NAK.
    pub stopping: AtomicU64,
    /// Not 0: user space sleeps, and wants to be woken by what it must act on.
    pub listening: AtomicU64,
    /// Not 0: the filter holds every device that is enrolled.
    pub filtering: AtomicU64,
    /// IPv4 sources of devices, if one prefix and at most two refused addresses describe all of them. Upper 32 bits: the prefix's last
    /// address; lower 32 bits: its host mask; both as the packet path loads a word of a packet. 0 matches no device.
    pub ip4_prefix: AtomicU64,
    /// The two refused addresses, 32 bits each, loaded in the same way.
    pub ip4_refused: AtomicU64,
    /// Settings that may change.
    pub live: LiveCells,
    /// Number of the process that the memory belongs to.
    pub owner: AtomicU64,
    /// Layout, gateway, sizes and hash seed: who may take the memory up.
    pub identity: [AtomicU64; 4],
    /// Its lowest bit names the one of `sources` that is in force; the other is written.
    pub source_bank: AtomicU64,
    /// Where devices may be.
    pub sources: [SourceBank; 2],
    /// Interfaces on their side.
    pub port: [Port; PORTS],
}

/// Settings that may change while packets flow.
#[derive(Debug)]
#[repr(C)]
pub struct LiveCells {
    /// Lease of a session.
    pub lease_s: AtomicU32,
    /// The shortest there has been.
    pub lease_least_s: AtomicU32,
    /// Since when `lease_s` is in force, boot-time clock; 0: from the beginning.
    pub lease_from_s: AtomicU32,
    /// See [`crate::Config`], as all that follow.
    pub low_rows: AtomicU32,
    #[allow(missing_docs, reason = "see low_rows")]
    pub low_credit: AtomicU32,
    #[allow(missing_docs, reason = "see low_rows")]
    pub nak_per_s: AtomicU32,
    #[allow(missing_docs, reason = "see low_rows")]
    pub alarm_per_s: AtomicU32,
    #[allow(missing_docs, reason = "see low_rows")]
    pub miss_per_s: AtomicU32,
}

/// State of one identifier of the classic profiles.
#[derive(Debug)]
#[repr(C)]
pub struct ClassicState {
    /// `1 << 32 | CRC-32`; 0: no challenge is outstanding.
    pub expected: AtomicU64,
    /// `classic-iot`: the CRP of the next REQ.
    pub next: AtomicU32,
    /// Zero.
    pub pad: AtomicU32,
}

/// One CRP of the classic profiles, as on the wire.
#[repr(C)]
pub struct ClassicCrp {
    /// Challenge.
    pub challenge: AtomicU32,
    /// The CRC register after the response, so that only RN is hashed per packet.
    pub crc: AtomicU32,
    /// Response, left-aligned.
    pub response: [AtomicU64; 4],
}

/// A prover of `p4dra-classic`.
#[repr(C, align(64))]
pub struct P4draProver {
    /// 0: the place is empty.
    pub used: AtomicU64,
    /// As on the wire.
    pub id: [AtomicU64; 2],
    /// By lane: the count of the round that it is ok in; 0: none.
    pub proved: [AtomicU64; 2],
    /// Zero.
    pub pad: [AtomicU64; 3],
    /// What its proofs are computed from, but for r and n.
    pub matrix: [AtomicU32; 16],
}

/// A round of `p4dra-classic`.
#[derive(Debug)]
#[repr(C)]
pub struct P4draRound {
    /// Of rounds so far; 0: none, or the others change.
    pub count: AtomicU64,
    /// As on the wire.
    pub r: AtomicU64,
    /// As on the wire.
    pub n: AtomicU64,
    /// Zero.
    pub pad: AtomicU64,
}

/// The newest round with an even count and the newest with an odd one, by lane.
#[derive(Debug)]
#[repr(C)]
pub struct P4draRounds {
    /// Of even and of odd counts.
    pub lane: [P4draRound; 2],
}

/// Places that a prover of `p4dra-classic` may lie in, from its hash on.
pub const P4DRA_PROBES: usize = 16;

/// Addresses of control protocols that can pass without a session.
pub const ALWAYS_MAX: usize = 16;

/// Ethernet types of the frames other than IP that the gate has dropped: [`TYPE_TAKEN`] and the type, 0 is free.
#[derive(Debug)]
#[repr(C)]
pub struct DroppedTypeCells {
    /// By place.
    pub types: [AtomicU64; DROPPED_TYPES],
}
/// Mark of a place with a type.
pub const TYPE_TAKEN: u64 = 0x1_0000;

/// `struct lw_config`: what the eBPF program is loaded with, as constants. Fields as in C; see there.
#[derive(Debug, Clone, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
#[allow(missing_docs, reason = "documented once, in lw_layout.h")]
pub struct ProgramConfig {
    pub hash_seed: [u64; 2],
    pub local6: [[u64; 2]; 4],
    pub dhcp6: [[u64; 2]; 4],
    pub always: [u64; ALWAYS_MAX],
    pub local4: [u32; 4],
    pub dhcp4: [u32; 4],
    pub local4_count: u32,
    pub local6_count: u32,
    pub dhcp4_count: u32,
    pub dhcp6_count: u32,
    pub always_count: u32,
    pub gateway_id: u32,
    pub slots: u32,
    pub ring: u32,
    pub home_mask: u32,
    pub index_mask: u32,
    pub bucket_mask: u32,
    pub filter_mask: u32,
    pub provers: u32,
    pub prover_places: u32,
    pub prover_all: u32,
    pub prover_index_mask: u32,
    pub classic_identifiers: u32,
    pub classic_rows: u32,
    pub p4dra_mask: u32,
    pub lap_port: u16,
    pub classic_port: u16,
    pub p4dra_type: u16,
    pub p4dra_controller: [u8; 6],
    pub gate: u8,
    pub classic_words: u8,
    pub classic_uav: u8,
    pub strong_order: u8,
    pub count_work: u8,
    pub stamp: u8,
    pub frags: u8,
    pub pad: [u8; 1],
    pub crc: [[u32; 256]; 16],
}

macro_rules! shared {
    ($($name:ident $bytes:literal),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: repr(C), atomics only, and zero is a valid atomic integer.
        unsafe impl Shared for $name {}
    )+};
}
shared!(DroppedTypeCells 320, Line 64, Session 64, RingRow 24, Bucket 32, FilterBlock 64, ProverLine 64, WaitingProof 192, AlternateKey 32, Round 64, OpenRounds 128, Expected 8, Note 16, Port 72, SourcePrefix 32, Sources 1552, SourceBank 3104, Control 10960, LiveCells 32, ClassicState 16, ClassicCrp 40, P4draProver 128, P4draRound 32, P4draRounds 64);

const _: () = assert!(offset_of!(Line, commit) == 8 && offset_of!(Line, lease_until_s) == 56);
const _: () = assert!(offset_of!(Session, ingress) == 48 && offset_of!(Session, vlan) == 60);
