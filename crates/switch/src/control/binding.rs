//! Which parts of a program a P4Info names, found by their names and checked once.

use std::collections::BTreeMap;
use std::sync::Arc;

use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as named;
use linewarden_p4runtime::p4info::{self, Format, MatchKind as NamedKind, P4Info};

use super::values::Shape;
use super::wire::Header;
use crate::program::Program;
use crate::program::action::Action;
use crate::program::ids::{ActionId, CounterId, MeterId, ProfileId, RegisterId, TableId, ValueSetId};
use crate::program::pipeline::{KeyField, MatchKind, Table, TableKind};

/// A table of P4Info in the program.
#[derive(Debug)]
pub(super) struct TableBinding {
    pub(super) id: TableId,
    /// For each field of the program's key, its place in P4Info's.
    pub(super) places: Vec<usize>,
    /// The actions that it may use.
    pub(super) actions: BTreeMap<named::ActionId, ActionId>,
    pub(super) profile: Option<ProfileId>,
    /// Its entries' meter.
    pub(super) meter: Option<MeterId>,
}

/// An action profile of P4Info in the program.
#[derive(Debug)]
pub(super) struct ProfileBinding {
    pub(super) id: ProfileId,
    /// The actions of the tables that use it.
    pub(super) actions: BTreeMap<named::ActionId, ActionId>,
}

/// A value set of P4Info in the program.
#[derive(Debug)]
pub(super) struct ValueSetBinding {
    pub(super) id: ValueSetId,
    /// How wide its fields are.
    pub(super) widths: Vec<u32>,
}

/// Everything that P4Info names.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) info: Arc<P4Info>,
    pub(super) tables: BTreeMap<named::TableId, TableBinding>,
    pub(super) profiles: BTreeMap<named::ProfileId, ProfileBinding>,
    pub(super) counters: BTreeMap<named::CounterId, CounterId>,
    pub(super) meters: BTreeMap<named::MeterId, MeterId>,
    pub(super) registers: BTreeMap<named::RegisterId, (RegisterId, Shape)>,
    pub(super) value_sets: BTreeMap<named::ValueSetId, ValueSetBinding>,
    /// Digests by their number in the program.
    pub(super) digests: BTreeMap<u32, (named::DigestId, Shape)>,
    /// P4Info's number of each of the program's actions.
    pub(super) action_ids: Vec<Option<named::ActionId>>,
    pub(super) packet_in: Header,
    pub(super) packet_out: Header,
}

fn misfit(kind: &str, name: &str, what: impl std::fmt::Display) -> EntityError {
    EntityError::invalid(format!(
        "P4Info does not fit the program: {kind} \"{name}\": {what}"
    ))
}

/// The place of the program's element of this name.
fn place<'a>(kind: &str, name: &str, mut names: impl Iterator<Item = &'a str>) -> Result<u32, EntityError> {
    let found = names.position(|known| known == name);
    found
        .and_then(|place| u32::try_from(place).ok())
        .ok_or_else(|| misfit(kind, name, "the program has none of this name"))
}

impl Binding {
    /// Finds everything.
    ///
    /// # Errors
    /// INVALID_ARGUMENT names the element that the program has not, or has differently.
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
                .map(|action| info.actions().named(&action.name).map(|known| known.id))
                .collect(),
            packet_in: Header::of(info.packet_in()).map_err(|error| error.at("packet_in"))?,
            packet_out: Header::of(info.packet_out()).map_err(|error| error.at("packet_out"))?,
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
    let wrong = |what: String| misfit("table", &table.name, what);
    let names = program.tables.iter().map(|known| known.name.as_str());
    let id = TableId(place("table", &table.name, names)?);
    let Some(known) = program.tables.get(id.index()) else {
        return Err(wrong("the program has none of this name".to_owned()));
    };
    let profile = match known.kind {
        TableKind::Simple => None,
        TableKind::Indirect(id) | TableKind::Selector(id) => Some(id),
    };
    let profile_name = |id: named::ProfileId| info.profiles().get(id).map(|profile| profile.name.as_str());
    let known_name = |id: ProfileId| {
        program
            .profiles
            .get(id.index())
            .map(|profile| profile.name.as_str())
    };
    if table.profile.and_then(profile_name) != profile.and_then(known_name) {
        return Err(wrong(
            "its action profile is another one in the program".to_owned(),
        ));
    }
    for (is, of, what) in [
        (table.counter.is_some(), known.with_counters, "counter"),
        (table.meter.is_some(), known.direct_meter.is_some(), "meter"),
        (table.idle_timeout, known.with_timeout, "idle timeout"),
    ] {
        if is && !of {
            return Err(wrong(format!("its entries have no {what} in the program")));
        }
    }
    let mut actions = BTreeMap::new();
    for (action, _) in &table.actions {
        if let Some(action) = info.actions().get(*action) {
            actions.insert(action.id, bind_action(program, known, action).map_err(wrong)?);
        }
    }
    Ok(TableBinding {
        id,
        places: places(table, known).map_err(wrong)?,
        actions,
        profile,
        meter: known.direct_meter.map(|(meter, _)| meter),
    })
}

