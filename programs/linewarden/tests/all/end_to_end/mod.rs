//! A gateway, its controller and devices as their users run them.

mod bench;
mod controller;
mod diagnosis;
mod operated;
mod operations;
mod recovery;
mod rotation;

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{self, Namespace, Process, free_udp_port, require_root};

/// The directory and the network namespace of a scenario's processes.
struct Environment<'a> {
    directory: &'a Path,
    /// Command prefix that enters a network namespace.
    wrapper: Vec<String>,
}

impl Environment<'_> {
    /// A [`support::command`] with the wrapper.
    #[track_caller]
    fn command(&self, command_line: &str) -> Command {
        let inner = support::command(self.directory, command_line);
        let Some((program, arguments)) = self.wrapper.split_first() else {
            return inner;
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(self.directory);
        command
    }

    #[track_caller]
    fn run(&self, command_line: &str) {
        support::run(self.command(command_line));
    }

    fn start(&self, command_line: &str) -> Process {
        Process::start(self.command(command_line))
    }

    /// Starts the controller of `controller.toml`, and waits until it serves gateways.
    fn start_controller(&self) -> Process {
        support::start_controller(self.directory)
    }
}

/// The scenario on one data plane: two devices renew their sessions, one device is revoked, all processes are stopped.
fn scenario(environment: &Environment<'_>, dataplane: &str) {
    let port = free_udp_port();
    std::fs::write(
        environment.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"{dataplane}\"\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\", \"::1\"]\n\
             port = {port}\nsession_lifetime_s = 2\nslots = 100\nthreads = 1\n\
             [controller]\nsocket = \"controller.sock\"\n"
        ),
    )
    .unwrap();
    support::write_controller_config(environment.directory);
    environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
    environment.run(
        "linewarden device enroll simulated --device d1 --rows 40 --out devices --config controller.toml",
    );
    environment.run(
        "linewarden device enroll simulated --device d2 --model sram --out devices --config controller.toml",
    );
    let controller = environment.start_controller();
    let gateway =
        environment.start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    let loaded = gateway.wait_for("loaded fleet", |line| {
        line["event"] == "status" && line["loaded"] == true
    });
    assert_eq!(loaded["devices"], 0, "no device has authenticated yet");

    // Each device has its own address: no two live sessions may share an address.
    let agent = |id: &str, address: &str| {
        let arguments = format!(
            "linewarden-agent run --config devices/00000000000000{id}.toml --gateway {address}:{port} --output json"
        );
        environment.start(&arguments)
    };
    let revoked_agent = agent("d1", "127.0.0.1");
    let other_agent = agent("d2", "[::1]");
    for _ in 0..3 {
        revoked_agent.event("authenticated");
        other_agent.event("authenticated");
    }
    let rows = |process: &Process| -> Vec<u64> {
        let sessions = process.events("authenticated");
        sessions
            .iter()
            .map(|line| line["row"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(
        rows(&revoked_agent),
        [0, 1, 2],
        "renewed in time, each session with the next row"
    );
    assert!(
        revoked_agent.events("session_expired").is_empty()
            && other_agent.events("session_expired").is_empty()
    );

    environment.run("linewarden device revoke d1 --reason lost --config controller.toml");
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    gateway.wait_for("refused packets", |line| {
        line["counters"]["drop_revoked"].as_u64() > Some(0)
    });
    revoked_agent.event("session_expired");
    other_agent.event("authenticated");

    revoked_agent.terminate();
    assert_eq!(other_agent.terminate().last().unwrap()["event"], "stopped");
    let lines = gateway.terminate();
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "stopped");
    assert!(last["counters"]["reply_ack"].as_u64() >= Some(6), "{last}");
    assert_eq!(last["counters"]["drop_tag"], Value::Null, "{last}");
    controller.terminate();
}

#[test]
fn on_host_a_device_keeps_its_session_until_its_revocation() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    scenario(&environment, "host");
}

/// Runs a scenario in a private network namespace. Skips the test if the user lacks the privilege.
fn in_private_namespace(scenario: impl Fn(&Environment<'_>)) {
    let namespace = Namespace::require();
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: namespace.wrapper(),
    };
    scenario(&environment);
}

#[test]
fn on_xdp_a_device_keeps_its_session_until_its_revocation() {
    in_private_namespace(|environment| scenario(environment, "xdp"));
}

#[test]
fn the_error_of_xdp_without_privileges_names_capabilities_and_alternatives() {
    require_root();
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: vec![
            "setpriv".to_owned(),
            "--bounding-set=-all".to_owned(),
            "--inh-caps=-all".to_owned(),
        ],
    };
    std::fs::write(
        directory.path().join("gateway.toml"),
        "[gateway]\nid = 5\ninterfaces = [\"lo\"]\n[controller]\nsocket = \"controller.sock\"\n",
    )
    .unwrap();
    let output = environment
        .command("linewarden-gateway run --config gateway.toml")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("CAP_BPF") && error.contains("host"), "{error}");
}
