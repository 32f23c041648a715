//! Memory that a packet path and user space share: the mirror of `xdp/bpf/lw_layout.h`, field by field.
//!
//! The same structures back the `xdp` data plane (BPF arrays, mapped) and the `host` data plane (anonymous memory).
//! The same code therefore installs, refills, revokes and recovers rows in both. Every field that both sides write
//! while packets flow is atomic. Bytes in wire order are kept as the words that a native load gives.

use core::mem::offset_of;
use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use linewarden_protocol::gateway::DROPPED_TYPES;
use linewarden_protocol::sources::{EXCLUDED_MAX, PREFIXES_MAX};

/// Types that may be laid over zeroed shared memory.
///
/// # Safety
/// The type is `repr(C)`, consists only of atomics and of padding that is never read, and is valid when all bytes are
/// zero. Shared references may then coexist with writers in the kernel.
pub unsafe trait Shared: Sync {}

/// Implements `Debug` without contents: these types hold keys or responses, which no log may contain.
macro_rules! debug_without_contents {
    ($($name:ident),*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        })*
    };
}
debug_without_contents!(Line, Session, RingRow, ProverLine, WaitingProof, AlternateKey);

/// The hot line of a device: everything that a REQUEST reads, in one cache line.
#[repr(C, align(64))]
pub struct Line {
    /// Id of the device, in wire order, loaded natively; 0: the line is free.
    pub device_id: AtomicU64,
    /// `idx u32 | gen u24 | flags u8`, see [`linewarden_protocol::commit::CommitWord`].
    pub commit: AtomicU64,
    /// Replay window of the session: `gen u8 | top u32 | bitmap u24`.
    pub window: AtomicU64,
    /// First 8 bytes of the tag of the winning RESPONSE, loaded natively; 0: no session.
    pub session_id: AtomicU64,
    /// Challenge of the current row, in wire order.
    pub challenge: AtomicU64,
    /// Key of the current row. Not used while the commit word is neither VALID nor BUSY.
    pub auth_key: [AtomicU64; 2],
    /// End of the session, boot-time clock, seconds.
    pub session_until_s: AtomicU32,
    /// Index of the device's session. Multiplied by the ring size: index of the device's first ring row.
    pub slot: AtomicU32,
}

/// The session that the line's `session_id` names.
#[repr(C, align(64))]
pub struct Session {
    /// Key shared with the device.
    pub session_key: [AtomicU64; 2],
    /// The winning RESPONSE.tag.
    pub tag: [AtomicU64; 2],
    /// Address of the device: IPv6, or IPv4 as ::ffff:a.b.c.d.
    pub addr: [AtomicU64; 2],
    /// Interface to which the session is bound.
    pub ingress: AtomicU32,
    /// UDP source port, in wire order.
    pub port: AtomicU16,
    /// MAC address as three 16-bit loads.
    pub mac: [AtomicU16; 3],
    /// `VID | VLAN_TAGGED`, with [`VLAN_SERVICE`] for a service tag. The first word has [`BOUND`] if the session is BOUND.
    pub vlan: [AtomicU16; 2],
}

/// Flag of a VLAN word that holds a VLAN.
pub const VLAN_TAGGED: u16 = 0x1000;
/// Flag of a VLAN word whose tag has type 0x88a8.
pub const VLAN_SERVICE: u16 = 0x2000;
/// Flag, in the session's first VLAN word, of a BOUND session.
pub const BOUND: u16 = 0x8000;

/// A row that follows the row in the line, 24 B. `auth_key[1]` is stored last and taken first; 0 means that the row is
/// absent.
#[repr(C)]
pub struct RingRow {
    /// Challenge, in wire order.
    pub challenge: AtomicU64,
    /// Key of the row.
    pub auth_key: [AtomicU64; 2],
}

/// Number of lines in a home. A device's home is found by hashing its id; the place of a line is `home * 4 + way`.
pub const HOME_WAYS: usize = 4;

/// Four words of a key. The first word is 0 if no key is stored.
pub type KeyCells = [AtomicU64; 4];

