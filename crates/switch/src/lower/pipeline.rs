//! Lowering of pipelines: tables and conditions in topological order.

use serde::Serialize;

use super::builder::{Builder, Label, LowerError};
use super::statement::ActionCode;
use crate::exec::op::{Op, Pc};
use crate::program::Program;
use crate::program::ids::NodeId;
use crate::program::pipeline::{Next, Node, Pipeline, Table};

/// Successors of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableSuccessors {
    /// After a hit, by action; one element if all actions have the same successor.
    pub hit: Vec<Pc>,
    /// After a miss, by action.
    pub miss: Vec<Pc>,
    /// After a miss without an action.
    pub no_action: Pc,
}

/// Successors of a table as labels.
pub struct TableSuccessorLabels {
    pub table: u32,
    pub hit: Vec<Label>,
    pub miss: Vec<Label>,
    pub no_action: Label,
}

impl Builder<'_> {
    /// Lowers a pipeline. The successors of its tables are added to `onward`.
    pub fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        actions: &[ActionCode],
        onward: &mut Vec<TableSuccessorLabels>,
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
                let found = labels.get(id.index()).copied();
                found.ok_or_else(|| LowerError::UnresolvedReference("pipeline node".to_owned()))
            }
        };
        for (position, node) in order.iter().enumerate() {
            let Some(label) = labels.get(node.index()) else {
                continue;
            };
            self.bind(*label)?;
            let following = order
                .get(position + 1)
                .and_then(|next| labels.get(next.index()))
                .copied();
            match pipeline.nodes.get(node.index()) {
                Some(Node::Table(table)) => {
                    self.emit(Op::Apply { table: table.0 });
                    let found = self.program.tables.get(table.index());
                    let found = found.ok_or_else(|| LowerError::UnresolvedReference("table".to_owned()))?;
                    onward.push(self.table_successors(table.0, found, &target)?);
                }
                Some(Node::Condition {
                    condition,
                    on_true,
                    on_false,
                }) => {
                    let mark = self.mark();
                    let (yes, no) = (target(*on_true)?, target(*on_false)?);
                    if following == Some(yes) {
                        self.branch(condition, false, no)?;
                    } else {
                        self.branch(condition, true, yes)?;
                        if following != Some(no) {
                            self.emit(Op::Jump {
                                to: Self::label_pc(no),
                            });
                        }
                    }
                    self.release(mark);
                }
                Some(Node::Action { action, next }) => {
                    let code = actions.get(action.index());
                    let code =
                        code.ok_or_else(|| LowerError::UnresolvedReference("action call".to_owned()))?;
                    let at = self.label()?;
                    self.bind_at(at, code.start);
                    let then = target(*next)?;
                    self.emit(Op::Call {
                        action: Self::label_pc(at),
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
        found: &Table,
        target: &impl Fn(Option<NodeId>) -> Result<Label, LowerError>,
    ) -> Result<TableSuccessorLabels, LowerError> {
        let none = target(found.next_without_action)?;
        let count = self.program.actions.len();
        let (hit, miss) = match &found.next {
            Next::ByHit { hit, miss } => (vec![target(*hit)?; count], vec![target(*miss)?; count]),
            Next::ByAction(list) => {
                let mut by_action = vec![none; count];
                for (action, next) in list {
                    if let Some(slot) = by_action.get_mut(action.index()) {
                        *slot = target(*next)?;
                    }
                }
                (by_action.clone(), by_action)
            }
        };
        Ok(TableSuccessorLabels {
            table,
            hit,
            miss,
            no_action: none,
        })
    }
}

impl TableSuccessorLabels {
    /// Resolves the labels to positions.
    pub fn resolve(&self, labels: &[Option<Pc>]) -> Result<TableSuccessors, LowerError> {
        let position = |label: &Label| {
            let found = label.position(labels);
            found.ok_or_else(|| LowerError::UnresolvedReference("successor of a table".to_owned()))
        };
        Ok(TableSuccessors {
            hit: self.hit.iter().map(position).collect::<Result<_, _>>()?,
            miss: self.miss.iter().map(position).collect::<Result<_, _>>()?,
            no_action: position(&self.no_action)?,
        })
    }
}

/// Reachable nodes in topological order.
fn order(program: &Program, pipeline: &Pipeline) -> Result<Vec<NodeId>, LowerError> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        Unvisited,
        Open,
        Done,
    }
    let mut marks = vec![VisitState::Unvisited; pipeline.nodes.len()];
    let mut finished = Vec::new();
    let mut stack: Vec<(NodeId, bool)> = pipeline.init.map(|node| (node, false)).into_iter().collect();
    while let Some((node, leaving)) = stack.pop() {
        let Some(mark) = marks.get_mut(node.index()) else {
            return Err(LowerError::UnresolvedReference(format!(
                "pipeline {}",
                pipeline.name
            )));
        };
        if leaving {
            *mark = VisitState::Done;
            finished.push(node);
            continue;
        }
        match *mark {
            VisitState::Done => continue,
            VisitState::Open => return Err(LowerError::ControlFlowCycle(pipeline.name.clone())),
            VisitState::Unvisited => *mark = VisitState::Open,
        }
        stack.push((node, true));
        for next in successors(program, pipeline, node) {
            match marks.get(next.index()) {
                Some(VisitState::Open) => return Err(LowerError::ControlFlowCycle(pipeline.name.clone())),
                Some(VisitState::Unvisited) => stack.push((next, false)),
                _ => {}
            }
        }
    }
    finished.reverse();
    Ok(finished)
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
