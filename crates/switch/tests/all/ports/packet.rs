//! `AF_PACKET` ports, with the kernel's network stack at the far ends and all offloads on.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use linewarden_harness::{skip, skip_part};
use linewarden_switch::ports::packet::{self, PacketOptions};
use linewarden_switch::ports::{Port, PortError, PortId, PortSet, PortSetError};

use crate::ports::net::{Forwarder, Namespace, id, link};

/// Test timeout, long enough for any machine; only a failing test reaches it.
pub const LONG: Duration = Duration::from_secs(60);

fn small_ring() -> PacketOptions {
    PacketOptions {
        ring_bytes: 2 << 20,
        ..PacketOptions::default()
    }
}

fn open(namespace: &Namespace, interface: &str, options: PacketOptions) -> Port {
    namespace.run(|| packet::open(interface, &options)).unwrap()
}

/// client ── switch ── server, with IPv4 and IPv6 addresses, untagged and in VLAN 5.
pub struct Hosts {
    pub client: Namespace,
    pub switch: Namespace,
    pub server: Namespace,
    /// Whether the kernel has VLAN devices (`CONFIG_VLAN_8021Q`).
    vlan: bool,
}

impl Hosts {
    pub fn new() -> Self {
        let mut hosts = Self {
            client: Namespace::new(),
            switch: Namespace::new(),
            server: Namespace::new(),
            vlan: true,
        };
        link((&hosts.client, "c0"), (&hosts.switch, "p0"));
        link((&hosts.server, "s0"), (&hosts.switch, "p1"));
        for (namespace, interface, number) in [(&hosts.client, "c0", 1), (&hosts.server, "s0", 2)] {
            namespace.shell(&format!(
                "ip addr add 10.0.0.{number}/24 dev {interface}
                 ip addr add fd00::{number}/64 dev {interface} nodad"
            ));
            let vlan = namespace.shell(&format!(
                "if ip link add link {interface} name vlan5 type vlan id 5; then
                     ip link set dev vlan5 up
                     ip addr add 10.0.5.{number}/24 dev vlan5
                     echo made
                 fi"
            ));
            hosts.vlan &= !vlan.is_empty();
        }
        hosts
    }

    fn ports(&self) -> [Port; 2] {
        ["p0", "p1"].map(|interface| open(&self.switch, interface, small_ring()))
    }
}

/// Bytes without short repetitions.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Sends this number of bytes by TCP from the client to the server, which sends them back.
pub fn echo(hosts: &Hosts, server: IpAddr, bytes: usize) {
    let listener = hosts.server.run(|| TcpListener::bind((server, 7)).unwrap());
    let sent = content(bytes);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = vec![0; bytes];
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.read_exact(&mut received).unwrap();
            stream.write_all(&received).unwrap();
        });
        let address = SocketAddr::new(server, 7);
        let mut stream = hosts
            .client
            .run(|| TcpStream::connect_timeout(&address, LONG).unwrap());
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; bytes];
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent, "TCP has changed the data");
    });
}

/// Statistics about the frames that a forwarder receives.
#[derive(Default)]
struct ReceivedFrames {
    longest: usize,
    tagged: usize,
    untagged: usize,
}

fn record_frames(received_frames: &Arc<Mutex<ReceivedFrames>>) -> impl FnMut(PortId, &[u8]) + Send + use<> {
    let received_frames = received_frames.clone();
    move |_, frame| {
        let mut received_frames = received_frames.lock().unwrap();
        received_frames.longest = received_frames.longest.max(frame.len());
        if frame[12..14] == [0x81, 0] {
            assert_eq!(u16::from_be_bytes([frame[14], frame[15]]) & 0xfff, 5);
            received_frames.tagged += 1;
        } else {
            received_frames.untagged += 1;
        }
    }
}

