//! The packet path of `host` allocates no memory. The test counts the allocations of all threads while `host` processes
//! REQUESTs, RESPONSEs and invalid datagrams.
//!
//! A program of its own, because it has another allocator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::store::Row;
use linewarden_dataplane::{Admission as _, Config, Devices as _, Gate, Geometry};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::wire::{self, Header, message_type};

/// Counts all allocations of the process.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards all calls to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const GATEWAY: GatewayId = GatewayId(5);
const DEVICE: DeviceId = DeviceId(0x1234_5678_9abc_def0);
const KEY: [u8; 16] = [7; 16];
const EXCHANGES: u64 = 500;

/// Sends a REQUEST, an invalid datagram, a BOUND RESPONSE that is refused, and a valid RESPONSE; receives CHALLENGE and
/// ACK.
fn exchange(socket: &UdpSocket, number: u64) {
    let mut nonce = [3; 16];
    nonce[..8].copy_from_slice(&number.to_be_bytes());
    let request = wire::Request {
        header: Header::new(message_type::REQUEST, Suite::SipHash128, 0, DEVICE),
        nonce,
        reserved: [0; 32],
    };
    let mut reply = [0; 128];
    socket.send(zerocopy::IntoBytes::as_bytes(&request)).unwrap();
    assert_eq!(socket.recv(&mut reply).unwrap(), 64);
    let wire::Message::Challenge(challenge) = wire::parse(&reply[..64]).unwrap() else {
        panic!("no CHALLENGE");
    };
    let mut response = wire::Response {
        header: Header::new(message_type::RESPONSE, Suite::SipHash128, 0, DEVICE),
        nonce,
        idx: challenge.idx,
        gateway_id: challenge.gateway_id,
        fresh: challenge.fresh,
        tag: [0; 16],
    };
    response.tag = linewarden_protocol::tag::response(
        &AuthKey::from_bytes(KEY),
        &response,
        &linewarden_protocol::tag::location(None),
    );
    socket.send(&[0; 70]).unwrap();
    // A BOUND RESPONSE makes `host` read the neighbor table. That table has no entries for loopback addresses.
    let mut bound = response;
    bound.header.flags = wire::FLAG_BOUND;
    socket.send(zerocopy::IntoBytes::as_bytes(&bound)).unwrap();
    socket.send(zerocopy::IntoBytes::as_bytes(&response)).unwrap();
    assert_eq!(socket.recv(&mut reply).unwrap(), 64);
    assert!(matches!(wire::parse(&reply[..64]), Ok(wire::Message::Ack(_))));
}

#[test]
fn packets_are_handled_without_the_allocator() {
    let ip = Ipv4Addr::new(127, 20, 77, 1);
    let port = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
    let config = Config {
        gateway_id: GATEWAY,
        session_lifetime_s: 600,
        lap_port: port,
        local: vec![ip.into()],
        device_prefixes: vec!["127.0.0.0/8".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Off,
        nak_per_s: 10,
        alarm_per_s: 10,
        miss_per_s: 0,
        low_rows: 1,
        low_credit: 0,
        geometry: Geometry {
            slots: 64,
            ring: 4,
            hash_seed: [1, 2],
        },
        provers: 0,
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    };
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let mut host = Host::start(&config, &options).unwrap();
    let row = Row {
        challenge: [0; 8],
        auth_key: AuthKey::from_bytes(KEY),
    };
    host.install(DEVICE, Mode::Key, RowIndex(0), &[row], None)
        .unwrap();
    // One fresh value is sufficient, because the test takes less time than the value is valid.
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    host.set_fresh([9; 8], now.tv_sec.cast_unsigned() * 1_000_000_000);
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 20, 77, 2), 0)).unwrap();
    socket.connect((ip, port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    exchange(&socket, 0);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (1..=EXCHANGES).for_each(|number| exchange(&socket, number));
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(allocations, 0, "allocations in {} packets", 4 * EXCHANGES);
}
