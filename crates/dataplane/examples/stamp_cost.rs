//! What evidence in packets costs on one CPU, above the harness; and what one measurement takes, which is made every second.
//!
//! `cargo run --release -p linewarden-dataplane --example stamp_cost` (as root)
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for one person at a terminal"
)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::xdp::stamp_bench::StampBench;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_evidence::inband::{Form, MasterKey, Template};
use linewarden_evidence::state::{Digests, Snapshot};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::GatewayId;

/// The last is above what fits every link, and so looks its route up.
const PAYLOADS: [usize; 3] = [64, 1000, 1300];
/// The kernel puts a program at another address with each load, which costs or saves up to a fifth.
const LOADS: usize = 10;
const MEASUREMENTS: u32 = 200;

fn config(form: Option<Form>) -> Config {
    Config {
        gateway_id: GatewayId(1),
        lease_s: 3600,
        lap_port: 20_550,
        local: vec![Ipv4Addr::new(10, 66, 0, 1).into()],
        device_prefixes: vec!["10.66.0.0/16".parse().unwrap(), "fd66::/64".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Open,
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
        classic: None,
        p4dra: None,
        in_packets: form,
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
    println!("content    UDP payload   ns a packet");
    for form in [Form::Default, Form::Classic] {
        let mut least = PAYLOADS.map(|_| f64::MAX);
        for _ in 0..LOADS {
            let bench = StampBench::load(&config(Some(form))).unwrap();
            for (bytes, least) in PAYLOADS.iter().zip(&mut least) {
                let template = Template::new(&key, form, &snapshot);
                let ns = bench.cost(template, &packet(*bytes), 100_000, 3).unwrap();
                *least = least.min(ns);
            }
        }
        for (bytes, ns) in PAYLOADS.iter().zip(least) {
            println!("{:10} {bytes:11} {ns:13.0}", format!("{form:?}"));
        }
    }
    let plane = Xdp::load(&config(Some(Form::Default))).unwrap();
    let mut took: Vec<Duration> = (0..MEASUREMENTS)
        .map(|_| {
            let began = Instant::now();
            plane.measure().unwrap();
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or_default();
    println!(
        "a measurement: {:?} in the median, {:?} of 99 in 100",
        at(50),
        at(99)
    );
}
