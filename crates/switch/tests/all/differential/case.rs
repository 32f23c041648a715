//! Test case: a program, its control plane state and its input packets.

use std::collections::BTreeSet;
use std::sync::Arc;

use linewarden_switch::forwarding::{CloneSession, Forwarding, ForwardingOp, Replica};
use linewarden_switch::lower::LowerError;
use linewarden_switch::meter::Rate;
use linewarden_switch::program::Program;
use linewarden_switch::program::ids::{ActionId, FieldRef, HeaderId, ValueSetId};
use linewarden_switch::program::parser::Parser;
use linewarden_switch::program::pipeline::{Pipeline, TableKind};
use linewarden_switch::setup;
use linewarden_switch::tables::{
    GroupHandle, HashSeed, MemberHandle, NewEntry, Priority, ProfileId, ProfileOp, Replicated, TableId,
    TableOp, TableSetOp, Target,
};

use super::source::Source;
use super::{parser, pipeline, shape};

/// Input packet.
#[derive(Clone, Debug)]
pub struct InputPacket {
    /// Arrival time.
    pub now_us: u64,
    /// Ingress port.
    pub port: u32,
    /// Frame.
    pub frame: Vec<u8>,
}

/// Test case.
#[derive(Debug)]
pub struct Case {
    /// Program.
    pub program: Program,
    /// Control plane operations before the first packet.
    pub ops: Vec<ForwardingOp>,
    /// Rates of all meters; `None` leaves them unconfigured.
    pub rates: Option<Rate>,
    /// Input packets.
    pub packets: Vec<InputPacket>,
}

/// Generated programs have no list of the fields that they use, so all fields are assumed to be used.
fn all_fields(program: &Program) -> BTreeSet<FieldRef> {
    let headers = (0u32..).map(HeaderId).take(program.headers.len());
    headers
        .flat_map(|header| {
            let count = program.type_of(header).map_or(0, |kind| kind.fields.len());
            (0u32..).take(count).map(move |field| FieldRef { header, field })
        })
        .collect()
}

/// Program without declarations.
fn empty() -> Program {
    let pipeline = |name: &str| Pipeline {
        name: name.into(),
        init: None,
        nodes: Vec::new(),
    };
    Program {
        types: Vec::new(),
        headers: Vec::new(),
        stacks: Vec::new(),
        unions: Vec::new(),
        union_stacks: Vec::new(),
        aliases: Default::default(),
        errors: Default::default(),
        enums: Default::default(),
        value_sets: Vec::new(),
        parser: Parser {
            init: None,
            states: Vec::new(),
        },
        deparser: Default::default(),
        calculations: Vec::new(),
        counters: Vec::new(),
        meters: Vec::new(),
        registers: Vec::new(),
        actions: Vec::new(),
        profiles: Vec::new(),
        tables: Vec::new(),
        ingress: pipeline("ingress"),
        egress: pipeline("egress"),
        checksums: Vec::new(),
        digests: Vec::new(),
        field_lists: Vec::new(),
        referenced_fields: Default::default(),
    }
}

/// State before any control plane operation.
pub fn initial_forwarding(program: &Program) -> Result<Forwarding, LowerError> {
    setup::forwarding(program, &HashSeed::new([1, 2, 3, 4]))
}

impl Case {
    /// Case made from these choices, or `None` if its tables are invalid.
    pub fn of(source: &mut Source) -> Option<Self> {
        let mut program = empty();
        shape::headers(source, &mut program);
        shape::objects(source, &mut program);
        pipeline::calculations(source, &mut program);
        pipeline::pipelines(source, &mut program);
        parser::parser(source, &mut program);
        let ops = control_plane_ops(source, &program)?;
        let rates = source.percent(40).then(|| Rate {
            units_per_us: source.below(3) as f64 / 100.0,
            burst: source.below(150) as u64,
        });
        let mut now_us = 1_000;
        let packets = (0..source.between(1, 4))
            .map(|_| {
                now_us += source.below(10_000) as u64;
                let len = match source.below(4) {
                    0 => source.below(20),
                    _ => source.below(150),
                };
                InputPacket {
                    now_us,
                    port: source.below(6) as u32,
                    frame: source.bytes(len),
                }
            })
            .collect();
        program.referenced_fields = all_fields(&program);
        Some(Self {
            program,
            ops,
            rates,
            packets,
        })
    }
}

