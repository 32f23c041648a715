//! Lowering of pipelines: tables and conditions in topological order.

use super::builder::{Builder, Label, LowerError};
use crate::executable::op::{Op, Pc};
use crate::executable::{ActionCode, TableSuccessors};
use crate::program::Program;
use crate::program::ids::NodeId;
use crate::program::pipeline::{Next, Node, Pipeline, Table};

/// Successors of a table as labels.
pub struct TableSuccessorLabels {
    pub table: u32,
    pub hit: Vec<Label>,
    pub miss: Vec<Label>,
    pub no_action: Label,
}

impl Builder<'_> {
    /// Lowers a pipeline. The successors of its tables are added to `successor_labels`.
    pub fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        actions: &[ActionCode],
        successor_labels: &mut Vec<TableSuccessorLabels>,
    ) -> Result<Pc, LowerError> {
        self.context = format!("pipeline {}", pipeline.name);
        let order = order(self.program, pipeline)?;
        let start = self.current_pc()?;
        let labels = pipeline
            .nodes
            .iter()
            .map(|_| self.label())
            .collect::<Result<Vec<_>, _>>()?;
        let end = self.label()?;
        let target = |node: Option<NodeId>| match node {
            None => Ok(end),
            Some(id) => {
                let label = labels.get(id.index()).copied();
                label.ok_or_else(|| LowerError::UnresolvedReference("pipeline node".to_owned()))
            }
        };
        for (position, node) in order.iter().enumerate() {
            let Some(label) = labels.get(node.index()) else {
                continue;
            };
            self.bind(*label)?;
            let next_label = order
                .get(position + 1)
                .and_then(|next| labels.get(next.index()))
                .copied();
            match pipeline.nodes.get(node.index()) {
                Some(Node::Table(table)) => {
                    self.emit(Op::Apply { table: table.0 });
                    let definition = self.program.tables.get(table.index());
                    let definition =
                        definition.ok_or_else(|| LowerError::UnresolvedReference("table".to_owned()))?;
                    successor_labels.push(self.table_successors(table.0, definition, &target)?);
                }
                Some(Node::Condition {
                    condition,
                    on_true,
                    on_false,
                }) => {
                    let allocation = self.allocation();
                    let (yes, no) = (target(*on_true)?, target(*on_false)?);
                    if next_label == Some(yes) {
                        self.branch(condition, false, no)?;
                    } else {
                        self.branch(condition, true, yes)?;
                        if next_label != Some(no) {
                            self.emit(Op::Jump {
                                to: Self::label_pc(no),
                            });
                        }
                    }
                    self.release(allocation);
                }
                Some(Node::Action { action, next }) => {
                    let code = actions.get(action.index());
                    let code =
                        code.ok_or_else(|| LowerError::UnresolvedReference("action call".to_owned()))?;
                    let action_label = self.label()?;
                    self.bind_at(action_label, code.start);
                    let then = target(*next)?;
                    self.emit(Op::Call {
                        action: Self::label_pc(action_label),
                        then: Self::label_pc(then),
                    });
                }
                None => {}
            }
        }
        self.bind(end)?;
        self.emit(Op::End);
        Ok(start)
    }

    fn table_successors(
        &self,
        table: u32,
        definition: &Table,
        target: &impl Fn(Option<NodeId>) -> Result<Label, LowerError>,
    ) -> Result<TableSuccessorLabels, LowerError> {
        let no_action = target(definition.next_without_action)?;
        let count = self.program.actions.len();
        let (hit, miss) = match &definition.next {
            Next::ByHit { hit, miss } => (vec![target(*hit)?; count], vec![target(*miss)?; count]),
            Next::ByAction(list) => {
                let mut by_action = vec![no_action; count];
                for (action, next) in list {
                    if let Some(label) = by_action.get_mut(action.index()) {
                        *label = target(*next)?;
                    }
                }
                (by_action.clone(), by_action)
            }
        };
        Ok(TableSuccessorLabels {
            table,
            hit,
            miss,
            no_action,
        })
    }
}

impl TableSuccessorLabels {
    /// Resolves the labels to positions.
    pub fn resolve(&self, labels: &[Option<Pc>]) -> Result<TableSuccessors, LowerError> {
        let position = |label: &Label| {
            let pc = label.position(labels);
            pc.ok_or_else(|| LowerError::UnresolvedReference("successor of a table".to_owned()))
        };
        Ok(TableSuccessors {
            hit: self.hit.iter().map(position).collect::<Result<_, _>>()?,
            miss: self.miss.iter().map(position).collect::<Result<_, _>>()?,
            no_action: position(&self.no_action)?,
        })
    }
}

/// Returns the reachable nodes in topological order.
fn order(program: &Program, pipeline: &Pipeline) -> Result<Vec<NodeId>, LowerError> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        Unvisited,
        OnPath,
        Done,
    }
    let mut visits = vec![VisitState::Unvisited; pipeline.nodes.len()];
    let mut sorted = Vec::new();
    let mut stack: Vec<(NodeId, bool)> = pipeline.init.map(|node| (node, false)).into_iter().collect();
    while let Some((node, is_leaving)) = stack.pop() {
        let Some(visit) = visits.get_mut(node.index()) else {
            return Err(LowerError::UnresolvedReference(format!(
                "pipeline {}",
                pipeline.name
            )));
        };
        if is_leaving {
            *visit = VisitState::Done;
            sorted.push(node);
            continue;
        }
        match *visit {
            VisitState::Done => continue,
            VisitState::OnPath => return Err(LowerError::ControlFlowCycle(pipeline.name.clone())),
            VisitState::Unvisited => *visit = VisitState::OnPath,
        }
        stack.push((node, true));
        for next in successors(program, pipeline, node) {
            match visits.get(next.index()) {
                Some(VisitState::OnPath) => return Err(LowerError::ControlFlowCycle(pipeline.name.clone())),
                Some(VisitState::Unvisited) => stack.push((next, false)),
                _ => {}
            }
        }
    }
    sorted.reverse();
    Ok(sorted)
}

fn successors(program: &Program, pipeline: &Pipeline, node: NodeId) -> Vec<NodeId> {
    match pipeline.nodes.get(node.index()) {
        Some(Node::Condition {
            on_true, on_false, ..
        }) => on_false.iter().chain(on_true).copied().collect(),
        Some(Node::Action { next, .. }) => next.iter().copied().collect(),
        Some(Node::Table(table)) => {
            let Some(table) = program.tables.get(table.index()) else {
                return Vec::new();
            };
            let by_outcome: Vec<NodeId> = match &table.next {
                Next::ByHit { hit, miss } => hit.iter().chain(miss).copied().collect(),
                Next::ByAction(list) => list.iter().filter_map(|(_, next)| *next).collect(),
            };
            by_outcome.into_iter().chain(table.next_without_action).collect()
        }
        None => Vec::new(),
    }
}
