//! Measures the time that in-band evidence needs per packet on one CPU, excluding the test harness. Also measures the
//! duration of one measurement, which a gateway repeats every second.
//!
//! `cargo run --release -p linewarden-dataplane --example stamp_cost` (as root)
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a command-line benchmark, which can end with a panic"
)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::xdp::bench::stamp::StampBench;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_evidence::inband::{MasterKey, Template};
use linewarden_evidence::state::{Digests, Snapshot};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::GatewayId;

/// The sizes of the payload in bytes. Packets of the largest size exceed the minimum MTU, so the program looks up the
/// route for them.
const PAYLOADS: [usize; 3] = [64, 1000, 1300];
/// How many times the program is loaded: its address differs each time, which changes the time by up to a fifth.
const LOADS: usize = 10;
const MEASUREMENTS: u32 = 200;

fn config() -> Config {
    Config {
        gateway_id: GatewayId(1),
        session_lifetime_s: 3600,
        lap_port: 20_550,
        local: vec![Ipv4Addr::new(10, 66, 0, 1).into()],
        device_prefixes: vec!["10.66.0.0/16".parse().unwrap(), "fd66::/64".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Bound,
        nak_per_s: 100,
        alarm_per_s: 100,
        low_rows: 0,
        low_credit: 0,
        miss_per_s: 0,
        geometry: Geometry {
            slots: 100_000,
            ring: 1,
            hash_seed: [0x1234, 0x5678],
        },
        provers: 0,
        inband_evidence: true,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

fn packet(bytes: usize) -> Vec<u8> {
    let end = |last: u16| Endpoint {
        mac: [2, 0, 0, 0, 0, 1],
        ip: Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, last).into(),
        port: 4000 + last,
    };
    FrameBuilder::new(end(1), end(2)).udp(&vec![0x5a; bytes])
}

fn main() {
    let snapshot = Snapshot {
        switch: SwitchId(1),
        boot_count: BootCount(1),
        sequence: Sequence(1),
        digests: Digests {
            program: Digest([1; 32]),
            tables: Digest([2; 32]),
            registers: Digest([3; 32]),
        },
    };
    let key = MasterKey::new([7; 16]).key(snapshot.switch, snapshot.boot_count);
    println!("UDP payload   ns a packet");
    let mut minima = PAYLOADS.map(|_| f64::MAX);
    for _ in 0..LOADS {
        let benchmark = StampBench::load(&config()).unwrap();
        for (bytes, minimum) in PAYLOADS.iter().zip(&mut minima) {
            let template = Template::new(&key, &snapshot);
            let ns = benchmark.cost(template, &packet(*bytes), 100_000, 3).unwrap();
            *minimum = minimum.min(ns);
        }
    }
    for (bytes, ns) in PAYLOADS.iter().zip(minima) {
        println!("{bytes:11} {ns:13.0}");
    }
    let data_plane = Xdp::load(&config()).unwrap();
    let mut durations: Vec<Duration> = (0..MEASUREMENTS)
        .map(|_| {
            let began = Instant::now();
            data_plane.measure().unwrap();
            began.elapsed()
        })
        .collect();
    durations.sort_unstable();
    let percentile = |percent: usize| {
        durations
            .get(durations.len() * percent / 100)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "a measurement: median {:?}, 99th percentile {:?}",
        percentile(50),
        percentile(99)
    );
}
