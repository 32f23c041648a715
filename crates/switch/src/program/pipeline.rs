//! Pipelines: tables and conditions, and the way through them.

use serde::Serialize;

use super::expr::Bool;
use super::ids::{ActionId, CalculationId, FieldRef, HeaderId, MeterId, NodeId, ProfileId, TableId};
use num_bigint::BigUint;

/// A pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pipeline {
    /// `ingress` or `egress`.
    pub name: String,
    /// Where it begins.
    pub init: Option<NodeId>,
    /// Its nodes.
    pub nodes: Vec<Node>,
}

/// A node of the control flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Node {
    /// Applies a table.
    Table(TableId),
    /// Asks a condition.
    Condition {
        /// The condition.
        condition: Bool,
        /// Where to if it holds.
        on_true: Option<NodeId>,
        /// Where to if not.
        on_false: Option<NodeId>,
    },
    /// Runs an action.
    Action {
        /// The action, which has no parameters.
        action: ActionId,
        /// Where to then.
        next: Option<NodeId>,
    },
}

/// How a key's field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum MatchKind {
    /// Equal.
    Exact,
    /// Equal in the first bits.
    Lpm,
    /// Equal under a mask.
    Ternary,
    /// Between two values.
    Range,
    /// A header's validity.
    Valid,
}

/// A field of a table's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyField {
    /// Its name for the control plane.
    pub name: String,
    /// How it is compared.
    pub kind: MatchKind,
    /// What is compared.
    pub source: KeySource,
    /// A mask of the program's own.
    pub mask: Option<Vec<u8>>,
    /// Width.
    pub bits: u32,
}

/// What a key's field is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KeySource {
    /// A field.
    Field(FieldRef),
    /// Whether a header is valid.
    Valid(HeaderId),
}

/// Where a table's actions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TableKind {
    /// Entries name actions.
    Simple,
    /// Entries name members of a profile.
    Indirect(ProfileId),
    /// Entries name members or groups of a profile.
    Selector(ProfileId),
}

/// Where the pipeline goes on after a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Next {
    /// By the action that was run.
    ByAction(Vec<(ActionId, Option<NodeId>)>),
    /// By hit and miss.
    ByHit {
        /// After a hit.
        hit: Option<NodeId>,
        /// After a miss.
        miss: Option<NodeId>,
    },
}

/// A table's action and its arguments, as the program gives them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionEntry {
    /// The action.
    pub action: ActionId,
    /// Its arguments.
    pub args: Vec<BigUint>,
}

/// A field of an entry's match, as the program gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum EntryMatch {
    /// A value.
    Exact(Vec<u8>),
    /// A value and a number of leading bits.
    Lpm(Vec<u8>, u32),
    /// A value and a mask.
    Ternary(Vec<u8>, Vec<u8>),
    /// First and last value.
    Range(Vec<u8>, Vec<u8>),
    /// A header's validity.
    Valid(bool),
}

/// An entry that the program brings with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConstEntry {
    /// What it matches.
    pub key: Vec<EntryMatch>,
    /// Its priority; the lowest number wins.
    pub priority: u32,
    /// What it runs.
    pub action: ActionEntry,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Its full name.
    pub name: String,
    /// Its number in the JSON.
    pub json_id: u32,
    /// Its kind.
    pub kind: TableKind,
    /// `exact`, `lpm`, `ternary` or `range`: how the whole key is looked up.
    pub match_kind: MatchKind,
    /// Its key.
    pub key: Vec<KeyField>,
    /// Most entries.
    pub size: u32,
    /// Whether entries count their packets.
    pub with_counters: bool,
    /// Whether idle entries are told.
    pub with_timeout: bool,
    /// A meter for each entry, and where its colour goes.
    pub direct_meter: Option<(MeterId, FieldRef)>,
    /// Its actions.
    pub actions: Vec<ActionId>,
    /// What a miss runs.
    pub default: Option<ActionEntry>,
    /// Whether the default action may not be exchanged.
    pub default_action_const: bool,
    /// Whether the default action's arguments may not be changed either.
    pub default_entry_const: bool,
    /// Entries that cannot be changed; their presence makes the table constant.
    pub entries: Option<Vec<ConstEntry>>,
    /// Where to go on.
    pub next: Next,
    /// Where to go on after a miss of a table that has no default action.
    pub next_without_action: Option<NodeId>,
}

/// An action profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Most members.
    pub size: u32,
    /// How a group's member is chosen.
    pub selector: Option<CalculationId>,
}
