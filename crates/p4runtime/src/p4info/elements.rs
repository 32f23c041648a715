//! The elements of a P4Info.

use std::sync::Arc;

use super::types::Type;
use crate::ids::{
    ActionId, CounterId, DigestId, DirectCounterId, DirectMeterId, FieldId, MetadataId, MeterId, ParamId,
    ProfileId, RegisterId, TableId, ValueSetId,
};

/// How values of a match field, a parameter or a packet's metadata are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A `bit<W>`; where the P4 type is translated, W is the controller's width, which may differ from the
    /// data plane's.
    Bits(u32),
    /// Not at all: a name that the target would have to translate (`sdn_string`), or a type for which p4c
    /// gives no width, an `enum` without numbers for one. What has such a field can be read about and not
    /// written.
    Unwritable,
}

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// With one value.
    Exact,
    /// With a prefix; the longest wins.
    Lpm,
    /// With a value under a mask.
    Ternary,
    /// With an interval, both ends included.
    Range,
    /// With one value or none.
    Optional,
    /// Something of the architecture's own, which P4Runtime cannot write.
    Other,
}

impl MatchKind {
    /// Whether entries of a table with such a field carry a priority.
    pub fn needs_priority(self) -> bool {
        matches!(self, Self::Ternary | Self::Range | Self::Optional)
    }
}

/// One field of a table's or a value set's key.
#[derive(Clone, Debug)]
pub struct MatchField {
    /// Its number within the key.
    pub id: FieldId,
    /// Its name, as in the program; may be empty in a value set.
    pub name: String,
    /// How its values are written.
    pub format: Format,
    /// How it is compared.
    pub kind: MatchKind,
}

/// Where a table's action may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionScope {
    /// In entries and as the default.
    TableAndDefault,
    /// In entries only.
    TableOnly,
    /// As the default only.
    DefaultOnly,
    /// For a group, before the action of the member that was selected.
    GroupAction,
}

impl ActionScope {
    /// Whether entries may have it.
    pub fn in_entries(self) -> bool {
        matches!(self, Self::TableAndDefault | Self::TableOnly)
    }

    /// Whether it may be the default.
    pub fn as_default(self) -> bool {
        matches!(self, Self::TableAndDefault | Self::DefaultOnly)
    }
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Both.
    Both,
}

/// What a meter's rates and bursts are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUnit {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
}

/// Which configurations a meter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterType {
    /// RFC 2698: no excess burst.
    TwoRateThreeColour,
    /// RFC 2697: peak equals committed.
    SingleRateThreeColour,
    /// Both restrictions.
    SingleRateTwoColour,
}

/// A counter that every entry of a table has.
#[derive(Clone, Debug)]
pub struct DirectCounter {
    /// Its number.
    pub id: DirectCounterId,
    /// Its name, as in the program.
    pub name: String,
    /// What it counts.
    pub unit: CounterUnit,
}

/// A meter that every entry of a table has.
#[derive(Clone, Debug)]
pub struct DirectMeter {
    /// Its number.
    pub id: DirectMeterId,
    /// Its name, as in the program.
    pub name: String,
    /// What it is counted in.
    pub unit: MeterUnit,
    /// Which configurations it takes.
    pub kind: MeterType,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its number.
    pub id: TableId,
    /// Its name, as in the program.
    pub name: String,
    /// A shorter name.
    pub alias: String,
    /// The key, in the program's order.
    pub fields: Vec<MatchField>,
    /// The actions it may use and where.
    pub actions: Vec<(ActionId, ActionScope)>,
    /// The default action that cannot be changed, if it cannot.
    pub const_default: Option<ActionId>,
    /// The action profile or selector that holds its actions, if it is indirect.
    pub profile: Option<ProfileId>,
    /// Its entries' counter.
    pub counter: Option<DirectCounter>,
    /// Its entries' meter.
    pub meter: Option<DirectMeter>,
    /// How many entries it should take.
    pub size: u64,
    /// Whether entries may have a time to live, with a notification at its end.
    pub idle_timeout: bool,
    /// Whether its entries are those of the program for ever.
    pub is_const: bool,
    /// Whether the program gives it entries.
    pub has_initial_entries: bool,
}