fn control_plane_ops(source: &mut Source, program: &Program) -> Option<Vec<ForwardingOp>> {
    let mut forwarding = initial_forwarding(program).ok()?;
    let mut ops = Vec::new();
    let mut apply = |forwarding: &mut Forwarding, op: ForwardingOp| {
        if forwarding.apply(op.clone()).is_ok() {
            ops.push(op);
        }
    };
    for session in 0..source.below(4) as u32 {
        let clone_session = CloneSession {
            port: (source.below(3) > 0).then(|| source.below(6) as u32),
            group: (source.below(3) == 2).then(|| source.below(3) as u32),
            bytes_max: match source.below(4) {
                3 => source.below(60) as u32,
                _ => 0,
            },
        };
        let op = ForwardingOp::CloneSession(session, Some(clone_session));
        apply(&mut forwarding, op);
    }
    for group in 1..source.between(1, 4) as u32 {
        let replicas: Arc<[Replica]> = (0..source.below(4))
            .map(|_| Replica {
                rid: source.below(5) as u16,
                port: source.below(6) as u32,
            })
            .collect();
        apply(&mut forwarding, ForwardingOp::Group(group, Some(replicas)));
    }
    for (id, set) in (0..).zip(&program.value_sets) {
        let members = (0..source.below(4)).map(|_| {
            let mut member = source.bytes(set.bits.div_ceil(8) as usize);
            if !set.bits.is_multiple_of(8) {
                member[0] &= (1 << (set.bits % 8)) - 1;
            }
            member
        });
        let members = Arc::new(members.collect());
        apply(&mut forwarding, ForwardingOp::ValueSet(ValueSetId(id), members));
    }
    let profile_op = |id: u32, op: ProfileOp| ForwardingOp::Tables(TableSetOp::Profile(ProfileId(id), op));
    let all_actions: Vec<ActionId> = (0..program.actions.len() as u32 - 2).map(ActionId).collect();
    for (profile_id, profile) in (0..).zip(&program.profiles) {
        for _ in 0..3 {
            let table = program.tables.iter().find(|table| match table.kind {
                TableKind::Simple => false,
                TableKind::Indirect(id) | TableKind::Selector(id) => id.0 == profile_id,
            });
            let actions = table.map_or(&all_actions, |table| &table.actions);
            let entry = pipeline::entry_of(source, program, actions);
            let call = setup::action_call(program, &entry);
            apply(
                &mut forwarding,
                profile_op(profile_id, ProfileOp::AddMember(call)),
            );
        }
        if profile.selector.is_some() {
            for _ in 0..2 {
                let members = (0..source.between(1, 3) as u32).map(|member| (MemberHandle(member), 1));
                let op = ProfileOp::AddGroup(members.collect());
                apply(&mut forwarding, profile_op(profile_id, op));
            }
        }
    }
    for (table_id, table) in (0..).map(TableId).zip(&program.tables) {
        for _ in 0..source.below(5) {
            let matches: Vec<_> = table
                .key
                .iter()
                .map(|field| pipeline::field_match(source, field))
                .collect();
            let target = match table.kind {
                TableKind::Simple => {
                    let entry = pipeline::entry_of(source, program, &table.actions);
                    Target::Action(setup::action_call(program, &entry))
                }
                TableKind::Selector(_) if source.below(2) == 0 => {
                    Target::Group(GroupHandle(source.below(2) as u32))
                }
                _ => Target::Member(MemberHandle(source.below(3) as u32)),
            };
            let priority = Priority(source.below(4) as i32);
            let spec = &forwarding.tables().table(table_id)?.spec().key;
            let matches: Vec<_> = matches
                .into_iter()
                .zip(spec.fields())
                .map(|(field_match, field)| field_match.canonical(field))
                .collect();
            let Ok(key) = spec.key(&matches, priority) else {
                continue;
            };
            let new_entry = NewEntry {
                key,
                target,
                state: None,
                constant: false,
            };
            let op = TableSetOp::Table(table_id, TableOp::Insert(new_entry));
            apply(&mut forwarding, ForwardingOp::Tables(op));
        }
    }
    Some(ops)
}
