//! Loading of pipelines: tables, conditions, action profiles, entries.

use std::collections::HashMap;

use super::cursor::{LoadResult, Node};
use super::expression::{ExpressionReader, Locals};
use super::number;
use super::scope::{Scope, next_index};
use crate::program::action::Action;
use crate::program::ids::{ActionId, MeterId, NodeId, ProfileId, TableId};
use crate::program::pipeline::Node as FlowNode;
use crate::program::pipeline::{
    ActionEntry, ConstEntry, EntryMatch, KeyField, KeySource, MatchKind, Next, Pipeline, Profile, Table,
    TableKind,
};
use crate::program::{Calculation, MeterArray};

/// Objects that pipelines add to a program.
#[derive(Default)]
pub struct PipelineObjects {
    pub tables: Vec<Table>,
    pub profiles: Vec<Profile>,
    /// Calculations of selectors.
    pub calculations: Vec<Calculation>,
}

/// Reader of pipelines.
pub struct PipelineReader<'s> {
    pub scope: &'s mut Scope,
    pub actions: &'s [Action],
    pub meters: &'s [MeterArray],
    /// Output for tables, profiles and selector calculations.
    pub output: &'s mut PipelineObjects,
    /// Number of calculations that are not in `output`.
    pub calculation_count: usize,
}

