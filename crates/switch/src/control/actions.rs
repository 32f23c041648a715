//! Conversion of actions with their arguments.

use std::collections::BTreeMap;

use linewarden_p4runtime::entity::Action;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as p4rt_ids;
use num_bigint::BigUint;

use super::binding::Binding;
use super::values::{bits, number};
use super::write::require_bound;
use crate::executable::layout_args;
use crate::program::Program;
use crate::program::ids::ActionId;
use crate::program::pipeline::ActionEntry;
use crate::setup::action_call;
use crate::tables::ActionCall;

/// Converts a P4Runtime action, which must be in `allowed`, to an action call of the switch.
pub(super) fn to_action_call(
    program: &Program,
    allowed: &BTreeMap<p4rt_ids::ActionId, ActionId>,
    action: &Action,
) -> Result<ActionCall, EntityError> {
    let entry = ActionEntry {
        action: require_bound(allowed.get(&action.id).copied())?,
        args: action.params.iter().map(number).collect(),
    };
    Ok(action_call(program, &entry))
}

/// Converts an action call to a P4Runtime action; `None` if the P4Info has no such action.
pub(super) fn to_p4runtime_action(program: &Program, binding: &Binding, call: &ActionCall) -> Option<Action> {
    let action = program.actions.get(call.action.index())?;
    let (locations, _) = layout_args(action.params.iter().map(|param| param.bits));
    let param = |((offset, length), param): (&(u32, u32), &crate::program::action::Param)| {
        let value = call.data.get(*offset as usize..(*offset + *length) as usize);
        bits(param.bits, &BigUint::from_bytes_be(value.unwrap_or_default()))
    };
    Some(Action {
        id: binding.action_ids.get(call.action.index()).copied().flatten()?,
        params: locations.iter().zip(&action.params).map(param).collect(),
    })
}