/// A prover in the periods of one lane (LAP/1 3.2): everything that a PROOF needs, in a cache line. Periods with even
/// numbers are in one lane, periods with odd numbers in the other. Rounds have two lanes in the same way.
#[repr(C, align(64))]
pub struct ProverLine {
    /// Id of the prover, in wire order, loaded natively; 0: the place is empty.
    pub device_id: AtomicU64,
    /// Verdict words, by lane of the round: `round bits u16 | PROVED u1 | ALTERNATE u1 | elapsed u14`. The round bits are
    /// bits 1 to 16 of the round number. 0: no verdict.
    pub proved: [AtomicU32; 2],
    /// Key of the prover's current configuration.
    pub key: KeyCells,
    /// Slot of the prover: the alternate key in a lane of periods is at index `slot * 2 + lane`.
    pub slot: AtomicU32,
    /// Zero.
    pub pad: [AtomicU32; 3],
}

/// Position of the round bits in a verdict word.
pub const ROUND_BITS_SHIFT: u32 = 16;
/// Flag: the word holds a verdict.
pub const PROVED: u32 = 1 << 15;
/// Flag: the prover proved the configuration that is being rolled out.
pub const ALTERNATE: u32 = 1 << 14;
/// The longest elapsed time that a verdict word can hold, in units of 2^[`Round::elapsed_shift`] ns.
pub const ELAPSED_MAX: u32 = ALTERNATE - 1;

/// The key of the configuration that is being rolled out, in one period.
#[repr(C)]
pub struct AlternateKey {
    /// Words of the key.
    pub word: KeyCells,
}

/// An open round.
#[derive(Debug)]
#[repr(C)]
pub struct Round {
    /// gateway_id and number, in wire order; 0: no round.
    pub r: AtomicU64,
    /// Nonce, in wire order.
    pub nonce: AtomicU64,
    /// Start, CLOCK_MONOTONIC, ns.
    pub started_ns: AtomicU64,
    /// End, CLOCK_MONOTONIC, ns.
    pub until_ns: AtomicU64,
    /// Number of the round.
    pub number: AtomicU32,
    /// Lane of the round's period.
    pub key_lane: AtomicU32,
    /// Elapsed times are in units of 2^`elapsed_shift` ns: the duration of the round then fits into 14 bits, and no
    /// division is needed.
    pub elapsed_shift: AtomicU32,
    /// Zero.
    pub pad: [AtomicU32; 5],
}

/// The newest round with an even number and the newest with an odd one, by lane. Both may be open.
#[derive(Debug)]
#[repr(C)]
pub struct OpenRounds {
    /// The lane of even numbers, then the lane of odd numbers.
    pub lane: [Round; 2],
}

/// Memory of one CPU for a PROOF that passed all checks except the check of its block. The PROOF waits for the next
/// PROOF on that CPU or for user space.
#[repr(C, align(64))]
pub struct WaitingProof {
    /// One of the `WAITING_*` constants.
    pub state: AtomicU32,
    /// Index of the prover's line.
    pub line: AtomicU32,
    /// The prover's verdict word as it was read.
    pub before: AtomicU32,
    /// The new verdict word, without [`ALTERNATE`].
    pub after: AtomicU32,
    /// Source address.
    pub addr: [AtomicU64; 2],
    /// Interface on which the PROOF arrived.
    pub ingress: AtomicU32,
    /// Zero.
    pub pad: AtomicU32,
    /// Device id, in wire order, loaded natively.
    pub device_id: AtomicU64,
    /// `r` of the PROOF, in wire order, loaded natively.
    pub r: AtomicU64,
    /// Nonce, in wire order, loaded natively.
    pub nonce: AtomicU64,
    /// Block of the PROOF, in wire order, loaded natively.
    pub proof: [AtomicU64; 8],
    /// Numbers of PROOFs that user space settled as ok, already proved, wrong, and without a key.
    pub settled_counts: [AtomicU64; 4],
    /// Zero.
    pub reserved: [AtomicU64; 4],
}
/// Nothing waits. The packet path may fill the place.
pub const WAITING_FREE: u32 = 0;
/// A PROOF waits. The side that replaces this value, by compare-and-swap, settles the PROOF.
pub const WAITING_FULL: u32 = 1;
/// User space is reading the PROOF, or the packet path is settling it.
pub const WAITING_TAKEN: u32 = 2;

