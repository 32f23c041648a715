//! Packets between controller and switch, digests, clones and multicast.

use linewarden_p4runtime::client::StreamEvent;
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;

use crate::control::support::*;

#[test]
fn a_packet_is_sent_to_the_controller_and_returned() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let flow = controller.flow(1, "In.to_controller", &[5]);
    controller.write(&[insert(flow)]);
    let sent = frame(1, 0x1234, b"for the controller");
    fixture.send(3, &sent);
    let metadata = vec![bits(9, 3), bits(7, 5)];
    let payload = sent.clone();
    assert_eq!(
        controller.next_event(),
        StreamEvent::PacketIn { metadata, payload }
    );
    // The worker can sleep between two packets, so each packet must wake the worker.
    for port in [2, 0, 2] {
        controller.packet_out(port, &sent);
        assert_eq!(fixture.receive(port.into()), sent);
    }
}

#[test]
fn switch_without_a_program_drops_packets() {
    let fixture = SwitchFixture::start();
    let mut controller = fixture.controller();
    let result = controller.try_set(&linewarden_p4runtime::target::Pipeline {
        device_config: b"no program"[..].into(),
        ..packets()
    });
    let Err(ClientError::Rejected(status)) = result else {
        panic!("{result:?}");
    };
    assert_eq!(status.code(), Code::InvalidArgument);
    fixture.send(0, &frame(1, 0, b"dropped"));
    assert!(fixture.is_silent());
}

#[test]
fn multicast_group_sends_each_replica() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let replica = |number, instance| Replica {
        port: port(number),
        instance,
        backups: Vec::new(),
    };
    let mut group = MulticastGroup {
        id: 9.into(),
        replicas: vec![replica(1, 1), replica(2, 7), replica(2, 8)],
        metadata: b"mine".to_vec(),
    };
    let flow = controller.flow(0xffff_ffff_ffff, "In.to_group", &[9]);
    controller.write(&[
        insert(flow),
        Update::MulticastGroup(Change::Insert(group.clone())),
    ]);
    let read = controller.read(Read::MulticastGroups(None));
    assert_eq!(read, [Entity::MulticastGroup(group.clone())]);
    let sent = frame(0xffff_ffff_ffff, 0x1234, b"for all");
    fixture.send(0, &sent);
    for port in [1, 2, 2] {
        assert_eq!(fixture.receive(port), sent);
    }
    group.replicas.remove(0);
    controller.write(&[Update::MulticastGroup(Change::Modify(group.clone()))]);
    fixture.send(0, &sent);
    for port in [2, 2] {
        assert_eq!(fixture.receive(port), sent);
    }
    assert!(fixture.is_silent());
    for (invalid_replica, code) in [
        (replica(512, 0), Code::InvalidArgument),
        (replica(1, 65_536), Code::InvalidArgument),
        (
            Replica {
                backups: vec![(2, 2)],
                ..replica(1, 1)
            },
            Code::Unimplemented,
        ),
    ] {
        let replicas = vec![invalid_replica];
        let update = Update::MulticastGroup(Change::Modify(MulticastGroup {
            replicas,
            ..group.clone()
        }));
        assert_eq!(controller.expect_write_error(update).code, code);
    }
    let group_with_large_id = MulticastGroup {
        id: 65_536.into(),
        ..group
    };
    let update = Update::MulticastGroup(Change::Insert(group_with_large_id));
    assert_eq!(controller.expect_write_error(update).code, Code::InvalidArgument);
}

