//! p4c's own packet tests, run by the reference interpreter.
//!
//! `LINEWARDEN_P4C_COMPILED` names a directory with programs compiled for BMv2 (`NAME.json`) and their tests
//! (`NAME.stf`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use linewarden_harness::skip;
use linewarden_switch::calculations::Calculation;
use linewarden_switch::externs::Externs;
use linewarden_switch::forwarding::{CloneSession, Forwarding, ForwardingOp, Replica};
use linewarden_switch::program::Program;
use linewarden_switch::program::ids::ActionId;
use linewarden_switch::program::pipeline::{ActionEntry, MatchKind, Table};
use linewarden_switch::reference::{Reference, ReferenceConfig};
use linewarden_switch::stf::{self, AddEntry, Command, Expectations, Test, names};
use linewarden_switch::tables::{
    FieldMatch, HashSeed, NewEntry, Priority, Replicated, TableId, TableOp, TableSetOp, Target,
};
use linewarden_switch::{load, setup};
use num_bigint::BigUint;

struct Runner {
    program: Program,
    forwarding: Forwarding,
    externs: Externs,
    calculations: Vec<Calculation>,
    /// Replication id and ports of each multicast node.
    nodes: Vec<(u16, Vec<u32>)>,
    /// Indices of the nodes in each multicast group.
    groups: BTreeMap<u32, Vec<usize>>,
    received: BTreeMap<u32, Vec<Vec<u8>>>,
    now_us: u64,
}

impl Runner {
    fn new(program: Program) -> Self {
        Self {
            forwarding: setup::forwarding(&program, &HashSeed::new([1, 2, 3, 4])).unwrap(),
            externs: Externs::of(&program),
            calculations: setup::calculations(&program).unwrap(),
            program,
            nodes: Vec::new(),
            groups: BTreeMap::new(),
            received: BTreeMap::new(),
            now_us: 1_000,
        }
    }

    fn table(&self, short_name: &str) -> (TableId, &Table) {
        let tables = self.program.tables.iter();
        let name = names::resolve_name(short_name, tables.map(|table| table.name.as_str())).unwrap();
        let index = self.program.tables.iter().position(|table| table.name == name);
        let index = index.unwrap();
        (TableId(index as u32), &self.program.tables[index])
    }

    fn target(&self, table: &Table, call: &stf::ActionCall) -> Target {
        let action = |id: &ActionId| &self.program.actions[id.index()];
        let action_names = table.actions.iter().map(|id| action(id).name.as_str());
        let name = names::resolve_name(&call.name, action_names).unwrap();
        let id = table.actions.iter().find(|id| action(id).name == name).unwrap();
        let values = action(id).params.iter().map(|param| {
            let (_, value) = call
                .arguments
                .iter()
                .find(|(name, _)| *name == param.name)
                .unwrap();
            BigUint::from_bytes_be(&value.to_bytes(param.bits).unwrap())
        });
        let entry = ActionEntry {
            action: *id,
            args: values.collect(),
        };
        Target::Action(setup::action_call(&self.program, &entry))
    }

    fn add(&mut self, entry: &AddEntry) {
        let (id, table) = self.table(&entry.table);
        let field_names = table.key.iter().map(|field| field.name.as_str());
        let mut values = BTreeMap::new();
        for key in &entry.keys {
            let name = names::resolve_key(&key.name, field_names.clone()).unwrap();
            values.insert(name, &key.value);
        }
        let matches = table.key.iter().map(|field| {
            let value = values.get(field.name.as_str());
            match (field.kind, value) {
                (MatchKind::Exact, None) => FieldMatch::Exact(Vec::new()),
                (MatchKind::Exact, Some(value)) => FieldMatch::Exact(value.exact(field.bits).unwrap()),
                (MatchKind::Lpm, None) => FieldMatch::Lpm {
                    value: Vec::new(),
                    prefix_bits: 0,
                },
                (MatchKind::Lpm, Some(value)) => {
                    let (value, prefix_bits) = value.lpm(field.bits).unwrap();
                    FieldMatch::Lpm { value, prefix_bits }
                }
                (MatchKind::Ternary, None) => FieldMatch::Ternary {
                    value: Vec::new(),
                    mask: Vec::new(),
                },
                (MatchKind::Ternary, Some(value)) => {
                    let (value, mask) = value.ternary(field.bits).unwrap();
                    FieldMatch::Ternary { value, mask }
                }
                (MatchKind::Range, value) => {
                    let (low, high) = value.unwrap().range(field.bits).unwrap();
                    FieldMatch::Range { low, high }
                }
                (MatchKind::Valid, value) => {
                    let value = value.map(|value| value.exact(1).unwrap());
                    FieldMatch::Valid(value.is_some_and(|value| value != [0]))
                }
            }
        });
        let stf::Target::Action(call) = &entry.target else {
            panic!("p4c's tests name actions")
        };
        let matches: Vec<FieldMatch> = matches.collect();
        let target = self.target(table, call);
        let spec = &self.forwarding.tables().table(id).unwrap().spec().key;
        let key = spec.key(&matches, Priority(entry.bmv2_priority().unwrap_or(0) as i32));
        let new_entry = NewEntry {
            key: key.unwrap(),
            target,
            state: None,
            constant: false,
        };
        self.change(id, TableOp::Insert(new_entry));
    }

