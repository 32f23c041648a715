//! The load generator against its reflector: all counters agree. Needs root.
//!
//! A program of its own, because the load generator needs all CPUs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

#[path = "all/common.rs"]
#[allow(dead_code, reason = "the other program uses all items")]
mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::{require, wait_until};
use linewarden_lab::address::DeviceAddress;
use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use linewarden_lab::loadgen::{Generator, Plan, Reflector, ReflectorCounters, Transmit};
use linewarden_lab::napi::NapiThreads;
use linewarden_lab::packet_socket::{Options, PacketSocket, TxBatch};
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::frame::checksum::Sum;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{self, header};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{LAP_PORT, Message, message_type, parse};

/// A UDP datagram in a received frame, with verified checksums.
struct Datagram<'a> {
    from: Endpoint,
    to: Endpoint,
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    fn parse(frame: &'a [u8]) -> Self {
        let parsed = frame::parse(frame).unwrap();
        let (ip, udp) = parsed.datagram().expect("a UDP datagram");
        let octets = |ip| match ip {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        if ip.src.is_ipv4() {
            let sum = Sum::default().bytes(&frame[ip.at..udp.at]);
            assert_eq!(sum.finish(), 0, "IPv4 header checksum of {frame:02x?}");
        }
        let datagram = &frame[udp.at..udp.payload().end];
        let sum = Sum::default()
            .pseudo_header(
                &octets(ip.src),
                &octets(ip.dst),
                header::PROTOCOL_UDP,
                datagram.len() as u16,
            )
            .bytes(datagram);
        assert_eq!(sum.finish(), 0, "UDP checksum of {frame:02x?}");
        Self {
            from: Endpoint {
                mac: parsed.src_mac,
                ip: ip.src,
                port: udp.src_port,
            },
            to: Endpoint {
                mac: parsed.dst_mac,
                ip: ip.dst,
                port: udp.dst_port,
            },
            payload: &frame[udp.payload()],
        }
    }
}

const IDX: RowIndex = RowIndex(3);

fn plan(window: u32, transmit: Transmit) -> Plan {
    Plan {
        devices: 1000,
        window,
        rows: 2,
        first_idx: IDX,
        gateway: GatewayId(9),
        fresh: *b"\x01freshly",
        suite: Suite::SipHash128,
        bound: true,
        source_port: 40_000,
        transmit,
    }
}

fn device_id(index: u32) -> DeviceId {
    DeviceId(0x1000_0000_0000_0000 + u64::from(index) * 77)
}

fn auth_key(index: u32, idx: RowIndex) -> AuthKey {
    let mut key = [0x5a; 16];
    key[..4].copy_from_slice(&index.to_be_bytes());
    key[4..8].copy_from_slice(&idx.0.to_be_bytes());
    AuthKey::from_bytes(key)
}

fn lab() -> Lab {
    Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        devices_end_accepts_xdp: false,
        ..Topology::default()
    })
    .unwrap()
}