impl PipelineReader<'_> {
    /// Reads a pipeline with its tables and profiles.
    pub fn pipeline(&mut self, node: &Node<'_>) -> LoadResult<Pipeline> {
        if let Some(profiles) = node.optional("action_profiles") {
            for profile in profiles.items()? {
                self.profile(&profile)?;
            }
        }
        let tables = node.field("tables")?;
        let conditions = node.field("conditionals")?;
        let calls = node.optional("action_calls");
        let first_table = self.output.tables.len();
        let mut names: HashMap<String, NodeId> = HashMap::new();
        let mut count = 0;
        let mut add_name = |item: &Node<'_>| -> LoadResult<()> {
            let id = NodeId(next_index(count, item)?);
            count += 1;
            match names.insert(item.str_at("name")?.to_owned(), id) {
                None => Ok(()),
                Some(_) => Err(item.error("duplicate node name in the pipeline")),
            }
        };
        for list in [Some(tables), Some(conditions), calls].into_iter().flatten() {
            for item in list.items()? {
                add_name(&item)?;
            }
        }
        let node_names = NodeNames { names };
        let mut nodes = Vec::new();
        for (index, table) in tables.items()?.enumerate() {
            let table = self.table(&table, &node_names)?;
            self.output.tables.push(table);
            nodes.push(FlowNode::Table(TableId(next_index(first_table + index, node)?)));
        }
        for condition in conditions.items()? {
            nodes.push(self.condition(&condition, &node_names)?);
        }
        if let Some(calls) = &calls {
            for call in calls.items()? {
                nodes.push(self.call(&call, &node_names)?);
            }
        }
        Ok(Pipeline {
            name: node.str_at("name")?.to_owned(),
            init: node_names.next(node, "init_table")?,
            nodes,
        })
    }

    fn profile(&mut self, node: &Node<'_>) -> LoadResult<()> {
        let selector = match node.optional("selector") {
            Some(selector) => Some(self.selector(&selector)?),
            None => None,
        };
        let name = node.str_at("name")?.to_owned();
        let size = match node.optional("max_size") {
            Some(size) => size.u32()?,
            None => 0,
        };
        self.add_profile(Profile { name, size, selector }, node)?;
        Ok(())
    }

    fn add_profile(&mut self, profile: Profile, node: &Node<'_>) -> LoadResult<ProfileId> {
        let id = ProfileId(next_index(self.output.profiles.len(), node)?);
        if self.scope.profiles.insert(profile.name.clone(), id).is_some() {
            return Err(node.error("duplicate action profile name"));
        }
        self.output.profiles.push(profile);
        Ok(id)
    }

    fn selector(&mut self, node: &Node<'_>) -> LoadResult<crate::program::ids::CalculationId> {
        let calculation = super::objects::calculation(self.scope, node, "input")?;
        let id = next_index(self.calculation_count + self.output.calculations.len(), node)?;
        self.output.calculations.push(calculation);
        Ok(crate::program::ids::CalculationId(id))
    }

    fn condition(&self, node: &Node<'_>, node_names: &NodeNames) -> LoadResult<FlowNode> {
        let reader = ExpressionReader {
            scope: self.scope,
            locals: Locals::None,
        };
        let expression = node.field("expression")?;
        Ok(FlowNode::Condition {
            condition: reader.bool(&expression)?,
            on_true: node_names.next(node, "true_next")?,
            on_false: node_names.next(node, "false_next")?,
        })
    }

    fn call(&self, node: &Node<'_>, node_names: &NodeNames) -> LoadResult<FlowNode> {
        let action = self.scope.action(node.u32_at("action_id")?, node)?;
        if self
            .actions
            .get(action.index())
            .is_some_and(|action| !action.params.is_empty())
        {
            return Err(node.error("called action has parameters"));
        }
        Ok(FlowNode::Action {
            action,
            next: node_names.next(node, "next_node")?,
        })
    }

    fn table(&mut self, node: &Node<'_>, node_names: &NodeNames) -> LoadResult<Table> {
        let key_node = node.field("key")?;
        let key = key_node
            .items()?
            .map(|field| self.key_field(&field))
            .collect::<LoadResult<Vec<_>>>()?;
        if key.iter().filter(|field| field.kind == MatchKind::Lpm).count() > 1 {
            return Err(key_node.error("key has more than one LPM field"));
        }
        let kind = self.table_kind(node)?;
        let actions = self.table_actions(node)?;
        let (default, action_const, entry_const) = self.default_entry(node)?;
        let entries = match node.optional("entries") {
            Some(_) if kind != TableKind::Simple => {
                return Err(node.error("constant entries require a table of type simple"));
            }
            Some(entries) => {
                let const_entries = entries
                    .items()?
                    .map(|entry| self.entry(&entry, &key))
                    .collect::<LoadResult<Vec<_>>>()?;
                Some(const_entries)
            }
            None => None,
        };
        let size = match (node.optional("max_size"), &entries) {
            (_, Some(entries)) => next_index(entries.len(), node)?,
            (Some(size), None) => size.u32()?,
            (None, None) => return Err(node.error("max_size and entries are missing")),
        };
        let next = self.next(node, node_names, &actions)?;
        let next_without_action = match next {
            Next::ByHit { miss, .. } => miss,
            Next::ByAction(_) => node_names.next(node, "base_default_next")?,
        };
        Ok(Table {
            name: node.str_at("name")?.to_owned(),
            json_id: node.u32_at("id")?,
            kind,
            match_kind: match_kind(node.str_at("match_type")?, node)?,
            next,
            next_without_action,
            key,
            size,
            with_counters: node.flag("with_counters")?,
            with_timeout: node.flag("support_timeout")?,
            direct_meter: self.direct_meter(node)?,
            actions,
            default,
            default_action_const: action_const,
            default_entry_const: entry_const,
            entries,
        })
    }

    fn direct_meter(&self, node: &Node<'_>) -> LoadResult<Option<(MeterId, crate::program::ids::FieldRef)>> {
        let Some(name) = node.optional("direct_meters") else {
            return Ok(None);
        };
        let id = self.scope.meter(name.str()?, &name)?;
        let target = self.meters.get(id.index()).and_then(|meter| meter.direct);
        let target = target.ok_or_else(|| name.error("meter is not direct"))?;
        Ok(Some((id, target)))
    }

    fn table_kind(&mut self, node: &Node<'_>) -> LoadResult<TableKind> {
        let kind = node.str_at("type")?;
        if kind == "simple" {
            return Ok(TableKind::Simple);
        }
        if kind != "indirect" && kind != "indirect_ws" {
            return Err(node.error(format_args!("unknown table type {kind:?}")));
        }
        let profile = if let Some(name) = node.optional("action_profile") {
            self.scope.profile(name.str()?, &name)?
        } else if let Some(name) = node.optional("act_prof_name") {
            let selector = match node.optional("selector") {
                Some(selector) => Some(self.selector(&selector)?),
                None => None,
            };
            let name = name.str()?.to_owned();
            self.add_profile(
                Profile {
                    name,
                    size: 0,
                    selector,
                },
                node,
            )?
        } else {
            return Err(node.error("action profile of the indirect table is missing"));
        };
        if kind == "indirect" {
            return Ok(TableKind::Indirect(profile));
        }
        let is_selector = self
            .output
            .profiles
            .get(profile.index())
            .is_some_and(|profile| profile.selector.is_some());
        if !is_selector {
            return Err(node.error("action profile has no selector"));
        }
        Ok(TableKind::Selector(profile))
    }

    fn table_actions(&self, node: &Node<'_>) -> LoadResult<Vec<ActionId>> {
        if let Some(ids) = node.optional("action_ids") {
            return ids.items()?.map(|id| self.scope.action(id.u32()?, &id)).collect();
        }
        let names = node.field("actions")?;
        names
            .items()?
            .map(|name| {
                let action_name = name.str()?;
                let index = self.actions.iter().position(|action| action.name == action_name);
                let index = index.ok_or_else(|| name.error("unknown action name"))?;
                Ok(ActionId(next_index(index, &name)?))
            })
            .collect()
    }

    fn next(&self, node: &Node<'_>, node_names: &NodeNames, actions: &[ActionId]) -> LoadResult<Next> {
        let next = node.field("next_tables")?;
        let has = |name: &str| next.value().get(name).is_some();
        if has("__HIT__") || has("__MISS__") {
            if !(has("__HIT__") && has("__MISS__")) {
                return Err(next.error("__HIT__ and __MISS__ must both be present"));
            }
            return Ok(Next::ByHit {
                hit: node_names.next(&next, "__HIT__")?,
                miss: node_names.next(&next, "__MISS__")?,
            });
        }
        let mut by_action = Vec::new();
        for id in actions {
            let name = self
                .actions
                .get(id.index())
                .map_or("", |action| action.name.as_str());
            if !has(name) {
                return Err(next.error(format_args!("next node after action {name:?} is missing")));
            }
            by_action.push((*id, node_names.next(&next, name)?));
        }
        Ok(Next::ByAction(by_action))
    }

    fn key_field(&self, node: &Node<'_>) -> LoadResult<KeyField> {
        let kind = match_kind(node.str_at("match_type")?, node)?;
        let target = node.field("target")?;
        let (source, bits, default_name) = match kind {
            MatchKind::Valid => {
                let header = self.scope.header(target.str()?, &target)?;
                (KeySource::Valid(header), 1, target.str()?.to_owned())
            }
            _ => {
                let field = self.scope.field(&target)?;
                let header_type = self.scope.type_of(field.header, &target)?;
                let definition = header_type.fields.get(field.field as usize);
                if definition.is_some_and(|field| field.variable) {
                    return Err(target.error("variable-length field cannot be part of a key"));
                }
                let name = format!("{}.{}", target.item(0)?.str()?, target.item(1)?.str()?);
                (
                    KeySource::Field(field),
                    definition.map_or(1, |field| field.bits),
                    name,
                )
            }
        };
        let mask = match node.optional("mask") {
            Some(mask) => {
                let bytes =
                    number::bytes(mask.str()?).ok_or_else(|| mask.error("is not a hexadecimal number"))?;
                Some(
                    fit_to_width(bytes, bits)
                        .ok_or_else(|| mask.error(format_args!("mask is wider than {bits} bits")))?,
                )
            }
            None => None,
        };
        let name = match node.optional("name") {
            Some(name) => name.str()?.to_owned(),
            None => default_name,
        };
        Ok(KeyField {
            name,
            kind,
            source,
            mask,
            bits,
        })
    }

    fn action_entry(&self, node: &Node<'_>) -> LoadResult<ActionEntry> {
        let action = self.scope.action(node.u32_at("action_id")?, node)?;
        let list = node.field("action_data")?;
        let mut args = Vec::new();
        for value in list.items()? {
            args.push(
                number::unsigned(value.str()?).ok_or_else(|| value.error("is not a hexadecimal number"))?,
            );
        }
        let params = self
            .actions
            .get(action.index())
            .map_or(&[][..], |action| action.params.as_slice());
        if args.len() != params.len() {
            return Err(list.error(format_args!(
                "entry has {} arguments: the action has {} parameters",
                args.len(),
                params.len()
            )));
        }
        for (value, param) in args.iter().zip(params) {
            if value.bits() > u64::from(param.bits) {
                return Err(list.error(format_args!(
                    "argument is wider than {} bits of parameter {:?}",
                    param.bits, param.name
                )));
            }
        }
        Ok(ActionEntry { action, args })
    }

    fn default_entry(&self, node: &Node<'_>) -> LoadResult<(Option<ActionEntry>, bool, bool)> {
        let Some(default) = node.optional("default_entry") else {
            return Ok((None, false, false));
        };
        let action_const = default.flag("action_const")?;
        let entry_const = default.flag("action_entry_const")?;
        if default.optional("action_data").is_none() {
            return Err(default.error("member \"action_data\" is missing"));
        }
        Ok((Some(self.action_entry(&default)?), action_const, entry_const))
    }

    fn entry(&self, node: &Node<'_>, key: &[KeyField]) -> LoadResult<ConstEntry> {
        let list = node.field("match_key")?;
        if list.len() != key.len() {
            return Err(list.error(format_args!(
                "entry has {} fields: the key of the table has {}",
                list.len(),
                key.len()
            )));
        }
        let mut matches = Vec::new();
        for (field, spec) in list.items()?.zip(key) {
            matches.push(entry_match(&field, spec)?);
        }
        let priority = match node.optional("priority") {
            Some(priority) => priority.u32()?,
            None => 0,
        };
        Ok(ConstEntry {
            key: matches,
            priority,
            action: self.action_entry(&node.field("action_entry")?)?,
        })
    }
}

