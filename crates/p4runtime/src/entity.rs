//! What P4Runtime reads and writes, as values that were checked against P4Info: no protobuf, no unknown ids,
//! every number in its width.
//!
//! Each of them was or can be made by [`translate`](crate::translate). What only a target knows is not
//! checked here: whether an entity exists, whether there is room, which action executes which direct
//! resource.

use crate::bytes::Bits;
use crate::data::Data;
use crate::ids::*;

/// What one field of a key takes. "Any value" has one form for each kind: a prefix of no bits of zero, a mask
/// of zero, the whole range, no optional value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the variants say it")]
pub enum FieldMatch {
    Exact(Bits),
    /// The bits behind the prefix are zero.
    Lpm {
        value: Bits,
        prefix_bits: u32,
    },
    /// The bits that the mask leaves out are zero.
    Ternary {
        value: Bits,
        mask: Bits,
    },
    /// Both ends included, in order.
    Range {
        low: Bits,
        high: Bits,
    },
    Optional(Option<Bits>),
}

impl FieldMatch {
    /// Whether it takes every value; P4Runtime leaves such a field out of its messages.
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

/// What identifies an entry (9.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    /// The table.
    pub table: TableId,
    /// One for each of the table's fields, in P4Info's order.
    pub fields: Vec<FieldMatch>,
    /// Higher wins; zero exactly where the table's entries have none.
    pub priority: i32,
}

/// An action with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Which.
    pub id: ActionId,
    /// One for each parameter, in P4Info's order.
    pub params: Vec<Bits>,
}

/// A port, by the controller's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The number.
    pub number: u32,
    /// Whether the client wrote it in the field that P4Runtime 1.4 deprecated, and gets it back there. It has
    /// no other meaning.
    pub deprecated_field: bool,
}

/// One of the actions of a one-shot entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedAction {
    /// The action.
    pub action: Action,
    /// Its share, from 1; 0 where the selector weighs by itself.
    pub weight: u32,
    /// It is selected only while this port is up.
    pub watch: Option<Port>,
}

/// How a one-shot entry selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectionMode {
    /// As its selector does.
    #[default]
    OfSelector,
    /// By hash.
    Hash,
    /// At random.
    Random,
}

/// How a one-shot entry's size is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeMode {
    /// As its selector's.
    #[default]
    OfSelector,
    /// By weights.
    SumOfWeights,
    /// By members.
    SumOfMembers,
}

/// An entry, a group and its members in one (9.2.3); they are read as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSet {
    /// Carried out before the one that is selected.
    pub group_action: Option<Action>,
    /// Among which one is selected for each packet.
    pub actions: Vec<WeightedAction>,
    /// How.
    pub mode: SelectionMode,
    /// What counts against the selector's size.
    pub size: SizeMode,
}

/// What an entry leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryAction {
    /// An action; of direct tables.
    Action(Action),
    /// A member of the table's action profile.
    Member(MemberId),
    /// A group of the table's action selector.
    Group(GroupId),
    /// A group of the table's action selector that is this entry's own.
    OneShot(ActionSet),
}

/// What a counter has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CounterData {
    pub bytes: u64,
    pub packets: u64,
}

/// Rates in bytes or packets a second, bursts in bytes or packets, as the meter counts (RFC 2697, RFC 2698).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the RFCs")]
pub struct MeterConfig {
    pub committed_rate: u64,
    pub committed_burst: u64,
    pub peak_rate: u64,
    pub peak_burst: u64,
    pub excess_burst: u64,
}

/// What a meter has marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct MeterCounters {
    pub green: CounterData,
    pub yellow: CounterData,
    pub red: CounterData,
}

/// An entry's direct resources (9.1.7). What is absent on insertion starts at its default, no counts and a
/// meter that is always green; on modification counts stay, and the meter becomes always green.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectResources {
    /// Its counter.
    pub counter: Option<CounterData>,
    /// Its meter's configuration; absent for always green.
    pub meter: Option<MeterConfig>,
    /// What its meter has marked; in a write all zero, which resets it.
    pub meter_counters: Option<MeterCounters>,
}

/// A table's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// What it matches.
    pub key: EntryKey,
    /// What it leads to; absent only in a modification that leaves it.
    pub action: Option<EntryAction>,
    /// The controller's own, repeated when it reads; deprecated for `metadata`.
    pub controller_metadata: u64,
    /// The controller's own, repeated when it reads.
    pub metadata: Vec<u8>,
    /// After how long without a hit the controller is told; zero for never.
    pub idle_timeout_ns: u64,
    /// Counter and meter.
    pub resources: DirectResources,
    /// Time since the last hit. Only in what is read, and only if it was asked for.
    pub since_hit_ns: Option<u64>,
    /// Whether it can be neither changed nor deleted. Only in what is read.
    pub is_const: bool,
}

