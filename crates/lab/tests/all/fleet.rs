//! A simulated fleet against the reference gateway of the protocol crate, over a veth link. Needs root.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::common::require;
use crate::oracle::{OracleGateway, now};
use crate::xdp_gateway::XdpGateway;
use linewarden_lab::address::{Family, GATEWAY, SERVICE};
use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use linewarden_lab::fleet::{
    Exchange, Fleet, FleetOptions, FleetSpec, Outcome, Progress, PufKind, Report, SimulatedDevice,
    enroll_fleet,
};
use linewarden_lab::service::EchoService;
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;

const ECHO_PORT: u16 = 7007;

fn service(family: Family) -> Endpoint {
    Endpoint {
        mac: GATEWAY.mac.0,
        ..SERVICE.endpoint(family, ECHO_PORT)
    }
}

fn enroll_devices(devices: u32, seed: u64) -> Vec<SimulatedDevice> {
    let spec = FleetSpec {
        puf_kind: |index| {
            if index % 10 == 9 {
                PufKind::WEAK
            } else {
                PufKind::STRONG
            }
        },
        ..FleetSpec::new(devices, seed)
    };
    enroll_fleet(&spec, &mut |_| {}).unwrap()
}

fn options() -> FleetOptions {
    FleetOptions {
        families: vec![Family::V4, Family::V6, Family::V4],
        ..FleetOptions::new([1; 32])
    }
}

fn authenticate(fleet: &mut Fleet, limit: Duration) -> (Report, Vec<Progress>) {
    let mut progress_reports = Vec::new();
    let report = fleet
        .authenticate(&mut linewarden_lab::fleet::RunOptions {
            window: 32,
            timeout: limit,
            stop: &AtomicBool::new(false),
            progress: &mut |progress| progress_reports.push(progress),
        })
        .unwrap();
    (report, progress_reports)
}

fn lab() -> Lab {
    Lab::build(&Topology {
        device_host: false,
        ..Topology::default()
    })
    .unwrap()
}

#[test]
fn every_device_authenticates_and_reaches_the_service() {
    require(FOR_LOAD_GENERATOR);
    for workers in [1, 3] {
        let lab = lab();
        let devices = enroll_devices(100, 11);
        let gateway = OracleGateway::start(&lab, &devices, |_| {});
        let key_mode = devices
            .iter()
            .filter(|d| d.member.config.mode == Mode::Key)
            .count();
        assert_eq!(key_mode, 10);
        let members: Vec<_> = devices.into_iter().map(|device| device.member).collect();
        let mut fleet = Fleet::new(&lab, members, &FleetOptions { workers, ..options() }).unwrap();

        let (report, progress_reports) = authenticate(&mut fleet, Duration::from_secs(60));
        assert_eq!((report.authenticated, report.unfinished), (100, 0), "{report:?}");
        assert_eq!(report.latency_ns.len(), 100);
        assert!(report.puf_readings >= 100);
        assert!(report.network_ns.max() <= report.latency_ns.max());
        let last = progress_reports.last().unwrap();
        assert_eq!((last.authenticated, last.devices), (100, 100));
        // A second run sends no message.
        let (second_report, _) = authenticate(&mut fleet, Duration::from_secs(60));
        assert_eq!(
            (
                second_report.authenticated,
                second_report.unfinished,
                second_report.sent
            ),
            (0, 0, 0)
        );

        let echo = EchoService::start(&lab, ECHO_PORT).unwrap();
        // The gateway's kernel must resolve the MAC address of every device. All namespaces of the machine share the neighbor
        // tables. If other tests have just filled these tables, the kernel accepts no new entry for 5 s.
        let many_attempts = Exchange {
            attempts: 60,
            ..Exchange::to(service)
        };
        let exchanged = fleet
            .exchange(
                &many_attempts,
                &mut linewarden_lab::fleet::RunOptions {
                    window: 16,
                    timeout: Duration::from_secs(60),
                    stop: &AtomicBool::new(false),
                    progress: &mut |_| {},
                },
            )
            .unwrap();
        assert_eq!(
            (exchanged.echoed, exchanged.not_echoed),
            (100, 0),
            "{exchanged:?}"
        );
        let traffic = echo.finish().unwrap();
        assert_eq!(traffic.sources.len(), 100);

        // Gateway and devices have the same sessions.
        let gateway = gateway.finish();
        for index in fleet.indices() {
            assert_eq!(fleet.outcome(index), Some(Outcome::Authenticated));
            assert!(fleet.received_echo(index));
            let session = fleet.session(index).unwrap();
            let device = linewarden_lab::fleet::device_id(index);
            assert_eq!(gateway.session(device, now()), Some(session.id));
            let line = gateway.line(device).unwrap();
            assert_eq!(line.session.session_key, *session.key());
        }
    }
}

