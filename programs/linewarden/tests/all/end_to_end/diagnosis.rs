//! Diagnostics of an agent that gets no session.

use std::fs::{self, File};

use super::*;

/// Creates a registry and a device with `rows` rows for a gateway on `host`.
fn prepare(environment: &Environment<'_>, port: u16, rows: u32) {
    fs::write(
        environment.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\nsession_lifetime_s = 2\n\
             slots = 100\nthreads = 1\n[controller]\nsocket = \"controller.sock\"\n"
        ),
    )
    .unwrap();
    support::write_controller_config(environment.directory);
    environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
    environment.run(&format!(
        "linewarden device enroll simulated --device d1 --rows {rows} --out devices --config controller.toml"
    ));
}

/// Starts an agent that writes its log to `agent.log`.
fn agent(environment: &Environment<'_>, arguments: &str) -> Process {
    let mut command = environment.command(&format!(
        "linewarden-agent run --config devices/00000000000000d1.toml --output json {arguments}"
    ));
    command.stderr(File::create(environment.directory.join("agent.log")).unwrap());
    Process::start(command)
}

fn log(environment: &Environment<'_>) -> String {
    fs::read_to_string(environment.directory.join("agent.log")).unwrap()
}

/// The registry's files return to an earlier state, as after the rollback of a disk, so the gateway offers used rows. The agent
/// logs one warning and does not respond, even after a restart. With a copy of `registry backup`, the gateway offers no used
/// row.
#[test]
fn an_agent_reports_an_offered_used_row_and_does_not_respond() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    // A restored copy skips 48 rows: the 16 leased rows, and the rows of two further leases that the copy may not contain.
    prepare(&environment, port, 60);
    let registry = environment.directory.join("fleet.registry");
    let storage_record = environment.directory.join("fleet.registry.storage");
    let serve = || {
        let controller = environment.start_controller();
        let gateway = environment
            .start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
        gateway.event("started");
        (gateway, controller)
    };
    let stop = |(gateway, controller): (Process, Process)| {
        gateway.terminate();
        controller.terminate();
    };
    let processes = serve();
    let arguments = format!("--gateway 127.0.0.1:{port} --log debug");
    let device = agent(&environment, &arguments);
    device.event("authenticated");
    stop(processes);
    for side_file in ["fleet.registry-wal", "fleet.registry-shm"] {
        assert!(!environment.directory.join(side_file).exists(), "{side_file}");
    }
    let old_files = [&registry, &storage_record].map(|file| (file, fs::read(file).unwrap()));
    let processes = serve();
    let used_rows = (0..2).map(|_| device.event("authenticated")["row"].as_u64().unwrap());
    let used_rows: Vec<u64> = used_rows.collect();
    stop(processes);
    for (file, content) in old_files {
        fs::write(file, content).unwrap();
    }
    let processes = serve();
    let is_offer_of_spent_row = |line: &Value| {
        let reason = line["reason"].as_str().unwrap_or_default();
        line["event"] == "authentication_failed" && reason.contains("which this device has already spent")
    };
    let failure = device.wait_for("offer of a spent row", is_offer_of_spent_row);
    // Each failure causes an event, but only the first failure causes a warning in the log.
    device.wait_for("the next failure", |line| {
        line["event"] == "authentication_failed"
    });
    device.terminate();
    let text = log(&environment);
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains("WARN")).collect();
    assert!(
        warnings.len() == 1 && warnings[0].contains(failure["reason"].as_str().unwrap()),
        "{text}"
    );
    for line in [
        "LAP message sent frame=REQUEST",
        "LAP message received frame=CHALLENGE of gateway 5 for row",
        "LAP message sent frame=RESPONSE to gateway 5 with row",
        "LAP message received frame=ACK of row",
        "LAP message dropped reason=row already spent",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let device = agent(&environment, &arguments);
    device.wait_for(
        "the same event of a process that has used no row",
        is_offer_of_spent_row,
    );
    stop(processes);
    environment.run("linewarden registry backup copy.registry --config controller.toml");
    fs::rename(environment.directory.join("copy.registry"), &registry).unwrap();
    let processes = serve();
    let session = device.event("authenticated");
    assert!(
        session["row"].as_u64() > used_rows.last().copied(),
        "{session} {used_rows:?}"
    );
    device.terminate();
    stop(processes);
}

/// A restored registry skips the rows that gateways may have leased after the backup. The remaining rows of a pool can be too few
/// for a lease. Then the device and the operator receive the reason and the remedy.
#[test]
fn a_device_with_too_few_rows_after_a_restore_is_refused_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&environment, port, 20);
    let controller = environment.start_controller();
    let gateway =
        environment.start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    gateway.event("started");
    let arguments = format!("--gateway 127.0.0.1:{port}");
    let device = agent(&environment, &arguments);
    device.event("authenticated");
    device.terminate();
    gateway.terminate();
    controller.terminate();
    environment.run("linewarden registry backup copy.registry --config controller.toml");
    fs::rename(
        environment.directory.join("copy.registry"),
        environment.directory.join("fleet.registry"),
    )
    .unwrap();
    let _controller = environment.start_controller();
    let mut command =
        environment.command("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    let log_path = environment.directory.join("gateway.log");
    command.stderr(File::create(&log_path).unwrap());
    let gateway = Process::start(command);
    gateway.event("started");
    let device = agent(&environment, &arguments);
    let refused = device.event("request_refused");
    assert!(
        refused["reason"].as_str().unwrap().contains("no rows left"),
        "{refused}"
    );
    let failure = device.event("authentication_failed");
    let reason = failure["reason"].as_str().unwrap();
    assert!(
        reason.contains("no rows left") && reason.contains("device enroll --replace"),
        "{failure}"
    );
    gateway.wait_for("a count of refused requests", |line| {
        line["event"] == "status" && line["unserved"].as_u64() > Some(0)
    });
    let text = fs::read_to_string(log_path).unwrap();
    let warnings = text
        .lines()
        .filter(|line| line.contains("request rejected") && line.contains("00000000000000d1"));
    assert_eq!(warnings.count(), 1, "{text}");
    let text = environment
        .command("linewarden device show d1 --config controller.toml")
        .output();
    let text = String::from_utf8(text.unwrap().stdout).unwrap();
    assert!(text.contains("enroll it again with --replace"), "{text}");
    // The operator applies the remedy.
    device.terminate();
    environment.run(
        "linewarden device enroll simulated --device d1 --rows 20 --replace --out devices --config controller.toml",
    );
    let device = agent(&environment, &arguments);
    device.event("authenticated");
    device.terminate();
    gateway.terminate();
}

/// Without a reply, the log has the REQUESTs and the errors, and the event reports the missing reply.
#[test]
fn an_agent_without_a_reply_logs_what_it_sends() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&environment, port, 40);
    let device = agent(&environment, &format!("--gateway 127.0.0.1:{port} --log debug"));
    let failure = device.event("authentication_failed");
    assert!(
        failure["reason"]
            .as_str()
            .unwrap()
            .starts_with("no reply from a gateway"),
        "{failure}"
    );
    device.terminate();
    let text = log(&environment);
    let requests = text
        .lines()
        .filter(|line| line.contains("LAP message sent frame=REQUEST"));
    assert!(requests.count() > 0, "{text}");
    assert!(
        text.contains("receiving a LAP message failed") && !text.contains("WARN"),
        "{text}"
    );
}
