//! Batches with failing updates.

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;

use crate::control::support::*;

const RATE: MeterConfig = MeterConfig {
    committed_rate: 1,
    committed_burst: 2,
    peak_rate: 3,
    peak_burst: 4,
    excess_burst: 0,
};

/// One update of every kind, on the program with all features.
fn updates_of_every_kind(controller: &Controller) -> Vec<Update> {
    let info = controller.info();
    let profile = info.profiles().by_name_or_alias("In.ports").unwrap().id;
    let forward = |port| EntryAction::Action(controller.action("In.forward", &[port]));
    let one_shot = EntryAction::OneShot(ActionSet {
        group_action: None,
        actions: vec![WeightedAction {
            action: controller.action("In.route", &[1, 2]),
            weight: 1,
            watch_port: None,
        }],
        mode: SelectionMode::SelectorDefault,
        size: SizeMode::SelectorDefault,
    });
    let any_destination = FieldMatch::Lpm {
        value: bits(32, 0),
        prefix_bits: 0,
    };
    let mut entry_with_timeout = controller.entry("In.mac", vec![exact(48, 5), exact(9, 0)], forward(1));
    (entry_with_timeout.idle_timeout_ns, entry_with_timeout.metadata) = (5_000_000_000, b"noted".to_vec());
    let replica = Replica {
        port: port(1),
        instance: 1,
        backups: Vec::new(),
    };
    vec![
        insert(entry_with_timeout),
        insert(controller.entry("In.routes", vec![exact(12, 0), any_destination], one_shot)),
        Update::Member(Change::Insert(Member {
            profile,
            id: 1.into(),
            action: controller.action("In.forward", &[2]),
        })),
        insert(controller.entry("In.indirect", vec![exact(48, 6)], EntryAction::Member(1.into()))),
        Update::DefaultEntry(Box::new(DefaultEntry {
            table: controller.table("In.everywhere"),
            action: Some(controller.action("In.forward", &[3])),
            controller_metadata: 0,
            metadata: b"default".to_vec(),
            resources: DirectResources::default(),
            is_const: false,
        })),
        Update::MulticastGroup(Change::Insert(MulticastGroup {
            id: 1.into(),
            replicas: vec![replica.clone()],
            metadata: b"group".to_vec(),
        })),
        Update::CloneSession(Change::Insert(CloneSession {
            id: 1.into(),
            replicas: vec![replica],
            class_of_service: 0,
            packet_length_bytes: 64,
        })),
        Update::ValueSet {
            id: info
                .value_sets()
                .by_name_or_alias("Parse.tunnel_types")
                .unwrap()
                .id,
            members: vec![vec![exact(16, 0x1111)]],
        },
        Update::Digest(Change::Insert(Digest {
            id: info.digests().by_name_or_alias("learned_t").unwrap().id,
            config: DigestConfig::default(),
        })),
    ]
}

/// One update of every kind of cell.
fn updates_of_every_cell(controller: &Controller) -> Vec<Update> {
    let info = controller.info();
    vec![
        Update::Counter {
            id: info.counters().by_name_or_alias("In.seen_by_port").unwrap().id,
            index: None,
            data: Some(CounterData { bytes: 9, packets: 1 }),
        },
        Update::Meter {
            id: info.meters().by_name_or_alias("In.rate_by_port").unwrap().id,
            index: Some(2),
            config: Some(RATE),
            reset_counters: false,
        },
        Update::Register {
            id: info.registers().by_name_or_alias("In.last_seen").unwrap().id,
            index: Some(15),
            data: Data::Bits(bits(48, 0xffff_ffff_ffff)),
        },
    ]
}

fn failing_update(controller: &Controller) -> Update {
    let action = EntryAction::Member(99.into());
    insert(controller.entry("In.indirect", vec![exact(48, 7)], action))
}

#[test]
fn atomic_batch_makes_no_change_if_its_last_update_fails() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let before = controller.read_all();
    for (atomicity, with_cells) in [
        (Atomicity::RollbackOnError, true),
        (Atomicity::DataplaneAtomic, false),
    ] {
        let mut updates = updates_of_every_kind(&controller);
        if with_cells {
            updates.extend(updates_of_every_cell(&controller));
        }
        updates.push(failing_update(&controller));
        let mut expected = vec![Code::Aborted; updates.len()];
        *expected.last_mut().unwrap() = Code::NotFound;
        assert_eq!(codes(controller.try_write(&updates, atomicity)), expected);
        assert_eq!(controller.read_all(), before);
        // The same batch without its last update must succeed.
        updates.pop();
        controller.try_write(&updates, atomicity).unwrap();
        assert_ne!(controller.read_all(), before);
        controller.set(&everything());
        assert_eq!(controller.read_all(), before);
    }
}

#[test]
fn continue_on_error_batch_keeps_successful_updates() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let mut updates = Vec::new();
    for update in updates_of_every_kind(&controller)
        .into_iter()
        .chain(updates_of_every_cell(&controller))
    {
        updates.extend([update, failing_update(&controller)]);
    }
    let result = controller.try_write(&updates, Atomicity::ContinueOnError);
    let expected: Vec<Code> = (0..updates.len())
        .map(|index| if index % 2 == 0 { Code::Ok } else { Code::NotFound })
        .collect();
    assert_eq!(codes(result), expected);
    let after = controller.read_all();
    controller.set(&everything());
    let valid_updates: Vec<Update> = updates.into_iter().step_by(2).collect();
    controller.write(&valid_updates);
    assert_eq!(controller.read_all(), after);
}

#[test]
fn cells_are_rejected_in_data_plane_atomic_batches() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let before = controller.read_all();
    for cell in updates_of_every_cell(&controller).into_iter().skip(1) {
        let mut updates = updates_of_every_kind(&controller);
        updates.push(cell.clone());
        let result = controller.try_write(&updates, Atomicity::DataplaneAtomic);
        let Err(ClientError::Rejected(status)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(status.code(), Code::Unimplemented);
        assert_eq!(controller.read_all(), before);
        // A single cell write is atomic.
        controller.try_write(&[cell], Atomicity::DataplaneAtomic).unwrap();
        controller.set(&everything());
    }
}

#[test]
fn failed_update_is_rolled_back_completely() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let before = controller.read_all();
    let action = |port| WeightedAction {
        action: controller.action("In.route", &[1, port]),
        weight: 1,
        watch_port: None,
    };
    let mut watching = action(2);
    watching.watch_port = Some(port(2));
    let set = EntryAction::OneShot(ActionSet {
        group_action: None,
        actions: vec![action(1), watching],
        mode: SelectionMode::SelectorDefault,
        size: SizeMode::SelectorDefault,
    });
    let any_destination = FieldMatch::Lpm {
        value: bits(32, 0),
        prefix_bits: 0,
    };
    let entry = controller.entry("In.routes", vec![exact(12, 0), any_destination], set);
    // The number of attempts exceeds the capacity of the selector.
    for _ in 0..200 {
        assert_eq!(
            controller.expect_write_error(insert(entry.clone())).code,
            Code::Unimplemented
        );
    }
    assert_eq!(controller.read_all(), before);
}
