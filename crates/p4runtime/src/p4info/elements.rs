//! Elements of a P4Info.

use std::sync::Arc;

use super::types::Type;
use crate::ids::{
    ActionId, CounterId, DigestId, DirectCounterId, DirectMeterId, FieldId, MetadataId, MeterId, ParamId,
    ProfileId, RegisterId, TableId, ValueSetId,
};

/// Encoding of the values of a match field, parameter or packet metadata field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A `bit<W>`. For a translated type, W is the width at the controller, which may differ from the width in
    /// the data plane.
    Bits(u32),
    /// No encoding: a name that the target would have to translate (`sdn_string`), or a type for which p4c gives
    /// no width, such as an `enum` without numbers. Entities with such a field can be read but not
    /// written.
    Unwritable,
}

/// Match kind of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// Exact match.
    Exact,
    /// Longest prefix match.
    Lpm,
    /// Match under a mask.
    Ternary,
    /// Range match with inclusive bounds.
    Range,
    /// Exact match or don't care.
    Optional,
    /// Architecture-specific match kind, which P4Runtime cannot encode.
    Other,
}

impl MatchKind {
    /// Whether entries of a table with such a field carry a priority.
    pub fn needs_priority(self) -> bool {
        matches!(self, Self::Ternary | Self::Range | Self::Optional)
    }
}

/// Key field of a table or value set.
#[derive(Clone, Debug)]
pub struct MatchField {
    /// Id within the key.
    pub id: FieldId,
    /// Name as in the program; may be empty in a value set.
    pub name: String,
    /// Encoding of the values.
    pub format: Format,
    /// Match kind.
    pub kind: MatchKind,
}

/// Scope of an action in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionScope {
    /// Entries and default action.
    TableAndDefault,
    /// Entries only.
    TableOnly,
    /// Default action only.
    DefaultOnly,
    /// Group action: runs before the action of the selected member.
    GroupAction,
}

impl ActionScope {
    /// Whether entries may use the action.
    pub fn allows_entries(self) -> bool {
        matches!(self, Self::TableAndDefault | Self::TableOnly)
    }

    /// Whether the action may be the default action.
    pub fn allows_default(self) -> bool {
        matches!(self, Self::TableAndDefault | Self::DefaultOnly)
    }
}

/// Unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Bytes and packets.
    Both,
}

/// Unit of the rates and bursts of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUnit {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
}

/// Type of a meter, which restricts the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterType {
    /// RFC 2698: no excess burst.
    TwoRateThreeColor,
    /// RFC 2697: peak equals committed.
    SingleRateThreeColor,
    /// No excess burst, and peak equals committed.
    SingleRateTwoColor,
}

/// Direct counter of a table.
#[derive(Clone, Debug)]
pub struct DirectCounter {
    /// Id.
    pub id: DirectCounterId,
    /// Name as in the program.
    pub name: String,
    /// Unit.
    pub unit: CounterUnit,
}

/// Direct meter of a table.
#[derive(Clone, Debug)]
pub struct DirectMeter {
    /// Id.
    pub id: DirectMeterId,
    /// Name as in the program.
    pub name: String,
    /// Unit.
    pub unit: MeterUnit,
    /// Meter type.
    pub kind: MeterType,
}

/// Table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Id.
    pub id: TableId,
    /// Name as in the program.
    pub name: String,
    /// Short name.
    pub alias: String,
    /// Key fields, in the order of the program.
    pub fields: Vec<MatchField>,
    /// Actions with their scope.
    pub actions: Vec<(ActionId, ActionScope)>,
    /// Default action, if it is constant.
    pub const_default: Option<ActionId>,
    /// Action profile or selector of an indirect table.
    pub profile: Option<ProfileId>,
    /// Direct counter.
    pub counter: Option<DirectCounter>,
    /// Direct meter.
    pub meter: Option<DirectMeter>,
    /// Requested capacity, entries.
    pub size: u64,
    /// Whether entries may have an idle timeout with a notification.
    pub idle_timeout: bool,
    /// Whether the set of entries is constant.
    pub is_const: bool,
    /// Whether the program defines initial entries.
    pub has_initial_entries: bool,
}

