//! Entries of every match kind: controllers write and read them, packets hit them.

use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;

use crate::control::support::*;

/// Entry of table `acl` for packets from port 1, with masked source address, protocol and priority.
fn acl(
    controller: &Controller,
    (src, mask): (u128, u128),
    protocol: Option<u128>,
    priority: i32,
    action: &str,
) -> TableEntry {
    let fields = vec![
        FieldMatch::Ternary {
            value: bits(32, src),
            mask: bits(32, mask),
        },
        FieldMatch::Optional(protocol.map(|protocol| bits(8, protocol))),
        FieldMatch::Range {
            low: bits(16, 20),
            high: bits(16, 1500),
        },
        exact(9, 1),
    ];
    let mut entry = controller.entry(
        "In.acl",
        fields,
        EntryAction::Action(controller.action(action, &[])),
    );
    entry.key.priority = priority;
    entry.resources.counter = Some(CounterData::default());
    entry
}

fn route(controller: &Controller, dst: u128, prefix_bits: u32, action: EntryAction) -> TableEntry {
    let fields = vec![
        exact(12, 10),
        FieldMatch::Lpm {
            value: bits(32, dst),
            prefix_bits,
        },
    ];
    controller.entry("In.routes", fields, action)
}

/// Routes everything in 10/8 to a port.
fn route_all(controller: &mut Controller, port: u128) {
    let profile = controller
        .info()
        .profiles()
        .by_name_or_alias("In.next_hops")
        .unwrap()
        .id;
    let action = controller.action("In.route", &[0xcc, port]);
    let member = Member {
        profile,
        id: 1.into(),
        action,
    };
    let entry = route(controller, 0x0a00_0000, 8, EntryAction::Member(1.into()));
    controller.write(&[Update::Member(Change::Insert(member)), insert(entry)]);
}

/// Without a route, permitted packets are sent to port 0.
#[test]
fn the_highest_priority_wins() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    let deny = acl(&controller, (0x0a00_0000, 0xff00_0000), None, 10, "In.deny");
    let permit = acl(&controller, (0x0a01_0000, 0xffff_0000), Some(17), 20, "In.permit");
    controller.write(&[insert(deny.clone()), insert(permit.clone())]);
    assert_eq!(controller.entries("In.acl"), [deny.clone(), permit.clone()]);

    let denied = ipv4([10, 1, 0, 1], [10, 9, 9, 9], 6);
    let permitted = ipv4([10, 1, 0, 1], [10, 9, 9, 9], 17);
    let unknown = ipv4([11, 1, 0, 1], [10, 9, 9, 9], 6);
    for frame in [&denied, &permitted, &unknown] {
        fixture.send(1, frame);
    }
    assert_eq!(fixture.receive(0), permitted);
    assert_eq!(fixture.receive(0), unknown);
    // With swapped priorities the catch-all entry wins.
    let (mut deny, mut permit) = (deny, permit);
    controller.write(&[delete(&deny), delete(&permit)]);
    (deny.key.priority, permit.key.priority) = (20, 10);
    controller.write(&[insert(deny), insert(permit)]);
    for frame in [&denied, &permitted, &unknown] {
        fixture.send(1, frame);
    }
    assert_eq!(fixture.receive(0), unknown);
    let hits: Vec<_> = controller
        .entries("In.acl")
        .iter()
        .map(|entry| (entry.key.priority, entry.resources.counter.unwrap().packets))
        .collect();
    assert_eq!(hits, [(20, 2), (10, 0)]);
}

#[test]
fn the_longest_prefix_wins() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    route_all(&mut controller, 1);
    let profile = controller
        .info()
        .profiles()
        .by_name_or_alias("In.next_hops")
        .unwrap()
        .id;
    let action = controller.action("In.route", &[0xdd, 2]);
    let member = Member {
        profile,
        id: 2.into(),
        action,
    };
    let longer = route(&controller, 0x0a01_0200, 23, EntryAction::Member(2.into()));
    controller.write(&[Update::Member(Change::Insert(member)), insert(longer.clone())]);
    fixture.send(1, &ipv4([1, 1, 1, 1], [10, 1, 3, 9], 17));
    fixture.send(1, &ipv4([1, 1, 1, 1], [10, 1, 4, 9], 17));
    assert_eq!(fixture.receive(2)[5], 0xdd);
    assert_eq!(fixture.receive(1)[5], 0xcc);
    assert_eq!(
        controller.expect_write_error(insert(longer.clone())).code,
        Code::AlreadyExists
    );
    controller.write(&[delete(&longer)]);
    assert_eq!(
        controller.expect_write_error(delete(&longer)).code,
        Code::NotFound
    );
    assert_eq!(controller.expect_write_error(modify(longer)).code, Code::NotFound);
    fixture.send(1, &ipv4([1, 1, 1, 1], [10, 1, 3, 9], 17));
    assert_eq!(fixture.receive(1)[5], 0xcc);
}

