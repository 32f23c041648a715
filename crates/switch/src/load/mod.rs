//! Loading of programs: converts the JSON that p4c writes for BMv2 (format 2.x, v1model) to a [`Program`].
//!
//! An inconsistent document is rejected with location and reason. The order of the members of an object does not
//! matter.

mod action;
mod cursor;
mod depth;
mod expression;
mod number;
mod objects;
mod parser;
mod pipeline;
mod scope;

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::Value;

pub use self::cursor::LoadError;
use self::cursor::{LoadResult, Node};
use self::expression::Locals;
use self::pipeline::{PipelineObjects, PipelineReader};
use self::scope::{Scope, next_index};
use crate::program::ids::{ActionId, CalculationId, CounterId, MeterId, RegisterId, ValueSetId};
use crate::program::parser::ValueSet;
use crate::program::{Deparser, Program};

/// Supported major version of the format.
const FORMAT_MAJOR: u32 = 2;

/// Loads a program.
///
/// # Errors
/// Returns an error that names the malformed element and the problem.
pub fn load(text: &[u8]) -> Result<Program, LoadError> {
    depth::check(text)?;
    let mut reader = serde_json::Deserializer::from_slice(text);
    // serde_json's default limit of 128 levels is too low for long sums.
    reader.disable_recursion_limit();
    let value = Value::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value = value.map_err(|error| LoadError {
        location: format!("line {}, column {}", error.line(), error.column()),
        problem: format!("invalid JSON: {error}"),
    })?;
    read(&Node::root(&value))
}

fn read(root: &Node<'_>) -> LoadResult<Program> {
    check_version(root)?;
    let mut scope = Scope::default();
    objects::header_types(&mut scope, &root.field("header_types")?)?;
    objects::headers(&mut scope, &root.field("headers")?)?;
    if let Some(stacks) = root.optional("header_stacks") {
        objects::stacks(&mut scope, &stacks)?;
    }
    if let (Some(types), Some(unions)) = (
        root.optional("header_union_types"),
        root.optional("header_unions"),
    ) {
        objects::unions(&mut scope, &types, &unions)?;
    }
    if let Some(stacks) = root.optional("header_union_stacks") {
        objects::union_stacks(&mut scope, &stacks)?;
    }
    let value_sets = value_sets(&mut scope, root)?;
    let mut calculations = Vec::new();
    let mut counters = Vec::new();
    let mut meters = Vec::new();
    let mut registers = Vec::new();
    let mut budget = objects::CellBudget::default();
    if let Some(list) = root.optional("calculations") {
        for item in list.items()? {
            let id = CalculationId(next_index(calculations.len(), &item)?);
            scope.calculations.insert(item.str_at("name")?.to_owned(), id);
            calculations.push(objects::calculation(&scope, &item, "input")?);
        }
    }
    if let Some(list) = root.optional("counter_arrays") {
        for item in list.items()? {
            let id = CounterId(next_index(counters.len(), &item)?);
            scope.counters.insert(item.str_at("name")?.to_owned(), id);
            counters.push(objects::counter(&mut budget, &item)?);
        }
    }
    if let Some(list) = root.optional("meter_arrays") {
        for item in list.items()? {
            let id = MeterId(next_index(meters.len(), &item)?);
            scope.meters.insert(item.str_at("name")?.to_owned(), id);
            meters.push(objects::meter(&mut budget, &scope, &item)?);
        }
    }
    if let Some(list) = root.optional("register_arrays") {
        for item in list.items()? {
            let id = RegisterId(next_index(registers.len(), &item)?);
            scope.registers.insert(item.str_at("name")?.to_owned(), id);
            registers.push(objects::register(&mut budget, &item)?);
        }
    }
    let (parsers, deparsers) = (root.field("parsers")?, root.field("deparsers")?);
    let parser = parser::parser(&scope, &item_named(&parsers, "parser")?)?;
    let deparser = deparser(&scope, &item_named(&deparsers, "deparser")?)?;
    let mut actions = Vec::new();
    for item in root.field("actions")?.items()? {
        let id = ActionId(next_index(actions.len(), &item)?);
        if scope.actions.insert(item.u32_at("id")?, id).is_some() {
            return Err(item.error("duplicate action id"));
        }
        actions.push(action::action(&scope, &item)?);
    }
    let mut pipeline_objects = PipelineObjects::default();
    let pipelines = root.field("pipelines")?;
    let mut reader = PipelineReader {
        scope: &mut scope,
        actions: &actions,
        meters: &meters,
        output: &mut pipeline_objects,
        calculation_count: calculations.len(),
    };
    let ingress = reader.pipeline(&item_named(&pipelines, "ingress")?)?;
    let egress = reader.pipeline(&item_named(&pipelines, "egress")?)?;
    calculations.append(&mut pipeline_objects.calculations);
    let checksums = list(root, "checksums", |item| objects::checksum(&scope, item))?;
    let digests = list(root, "learn_lists", |item| objects::digest(&scope, item))?;
    let field_lists = list(root, "field_lists", |item| objects::field_list(&scope, item))?;
    check_unique_ids(root, "learn_lists", digests.iter().map(|digest| digest.json_id))?;
    check_unique_ids(root, "field_lists", field_lists.iter().map(|list| list.json_id))?;
    let aliases = aliases(&scope, root)?;
    Ok(Program {
        referenced_fields: scope.referenced_fields(),
        aliases,
        errors: errors(root)?,
        enums: enums(root)?,
        value_sets,
        parser,
        deparser,
        calculations,
        counters,
        meters,
        registers,
        actions,
        profiles: pipeline_objects.profiles,
        tables: pipeline_objects.tables,
        ingress,
        egress,
        checksums,
        digests,
        field_lists,
        types: scope.types,
        headers: scope.headers,
        stacks: scope.stacks,
        unions: scope.unions,
        union_stacks: scope.union_stacks,
    })
}

