//! Mapping from P4Info elements to elements of the program, by name. The mapping is checked once per pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as p4rt_ids;
use linewarden_p4runtime::p4info::{self, Format, MatchKind as P4InfoMatchKind, P4Info};

use super::controller_channel::PacketIoHeader;
use super::values::ValueLayout;
use crate::program::Program;
use crate::program::action::Action;
use crate::program::ids::{ActionId, CounterId, MeterId, ProfileId, RegisterId, TableId, ValueSetId};
use crate::program::pipeline::{KeyField, MatchKind, Table, TableKind};

/// Mapping of a table.
#[derive(Debug)]
pub(super) struct TableBinding {
    pub(super) id: TableId,
    /// For each key field of the program, its position among the P4Info's match fields.
    pub(super) field_positions: Vec<usize>,
    /// Actions of the table.
    pub(super) actions: BTreeMap<p4rt_ids::ActionId, ActionId>,
    pub(super) profile: Option<ProfileId>,
    /// Direct meter.
    pub(super) meter: Option<MeterId>,
}

/// Mapping of an action profile.
#[derive(Debug)]
pub(super) struct ProfileBinding {
    pub(super) id: ProfileId,
    /// Actions of the tables that use the profile.
    pub(super) actions: BTreeMap<p4rt_ids::ActionId, ActionId>,
}

/// Mapping of a value set.
#[derive(Debug)]
pub(super) struct ValueSetBinding {
    pub(super) id: ValueSetId,
    /// Widths of the fields, bits.
    pub(super) widths: Vec<u32>,
}

/// Mapping of all P4Info elements.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) info: Arc<P4Info>,
    pub(super) tables: BTreeMap<p4rt_ids::TableId, TableBinding>,
    pub(super) profiles: BTreeMap<p4rt_ids::ProfileId, ProfileBinding>,
    pub(super) counters: BTreeMap<p4rt_ids::CounterId, CounterId>,
    pub(super) meters: BTreeMap<p4rt_ids::MeterId, MeterId>,
    pub(super) registers: BTreeMap<p4rt_ids::RegisterId, (RegisterId, ValueLayout)>,
    pub(super) value_sets: BTreeMap<p4rt_ids::ValueSetId, ValueSetBinding>,
    /// Digests by their id in the program.
    pub(super) digests: BTreeMap<u32, (p4rt_ids::DigestId, ValueLayout)>,
    /// P4Info id of each action of the program, indexed by action id; `None` if the P4Info has no such action.
    pub(super) action_ids: Vec<Option<p4rt_ids::ActionId>>,
    pub(super) packet_in: PacketIoHeader,
    pub(super) packet_out: PacketIoHeader,
}

fn mismatch(kind: &str, name: &str, problem: impl std::fmt::Display) -> EntityError {
    EntityError::invalid(format!(
        "P4Info does not match the program: {kind} \"{name}\": {problem}"
    ))
}

/// Returns the position of `name` in the names of the program's elements.
fn element_position<'a>(
    kind: &str,
    name: &str,
    mut names: impl Iterator<Item = &'a str>,
) -> Result<u32, EntityError> {
    let position = names.position(|candidate| candidate == name);
    position
        .and_then(|position| u32::try_from(position).ok())
        .ok_or_else(|| mismatch(kind, name, "not found in the program"))
}

impl Binding {
    /// Creates the mapping.
    ///
    /// # Errors
    /// INVALID_ARGUMENT names the element that is missing in the program or differs.
    pub(super) fn new(info: Arc<P4Info>, program: &Program) -> Result<Self, EntityError> {
        let mut binding = Self {
            tables: BTreeMap::new(),
            profiles: BTreeMap::new(),
            counters: counters(&info, program)?,
            meters: meters(&info, program)?,
            registers: registers(&info, program)?,
            value_sets: value_sets(&info, program)?,
            digests: digests(&info, program)?,
            action_ids: program
                .actions
                .iter()
                .map(|action| {
                    info.actions()
                        .by_name_or_alias(&action.name)
                        .map(|action| action.id)
                })
                .collect(),
            packet_in: PacketIoHeader::from_p4info(info.packet_in())
                .map_err(|error| error.at("packet_in"))?,
            packet_out: PacketIoHeader::from_p4info(info.packet_out())
                .map_err(|error| error.at("packet_out"))?,
            info: info.clone(),
        };
        for table in info.tables().iter() {
            binding
                .tables
                .insert(table.id, bind_table(&info, program, table)?);
        }
        for profile in info.profiles().iter() {
            let bound = bind_profile(program, profile, &binding.tables)?;
            binding.profiles.insert(profile.id, bound);
        }
        Ok(binding)
    }
}

