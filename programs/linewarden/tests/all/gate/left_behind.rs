//! A closed gate that the configuration of the next gateway does not replace.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use nix::sys::signal::Signal;

use super::{Gateway, site, site_with_gate};
use crate::support::{BpfFilesystem, require};

/// If a new configuration does not replace a closed gate, `check` and `run` report the gate's gateway and the remedy. The
/// removal works with the new configuration.
#[test]
fn a_closed_gate_is_reported_if_the_configuration_does_not_replace_the_gate() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.path().display());
    let site = site_with_gate("bound", directory.path(), &pins);
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    for (field, line) in [
        ("gate", "gate = \"off\""),
        ("dataplane", "gate = \"off\"\ndataplane = \"host\""),
        ("gate_on_exit", "gate = \"bound\"\ngate_on_exit = \"remove\""),
    ] {
        let changed_text = text.replace("gate = \"bound\"", line);
        std::fs::write(&path, &text).unwrap();
        let gateway = site.serve();
        std::fs::write(&path, &changed_text).unwrap();
        let output = site.run("linewarden-gateway check --machine gateway.toml");
        assert!(output.status.success(), "while the gateway runs: {output:?}");
        gateway.end(Signal::SIGKILL);
        for command_line in [
            "linewarden-gateway check --machine gateway.toml",
            "linewarden-gateway run --config gateway.toml",
        ] {
            let error = site.refused(command_line);
            let expected = format!("gateway.{field}: the gate that gateway 5 left is still on lo");
            assert!(
                error.contains(&expected)
                    && error.contains("linewarden-gateway remove-gate --config gateway.toml"),
                "{error}"
            );
        }
        assert!(!site.passes());
        let removed = site.run("linewarden-gateway remove-gate --config gateway.toml");
        assert!(removed.status.success());
        assert_eq!(
            String::from_utf8(removed.stderr).unwrap(),
            "",
            "no message of libbpf"
        );
        assert!(site.passes());
        site.ok("linewarden-gateway check --machine gateway.toml");
        let gate_count = std::fs::read_dir(filesystem.path().join("gates"))
            .unwrap()
            .count();
        assert_eq!(gate_count, 0, "the removal leaves nothing");
    }
}

#[test]
fn a_replaced_gate_of_another_gateway_is_reported() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.path().display());
    let site = site_with_gate("bound", directory.path(), &pins);
    site.serve().end(Signal::SIGKILL);
    let check_warnings = || {
        let checked = site.run("linewarden-gateway check --machine gateway.toml");
        assert!(checked.status.success());
        String::from_utf8(checked.stderr).unwrap()
    };
    assert_eq!(check_warnings(), "", "no warning about the own gate of gateway 5");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("id = 5", "id = 6")).unwrap();
    let warnings = check_warnings();
    assert!(
        warnings.contains("the gate that gateway 5 left is still on lo")
            && warnings.contains("gateway 6 replaces the gate"),
        "{warnings}"
    );
    // The pinned memory of gateway 5 can be removed, although gateway 6 now uses the interface of gateway 5.
    let memories = || {
        let entries = std::fs::read_dir(filesystem.path().join("gates")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.contains("-gateway-")).collect();
        names.sort();
        names
    };
    let memories_before = memories();
    assert_eq!(memories_before.len(), 1, "the memory of gateway 5");
    let gateway = site.serve();
    assert_eq!(memories().len(), 2);
    std::fs::write(&path, &text).unwrap();
    let error = site.refused("linewarden-gateway remove-gate --config gateway.toml");
    assert!(error.contains("another gateway uses this directory"), "{error}");
    assert_eq!(memories().len(), 1);
    assert_ne!(memories(), memories_before, "the memory of gateway 6 remains");
    std::fs::write(&path, text.replace("id = 5", "id = 6")).unwrap();
    gateway.end(Signal::SIGKILL);
    assert_eq!(check_warnings(), "", "the gate now belongs to gateway 6");
}

/// A gateway without an interface does not start beside a closed gate either.
#[test]
fn a_gate_on_an_interface_outside_the_configuration_is_reported() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.path().display());
    let site = site_with_gate("bound", directory.path(), &pins);
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    site.serve().end(Signal::SIGKILL);
    let host_configuration = text
        .replace("interfaces = [\"lo\"]\n", "")
        .replace("gate = \"bound\"", "gate = \"off\"\ndataplane = \"host\"");
    std::fs::write(&path, host_configuration).unwrap();
    for command_line in [
        "linewarden-gateway check --machine gateway.toml",
        "linewarden-gateway run --config gateway.toml",
    ] {
        let error = site.refused(command_line);
        assert!(
            error.contains("gateway.dataplane: the gate that gateway 5 left is still on interface 1")
                && error.contains("where FILE names the interface in `interfaces`"),
            "{error}"
        );
    }
    std::fs::write(&path, text).unwrap();
    site.ok("linewarden-gateway remove-gate --config gateway.toml");
    assert!(site.passes());
}

/// An interface that was removed from the configuration keeps the program of the gate: the start reports the interface.
#[test]
fn an_interface_removed_from_the_configuration_is_reported() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.path().display());
    let site = site(directory.path(), &pins);
    site.ok("ip link add stray0 type veth peer name stray1");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[\"lo\"]", "[\"lo\", \"stray0\"]")).unwrap();
    site.serve().end(Signal::SIGKILL);
    std::fs::write(&path, text).unwrap();
    let mut command = site.command("linewarden-gateway run --config gateway.toml --output json");
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = site.namespace.run(|| command.spawn().unwrap()).unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let gateway = Gateway(child);
    assert!(
        lines
            .map(Result::unwrap)
            .any(|line| line.contains("an interface that the configuration does not name"))
    );
    drop(gateway);
}
