//! P4Runtime entities as values checked against P4Info: no protobuf, no unknown ids, every number in its
//! width.
//!
//! [`translate`](crate::translate) converts entities from and to messages. Only a target can check whether an
//! entity exists, whether capacity is left, and which action executes which direct resource.

use crate::bytes::Bits;
use crate::data::Data;
use crate::ids::*;

/// Match of one key field. "Don't care" has one form for each kind: prefix length zero, mask zero, the whole
/// range, no optional value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the variant names are self-explanatory")]
pub enum FieldMatch {
    Exact(Bits),
    /// Bits after the prefix are zero.
    Lpm {
        value: Bits,
        prefix_bits: u32,
    },
    /// Bits outside the mask are zero.
    Ternary {
        value: Bits,
        mask: Bits,
    },
    /// Both bounds are inclusive, and `low` does not exceed `high`.
    Range {
        low: Bits,
        high: Bits,
    },
    Optional(Option<Bits>),
}

impl FieldMatch {
    /// Whether every value matches ("don't care"). P4Runtime omits such fields from messages.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Exact(_) => false,
            Self::Lpm { prefix_bits, .. } => *prefix_bits == 0,
            Self::Ternary { mask, .. } => mask.is_zero(),
            Self::Range { low, high } => low.is_zero() && high.is_ones(),
            Self::Optional(value) => value.is_none(),
        }
    }
}

/// Identity of a table entry (9.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    /// The table.
    pub table: TableId,
    /// One match for each field of the table, in the order of the P4Info.
    pub fields: Vec<FieldMatch>,
    /// Priority: the highest wins. Zero if and only if the table has no priorities.
    pub priority: i32,
}

/// Action with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Id.
    pub id: ActionId,
    /// One argument for each parameter, in the order of the P4Info.
    pub params: Vec<Bits>,
}

/// Port, in the controller's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Port number.
    pub number: u32,
    /// Whether the client used the field that P4Runtime 1.4 deprecated. Reads return the port in the field that the
    /// client used.
    pub deprecated_field: bool,
}

/// Action of a one-shot entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedAction {
    /// The action.
    pub action: Action,
    /// Weight, at least 1; 0 if the selector disallows weights.
    pub weight: u32,
    /// Port to watch: the member is selected only while this port is up.
    pub watch_port: Option<Port>,
}

/// Selection mode of a one-shot entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectionMode {
    /// Default of the selector.
    #[default]
    SelectorDefault,
    /// By hash.
    Hash,
    /// At random.
    Random,
}

/// Size semantics of a one-shot entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeMode {
    /// Default of the selector.
    #[default]
    SelectorDefault,
    /// Sum of weights.
    SumOfWeights,
    /// Number of members.
    SumOfMembers,
}

/// Action set of a one-shot entry (9.2.3). Reads return the set as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSet {
    /// Action that runs before the selected action.
    pub group_action: Option<Action>,
    /// Actions; one of them is selected for each packet.
    pub actions: Vec<WeightedAction>,
    /// Selection mode.
    pub mode: SelectionMode,
    /// Size semantics.
    pub size: SizeMode,
}

/// Action specification of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryAction {
    /// Action, in direct tables.
    Action(Action),
    /// Member of the table's action profile.
    Member(MemberId),
    /// Group of the table's action selector.
    Group(GroupId),
    /// One-shot action set of this entry.
    OneShot(ActionSet),
}

/// Counter values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field names are self-explanatory")]
pub struct CounterData {
    pub bytes: u64,
    pub packets: u64,
}

/// Rates in bytes/s or packets/s and bursts in bytes or packets, depending on the meter unit (RFC 2697, RFC 2698).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the RFCs define the names")]
pub struct MeterConfig {
    pub committed_rate: u64,
    pub committed_burst: u64,
    pub peak_rate: u64,
    pub peak_burst: u64,
    pub excess_burst: u64,
}

/// Counters of the packets that a meter has marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field names are self-explanatory")]
pub struct MeterCounters {
    pub green: CounterData,
    pub yellow: CounterData,
    pub red: CounterData,
}

