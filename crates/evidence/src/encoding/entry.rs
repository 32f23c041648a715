//! The types of entries.

use std::collections::BTreeMap;

use super::bits::Bits;
use super::matching::{KeyField, read_key, write_key};
use super::wire::{DecodeError, DecodeProblem, Reader, Writer};

/// A nonzero register cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterCell {
    /// Name of the array.
    pub array: String,
    /// The index of the cell, from 0.
    pub index: u32,
    /// The value. Zero is not encoded: cells without an entry are zero.
    pub value: Bits,
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Name of the table.
    pub table: String,
    /// All key fields, in the order of the table.
    pub key: Vec<KeyField>,
    /// Priority among matching entries; 0 in tables without priorities.
    pub priority: u32,
    /// The action, or a reference to a member or group of the table's action profile.
    pub action: ActionRef,
    /// Time without a packet after which the entry is reported as idle, ns; 0: never.
    pub idle_timeout_ns: u64,
}

/// The action that a table runs if no entry matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultAction {
    /// Name of the table, which may have no entries.
    pub table: String,
    /// Whether the program declares the default action constant.
    pub is_const: bool,
    /// The action; `None` if the program defines none.
    pub action: Option<ActionRef>,
}

/// The action of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionRef {
    /// An action with its data.
    Action(Action),
    /// A member of the table's action profile.
    Member(u32),
    /// A group of the table's action selector.
    Group(u32),
}

/// An action with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Name of the action.
    pub name: String,
    /// The parameters in order, each with its width.
    pub data: Vec<Bits>,
}

/// A member of an action profile or selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileMember {
    /// Name of the profile or selector.
    pub profile: String,
    /// The member id.
    pub member: u32,
    /// The action of the member.
    pub action: Action,
}

/// A group of an action selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileGroup {
    /// Name of the selector.
    pub profile: String,
    /// The group id.
    pub group: u32,
    /// Maximum number of members; 0 is the maximum of the selector.
    pub size_max: u32,
    /// The members and their weights.
    pub members: BTreeMap<u32, GroupMember>,
}

/// The membership of a member in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The weight of the member relative to the other members.
    pub weight: u32,
    /// The port that must be up for the member to be selected; empty if no port is watched.
    pub watch_port: Vec<u8>,
}

/// A port and an instance that distinguishes copies of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    /// Number of the port.
    pub port: u32,
    /// The instance (`egress_rid`).
    pub instance: u32,
}

/// Destinations of copies, and the number of identical copies.
pub type Replicas = BTreeMap<Replica, u32>;

/// A multicast group and its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// The group id.
    pub group: u32,
    /// Destinations of the packets that are sent to the group.
    pub replicas: Replicas,
}

/// A session of packet mirroring (clone).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSession {
    /// The session id.
    pub session: u32,
    /// The destination port of clones, if any.
    pub port: Option<u32>,
    /// The destination multicast group of clones, if any.
    pub multicast_group: Option<u32>,
    /// Further destinations.
    pub replicas: Replicas,
    /// The class of service of clones.
    pub class_of_service: u32,
    /// Length to which clones are truncated, bytes; 0: not truncated.
    pub truncate_bytes: u32,
}

/// A member of a parser's value set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueSetMember {
    /// Name of the value set.
    pub set: String,
    /// The match of each field.
    pub key: Vec<KeyField>,
}

/// The unit of counters and meters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Packets and bytes.
    Both,
}

/// One meter: a cell of a meter array, or the direct meter of one table entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeterCell {
    /// The cell with this index.
    Index(u64),
    /// The cell of a direct meter, which belongs to a table entry.
    Entry {
        /// The entry's key.
        key: Vec<KeyField>,
        /// The entry's priority.
        priority: u32,
    },
}

/// The configuration of one meter, without the bucket levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// Name of the meter array or direct meter.
    pub meter: String,
    /// The meter of this array, or of this direct meter.
    pub cell: MeterCell,
    /// The unit.
    pub unit: Unit,
    /// The rates, the committed rate first.
    pub rates: Vec<MeterRate>,
}