/// Number of entries in a bucket.
pub const WAYS: usize = 4;

/// Bucket of a two-choice hash table. An entry is `fingerprint << 32 | place of the line + 1`; 0: the entry is free.
#[derive(Debug)]
#[repr(C)]
pub struct Bucket {
    /// The entries.
    pub entry: [AtomicU64; WAYS],
}

/// Number of words in a filter block.
pub const FILTER_WORDS: usize = 8;

/// Block of a Bloom filter: a cache line.
#[derive(Debug)]
#[repr(C)]
pub struct FilterBlock {
    /// An id sets one bit in each word.
    pub word: [AtomicU64; FILTER_WORDS],
}

/// What user space records for a device in addition to its rows. The packet path does not read it.
#[derive(Debug)]
#[repr(C)]
pub struct Note {
    /// One above the highest idx that was ever installed.
    pub end: AtomicU32,
    /// The mark: rows below it may be spent. All ones: no limit.
    pub mark: AtomicU32,
    /// Epoch of the credentials plus one; 0: unknown.
    pub epoch: AtomicU32,
    /// The newest accepted ticket request: `generation u8 | serial u24`, with the generation as in the window word.
    pub ticket: AtomicU32,
}

/// Hash of a RESPONSE that the slow path expects; 0: the cell is free.
#[derive(Debug)]
#[repr(C)]
pub struct ExpectedResponse(pub AtomicU64);

/// Number of RESPONSEs that the slow path can expect at the same time.
pub const EXPECTED_RESPONSES: u32 = 65_536;
/// Number of cells, per CPU or thread, that count slow-path messages by source.
pub const SOURCE_CELLS: usize = 16_384;

/// Maximum number of interfaces on the devices' side, and of MAC addresses per interface.
pub const PORTS: usize = 64;
#[allow(missing_docs, reason = "see PORTS")]
pub const PORT_MACS: usize = 8;

/// An interface on the devices' side. Its place is the interface index modulo [`PORTS`], or the next free place.
#[derive(Debug)]
#[repr(C)]
pub struct Port {
    /// Interface index; 0: the place is free.
    pub ifindex: AtomicU64,
    /// MAC addresses in the low 48 bits, first byte lowest: first the interface's own, then those of interfaces that
    /// receive its frames. All ones if unused.
    pub mac: [AtomicU64; PORT_MACS],
}

/// A prefix of source addresses, in wire order.
#[derive(Debug)]
#[repr(C)]
pub struct SourcePrefix {
    /// The address, masked.
    pub net: [AtomicU64; 2],
    /// Ones for the bits that must match.
    pub mask: [AtomicU64; 2],
}

/// Source addresses of one family that devices can have.
#[derive(Debug)]
#[repr(C)]
pub struct Sources {
    /// Not 0: a device can have every address in the first prefix except the first two refused addresses. The packet
    /// path then admits such an address without the complete check. The packet path reads this field only for
    /// IPv6; for IPv4 it reads [`Control::ip4_prefix`].
    pub is_simple: AtomicU32,
    /// Not 0: loopback addresses are admitted, if the prefixes contain them.
    pub loopback: AtomicU32,
    /// Number of prefixes.
    pub prefixes: AtomicU32,
    /// Number of refused addresses.
    pub refused: AtomicU32,
    /// The prefixes; the first `prefixes` entries are used.
    pub prefix: [SourcePrefix; PREFIXES_MAX],
    /// Addresses inside the prefixes that no device may use; the first `refused` entries are used.
    pub address: [[AtomicU64; 2]; EXCLUDED_MAX],
}

/// Source addresses of devices: the first element for IPv4, the second for IPv6.
#[derive(Debug)]
#[repr(C)]
pub struct SourceBank {
    #[allow(missing_docs, reason = "see the structure")]
    pub family: [Sources; 2],
}

