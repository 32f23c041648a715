//! `linewarden switch run` with p4runtime-shell as controller, and with packets over real interfaces.
//!
//! The tests use the Python interpreter that `LINEWARDEN_P4RUNTIME_PYTHON` names, or else `.venv/bin/python` of this repository.
//! p4runtime-shell 0.0.6 must be installed for this interpreter.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{Namespace, run};

fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("LINEWARDEN_P4RUNTIME_PYTHON")
        .map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    let import = Command::new(&python)
        .args(["-c", "import p4runtime_sh.shell"])
        .stderr(Stdio::null())
        .status();
    import.is_ok_and(|status| status.success()).then_some(python)
}

/// A namespace with four veth pairs. The test uses the interfaces hN, and the switch uses the interfaces pN.
fn network(directory_path: &Path) -> Option<Namespace> {
    let namespace = Namespace::new()?;
    for port in 0..4 {
        namespace.run(
            directory_path,
            &format!("ip link add name h{port} type veth peer name p{port}"),
        );
        for interface in [format!("h{port}"), format!("p{port}")] {
            namespace.run(
                directory_path,
                &format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=1"),
            );
            namespace.run(directory_path, &format!("ip link set dev {interface} up"));
        }
    }
    Some(namespace)
}

/// A command that runs `program` in the namespace.
fn command_in(namespace: &Namespace, program: &Path) -> Command {
    let wrapper = namespace.wrapper();
    let mut command = Command::new(&wrapper[0]);
    command.args(&wrapper[1..]).arg(program);
    command
}

fn tests_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

const PORTS: &str = "-i 0@p0 -i 1@p1 -i 2@p2 -i 3@p3";

#[test]
fn p4runtime_shell_controls_a_switch_that_forwards_packets() {
    let Some(python) = python() else {
        println!("SKIPPED: p4runtime-shell is not installed for Python (see tests/switch_control.rs)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let Some(namespace) = network(directory.path()) else {
        println!("SKIPPED: network namespaces need root");
        return;
    };
    let arguments = format!(
        "switch run --json --no-p4 --grpc-server-addr 127.0.0.1:0 --device-id 5 --cpu-port 510 {PORTS}"
    );
    let switch = namespace.start(directory.path(), &arguments);
    let server_line = switch.wait_for("server", |line| line["p4runtime"].is_string());
    assert_eq!(server_line["device_id"], 5);
    let mut shell = command_in(&namespace, &python);
    shell
        .arg(tests_directory().join("switch_control/shell.py"))
        .arg(server_line["p4runtime"].as_str().unwrap())
        .arg(tests_directory().join("../../switch/tests/control/data"));
    let text = run(shell);
    assert!(
        text.contains("all packets arrived at the expected ports"),
        "{text}"
    );
    let lines = switch.terminate();
    let report = lines.last().unwrap();
    let ports: Vec<&Value> = report["ports"].as_array().unwrap().iter().collect();
    assert_eq!(ports.len(), 5);
    assert_eq!(ports[4]["interface"], "controllers");
    assert_eq!(report["events_lost"], 0);
    assert!(
        ports.iter().all(|port| port["sent"].as_u64() > Some(0)),
        "{report}"
    );
}

/// A controller can control a program that the switch has loaded with its P4Info. A connected controller is notified when the
/// switch ends.
#[test]
fn a_controller_can_control_a_program_that_is_already_loaded() {
    let Some(python) = python() else {
        println!("SKIPPED: p4runtime-shell is not installed for Python (see tests/switch_control.rs)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let Some(namespace) = network(directory.path()) else {
        println!("SKIPPED: network namespaces need root");
        return;
    };
    let data = tests_directory()
        .join("../../switch/tests/control/data")
        .canonicalize()
        .unwrap();
    let data = data.display();
    let arguments = format!(
        "switch run --json {data}/packets.json --p4info {data}/packets.p4info.txtpb \
         --grpc-server-addr 127.0.0.1:0 {PORTS}"
    );
    let switch = namespace.start(directory.path(), &arguments);
    let server_line = switch.wait_for("server", |line| line["p4runtime"].is_string());
    let mut shell = command_in(&namespace, &python);
    shell
        .arg(tests_directory().join("switch_control/until_the_end.py"))
        .arg(server_line["p4runtime"].as_str().unwrap())
        .arg(switch.id().to_string());
    let text = run(shell);
    assert!(text.contains("server is shutting down"), "{text}");
    let lines = switch.wait_for_success();
    assert_eq!(lines.last().unwrap()["dropped"], json!(0));
}

#[test]
fn contradictory_options_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let data = tests_directory()
        .join("../../switch/tests/control/data")
        .canonicalize()
        .unwrap();
    let other_p4info = tests_directory()
        .join("../../p4runtime/tests/data/everything.p4info.txtpb")
        .canonicalize()
        .unwrap();
    let (data, other_p4info) = (data.display(), other_p4info.display());
    for (arguments, code, cause) in [
        ("switch run -i 0@p0".to_owned(), 2, "PROGRAM.json"),
        (
            format!("switch run --no-p4 {data}/packets.json -i 0@p0"),
            2,
            "cannot be used with",
        ),
        ("switch run --no-p4 --cpu-port 512 -i 0@p0".to_owned(), 2, "512"),
        (
            format!("switch run {data}/packets.json --p4info {other_p4info} --use-files 0 -i 0@p0"),
            2,
            "P4Info does not match the program",
        ),
        (
            format!("switch run {data}/packets.json --cpu-port 0 --use-files 0 -i 0@p0"),
            2,
            "port 0 is the port of --cpu-port",
        ),
    ] {
        // A capture file without packets.
        let header = [
            0xd4u8, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
        ];
        std::fs::write(directory.path().join("p0_in.pcap"), header).unwrap();
        let output = support::linewarden(directory.path(), &arguments)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {errors}");
        assert!(errors.contains(cause), "{arguments}: {errors}");
    }
}