    fn change(&mut self, table: TableId, op: TableOp) {
        let op = ForwardingOp::Tables(TableSetOp::Table(table, op));
        self.forwarding.apply(op).unwrap();
    }

    fn set_groups(&mut self) {
        for (group, nodes) in &self.groups {
            let replicas: Arc<[Replica]> = nodes
                .iter()
                .flat_map(|node| {
                    let (rid, ports) = &self.nodes[*node];
                    ports.iter().map(|port| Replica {
                        rid: *rid,
                        port: *port,
                    })
                })
                .collect();
            let op = ForwardingOp::Group(*group, Some(replicas));
            self.forwarding.apply(op).unwrap();
        }
    }

    fn run(&mut self, command: &Command) {
        match command {
            Command::Add(entry) => self.add(entry),
            Command::SetDefault { table, action } => {
                let (id, table) = self.table(table);
                let target = self.target(table, action);
                self.change(id, TableOp::SetDefault(Some(target)));
            }
            Command::Packet { port, bytes } => {
                let reference = Reference {
                    program: &self.program,
                    forwarding: &self.forwarding,
                    externs: &self.externs,
                    calculations: &self.calculations,
                    config: ReferenceConfig::default(),
                };
                self.now_us += 1_000;
                let outcome = reference.process(self.now_us, *port, bytes, &mut |low, _| low);
                for (port, packet) in outcome.sent {
                    self.received.entry(port).or_default().push(packet);
                }
            }
            Command::MirroringAdd { session, port } => {
                let clone_session = CloneSession {
                    port: Some(*port),
                    ..CloneSession::default()
                };
                let op = ForwardingOp::CloneSession(*session, Some(clone_session));
                self.forwarding.apply(op).unwrap();
            }
            Command::GroupCreate { group } => {
                self.groups.insert(*group, Vec::new());
            }
            Command::NodeCreate { rid, ports } => self.nodes.push((*rid as u16, ports.clone())),
            Command::NodeAssociate { group, node } => {
                self.groups.get_mut(group).unwrap().push(*node as usize);
                self.set_groups();
            }
            Command::Expect { .. } | Command::Wait | Command::NoPacket => {}
            other => panic!("unexpected command in a test of p4c: {other:?}"),
        }
    }
}

fn run(json: &Path, stf: &Path) -> Result<(), String> {
    let program = load::load(&std::fs::read(json).unwrap()).map_err(|error| error.to_string())?;
    let test =
        Test::parse("test", &std::fs::read_to_string(stf).unwrap()).map_err(|error| error.to_string())?;
    let mut runner = Runner::new(program);
    for statement in &test.statements {
        runner.run(&statement.command);
    }
    Expectations::from_test(&test)
        .check(&runner.received)
        .map_err(|mismatches| {
            let lines = mismatches.iter().map(|mismatch| format!("\n  {mismatch}"));
            lines.collect()
        })
}

#[test]
fn every_p4c_test_passes() {
    let Some(directory) = std::env::var_os("LINEWARDEN_P4C_COMPILED") else {
        skip!("LINEWARDEN_P4C_COMPILED names no directory with compiled programs and their tests");
    };
    let mut programs: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| path.with_extension("stf").exists())
        .collect();
    programs.sort();
    let name_filter = std::env::var("LINEWARDEN_P4C_ONLY").ok();
    let mut failures = Vec::new();
    for json in &programs {
        let name = json.file_stem().unwrap().to_string_lossy();
        if name_filter.as_deref().is_some_and(|part| !name.contains(part)) {
            continue;
        }
        if let Err(error) = run(json, &json.with_extension("stf")) {
            failures.push(format!("{name}: {error}"));
        }
    }
    println!("{} programs, {} failed", programs.len(), failures.len());
    assert!(!programs.is_empty(), "the directory contains no programs");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
