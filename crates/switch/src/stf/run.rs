//! Runner of packet tests in this process with a simulated clock.

mod entries;
mod error;
mod externs;
mod profiles;

use std::collections::{BTreeMap, HashMap};

use num_bigint::BigUint;

use self::entries::{field_match, profile_of};
use self::error::{CommandError, CommandResult, fail, number};
use super::names::{resolve_key, resolve_name};
use super::{
    ActionCall, AddEntry, Command, Expectations, KeyValue, Mismatch, Number, Statement, Target, Test,
};
use crate::engine::Sink;
use crate::exec::{Fault, RandomSource};
use crate::forwarding::{CloneSession, ForwardingChange, ForwardingOp, Replica};
use crate::program::Program;
use crate::program::action::Action;
use crate::program::ids::{ActionId, ValueSetId};
use crate::program::pipeline::ActionEntry;
use crate::serve::DigestMessage;
use crate::settings::Settings;
use crate::setup::action_call;
use crate::switch::{ProgramError, Switch, Worker};
use crate::tables::{
    EntryHandle, GroupHandle, HashSeed, MemberHandle, NewEntry, Priority, TableChange, TableId, TableOp,
    TableSetChange, TableSetOp, Target as TableTarget,
};

/// Failure of a test.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program cannot be installed.
    #[error("{0}")]
    Program(#[from] ProgramError),
    /// A command failed.
    #[error("line {line}: {problem}")]
    Command {
        /// Line.
        line: u32,
        /// Cause.
        problem: String,
    },
    /// Sent packets differ from the expected packets.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Packets(Vec<Mismatch>),
}

/// Runs a test.
///
/// # Errors
/// A command or an expectation failed.
pub fn run(json: &[u8], test: &Test) -> Result<(), RunError> {
    let mut runner = Runner::new(json)?;
    for statement in &test.statements {
        runner.execute(statement)?;
    }
    runner.check(test)
}

/// Deterministic source of random numbers: the same numbers in every run.
struct SequentialNumbers(u64);

impl RandomSource for SequentialNumbers {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        match (high - low).checked_add(1) {
            Some(span) => low + self.0 % span,
            None => self.0,
        }
    }
}

/// Recorded output.
#[derive(Default)]
pub(super) struct Output {
    pub(super) sent: BTreeMap<u32, Vec<Vec<u8>>>,
    pub(super) digests: Vec<DigestMessage>,
    /// Number of resubmitted and recirculated passes.
    pub(super) extra_passes: u32,
}

impl Sink for Output {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        self.sent
            .entry(port)
            .or_default()
            .push([headers, payload].concat());
    }

    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>) {
        self.digests.push((number, values));
    }

    fn fault(&mut self, _fault: Fault) {}

    fn dropped(&mut self) {}

    fn extra_pass(&mut self) {
        self.extra_passes += 1;
    }
}

pub(super) struct Runner {
    pub(super) switch: Switch,
    worker: Worker,
    pub(super) output: Output,
    random: SequentialNumbers,
    now_us: u64,
    /// Entries by name.
    entries: HashMap<String, (TableId, EntryHandle)>,
    /// Members by profile and number.
    members: HashMap<(u32, u32), MemberHandle>,
    groups: HashMap<(u32, u32), GroupHandle>,
    /// Multicast nodes: replication id and ports.
    nodes: Vec<(u16, Vec<u32>)>,
    /// The nodes of each multicast group.
    multicast: BTreeMap<u32, Vec<u32>>,
}

impl Runner {
    pub(super) fn new(json: &[u8]) -> Result<Self, RunError> {
        let switch = Switch::new(json, Settings::default(), &HashSeed::new([1, 2, 3, 4]))?;
        Ok(Self {
            worker: switch.worker(),
            switch,
            output: Output::default(),
            random: SequentialNumbers(0),
            now_us: 0,
            entries: HashMap::new(),
            members: HashMap::new(),
            groups: HashMap::new(),
            nodes: Vec::new(),
            multicast: BTreeMap::new(),
        })
    }

    pub(super) fn execute(&mut self, statement: &Statement) -> Result<(), RunError> {
        self.statement(statement).map_err(|problem| RunError::Command {
            line: statement.line,
            problem: problem.to_string(),
        })
    }

