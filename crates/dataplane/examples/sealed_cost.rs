//! Measures the time that the sealed gate needs per packet on one CPU, in both directions, for several payload sizes. The
//! time of the test harness is measured separately and excluded.
//!
//! `cargo run --release -p linewarden-dataplane --example sealed_cost` (as root)
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a command-line benchmark, which can end with a panic"
)]

use std::net::Ipv4Addr;

use linewarden_dataplane::xdp::bench::sealed::SealedBench;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_protocol::ids::GatewayId;

/// The sizes of the payload in bytes.
const PAYLOADS: [usize; 7] = [0, 64, 128, 512, 1024, 1300, 1416];
/// How many times the program is loaded: its address differs each time, which changes the time by up to a fifth.
const LOADS: usize = 10;

fn main() {
    let config = Config {
        gateway_id: GatewayId(1),
        session_lifetime_s: 3600,
        lap_port: 20_550,
        local: vec![Ipv4Addr::new(10, 66, 0, 1).into()],
        device_prefixes: vec!["10.66.0.0/16".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Sealed,
        nak_per_s: 100,
        alarm_per_s: 100,
        low_rows: 0,
        low_credit: 0,
        miss_per_s: 0,
        geometry: Geometry {
            slots: 16,
            ring: 1,
            hash_seed: [0x1234, 0x5678],
        },
        provers: 0,
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    };
    let mut minima = PAYLOADS.map(|_| [f64::MAX; 4]);
    for _ in 0..LOADS {
        let benchmark = SealedBench::load(&config).unwrap();
        for (bytes, minima) in PAYLOADS.iter().zip(&mut minima) {
            let cost = benchmark.cost(*bytes, 100_000, 5).unwrap();
            let costs = [cost.up, cost.down, cost.harness[0], cost.harness[1]];
            minima
                .iter_mut()
                .zip(costs)
                .for_each(|(minimum, ns)| *minimum = minimum.min(ns));
        }
    }
    println!("payload   up ns   down ns   harness up   harness down");
    for (bytes, [up, down, harness_up, harness_down]) in PAYLOADS.iter().zip(minima) {
        println!("{bytes:7} {up:7.0} {down:9.0} {harness_up:12.0} {harness_down:14.0}");
    }
}
