//! Measures the cost of the host data plane: of the engine alone, for each type of message, with one device (hot caches)
//! and with many devices; and of the engine with its sockets on the loopback interface, flooded with REQUESTs.
//!
//! `cargo run --release -p linewarden-dataplane --example host_cost`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a command-line benchmark, which can end with a panic"
)]

use std::hint::black_box;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Engine, Host, HostOptions, ThreadState, Timestamps};
use linewarden_dataplane::store::Row;
use linewarden_dataplane::{Admission as _, Config, Devices as _, Gate, Geometry, Telemetry as _};
use linewarden_protocol::frame::Meta;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::prf;
use linewarden_protocol::tag;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, Header, message_type};
use zerocopy::IntoBytes as _;

const GATEWAY: GatewayId = GatewayId(1);
const FRESH: [u8; 8] = [9; 8];
const PORT: u16 = 20_550;

fn config(devices: u32) -> Config {
    Config {
        gateway_id: GATEWAY,
        session_lifetime_s: 3600,
        lap_port: PORT,
        local: vec![Ipv4Addr::new(127, 77, 0, 1).into()],
        device_prefixes: vec!["127.0.0.0/8".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Off,
        nak_per_s: 100,
        alarm_per_s: 100,
        miss_per_s: 0,
        low_rows: 0,
        low_credit: 0,
        geometry: Geometry {
            slots: devices,
            ring: 1,
            hash_seed: [0x1234, 0x5678],
        },
        provers: 0,
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

fn device(number: u32) -> DeviceId {
    DeviceId(0x5000_0000_0000_0001 + u64::from(number) * 0x9e37_79b1)
}

fn auth_key(device: DeviceId) -> AuthKey {
    AuthKey::from_bytes(prf::f(&[3; 16], &[device.0.to_be_bytes()]))
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
}

fn host(devices: u32) -> Host {
    let mut host = Host::new(&config(devices)).unwrap();
    for number in 0..devices {
        let id = device(number);
        let row = Row {
            challenge: [0; 8],
            auth_key: auth_key(id),
        };
        host.install(id, Mode::Key, RowIndex(0), &[row], None).unwrap();
    }
    host.set_fresh(FRESH, monotonic_ns());
    host
}

fn request(id: DeviceId) -> [u8; 64] {
    let message = wire::Request {
        header: Header::new(message_type::REQUEST, Suite::SipHash128, 0, id),
        nonce: [7; 16],
        reserved: [0; 32],
    };
    message.as_bytes().try_into().unwrap()
}

fn response(id: DeviceId, idx: u32) -> [u8; 64] {
    let mut message = wire::Response {
        header: Header::new(message_type::RESPONSE, Suite::SipHash128, 0, id),
        nonce: [7; 16],
        idx: idx.into(),
        gateway_id: GATEWAY.0.into(),
        fresh: FRESH,
        tag: [0; 16],
    };
    message.tag = tag::response(&auth_key(id), &message, &tag::location(None));
    message.as_bytes().try_into().unwrap()
}

fn meta(number: u32) -> Meta {
    let [_, a, b, c] = number.to_be_bytes();
    let mut src_ip = [0; 16];
    src_ip[10..].copy_from_slice(&[0xff, 0xff, 10, a, b, c]);
    Meta {
        ingress: 1,
        src_ip,
        src_port: 4000,
        ..Meta::default()
    }
}

/// Nanoseconds per message: the minimum over `runs` runs, each of which processes a batch of messages.
fn min_ns_per_message(
    runs: u32,
    engine: &Engine,
    thread: &mut ThreadState,
    mut messages: impl FnMut(u32) -> Vec<(Meta, [u8; 64])>,
    expected: Verdict,
) -> f64 {
    let now = Timestamps {
        monotonic_ns: monotonic_ns(),
        boot_ns: 1_000_000_000_000,
    };
    let times = (0..runs).map(|run| {
        let mut batch = messages(run);
        let count = batch.len();
        let start = Instant::now();
        for (meta, payload) in &mut batch {
            let verdict = engine.process(thread, now, meta, black_box(payload));
            assert_eq!(verdict, expected);
        }
        start.elapsed().as_secs_f64() * 1e9 / count as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

/// `count` device numbers below `devices`, in an order that the CPU cannot prefetch.
fn scattered_devices(devices: u32, count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(move |index| (u64::from(index) * 2_654_435_761 % u64::from(devices)) as u32)
}

/// Measures the engine alone, with this number of devices.
fn measure_engine(devices: u32) {
    let mut host = host(devices);
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let count = devices.max(100_000);
    let requests = |_| {
        scattered_devices(devices, count)
            .map(|number| (meta(number), request(device(number))))
            .collect()
    };
    let request_ns = min_ns_per_message(10, &engine, &mut thread, requests, Verdict::ReplyChallenge);
    // With several devices, each run spends one number of each device. With one device, each message spends a number.
    let mut spent = 0;
    let responses = |_: u32| {
        let offset = |index: u32| if devices == 1 { index } else { 0 };
        let numbered = scattered_devices(devices, count).enumerate();
        let batch = numbered
            .map(|(index, number)| {
                (
                    meta(number),
                    response(device(number), spent + offset(index as u32)),
                )
            })
            .collect();
        spent += if devices == 1 { count } else { 1 };
        batch
    };
    let response_ns = min_ns_per_message(5, &engine, &mut thread, responses, Verdict::ReplyAck);
    println!("engine, {devices} devices: REQUEST {request_ns:.0} ns, RESPONSE {response_ns:.0} ns");
}

fn measure_hash() {
    let words = [[5u8; 8]; 7];
    let mut key = [1; 16];
    let start = Instant::now();
    for _ in 0..1_000_000 {
        key = prf::f(black_box(&key), black_box(&words));
    }
    let ns = start.elapsed().as_secs_f64() * 1e3;
    println!("streaming SipHash over the seven words of a tag: {ns:.0} ns");
}

/// The CPU time of all threads of this process whose name begins with `name`.
fn thread_cpu_ns(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let own_tasks = tasks.filter(|task| {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        comm.starts_with(name)
    });
    own_tasks
        .filter_map(|task| {
            let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            schedstat.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum()
}

/// Measures one serving thread, while one sender sends at full speed. The sender reads no replies.
fn measure_sockets(devices: u32) {
    let config = config(devices);
    let mut host = host(devices);
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    host.listen(&config, &options).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind((Ipv4Addr::new(127, 77, 0, 2), 0)).unwrap();
            socket.connect((config.local[0], PORT)).unwrap();
            let messages = scattered_devices(devices, 1 << 16).map(|number| request(device(number)));
            let messages: Vec<_> = messages.collect();
            for message in messages.iter().cycle() {
                // The sender is meant to fill the receive queue.
                let _ = socket.send(message);
                if stop.load(Relaxed) {
                    return;
                }
            }
        });
        let replies = |host: &Host| host.counters().unwrap().get(Verdict::ReplyChallenge);
        while replies(&host) == 0 {
            std::hint::spin_loop();
        }
        let seconds = (0..5).map(|_| {
            let (before, cpu, start) = (replies(&host), thread_cpu_ns("lw-host"), Instant::now());
            std::thread::sleep(Duration::from_secs(1));
            let count = (replies(&host) - before) as f64;
            let cpu_ns = (thread_cpu_ns("lw-host") - cpu) as f64 / count;
            (cpu_ns, count / start.elapsed().as_secs_f64())
        });
        let (cpu_ns, rate) = seconds.fold((f64::INFINITY, 0.0), |(cpu_ns_min, rate_max), (cpu_ns, rate)| {
            (cpu_ns_min.min(cpu_ns), f64::max(rate_max, rate))
        });
        println!(
            "sockets, {devices} devices: at most {rate:.0} replies/s, {cpu_ns:.0} ns of thread CPU per reply"
        );
        stop.store(true, Relaxed);
    });
}

fn main() {
    measure_hash();
    measure_engine(1);
    measure_engine(1 << 20);
    measure_sockets(1);
    measure_sockets(1 << 20);
}
