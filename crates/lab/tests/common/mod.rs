//! Helpers of the tests that need root.
#![allow(dead_code, reason = "each test program uses only some of these items")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use linewarden_protocol::frame::checksum::Sum;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{self, header};

/// Returns true if this test cannot run here, and prints the reason.
pub fn skipped(capabilities: &[linewarden_lab::capability::Capability]) -> bool {
    match linewarden_lab::capability::require(capabilities) {
        Ok(()) => false,
        Err(missing) => {
            eprintln!("skipped: {missing}");
            true
        }
    }
}

/// Polls `condition` until it holds; panics after a minute.
pub fn wait_until(condition_name: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "timeout after 60 s: {condition_name}"
        );
        std::thread::yield_now();
    }
}

/// A UDP datagram in a received frame, with verified checksums.
pub struct Datagram<'a> {
    pub from: Endpoint,
    pub to: Endpoint,
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    pub fn parse(frame: &'a [u8]) -> Self {
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
