//! Pipelines: tables, conditions and the control flow between them.

use serde::Serialize;

use super::expr::Bool;
use super::ids::{ActionId, CalculationId, FieldRef, HeaderId, MeterId, NodeId, ProfileId, TableId};
use num_bigint::BigUint;

/// Pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pipeline {
    /// `ingress` or `egress`.
    pub name: String,
    /// First node.
    pub init: Option<NodeId>,
    /// Nodes.
    pub nodes: Vec<Node>,
}

/// Control flow node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Node {
    /// Applies a table.
    Table(TableId),
    /// Evaluates a condition.
    Condition {
        /// Condition.
        condition: Bool,
        /// Next node if true.
        on_true: Option<NodeId>,
        /// Next node if false.
        on_false: Option<NodeId>,
    },
    /// Runs an action.
    Action {
        /// Action without parameters.
        action: ActionId,
        /// Next node.
        next: Option<NodeId>,
    },
}

/// Match kind of a key field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum MatchKind {
    /// Exact match.
    Exact,
    /// Longest prefix match.
    Lpm,
    /// Match under a mask.
    Ternary,
    /// Range match.
    Range,
    /// Validity of a header.
    Valid,
}

/// Key field of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyField {
    /// Name in the control plane.
    pub name: String,
    /// Match kind.
    pub kind: MatchKind,
    /// Source of the value.
    pub source: KeySource,
    /// Mask that the program applies to the value before the match, if any.
    pub mask: Option<Vec<u8>>,
    /// Width, bits.
    pub bits: u32,
}

/// Source of a key field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KeySource {
    /// Field.
    Field(FieldRef),
    /// Validity of a header.
    Valid(HeaderId),
}

/// Implementation of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TableKind {
    /// Entries refer to actions.
    Simple,
    /// Entries refer to members of a profile.
    Indirect(ProfileId),
    /// Entries refer to members or groups of a profile.
    Selector(ProfileId),
}

/// Next node after a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Next {
    /// By executed action.
    ByAction(Vec<(ActionId, Option<NodeId>)>),
    /// By hit or miss.
    ByHit {
        /// After a hit.
        hit: Option<NodeId>,
        /// After a miss.
        miss: Option<NodeId>,
    },
}

/// Action with arguments from the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionEntry {
    /// Action.
    pub action: ActionId,
    /// Arguments.
    pub args: Vec<BigUint>,
}

/// Match of one key field in an entry that the program defines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum EntryMatch {
    /// Value.
    Exact(Vec<u8>),
    /// Value and prefix length, bits.
    Lpm(Vec<u8>, u32),
    /// Value and mask.
    Ternary(Vec<u8>, Vec<u8>),
    /// Inclusive bounds.
    Range(Vec<u8>, Vec<u8>),
    /// Validity of a header.
    Valid(bool),
}

/// Entry defined by the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConstEntry {
    /// Match key.
    pub key: Vec<EntryMatch>,
    /// Priority; the lowest number wins.
    pub priority: u32,
    /// Action.
    pub action: ActionEntry,
}

/// Table.
// There are more than 15 fields because each is a property of a table that P4 defines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Full name.
    pub name: String,
    /// Id in the JSON.
    pub json_id: u32,
    /// Implementation.
    pub kind: TableKind,
    /// Match type of the whole key: `exact`, `lpm`, `ternary` or `range`.
    pub match_kind: MatchKind,
    /// Key fields.
    pub key: Vec<KeyField>,
    /// Capacity in entries.
    pub size: u32,
    /// Whether entries have a direct counter.
    pub with_counters: bool,
    /// Whether entries may have an idle timeout.
    pub with_timeout: bool,
    /// Direct meter and the target field of its color.
    pub direct_meter: Option<(MeterId, FieldRef)>,
    /// Actions.
    pub actions: Vec<ActionId>,
    /// Default action.
    pub default: Option<ActionEntry>,
    /// Whether the default action is constant.
    pub default_action_const: bool,
    /// Whether the arguments of the default action are also constant.
    pub default_entry_const: bool,
    /// Constant entries; their presence makes the table constant.
    pub entries: Option<Vec<ConstEntry>>,
    /// Next node.
    pub next: Next,
    /// Next node after a miss if the table has no default action.
    pub next_without_action: Option<NodeId>,
}

/// Action profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Name.
    pub name: String,
    /// Capacity in members.
    pub size: u32,
    /// Calculation that selects the member of a group.
    pub selector: Option<CalculationId>,
}