/// A rate of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterRate {
    /// Units per second.
    pub rate_per_s: u64,
    /// Burst size in units.
    pub burst: u64,
}

/// The configuration of a counter array or direct counter, without the counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterConfig {
    /// Name of the counter array or direct counter.
    pub counter: String,
    /// The unit.
    pub unit: Unit,
    /// Number of cells; 0 for a direct counter.
    pub size: u64,
}

/// A hash or checksum with its configurable parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calculation {
    /// Name of the calculation.
    pub name: String,
    /// The algorithm, such as `crc16_custom`.
    pub algorithm: String,
    /// Polynomials, initial values, seeds.
    pub parameters: BTreeMap<String, Bits>,
}

/// A setting of a port, or of one of its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSetting {
    /// Number of the port.
    pub port: u32,
    /// Number of the queue; `None` for a setting of the port itself.
    pub queue: Option<u32>,
    /// The name of the setting, such as `depth_packets` or `rate_packets_per_s`.
    pub name: String,
    /// The value of the setting.
    pub value: u64,
}

/// The instructions of a loaded eBPF program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfProgram {
    /// Name of the program.
    pub name: String,
    /// SHA-256 over the instructions in the kernel, before translation.
    pub instructions: [u8; 32],
}

/// The definition of an eBPF map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfMap {
    /// Name of the map.
    pub name: String,
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Maximum number of entries.
    pub entries_max: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

/// An entry of a configuration map. Zeros in an array map are encoded too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfMapEntry {
    /// Name of the map.
    pub map: String,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// An attachment of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfAttachment {
    /// Name of the interface.
    pub interface: String,
    /// The hook, such as `xdp` or `tc-egress`.
    pub hook: String,
    /// Name of the program.
    pub program: String,
}

/// The codec of one type of entry: writes the identity within this type, and the content; reads both.
pub(super) trait Body: Sized {
    fn write_identity(&self, out: &mut Writer);
    fn write_content(&self, out: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl Body for RegisterCell {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.array).u32(self.index);
    }
    fn write_content(&self, out: &mut Writer) {
        self.value.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let cell = Self {
            array: reader.text("array")?,
            index: reader.u32("index")?,
            value: Bits::read(reader, "value")?,
        };
        match cell.value.is_zero() {
            true => Err(reader.refuse("value", DecodeProblem::NotCanonical)),
            false => Ok(cell),
        }
    }
}

impl Body for TableEntry {
    fn write_identity(&self, out: &mut Writer) {
        write_key(&self.key, out.text(&self.table).u32(self.priority));
    }
    fn write_content(&self, out: &mut Writer) {
        self.action.write(out);
        out.u64(self.idle_timeout_ns);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            table: reader.text("table")?,
            priority: reader.u32("priority")?,
            key: read_key(reader)?,
            action: ActionRef::read(reader)?,
            idle_timeout_ns: reader.u64("idle timeout")?,
        })
    }
}

impl Body for DefaultAction {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.table);
    }
    fn write_content(&self, out: &mut Writer) {
        out.u8(self.is_const.into());
        match &self.action {
            None => {
                out.u8(0);
            }
            Some(action) => action.write(out.u8(1)),
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            table: reader.text("table")?,
            is_const: reader.flag("const")?,
            action: match reader.flag("action")? {
                true => Some(ActionRef::read(reader)?),
                false => None,
            },
        })
    }
}

impl ActionRef {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Action(action) => action.write(out.u8(1)),
            Self::Member(member) => {
                out.u8(2).u32(*member);
            }
            Self::Group(group) => {
                out.u8(3).u32(*group);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8("action")? {
            1 => Action::read(reader).map(Self::Action),
            2 => reader.u32("member").map(Self::Member),
            3 => reader.u32("group").map(Self::Group),
            _ => Err(reader.refuse("action", DecodeProblem::InvalidValue)),
        }
    }
}