/// Direct resources of an entry (9.1.7). On insertion, an absent resource starts at its default: counter zero,
/// meter always green. On modification, an absent counter keeps its values and an absent meter becomes
/// always green.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectResources {
    /// Counter values.
    pub counter: Option<CounterData>,
    /// Meter configuration; absent for always green.
    pub meter: Option<MeterConfig>,
    /// Counters of the meter. A write may only reset them: all values are zero.
    pub meter_counters: Option<MeterCounters>,
}

/// Table entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Match key.
    pub key: EntryKey,
    /// Action; absent only in a modification that keeps the action.
    pub action: Option<EntryAction>,
    /// Metadata of the controller, returned by reads; deprecated in favor of `metadata`.
    pub controller_metadata: u64,
    /// Metadata of the controller, returned by reads.
    pub metadata: Vec<u8>,
    /// Idle timeout, ns; zero disables the notification.
    pub idle_timeout_ns: u64,
    /// Direct counter and direct meter.
    pub resources: DirectResources,
    /// Time since the last hit, ns. Only in responses to reads that request this value.
    pub since_hit_ns: Option<u64>,
    /// Whether the entry is constant. Only in read responses.
    pub is_const: bool,
}

impl TableEntry {
    /// Creates an entry that has only a key and an action.
    pub fn new(key: EntryKey, action: EntryAction) -> Self {
        Self {
            key,
            action: Some(action),
            controller_metadata: 0,
            metadata: Vec::new(),
            idle_timeout_ns: 0,
            resources: DirectResources::default(),
            since_hit_ns: None,
            is_const: false,
        }
    }
}

/// Default entry of a table: the action of packets that match no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultEntry {
    /// The table.
    pub table: TableId,
    /// Default action. A write without an action restores the initial default entry of the program.
    pub action: Option<Action>,
    /// See [`TableEntry::controller_metadata`].
    pub controller_metadata: u64,
    /// See [`TableEntry::metadata`].
    pub metadata: Vec<u8>,
    /// Direct counter and direct meter.
    pub resources: DirectResources,
    /// Whether the entry is constant. Only in read responses.
    pub is_const: bool,
}

/// Owner of a direct resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryRef {
    /// Table entry.
    Entry(EntryKey),
    /// Default entry.
    Default(TableId),
}

impl EntryRef {
    /// The table.
    pub fn table(&self) -> TableId {
        match self {
            Self::Entry(key) => key.table,
            Self::Default(table) => *table,
        }
    }
}

/// Member of an action profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The profile.
    pub profile: ProfileId,
    /// Id within the profile.
    pub id: MemberId,
    /// Action of the member.
    pub action: Action,
}

/// Member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Id.
    pub id: MemberId,
    /// Weight, at least 1; 0 if the selector disallows weights.
    pub weight: u32,
    /// Port to watch: the member is selected only while this port is up.
    pub watch_port: Option<Port>,
}

/// Group of an action selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The selector.
    pub profile: ProfileId,
    /// Id within the profile.
    pub id: GroupId,
    /// Members without duplicates.
    pub members: Vec<GroupMember>,
    /// Maximum size, counted by weights or members as the selector defines; zero for the maximum of the selector. A
    /// modification cannot change the maximum size.
    pub max_size: u32,
}

/// Replica of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Egress port.
    pub port: Port,
    /// Instance id in the egress pipeline.
    pub instance: u32,
    /// Backup replicas as (port, instance), used while the preceding ports are down.
    pub backups: Vec<(u32, u32)>,
}

/// Multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// Id.
    pub id: MulticastGroupId,
    /// Replicas; each pair of port and instance is unique.
    pub replicas: Vec<Replica>,
    /// Metadata of the controller, returned by reads.
    pub metadata: Vec<u8>,
}

/// Clone session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSession {
    /// Id.
    pub id: CloneSessionId,
    /// Replicas.
    pub replicas: Vec<Replica>,
    /// Class of service of all replicas.
    pub class_of_service: u32,
    /// Maximum length of a clone, bytes; zero for no truncation.
    pub packet_length_bytes: u32,
}

/// Digest configuration (9.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestConfig {
    /// Maximum delay of the first message of a list, ns.
    pub max_timeout_ns: u64,
    /// Maximum number of messages in a list; zero for no limit.
    pub max_list_size: u32,
    /// Time until an unacknowledged message may be sent again, ns.
    pub ack_timeout_ns: u64,
}

