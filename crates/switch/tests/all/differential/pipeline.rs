//! Random tables, entries, pipelines, checksums and deparsers.

use linewarden_switch::program::expr::Bool;
use linewarden_switch::program::ids::{
    ActionId, CalculationId, FieldRef, HeaderId, MeterId, NodeId, ProfileId, RegisterId, TableId,
};
use linewarden_switch::program::pipeline::{
    ActionEntry, KeyField, KeySource, MatchKind, Next, Node, Pipeline, Profile, Table, TableKind,
};
use linewarden_switch::program::{
    Calculation, Checksum, ChecksumKind, Deparser, Digest, Input, MeterArray, MeterUnit, Program,
    RegisterArray,
};
use linewarden_switch::tables::FieldMatch;
use num_bigint::BigUint;

use super::expression::Expressions;
use super::shape::{self, USER};
use super::source::Source;
use super::statement::{self, StatementContext, Statements};

const ALGORITHMS: [&str; 9] = [
    "crc16",
    "crc32",
    "csum16",
    "xor16",
    "xor32",
    "identity",
    "xxh64",
    "hash_ex",
    "round_robin",
];

/// Number of cells in the register array that records packet state in egress.
const REPORT_SIZE: u32 = 12;

fn inputs(source: &mut Source, program: &Program) -> Vec<Input> {
    let mut inputs = Vec::new();
    let mut byte_aligned = true;
    for _ in 0..source.between(1, 5) {
        inputs.push(match source.below(8) {
            0 if byte_aligned => Input::Header(source.pick(&shape::packet_headers(program)).unwrap()),
            1 => {
                let bits = shape::width(source);
                byte_aligned &= bits.is_multiple_of(8);
                Input::Constant(source.bytes(bits.div_ceil(8) as usize), bits)
            }
            2 if source.below(2) == 1 => Input::Payload,
            _ => {
                let field = source.pick(&shape::fixed_fields(program)).unwrap();
                byte_aligned &= program.bits(field).is_multiple_of(8);
                Input::Field(field)
            }
        });
    }
    inputs
}

/// Declares random calculations.
pub fn calculations(source: &mut Source, program: &mut Program) {
    for index in 0..source.below(4) {
        let calculation = Calculation {
            name: format!("calc{index}"),
            algorithm: ALGORITHMS[source.below(ALGORITHMS.len())].into(),
            inputs: inputs(source, program),
        };
        program.calculations.push(calculation);
    }
}

fn checksums(source: &mut Source, program: &mut Program) {
    for index in 0..source.below(3) {
        let fields: Vec<FieldRef> = shape::fixed_fields(program)
            .into_iter()
            .filter(|field| field.header != shape::STANDARD)
            .collect();
        let ipv4: Vec<FieldRef> = fields
            .iter()
            .copied()
            .filter(|field| {
                let header_type = program.type_of(field.header).unwrap();
                let is_short = header_type.fixed_bits() <= 480 && header_type.variable().is_none();
                field.header != USER && program.bits(*field) == 16 && is_short
            })
            .collect();
        let (target, kind) = match (source.below(4), source.pick(&ipv4)) {
            (0, Some(target)) => (target, ChecksumKind::Ipv4),
            _ if program.calculations.is_empty() => continue,
            _ => {
                let id = CalculationId(source.below(program.calculations.len()) as u32);
                (source.pick(&fields).unwrap(), ChecksumKind::Calculation(id))
            }
        };
        let condition = (source.below(2) == 1).then(|| {
            let mut expressions = Expressions {
                source,
                program,
                params: 0,
            };
            expressions.bool(1)
        });
        let checksum = Checksum {
            name: format!("sum{index}"),
            target,
            kind,
            condition,
            verify: source.below(3) > 0,
            update: source.below(3) > 0,
        };
        program.checksums.push(checksum);
    }
}

fn deparser(source: &mut Source, program: &mut Program) {
    let mut order = shape::packet_headers(program);
    if source.percent(30) {
        order.truncate(source.between(1, order.len()));
        let distance = source.below(order.len());
        order.rotate_left(distance);
    }
    let mut statements = Vec::new();
    for index in 0..source.below(3) {
        if source.below(4) == 3 {
            let mut generator = Statements {
                expressions: Expressions {
                    source,
                    program,
                    params: 0,
                },
                context: match index {
                    0 => StatementContext::Plain,
                    _ => StatementContext::Action,
                },
            };
            statements.push(generator.simple());
        }
    }
    program.deparser = Deparser { statements, order };
}

fn actions(source: &mut Source, program: &mut Program) {
    for number in 0..source.between(1, 6) as u32 {
        let action = statement::action(source, program, number);
        program.actions.push(action);
    }
}