impl Action {
    fn write(&self, out: &mut Writer) {
        out.text(&self.name).count(self.data.len());
        self.data.iter().for_each(|value| value.write(out));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: reader.text("action")?,
            data: reader.list("action data", |reader| Bits::read(reader, "action data"))?,
        })
    }
}

impl Body for ProfileMember {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.profile).u32(self.member);
    }
    fn write_content(&self, out: &mut Writer) {
        self.action.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            profile: reader.text("profile")?,
            member: reader.u32("member")?,
            action: Action::read(reader)?,
        })
    }
}

impl Body for ProfileGroup {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.profile).u32(self.group);
    }
    fn write_content(&self, out: &mut Writer) {
        out.u32(self.size_max).count(self.members.len());
        for (member, settings) in &self.members {
            out.u32(*member).u32(settings.weight).bytes(&settings.watch_port);
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            profile: reader.text("profile")?,
            group: reader.u32("group")?,
            size_max: reader.u32("size")?,
            members: read_map(reader, "members", |reader| {
                let member = reader.u32("member")?;
                let weight = reader.u32("weight")?;
                let watch_port = reader.bytes("watched port")?.to_vec();
                Ok((member, GroupMember { weight, watch_port }))
            })?,
        })
    }
}

/// A map with strictly increasing keys: the encoding is canonical, and no key is duplicated.
fn read_map<K: Ord, V>(
    reader: &mut Reader<'_>,
    field: &'static str,
    item: impl FnMut(&mut Reader<'_>) -> Result<(K, V), DecodeError>,
) -> Result<BTreeMap<K, V>, DecodeError> {
    let items = reader.list(field, item)?;
    match items.is_sorted_by(|(a, _), (b, _)| a < b) {
        true => Ok(items.into_iter().collect()),
        false => Err(reader.refuse(field, DecodeProblem::NotCanonical)),
    }
}

fn write_replicas(replicas: &Replicas, out: &mut Writer) {
    out.count(replicas.len());
    for (Replica { port, instance }, copies) in replicas {
        out.u32(*port).u32(*instance).u32(*copies);
    }
}

fn read_replicas(reader: &mut Reader<'_>) -> Result<Replicas, DecodeError> {
    read_map(reader, "replicas", |reader| {
        let port = reader.u32("port")?;
        let instance = reader.u32("instance")?;
        Ok((Replica { port, instance }, reader.u32("copies")?))
    })
}

fn write_option(value: Option<u32>, out: &mut Writer) {
    match value {
        None => out.u8(0),
        Some(value) => out.u8(1).u32(value),
    };
}

fn read_option(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<u32>, DecodeError> {
    match reader.flag(field)? {
        true => reader.u32(field).map(Some),
        false => Ok(None),
    }
}

impl Body for MulticastGroup {
    fn write_identity(&self, out: &mut Writer) {
        out.u32(self.group);
    }
    fn write_content(&self, out: &mut Writer) {
        write_replicas(&self.replicas, out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            group: reader.u32("group")?,
            replicas: read_replicas(reader)?,
        })
    }
}

impl Body for CloneSession {
    fn write_identity(&self, out: &mut Writer) {
        out.u32(self.session);
    }
    fn write_content(&self, out: &mut Writer) {
        write_option(self.port, out);
        write_option(self.multicast_group, out);
        write_replicas(&self.replicas, out);
        out.u32(self.class_of_service).u32(self.truncate_bytes);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            session: reader.u32("session")?,
            port: read_option(reader, "port")?,
            multicast_group: read_option(reader, "multicast group")?,
            replicas: read_replicas(reader)?,
            class_of_service: reader.u32("class of service")?,
            truncate_bytes: reader.u32("truncation")?,
        })
    }
}

impl Body for ValueSetMember {
    fn write_identity(&self, out: &mut Writer) {
        write_key(&self.key, out.text(&self.set));
    }
    fn write_content(&self, _: &mut Writer) {}
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            set: reader.text("value set")?,
            key: read_key(reader)?,
        })
    }
}

