//! Pipelines: tables and conditions in the order in which packets meet them.

use serde::Serialize;

use super::builder::{Builder, Label, LowerError};
use super::statement::ActionCode;
use crate::exec::op::{Op, Pc};
use crate::program::Program;
use crate::program::ids::NodeId;
use crate::program::pipeline::{Next, Node, Pipeline, Table};

/// Where a pipeline goes on after a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Onward {
    /// After a hit, by action; of all actions if there is one only.
    pub hit: Vec<Pc>,
    /// After a miss, by action.
    pub miss: Vec<Pc>,
    /// After a miss without an action.
    pub none: Pc,
}

/// The same with labels.
pub struct OnwardLabels {
    pub table: u32,
    pub hit: Vec<Label>,
    pub miss: Vec<Label>,
    pub none: Label,
}

impl Builder<'_> {
    /// Lowers a pipeline. Tables' ways onward are added to `onward`.
    pub fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        actions: &[ActionCode],
        onward: &mut Vec<OnwardLabels>,
    ) -> Result<Pc, LowerError> {
        self.context = format!("pipeline {}", pipeline.name);
        let order = order(self.program, pipeline)?;
        let start = self.here()?;
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
                found.ok_or_else(|| LowerError::Dangling("a node of a pipeline".to_owned()))
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
                    let found = found.ok_or_else(|| LowerError::Dangling("a table".to_owned()))?;
                    onward.push(self.onward(table.0, found, &target)?);
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
                            self.emit(Op::Jump { to: Self::to(no) });
                        }
                    }
                    self.release(mark);
                }
                Some(Node::Action { action, next }) => {
                    let code = actions.get(action.index());
                    let code = code.ok_or_else(|| LowerError::Dangling("an action call".to_owned()))?;
                    let at = self.label()?;
                    self.bind_at(at, code.start);
                    let then = target(*next)?;
                    self.emit(Op::Call {
                        action: Self::to(at),
                        then: Self::to(then),
                    });
                }
                None => {}
            }
        }
        self.bind(end)?;
        self.emit(Op::End);
        Ok(start)
    }

    fn onward(
        &self,
        table: u32,
        found: &Table,
        target: &impl Fn(Option<NodeId>) -> Result<Label, LowerError>,
    ) -> Result<OnwardLabels, LowerError> {
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
        Ok(OnwardLabels {
            table,
            hit,
            miss,
            none,
        })
    }
}

impl OnwardLabels {
    /// The ways onward with positions in place of labels.
    pub fn resolve(&self, labels: &[Option<Pc>]) -> Result<Onward, LowerError> {
        let position = |label: &Label| {
            let found = label.position(labels);
            found.ok_or_else(|| LowerError::Dangling("a table's next node".to_owned()))
        };
        Ok(Onward {
            hit: self.hit.iter().map(position).collect::<Result<_, _>>()?,
            miss: self.miss.iter().map(position).collect::<Result<_, _>>()?,
            none: position(&self.none)?,
        })
    }
}

/// The nodes that can be reached, each before those that follow it.
fn order(program: &Program, pipeline: &Pipeline) -> Result<Vec<NodeId>, LowerError> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; pipeline.nodes.len()];
    let mut finished = Vec::new();
    let mut stack: Vec<(NodeId, bool)> = pipeline.init.map(|node| (node, false)).into_iter().collect();
    while let Some((node, leaving)) = stack.pop() {
        let Some(mark) = marks.get_mut(node.index()) else {
            return Err(LowerError::Dangling(format!("pipeline {}", pipeline.name)));
        };
        if leaving {
            *mark = Mark::Done;
            finished.push(node);
            continue;
        }
        match *mark {
            Mark::Done => continue,
            Mark::Open => return Err(LowerError::Circle(pipeline.name.clone())),
            Mark::New => *mark = Mark::Open,
        }
        stack.push((node, true));
        for next in successors(program, pipeline, node) {
            match marks.get(next.index()) {
                Some(Mark::Open) => return Err(LowerError::Circle(pipeline.name.clone())),
                Some(Mark::New) => stack.push((next, false)),
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
