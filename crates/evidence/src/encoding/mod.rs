//! Canonical encodings of everything that the behavior of a data plane depends on.
//!
//! An encoding is `version u8 = 1 | kind u8 | identity | content`. The identity distinguishes an entry from all other
//! entries that are active at the same time. Numbers are big-endian. Elements are encoded as follows:
//!
//! * *text*, *bytes*: the length `u32`, then this number of bytes;
//! * *list*: the number of items `u32`, then the items;
//! * *bits*: the width `u32`, then the value in the minimum number of bytes, big-endian; the bits above the width are zero;
//! * *option*: 0, or 1 and the value;
//! * *flag*: 0 or 1.
//!
//! So the encoding is unambiguous, and [`Entry::decode`] accepts only the outputs of [`Entry::encode`]: the mapping is
//! one to one.
//!
//! | kind | identity | content |
//! |---|---|---|
//! | 1 register cell | array text, index u32 | value bits, not zero |
//! | 2 table entry | table text, priority u32, key | action, idle timeout ns u64 |
//! | 3 default action | table text | const flag, option of action |
//! | 4 profile member | profile text, member u32 | action name text, data list of bits |
//! | 5 profile group | profile text, group u32 | size u32, list of (member u32, weight u32, watched port bytes), members increasing |
//! | 6 multicast group | group u32 | replicas |
//! | 7 clone session | session u32 | option of port u32, option of group u32, replicas, class of service u32, truncation u32 |
//! | 8 value-set member | set text, key | empty |
//! | 9 meter | meter text, then 1 and index u64, or 2, priority u32, key | unit u8, list of (rate u64, burst u64) |
//! | 10 counter | counter text | unit u8, size u64 |
//! | 11 calculation | name text | algorithm text, list of (name text, bits), names increasing |
//! | 12 port or queue setting | port u32, option of queue u32, name text | value u64 |
//! | 13 eBPF program | name text | SHA-256 of its instructions, 32 bytes |
//! | 14 eBPF map | name text | type, key size, value size, entries, flags, u32 each |
//! | 15 eBPF map's entry | map text, key bytes | value bytes |
//! | 16 attachment | interface text, hook text | program text |
//!
//! A *key* is a list of (field name text, match), a match is one of: 1 exact bits; 2 LPM bits, prefix u32; 3 ternary
//! bits, mask bits; 4 range bits, bits; 5 optional, option of bits. Ignored bits are zero in LPM and ternary values. An
//! *action* is 1, name text, data list of bits; or 2, member u32; or 3, group u32. *Replicas* are a list of (port u32,
//! instance u32, copies u32), increasing. *Units* are 1 packets, 2 bytes, 3 both.
//!
//! ```
//! use linewarden_evidence::encoding::{Bits, Entry, RegisterCell};
//!
//! let value = Bits::from_u64(9, 511)?;
//! let entry = Entry::from(RegisterCell { array: "flows".to_owned(), index: 3, value });
//! let encoded = entry.encode();
//! assert_eq!(encoded, *b"\x01\x01\x00\x00\x00\x05flows\x00\x00\x00\x03\x00\x00\x00\x09\x01\xff");
//! assert_eq!(Entry::decode(&encoded)?, entry);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod display;
mod entry;
mod escaped_text;
mod matching;
mod wire;

use std::fmt;
use std::str::FromStr;

pub use bits::{Bits, BitsError, WIDTH_MAX};
pub use entry::*;
pub(crate) use escaped_text::EscapedText;
pub use matching::{KeyField, Match, MatchError};
pub use wire::{BYTES_MAX, DecodeError, DecodeProblem};

pub(crate) use bits::byte_len;
use entry::Body;
use serde::de::{self, IntoDeserializer as _};
use serde::{Deserialize, Serialize};
use wire::{Reader, Writer};

const VERSION: u8 = 1;

