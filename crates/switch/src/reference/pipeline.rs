//! Pipelines: tables, conditions and the control flow between them.

use super::state::Packet;
use super::statement::step;
use super::{DropReason, Interpreter, checksum, number};
use crate::program::ids::{ActionId, NodeId, TableId};
use crate::program::pipeline::{KeySource, Next, Node, Pipeline, Table, TableKind};
use crate::tables;
use num_bigint::BigInt;

const MICROSECONDS_PER_MS: u64 = 1_000;

impl<'a> Interpreter<'a> {
    /// Runs a packet through a pipeline.
    pub(super) fn pipeline(
        &mut self,
        packet: &mut Packet<'a>,
        pipeline: &'a Pipeline,
    ) -> Result<(), DropReason> {
        let mut node_id = pipeline.init;
        while let Some(node) = node_id.and_then(|node_id| pipeline.nodes.get(node_id.index())) {
            if packet.exit {
                break;
            }
            step(packet)?;
            node_id = match node {
                Node::Table(table) => self.table(packet, *table)?,
                Node::Condition {
                    condition,
                    on_true,
                    on_false,
                } => match self.scope(packet, &[]).bool(condition) {
                    true => *on_true,
                    false => *on_false,
                },
                Node::Action { action, next } => {
                    self.call(packet, *action, &[])?;
                    *next
                }
            };
        }
        Ok(())
    }

    fn call(&mut self, packet: &mut Packet<'a>, action: ActionId, data: &[u8]) -> Result<(), DropReason> {
        let program = self.program;
        match program.actions.get(action.index()) {
            Some(action) => self.action(packet, action, data),
            None => Ok(()),
        }
    }

    /// Applies a table; returns the next node.
    fn table(&mut self, packet: &mut Packet<'a>, id: TableId) -> Result<Option<NodeId>, DropReason> {
        let (program, forwarding) = (self.program, self.forwarding);
        let set = forwarding.tables();
        let id_in_set = tables::TableId(id.0);
        let (Some(table), Some(entries)) = (program.tables.get(id.index()), set.table(id_in_set)) else {
            return Ok(None);
        };
        let entry = entries.lookup(&key(packet, table));
        if let Some(entry) = entry {
            if let Some(state) = entry.state() {
                state.count(packet.ingress_length);
                state.record_hit(self.now_us / MICROSECONDS_PER_MS);
            }
            if let Some((meter, target)) = table.direct_meter {
                let color = entry
                    .state()
                    .and_then(|state| self.direct_color(packet, meter, state));
                packet.headers.set(target, &color.unwrap_or_default());
            }
        }
        let hit = entry.is_some();
        let target = entry.map(|entry| entry.target()).or(entries.default_target());
        let call = target.and_then(|target| set.resolve(id_in_set, target, || self.selector(packet, table)));
        let Some(call) = call else {
            return Ok(match table.next {
                Next::ByHit { hit: after, .. } if hit => after,
                _ => table.next_without_action,
            });
        };
        let action = ActionId(call.action.0);
        self.call(packet, action, &call.data)?;
        Ok(match &table.next {
            Next::ByHit { hit: after, .. } if hit => *after,
            Next::ByHit { miss, .. } => *miss,
            Next::ByAction(list) => list
                .iter()
                .find(|(id, _)| *id == action)
                .and_then(|(_, next)| *next),
        })
    }

    /// Hash for the member selection in a group.
    fn selector(&self, packet: &Packet<'a>, table: &Table) -> u32 {
        let TableKind::Selector(profile) = table.kind else {
            return 0;
        };
        let profile = self.program.profiles.get(profile.index());
        let selector = profile.and_then(|profile| profile.selector);
        selector.map_or(0, |selector| {
            let hash = checksum::output(self.program, self.calculations, packet, selector);
            number::low_u32(&BigInt::from(hash))
        })
    }
}

/// Key of a packet; fields of invalid headers count as 0.
fn key(packet: &Packet<'_>, table: &Table) -> Vec<u8> {
    let mut key = Vec::new();
    for field in &table.key {
        let mut bytes = match field.source {
            KeySource::Valid(header) => vec![u8::from(packet.headers.is_valid(Some(header)))],
            KeySource::Field(source) => {
                let is_hidden = packet.headers.declaration(source).is_none();
                let bytes = packet.headers.bytes(source);
                if is_hidden || packet.headers.is_valid(Some(source.header)) {
                    bytes
                } else {
                    vec![0; bytes.len()]
                }
            }
        };
        if let Some(mask) = &field.mask {
            for (byte, mask) in bytes.iter_mut().zip(mask) {
                *byte &= mask;
            }
        }
        key.append(&mut bytes);
    }
    key
}