#[test]
fn tcp_streams_pass_with_all_offloads_on() {
    let hosts = Hosts::new();
    let offloads = hosts.client.shell("ethtool -k c0");
    for offload in [
        "tx-checksumming: on",
        "tcp-segmentation-offload: on",
        "tx-vlan-offload: on",
    ] {
        assert!(offloads.contains(offload), "the test requires {offload}");
    }
    for (server, link_bytes) in [("10.0.0.2", 14), ("fd00::2", 14), ("10.0.5.2", 18)] {
        if link_bytes == 18 && !hosts.vlan {
            skip_part!("TCP in a VLAN: this kernel has no VLAN devices");
            continue;
        }
        let received_frames = Arc::new(Mutex::new(ReceivedFrames::default()));
        let forwarder = Forwarder::start(hosts.ports(), record_frames(&received_frames));
        echo(&hosts, server.parse().unwrap(), 4 << 20);
        let [client, server_side] = forwarder.stop();
        let received_frames = received_frames.lock().unwrap();
        for counters in [client, server_side] {
            assert!(
                counters.rx.segmented > 0,
                "{server}: no oversized frame was received: {counters:?}"
            );
            assert!(counters.rx.checksums_completed > 0, "{server}: {counters:?}");
            assert_eq!(
                counters.rx.dropped_offload + counters.rx.dropped_truncated,
                0,
                "{counters:?}"
            );
            assert_eq!(
                counters.tx.dropped_long + counters.tx.dropped_short,
                0,
                "{counters:?}"
            );
        }
        assert_eq!(received_frames.longest, 1500 + link_bytes, "{server}");
        // Multicast reports from the kernel may be untagged.
        assert_eq!(
            received_frames.tagged > received_frames.untagged,
            link_bytes == 18,
            "{server}"
        );
    }
}

#[test]
fn offloaded_segments_arrive_as_datagrams() {
    const UDP_SEGMENT: libc::c_int = 103;
    let hosts = Hosts::new();
    let forwarder = Forwarder::start(hosts.ports(), |_, _| {});
    for (server, client) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let (server, client): (IpAddr, IpAddr) = (server.parse().unwrap(), client.parse().unwrap());
        let receiver = hosts.server.run(|| UdpSocket::bind((server, 9)).unwrap());
        receiver.set_read_timeout(Some(LONG)).unwrap();
        let sender = hosts.client.run(|| UdpSocket::bind((client, 0)).unwrap());
        sender.connect((server, 9)).unwrap();
        let segment: libc::c_int = 1000;
        // SAFETY: the value outlives the call, and the size is that of the value.
        let result = unsafe {
            libc::setsockopt(
                sender.as_raw_fd(),
                libc::SOL_UDP,
                UDP_SEGMENT,
                (&raw const segment).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        let sent = content(20_500);
        assert_eq!(sender.send(&sent).unwrap(), sent.len());
        let mut buffer = [0; 2000];
        for part in sent.chunks(1000) {
            let length = receiver.recv(&mut buffer).unwrap();
            assert!(&buffer[..length] == part);
        }
    }
    let [client, _] = forwarder.stop();
    assert_eq!(client.rx.segmented, 2);
}

/// Both ends of a link, open as ports, and their namespaces. The kernel sends nothing on the link.
fn pair(options: PacketOptions) -> (Namespace, Namespace, Port, Port) {
    let (first, second) = (Namespace::new(), Namespace::new());
    for namespace in [&first, &second] {
        namespace.shell("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    }
    link((&first, "a"), (&second, "b"));
    let ports = (open(&first, "a", options), open(&second, "b", options));
    (first, second, ports.0, ports.1)
}

/// Ethernet frame with an unused EtherType.
pub fn frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.resize(bytes, number as u8);
    frame
}

/// Number of a frame that [`frame`] has created.
pub fn number_of(frame: &[u8]) -> u32 {
    assert_eq!(frame[12..14], [0x88, 0xb5], "no other sender on this link");
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

/// Polls until there is a result.
pub fn until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < LONG, "no result after {LONG:?}");
        thread::yield_now();
    }
}