    pub(super) fn check(&self, test: &Test) -> Result<(), RunError> {
        Expectations::from_test(test)
            .check(&self.output.sent)
            .map_err(RunError::Packets)
    }

    fn program(&self) -> &Program {
        &self.switch.executable().program
    }

    fn statement(&mut self, statement: &Statement) -> CommandResult<()> {
        match &statement.command {
            Command::Add(entry) => self.add(entry),
            Command::SetDefault { table, action } => self.set_default(table, action),
            Command::RemoveAll => self.remove_all(),
            Command::Packet { port, bytes } => {
                self.now_us += 1;
                let (random, output) = (&mut self.random, &mut self.output);
                self.worker
                    .batch(self.now_us, |batch| batch.packet(*port, bytes, random, output));
                Ok(())
            }
            // The command `packet` processes a packet completely; sent packets are compared with the expected packets
            // at the end of the test.
            Command::Expect { .. } | Command::NoPacket | Command::Wait => Ok(()),
            Command::CheckCounter { counter, cell, check } => {
                self.check_counter(counter, cell, check.as_ref())
            }
            Command::MirroringAdd { session, port } => {
                let clone_session = CloneSession {
                    port: Some(*port),
                    ..CloneSession::default()
                };
                self.apply(ForwardingOp::CloneSession(*session, Some(clone_session)))
            }
            Command::MirroringAddGroup { session, group } => {
                let clone_session = CloneSession {
                    group: Some(*group),
                    ..CloneSession::default()
                };
                self.apply(ForwardingOp::CloneSession(*session, Some(clone_session)))
            }
            Command::MirroringDelete { session } => self.apply(ForwardingOp::CloneSession(*session, None)),
            Command::GroupCreate { group } => {
                self.multicast.insert(*group, Vec::new());
                self.publish_groups()
            }
            Command::NodeCreate { rid, ports } => {
                let rid = u16::try_from(*rid)
                    .map_err(|_| CommandError::Other(format!("replication id {rid} exceeds 16 bits")))?;
                self.nodes.push((rid, ports.clone()));
                Ok(())
            }
            Command::NodeUpdate { node, ports } => match self.nodes.get_mut(*node as usize) {
                Some((_, node_ports)) => {
                    node_ports.clone_from(ports);
                    self.publish_groups()
                }
                None => fail(format!("unknown node {node}")),
            },
            Command::NodeAssociate { group, node } => match self.multicast.get_mut(group) {
                Some(nodes) => {
                    nodes.push(*node);
                    self.publish_groups()
                }
                None => fail(format!("unknown multicast group {group}")),
            },
            // These commands only print, and the output is not used.
            Command::MirroringGet { .. }
            | Command::CounterRead { .. }
            | Command::RegisterRead { .. }
            | Command::MeterGetRates { .. } => Ok(()),
            Command::CounterWrite {
                counter,
                index,
                packets,
                bytes,
            } => {
                let id = self.counter(counter)?;
                match self.switch.externs().counter(id, *index) {
                    Some(cell) => {
                        cell.set(*packets, *bytes);
                        Ok(())
                    }
                    None => fail(format!("counter {counter} has no cell {index}")),
                }
            }
            Command::RegisterWrite {
                register,
                index,
                value,
            } => self.register_write(register, *index, value),
            Command::RegisterReset { register } => {
                let id = self.register(register)?;
                if let Some(mut array) = self.switch.externs().registers(id) {
                    array.reset();
                }
                Ok(())
            }
            Command::MeterSetRates { meter, index, rates } => self.set_rates(meter, *index, rates),
            Command::MeterArraySetRates { meter, rates } => {
                let id = self.meter(meter)?;
                for index in 0..self.switch.externs().meter_count(id) as u64 {
                    self.set_rates(meter, index, rates)?;
                }
                Ok(())
            }
            Command::ExpectDigest { digest, values } => self.expect_digest(digest, values),
            Command::NoDigest => match self.output.digests.is_empty() {
                true => Ok(()),
                false => fail(format!("unexpected digests: {:?}", self.output.digests)),
            },
            Command::ValueSetAdd { value_set, value } => self.value_set_add(value_set, value),
            Command::MemberAdd {
                profile,
                member,
                action,
            } => self.member_add(profile, *member, action),
            Command::GroupAdd { profile, group } => self.group_add(profile, *group),
            Command::GroupAddMember {
                profile,
                group,
                member,
            } => self.group_add_member(profile, *group, *member),
            Command::IdleTimeout { entry, timeout_us } => self.idle_timeout(entry, *timeout_us),
            Command::ExpectIdle { entry } => self.expect_idle(entry, true),
            Command::ExpectUsed { entry } => self.expect_idle(entry, false),
            Command::EntryRates { entry, rates } => self.entry_rates(entry, rates),
            Command::ExpectRegister {
                register,
                index,
                value,
            } => self.expect_register(register, *index, value),
            Command::AdvanceClock { by_us } => {
                self.now_us += by_us;
                Ok(())
            }
        }
    }