fn bind_table(info: &P4Info, program: &Program, table: &p4info::Table) -> Result<TableBinding, EntityError> {
    let wrong = |problem: String| mismatch("table", &table.name, problem);
    let names = program.tables.iter().map(|table| table.name.as_str());
    let id = TableId(element_position("table", &table.name, names)?);
    let Some(program_table) = program.tables.get(id.index()) else {
        return Err(wrong("not found in the program".to_owned()));
    };
    let profile = match program_table.kind {
        TableKind::Simple => None,
        TableKind::Indirect(id) | TableKind::Selector(id) => Some(id),
    };
    let profile_name = |id: p4rt_ids::ProfileId| info.profiles().get(id).map(|profile| profile.name.as_str());
    let program_profile_name = |id: ProfileId| {
        program
            .profiles
            .get(id.index())
            .map(|profile| profile.name.as_str())
    };
    if table.profile.and_then(profile_name) != profile.and_then(program_profile_name) {
        return Err(wrong("action profile differs from the program".to_owned()));
    }
    for (is_present, is_supported, resource) in [
        (
            table.counter.is_some(),
            program_table.with_counters,
            "direct counter",
        ),
        (
            table.meter.is_some(),
            program_table.direct_meter.is_some(),
            "direct meter",
        ),
        (table.idle_timeout, program_table.with_timeout, "idle timeout"),
    ] {
        if is_present && !is_supported {
            return Err(wrong(format!("table has no {resource} in the program")));
        }
    }
    let mut actions = BTreeMap::new();
    for (action, _) in &table.actions {
        if let Some(action) = info.actions().get(*action) {
            actions.insert(
                action.id,
                bind_action(program, program_table, action).map_err(wrong)?,
            );
        }
    }
    Ok(TableBinding {
        id,
        field_positions: field_positions(table, program_table).map_err(wrong)?,
        actions,
        profile,
        meter: program_table.direct_meter.map(|(meter, _)| meter),
    })
}

/// Returns, for each key field of the program, its position among the P4Info's match fields.
fn field_positions(table: &p4info::Table, program_table: &Table) -> Result<Vec<usize>, String> {
    if table.fields.len() != program_table.key.len() {
        return Err(format!(
            "key has {} fields, the program has {}",
            table.fields.len(),
            program_table.key.len()
        ));
    }
    let uses_priority = matches!(program_table.match_kind, MatchKind::Ternary | MatchKind::Range);
    if table.needs_priority() != uses_priority {
        return Err("only one of P4Info and program has priorities".to_owned());
    }
    let position_of = |field: &KeyField| {
        let position = table
            .fields
            .iter()
            .position(|info_field| info_field.name == field.name);
        let (position, info_field) = position
            .and_then(|position| Some((position, table.fields.get(position)?)))
            .ok_or_else(|| format!("match field \"{}\" is missing", field.name))?;
        let kinds_fit = matches!(
            (info_field.kind, field.kind),
            (P4InfoMatchKind::Exact, MatchKind::Exact | MatchKind::Valid)
                | (P4InfoMatchKind::Lpm, MatchKind::Lpm)
                | (
                    P4InfoMatchKind::Ternary | P4InfoMatchKind::Optional,
                    MatchKind::Ternary
                )
                | (P4InfoMatchKind::Range, MatchKind::Range)
        );
        let bits = if field.kind == MatchKind::Valid {
            1
        } else {
            field.bits
        };
        match info_field.format {
            _ if !kinds_fit => Err(format!(
                "match field \"{}\" is {:?}, in the program {:?}",
                field.name, info_field.kind, field.kind
            )),
            Format::Bits(width) if width != bits => Err(format!(
                "match field \"{}\" has {width} bits, in the program {bits}",
                field.name
            )),
            _ => Ok(position),
        }
    };
    program_table.key.iter().map(position_of).collect()
}

/// Finds the action of a P4Info among the actions of a table: the program may have a copy of an action for each table.
fn bind_action(program: &Program, table: &Table, action: &p4info::Action) -> Result<ActionId, String> {
    let has_name = |id: &&ActionId| {
        program
            .actions
            .get(id.index())
            .is_some_and(|candidate| candidate.name == action.name)
    };
    let id = table.actions.iter().find(has_name).copied();
    let program_action = id.and_then(|id| Some((id, program.actions.get(id.index())?)));
    let Some((id, program_action)) = program_action else {
        return Err(format!(
            "action \"{}\" not found in the program's table",
            action.name
        ));
    };
    if !parameters_match(action, program_action) {
        return Err(format!(
            "parameters of action \"{}\" differ from the program",
            action.name
        ));
    }
    Ok(id)
}

fn parameters_match(action: &p4info::Action, program_action: &Action) -> bool {
    let matches = |(param, program_param): (&p4info::Param, &crate::program::action::Param)| {
        param.name == program_param.name
            && match param.format {
                Format::Bits(width) => width == program_param.bits,
                Format::Unwritable => true,
            }
    };
    action.params.len() == program_action.params.len()
        && action.params.iter().zip(&program_action.params).all(matches)
}

