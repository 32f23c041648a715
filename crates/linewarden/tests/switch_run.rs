//! Command lines that were written for simple_switch.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/capture.rs"]
mod capture;
mod support;

use std::path::{Path, PathBuf};
use std::time::Instant;

use capture::{capture, captured, ipv6};
use linewarden_switch::ports::packet::{self, PacketOptions};
use serde_json::Value;
use support::{Namespace, TEST_TIMEOUT, assert_echoed_with_size, linewarden};

/// A program that forwards port 0 to port 1, and port 1 to port 0.
fn program() -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/compiled/evidence.json");
    compiled.canonicalize().unwrap()
}

/// Sends three frames to p0; returns the exit code, the switch's report, its standard error, and the number of frames at p1.
fn ran(arguments: &str) -> (Option<i32>, Option<Value>, String, usize) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let sent: Vec<Vec<u8>> = (0..3).map(|at| ipv6(&[at; 40])).collect();
    std::fs::write(at.join("p0_in.pcap"), capture(&sent)).unwrap();
    std::fs::write(at.join("p1_in.pcap"), capture(&[])).unwrap();
    let arguments = format!(
        "switch run --json {} --use-files 0 -i 0@p0 -i 1@p1 {arguments}",
        program().display()
    );
    let output = linewarden(at, &arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = String::from_utf8_lossy(&output.stdout)
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok());
    let forwarded = at.join("p1_out.pcap");
    let forwarded = if forwarded.exists() {
        captured(&forwarded).len()
    } else {
        0
    };
    (output.status.code(), report, errors, forwarded)
}

#[test]
fn flags_of_simple_switch_have_the_same_effect() {
    let (code, report, errors, forwarded) = ran("");
    assert_eq!((code, forwarded), (Some(0), 3), "{errors}");
    assert_eq!(report.unwrap()["dropped"], 0);
    // The program sends the frames to port 1, which is now the drop port.
    let (code, report, errors, forwarded) = ran("-- --drop-port 1 --priority-queues 8");
    assert_eq!((code, forwarded), (Some(0), 0), "{errors}");
    assert_eq!(report.unwrap()["dropped"], 3);
}

#[test]
fn flags_without_effect_are_accepted_with_a_warning() {
    let (code, _, errors, forwarded) = ran(
        "--log-console --log-flush --thrift-port 9090 -L debug --nanolog ipc://log --notifications-addr ipc://events -- \
         --enable-swap",
    );
    assert_eq!((code, forwarded), (Some(0), 3), "{errors}");
    for flag in ["thrift-port", "log-level", "nanolog", "notifications-addr"] {
        assert!(
            errors.contains("option of simple_switch has no effect")
                && errors.contains(&format!("option=\"{flag}\"")),
            "{flag}: {errors}"
        );
    }
    assert!(
        !errors.contains("enable-swap") && !errors.contains("log-console"),
        "{errors}"
    );
}

#[test]
fn unsupported_flags_name_an_alternative() {
    for (flag, instead) in [
        ("--pcap=captures", "tcpdump"),
        ("--pcap", "tcpdump"),
        ("--log-file all.log", "standard error"),
        ("--restore-state state", "controller"),
        ("-- --load-modules m.so", "v1model"),
    ] {
        let (code, _, errors, forwarded) = ran(flag);
        assert_eq!((code, forwarded), (Some(2), 0), "{flag}: {errors}");
        assert!(
            errors.contains("is not supported") && errors.contains(instead),
            "{flag}: {errors}"
        );
    }
}

#[test]
fn duplicate_ports_and_interfaces_are_rejected() {
    for (arguments, cause) in [
        ("-i 0@p2", "-i 0@p2: conflicts with -i 0@p0"),
        ("-i 2@p1", "-i 2@p1: conflicts with -i 1@p1"),
        ("-i 510@p2 --cpu-port 510", "port 510 is the port of --cpu-port"),
    ] {
        let (code, _, errors, forwarded) = ran(arguments);
        assert_eq!((code, forwarded), (Some(2), 0), "{arguments}: {errors}");
        assert!(errors.contains(cause), "{arguments}: {errors}");
    }
}

/// Two hosts whose network stacks leave checksums unfinished, and a switch between them on AF_XDP.
#[test]
fn hosts_reach_each_other_by_af_xdp() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (Some(middle), Some(client), Some(server)) = (Namespace::new(), Namespace::new(), Namespace::new())
    else {
        println!("SKIPPED: network namespaces need root");
        return;
    };
    for (port, end, host, number) in [("p0", "c0", &client, 1), ("p1", "s0", &server, 2)] {
        middle.run(
            at,
            &format!(
                "ip link add name {port} type veth peer name {end} netns {}",
                host.pid()
            ),
        );
        middle.run(at, &format!("ip link set dev {port} up"));
        host.run(at, &format!("sysctl -qw net.ipv6.conf.{end}.disable_ipv6=1"));
        host.run(at, &format!("ip addr add 10.9.1.{number}/24 dev {end}"));
        host.run(at, &format!("ip link set dev {end} up"));
    }
    let arguments = format!(
        "switch run --json --io xdp {} -i 0@p0 -i 1@p1 --grpc-server-addr 127.0.0.1:0",
        program().display()
    );
    let switch = middle.start(at, &arguments);
    switch.wait_for("the server", |line| line["p4runtime"].is_string());
    assert!(middle.run(at, "ip link show dev p0").contains("prog/xdp"));

    server.echo("10.9.1.2:7".parse().unwrap());
    let socket = client.socket("10.9.1.1:0".parse().unwrap());
    for bytes in [1, 100, 1472] {
        assert_echoed_with_size(&socket, "10.9.1.2:7".parse().unwrap(), bytes);
    }

    let open = |host: &Namespace, end| {
        let packet_socket = host.inside().run(|| packet::open(end, &PacketOptions::default()));
        packet_socket.unwrap().unwrap()
    };
    let (mut sender, mut receiver) = (open(&client, "c0").sender, open(&server, "s0").receiver);
    let mut tagged = vec![2; 12];
    tagged.extend([0x81, 0, 0x20, 5, 0x88, 0xb6, 1, 2, 3]);
    sender.send(&tagged, &[]).unwrap();
    sender.flush().unwrap();
    let start = Instant::now();
    let mut received = false;
    while !received {
        assert!(start.elapsed() < TEST_TIMEOUT, "no tagged frame came");
        receiver
            .receive(64, &mut |frame| received |= frame == tagged)
            .unwrap();
        std::thread::yield_now();
    }
    let report = switch.terminate();
    let ports = &report.last().unwrap()["ports"];
    assert!(ports[0]["received"].as_u64() >= Some(4), "{report:#?}");
    assert!(ports[1]["sent"].as_u64() >= Some(4), "{report:#?}");
}