    fn apply(&mut self, op: ForwardingOp) -> CommandResult<()> {
        self.switch.change(op)?;
        Ok(())
    }

    /// Publishes the multicast groups as replicas of their nodes: nodes in the order of association, ports ascending.
    fn publish_groups(&mut self) -> CommandResult<()> {
        let groups: Vec<(u32, Vec<Replica>)> = self
            .multicast
            .iter()
            .map(|(group, nodes)| {
                let replicas = nodes
                    .iter()
                    .filter_map(|node| self.nodes.get(*node as usize))
                    .flat_map(|(rid, ports)| {
                        let mut ports = ports.clone();
                        ports.sort_unstable();
                        ports.dedup();
                        ports
                            .into_iter()
                            .map(|port| Replica { rid: *rid, port })
                            .collect::<Vec<_>>()
                    });
                (*group, replicas.collect())
            })
            .collect();
        for (group, replicas) in groups {
            self.apply(ForwardingOp::Group(group, Some(replicas.into())))?;
        }
        Ok(())
    }

    fn table(&self, test_name: &str) -> CommandResult<TableId> {
        let tables = &self.program().tables;
        let name = resolve_name(test_name, tables.iter().map(|table| table.name.as_str()))?;
        let index = tables.iter().position(|table| table.name == name);
        number(index).map(TableId)
    }

    fn action_entry(&self, allowed: &[ActionId], call: &ActionCall) -> CommandResult<ActionEntry> {
        let program = self.program();
        let actions: Vec<(ActionId, &Action)> = allowed
            .iter()
            .filter_map(|id| Some((*id, program.actions.get(id.index())?)))
            .collect();
        let name = resolve_name(&call.name, actions.iter().map(|(_, action)| action.name.as_str()))?;
        let Some((id, action)) = actions.iter().find(|(_, action)| action.name == name) else {
            return fail(format!("unknown action {name}"));
        };
        if call.arguments.len() != action.params.len() {
            return fail(format!(
                "wrong number of arguments: action {name} has {} parameters",
                action.params.len()
            ));
        }
        let mut args = Vec::new();
        for param in &action.params {
            let argument = call.arguments.iter().find(|(name, _)| *name == param.name);
            let Some((_, value)) = argument else {
                return fail(format!(
                    "argument for parameter {} of action {name} is missing",
                    param.name
                ));
            };
            args.push(BigUint::from_bytes_be(&value.to_bytes(param.bits)?));
        }
        Ok(ActionEntry { action: *id, args })
    }

