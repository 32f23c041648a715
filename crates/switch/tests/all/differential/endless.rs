//! Programs that would process a packet endlessly: the switch and the reference interpreter stop them at the same point.

use std::sync::Arc;

use linewarden_switch::forwarding::{CloneSession, ForwardingOp, Replica};
use linewarden_switch::lower::lower;
use linewarden_switch::program::action::{CloneKind, LValue, Statement};
use linewarden_switch::program::expr::Data;
use linewarden_switch::program::ids::{ActionId, NodeId, StateId};
use linewarden_switch::program::pipeline::{Node, Pipeline};
use linewarden_switch::reference::{COPIES_MAX, PASSES_MAX};
use num_bigint::BigInt;

use super::case::Case;
use super::run::{PacketOutcome, run_in_reference, run_in_switch};
use super::shape;
use super::source::Source;

fn number(value: u32) -> Data {
    Data::Const(BigInt::from(value))
}

/// Pipeline that only executes this action; without an action, an empty pipeline.
fn pipeline_with(name: &str, action: Option<u32>) -> Pipeline {
    Pipeline {
        name: name.into(),
        init: action.map(|_| NodeId(0)),
        nodes: action
            .map(|action| Node::Action {
                action: ActionId(action),
                next: None,
            })
            .into_iter()
            .collect(),
    }
}

/// Minimal program with one action in ingress and one in egress.
fn case(ingress: Vec<Statement>, egress: Vec<Statement>) -> Case {
    let mut case = Case::of(&mut Source::recorded(Vec::new())).unwrap();
    case.program.ingress = pipeline_with("ingress", Some(1));
    case.program.egress = pipeline_with("egress", Some(2));
    case.program.actions[1].body = ingress;
    case.program.actions[2].body = egress;
    case
}

/// Outcome of the first packet, which must be the same in the reference interpreter and in the switch.
fn common_outcome(case: &Case) -> PacketOutcome {
    let executable = lower(case.program.clone()).unwrap();
    let (expected, actual) = (run_in_reference(case), run_in_switch(case, &executable));
    assert!(
        expected == actual,
        "the reference interpreter and the switch differ"
    );
    let (mut outcomes, _) = expected;
    outcomes.remove(0)
}

#[test]
fn recursive_clones_end() {
    let clone = Statement::Clone(CloneKind::Egress, number(1), number(0));
    let mut case = case(Vec::new(), vec![clone]);
    let session = CloneSession {
        port: Some(3),
        ..CloneSession::default()
    };
    case.ops.push(ForwardingOp::CloneSession(1, Some(session)));
    let outcome = common_outcome(&case);
    assert_eq!(outcome.packets(), COPIES_MAX as usize);
    assert_eq!(outcome.fault("copies"), 1);
}

#[test]
fn doubling_recirculations_end() {
    let group = Statement::Assign(LValue::Field(shape::standard("mcast_grp")), number(1));
    let mut case = case(vec![group], vec![Statement::Recirculate(number(1))]);
    let replicas: Arc<[Replica]> = [3, 4].map(|port| Replica { rid: 1, port }).into();
    case.ops.push(ForwardingOp::Group(1, Some(replicas)));
    let outcome = common_outcome(&case);
    assert_eq!(outcome.packets(), 0);
    assert!(outcome.fault("passes") > 0 && outcome.fault("queue") > 0);
}

#[test]
fn resubmitted_packets_end() {
    let outcome = common_outcome(&case(vec![Statement::Resubmit(number(1))], Vec::new()));
    assert_eq!((outcome.packets(), outcome.fault("passes")), (0, 1));
    assert_eq!(PASSES_MAX, linewarden_switch::engine::PASSES_MAX);
}

#[test]
fn loops_end() {
    let mut parser = case(Vec::new(), Vec::new());
    parser.program.parser.states[0].default = Some(StateId(0));
    let action = case(vec![Statement::Noop, Statement::Jump(0)], Vec::new());
    let egress = case(Vec::new(), vec![Statement::Jump(0)]);
    for case in [parser, action, egress] {
        let outcome = common_outcome(&case);
        assert_eq!((outcome.packets(), outcome.fault("steps")), (0, 1));
    }
}