#[test]
fn generator_and_reflector_count_the_same_messages() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    let plan = plan(64, Transmit::Tx);
    let reflector = Reflector::attach(&lab, &plan).unwrap();
    let mut generator = Generator::attach(&lab, &plan, device_id, auth_key).unwrap();
    for (netns, interface, cpu) in [
        (&lab.devices, &lab.devices_end.name, 0),
        (&lab.gateway, &lab.gateway_devices_end.name, 1),
    ] {
        let cpu_count = std::thread::available_parallelism().unwrap().get();
        NapiThreads::enable(netns, interface)
            .unwrap()
            .pin(&[cpu % cpu_count])
            .unwrap();
    }
    generator.start().unwrap();
    wait_until("100,000 handshakes are complete", || {
        generator.counters().unwrap().completed >= 100_000
    });
    let counters = generator.finish(Duration::from_secs(20)).unwrap();
    let window = u64::from(plan.window);
    assert_eq!(counters.ended, window);
    assert_eq!(counters.challenges, counters.responses);
    assert_eq!(counters.responses, counters.completed);
    assert_eq!(counters.requests + window, counters.completed);
    assert_eq!(
        (
            counters.naks,
            counters.exhausted,
            counters.stale,
            counters.unexpected
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(
        reflector.counters().unwrap(),
        ReflectorCounters {
            requests: counters.requests + window,
            responses: counters.responses,
        }
    );
}

/// A packet socket on the gateway's interface. The test itself writes each reply.
struct ManualGateway(PacketSocket);

impl ManualGateway {
    fn next_frame(&mut self) -> Vec<u8> {
        let mut frame = Vec::new();
        while frame.is_empty() {
            assert!(
                self.0.wait(Duration::from_secs(10)).unwrap(),
                "no frame arrived within 10 s"
            );
            self.0.receive(1, |received| frame = received.frame.to_vec());
        }
        frame
    }

    /// Sends the frame back with a changed payload.
    fn reply(&self, frame: &[u8], change: impl FnOnce(&mut [u8; 64])) {
        let request = Datagram::parse(frame);
        let mut payload: [u8; 64] = request.payload.try_into().unwrap();
        change(&mut payload);
        let mut batch = TxBatch::new(1);
        assert!(
            batch.push_with(|buffer| { write::udp(buffer, &request.to, &request.from, [0; 2], &payload) })
        );
        assert_eq!(self.0.send(&mut batch).unwrap(), 1);
    }
}

#[test]
fn sent_messages_are_valid_with_correct_tags_and_checksums() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    // In this test, the gateway's end has no XDP program.
    let plan = plan(1, Transmit::Redirect);
    let socket = PacketSocket::open(&lab.gateway, &lab.gateway_devices_end, &Options::default()).unwrap();
    let mut gateway = ManualGateway(socket);
    let mut generator = Generator::attach(&lab, &plan, device_id, auth_key).unwrap();
    generator.start().unwrap();
    for index in 0..3 {
        let request_frame = gateway.next_frame();
        let frame = Datagram::parse(&request_frame);
        assert_eq!(frame.to.port, LAP_PORT);
        assert_eq!(frame.from.mac, DeviceAddress::new(index).mac().0);
        let Ok(Message::Request(request)) = parse(frame.payload) else {
            panic!("not a REQUEST: {:02x?}", frame.payload);
        };
        assert_eq!(request.header.device(), device_id(index));
        let nonce = request.nonce;

        gateway.reply(&request_frame, |payload| {
            payload[3] = message_type::CHALLENGE;
            payload[16..20].copy_from_slice(&IDX.0.to_be_bytes());
            payload[20..24].copy_from_slice(&plan.gateway.0.to_be_bytes());
            payload[32..40].copy_from_slice(&plan.fresh);
            payload[40..48].copy_from_slice(&nonce[..8]);
        });
        let response_frame = gateway.next_frame();
        let frame = Datagram::parse(&response_frame);
        let Ok(Message::Response(response)) = parse(frame.payload) else {
            panic!("not a RESPONSE: {:02x?}", frame.payload);
        };
        assert_eq!((response.nonce, response.fresh), (nonce, plan.fresh));
        let mut loc = [0; 8];
        loc[..6].copy_from_slice(&frame.from.mac);
        assert_eq!(tag::response(&auth_key(index, IDX), response, &loc), response.tag);

        // The generator checks only type and device of an ACK.
        gateway.reply(&response_frame, |payload| {
            payload[3] = message_type::ACK;
            payload[5] = 0;
        });
    }
    // The fourth device's REQUEST is lost; the generator detects the stalled handshake.
    gateway.next_frame();
    wait_until("three handshakes are counted", || {
        generator.counters().unwrap().completed == 3
    });
    assert_eq!(
        generator.restart_stalled().unwrap(),
        0,
        "the handshake has made progress since the start"
    );
    assert_eq!(generator.restart_stalled().unwrap(), 1);
    let retransmitted_frame = gateway.next_frame();
    let frame = Datagram::parse(&retransmitted_frame);
    assert_eq!(frame.from.mac, DeviceAddress::new(3).mac().0);
    // A NAK ends the handshake.
    gateway.reply(&retransmitted_frame, |payload| payload[3] = message_type::NAK);
    let counters = generator.finish(Duration::from_secs(20)).unwrap();
    assert_eq!((counters.completed, counters.naks, counters.ended), (3, 1, 1));
}

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