/// One element of the state on which the behavior of a data plane depends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Documented at the types.
pub enum Entry {
    RegisterCell(RegisterCell),
    TableEntry(TableEntry),
    DefaultAction(DefaultAction),
    ProfileMember(ProfileMember),
    ProfileGroup(ProfileGroup),
    MulticastGroup(MulticastGroup),
    CloneSession(CloneSession),
    ValueSetMember(ValueSetMember),
    MeterConfig(MeterConfig),
    CounterConfig(CounterConfig),
    Calculation(Calculation),
    PortSetting(PortSetting),
    BpfProgram(BpfProgram),
    BpfMap(BpfMap),
    BpfMapEntry(BpfMapEntry),
    BpfAttachment(BpfAttachment),
}

/// An encoded entry in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Version, kind and identity: equal exactly if one entry would replace the other.
    pub identity: Box<[u8]>,
    /// The remaining bytes.
    pub content: Box<[u8]>,
}

/// The object to which an entry belongs. The entries of each object have a digest of their own, so that a difference
/// can be located.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    /// The class of the object.
    pub class: Class,
    /// The name; empty if there is only one object of the class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Classes of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A register array.
    Register,
    /// A table: its entries and its default action.
    Table,
    /// An action profile or selector: its members and groups.
    Profile,
    /// All multicast groups.
    Multicast,
    /// All clone sessions.
    CloneSession,
    /// A value set.
    ValueSet,
    /// An array of meters, or a direct meter.
    Meter,
    /// A counter's configuration.
    Counter,
    /// A hash or checksum.
    Calculation,
    /// All settings of ports and queues.
    Ports,
    /// All loaded eBPF programs and their attachments.
    Bpf,
    /// An eBPF map: its definition and its entries.
    BpfMap,
}

impl Class {
    /// All classes; the number of a class in statements is its index here.
    pub const ALL: [Self; 12] = [
        Self::Register,
        Self::Table,
        Self::Profile,
        Self::Multicast,
        Self::CloneSession,
        Self::ValueSet,
        Self::Meter,
        Self::Counter,
        Self::Calculation,
        Self::Ports,
        Self::Bpf,
        Self::BpfMap,
    ];
}

/// The number of each kind, and its codec.
macro_rules! entry_kinds {
    ($($kind:ident = $number:literal,)*) => {
        impl Entry {
            const fn kind(&self) -> u8 {
                match self { $(Self::$kind(_) => $number,)* }
            }

            fn write_identity(&self, out: &mut Writer) {
                match self { $(Self::$kind(body) => body.write_identity(out),)* }
            }

            fn write_content(&self, out: &mut Writer) {
                match self { $(Self::$kind(body) => body.write_content(out),)* }
            }

            fn read(kind: u8, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match kind {
                    $($number => Body::read(reader).map(Self::$kind),)*
                    _ => Err(reader.refuse("kind", DecodeProblem::InvalidValue)),
                }
            }
        }

        $(impl From<$kind> for Entry {
            fn from(body: $kind) -> Self {
                Self::$kind(body)
            }
        })*
    };
}

entry_kinds! {
    RegisterCell = 1,
    TableEntry = 2,
    DefaultAction = 3,
    ProfileMember = 4,
    ProfileGroup = 5,
    MulticastGroup = 6,
    CloneSession = 7,
    ValueSetMember = 8,
    MeterConfig = 9,
    CounterConfig = 10,
    Calculation = 11,
    PortSetting = 12,
    BpfProgram = 13,
    BpfMap = 14,
    BpfMapEntry = 15,
    BpfAttachment = 16,
}