/// For each field of the program's key, its place in P4Info's.
fn places(table: &p4info::Table, known: &Table) -> Result<Vec<usize>, String> {
    if table.fields.len() != known.key.len() {
        return Err(format!(
            "its key has {} fields, the program's {}",
            table.fields.len(),
            known.key.len()
        ));
    }
    let searched_by_priority = matches!(known.match_kind, MatchKind::Ternary | MatchKind::Range);
    if table.needs_priority() != searched_by_priority {
        return Err("only one of it and the program's has priorities".to_owned());
    }
    let place = |field: &KeyField| {
        let found = table.fields.iter().position(|named| named.name == field.name);
        let (place, named) = found
            .and_then(|place| Some((place, table.fields.get(place)?)))
            .ok_or_else(|| format!("match field \"{}\" is missing", field.name))?;
        let kinds_fit = matches!(
            (named.kind, field.kind),
            (NamedKind::Exact, MatchKind::Exact | MatchKind::Valid)
                | (NamedKind::Lpm, MatchKind::Lpm)
                | (NamedKind::Ternary | NamedKind::Optional, MatchKind::Ternary)
                | (NamedKind::Range, MatchKind::Range)
        );
        let bits = if field.kind == MatchKind::Valid {
            1
        } else {
            field.bits
        };
        match named.format {
            _ if !kinds_fit => Err(format!(
                "match field \"{}\" is {:?}, the program's {:?}",
                field.name, named.kind, field.kind
            )),
            Format::Bits(width) if width != bits => Err(format!(
                "match field \"{}\" has {width} bits, the program's {bits}",
                field.name
            )),
            _ => Ok(place),
        }
    };
    known.key.iter().map(place).collect()
}

/// The program's action of this name among a table's: it may have one for each table.
fn bind_action(program: &Program, table: &Table, action: &p4info::Action) -> Result<ActionId, String> {
    let of_id = |id: &&ActionId| {
        program
            .actions
            .get(id.index())
            .is_some_and(|known| known.name == action.name)
    };
    let id = table.actions.iter().find(of_id).copied();
    let known = id.and_then(|id| Some((id, program.actions.get(id.index())?)));
    let Some((id, known)) = known else {
        return Err(format!("the program's has no action \"{}\"", action.name));
    };
    if !params_fit(action, known) {
        return Err(format!(
            "the parameters of action \"{}\" are others in the program",
            action.name
        ));
    }
    Ok(id)
}

fn params_fit(action: &p4info::Action, known: &Action) -> bool {
    let fits = |(param, known): (&p4info::Param, &crate::program::action::Param)| {
        param.name == known.name
            && match param.format {
                Format::Bits(width) => width == known.bits,
                Format::Unwritable => true,
            }
    };
    action.params.len() == known.params.len() && action.params.iter().zip(&known.params).all(fits)
}