fn bind_profile(
    program: &Program,
    profile: &p4info::Profile,
    tables: &BTreeMap<p4rt_ids::TableId, TableBinding>,
) -> Result<ProfileBinding, EntityError> {
    let names = program.profiles.iter().map(|profile| profile.name.as_str());
    let id = ProfileId(element_position("action profile", &profile.name, names)?);
    let is_selector = program
        .profiles
        .get(id.index())
        .is_some_and(|profile| profile.selector.is_some());
    if profile.with_selector != is_selector {
        return Err(mismatch(
            "action profile",
            &profile.name,
            "only one of P4Info and program declares a selector",
        ));
    }
    let mut actions = BTreeMap::new();
    for table in profile.tables.iter().filter_map(|id| tables.get(id)) {
        for (action, id) in &table.actions {
            actions.entry(*action).or_insert(*id);
        }
    }
    Ok(ProfileBinding { id, actions })
}

fn check_size(kind: &str, name: &str, size: u64, program_size: u32) -> Result<(), EntityError> {
    if size == u64::from(program_size) {
        return Ok(());
    }
    Err(mismatch(
        kind,
        name,
        format!("array has {size} cells, in the program {program_size}"),
    ))
}

fn counters(
    info: &P4Info,
    program: &Program,
) -> Result<BTreeMap<p4rt_ids::CounterId, CounterId>, EntityError> {
    let mut bindings = BTreeMap::new();
    for counter in info.counters().iter() {
        let names = program.counters.iter().map(|array| array.name.as_str());
        let id = CounterId(element_position("counter", &counter.name, names)?);
        let size = program.counters.get(id.index()).map_or(0, |array| array.size);
        check_size("counter", &counter.name, counter.size, size)?;
        bindings.insert(counter.id, id);
    }
    Ok(bindings)
}

fn meters(info: &P4Info, program: &Program) -> Result<BTreeMap<p4rt_ids::MeterId, MeterId>, EntityError> {
    let mut bindings = BTreeMap::new();
    for meter in info.meters().iter() {
        let names = program.meters.iter().map(|array| array.name.as_str());
        let id = MeterId(element_position("meter", &meter.name, names)?);
        let size = program.meters.get(id.index()).map_or(0, |array| array.size);
        check_size("meter", &meter.name, meter.size, size)?;
        bindings.insert(meter.id, id);
    }
    Ok(bindings)
}

fn registers(
    info: &P4Info,
    program: &Program,
) -> Result<BTreeMap<p4rt_ids::RegisterId, (RegisterId, ValueLayout)>, EntityError> {
    let mut bindings = BTreeMap::new();
    for register in info.registers().iter() {
        let names = program.registers.iter().map(|array| array.name.as_str());
        let id = RegisterId(element_position("register", &register.name, names)?);
        let (size, bits) = program
            .registers
            .get(id.index())
            .map_or((0, 0), |array| (array.size, array.bits));
        check_size("register", &register.name, register.size, size)?;
        let layout = ValueLayout::for_width(&register.data, bits)
            .map_err(|error| error.at(format!("register \"{}\"", register.name)))?;
        bindings.insert(register.id, (id, layout));
    }
    Ok(bindings)
}

fn value_sets(
    info: &P4Info,
    program: &Program,
) -> Result<BTreeMap<p4rt_ids::ValueSetId, ValueSetBinding>, EntityError> {
    let mut bindings = BTreeMap::new();
    for set in info.value_sets().iter() {
        let names = program.value_sets.iter().map(|value_set| value_set.name.as_str());
        let id = ValueSetId(element_position("value set", &set.name, names)?);
        let width = |field: &p4info::MatchField| match field.format {
            Format::Bits(width) => Some(width),
            Format::Unwritable => None,
        };
        let widths: Option<Vec<u32>> = set.fields.iter().map(width).collect();
        let bits = program
            .value_sets
            .get(id.index())
            .map_or(0, |value_set| value_set.bits);
        let widths = widths
            .filter(|widths| widths.iter().sum::<u32>() == bits)
            .ok_or_else(|| {
                mismatch(
                    "value set",
                    &set.name,
                    format!("fields do not have {bits} bits in total as in the program"),
                )
            })?;
        bindings.insert(set.id, ValueSetBinding { id, widths });
    }
    Ok(bindings)
}

fn digests(
    info: &P4Info,
    program: &Program,
) -> Result<BTreeMap<u32, (p4rt_ids::DigestId, ValueLayout)>, EntityError> {
    let mut bindings = BTreeMap::new();
    for digest in info.digests().iter() {
        let names = program.digests.iter().map(|digest| digest.name.as_str());
        let position = element_position("digest", &digest.name, names)?;
        if let Some(program_digest) = program.digests.get(position as usize) {
            let fields = program_digest.fields.iter();
            let widths = fields.map(|field| program.bits(*field)).collect();
            let layout = ValueLayout::for_fields(&digest.data, widths)
                .map_err(|error| error.at(format!("digest \"{}\"", digest.name)))?;
            bindings.insert(program_digest.json_id, (digest.id, layout));
        }
    }
    Ok(bindings)
}
