//! Programs that never end: the switch and the reference interpreter stop them at the same point.

use std::sync::Arc;

use linewarden_switch::forwarding::{ForwardingOp, MirrorSession, Replica};
use linewarden_switch::lower::lower;
use linewarden_switch::program::action::{CloneKind, LValue, Statement};
use linewarden_switch::program::expr::Data;
use linewarden_switch::program::ids::{ActionId, NodeId, StateId};
use linewarden_switch::program::pipeline::{Node, Pipeline};
use linewarden_switch::reference::{COPIES_MAX, PASSES_MAX};
use num_bigint::BigInt;

use super::case::Case;
use super::run::{PacketOutcome, by_engine, by_reference};
use super::shape;
use super::source::Source;

fn number(value: u32) -> Data {
    Data::Const(BigInt::from(value))
}

fn only(name: &str, action: Option<u32>) -> Pipeline {
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
    case.program.ingress = only("ingress", Some(1));
    case.program.egress = only("egress", Some(2));
    case.program.actions[1].body = ingress;
    case.program.actions[2].body = egress;
    case
}

fn same(case: &Case) -> PacketOutcome {
    let executable = lower(case.program.clone()).unwrap();
    let (expected, got) = (by_reference(case), by_engine(case, &executable));
    assert!(expected == got, "the reference interpreter and the switch differ");
    let (mut seen, _) = expected;
    seen.remove(0)
}

#[test]
fn recursive_clones_end() {
    let clone = Statement::Clone(CloneKind::Egress, number(1), number(0));
    let mut case = case(Vec::new(), vec![clone]);
    let session = MirrorSession {
        port: Some(3),
        ..MirrorSession::default()
    };
    case.ops.push(ForwardingOp::Mirror(1, Some(session)));
    let seen = same(&case);
    assert_eq!(seen.packets(), COPIES_MAX as usize);
    assert_eq!(seen.fault("copies"), 1);
}

#[test]
fn doubling_resubmissions_end() {
    let group = Statement::Assign(LValue::Field(shape::standard("mcast_grp")), number(1));
    let mut case = case(vec![group], vec![Statement::Recirculate(number(1))]);
    let replicas: Arc<[Replica]> = [3, 4].map(|port| Replica { rid: 1, port }).into();
    case.ops.push(ForwardingOp::Group(1, Some(replicas)));
    let seen = same(&case);
    assert_eq!(seen.packets(), 0);
    assert!(seen.fault("passes") > 0 && seen.fault("queue") > 0);
}

#[test]
fn recirculated_packets_end() {
    let seen = same(&case(vec![Statement::Resubmit(number(1))], Vec::new()));
    assert_eq!((seen.packets(), seen.fault("passes")), (0, 1));
    assert_eq!(PASSES_MAX, linewarden_switch::engine::PASSES_MAX);
}

#[test]
fn loops_end() {
    let mut parser = case(Vec::new(), Vec::new());
    parser.program.parser.states[0].default = Some(StateId(0));
    let action = case(vec![Statement::Noop, Statement::Jump(0)], Vec::new());
    let egress = case(Vec::new(), vec![Statement::Jump(0)]);
    for case in [parser, action, egress] {
        let seen = same(&case);
        assert_eq!((seen.packets(), seen.fault("steps")), (0, 1));
    }
}
