//! `linewarden-switch run` with command lines for simple_switch, the reference switch of BMv2; and with AF_XDP ports.

use std::path::PathBuf;
use std::time::Instant;

use linewarden_switch::ports::packet::{self, PacketOptions};
use serde_json::Value;

use super::compiled;
use crate::support::capture::{capture, ipv6, read_capture};
use crate::support::{Namespace, TEST_TIMEOUT, assert_echoed_with_size, command};

/// A program that forwards port 0 to port 1, and port 1 to port 0.
fn program() -> PathBuf {
    compiled("evidence")
}

/// Runs a switch that receives three frames at p0. Returns the exit code, the switch's report, the switch's standard error, and
/// the number of frames that the switch sent to p1.
fn run_switch(arguments: &str) -> (Option<i32>, Option<Value>, String, usize) {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let sent: Vec<Vec<u8>> = (0..3).map(|byte| ipv6(&[byte; 40])).collect();
    std::fs::write(directory_path.join("p0_in.pcap"), capture(&sent)).unwrap();
    std::fs::write(directory_path.join("p1_in.pcap"), capture(&[])).unwrap();
    let arguments = format!(
        "linewarden-switch run --output json {} --use-files 0 -i 0@p0 -i 1@p1 {arguments}",
        program().display()
    );
    let output = command(directory_path, &arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = String::from_utf8_lossy(&output.stdout)
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok());
    let output_path = directory_path.join("p1_out.pcap");
    let forwarded_count = if output_path.exists() {
        read_capture(&output_path).len()
    } else {
        0
    };
    (output.status.code(), report, errors, forwarded_count)
}

#[test]
fn flags_of_simple_switch_have_the_same_effect() {
    let (code, report, errors, forwarded_count) = run_switch("");
    assert_eq!((code, forwarded_count), (Some(0), 3), "{errors}");
    assert_eq!(report.unwrap()["dropped"], 0);
    // The program sends the frames to port 1, which is now the drop port.
    let (code, report, errors, forwarded_count) = run_switch("-- --drop-port 1 --priority-queues 8");
    assert_eq!((code, forwarded_count), (Some(0), 0), "{errors}");
    assert_eq!(report.unwrap()["dropped"], 3);
}

#[test]
fn flags_without_effect_are_accepted_with_a_warning() {
    let (code, _, errors, forwarded_count) = run_switch(
        "--log-console --log-flush --thrift-port 9090 -L debug --nanolog ipc://log --notifications-addr ipc://events -- \
         --enable-swap",
    );
    assert_eq!((code, forwarded_count), (Some(0), 3), "{errors}");
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
    for (flag, alternative) in [
        ("--pcap=captures", "tcpdump"),
        ("--pcap", "tcpdump"),
        ("--log-file all.log", "standard error"),
        ("--restore-state state", "controller"),
        ("-- --load-modules m.so", "v1model"),
    ] {
        let (code, _, errors, forwarded_count) = run_switch(flag);
        assert_eq!((code, forwarded_count), (Some(2), 0), "{flag}: {errors}");
        assert!(
            errors.contains("is not supported") && errors.contains(alternative),
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
        let (code, _, errors, forwarded_count) = run_switch(arguments);
        assert_eq!((code, forwarded_count), (Some(2), 0), "{arguments}: {errors}");
        assert!(errors.contains(cause), "{arguments}: {errors}");
    }
}

/// Two hosts exchange datagrams through a switch with AF_XDP ports. The hosts' network stacks send frames with partial checksums.
/// A frame with a VLAN tag also passes.
#[test]
fn hosts_reach_each_other_by_af_xdp() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let [switch_namespace, client, server] = [(); 3].map(|()| Namespace::require());
    for (port, interface, host, number) in [("p0", "c0", &client, 1), ("p1", "s0", &server, 2)] {
        switch_namespace.run(
            directory_path,
            &format!(
                "ip link add name {port} type veth peer name {interface} netns {}",
                host.pid()
            ),
        );
        switch_namespace.run(directory_path, &format!("ip link set dev {port} up"));
        host.run(
            directory_path,
            &format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=1"),
        );
        host.run(
            directory_path,
            &format!("ip addr add 10.9.1.{number}/24 dev {interface}"),
        );
        host.run(directory_path, &format!("ip link set dev {interface} up"));
    }
    let arguments = format!(
        "linewarden-switch run --output json --io xdp {} -i 0@p0 -i 1@p1 --grpc-server-addr 127.0.0.1:0",
        program().display()
    );
    let switch = switch_namespace.start(directory_path, &arguments);
    switch.wait_for("the server", |line| line["p4runtime"].is_string());
    assert!(
        switch_namespace
            .run(directory_path, "ip link show dev p0")
            .contains("prog/xdp")
    );

    server.echo("10.9.1.2:7".parse().unwrap());
    let socket = client.socket("10.9.1.1:0".parse().unwrap());
    for bytes in [1, 100, 1472] {
        assert_echoed_with_size(&socket, "10.9.1.2:7".parse().unwrap(), bytes);
    }

    let open = |host: &Namespace, interface| {
        let packet_socket = host
            .inside()
            .run(|| packet::open(interface, &PacketOptions::default()));
        packet_socket.unwrap().unwrap()
    };
    let (mut sender, mut receiver) = (open(&client, "c0").sender, open(&server, "s0").receiver);
    let mut tagged = vec![2; 12];
    tagged.extend([0x81, 0, 0x20, 5, 0x88, 0xb6, 1, 2, 3]);
    sender.send(&tagged, &[]).unwrap();
    sender.flush().unwrap();
    let start = Instant::now();
    let mut has_arrived = false;
    while !has_arrived {
        assert!(start.elapsed() < TEST_TIMEOUT, "the tagged frame did not arrive");
        receiver
            .receive(64, &mut |frame| has_arrived |= frame == tagged)
            .unwrap();
        std::thread::yield_now();
    }
    let report = switch.terminate();
    let ports = &report.last().unwrap()["ports"];
    assert!(ports[0]["received"].as_u64() >= Some(4), "{report:#?}");
    assert!(ports[1]["sent"].as_u64() >= Some(4), "{report:#?}");
}