/// Generates the actions that report packet state: all fields by a digest in ingress, some fields by registers in egress.
fn report_actions(source: &mut Source, program: &mut Program) -> (ActionId, ActionId) {
    program.digests = vec![
        Digest {
            name: "all".into(),
            json_id: 1,
            fields: shape::fixed_fields(program),
        },
        Digest {
            name: "user".into(),
            json_id: 2,
            fields: shape::fixed_fields_of(program, USER),
        },
    ];
    let cells = RegisterId(program.registers.len() as u32);
    program.registers.push(RegisterArray {
        name: "reporter".into(),
        size: REPORT_SIZE,
        bits: 300,
    });
    let fields = shape::fixed_fields(program);
    let fields: Vec<FieldRef> = (1..REPORT_SIZE).map(|_| source.pick(&fields).unwrap()).collect();
    let first = program.actions.len() as u32;
    let ingress = statement::report_action(program, first, cells, Some(1), &[]);
    let egress = statement::report_action(program, first + 1, cells, None, &fields);
    program.actions.extend([ingress, egress]);
    (ActionId(first), ActionId(first + 1))
}

fn key_field(source: &mut Source, program: &Program, index: usize, kinds: &[MatchKind]) -> KeyField {
    let kind = source.pick(kinds).unwrap();
    let name = format!("k{index}");
    if kind == MatchKind::Valid {
        let header = source.pick(&shape::packet_headers(program)).unwrap();
        return KeyField {
            name,
            kind,
            source: KeySource::Valid(header),
            mask: None,
            bits: 1,
        };
    }
    let mut field = source.pick(&shape::fixed_fields(program)).unwrap();
    if field.header.0 >= 2 && source.percent(10) {
        field.field = program.type_of(field.header).unwrap().fields.len() as u32;
    }
    let bits = program.bits(field);
    let mask = source.percent(15).then(|| {
        let mut mask = source.bytes(bits.div_ceil(8) as usize);
        if !bits.is_multiple_of(8) {
            mask[0] &= (1 << (bits % 8)) - 1;
        }
        mask
    });
    KeyField {
        name,
        kind,
        source: KeySource::Field(field),
        mask,
        bits,
    }
}

fn table(
    source: &mut Source,
    program: &mut Program,
    id: usize,
    later_node: impl Fn(&mut Source) -> Option<NodeId>,
) {
    let match_kind = [
        MatchKind::Exact,
        MatchKind::Lpm,
        MatchKind::Ternary,
        MatchKind::Range,
    ][source.below(4)];
    let mut key: Vec<KeyField> = (0..source.below(3))
        .map(|index| {
            let kinds: &[MatchKind] = match match_kind {
                MatchKind::Ternary => &[MatchKind::Ternary, MatchKind::Exact, MatchKind::Valid],
                MatchKind::Range => &[MatchKind::Range, MatchKind::Ternary, MatchKind::Exact],
                _ => &[MatchKind::Exact, MatchKind::Exact, MatchKind::Valid],
            };
            key_field(source, program, index, kinds)
        })
        .collect();
    if match_kind == MatchKind::Lpm {
        key.push(key_field(source, program, 9, &[MatchKind::Lpm]));
    }
    let all_actions: Vec<ActionId> = (0..program.actions.len() as u32).map(ActionId).collect();
    let mut actions: Vec<ActionId> = (0..source.between(1, 3))
        .map(|_| source.pick(&all_actions).unwrap())
        .collect();
    actions.sort_unstable();
    actions.dedup();
    let next = match source.below(3) {
        0 => Next::ByHit {
            hit: later_node(source),
            miss: later_node(source),
        },
        _ => Next::ByAction(
            actions
                .iter()
                .map(|action| (*action, later_node(source)))
                .collect(),
        ),
    };
    let next_without_action = match next {
        Next::ByHit { miss, .. } => miss,
        Next::ByAction(_) => later_node(source),
    };
    let default = (source.below(4) > 0).then(|| entry_of(source, program, &actions));
    let kind = match source.below(6) {
        0 if default.is_none() => TableKind::Indirect(profile(source, program, false)),
        1 if default.is_none() => TableKind::Selector(profile(source, program, true)),
        _ => TableKind::Simple,
    };
    let direct_meter = source.percent(15).then(|| {
        let target = source.pick(&shape::fixed_fields_of(program, USER)).unwrap();
        program.meters.push(MeterArray {
            name: format!("direct{id}"),
            unit: MeterUnit::Bytes,
            rates: 2,
            size: 0,
            direct: Some(target),
        });
        (MeterId(program.meters.len() as u32 - 1), target)
    });
    program.tables.push(Table {
        name: format!("t{id}"),
        json_id: id as u32,
        kind,
        match_kind,
        key,
        size: 64,
        with_counters: source.below(2) == 1,
        with_timeout: false,
        direct_meter,
        actions,
        default,
        default_action_const: false,
        default_entry_const: false,
        entries: None,
        next,
        next_without_action,
    });
}