impl TableEntry {
    /// An entry with nothing but a key and an action.
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

/// What a table does with packets that no entry matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultEntry {
    /// The table.
    pub table: TableId,
    /// The action; absent in a write to go back to the program's, with all else.
    pub action: Option<Action>,
    /// As an entry's.
    pub controller_metadata: u64,
    /// As an entry's.
    pub metadata: Vec<u8>,
    /// Counter and meter.
    pub resources: DirectResources,
    /// Whether it cannot be changed. Only in what is read.
    pub is_const: bool,
}

/// Whose direct resource is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryRef {
    /// An entry's.
    Entry(EntryKey),
    /// The default entry's.
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

/// A member of an action profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The profile.
    pub profile: ProfileId,
    /// Its number there.
    pub id: MemberId,
    /// What it does.
    pub action: Action,
}

/// A member within a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Which.
    pub id: MemberId,
    /// Its share, from 1; 0 where the selector weighs by itself.
    pub weight: u32,
    /// It is selected only while this port is up.
    pub watch: Option<Port>,
}

/// A group of an action selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The selector.
    pub profile: ProfileId,
    /// Its number there.
    pub id: GroupId,
    /// Its members, each once.
    pub members: Vec<GroupMember>,
    /// How large it may become, as the selector counts; zero for as large as the selector allows. It is never
    /// modified.
    pub max_size: u32,
}

/// A copy of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Where it goes.
    pub port: Port,
    /// What the egress knows it by.
    pub instance: u32,
    /// Where it goes instead while the ports before are down: port and instance.
    pub backups: Vec<(u32, u32)>,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// Its number.
    pub id: MulticastGroupId,
    /// Its copies; no pair of port and instance is there twice.
    pub replicas: Vec<Replica>,
    /// The controller's own, repeated when it reads.
    pub metadata: Vec<u8>,
}

/// A clone session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSession {
    /// Its number.
    pub id: CloneSessionId,
    /// Its copies.
    pub replicas: Vec<Replica>,
    /// All copies' class of service.
    pub class_of_service: u32,
    /// Where copies are cut off; zero for nowhere.
    pub packet_length_bytes: u32,
}

/// How digests are gathered (9.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestConfig {
    /// How long the first message of a list waits for more.
    pub max_timeout_ns: u64,
    /// How many messages make a list; zero for no limit.
    pub max_list_size: u32,
    /// For how long a message that was sent is not sent again without an acknowledgement.
    pub ack_timeout_ns: u64,
}

/// A digest that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Which.
    pub id: DigestId,
    /// How.
    pub config: DigestConfig,
}

/// A change to an entity with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<E, K> {
    /// It is not there yet, else ALREADY_EXISTS.
    Insert(E),
    /// It is there, else NOT_FOUND, and becomes this.
    Modify(E),
    /// It is there, else NOT_FOUND.
    Delete(K),
}

/// One update of a write.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the types of the fields say it")]
pub enum Update {
    TableEntry(Box<Change<TableEntry, EntryKey>>),
    DefaultEntry(Box<DefaultEntry>),
    Member(Change<Member, (ProfileId, MemberId)>),
    Group(Change<Group, (ProfileId, GroupId)>),
    /// One cell or, without an index, all; no data leaves the value.
    Counter {
        id: CounterId,
        index: Option<u64>,
        data: Option<CounterData>,
    },
    /// No data leaves the value.
    DirectCounter {
        entry: EntryRef,
        data: Option<CounterData>,
    },
    /// One cell or, without an index, all; no configuration makes it always green.
    Meter {
        id: MeterId,
        index: Option<u64>,
        config: Option<MeterConfig>,
        reset_counters: bool,
    },
    /// No configuration makes it always green.
    DirectMeter {
        entry: EntryRef,
        config: Option<MeterConfig>,
        reset_counters: bool,
    },
    /// One cell or, without an index, all.
    Register {
        id: RegisterId,
        index: Option<u64>,
        data: Data,
    },
    MulticastGroup(Change<MulticastGroup, MulticastGroupId>),
    CloneSession(Change<CloneSession, CloneSessionId>),
    /// All its members, each once, one match for each of its fields.
    ValueSet {
        id: ValueSetId,
        members: Vec<Vec<FieldMatch>>,
    },
    Digest(Change<Digest, DigestId>),
}

/// Something that was read.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the types of the fields say it")]
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

/// What is to be read of an entry beside itself; resources that its table has not are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Want {
    pub counter: bool,
    pub meter: bool,
    pub meter_counters: bool,
    pub since_hit: bool,
}

/// A question to a target about one table, one profile, one array.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the types of the fields say it; what is absent means all"
)]
pub enum Query {
    Entries {
        table: TableId,
        key: Option<EntryKey>,
        want: Want,
    },
    DefaultEntry {
        table: TableId,
        want: Want,
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