pub fn next_frames(port: &mut Port) -> Vec<Vec<u8>> {
    until(|| {
        let mut received_frames = Vec::new();
        port.receiver
            .receive(64, &mut |frame| received_frames.push(frame.to_vec()))
            .unwrap();
        (!received_frames.is_empty()).then_some(received_frames)
    })
}

#[test]
fn frames_of_every_length_pass_unchanged_in_order() {
    let (_first, _second, a, mut b) = pair(small_ring());
    let mut sender = a.sender;
    let lengths = || (18u32..=1518).chain([1518, 18]);
    for (number, length) in (0..).zip(lengths()) {
        let full_frame = frame(number, length as usize);
        let (headers, payload) = full_frame.split_at(number as usize % 18);
        sender.send(headers, payload).unwrap();
        sender.flush().unwrap();
        let received_frames = next_frames(&mut b);
        assert!(
            received_frames == [full_frame],
            "frame {number} of {length} bytes"
        );
    }
    sender.send(&frame(0, 1519), &[]).unwrap();
    sender.send(&[0; 13], &[]).unwrap();
    sender.flush().unwrap();
    let counters = sender.counters();
    assert_eq!((counters.dropped_long, counters.dropped_short), (1, 1));
    assert_eq!(counters.frames, lengths().count() as u64);
    assert_eq!(counters.bytes, lengths().map(u64::from).sum::<u64>());
}