impl Table {
    /// Whether its entries carry a priority: a ternary, range or optional field is among its key (9.1).
    pub fn needs_priority(&self) -> bool {
        self.fields.iter().any(|field| field.kind.needs_priority())
    }

    /// Where this action may be used here, if anywhere.
    pub fn scope(&self, action: ActionId) -> Option<ActionScope> {
        self.actions
            .iter()
            .find(|(id, _)| *id == action)
            .map(|(_, scope)| *scope)
    }
}

/// A parameter of an action.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its number within the action.
    pub id: ParamId,
    /// Its name.
    pub name: String,
    /// How its values are written.
    pub format: Format,
}

/// An action.
#[derive(Clone, Debug)]
pub struct Action {
    /// Its number.
    pub id: ActionId,
    /// Its name, as in the program.
    pub name: String,
    /// A shorter name.
    pub alias: String,
    /// Its parameters, in the program's order.
    pub params: Vec<Param>,
}

/// How the size of a selector's group is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeSemantics {
    /// The sum of its members' weights.
    SumOfWeights,
    /// Its members; none may weigh more than `max_member_weight`, where that is not zero.
    SumOfMembers {
        /// The highest weight of one member; zero for any.
        max_member_weight: u32,
    },
}

/// An action profile or selector.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its number.
    pub id: ProfileId,
    /// Its name, as in the program.
    pub name: String,
    /// A shorter name.
    pub alias: String,
    /// The tables that use it.
    pub tables: Vec<TableId>,
    /// Whether it selects among the members of groups.
    pub with_selector: bool,
    /// How many members it holds; for a selector as `semantics` counts.
    pub size: u64,
    /// How large a group may be, as `semantics` counts; zero for no limit of the program's.
    pub max_group_size: u32,
    /// How groups are counted.
    pub semantics: SizeSemantics,
    /// Whether the target weighs members by itself, so that weights must be absent.
    pub weights_disallowed: bool,
}

/// An array of counters.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Its number.
    pub id: CounterId,
    /// Its name, as in the program.
    pub name: String,
    /// What it counts.
    pub unit: CounterUnit,
    /// Its cells.
    pub size: u64,
}

/// An array of meters.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Its number.
    pub id: MeterId,
    /// Its name, as in the program.
    pub name: String,
    /// What it is counted in.
    pub unit: MeterUnit,
    /// Which configurations it takes.
    pub kind: MeterType,
    /// Its cells.
    pub size: u64,
}

/// An array of registers.
#[derive(Clone, Debug)]
pub struct Register {
    /// Its number.
    pub id: RegisterId,
    /// Its name, as in the program.
    pub name: String,
    /// What a cell holds.
    pub data: Arc<Type>,
    /// Its cells.
    pub size: u64,
}

/// A digest.
#[derive(Clone, Debug)]
pub struct Digest {
    /// Its number.
    pub id: DigestId,
    /// Its name, as in the program.
    pub name: String,
    /// What one message holds.
    pub data: Arc<Type>,
}

/// A parser value set.
#[derive(Clone, Debug)]
pub struct ValueSet {
    /// Its number.
    pub id: ValueSetId,
    /// Its name, as in the program.
    pub name: String,
    /// What a member has a value for.
    pub fields: Vec<MatchField>,
    /// How many members it takes.
    pub size: u64,
}

/// A field of the header of packet-ins or packet-outs.
#[derive(Clone, Debug)]
pub struct MetadataField {
    /// Its number within the header.
    pub id: MetadataId,
    /// Its name.
    pub name: String,
    /// How its values are written.
    pub format: Format,
}

/// The header that carries a packet's metadata between controller and switch, fields in the order of the
/// header.
#[derive(Clone, Debug)]
pub struct ControllerHeader {
    /// Its fields.
    pub fields: Vec<MetadataField>,
}