fn entry_match(node: &Node<'_>, spec: &KeyField) -> LoadResult<EntryMatch> {
    let kind = match_kind(node.str_at("match_type")?, node)?;
    if kind != spec.kind {
        return Err(node.error("match type differs from the key of the table"));
    }
    let bytes = |name: &str| -> LoadResult<Vec<u8>> {
        let text = node.str_at(name)?;
        let bytes = number::bytes(text)
            .ok_or_else(|| node.error(format_args!("{name:?} is not a hexadecimal number")))?;
        let fitted = fit_to_width(bytes, spec.bits);
        fitted.ok_or_else(|| node.error(format_args!("{name:?} is wider than {} bits", spec.bits)))
    };
    Ok(match kind {
        MatchKind::Exact => EntryMatch::Exact(bytes("key")?),
        MatchKind::Lpm => {
            let length = node.u32_at("prefix_length")?;
            if length > spec.bits {
                return Err(node.error(format_args!(
                    "prefix length {length} exceeds the width of {} bits",
                    spec.bits
                )));
            }
            EntryMatch::Lpm(bytes("key")?, length)
        }
        MatchKind::Ternary => EntryMatch::Ternary(bytes("key")?, bytes("mask")?),
        MatchKind::Range => EntryMatch::Range(bytes("start")?, bytes("end")?),
        MatchKind::Valid => EntryMatch::Valid(node.flag("key")?),
    })
}

