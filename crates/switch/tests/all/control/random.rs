//! Random batches: a batch has the same effect as its single updates; an atomic batch that fails has no effect.

use std::sync::Arc;

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::p4info::P4Info;
use linewarden_p4runtime::target::{Target, events};
use linewarden_switch::control::Control;
use linewarden_switch::switch::{Settings, Slot};
use proptest::prelude::*;

use crate::control::support::{Atomicity, bits, everything, exact, port};

/// Switch without packets and with a stopped clock.
fn control() -> Control {
    let (sender, _) = events(1);
    let control = Control::new(Slot::default(), Settings::default(), Box::new(|| 0), sender);
    control.save(&everything()).unwrap();
    control.commit().unwrap();
    control
}

/// All readable entities.
fn read(control: &Control, info: &P4Info) -> Vec<Entity> {
    let options = ReadOptions {
        counter: true,
        meter: true,
        ..ReadOptions::default()
    };
    let mut queries = vec![Query::MulticastGroups(None), Query::CloneSessions(None)];
    for table in info.tables().iter().map(|table| table.id) {
        let key = None;
        queries.extend([
            Query::Entries { table, key, options },
            Query::DefaultEntry { table, options },
        ]);
    }
    for profile in info.profiles().iter().map(|profile| profile.id) {
        let (member, group) = (None, None);
        queries.extend([
            Query::Members { profile, member },
            Query::Groups { profile, group },
        ]);
    }
    let (counters, index) = (false, None);
    queries.extend(info.counters().iter().map(|counter| Query::Counters {
        id: counter.id,
        index,
    }));
    queries.extend(info.registers().iter().map(|register| Query::Registers {
        id: register.id,
        index,
    }));
    queries.extend(info.meters().iter().map(|meter| Query::Meters {
        id: meter.id,
        index,
        counters,
    }));
    queries.extend(info.value_sets().iter().map(|set| Query::ValueSet(set.id)));
    queries.extend(info.digests().iter().map(|digest| Query::Digest(digest.id)));
    let mut entities = Vec::new();
    for query in &queries {
        control.read(query, &mut |entity| entities.push(entity)).unwrap();
    }
    entities
}

/// Generator of updates with few keys, so that updates collide.
struct UpdateGenerator(Arc<P4Info>);

impl UpdateGenerator {
    fn action(&self, name: &str, args: &[(u32, u128)]) -> Action {
        Action {
            id: self.0.actions().by_name_or_alias(name).unwrap().id,
            params: args.iter().map(|(width, value)| bits(*width, *value)).collect(),
        }
    }

    fn entry(&self, table: &str, fields: Vec<FieldMatch>, action: EntryAction, note: u8) -> TableEntry {
        let table = self.0.tables().by_name_or_alias(table).unwrap();
        let key = EntryKey {
            table: table.id,
            fields,
            priority: i32::from(table.needs_priority()),
        };
        let mut entry = TableEntry::new(key, action);
        entry.metadata = vec![note; usize::from(note % 2)];
        if table.idle_timeout {
            entry.idle_timeout_ns = u64::from(note) * 1_000_000;
        }
        entry
    }

    fn route_action(&self, choice: u8) -> EntryAction {
        let weighted = |port: u8| WeightedAction {
            action: self.action("In.route", &[(48, 1), (9, port.into())]),
            weight: u32::from(port) + 1,
            watch_port: (port == 3).then(|| self::port(1)),
        };
        match choice % 3 {
            0 => EntryAction::Member(u32::from(choice % 4 + 1).into()),
            1 => EntryAction::Group(u32::from(choice % 2 + 1).into()),
            _ => EntryAction::OneShot(ActionSet {
                group_action: None,
                actions: (0..=choice % 4).map(weighted).collect(),
                mode: SelectionMode::SelectorDefault,
                size: SizeMode::SelectorDefault,
            }),
        }
    }

    fn change<E, K>(operation: u8, entity: E, key: impl Fn(&E) -> K) -> Change<E, K> {
        match operation % 4 {
            0 | 1 => Change::Insert(entity),
            2 => Change::Modify(entity),
            _ => Change::Delete(key(&entity)),
        }
    }