/// `LINEWARDEN_FLEET_DEVICES` sets the number of devices; with `--nocapture` the test prints latencies and rates.
#[test]
fn a_fleet_authenticates_at_the_xdp_gateway_and_passes_its_gate() {
    require(FOR_LOAD_GENERATOR);
    let device_count =
        std::env::var("LINEWARDEN_FLEET_DEVICES").map_or(300, |number| number.parse().unwrap());
    let lab = Lab::build(&Topology {
        device_host: false,
        permanent_neighbors: device_count,
        ..Topology::default()
    })
    .unwrap();
    let started = std::time::Instant::now();
    let devices = enroll_devices(device_count, 21);
    println!("enrolled {device_count} devices in {:?}", started.elapsed());
    let gateway = XdpGateway::start(&lab, &devices);
    let echo = EchoService::start(&lab, ECHO_PORT).unwrap();
    let members = devices.into_iter().map(|device| device.member).collect();
    let mut fleet = Fleet::new(&lab, members, &options()).unwrap();
    let exchange = |fleet: &mut Fleet, attempts| {
        let exchange = Exchange {
            attempts,
            ..Exchange::to(service)
        };
        let mut run = linewarden_lab::fleet::RunOptions {
            window: 64,
            timeout: Duration::from_secs(120),
            stop: &AtomicBool::new(false),
            progress: &mut |_| {},
        };
        fleet.exchange(&exchange, &mut run).unwrap()
    };
    // The gate is closed to each device before its authentication, and open afterwards.
    let before = exchange(&mut fleet, 1);
    assert_eq!((before.echoed, echo.traffic().datagrams), (0, 0));
    let (report, _) = authenticate(&mut fleet, Duration::from_secs(120));
    assert_eq!(
        (report.authenticated, report.unfinished),
        (u64::from(device_count), 0),
        "{report:?}"
    );
    let after = exchange(&mut fleet, 5);
    assert_eq!((after.echoed, after.not_echoed), (u64::from(device_count), 0));
    assert_eq!(echo.finish().unwrap().sources.len(), device_count as usize);
    assert_eq!(gateway.counters().get(Verdict::ReplyAck), u64::from(device_count));
    for (name, histogram) in [
        ("latency", &report.latency_ns),
        ("network", &report.network_ns),
        ("puf", &report.puf_ns),
        ("echo", &after.round_trip_ns),
    ] {
        let quantile_us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        println!(
            "{name}: p50 {:.1} µs, p99 {:.1} µs",
            quantile_us(0.5),
            quantile_us(0.99)
        );
    }
    println!(
        "{:.0} authentications/s, {} retransmissions",
        report.per_second(),
        report.retransmitted
    );
}

#[test]
fn clones_with_other_chips_never_authenticate() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    let legitimate = enroll_devices(10, 11);
    let gateway = OracleGateway::start(&lab, &legitimate, |_| {});
    // All public data is copied; only the chips differ.
    let clones = legitimate
        .into_iter()
        .zip(enroll_devices(10, 12))
        .map(|(legitimate, chip_source)| linewarden_lab::fleet::Member {
            puf: chip_source.member.puf,
            ..legitimate.member
        })
        .collect();
    let mut fleet = Fleet::new(&lab, clones, &options()).unwrap();
    let (report, _) = authenticate(&mut fleet, Duration::from_secs(2));
    assert_eq!((report.authenticated, report.unfinished), (0, 10));
    assert!(report.puf_readings >= 10, "the clones received CHALLENGEs");
    let gateway = gateway.finish();
    let with_session = gateway
        .devices()
        .filter(|device| gateway.session(*device, now()).is_some());
    assert_eq!(with_session.count(), 0);
}

/// In a single-attempt run, clones do not block other devices: a clone stops after one handshake, and the next device starts.
#[test]
fn in_a_single_attempt_run_failed_devices_make_room_for_others() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    let legitimate = enroll_devices(12, 11);
    let gateway = OracleGateway::start(&lab, &legitimate, |_| {});
    let members = (0..).zip(legitimate.into_iter().zip(enroll_devices(12, 12)));
    let members = members.map(|(index, (legitimate, chip_source))| match index < 6 {
        true => linewarden_lab::fleet::Member {
            puf: chip_source.member.puf,
            ..legitimate.member
        },
        false => legitimate.member,
    });
    let mut fleet = Fleet::new(&lab, members.collect(), &options()).unwrap();
    let report = fleet
        .authenticate_once(&mut linewarden_lab::fleet::RunOptions {
            window: 2,
            timeout: Duration::from_secs(300),
            stop: &AtomicBool::new(false),
            progress: &mut |_| {},
        })
        .unwrap();
    assert_eq!((report.authenticated, report.unfinished), (6, 6), "{report:?}");
    assert_eq!(report.failures.values().sum::<u64>(), 6, "{report:?}");
    for index in fleet.indices() {
        let expected = match index < 6 {
            true => Outcome::Abandoned,
            false => Outcome::Authenticated,
        };
        assert_eq!(fleet.outcome(index), Some(expected), "{index}");
    }
    gateway.finish();
}
