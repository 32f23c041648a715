//! A gate after the end of its gateway, and the removal of the gate.

use std::time::{Duration, Instant};

use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use nix::sys::signal::Signal;

use super::{site, site_with_gate};
use crate::support::{BpfFilesystem, require};

#[test]
fn a_gate_stays_closed_without_its_gateway_until_it_is_removed() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let site = site(
        directory.path(),
        &format!("pin_directory = \"{}/gates\"", filesystem.path().display()),
    );
    assert!(site.passes(), "no gate before the start");

    let gateway = site.serve();
    assert!(!site.passes());
    for command_line in [
        "linewarden-gateway run --config gateway.toml",
        "linewarden-gateway remove-gate --config gateway.toml",
    ] {
        let error = site.refused(command_line);
        assert!(error.contains("another gateway"), "{error}");
    }
    gateway.end(Signal::SIGKILL);
    assert!(!site.passes(), "after SIGKILL");

    let gateway = site.serve();
    assert!(!site.passes(), "the next process has replaced the gate");
    gateway.end(Signal::SIGTERM);
    assert!(!site.passes(), "after SIGTERM");

    let removed = site.run("linewarden-gateway remove-gate --config gateway.toml");
    assert!(removed.status.success());
    assert!(String::from_utf8(removed.stdout).unwrap().contains("1 interface"));
    assert!(site.passes());
    let output = site.run("linewarden-gateway remove-gate --config gateway.toml");
    assert!(String::from_utf8(output.stdout).unwrap().contains("no gate"));
}

#[test]
fn a_gate_opens_at_the_end_of_its_gateway_if_configured() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    let gateway = site.serve();
    assert!(!site.passes());
    gateway.end(Signal::SIGKILL);
    assert!(site.passes());
}

/// A sealed gate also has an egress filter. The filter remains after the end of the gateway, and is removed with the gate.
#[test]
fn a_sealed_gate_stays_closed_in_both_directions_until_it_is_removed() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.path().display());
    let site = site_with_gate("sealed", directory.path(), &pins);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let gateway = site.serve();
        assert!(!site.passes() && site.is_filtered());
        gateway.end(signal);
        assert!(!site.passes() && site.is_filtered(), "{signal}");
    }
    // A bound gate that replaces the sealed gate removes the egress filter.
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("sealed", "bound")).unwrap();
    site.serve().end(Signal::SIGTERM);
    assert!(!site.passes() && !site.is_filtered());
    std::fs::write(&path, text).unwrap();
    site.serve().end(Signal::SIGKILL);
    site.ok("linewarden-gateway remove-gate --config gateway.toml");
    assert!(site.passes() && !site.is_filtered());
}

#[test]
fn a_sealed_gate_opens_at_the_end_of_its_gateway_if_configured() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site_with_gate("sealed", directory.path(), "gate_on_exit = \"remove\"");
    let gateway = site.serve();
    assert!(!site.passes());
    gateway.end(Signal::SIGTERM);
    assert!(site.passes() && !site.is_filtered());
    let gateway = site.serve();
    gateway.end(Signal::SIGKILL);
    assert!(site.is_filtered(), "no process has removed the filter");
    // The filter passes traffic when the freshness value is older than 16 s.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !site.passes() {
        assert!(Instant::now() < deadline);
    }
    let gateway = site.serve();
    assert!(!site.passes(), "the next process replaces the gate");
    gateway.end(Signal::SIGTERM);
    assert!(site.passes() && !site.is_filtered());
}

/// A changed configuration, or a configuration of another version, must not prevent the removal of a gate.
#[test]
fn a_gate_is_removed_by_a_configuration_that_cannot_start() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!(
        "pin_directory = \"{}\"",
        filesystem.path().join("gates").display()
    );
    let site = site(directory.path(), &pins);
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let five_addresses = (1..=5)
        .map(|host| format!("\"127.0.0.{host}\""))
        .collect::<Vec<_>>();
    let invalid = text
        .replace("[\"127.0.0.0/8\"]", "[]\nunknown = true")
        .replace("slots = 16", "slots = 0")
        .replace("[\"127.0.0.1\"]", &format!("[{}]", five_addresses.join(", ")))
        .replace("[controller]", "[log]\nlevel = \"loud\"\n[unknown]")
        .replace("gate = \"bound\"", "gate = 7");
    site.serve().end(Signal::SIGKILL);
    assert!(!site.passes(), "the gate stays closed");
    std::fs::write(&path, &invalid).unwrap();
    site.refused("linewarden-gateway run --config gateway.toml");
    let removed = site.run("linewarden-gateway remove-gate --config gateway.toml");
    assert!(removed.status.success() && site.passes(), "{removed:?}");
    // The removal does not guess a missing setting.
    for (required, replacement) in [("id = 5\n", ""), ("interfaces = [\"lo\"]", "interfaces = 1")] {
        std::fs::write(&path, invalid.replace(required, replacement)).unwrap();
        site.refused("linewarden-gateway remove-gate --config gateway.toml");
    }
}