impl Unit {
    const fn number(self) -> u8 {
        match self {
            Self::Packets => 1,
            Self::Bytes => 2,
            Self::Both => 3,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8("unit")? {
            1 => Ok(Self::Packets),
            2 => Ok(Self::Bytes),
            3 => Ok(Self::Both),
            _ => Err(reader.refuse("unit", DecodeProblem::InvalidValue)),
        }
    }
}

impl Body for MeterConfig {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.meter);
        match &self.cell {
            MeterCell::Index(index) => {
                out.u8(1).u64(*index);
            }
            MeterCell::Entry { key, priority } => write_key(key, out.u8(2).u32(*priority)),
        }
    }
    fn write_content(&self, out: &mut Writer) {
        out.u8(self.unit.number()).count(self.rates.len());
        for rate in &self.rates {
            out.u64(rate.rate_per_s).u64(rate.burst);
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            meter: reader.text("meter")?,
            cell: match reader.u8("cell")? {
                1 => MeterCell::Index(reader.u64("index")?),
                2 => MeterCell::Entry {
                    priority: reader.u32("priority")?,
                    key: read_key(reader)?,
                },
                _ => return Err(reader.refuse("cell", DecodeProblem::InvalidValue)),
            },
            unit: Unit::read(reader)?,
            rates: reader.list("rates", |reader| {
                Ok(MeterRate {
                    rate_per_s: reader.u64("rate")?,
                    burst: reader.u64("burst")?,
                })
            })?,
        })
    }
}

impl Body for CounterConfig {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.counter);
    }
    fn write_content(&self, out: &mut Writer) {
        out.u8(self.unit.number()).u64(self.size);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            counter: reader.text("counter")?,
            unit: Unit::read(reader)?,
            size: reader.u64("size")?,
        })
    }
}

impl Body for Calculation {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.name);
    }
    fn write_content(&self, out: &mut Writer) {
        out.text(&self.algorithm).count(self.parameters.len());
        for (name, value) in &self.parameters {
            value.write(out.text(name));
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: reader.text("calculation")?,
            algorithm: reader.text("algorithm")?,
            parameters: read_map(reader, "parameters", |reader| {
                Ok((reader.text("parameter")?, Bits::read(reader, "parameter")?))
            })?,
        })
    }
}

impl Body for PortSetting {
    fn write_identity(&self, out: &mut Writer) {
        out.u32(self.port);
        write_option(self.queue, out);
        out.text(&self.name);
    }
    fn write_content(&self, out: &mut Writer) {
        out.u64(self.value);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            port: reader.u32("port")?,
            queue: read_option(reader, "queue")?,
            name: reader.text("setting")?,
            value: reader.u64("value")?,
        })
    }
}

impl Body for BpfProgram {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.name);
    }
    fn write_content(&self, out: &mut Writer) {
        out.raw(&self.instructions);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: reader.text("program")?,
            instructions: reader.array("instructions")?,
        })
    }
}

impl Body for BpfMap {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.name);
    }
    fn write_content(&self, out: &mut Writer) {
        out.u32(self.map_type).u32(self.key_bytes).u32(self.value_bytes);
        out.u32(self.entries_max).u32(self.flags);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: reader.text("map")?,
            map_type: reader.u32("type")?,
            key_bytes: reader.u32("key size")?,
            value_bytes: reader.u32("value size")?,
            entries_max: reader.u32("entries")?,
            flags: reader.u32("flags")?,
        })
    }
}

impl Body for BpfMapEntry {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.map).bytes(&self.key);
    }
    fn write_content(&self, out: &mut Writer) {
        out.bytes(&self.value);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            map: reader.text("map")?,
            key: reader.bytes("key")?.to_vec(),
            value: reader.bytes("value")?.to_vec(),
        })
    }
}

impl Body for BpfAttachment {
    fn write_identity(&self, out: &mut Writer) {
        out.text(&self.interface).text(&self.hook);
    }
    fn write_content(&self, out: &mut Writer) {
        out.text(&self.program);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            interface: reader.text("interface")?,
            hook: reader.text("hook")?,
            program: reader.text("program")?,
        })
    }
}
