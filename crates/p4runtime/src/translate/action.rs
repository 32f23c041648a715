//! Actions and action specifications of entries (9.1.2, 9.2.3).

use super::key::unwritable_error;
use super::{Translator, nonzero_id, unknown_id};
use crate::bytes::Bits;
use crate::entity::{Action, ActionSet, EntryAction, Port, SelectionMode, SizeMode, WeightedAction};
use crate::error::EntityError;
use crate::ids::ActionId;
use crate::p4info::{ActionScope, Format, Param, Profile, SizeSemantics, Table};
use crate::proto::v1;
use v1::action_profile_action::WatchKind;
use v1::action_profile_action_set::{ActionSelectionMode, SizeSemantics as SizeMessage};
use v1::table_action::Type as ActionMessage;

impl<'a> Translator<'a> {
    /// Decodes an action with its arguments, in any scope.
    pub(super) fn decode_action(&self, action: &v1::Action) -> Result<Action, EntityError> {
        let definition = self
            .info
            .actions()
            .get(ActionId(action.action_id))
            .ok_or_else(|| unknown_id("action", action.action_id))?;
        let at_action = |error: EntityError| error.at(format!("action \"{}\"", definition.name));
        if let Some(extra) = action.params.iter().find(|argument| {
            !definition
                .params
                .iter()
                .any(|param| param.id.0 == argument.param_id)
        }) {
            return Err(at_action(unknown_id("parameter", extra.param_id)));
        }
        let params = definition.params.iter().map(|param| {
            decode_param(param, &action.params)
                .map_err(|error| at_action(error.at(format!("parameter \"{}\"", param.name))))
        });
        Ok(Action {
            id: definition.id,
            params: params.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn encode_action(&self, action: &Action) -> v1::Action {
        let params = self
            .info
            .actions()
            .get(action.id)
            .map(|definition| definition.params.as_slice())
            .unwrap_or_default();
        let encode = |(param, value): (&Param, &Bits)| v1::action::Param {
            param_id: param.id.0,
            value: value.canonical().to_vec(),
        };
        v1::Action {
            action_id: action.id.0,
            params: params.iter().zip(&action.params).map(encode).collect(),
        }
    }

    /// Decodes an action that the table allows in this scope.
    pub(super) fn decode_scoped_action(
        &self,
        table: &Table,
        action: &v1::Action,
        allowed: impl Fn(ActionScope) -> bool,
        usage: &str,
    ) -> Result<Action, EntityError> {
        let decoded = self.decode_action(action)?;
        let name = || {
            self.info
                .actions()
                .get(decoded.id)
                .map(|definition| definition.name.clone())
                .unwrap_or_default()
        };
        match table.scope(decoded.id) {
            None => Err(EntityError::invalid(format!(
                "action \"{}\" does not belong to the table",
                name()
            ))),
            Some(scope) if !allowed(scope) => Err(EntityError::denied(format!(
                "action \"{}\" is not allowed {usage}",
                name()
            ))),
            Some(_) => Ok(decoded),
        }
    }

    /// Decodes the action specification of an entry. The table determines the valid kinds.
    pub(super) fn decode_entry_action(
        &self,
        table: &Table,
        action: &v1::TableAction,
    ) -> Result<EntryAction, EntityError> {
        let action = action
            .r#type
            .as_ref()
            .ok_or_else(|| EntityError::invalid("action is empty"))?;
        let profile = table.profile.and_then(|id| self.info.profiles().get(id));
        match (profile, action) {
            (None, ActionMessage::Action(action)) => self
                .decode_scoped_action(table, action, ActionScope::allows_entries, "in entries")
                .map(EntryAction::Action),
            (None, _) => Err(EntityError::invalid(
                "entries of a direct table require an action",
            )),
            (Some(_), ActionMessage::ActionProfileMemberId(id)) => {
                nonzero_id(*id, "member id").map(EntryAction::Member)
            }
            (Some(profile), ActionMessage::ActionProfileGroupId(id)) if profile.with_selector => {
                nonzero_id(*id, "group id").map(EntryAction::Group)
            }
            (Some(profile), ActionMessage::ActionProfileActionSet(set)) if profile.with_selector => self
                .decode_action_set(table, profile, set)
                .map(EntryAction::OneShot),
            (Some(profile), _) => Err(EntityError::invalid(format!(
                "entries of a table with action profile \"{}\" require a member{}",
                profile.name,
                if profile.with_selector {
                    ", a group or an action set"
                } else {
                    ""
                },
            ))),
        }
    }

    pub(super) fn encode_entry_action(&self, action: &EntryAction) -> v1::TableAction {
        let message = match action {
            EntryAction::Action(action) => ActionMessage::Action(self.encode_action(action)),
            EntryAction::Member(id) => ActionMessage::ActionProfileMemberId(id.0),
            EntryAction::Group(id) => ActionMessage::ActionProfileGroupId(id.0),
            EntryAction::OneShot(set) => ActionMessage::ActionProfileActionSet(self.encode_action_set(set)),
        };
        v1::TableAction {
            r#type: Some(message),
        }
    }

    fn decode_action_set(
        &self,
        table: &Table,
        profile: &Profile,
        set: &v1::ActionProfileActionSet,
    ) -> Result<ActionSet, EntityError> {
        let mode = match set.action_selection_mode() {
            ActionSelectionMode::DefaultModeDeterminedByActionSelector => SelectionMode::SelectorDefault,
            ActionSelectionMode::Hash => SelectionMode::Hash,
            ActionSelectionMode::Random => SelectionMode::Random,
        };
        let size = match set.size_semantics() {
            SizeMessage::DefaultSizeDeterminedByActionSelector => SizeMode::SelectorDefault,
            SizeMessage::SumOfWeights => SizeMode::SumOfWeights,
            SizeMessage::SumOfMembers => SizeMode::SumOfMembers,
        };
        let actions = set
            .action_profile_actions
            .iter()
            .enumerate()
            .map(|(index, weighted)| {
                self.decode_weighted(table, profile, weighted)
                    .map_err(|error| error.at(format!("action {index} of the set")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let weights = actions.iter().map(|weighted| weighted.weight);
        if let Some(excess) = group_size_excess(profile, profile.max_group_size, weights) {
            return Err(EntityError::invalid(excess));
        }
        let group_scope = |scope| scope == ActionScope::GroupAction;
        let group_action = set.group_action.as_ref();
        let group_action = group_action
            .map(|action| self.decode_scoped_action(table, action, group_scope, "as a group action"))
            .transpose()?;
        Ok(ActionSet {
            group_action,
            actions,
            mode,
            size,
        })
    }

    fn decode_weighted(
        &self,
        table: &Table,
        profile: &Profile,
        weighted: &v1::ActionProfileAction,
    ) -> Result<WeightedAction, EntityError> {
        let action = weighted
            .action
            .as_ref()
            .ok_or_else(|| EntityError::invalid("action is missing"))?;
        let action = self.decode_scoped_action(table, action, ActionScope::allows_entries, "in entries")?;
        let weight = decode_weight(profile, weighted.weight)?;
        let watch_port = match &weighted.watch_kind {
            Some(WatchKind::Watch(number)) => deprecated_watch(*number),
            Some(WatchKind::WatchPort(string)) => decode_watch_port(string)?,
            None => None,
        };
        Ok(WeightedAction {
            action,
            weight,
            watch_port,
        })
    }

    fn encode_action_set(&self, set: &ActionSet) -> v1::ActionProfileActionSet {
        let mode = match set.mode {
            SelectionMode::SelectorDefault => ActionSelectionMode::DefaultModeDeterminedByActionSelector,
            SelectionMode::Hash => ActionSelectionMode::Hash,
            SelectionMode::Random => ActionSelectionMode::Random,
        };
        let size = match set.size {
            SizeMode::SelectorDefault => SizeMessage::DefaultSizeDeterminedByActionSelector,
            SizeMode::SumOfWeights => SizeMessage::SumOfWeights,
            SizeMode::SumOfMembers => SizeMessage::SumOfMembers,
        };
        let encode = |weighted: &WeightedAction| v1::ActionProfileAction {
            action: Some(self.encode_action(&weighted.action)),
            weight: i32::try_from(weighted.weight).unwrap_or(i32::MAX),
            watch_kind: weighted.watch_port.map(|port| match port.deprecated_field {
                true => WatchKind::Watch(port.number.cast_signed()),
                false => WatchKind::WatchPort(encode_port(port.number)),
            }),
        };
        v1::ActionProfileActionSet {
            group_action: set.group_action.as_ref().map(|action| self.encode_action(action)),
            action_profile_actions: set.actions.iter().map(encode).collect(),
            action_selection_mode: mode.into(),
            size_semantics: size.into(),
        }
    }
}

fn decode_param(param: &Param, arguments: &[v1::action::Param]) -> Result<Bits, EntityError> {
    let Format::Bits(width) = param.format else {
        return Err(unwritable_error());
    };
    let mut values = arguments
        .iter()
        .filter(|argument| argument.param_id == param.id.0);
    match (values.next(), values.next()) {
        (Some(argument), None) => Ok(Bits::parse(width, &argument.value)?),
        (Some(_), Some(_)) => Err(EntityError::invalid("value is given twice")),
        (None, _) => Err(EntityError::invalid("value is missing")),
    }
}

/// Decodes a weight: at least 1, or 0 if the selector disallows weights.
pub(super) fn decode_weight(profile: &Profile, weight: i32) -> Result<u32, EntityError> {
    match (profile.weights_disallowed, u32::try_from(weight)) {
        (true, Ok(0)) => Ok(0),
        (true, _) => Err(EntityError::invalid(format!(
            "weight {weight} is not allowed: \"{}\" sets the weights itself; omit the weight",
            profile.name
        ))),
        (false, Ok(weight)) if weight > 0 => match profile.semantics {
            SizeSemantics::SumOfMembers { max_member_weight }
                if max_member_weight > 0 && weight > max_member_weight =>
            {
                Err(EntityError::invalid(format!(
                    "weight {weight} is too large: the maximum of \"{}\" is {max_member_weight}",
                    profile.name
                )))
            }
            _ => Ok(weight),
        },
        (false, _) => Err(EntityError::invalid(format!(
            "weight {weight} is too small: the minimum is 1"
        ))),
    }
}

/// Returns an error message if the size of a group with these weights exceeds `max` in the size semantics of the
/// selector. A `max` of zero is no limit.
pub(super) fn group_size_excess(
    profile: &Profile,
    max: u32,
    weights: impl Iterator<Item = u32>,
) -> Option<String> {
    let (size, size_unit) = match profile.semantics {
        SizeSemantics::SumOfWeights => (weights.map(u64::from).sum(), "sum of weights"),
        SizeSemantics::SumOfMembers { .. } => (weights.count() as u64, "number of members"),
    };
    (max > 0 && size > u64::from(max))
        .then(|| format!("group size {size} ({size_unit}) exceeds the maximum of {max}"))
}

/// Decodes the port in the deprecated field; zero means that no port is watched.
pub(super) fn deprecated_watch(number: i32) -> Option<Port> {
    (number != 0).then(|| Port {
        number: number.cast_unsigned(),
        deprecated_field: true,
    })
}

/// Decodes the watched port; an empty string means none.
pub(super) fn decode_watch_port(string: &[u8]) -> Result<Option<Port>, EntityError> {
    if string.is_empty() {
        return Ok(None);
    }
    let number = decode_port(string).map_err(|error| error.at("watch_port"))?;
    Ok(Some(Port {
        number,
        deprecated_field: false,
    }))
}

/// Decodes a port number of the controller: 32 bits (17.1.1).
pub(super) fn decode_port(string: &[u8]) -> Result<u32, EntityError> {
    let number = Bits::parse(u32::BITS, string)?.to_u64();
    Ok(number
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or_default())
}

pub(super) fn encode_port(number: u32) -> Vec<u8> {
    Bits::from_u128(u32::BITS, number.into())
        .map(|bits| bits.canonical().to_vec())
        .unwrap_or_default()
}
