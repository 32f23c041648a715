//! Actions with their arguments.

use std::collections::BTreeMap;

use linewarden_p4runtime::entity::Action;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as named;
use num_bigint::BigUint;

use super::binding::Binding;
use super::values::{bits, number};
use super::writing::bound;
use crate::lower::lay_args;
use crate::program::Program;
use crate::program::ids::ActionId;
use crate::program::pipeline::ActionEntry;
use crate::setup::action_call;
use crate::tables::ActionCall;

/// An action among these as the switch runs it.
pub(super) fn call(
    program: &Program,
    among: &BTreeMap<named::ActionId, ActionId>,
    action: &Action,
) -> Result<ActionCall, EntityError> {
    let entry = ActionEntry {
        action: bound(among.get(&action.id).copied())?,
        args: action.params.iter().map(number).collect(),
    };
    Ok(action_call(program, &entry))
}

/// The action that such a call was made of; none that P4Info does not know.
pub(super) fn named(program: &Program, binding: &Binding, call: &ActionCall) -> Option<Action> {
    let known = program.actions.get(call.action.index())?;
    let (places, _) = lay_args(known.params.iter().map(|param| param.bits));
    let param = |((at, length), param): (&(u32, u32), &crate::program::action::Param)| {
        let value = call.data.get(*at as usize..(*at + *length) as usize);
        bits(param.bits, &BigUint::from_bytes_be(value.unwrap_or_default()))
    };
    Some(Action {
        id: binding.action_ids.get(call.action.index()).copied().flatten()?,
        params: places.iter().zip(&known.params).map(param).collect(),
    })
}