/// Resizes bytes to the width of a field; `None` if a set bit would be lost.
fn fit_to_width(bytes: Vec<u8>, bits: u32) -> Option<Vec<u8>> {
    let value = num_bigint::BigUint::from_bytes_be(&bytes);
    if value.bits() > u64::from(bits) {
        return None;
    }
    let width = bits.div_ceil(8) as usize;
    let digits = value.to_bytes_be();
    let mut fitted = vec![0; width];
    for (to, from) in fitted.iter_mut().rev().zip(digits.iter().rev()) {
        *to = *from;
    }
    Some(fitted)
}

fn match_kind(name: &str, node: &Node<'_>) -> LoadResult<MatchKind> {
    Ok(match name {
        "exact" => MatchKind::Exact,
        "lpm" => MatchKind::Lpm,
        // p4c writes optional fields as ternary fields with a full or empty mask.
        "ternary" | "optional" => MatchKind::Ternary,
        "range" => MatchKind::Range,
        "valid" => MatchKind::Valid,
        other => return Err(node.error(format_args!("unknown match type {other:?}"))),
    })
}

/// Nodes of a pipeline by name.
struct NodeNames {
    names: HashMap<String, NodeId>,
}

impl NodeNames {
    /// Returns the node that a member names; `None` if the pipeline ends.
    fn next(&self, node: &Node<'_>, member: &str) -> LoadResult<Option<NodeId>> {
        let Some(value) = node.value().get(member).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let name = value
            .as_str()
            .ok_or_else(|| node.error(format_args!("member {member:?} is not a string")))?;
        let id = self.names.get(name).copied();
        id.map(Some)
            .ok_or_else(|| node.error(format_args!("member {member:?}: unknown node {name:?}")))
    }
}