fn profile(source: &mut Source, program: &mut Program, with_selector: bool) -> ProfileId {
    let selector = with_selector.then(|| {
        let inputs = inputs(source, program);
        program.calculations.push(Calculation {
            name: format!("selector{}", program.calculations.len()),
            algorithm: "crc16".into(),
            inputs,
        });
        CalculationId(program.calculations.len() as u32 - 1)
    });
    program.profiles.push(Profile {
        name: format!("p{}", program.profiles.len()),
        size: 16,
        selector,
    });
    ProfileId(program.profiles.len() as u32 - 1)
}

/// Call of one of these actions with random arguments.
pub fn entry_of(source: &mut Source, program: &Program, actions: &[ActionId]) -> ActionEntry {
    let action = source.pick(actions).unwrap();
    let params = &program.actions[action.index()].params;
    let args = params
        .iter()
        .map(|param| {
            let bytes = source.bytes(param.bits.div_ceil(8) as usize);
            BigUint::from_bytes_be(&bytes) & ((BigUint::from(1u8) << param.bits) - 1u8)
        })
        .collect();
    ActionEntry { action, args }
}

/// Match of an entry on one field.
pub fn field_match(source: &mut Source, field: &KeyField) -> FieldMatch {
    let value = |source: &mut Source| {
        let mut bytes = source.bytes(field.bits.div_ceil(8) as usize);
        if !field.bits.is_multiple_of(8) {
            bytes[0] &= (1 << (field.bits % 8)) - 1;
        }
        bytes
    };
    match field.kind {
        MatchKind::Exact => FieldMatch::Exact(value(source)),
        MatchKind::Valid => FieldMatch::Valid(source.below(2) == 1),
        MatchKind::Lpm => FieldMatch::Lpm {
            value: value(source),
            prefix_bits: source.below(field.bits as usize + 1) as u32,
        },
        MatchKind::Ternary => FieldMatch::Ternary {
            value: value(source),
            mask: value(source),
        },
        MatchKind::Range => {
            let (low, high) = (value(source), value(source));
            FieldMatch::Range {
                low: low.clone().min(high.clone()),
                high: high.max(low),
            }
        }
    }
}

fn pipeline(source: &mut Source, program: &mut Program, name: &str, report_action: ActionId) -> Pipeline {
    let count = source.between(1, 4);
    // An additional node reports the packet state: before the other nodes in ingress, after them in egress.
    let reports_first = name == "ingress";
    let reporter_node = NodeId(count as u32);
    let mut nodes = Vec::new();
    for index in 0..count {
        let last = if reports_first { count - 1 } else { count };
        let later_node = move |source: &mut Source| match source.below(6) {
            0 => None,
            _ if index == last => None,
            _ => Some(NodeId(source.between(index + 1, last) as u32)),
        };
        match source.below(4) {
            0 => {
                let mut expressions = Expressions {
                    source,
                    program,
                    params: 0,
                };
                let condition = match expressions.source.below(4) {
                    0 => Bool::Valid(Box::new(linewarden_switch::program::expr::HeaderExpr::Header(
                        HeaderId(2),
                    ))),
                    _ => expressions.bool(3),
                };
                nodes.push(Node::Condition {
                    condition,
                    on_true: later_node(source),
                    on_false: later_node(source),
                });
            }
            1 => {
                let without_params: Vec<ActionId> = (0..program.actions.len() as u32)
                    .map(ActionId)
                    .filter(|id| program.actions[id.index()].params.is_empty())
                    .collect();
                nodes.push(Node::Action {
                    action: source.pick(&without_params).unwrap(),
                    next: later_node(source),
                });
            }
            _ => {
                let id = program.tables.len();
                table(source, program, id, later_node);
                nodes.push(Node::Table(TableId(id as u32)));
            }
        }
    }
    nodes.push(Node::Action {
        action: report_action,
        next: reports_first.then_some(NodeId(0)),
    });
    Pipeline {
        name: name.into(),
        init: Some(if reports_first { reporter_node } else { NodeId(0) }),
        nodes,
    }
}

/// Generates all parts of a program except headers and parser.
pub fn pipelines(source: &mut Source, program: &mut Program) {
    actions(source, program);
    let (ingress, egress) = report_actions(source, program);
    program.ingress = pipeline(source, program, "ingress", ingress);
    program.egress = pipeline(source, program, "egress", egress);
    checksums(source, program);
    deparser(source, program);
}
