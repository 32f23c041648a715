//! Reads single elements and parts of elements: counters, meters, profiles, match kinds, action references.

use std::collections::BTreeSet;

use super::error::{ElementKind, Problem};
use super::*;
use crate::proto::config;
use config::action_profile::SelectorSizeSemantics;
use config::match_field::{Match, MatchType};

/// Preamble of an element.
pub(super) struct PreambleFields {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) alias: String,
}

impl PreambleFields {
    pub(super) fn counter(self, counter: &config::Counter) -> Result<Counter, Problem> {
        let unit = counter_unit(counter.spec.as_ref())?;
        Ok(Counter {
            id: self.id.into(),
            name: self.name,
            unit,
            size: cells(counter.size)?,
        })
    }

    pub(super) fn direct_counter(
        self,
        counter: &config::DirectCounter,
    ) -> Result<(DirectCounter, TableId), Problem> {
        let unit = counter_unit(counter.spec.as_ref())?;
        Ok((
            DirectCounter {
                id: self.id.into(),
                name: self.name,
                unit,
            },
            counter.direct_table_id.into(),
        ))
    }

    pub(super) fn meter(self, meter: &config::Meter) -> Result<Meter, Problem> {
        let (unit, kind) = meter_spec(meter.spec.as_ref())?;
        Ok(Meter {
            id: self.id.into(),
            name: self.name,
            unit,
            kind,
            size: cells(meter.size)?,
        })
    }

    pub(super) fn direct_meter(self, meter: &config::DirectMeter) -> Result<(DirectMeter, TableId), Problem> {
        let (unit, kind) = meter_spec(meter.spec.as_ref())?;
        Ok((
            DirectMeter {
                id: self.id.into(),
                name: self.name,
                unit,
                kind,
            },
            meter.direct_table_id.into(),
        ))
    }

    pub(super) fn profile(self, profile: &config::ActionProfile) -> Result<Profile, Problem> {
        let unsigned = |value: i32| u32::try_from(value).map_err(|_| Problem::Size(value.into()));
        let semantics = match &profile.selector_size_semantics {
            Some(SelectorSizeSemantics::SumOfMembers(members)) => SizeSemantics::SumOfMembers {
                max_member_weight: unsigned(members.max_member_weight)?,
            },
            Some(SelectorSizeSemantics::SumOfWeights(_)) | None => SizeSemantics::SumOfWeights,
        };
        Ok(Profile {
            id: self.id.into(),
            name: self.name,
            alias: self.alias,
            tables: profile.table_ids.iter().copied().map(TableId).collect(),
            with_selector: profile.with_selector,
            size: cells(profile.size)?,
            max_group_size: unsigned(profile.max_group_size)?,
            semantics,
            weights_disallowed: profile.weights_disallowed,
        })
    }
}

/// Returns a function that attributes a problem to this part of an element.
pub(super) fn part_error(kind: &'static str, name: &str) -> impl Fn(Problem) -> Problem {
    move |problem| Problem::Part {
        kind,
        name: name.to_owned(),
        problem: Box::new(problem),
    }
}

/// Checks that an id within an element is nonzero and unique.
pub(super) fn check_part_id(
    kind: &'static str,
    name: &str,
    id: u32,
    seen: &mut BTreeSet<u32>,
) -> Result<(), Problem> {
    if id != 0 && seen.insert(id) {
        Ok(())
    } else {
        Err(Problem::PartId {
            kind,
            name: name.to_owned(),
            id,
        })
    }
}

/// Converts the number of cells of an array; an error for a negative number.
pub(super) fn cells(size: i64) -> Result<u64, Problem> {
    u64::try_from(size).map_err(|_| Problem::Size(size))
}

pub(super) fn match_kind(field: &config::MatchField) -> Result<MatchKind, Problem> {
    match &field.r#match {
        None => Err(Problem::NoMatchType),
        Some(Match::OtherMatchType(_)) => Ok(MatchKind::Other),
        Some(Match::MatchType(number)) => match MatchType::try_from(*number) {
            Ok(MatchType::Exact) => Ok(MatchKind::Exact),
            Ok(MatchType::Lpm) => Ok(MatchKind::Lpm),
            Ok(MatchType::Ternary) => Ok(MatchKind::Ternary),
            Ok(MatchType::Range) => Ok(MatchKind::Range),
            Ok(MatchType::Optional) => Ok(MatchKind::Optional),
            Ok(MatchType::Unspecified) => Err(Problem::NoMatchType),
            Err(_) => Err(Problem::UnknownEnum {
                field: "match type",
                value: *number,
            }),
        },
    }
}

pub(super) fn action_ref(
    action: &config::ActionRef,
    actions: &Index<ActionId, Action>,
) -> Result<(ActionId, ActionScope), Problem> {
    use config::action_ref::Scope;
    let id = ActionId(action.id);
    if actions.get(id).is_none() {
        return Err(Problem::Dangling {
            kind: ElementKind::Action,
            id: id.0,
        });
    }
    let scope = match Scope::try_from(action.scope) {
        Ok(Scope::TableAndDefault) => ActionScope::TableAndDefault,
        Ok(Scope::TableOnly) => ActionScope::TableOnly,
        Ok(Scope::DefaultOnly) => ActionScope::DefaultOnly,
        Ok(Scope::GroupAction) => ActionScope::GroupAction,
        Err(_) => {
            return Err(Problem::UnknownEnum {
                field: "action scope",
                value: action.scope,
            });
        }
    };
    Ok((id, scope))
}

fn counter_unit(spec: Option<&config::CounterSpec>) -> Result<CounterUnit, Problem> {
    use config::counter_spec::Unit;
    let number = spec.map_or(0, |spec| spec.unit);
    match Unit::try_from(number) {
        Ok(Unit::Bytes) => Ok(CounterUnit::Bytes),
        Ok(Unit::Packets) => Ok(CounterUnit::Packets),
        Ok(Unit::Both) => Ok(CounterUnit::Both),
        Ok(Unit::Unspecified) | Err(_) => Err(Problem::UnknownEnum {
            field: "counter unit",
            value: number,
        }),
    }
}

fn meter_spec(spec: Option<&config::MeterSpec>) -> Result<(MeterUnit, MeterType), Problem> {
    use config::meter_spec::{Type, Unit};
    let (unit_number, kind_number) = spec.map_or((0, 0), |spec| (spec.unit, spec.r#type));
    let unit = match Unit::try_from(unit_number) {
        Ok(Unit::Bytes) => MeterUnit::Bytes,
        Ok(Unit::Packets) => MeterUnit::Packets,
        Ok(Unit::Unspecified) | Err(_) => {
            return Err(Problem::UnknownEnum {
                field: "meter unit",
                value: unit_number,
            });
        }
    };
    let kind = match Type::try_from(kind_number) {
        Ok(Type::TwoRateThreeColor) => MeterType::TwoRateThreeColor,
        Ok(Type::SingleRateThreeColor) => MeterType::SingleRateThreeColor,
        Ok(Type::SingleRateTwoColor) => MeterType::SingleRateTwoColor,
        Err(_) => {
            return Err(Problem::UnknownEnum {
                field: "meter type",
                value: kind_number,
            });
        }
    };
    Ok((unit, kind))
}