#[test]
fn entries_of_the_program_are_readable_and_immutable() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let entries = controller.entries("In.vrf_of_port");
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry.is_const));
    let action = EntryAction::Action(controller.action("In.set_vrf", &[10]));
    assert_eq!(entries[0].key.fields, [exact(9, 1)]);
    assert_eq!(entries[0].action, Some(action));
    assert_eq!(
        controller.expect_write_error(delete(&entries[0])).code,
        Code::PermissionDenied
    );
}

#[test]
fn a_default_action_can_be_set_and_reset() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    let table = controller.table("In.everywhere");
    let initial = DefaultEntry {
        table,
        action: Some(controller.action("In.drop", &[])),
        controller_metadata: 0,
        metadata: Vec::new(),
        resources: DirectResources::default(),
        is_const: false,
    };
    let written = DefaultEntry {
        action: Some(controller.action("In.forward", &[3])),
        metadata: b"mine".to_vec(),
        ..initial.clone()
    };
    let read = |controller: &mut Controller| {
        controller.read(Read::DefaultEntries {
            table: Some(table),
            options: ReadOptions::default(),
        })
    };
    assert_eq!(
        read(&mut controller),
        [Entity::DefaultEntry(Box::new(initial.clone()))]
    );
    controller.write(&[Update::DefaultEntry(Box::new(written.clone()))]);
    assert_eq!(read(&mut controller), [Entity::DefaultEntry(Box::new(written))]);
    fixture.send(0, &frame(9, 0x1234, b"to the default"));
    assert_eq!(fixture.receive(3)[5], 9);
    let reset = DefaultEntry {
        action: None,
        ..initial.clone()
    };
    controller.write(&[Update::DefaultEntry(Box::new(reset))]);
    assert_eq!(read(&mut controller), [Entity::DefaultEntry(Box::new(initial))]);
}

#[test]
fn metadata_of_a_controller_is_read_as_written() {
    let (_fixture, mut controller) = SwitchFixture::with(&packets());
    let mut entry = controller.flow(1, "In.to_port", &[1]);
    entry.metadata = vec![0, 1, 2];
    entry.idle_timeout_ns = 1_000_000_000_001;
    entry.resources.counter = Some(CounterData { bytes: 7, packets: 1 });
    controller.write(&[insert(entry.clone())]);
    assert_eq!(controller.entries("In.flows"), [entry.clone()]);
    // A modification without action and counter data keeps the previous action and counter data.
    let mut modification = entry.clone();
    (
        modification.action,
        modification.metadata,
        modification.resources.counter,
    ) = (None, b"other".to_vec(), None);
    controller.write(&[modify(modification)]);
    entry.metadata = b"other".to_vec();
    assert_eq!(controller.entries("In.flows"), [entry.clone()]);
    // A new entry with the same index does not get the state of the deleted entry.
    let new_flow = controller.flow(1, "In.to_port", &[2]);
    controller.write(&[delete(&entry), insert(new_flow.clone())]);
    let read = controller.entries("In.flows");
    assert_eq!(read[0].metadata, b"");
    assert_eq!(read[0].idle_timeout_ns, 0);
    assert_eq!(read[0].resources.counter, Some(CounterData::default()));
}

#[test]
fn full_table_reports_resource_exhausted() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let forward = EntryAction::Action(controller.action("In.forward", &[1]));
    let entries: Vec<Update> = (0..5)
        .map(|dst| insert(controller.entry("In.mac", vec![exact(48, dst), exact(9, 0)], forward.clone())))
        .collect();
    let result = controller.try_write(&entries, Atomicity::ContinueOnError);
    let mut expected = vec![Code::Ok; 4];
    expected.push(Code::ResourceExhausted);
    assert_eq!(codes(result), expected);
}
