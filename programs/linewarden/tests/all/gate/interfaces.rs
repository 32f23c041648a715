//! Interfaces of a gate, and their addresses.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use nix::sys::signal::Signal;

use super::{site, site_with_gate};
use crate::support::{BpfFilesystem, require};

/// If the peer of a veth has no XDP program, frames that XDP_TX sends into the veth are lost. `check` warns and names the remedy.
#[test]
fn check_warns_of_veth_interfaces() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.path().display());
    let site = site_with_gate("sealed", directory.path(), &pins);
    site.ok("ip link add inner0 type veth peer name inner1");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let interface_fields = "[\"lo\", \"inner0\"]\nforward_to = [\"inner1\"]";
    std::fs::write(&path, text.replace("[\"lo\"]", interface_fields)).unwrap();
    let output = site.run("linewarden-gateway check --machine gateway.toml");
    assert!(output.status.success());
    let warnings = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = warnings.lines().collect();
    assert_eq!(lines.len(), 2, "{warnings}");
    for (line, problem, requirement) in [
        (
            lines[0],
            "gateway.interfaces: inner0 is a veth",
            "GRO is not sufficient",
        ),
        (lines[1], "gateway.forward_to: inner1 is a veth", "or GRO;"),
    ] {
        assert!(
            line.contains(problem) && line.contains(requirement) && line.contains("xdpdrv obj pass.o"),
            "{line}"
        );
    }
}

/// A default that admits every address would disable the source check.
#[test]
fn an_interface_without_a_subnet_requires_device_prefixes() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    for command_line in [
        "ip link add port0 type veth peer name port1",
        "ip link add bridge0 type bridge",
        "ip link set port0 master bridge0",
    ] {
        site.ok(command_line);
    }
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path)
        .unwrap()
        .replace("[\"lo\"]", "[\"port0\"]");
    std::fs::write(&path, &text).unwrap();
    site.ok("linewarden-gateway check --machine gateway.toml");
    let text = text.replace("device_prefixes = [\"127.0.0.0/8\"]\n", "");
    std::fs::write(&path, &text).unwrap();
    let assert_missing_prefixes = |command_line: &str| {
        let error = site.refused(command_line);
        let is_reported = error.contains("device_prefixes is missing: interface port0");
        assert!(
            is_reported && error.contains("device_prefixes = [\"192.0.2.0/24\""),
            "{error}"
        );
    };
    assert_missing_prefixes("linewarden-gateway check --machine gateway.toml");
    // Subnets of 32 bits have no room for other hosts.
    site.ok("ip address add 10.9.0.1/32 dev bridge0");
    site.ok("ip address add 10.9.0.2/32 dev port0");
    assert_missing_prefixes("linewarden-gateway check --machine gateway.toml");
    std::fs::write(&path, text.replace("addresses = [\"127.0.0.1\"]\n", "")).unwrap();
    assert_missing_prefixes("linewarden-gateway run --config gateway.toml");
    std::fs::write(&path, &text).unwrap();
    site.ok("ip address add fd66::1/128 dev port0");
    site.ok("ip address add 10.9.0.3/24 dev bridge0");
    assert_missing_prefixes("linewarden-gateway check --machine gateway.toml");
    site.ok("ip address add fd66::2/64 dev bridge0");
    // Now `check` only warns, because services can be on another port of the bridge.
    let output = site.run("linewarden-gateway check --machine gateway.toml");
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{warnings}");
    for part in [
        "10.9.0.0/24 of bridge0",
        "device_prefixes = [\"10.9.0.0/24\", \"fd66::/64\"]",
    ] {
        assert!(warnings.contains(part), "{warnings}");
    }
    site.ok("ip link add port2 type veth peer name port3");
    site.ok("ip link set port2 master bridge0");
    let sealed = "gate = \"sealed\"\nforward_to = [\"port2\"]";
    std::fs::write(&path, text.replace("gate = \"bound\"", sealed)).unwrap();
    assert_missing_prefixes("linewarden-gateway check --machine gateway.toml");
}

/// A missing address, for example because of a slow DHCP server, must not end the gateway with exit code 2: the service manager
/// does not restart a gateway after this exit code.
#[test]
fn a_gateway_starts_before_its_interface_has_an_address_and_follows_address_changes() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    site.ok("ip link add port0 type veth peer name port1");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("[\"lo\"]", "[\"port0\"]")
        .replace("[\"127.0.0.1\"]", "[\"10.9.0.1\"]")
        .replace("device_prefixes = [\"127.0.0.0/8\"]\n", "");
    std::fs::write(&path, text).unwrap();
    let mut gateway = site.serve_to(Stdio::piped());
    let mut log = BufReader::new(gateway.0.stderr.take().unwrap()).lines();
    let mut read_log_until = |text: &str| -> Vec<String> {
        let mut log_lines = Vec::new();
        while log_lines.last().is_none_or(|line: &String| !line.contains(text)) {
            log_lines.push(log.next().expect(text).unwrap());
        }
        log_lines
    };
    read_log_until("interface port0, its bridge or bond, VLANs and macvlans have no address with a subnet");
    site.ok("ip address add 10.9.0.1/24 dev port0");
    let log_lines = read_log_until("device_prefixes=\"10.9.0.0/24\" excluded_addresses=2");
    assert!(
        !log_lines.iter().any(|line| line.contains("no subnet")),
        "the message is logged once: {log_lines:?}"
    );
    // The subnet of a macvlan on the interface, and a subnet within the first subnet.
    site.ok("ip link add link port0 name over0 type macvlan");
    site.ok("ip address add 10.9.7.1/24 dev over0");
    read_log_until("device_prefixes=\"10.9.0.0/24 10.9.7.0/24\" excluded_addresses=4");
    site.ok("ip address add 10.9.0.77/25 dev port0");
    read_log_until("device_prefixes=\"10.9.0.0/24 10.9.7.0/24\" excluded_addresses=6");
    site.ok("ip address flush dev port0");
    read_log_until("device_prefixes=\"10.9.7.0/24\" excluded_addresses=2");
    gateway.end(Signal::SIGTERM);
}

/// The kernel splits frames of 9,000 bytes into several buffers. A bound gate accepts these frames. A sealed gate needs
/// whole packets, and its error names the MTU.
#[test]
fn an_interface_with_jumbo_frames_is_served_by_a_bound_gate() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    site.ok("ip link add port0 mtu 9000 type veth peer name port1 mtu 9000");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("[\"lo\"]", "[\"port0\"]");
    std::fs::write(&path, &text).unwrap();
    site.serve().end(Signal::SIGTERM);
    std::fs::write(&path, text.replace("gate = \"bound\"", "gate = \"sealed\"")).unwrap();
    let error = site.refused("linewarden-gateway run --config gateway.toml");
    assert!(error.contains("9000"), "{error}");
}

/// If the data plane ends by itself, the gateway ends too, so that a service manager can restart the gateway.
#[test]
fn an_interface_that_goes_away_ends_the_gateway() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    site.ok("ip link add gone0 type veth peer name gone1");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[\"lo\"]", "[\"lo\", \"gone0\"]")).unwrap();
    let mut gateway = site.serve();
    site.ok("ip link delete gone0");
    assert_eq!(gateway.0.wait().unwrap().code(), Some(1));
}