    fn table_update(&self, kind: u8, (operation, choice): (u8, u8)) -> Update {
        let entry = match kind {
            0 => {
                let forward = self.action("In.forward", &[(9, choice.into())]);
                let fields = vec![exact(48, u128::from(choice % 6)), exact(9, 1)];
                self.entry("In.mac", fields, EntryAction::Action(forward), choice)
            }
            1 => {
                let prefix = FieldMatch::Lpm {
                    value: bits(32, u128::from(choice % 3) << 30),
                    prefix_bits: 2,
                };
                self.entry(
                    "In.routes",
                    vec![exact(12, 10), prefix],
                    self.route_action(choice),
                    0,
                )
            }
            _ => {
                let ternary = FieldMatch::Ternary {
                    value: bits(32, u128::from(choice % 3)),
                    mask: bits(32, 3),
                };
                let range = FieldMatch::Range {
                    low: bits(16, 0),
                    high: bits(16, 0xffff),
                };
                let fields = vec![ternary, FieldMatch::Optional(None), range, exact(9, 1)];
                let permit = EntryAction::Action(self.action("In.permit", &[]));
                let mut entry = self.entry("In.acl", fields, permit, choice);
                entry.resources.counter = (choice % 2 == 0).then(|| CounterData {
                    bytes: choice.into(),
                    packets: 1,
                });
                entry
            }
        };
        Update::TableEntry(Box::new(Self::change(operation, entry, |entry| {
            entry.key.clone()
        })))
    }

    fn update(&self, (kind, operation, choice): (u8, u8, u8)) -> Update {
        let info = &self.0;
        let profile = info.profiles().by_name_or_alias("In.next_hops").unwrap().id;
        let replica = |instance: u8| Replica {
            port: port(if instance == 7 { 600 } else { 1 }),
            instance: instance.into(),
            backups: Vec::new(),
        };
        match kind % 9 {
            kind @ 0..3 => self.table_update(kind, (operation, choice)),
            3 => {
                let member = Member {
                    profile,
                    id: u32::from(choice % 4 + 1).into(),
                    action: self.action("In.route", &[(48, choice.into()), (9, 2)]),
                };
                Update::Member(Self::change(operation, member, |member| {
                    (member.profile, member.id)
                }))
            }
            4 => {
                let member = |id: u8| GroupMember {
                    id: u32::from(id).into(),
                    weight: u32::from(id),
                    watch_port: None,
                };
                let group = Group {
                    profile,
                    id: u32::from(choice % 2 + 1).into(),
                    members: (1..=choice % 4).map(member).collect(),
                    max_size: 0,
                };
                Update::Group(Self::change(operation, group, |group| (group.profile, group.id)))
            }
            5 => {
                let group = MulticastGroup {
                    id: u32::from(choice % 2 + 1).into(),
                    replicas: (0..choice % 9).map(replica).collect(),
                    metadata: vec![choice],
                };
                Update::MulticastGroup(Self::change(operation, group, |group| group.id))
            }
            6 => {
                let session = CloneSession {
                    id: u32::from(choice % 2 + 1).into(),
                    replicas: (0..choice % 9).map(replica).collect(),
                    class_of_service: 0,
                    packet_length_bytes: choice.into(),
                };
                Update::CloneSession(Self::change(operation, session, |session| session.id))
            }
            7 => Update::Register {
                id: info.registers().by_name_or_alias("In.last_seen").unwrap().id,
                index: Some(choice.into()).filter(|_| operation % 2 == 0),
                data: Data::Bits(bits(48, choice.into())),
            },
            _ => Update::DirectCounter {
                entry: match self.table_update(2, (0, choice)) {
                    Update::TableEntry(change) => match *change {
                        Change::Insert(entry) => EntryRef::Entry(entry.key),
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                },
                data: Some(CounterData {
                    bytes: 5,
                    packets: operation.into(),
                }),
            },
        }
    }
}

/// Code of the result of an update.
fn code(result: &Result<(), linewarden_p4runtime::error::EntityError>) -> Code {
    result.as_ref().err().map_or(Code::Ok, |error| error.code)
}

proptest! {
    #[test]
    fn batch_equals_its_single_updates_or_makes_no_change(
        batches in prop::collection::vec(
            (any::<bool>(), prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..12)),
            1..12,
        )
    ) {
        let info = everything().info;
        let (batch, single) = (control(), control());
        let generator = UpdateGenerator(info.clone());
        for (all_or_none, numbers) in batches {
            let updates: Vec<Update> = numbers.into_iter().map(|numbers| generator.update(numbers)).collect();
            let before = read(&batch, &info);
            let atomicity = if all_or_none { Atomicity::RollbackOnError } else { Atomicity::ContinueOnError };
            let results = batch.write(&updates, atomicity).unwrap();
            prop_assert_eq!(results.len(), updates.len());
            if all_or_none && results.iter().any(Result::is_err) {
                prop_assert_eq!(read(&batch, &info), before);
                continue;
            }
            for (update, result) in updates.iter().zip(&results) {
                let single_result = single.write(std::slice::from_ref(update), Atomicity::ContinueOnError).unwrap();
                prop_assert_eq!(code(&single_result[0]), code(result), "{:?}: {:?}", update, result);
            }
            prop_assert_eq!(read(&batch, &info), read(&single, &info));
        }
    }
}