fn check_version(root: &Node<'_>) -> LoadResult<()> {
    let Some(meta) = root.optional("__meta__") else {
        return Ok(());
    };
    let Some(version) = meta.optional("version") else {
        return Ok(());
    };
    let major = version.item(0)?.u32()?;
    if major != FORMAT_MAJOR {
        return Err(version.error(format_args!(
            "unsupported format version {major}: expected {FORMAT_MAJOR}"
        )));
    }
    Ok(())
}

fn list<T>(root: &Node<'_>, name: &str, read: impl Fn(&Node<'_>) -> LoadResult<T>) -> LoadResult<Vec<T>> {
    match root.optional(name) {
        Some(list) => list.items()?.map(|item| read(&item)).collect(),
        None => Ok(Vec::new()),
    }
}

fn check_unique_ids(root: &Node<'_>, name: &str, ids: impl Iterator<Item = u32>) -> LoadResult<()> {
    parser::check_unique(ids).map_err(|id| root.error(format_args!("duplicate id {id} in {name:?}")))
}

/// Returns the item with this name. simple_switch has one parser, one deparser and two pipelines.
fn item_named<'a>(list: &'a Node<'a>, name: &str) -> LoadResult<Node<'a>> {
    for item in list.items()? {
        if item.str_at("name")? == name {
            return Ok(item);
        }
    }
    Err(list.error(format_args!("item {name:?} is missing")))
}

fn value_sets(scope: &mut Scope, root: &Node<'_>) -> LoadResult<Vec<ValueSet>> {
    let mut sets = Vec::new();
    if let Some(list) = root.optional("parse_vsets") {
        for item in list.items()? {
            let name = item.str_at("name")?.to_owned();
            let id = ValueSetId(next_index(sets.len(), &item)?);
            scope.value_sets.insert(name.clone(), id);
            let size = item.optional("max_size").map(|size| size.u32()).transpose()?;
            sets.push(ValueSet {
                name,
                bits: item.u32_at("compressed_bitwidth")?,
                size,
            });
        }
    }
    Ok(sets)
}

fn deparser(scope: &Scope, node: &Node<'_>) -> LoadResult<Deparser> {
    let reader = action::StatementReader {
        scope,
        locals: Locals::None,
        count: 0,
    };
    let statements = match node.optional("primitives") {
        Some(list) => list
            .items()?
            .map(|item| reader.statement(&item))
            .collect::<LoadResult<Vec<_>>>()?,
        None => Vec::new(),
    };
    let order = node.field("order")?;
    let order = order
        .items()?
        .map(|name| scope.header(name.str()?, &name))
        .collect::<LoadResult<Vec<_>>>()?;
    Ok(Deparser { statements, order })
}

fn aliases(scope: &Scope, root: &Node<'_>) -> LoadResult<BTreeMap<String, crate::program::ids::FieldRef>> {
    let mut aliases = BTreeMap::new();
    if let Some(list) = root.optional("field_aliases") {
        for item in list.items()? {
            let target = item.item(1)?;
            aliases.insert(item.item(0)?.str()?.to_owned(), scope.resolve_field(&target)?);
        }
    }
    Ok(aliases)
}

fn errors(root: &Node<'_>) -> LoadResult<BTreeMap<String, u32>> {
    let mut errors = BTreeMap::new();
    if let Some(list) = root.optional("errors") {
        for item in list.items()? {
            errors.insert(item.item(0)?.str()?.to_owned(), item.item(1)?.u32()?);
        }
    }
    Ok(errors)
}

fn enums(root: &Node<'_>) -> LoadResult<BTreeMap<String, Vec<(String, u32)>>> {
    let mut enums = BTreeMap::new();
    if let Some(list) = root.optional("enums") {
        for item in list.items()? {
            let entries = item.field("entries")?;
            let entries = entries
                .items()?
                .map(|entry| Ok((entry.item(0)?.str()?.to_owned(), entry.item(1)?.u32()?)))
                .collect::<LoadResult<Vec<_>>>()?;
            enums.insert(item.str_at("name")?.to_owned(), entries);
        }
    }
    Ok(enums)
}
