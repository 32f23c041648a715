//! Members, groups and one-shot entries, and their effect on packets.

use std::collections::BTreeMap;
use std::slice::from_ref;

use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::ids::ProfileId;

use crate::control::support::*;

fn selector(controller: &Controller) -> ProfileId {
    controller
        .info()
        .profiles()
        .by_name_or_alias("In.next_hops")
        .unwrap()
        .id
}

fn member(controller: &Controller, id: u32, port: u128) -> Member {
    Member {
        profile: selector(controller),
        id: id.into(),
        action: controller.action("In.route", &[u128::from(id), port]),
    }
}

fn group(controller: &Controller, members: &[(u32, u32)]) -> Group {
    let member = |(id, weight): &(u32, u32)| GroupMember {
        id: (*id).into(),
        weight: *weight,
        watch_port: None,
    };
    Group {
        profile: selector(controller),
        id: 7.into(),
        members: members.iter().map(member).collect(),
        max_size: 0,
    }
}

/// Route for all packets from port 1, whose VRF is 10.
fn route(controller: &Controller, action: EntryAction) -> TableEntry {
    let any_destination = FieldMatch::Lpm {
        value: bits(32, 0),
        prefix_bits: 0,
    };
    controller.entry("In.routes", vec![exact(12, 10), any_destination], action)
}

/// Sends 400 packets of different flows, and returns how many of them leave each port.
fn spread(fixture: &SwitchFixture) -> BTreeMap<usize, usize> {
    let mut by_port = BTreeMap::new();
    for flow in 0..400u16 {
        let [high, low] = flow.to_be_bytes();
        fixture.send(1, &ipv4([10, 0, high, low], [10, 1, low, high], 17));
    }
    let mut remaining = 400;
    let start = std::time::Instant::now();
    while remaining > 0 && start.elapsed() < LONG {
        for port in 1..4 {
            while fixture.try_receive(port) {
                *by_port.entry(port).or_default() += 1;
                remaining -= 1;
            }
        }
        std::thread::yield_now();
    }
    by_port
}

#[test]
fn a_group_spreads_flows_by_weight() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    let members = [member(&controller, 1, 1), member(&controller, 2, 2)];
    let group = group(&controller, &[(2, 3), (1, 1)]);
    let entry = route(&controller, EntryAction::Group(7.into()));
    controller.write(&[
        Update::Member(Change::Insert(members[0].clone())),
        Update::Member(Change::Insert(members[1].clone())),
        Update::Group(Change::Insert(group.clone())),
        insert(entry.clone()),
    ]);
    let (profile, any_group) = (Some(selector(&controller)), None);
    let read = controller.read(Read::Groups {
        profile,
        group: any_group,
    });
    assert_eq!(read, [Entity::Group(group)]);
    let read = controller.read(Read::Members {
        profile,
        member: None,
    });
    assert_eq!(read, members.map(Entity::Member));
    assert_eq!(controller.entries("In.routes"), [entry]);
    let by_port = spread(&fixture);
    assert_eq!(by_port.values().sum::<usize>(), 400);
    assert!(by_port[&2] > 2 * by_port[&1], "{by_port:?}");
}

#[test]
fn objects_in_use_cannot_be_deleted() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let only_member = member(&controller, 1, 1);
    let group_of_one = group(&controller, &[(1, 1)]);
    let entry = route(&controller, EntryAction::Group(7.into()));
    let (profile, id) = (only_member.profile, only_member.id);
    let delete_member = Update::Member(Change::Delete((profile, id)));
    let delete_group = Update::Group(Change::Delete((profile, group_of_one.id)));
    assert_eq!(
        controller.expect_write_error(insert(entry.clone())).code,
        Code::NotFound
    );
    assert_eq!(
        controller
            .expect_write_error(Update::Group(Change::Insert(group_of_one.clone())))
            .code,
        Code::NotFound
    );
    controller.write(&[
        Update::Member(Change::Insert(only_member.clone())),
        Update::Group(Change::Insert(group_of_one.clone())),
        insert(entry.clone()),
    ]);
    assert_eq!(
        controller
            .expect_write_error(Update::Member(Change::Insert(only_member)))
            .code,
        Code::AlreadyExists
    );
    for update in [&delete_member, &delete_group] {
        assert_eq!(
            controller.expect_write_error(update.clone()).code,
            Code::FailedPrecondition
        );
    }
    let member_with_watch_port = GroupMember {
        watch_port: Some(port(1)),
        ..group_of_one.members[0].clone()
    };
    let group_with_watch_port = Group {
        members: vec![member_with_watch_port],
        ..group_of_one
    };
    assert_eq!(
        controller
            .expect_write_error(Update::Group(Change::Modify(group_with_watch_port)))
            .code,
        Code::Unimplemented
    );
    controller.write(&[delete(&entry), delete_group, delete_member]);
}

#[test]
fn one_shot_entry_creates_and_deletes_its_group() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    let set = |controller: &Controller, ports: &[u128]| {
        let weighted = |port: &u128| WeightedAction {
            action: controller.action("In.route", &[0xee, *port]),
            weight: 2,
            watch_port: None,
        };
        EntryAction::OneShot(ActionSet {
            group_action: None,
            actions: ports.iter().map(weighted).collect(),
            mode: SelectionMode::Hash,
            size: SizeMode::SumOfWeights,
        })
    };
    let entry = route(&controller, set(&controller, &[1, 2, 3]));
    controller.write(&[insert(entry.clone())]);
    assert_eq!(controller.entries("In.routes"), from_ref(&entry));
    assert_eq!(spread(&fixture).keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    let new_member = member(&controller, 1, 1);
    let error = controller.expect_write_error(Update::Member(Change::Insert(new_member.clone())));
    assert_eq!(error.code, Code::InvalidArgument);
    let entry = route(&controller, set(&controller, &[2]));
    controller.write(&[modify(entry.clone())]);
    assert_eq!(controller.entries("In.routes"), from_ref(&entry));
    assert_eq!(spread(&fixture), BTreeMap::from([(2, 400)]));
    // A selector with 128 members must not leak capacity when such entries are added and deleted.
    for _ in 0..50 {
        controller.write(&[
            delete(&entry),
            insert(route(&controller, set(&controller, &[1, 2, 3]))),
        ]);
    }
    controller.write(&[delete(&entry), Update::Member(Change::Insert(new_member))]);
    let error = controller.expect_write_error(insert(entry));
    assert_eq!(error.code, Code::InvalidArgument);
}