/// Data that user space writes while packets flow.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// The current fresh value, in wire order; 0: no message is answered.
    pub fresh_current: AtomicU64,
    /// The previous fresh value; 0: none.
    pub fresh_previous: AtomicU64,
    /// CLOCK_MONOTONIC when `fresh_current` was drawn, ns.
    pub fresh_at_ns: AtomicU64,
    /// Not 0: REQUESTs are answered with a NAK.
    pub stopping: AtomicU64,
    /// Not 0: user space sleeps and must be woken by events that it has to handle.
    pub listening: AtomicU64,
    /// Not 0: the filter contains every enrolled device, and messages of all other devices are dropped.
    pub filtering: AtomicU64,
    /// The first IPv4 prefix of devices, if [`Sources::is_simple`] is set for IPv4. Upper 32 bits: the last address of the
    /// prefix; lower 32 bits: the host mask of the prefix; both in the byte order of a word that the packet path loads
    /// from a packet. The packet path checks a source that does not match in full. 0 matches no source.
    pub ip4_prefix: AtomicU64,
    /// The first two refused IPv4 addresses, 32 bits each, loaded in the same way.
    pub ip4_refused: AtomicU64,
    /// Settings that may change.
    pub live: LiveCells,
    /// Registration number of the process that owns the memory.
    pub owner: AtomicU64,
    /// Layout, gateway, sizes and hash seed. These values decide which process may adopt the memory.
    pub identity: [AtomicU64; 4],
    /// The lowest bit selects the active bank of `sources`. User space writes new sources into the other bank first.
    pub source_bank: AtomicU64,
    /// Source addresses of devices.
    pub sources: [SourceBank; 2],
    /// Interfaces on the devices' side.
    pub port: [Port; PORTS],
}

/// Settings that may change while packets flow.
#[derive(Debug)]
#[repr(C)]
pub struct LiveCells {
    /// Lifetime of a new session, seconds.
    pub session_lifetime_s: AtomicU32,
    /// The shortest lifetime that was ever active.
    pub session_lifetime_min_s: AtomicU32,
    /// Boot-time second since which `session_lifetime_s` applies; 0: since the start.
    pub session_lifetime_from_s: AtomicU32,
    /// For this field and the following fields see [`crate::Config`].
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

/// Maximum number of addresses (MAC address and Ethernet type) of control protocols that pass without a session.
pub const ALWAYS_MAX: usize = 16;

/// Ethernet types of non-IP frames that the gate dropped: each used word is `TYPE_TAKEN | type`. 0: the place is free.
#[derive(Debug)]
#[repr(C)]
pub struct DroppedTypeCells {
    /// One word for each place.
    pub types: [AtomicU64; DROPPED_TYPES],
}
/// Flag of a used place.
pub const TYPE_TAKEN: u64 = 0x1_0000;

/// `struct lw_config`: the constants with which the eBPF program is loaded. Fields as in C; see there.
// There are more than 15 fields because the type mirrors one constant of the eBPF program, field by field.
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
    pub lap_port: u16,
    pub gate: u8,
    pub strong_order: u8,
    pub count_work: u8,
    pub stamp: u8,
    pub frags: u8,
    pub pad: [u8; 1],
}

macro_rules! shared {
    ($($name:ident $bytes:literal),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: repr(C), atomics only, and zero is a valid atomic integer.
        unsafe impl Shared for $name {}
    )+};
}
shared!(DroppedTypeCells 320, Line 64, Session 64, RingRow 24, Bucket 32, FilterBlock 64, ProverLine 64, WaitingProof 192, AlternateKey 32, Round 64, OpenRounds 128, ExpectedResponse 8, Note 16, Port 72, SourcePrefix 32, Sources 1552, SourceBank 3104, Control 10960, LiveCells 32);

const _: () = assert!(offset_of!(Line, commit) == 8 && offset_of!(Line, session_until_s) == 56);
const _: () = assert!(offset_of!(Session, ingress) == 48 && offset_of!(Session, vlan) == 60);