    fn add(&mut self, entry: &AddEntry) -> CommandResult<()> {
        let id = self.table(&entry.table)?;
        let table = self.program().tables.get(id.0 as usize).cloned();
        let Some(table) = table else {
            return fail("unknown table");
        };
        let mut matches = Vec::new();
        let names: Vec<&str> = table.key.iter().map(|field| field.name.as_str()).collect();
        let mut values: HashMap<&str, &KeyValue> = HashMap::new();
        for key in &entry.keys {
            let name = resolve_key(&key.name, names.iter().copied())?;
            if values.insert(name, &key.value).is_some() {
                return fail(format!("duplicate key {name}"));
            }
        }
        for field in &table.key {
            matches.push(field_match(field, values.get(field.name.as_str()).copied())?);
        }
        let target = match &entry.target {
            Target::Action(call) => {
                let call = self.action_entry(&table.actions, call)?;
                TableTarget::Action(action_call(self.program(), &call))
            }
            Target::Member(member) => {
                TableTarget::Member(self.handle_of(&self.members, profile_of(&table)?, *member)?)
            }
            Target::Group(group) => {
                TableTarget::Group(self.handle_of(&self.groups, profile_of(&table)?, *group)?)
            }
        };
        let key = {
            let forwarding = self.switch.forwarding();
            let Some(spec) = forwarding.tables().table(id).map(|table| &table.spec().key) else {
                return fail("unknown table");
            };
            let priority = match (spec.has_priority(), entry.bmv2_priority()) {
                (true, Some(priority)) => Priority(i32::try_from(priority).unwrap_or(i32::MAX)),
                _ => Priority::default(),
            };
            spec.key(&matches, priority)?
        };
        let new_entry = NewEntry {
            key,
            target,
            state: None,
            constant: false,
        };
        let change = self.switch.change(ForwardingOp::Tables(TableSetOp::Table(
            id,
            TableOp::Insert(new_entry),
        )))?;
        if let (
            Some(name),
            ForwardingChange::Tables(TableSetChange::Table(_, TableChange::Inserted(installed_entry))),
        ) = (&entry.entry_name, change)
        {
            self.entries.insert(name.clone(), (id, installed_entry.handle()));
        }
        Ok(())
    }

    fn handle_of<T: Copy>(
        &self,
        handles: &HashMap<(u32, u32), T>,
        profile: u32,
        number: u32,
    ) -> CommandResult<T> {
        let handle = handles.get(&(profile, number)).copied();
        handle.ok_or_else(|| CommandError::Other(format!("unknown member or group {number}")))
    }

    fn set_default(&mut self, table: &str, action: &ActionCall) -> CommandResult<()> {
        let id = self.table(table)?;
        let actions = self
            .program()
            .tables
            .get(id.0 as usize)
            .map(|table| table.actions.clone())
            .unwrap_or_default();
        let entry = self.action_entry(&actions, action)?;
        let target = TableTarget::Action(action_call(self.program(), &entry));
        self.apply(ForwardingOp::Tables(TableSetOp::Table(
            id,
            TableOp::SetDefault(Some(target)),
        )))
    }

    fn remove_all(&mut self) -> CommandResult<()> {
        let handles: Vec<(TableId, EntryHandle)> = {
            let forwarding = self.switch.forwarding();
            let tables = forwarding.tables().tables();
            tables
                .flat_map(|(id, table)| {
                    table
                        .iter()
                        .filter(|entry| !entry.is_constant())
                        .map(move |entry| (id, entry.handle()))
                })
                .collect()
        };
        for (id, handle) in handles {
            self.apply(ForwardingOp::Tables(TableSetOp::Table(
                id,
                TableOp::Delete(handle),
            )))?;
        }
        Ok(())
    }

    fn expect_digest(&mut self, digest: &str, values: &[Number]) -> CommandResult<()> {
        let program = self.program();
        let name = resolve_name(digest, program.digests.iter().map(|digest| digest.name.as_str()))?;
        let Some(definition) = program.digests.iter().find(|digest| digest.name == name) else {
            return fail(format!("unknown digest {name}"));
        };
        let mut expected = Vec::new();
        for (field, value) in definition.fields.iter().zip(values) {
            expected.push(value.to_bytes(program.bits(*field))?);
        }
        let expected = (definition.json_id, expected);
        match self
            .output
            .digests
            .iter()
            .position(|received| *received == expected)
        {
            Some(index) => {
                self.output.digests.remove(index);
                Ok(())
            }
            None => fail(format!(
                "digest {name} with these values not found: emitted digests are {:?}",
                self.output.digests
            )),
        }
    }

    fn value_set_add(&mut self, value_set: &str, value: &KeyValue) -> CommandResult<()> {
        let program = self.program();
        let name = resolve_name(value_set, program.value_sets.iter().map(|set| set.name.as_str()))?;
        let index = number(program.value_sets.iter().position(|set| set.name == name))?;
        let bits = program.value_sets.get(index as usize).map_or(0, |set| set.bits);
        let member = value.exact(bits)?;
        let id = ValueSetId(index);
        let mut members = self
            .switch
            .forwarding()
            .value_set(id)
            .map(|members| (**members).clone())
            .unwrap_or_default();
        members.insert(member);
        self.apply(ForwardingOp::ValueSet(id, members.into()))
    }
}