/// Enabled digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Id.
    pub id: DigestId,
    /// Configuration.
    pub config: DigestConfig,
}

/// Change of an entity that has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<E, K> {
    /// Creates the entity; ALREADY_EXISTS if it exists.
    Insert(E),
    /// Replaces the entity; NOT_FOUND if it does not exist.
    Modify(E),
    /// Deletes the entity; NOT_FOUND if it does not exist.
    Delete(K),
}

/// Update of a write request.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the field types are self-explanatory")]
pub enum Update {
    TableEntry(Box<Change<TableEntry, EntryKey>>),
    DefaultEntry(Box<DefaultEntry>),
    Member(Change<Member, (ProfileId, MemberId)>),
    Group(Change<Group, (ProfileId, GroupId)>),
    /// Writes one cell, or all cells if `index` is absent. If `data` is absent, the value does not change.
    Counter {
        id: CounterId,
        index: Option<u64>,
        data: Option<CounterData>,
    },
    /// If `data` is absent, the value does not change.
    DirectCounter {
        entry: EntryRef,
        data: Option<CounterData>,
    },
    /// Writes one cell, or all cells if `index` is absent. If `config` is absent, the meter becomes always green.
    Meter {
        id: MeterId,
        index: Option<u64>,
        config: Option<MeterConfig>,
        reset_counters: bool,
    },
    /// If `config` is absent, the meter becomes always green.
    DirectMeter {
        entry: EntryRef,
        config: Option<MeterConfig>,
        reset_counters: bool,
    },
    /// Writes one cell, or all cells if `index` is absent.
    Register {
        id: RegisterId,
        index: Option<u64>,
        data: Data,
    },
    MulticastGroup(Change<MulticastGroup, MulticastGroupId>),
    CloneSession(Change<CloneSession, CloneSessionId>),
    /// All members, without duplicates. Each member has one match for each field.
    ValueSet {
        id: ValueSetId,
        members: Vec<Vec<FieldMatch>>,
    },
    Digest(Change<Digest, DigestId>),
}

/// Entity in a read response.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the field types are self-explanatory")]
pub enum Entity {
    TableEntry(Box<TableEntry>),
    DefaultEntry(Box<DefaultEntry>),
    Member(Member),
    Group(Group),
    Counter {
        id: CounterId,
        index: u64,
        data: CounterData,
    },
    DirectCounter {
        entry: EntryRef,
        data: CounterData,
    },
    Meter {
        id: MeterId,
        index: u64,
        config: Option<MeterConfig>,
        counters: Option<MeterCounters>,
    },
    DirectMeter {
        entry: EntryRef,
        config: Option<MeterConfig>,
        counters: Option<MeterCounters>,
    },
    Register {
        id: RegisterId,
        index: u64,
        data: Data,
    },
    MulticastGroup(MulticastGroup),
    CloneSession(CloneSession),
    ValueSet {
        id: ValueSetId,
        members: Vec<Vec<FieldMatch>>,
    },
    Digest(Digest),
}

/// Optional parts of an entry to read. Resources that the table does not have are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field names are self-explanatory")]
pub struct ReadOptions {
    pub counter: bool,
    pub meter: bool,
    pub meter_counters: bool,
    pub since_hit: bool,
}

/// Query of a target for one table, one profile or one array.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the field types are self-explanatory; an absent field selects all"
)]
pub enum Query {
    Entries {
        table: TableId,
        key: Option<EntryKey>,
        options: ReadOptions,
    },
    DefaultEntry {
        table: TableId,
        options: ReadOptions,
    },
    Members {
        profile: ProfileId,
        member: Option<MemberId>,
    },
    Groups {
        profile: ProfileId,
        group: Option<GroupId>,
    },
    Counters {
        id: CounterId,
        index: Option<u64>,
    },
    Meters {
        id: MeterId,
        index: Option<u64>,
        counters: bool,
    },
    Registers {
        id: RegisterId,
        index: Option<u64>,
    },
    MulticastGroups(Option<MulticastGroupId>),
    CloneSessions(Option<CloneSessionId>),
    ValueSet(ValueSetId),
    Digest(DigestId),
}