impl Table {
    /// Whether entries carry a priority: the key has a ternary, range or optional field (9.1).
    pub fn needs_priority(&self) -> bool {
        self.fields.iter().any(|field| field.kind.needs_priority())
    }

    /// Scope of an action; `None` if the table does not use the action.
    pub fn scope(&self, action: ActionId) -> Option<ActionScope> {
        self.actions
            .iter()
            .find(|(id, _)| *id == action)
            .map(|(_, scope)| *scope)
    }
}

/// Parameter of an action.
#[derive(Clone, Debug)]
pub struct Param {
    /// Id within the action.
    pub id: ParamId,
    /// Name.
    pub name: String,
    /// Encoding of the values.
    pub format: Format,
}

/// Action.
#[derive(Clone, Debug)]
pub struct Action {
    /// Id.
    pub id: ActionId,
    /// Name as in the program.
    pub name: String,
    /// Short name.
    pub alias: String,
    /// Parameters, in the order of the program.
    pub params: Vec<Param>,
}

/// Size semantics of the groups of a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeSemantics {
    /// Sum of the weights of all members.
    SumOfWeights,
    /// Number of members. A weight must not exceed `max_member_weight`.
    SumOfMembers {
        /// Maximum weight of a member; zero for no maximum.
        max_member_weight: u32,
    },
}

/// Action profile or selector.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Id.
    pub id: ProfileId,
    /// Name as in the program.
    pub name: String,
    /// Short name.
    pub alias: String,
    /// Tables that use the profile.
    pub tables: Vec<TableId>,
    /// Whether the profile is a selector with groups.
    pub with_selector: bool,
    /// Capacity in members; for a selector in the unit of `semantics`.
    pub size: u64,
    /// Maximum size of a group in the unit of `semantics`; zero if the program sets no limit.
    pub max_group_size: u32,
    /// Size semantics of groups.
    pub semantics: SizeSemantics,
    /// Whether weights must be absent because the target sets them.
    pub weights_disallowed: bool,
}

/// Counter array.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Id.
    pub id: CounterId,
    /// Name as in the program.
    pub name: String,
    /// Unit.
    pub unit: CounterUnit,
    /// Number of cells.
    pub size: u64,
}

/// Meter array.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Id.
    pub id: MeterId,
    /// Name as in the program.
    pub name: String,
    /// Unit.
    pub unit: MeterUnit,
    /// Meter type.
    pub kind: MeterType,
    /// Number of cells.
    pub size: u64,
}

/// Register array.
#[derive(Clone, Debug)]
pub struct Register {
    /// Id.
    pub id: RegisterId,
    /// Name as in the program.
    pub name: String,
    /// Type of a cell.
    pub data: Arc<Type>,
    /// Number of cells.
    pub size: u64,
}

/// Digest.
#[derive(Clone, Debug)]
pub struct Digest {
    /// Id.
    pub id: DigestId,
    /// Name as in the program.
    pub name: String,
    /// Type of a message.
    pub data: Arc<Type>,
}

/// Parser value set.
#[derive(Clone, Debug)]
pub struct ValueSet {
    /// Id.
    pub id: ValueSetId,
    /// Name as in the program.
    pub name: String,
    /// Fields of a member.
    pub fields: Vec<MatchField>,
    /// Capacity in members.
    pub size: u64,
}

/// Metadata field of packet-ins or packet-outs.
#[derive(Clone, Debug)]
pub struct MetadataField {
    /// Id within the header.
    pub id: MetadataId,
    /// Name.
    pub name: String,
    /// Encoding of the values.
    pub format: Format,
}

/// Header with the metadata of a packet between controller and switch. Fields are in the order of the
/// header.
#[derive(Clone, Debug)]
pub struct ControllerHeader {
    /// Fields.
    pub fields: Vec<MetadataField>,
}
