//! `AF_XDP` ports.

use std::net::{IpAddr, UdpSocket};

use linewarden_switch::ports::packet::{self, PacketOptions};
use linewarden_switch::ports::xdp::{self, XdpOptions};
use linewarden_switch::ports::{Port, PortError, PortSet, PortSetError};

use crate::ports::net::{Forwarder, Namespace, id, link};
use crate::ports::packet::{Hosts, LONG, content, echo, frame, next_frames, number_of, until};

fn open(namespace: &Namespace, interface: &str, ring_frames: u32) -> Port {
    let options = XdpOptions {
        ring_frames,
        ..XdpOptions::default()
    };
    namespace.run(|| xdp::open(interface, &options)).unwrap()
}

/// Both ends of a link, open as ports, and their namespaces. The kernel sends nothing on the link.
fn pair() -> (Namespace, Namespace, Port, Port) {
    let (first, second) = (Namespace::new(), Namespace::new());
    for namespace in [&first, &second] {
        namespace.shell("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    }
    link((&first, "a"), (&second, "b"));
    let ports = (open(&first, "a", 256), open(&second, "b", 256));
    (first, second, ports.0, ports.1)
}

/// Both network stacks leave checksums to hardware, which a veth does not have.
#[test]
fn tcp_streams_with_partial_checksums_pass() {
    let hosts = Hosts::new();
    assert!(
        hosts
            .client
            .shell("ethtool -k c0")
            .contains("tx-checksumming: on")
    );
    let ports = ["p0", "p1"].map(|interface| open(&hosts.switch, interface, 4096));
    let forwarder = Forwarder::start(ports, |_, _| {});
    for server in ["10.0.0.2", "fd00::2"] {
        echo(&hosts, server.parse().unwrap(), 1 << 20);
    }
    for counters in forwarder.stop() {
        assert!(counters.rx.checksums_completed > 0, "{counters:?}");
        let tx = counters.tx;
        assert_eq!(
            tx.dropped_long + tx.dropped_short + tx.dropped_down,
            0,
            "{counters:?}"
        );
    }
}

#[test]
fn datagrams_arrive_with_correct_checksums() {
    let hosts = Hosts::new();
    let ports = ["p0", "p1"].map(|interface| open(&hosts.switch, interface, 256));
    let forwarder = Forwarder::start(ports, |_, _| {});
    for (server, client) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let (server, client): (IpAddr, IpAddr) = (server.parse().unwrap(), client.parse().unwrap());
        let receiver = hosts.server.run(|| UdpSocket::bind((server, 9)).unwrap());
        receiver.set_read_timeout(Some(LONG)).unwrap();
        let sender = hosts.client.run(|| UdpSocket::bind((client, 0)).unwrap());
        let mut buffer = [0; 2000];
        for bytes in [0, 1, 18, 1000, 1001] {
            let sent = content(bytes);
            assert_eq!(sender.send_to(&sent, (server, 9)).unwrap(), bytes);
            // The receiving stack drops a datagram whose checksum is wrong.
            let length = receiver.recv(&mut buffer).unwrap();
            assert!(buffer[..length] == sent);
        }
    }
    let [client, _] = forwarder.stop();
    assert!(client.rx.checksums_completed >= 10, "{client:?}");
}

/// A packet socket sends a tagged datagram with a partial checksum; the tag is part of the frame data.
#[test]
fn tagged_frame_keeps_tag_and_gets_checksum() {
    let (first, second) = (Namespace::new(), Namespace::new());
    for namespace in [&first, &second] {
        namespace.shell("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    }
    link((&first, "a"), (&second, "b"));
    let mut sender = first
        .run(|| packet::open("a", &PacketOptions::default()))
        .unwrap()
        .sender;
    let mut receiver = open(&second, "b", 64);
    for tags in [vec![0x81, 0, 0x20, 7], vec![0x88, 0xa8, 0, 9, 0x81, 0, 0, 8]] {
        let mut full_frame = frame(0, 12);
        full_frame.truncate(12);
        full_frame.extend(&tags);
        full_frame.extend([
            8, 0, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        // UDP ports 7 and 9. The sender has added up only 0a00 + 0001 + 0a00 + 0002 + 0011 + 000c = 1420 (hexadecimal).
        full_frame.extend([0, 7, 0, 9, 0, 12, 0x14, 0x20, 1, 2, 3, 4]);
        sender.send(&full_frame, &[]).unwrap();
        sender.flush().unwrap();
        // 1420 + 0007 + 0009 + 000c + 0102 + 0304 = 1842, and e7bd is its complement.
        let checksum_offset = full_frame.len() - 6;
        full_frame[checksum_offset..checksum_offset + 2].copy_from_slice(&[0xe7, 0xbd]);
        let received = next_frames(&mut receiver);
        assert!(received == [full_frame], "tags {tags:x?}: {received:x?}");
    }
    assert_eq!(receiver.receiver.counters().checksums_completed, 2);
}

#[test]
fn frames_of_every_length_pass_unchanged_in_order() {
    let (_first, _second, a, mut b) = pair();
    let mut sender = a.sender;
    let lengths = || (18u32..=1518).chain([1518, 18]);
    for (number, length) in (0..).zip(lengths()) {
        let mut full_frame = frame(number, length as usize);
        if number % 3 == 0 {
            full_frame[12..14].copy_from_slice(&[0x81, 0]);
        }
        let (headers, payload) = full_frame.split_at(number as usize % 18);
        sender.send(headers, payload).unwrap();
        sender.flush().unwrap();
        let received = next_frames(&mut b);
        assert!(received == [full_frame], "frame {number} of {length} bytes");
    }
    sender.send(&frame(0, 1523), &[]).unwrap();
    sender.send(&[0; 13], &[]).unwrap();
    sender.flush().unwrap();
    let counters = sender.counters();
    assert_eq!((counters.dropped_long, counters.dropped_short), (1, 1));
    assert_eq!(counters.frames, lengths().count() as u64);
    assert_eq!(counters.bytes, lengths().map(u64::from).sum::<u64>());
}

#[test]
fn full_ring_counts_lost_frames() {
    let (_first, _second, a, mut b) = pair();
    let mut sender = a.sender;
    // Each burst fits into the link's queue of 256 frames, so the link loses no frame.
    for burst in 0..10 {
        for number in 0..100 {
            sender.send(&frame(burst * 100 + number, 64), &[]).unwrap();
        }
        sender.flush().unwrap();
        until(|| {
            let counters = b.receiver.counters();
            let sent_frames = u64::from(burst + 1) * 100;
            let arrived_frames = sent_frames.min(256) + counters.dropped_full;
            (arrived_frames == sent_frames).then_some(())
        });
    }
    assert_eq!(b.receiver.counters().dropped_full, 1000 - 256);
    let mut numbers = Vec::new();
    while b
        .receiver
        .receive(64, &mut |frame| numbers.push(number_of(frame)))
        .unwrap()
        > 0
    {}
    assert_eq!(numbers, (0..256).collect::<Vec<_>>());
    // Forwarding continues.
    sender.send(&frame(7777, 64), &[]).unwrap();
    sender.flush().unwrap();
    assert_eq!(number_of(&next_frames(&mut b)[0]), 7777);
}

#[test]
fn more_frames_than_slots_pass() {
    let (_first, _second, a, b) = pair();
    let mut sender = a.sender;
    let mut set = PortSet::new().unwrap();
    set.add(id(0), b).unwrap();
    let mut next_number = 0;
    for number in 0..50_000u32 {
        sender.send(&frame(number, 100), &[]).unwrap();
        if number % 64 == 63 || number == 49_999 {
            sender.flush().unwrap();
            while next_number <= number {
                set.serve(Some(LONG), |_, frame, _| {
                    assert_eq!(number_of(frame), next_number);
                    next_number += 1;
                })
                .unwrap();
            }
        }
    }
    let counters = sender.counters();
    assert_eq!((counters.frames, counters.dropped_full), (50_000, 0));
}

#[test]
fn closing_the_port_returns_interface_to_kernel() {
    let (first, _second, a, b) = pair();
    assert!(first.shell("ip link show dev a").contains("prog/xdp"));
    let error = first.run(|| xdp::open("a", &XdpOptions::default())).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("bind failed on interface a: Device or resource busy"),
        "{error}"
    );
    drop((a, b));
    assert!(!first.shell("ip link show dev a").contains("prog/xdp"));
    drop(open(&first, "a", 64));
}

#[test]
fn removed_interface_is_lost() {
    let (first, second, a, b) = pair();
    let mut sender = a.sender;
    let mut set = PortSet::new().unwrap().with_spin_rounds(0);
    set.add(id(3), b).unwrap();
    first.shell("ip link set dev a down");
    for number in 0..2000 {
        sender.send(&frame(number, 64), &[]).unwrap();
    }
    sender.flush().unwrap();
    assert!(sender.counters().dropped_down > 0, "{:?}", sender.counters());
    second.shell("ip link del dev b");
    let error = until(|| set.serve(Some(LONG), |_, _, _| {}).err());
    assert!(
        matches!(&error, PortSetError::PortFailed { port, source: PortError::NoInterface { interface, .. } }
            if *port == id(3) && interface == "b"),
        "{error}"
    );
}

#[test]
fn multiple_queues_are_rejected() {
    let namespace = Namespace::new();
    namespace.shell("ip link add name a numrxqueues 2 numtxqueues 2 type veth peer name b");
    namespace.shell("ethtool -L a rx 2");
    let error = namespace
        .run(|| xdp::open("a", &XdpOptions::default()))
        .unwrap_err();
    assert!(matches!(&error, PortError::Queues { queues: 2, .. }), "{error}");
}

#[test]
fn jumbo_frames_are_rejected() {
    let namespace = Namespace::new();
    namespace.shell("ip link add name a mtu 9000 type veth peer name b");
    let error = namespace
        .run(|| xdp::open("a", &XdpOptions::default()))
        .unwrap_err();
    let expected = "interface a has an MTU of 9000 bytes: the maximum of an XDP port is 3818";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn zero_copy_can_be_required() {
    let namespace = Namespace::new();
    namespace.shell("ip link add name a type veth peer name b");
    let options = XdpOptions {
        only_zero_copy: true,
        ..XdpOptions::default()
    };
    let error = namespace.run(|| xdp::open("a", &options)).unwrap_err();
    assert!(
        error.to_string().starts_with("bind failed on interface a: "),
        "{error}"
    );
}