fn bind_profile(
    program: &Program,
    profile: &p4info::Profile,
    tables: &BTreeMap<named::TableId, TableBinding>,
) -> Result<ProfileBinding, EntityError> {
    let names = program.profiles.iter().map(|known| known.name.as_str());
    let id = ProfileId(place("action profile", &profile.name, names)?);
    let selects = program
        .profiles
        .get(id.index())
        .is_some_and(|known| known.selector.is_some());
    if profile.with_selector != selects {
        return Err(misfit(
            "action profile",
            &profile.name,
            "only one of it and the program's is a selector",
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

fn same_size(kind: &str, name: &str, size: u64, known: u32) -> Result<(), EntityError> {
    if size == u64::from(known) {
        return Ok(());
    }
    Err(misfit(
        kind,
        name,
        format!("it has {size} cells, the program's {known}"),
    ))
}

fn counters(info: &P4Info, program: &Program) -> Result<BTreeMap<named::CounterId, CounterId>, EntityError> {
    let mut bound = BTreeMap::new();
    for counter in info.counters().iter() {
        let names = program.counters.iter().map(|known| known.name.as_str());
        let id = CounterId(place("counter", &counter.name, names)?);
        let size = program.counters.get(id.index()).map_or(0, |known| known.size);
        same_size("counter", &counter.name, counter.size, size)?;
        bound.insert(counter.id, id);
    }
    Ok(bound)
}

fn meters(info: &P4Info, program: &Program) -> Result<BTreeMap<named::MeterId, MeterId>, EntityError> {
    let mut bound = BTreeMap::new();
    for meter in info.meters().iter() {
        let names = program.meters.iter().map(|known| known.name.as_str());
        let id = MeterId(place("meter", &meter.name, names)?);
        let size = program.meters.get(id.index()).map_or(0, |known| known.size);
        same_size("meter", &meter.name, meter.size, size)?;
        bound.insert(meter.id, id);
    }
    Ok(bound)
}

fn registers(
    info: &P4Info,
    program: &Program,
) -> Result<BTreeMap<named::RegisterId, (RegisterId, Shape)>, EntityError> {
    let mut bound = BTreeMap::new();
    for register in info.registers().iter() {
        let names = program.registers.iter().map(|known| known.name.as_str());
        let id = RegisterId(place("register", &register.name, names)?);
        let (size, bits) = program
            .registers
            .get(id.index())
            .map_or((0, 0), |known| (known.size, known.bits));
        same_size("register", &register.name, register.size, size)?;
        let shape = Shape::within(&register.data, bits)
            .map_err(|error| error.at(format!("register \"{}\"", register.name)))?;
        bound.insert(register.id, (id, shape));
    }
    Ok(bound)
}

fn value_sets(
    info: &P4Info,
    program: &Program,
) -> Result<BTreeMap<named::ValueSetId, ValueSetBinding>, EntityError> {
    let mut bound = BTreeMap::new();
    for set in info.value_sets().iter() {
        let names = program.value_sets.iter().map(|known| known.name.as_str());
        let id = ValueSetId(place("value set", &set.name, names)?);
        let width = |field: &p4info::MatchField| match field.format {
            Format::Bits(width) => Some(width),
            Format::Unwritable => None,
        };
        let widths: Option<Vec<u32>> = set.fields.iter().map(width).collect();
        let bits = program.value_sets.get(id.index()).map_or(0, |known| known.bits);
        let widths = widths
            .filter(|widths| widths.iter().sum::<u32>() == bits)
            .ok_or_else(|| {
                misfit(
                    "value set",
                    &set.name,
                    format!("its fields have not the program's {bits} bits"),
                )
            })?;
        bound.insert(set.id, ValueSetBinding { id, widths });
    }
    Ok(bound)
}

fn digests(info: &P4Info, program: &Program) -> Result<BTreeMap<u32, (named::DigestId, Shape)>, EntityError> {
    let mut bound = BTreeMap::new();
    for digest in info.digests().iter() {
        let names = program.digests.iter().map(|known| known.name.as_str());
        let at = place("digest", &digest.name, names)?;
        if let Some(known) = program.digests.get(at as usize) {
            let widths = known.fields.iter().map(|field| program.bits(*field)).collect();
            let shape = Shape::of_fields(&digest.data, widths)
                .map_err(|error| error.at(format!("digest \"{}\"", digest.name)))?;
            bound.insert(known.json_id, (digest.id, shape));
        }
    }
    Ok(bound)
}
