//! Actions and what entries lead to (9.1.2, 9.2.3).

use super::key::unwritable;
use super::{Translator, chosen, unknown};
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
    /// An action with its arguments, whoever may use it.
    pub(super) fn decode_action(&self, action: &v1::Action) -> Result<Action, EntityError> {
        let known = self
            .info
            .actions()
            .get(ActionId(action.action_id))
            .ok_or_else(|| unknown("action", action.action_id))?;
        let at_action = |error: EntityError| error.at(format!("action \"{}\"", known.name));
        if let Some(extra) = action
            .params
            .iter()
            .find(|given| !known.params.iter().any(|param| param.id.0 == given.param_id))
        {
            return Err(at_action(unknown("parameter here", extra.param_id)));
        }
        let params = known.params.iter().map(|param| {
            decode_param(param, &action.params)
                .map_err(|error| at_action(error.at(format!("parameter \"{}\"", param.name))))
        });
        Ok(Action {
            id: known.id,
            params: params.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn encode_action(&self, action: &Action) -> v1::Action {
        let params = self
            .info
            .actions()
            .get(action.id)
            .map(|known| known.params.as_slice())
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

    /// An action that a table may use there.
    pub(super) fn decode_scoped_action(
        &self,
        table: &Table,
        action: &v1::Action,
        allowed: impl Fn(ActionScope) -> bool,
        place: &str,
    ) -> Result<Action, EntityError> {
        let decoded = self.decode_action(action)?;
        let name = || {
            self.info
                .actions()
                .get(decoded.id)
                .map(|known| known.name.clone())
                .unwrap_or_default()
        };
        match table.scope(decoded.id) {
            None => Err(EntityError::invalid(format!(
                "action \"{}\" is none of this table's",
                name()
            ))),
            Some(scope) if !allowed(scope) => Err(EntityError::denied(format!(
                "action \"{}\" may not be used here {place}",
                name()
            ))),
            Some(_) => Ok(decoded),
        }
    }

    /// What an entry leads to, as its table allows.
    pub(super) fn decode_entry_action(
        &self,
        table: &Table,
        action: &v1::TableAction,
    ) -> Result<EntryAction, EntityError> {
        let action = action
            .r#type
            .as_ref()
            .ok_or_else(|| EntityError::invalid("the action is empty"))?;
        let profile = table.profile.and_then(|id| self.info.profiles().get(id));
        match (profile, action) {
            (None, ActionMessage::Action(action)) => self
                .decode_scoped_action(table, action, ActionScope::in_entries, "in entries")
                .map(EntryAction::Action),
            (None, _) => Err(EntityError::invalid(
                "the table is direct: its entries lead to actions",
            )),
            (Some(_), ActionMessage::ActionProfileMemberId(id)) => {
                chosen(*id, "a member's id").map(EntryAction::Member)
            }
            (Some(profile), ActionMessage::ActionProfileGroupId(id)) if profile.with_selector => {
                chosen(*id, "a group's id").map(EntryAction::Group)
            }
            (Some(profile), ActionMessage::ActionProfileActionSet(set)) if profile.with_selector => self
                .decode_action_set(table, profile, set)
                .map(EntryAction::OneShot),
            (Some(profile), _) => Err(EntityError::invalid(format!(
                "the table's actions are in \"{}\": its entries lead to its members{}",
                profile.name,
                if profile.with_selector {
                    ", groups or action sets"
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
            ActionSelectionMode::DefaultModeDeterminedByActionSelector => SelectionMode::OfSelector,
            ActionSelectionMode::Hash => SelectionMode::Hash,
            ActionSelectionMode::Random => SelectionMode::Random,
        };
        let size = match set.size_semantics() {
            SizeMessage::DefaultSizeDeterminedByActionSelector => SizeMode::OfSelector,
            SizeMessage::SumOfWeights => SizeMode::SumOfWeights,
            SizeMessage::SumOfMembers => SizeMode::SumOfMembers,
        };
        let actions = set
            .action_profile_actions
            .iter()
            .enumerate()
            .map(|(place, weighted)| {
                self.decode_weighted(table, profile, weighted)
                    .map_err(|error| error.at(format!("action {place} of the set")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let weights = actions.iter().map(|weighted| weighted.weight);
        if let Some(excess) = excess_of(profile, profile.max_group_size, weights) {
            return Err(EntityError::invalid(excess));
        }
        let group_scope = |scope| scope == ActionScope::GroupAction;
        let group_action = set.group_action.as_ref();
        let group_action = group_action
            .map(|action| self.decode_scoped_action(table, action, group_scope, "for a group"))
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
            .ok_or_else(|| EntityError::invalid("no action is given"))?;
        let action = self.decode_scoped_action(table, action, ActionScope::in_entries, "in entries")?;
        let weight = decode_weight(profile, weighted.weight)?;
        let watch = match &weighted.watch_kind {
            Some(WatchKind::Watch(number)) => deprecated_watch(*number),
            Some(WatchKind::WatchPort(string)) => decode_watch_port(string)?,
            None => None,
        };
        Ok(WeightedAction {
            action,
            weight,
            watch,
        })
    }

    fn encode_action_set(&self, set: &ActionSet) -> v1::ActionProfileActionSet {
        let mode = match set.mode {
            SelectionMode::OfSelector => ActionSelectionMode::DefaultModeDeterminedByActionSelector,
            SelectionMode::Hash => ActionSelectionMode::Hash,
            SelectionMode::Random => ActionSelectionMode::Random,
        };
        let size = match set.size {
            SizeMode::OfSelector => SizeMessage::DefaultSizeDeterminedByActionSelector,
            SizeMode::SumOfWeights => SizeMessage::SumOfWeights,
            SizeMode::SumOfMembers => SizeMessage::SumOfMembers,
        };
        let encode = |weighted: &WeightedAction| v1::ActionProfileAction {
            action: Some(self.encode_action(&weighted.action)),
            weight: i32::try_from(weighted.weight).unwrap_or(i32::MAX),
            watch_kind: weighted.watch.map(|port| match port.deprecated_field {
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

fn decode_param(param: &Param, given: &[v1::action::Param]) -> Result<Bits, EntityError> {
    let Format::Bits(width) = param.format else {
        return Err(unwritable());
    };
    let mut values = given.iter().filter(|given| given.param_id == param.id.0);
    match (values.next(), values.next()) {
        (Some(given), None) => Ok(Bits::parse(width, &given.value)?),
        (Some(_), Some(_)) => Err(EntityError::invalid("it is given twice")),
        (None, _) => Err(EntityError::invalid("it is not given")),
    }
}

/// A weight as the selector takes them: from 1, or none where it weighs by itself.
pub(super) fn decode_weight(profile: &Profile, weight: i32) -> Result<u32, EntityError> {
    match (profile.weights_disallowed, u32::try_from(weight)) {
        (true, Ok(0)) => Ok(0),
        (true, _) => Err(EntityError::invalid(format!(
            "weight {weight}: \"{}\" weighs by itself, leave it out",
            profile.name
        ))),
        (false, Ok(weight)) if weight > 0 => match profile.semantics {
            SizeSemantics::SumOfMembers { max_member_weight }
                if max_member_weight > 0 && weight > max_member_weight =>
            {
                Err(EntityError::invalid(format!(
                    "weight {weight}; \"{}\" allows {max_member_weight}",
                    profile.name
                )))
            }
            _ => Ok(weight),
        },
        (false, _) => Err(EntityError::invalid(format!("weight {weight}; the least is 1"))),
    }
}

/// What is wrong with a group of these weights, if it is larger than `max`, as the selector counts; zero is
/// no limit.
pub(super) fn excess_of(profile: &Profile, max: u32, weights: impl Iterator<Item = u32>) -> Option<String> {
    let (size, counted) = match profile.semantics {
        SizeSemantics::SumOfWeights => (weights.map(u64::from).sum(), "its members' weights"),
        SizeSemantics::SumOfMembers { .. } => (weights.count() as u64, "its members"),
    };
    (max > 0 && size > u64::from(max))
        .then(|| format!("a group of size {size}, counted by {counted}; {max} is allowed"))
}

/// A port in the deprecated field; zero is what a client leaves there that does not watch.
pub(super) fn deprecated_watch(number: i32) -> Option<Port> {
    (number != 0).then(|| Port {
        number: number.cast_unsigned(),
        deprecated_field: true,
    })
}

/// A port that is watched; an empty string is none.
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

/// A controller's number of a port: 32 bits (17.1.1).
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