/// Frames at an MTU of 9,000 use slots of 16 KiB. Frames of 65,535 bytes are longer than a slot, and must pass as well.
#[test]
fn long_frames_pass() {
    for (mtu, longest) in [(9000, 9018), (65_535, 65_535)] {
        let (first, second) = (Namespace::new(), Namespace::new());
        for namespace in [&first, &second] {
            namespace.shell("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        }
        link((&first, "a"), (&second, "b"));
        first.shell(&format!("ip link set dev a mtu {mtu}"));
        second.shell(&format!("ip link set dev b mtu {mtu}"));
        let mut sender = open(&first, "a", small_ring()).sender;
        let mut receiver = open(&second, "b", small_ring());
        for number in 0..300 {
            let full_frame = frame(number, longest - number as usize % 20);
            sender.send(&full_frame, &[]).unwrap();
            sender.flush().unwrap();
            assert!(
                next_frames(&mut receiver) == [full_frame],
                "MTU {mtu}, frame {number}"
            );
        }
        assert_eq!(sender.counters().frames, 300);
    }
}

/// The receiving kernel removes the outermost VLAN tag before it delivers a frame.
#[test]
fn vlan_tags_are_preserved() {
    let (_first, _second, a, mut b) = pair(small_ring());
    let mut sender = a.sender;
    for tags in [
        vec![0x81, 0, 0, 7],
        vec![0x81, 0, 0xef, 0xff],
        vec![0x81, 0, 0, 0],
        vec![0x88, 0xa8, 0x10, 1],
        vec![0x88, 0xa8, 0, 9, 0x81, 0, 0, 8],
    ] {
        for bytes in [60, 1500] {
            let mut full_frame = frame(0, bytes);
            full_frame.splice(12..12, tags.clone());
            sender.send(&full_frame, &[]).unwrap();
            sender.flush().unwrap();
            let received_frames = next_frames(&mut b);
            assert!(
                received_frames == [full_frame],
                "tags {tags:x?}: {received_frames:x?}"
            );
        }
    }
}

#[test]
fn port_receives_all_addresses_but_not_its_own_frames() {
    let (_first, _second, mut a, mut b) = pair(small_ring());
    a.sender.send(&frame(1, 60), &[]).unwrap();
    a.sender.flush().unwrap();
    until(|| {
        let mut take = |frame: &[u8]| assert_eq!(number_of(frame), 1);
        (b.receiver.receive(64, &mut take).unwrap() == 1).then_some(())
    });
    assert_eq!(a.receiver.receive(1000, &mut |_| {}).unwrap(), 0);
}

#[test]
fn full_ring_counts_lost_frames() {
    let (_first, _second, a, mut b) = pair(small_ring());
    let mut sender = a.sender;
    for number in 0..3000 {
        sender.send(&frame(number, 64), &[]).unwrap();
    }
    sender.flush().unwrap();
    let mut numbers = Vec::new();
    let counters = until(|| {
        b.receiver
            .receive(64, &mut |frame| numbers.push(number_of(frame)))
            .unwrap();
        let counters = b.receiver.counters();
        (counters.frames + counters.dropped_full == 3000).then_some(counters)
    });
    assert!(counters.dropped_full > 0, "{counters:?}");
    assert_eq!(counters.frames, numbers.len() as u64);
    assert_eq!(
        numbers[..1024],
        (0..1024).collect::<Vec<_>>(),
        "a full ring keeps the oldest frames"
    );
    // Forwarding continues.
    sender.send(&frame(7777, 64), &[]).unwrap();
    sender.flush().unwrap();
    until(|| {
        let mut take = |frame: &[u8]| assert_eq!(number_of(frame), 7777);
        (b.receiver.receive(64, &mut take).unwrap() == 1).then_some(())
    });
}

/// With the first limit, the kernel's queue is full. With the second limit, the ring is full, because all frames of the
/// ring wait in the kernel's queue.
#[test]
fn slow_link_counts_rejected_frames() {
    for (limit, min_frames) in [(20_000, 10), (4_000_000, 512)] {
        let options = PacketOptions {
            bypass_qdisc: false,
            ..small_ring()
        };
        let (first, _second, a, b) = pair(options);
        first.shell(&format!(
            "tc qdisc add dev a root tbf rate 8mbit burst 2000 limit {limit}"
        ));
        let mut sender = a.sender;
        for number in 0..3000 {
            sender.send(&frame(number, 1000), &[]).unwrap();
        }
        sender.flush().unwrap();
        let counters = sender.counters();
        assert!(counters.queue_full_retries > 0, "{counters:?}");
        assert!(counters.dropped_full > 0, "{counters:?}");
        assert_eq!(counters.frames + counters.dropped_full, 3000);
        assert_eq!(counters.bytes, counters.frames * 1000);
        assert!(counters.frames >= min_frames, "{counters:?}");
        // All frames reported as sent arrive.
        let mut received_frames = 0;
        let mut set = PortSet::new().unwrap();
        set.add(id(0), b).unwrap();
        while received_frames < counters.frames {
            let frames = set.serve(Some(LONG), |_, _, _| received_frames += 1).unwrap();
            assert!(
                frames > 0,
                "only {received_frames} of {} frames were received",
                counters.frames
            );
        }
        // The port accepts frames again.
        sender.send(&frame(7777, 1000), &[]).unwrap();
        sender.flush().unwrap();
        let mut received_number = 0;
        while set
            .serve(Some(LONG), |_, frame, _| received_number = number_of(frame))
            .unwrap()
            == 0
        {}
        assert_eq!(received_number, 7777);
    }
}

#[test]
fn port_survives_link_down_but_not_removal() {
    let (first, second, a, b) = pair(small_ring());
    let mut sender = a.sender;
    let mut set = PortSet::new().unwrap().with_spin_rounds(0);
    set.add(id(3), b).unwrap();

    first.shell("ip link set dev a down");
    sender.send(&frame(1, 64), &[]).unwrap();
    sender.flush().unwrap();
    assert_eq!(sender.counters().dropped_down, 1);
    second.shell("ip link set dev b down");
    // The port clears the error, so the port set does not report the error.
    while set.serve(Some(Duration::from_millis(20)), |_, _, _| {}).unwrap() > 0 {}

    first.shell("ip link set dev a up");
    second.shell("ip link set dev b up");
    sender.send(&frame(2, 64), &[]).unwrap();
    sender.flush().unwrap();
    let mut received_frames = Vec::new();
    while received_frames.is_empty() {
        set.serve(Some(LONG), |_, frame, _| received_frames.push(number_of(frame)))
            .unwrap();
    }
    assert_eq!(received_frames, [2]);

    second.shell("ip link del dev b");
    let error = loop {
        if let Err(error) = set.serve(Some(LONG), |_, _, _| {}) {
            break error;
        }
    };
    assert!(
        matches!(&error, PortSetError::PortFailed { port, source: PortError::NoInterface { interface, .. } }
            if *port == id(3) && interface == "b"),
        "{error}"
    );
    sender.send(&frame(3, 64), &[]).unwrap();
    sender.flush().unwrap();
    assert_eq!(sender.counters().dropped_down, 2);
}

#[test]
fn workers_share_an_interface_by_flow() {
    let (_first, second, a, b) = pair(small_ring());
    drop(b);
    let options = PacketOptions {
        fanout_group: Some(77),
        ..small_ring()
    };
    let mut workers = [0, 1, 2].map(|_| open(&second, "b", options));
    let mut sender = a.sender;
    // Numbered frames of 32 UDP flows over IPv4, for hashing.
    for number in 0..320u32 {
        let mut frame = frame(number, 64);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..34].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        frame[34..38].copy_from_slice(&[10, (number % 32) as u8, 0, 9]);
        frame[60..64].copy_from_slice(&number.to_be_bytes());
        sender.send(&frame, &[]).unwrap();
    }
    sender.flush().unwrap();
    let mut worker_of_flow = [None; 32];
    let mut received_frames = Vec::new();
    until(|| {
        for (worker, port) in workers.iter_mut().enumerate() {
            let mut take = |frame: &[u8]| {
                let flow = usize::from(frame[35]);
                assert_eq!(*worker_of_flow[flow].get_or_insert(worker), worker, "flow {flow}");
                received_frames.push(u32::from_be_bytes(frame[60..64].try_into().unwrap()));
            };
            port.receiver.receive(64, &mut take).unwrap();
        }
        (received_frames.len() >= 320).then_some(())
    });
    received_frames.sort_unstable();
    assert_eq!(received_frames, (0..320).collect::<Vec<_>>());
    let used_workers: std::collections::BTreeSet<_> = worker_of_flow.iter().flatten().collect();
    assert!(used_workers.len() > 1, "all flows went to one worker");
}

#[test]
fn errors_name_the_interface() {
    let namespace = Namespace::new();
    let error = namespace
        .run(|| packet::open("nosuch0", &PacketOptions::default()))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot find interface nosuch0: No such device"),
        "{error}"
    );
}

#[test]
fn interfaces_without_ethernet_headers_are_rejected() {
    let namespace = Namespace::new();
    let kinds = [
        "ip tuntap add dev t0 mode tun",
        "ip link add name t0 type ipip local 10.0.0.1 remote 10.0.0.2",
    ];
    let created = namespace.shell(&format!("if {} || {}; then echo made; fi", kinds[0], kinds[1]));
    if created.is_empty() {
        skip!("this kernel has neither tun nor ipip devices");
    }
    let error = namespace.run(|| packet::open("t0", &small_ring())).unwrap_err();
    assert!(matches!(&error, PortError::NotEthernet { .. }), "{error}");
}

/// A loopback interface returns sent frames. These can be longer than any slot.
#[test]
fn loopback_interface_works_as_port() {
    let namespace = Namespace::new();
    let mut port = open(&namespace, "lo", small_ring());
    for bytes in [60, 1500, 20_000, 65_000] {
        let full_frame = frame(1, bytes);
        port.sender.send(&full_frame, &[]).unwrap();
        port.sender.flush().unwrap();
        assert!(next_frames(&mut port) == [full_frame]);
    }
}
