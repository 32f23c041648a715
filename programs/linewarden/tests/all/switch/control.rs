//! `linewarden-switch run` with p4runtime-shell as controller, and with packets over real interfaces.
//!
//! The tests use the Python interpreter that `LINEWARDEN_P4RUNTIME_PYTHON` names, or else `.venv/bin/python` of this repository.
//! p4runtime-shell 0.0.6 must be installed for this interpreter.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use linewarden_harness::skip;
use serde_json::{Value, json};

use super::expect_failure;
use crate::support::capture::capture;
use crate::support::{Namespace, run};

/// The Python interpreter with p4runtime-shell. Skips the test if there is no such interpreter.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("LINEWARDEN_P4RUNTIME_PYTHON")
        .map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    let import = Command::new(&python)
        .args(["-c", "import p4runtime_sh.shell"])
        .stderr(Stdio::null())
        .status();
    if !import.is_ok_and(|status| status.success()) {
        skip!("p4runtime-shell is not installed for Python (see tests/all/switch/control.rs)");
    }
    python
}

/// A namespace with four veth pairs. The test uses the interfaces hN, and the switch uses the interfaces pN.
fn network(directory_path: &Path) -> Namespace {
    let namespace = Namespace::require();
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
    namespace
}

/// A command that runs `program` in the namespace.
fn command_in(namespace: &Namespace, program: &Path) -> Command {
    let wrapper = namespace.wrapper();
    let mut command = Command::new(&wrapper[0]);
    command.args(&wrapper[1..]).arg(program);
    command
}

fn tests_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/switch")
}

/// A path in the directory `crates`.
fn in_crates(path: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    crates.canonicalize().unwrap().join(path)
}

/// The directory with the P4 program of the tests.
fn data() -> PathBuf {
    in_crates("switch/tests/control/data")
}

const PORTS: &str = "-i 0@p0 -i 1@p1 -i 2@p2 -i 3@p3";

#[test]
fn p4runtime_shell_controls_a_switch_that_forwards_packets() {
    let python = python();
    let directory = tempfile::tempdir().unwrap();
    let namespace = network(directory.path());
    let arguments = format!(
        "linewarden-switch run --output json --no-p4 --grpc-server-addr 127.0.0.1:0 --device-id 5 --cpu-port 510 {PORTS}"
    );
    let switch = namespace.start(directory.path(), &arguments);
    let server_line = switch.wait_for("server", |line| line["p4runtime"].is_string());
    assert_eq!(server_line["device_id"], 5);
    let mut shell = command_in(&namespace, &python);
    shell
        .arg(tests_directory().join("control/shell.py"))
        .arg(server_line["p4runtime"].as_str().unwrap())
        .arg(data());
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
    let python = python();
    let directory = tempfile::tempdir().unwrap();
    let namespace = network(directory.path());
    let data = data();
    let data = data.display();
    let arguments = format!(
        "linewarden-switch run --output json {data}/packets.json --p4info {data}/packets.p4info.txtpb \
         --grpc-server-addr 127.0.0.1:0 {PORTS}"
    );
    let switch = namespace.start(directory.path(), &arguments);
    let server_line = switch.wait_for("server", |line| line["p4runtime"].is_string());
    let mut shell = command_in(&namespace, &python);
    shell
        .arg(tests_directory().join("control/until_the_end.py"))
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
    let (data, other_p4info) = (data(), in_crates("p4runtime/tests/data/everything.p4info.txtpb"));
    let (data, other_p4info) = (data.display(), other_p4info.display());
    for (command_line, code, cause) in [
        ("linewarden-switch run -i 0@p0".to_owned(), 2, "PROGRAM.json"),
        (
            format!("linewarden-switch run --no-p4 {data}/packets.json -i 0@p0"),
            2,
            "cannot be used with",
        ),
        (
            "linewarden-switch run --no-p4 --cpu-port 512 -i 0@p0".to_owned(),
            2,
            "512",
        ),
        (
            format!(
                "linewarden-switch run {data}/packets.json --p4info {other_p4info} --use-files 0 -i 0@p0"
            ),
            2,
            "P4Info does not match the program",
        ),
        (
            format!("linewarden-switch run {data}/packets.json --cpu-port 0 --use-files 0 -i 0@p0"),
            2,
            "port 0 is the port of --cpu-port",
        ),
    ] {
        std::fs::write(directory.path().join("p0_in.pcap"), capture(&[])).unwrap();
        let errors = expect_failure(directory.path(), &command_line, code);
        assert!(errors.contains(cause), "{command_line}: {errors}");
    }
}