impl Entry {
    /// The encoding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.write_identity(out.u8(VERSION).u8(self.kind()));
        self.write_content(&mut out);
        out.into_bytes()
    }

    /// The encoding in two parts.
    #[must_use]
    pub fn encode_parts(&self) -> Encoded {
        let mut identity = Writer::default();
        self.write_identity(identity.u8(VERSION).u8(self.kind()));
        let mut content = Writer::default();
        self.write_content(&mut content);
        Encoded {
            identity: identity.into_bytes().into(),
            content: content.into_bytes().into(),
        }
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// The bytes are not an output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8("version")? != VERSION {
            return Err(reader.refuse("version", DecodeProblem::InvalidValue));
        }
        let kind = reader.u8("kind")?;
        let entry = Self::read(kind, &mut reader)?;
        reader.finish()?;
        Ok(entry)
    }

    /// The object of the entry.
    #[must_use]
    pub fn object(&self) -> Object {
        let named = |class, name: &String| Object {
            class,
            name: name.clone(),
        };
        let unnamed = |class| named(class, &String::new());
        match self {
            Self::RegisterCell(cell) => named(Class::Register, &cell.array),
            Self::TableEntry(entry) => named(Class::Table, &entry.table),
            Self::DefaultAction(default) => named(Class::Table, &default.table),
            Self::ProfileMember(member) => named(Class::Profile, &member.profile),
            Self::ProfileGroup(group) => named(Class::Profile, &group.profile),
            Self::MulticastGroup(_) => unnamed(Class::Multicast),
            Self::CloneSession(_) => unnamed(Class::CloneSession),
            Self::ValueSetMember(member) => named(Class::ValueSet, &member.set),
            Self::MeterConfig(meter) => named(Class::Meter, &meter.meter),
            Self::CounterConfig(counter) => named(Class::Counter, &counter.counter),
            Self::Calculation(calculation) => named(Class::Calculation, &calculation.name),
            Self::PortSetting(_) => unnamed(Class::Ports),
            Self::BpfProgram(_) | Self::BpfAttachment(_) => unnamed(Class::Bpf),
            Self::BpfMap(map) => named(Class::BpfMap, &map.name),
            Self::BpfMapEntry(entry) => named(Class::BpfMap, &entry.map),
        }
    }
}

impl Encoded {
    /// The complete encoding.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [&*self.identity, &*self.content].concat()
    }
}

/// Encodes cells of one array without creating [`Entry`] values.
#[derive(Clone, Debug)]
pub(crate) struct CellEncoder {
    bytes: Vec<u8>,
    index_offset: usize,
    value_offset: usize,
}

impl CellEncoder {
    pub fn new(array: &str, width: u32) -> Self {
        let mut out = Writer::default();
        out.u8(VERSION).u8(1).text(array);
        let index_offset = out.len();
        out.u32(0).u32(width);
        let value_offset = out.len();
        let mut bytes = out.into_bytes();
        bytes.resize(value_offset + byte_len(width), 0);
        Self {
            bytes,
            index_offset,
            value_offset,
        }
    }

    /// The encoding of a cell; `None` if the value is zero or does not have the length of a cell.
    pub fn encode(&mut self, index: u32, value: &[u8]) -> Option<&[u8]> {
        if value.iter().all(|&byte| byte == 0) {
            return None;
        }
        self.bytes
            .get_mut(self.index_offset..)?
            .first_chunk_mut::<4>()?
            .copy_from_slice(&index.to_be_bytes());
        let value_field = self.bytes.get_mut(self.value_offset..)?;
        if value_field.len() != value.len() {
            return None;
        }
        value_field.copy_from_slice(value);
        Some(&self.bytes)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "{}", self.class),
            name => write!(f, "{} {}", self.class, EscapedText(name)),
        }
    }
}

impl FromStr for Object {
    type Err = de::value::Error;

    /// Parses the text of command line options: `register:NAME`, or only the class if the object has no name
    /// (`multicast`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (class, name) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self {
            class: Class::deserialize(class.into_deserializer())?,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Register => "register array",
            Self::Table => "table",
            Self::Profile => "action profile",
            Self::Multicast => "multicast groups",
            Self::CloneSession => "clone sessions",
            Self::ValueSet => "value set",
            Self::Meter => "meter",
            Self::Counter => "counter",
            Self::Calculation => "calculation",
            Self::Ports => "ports",
            Self::Bpf => "eBPF programs",
            Self::BpfMap => "eBPF map",
        })
    }
}