#[test]
fn packets_are_cloned_until_their_clone_session_is_deleted() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let replica = |number, instance| Replica {
        port: port(number),
        instance,
        backups: Vec::new(),
    };
    let mut session = CloneSession {
        id: 100.into(),
        replicas: vec![replica(CPU.into(), 0)],
        class_of_service: 0,
        packet_length_bytes: 20,
    };
    let flow = controller.flow(1, "In.copy", &[2, 100]);
    controller.write(&[
        insert(flow),
        Update::CloneSession(Change::Insert(session.clone())),
    ]);
    let sent = frame(1, 0x1234, b"twice, and the second time cut off");
    fixture.send(0, &sent);
    assert_eq!(fixture.receive(2), sent);
    // `packet_length_bytes` includes the 2 bytes of the packet-in header.
    let StreamEvent::PacketIn { payload, .. } = controller.next_event() else {
        panic!("no packet");
    };
    assert_eq!(payload, sent[..18]);
    (session.replicas, session.packet_length_bytes) = (vec![replica(1, 3), replica(3, 4)], 0);
    controller.write(&[Update::CloneSession(Change::Modify(session.clone()))]);
    let read = controller.read(Read::CloneSessions(None));
    assert_eq!(read, [Entity::CloneSession(session.clone())]);
    fixture.send(0, &sent);
    for port in [1, 2, 3] {
        assert_eq!(fixture.receive(port), sent);
    }
    controller.write(&[Update::CloneSession(Change::Delete(session.id))]);
    fixture.send(0, &sent);
    assert_eq!(fixture.receive(2), sent);
    assert!(fixture.is_silent());
}

#[test]
fn digests_are_sent_once_until_acknowledged() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let id = controller.info().digests().by_name_or_alias("seen_t").unwrap().id;
    let digest = Digest {
        id,
        config: DigestConfig {
            max_timeout_ns: 0,
            max_list_size: 1,
            ack_timeout_ns: 1_000_000_000_000,
        },
    };
    let flow = controller.flow(1, "In.learn", &[2]);
    controller.write(&[insert(flow), Update::Digest(Change::Insert(digest))]);
    assert_eq!(controller.read(Read::Digests(None)), [Entity::Digest(digest)]);
    fixture.send(0, &frame(1, 0x1234, b"from 0"));
    fixture.send(0, &frame(1, 0x1234, b"from 0 again"));
    fixture.send(3, &frame(1, 0x1234, b"from 3"));
    let mut ports = Vec::new();
    for _ in 0..2 {
        let StreamEvent::Digest(list) = controller.next_event() else {
            panic!("no digest");
        };
        let [Data::Struct(members)] = &list.data[..] else {
            panic!("{list:?}");
        };
        assert_eq!(members[0], Data::Bits(bits(48, 0xaa)));
        assert_eq!(members[2], Data::Bool(false));
        ports.push(members[1].clone());
    }
    ports.sort();
    assert_eq!(ports, [0, 3].map(|port| Data::Bits(bits(9, port))));
}

#[test]
fn value_set_determines_accepted_packets() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    let id = controller
        .info()
        .value_sets()
        .by_name_or_alias("Parse.tunnel_types")
        .unwrap()
        .id;
    let set = |types: &[u128]| Update::ValueSet {
        id,
        members: types.iter().map(|value| vec![exact(16, *value)]).collect(),
    };
    // An IPv4 packet without a route is sent to port 0; other packets follow the default action.
    let default = DefaultEntry {
        table: controller.table("In.everywhere"),
        action: Some(controller.action("In.forward", &[3])),
        controller_metadata: 0,
        metadata: Vec::new(),
        resources: DirectResources::default(),
        is_const: false,
    };
    controller.write(&[Update::DefaultEntry(Box::new(default))]);
    let mut sent = ipv4([1, 1, 1, 1], [2, 2, 2, 2], 17);
    sent[12..14].copy_from_slice(&[0x11, 0x22]);
    fixture.send(1, &sent);
    assert_eq!(fixture.receive(3), sent);
    controller.write(&[set(&[0x3344, 0x1122])]);
    let read = controller.read(Read::ValueSets(None));
    let members = [0x1122, 0x3344].map(|value| vec![exact(16, value)]).to_vec();
    assert_eq!(read, [Entity::ValueSet { id, members }]);
    fixture.send(1, &sent);
    assert_eq!(fixture.receive(0), sent);
    controller.write(&[set(&[])]);
    fixture.send(1, &sent);
    assert_eq!(fixture.receive(3), sent);
    let error = controller.expect_write_error(set(&[1, 2, 3, 4, 5]));
    assert_eq!(error.code, Code::ResourceExhausted);
}

#[test]
fn stopped_server_ends_its_streams() {
    let (mut fixture, mut controller) = SwitchFixture::with(&packets());
    fixture.stop_server();
    let result = fixture.runtime.block_on(controller.events.next());
    let Err(ClientError::Rejected(status)) = result else {
        panic!("{result:?}");
    };
    assert_eq!(status.code(), Code::Unavailable);
}
