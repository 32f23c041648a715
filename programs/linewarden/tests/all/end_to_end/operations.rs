//! Operation of a running gateway: reload of the configuration, log rotation, counters, and the gateway audit log.

use std::collections::BTreeMap;

use super::*;

/// Writes `controller.toml` and `gateway.toml`. `more` contains further lines of the section `[gateway]`.
fn write_configuration(
    environment: &Environment<'_>,
    dataplane: &str,
    port: u16,
    session_lifetime_s: u32,
    more: &str,
) {
    support::write_controller_config(environment.directory);
    std::fs::write(
        environment.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"{dataplane}\"\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\", \"::1\"]\n\
             session_lifetime_s = {session_lifetime_s}\nport = {port}\nthreads = 1\n{more}\n\
             [controller]\nsocket = \"controller.sock\"\n\
             [audit]\npath = \"audit.jsonl\"\n"
        ),
    )
    .unwrap();
}

/// Requests a reload, and asserts that the gateway rejects the configuration with an error that contains `expected`.
fn assert_reload_is_refused(gateway: &Process, expected: &str) {
    gateway.signal(Signal::SIGHUP);
    let errors = gateway.event("reload_refused")["errors"].to_string();
    assert!(errors.contains(expected), "{errors}");
}

/// A configuration is reloaded while two devices renew their sessions: no session is lost, and the new settings apply.
fn reload_scenario(environment: &Environment<'_>, dataplane: &str) {
    let port = free_udp_port();
    let configure = |session_lifetime_s, more: &str| {
        write_configuration(environment, dataplane, port, session_lifetime_s, more)
    };
    configure(10, "slots = 100\nmark_block = 4");
    environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
    environment.run(
        "linewarden device enroll simulated --device d1 --rows 60 --out devices --config controller.toml",
    );
    environment.run(
        "linewarden device enroll simulated --device d2 --model sram --out devices --config controller.toml",
    );
    let _controller = environment.start_controller();
    let gateway =
        environment.start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    gateway.wait_for("loaded fleet", |line| {
        line["event"] == "status" && line["loaded"] == true
    });
    let agent = |id: &str, address: &str| {
        let arguments = format!(
            "linewarden-agent run --config devices/00000000000000{id}.toml --gateway {address}:{port} --output json"
        );
        environment.start(&arguments)
    };
    let pool_agent = agent("d1", "127.0.0.1");
    let key_agent = agent("d2", "[::1]");
    for process in [&pool_agent, &key_agent] {
        process.event("authenticated");
    }

    // No setting of an invalid file is applied, and the log is not rotated.
    configure(0, "slots = 100\nmark_block = 99\nnak_per_second = 1");
    assert_reload_is_refused(
        &gateway,
        "gateway.toml:6:1: gateway.session_lifetime_s: 0: a session must last",
    );
    configure(6, "slots = 200\nmark_block = 4");
    assert_reload_is_refused(
        &gateway,
        "gateway.toml:9:1: gateway.slots: differs from the running value; restart the gateway",
    );
    pool_agent.wait_for("renewal with the old session lifetime", |line| {
        line["event"] == "authenticated" && line["session_lifetime_s"] == 10
    });

    configure(
        6,
        "slots = 100\nmark_block = 9\nlow_rows = 5\nmiss_per_s = 50\nnak_per_s = 5\nalarm_per_s = 5\nfeed_poll_ms = 20",
    );
    std::fs::rename(
        environment.directory.join("audit.jsonl"),
        environment.directory.join("audit.1"),
    )
    .unwrap();
    gateway.signal(Signal::SIGHUP);
    gateway.event("reloaded");
    for process in [&pool_agent, &key_agent] {
        process.wait_for("renewal with the new session lifetime", |line| {
            line["event"] == "authenticated" && line["session_lifetime_s"] == 6
        });
        for _ in 0..2 {
            process.event("authenticated");
        }
        assert_eq!(process.events("session_expired").len(), 0, "no session expired");
    }
    let rows: Vec<u64> = pool_agent
        .events("authenticated")
        .iter()
        .map(|line| line["row"].as_u64().unwrap())
        .collect();
    assert!(
        rows.iter().copied().eq(0..rows.len() as u64),
        "no row was lost: {rows:?}"
    );

    gateway.signal(Signal::SIGUSR1);
    gateway.wait_for("counters", |line| {
        line["event"] == "status" && line["reloads"] == 1 && line["reloads_refused"] == 2
    });
    environment.run("linewarden device revoke d1 --reason lost --config controller.toml");
    let revoked = gateway.wait_for("revocation", |line| line["revoked"] == 1);
    assert_eq!(revoked["audit_lost"], 0);
    for process in [pool_agent, key_agent, gateway] {
        process.terminate();
    }
    check_records(environment, dataplane);
}

fn records(environment: &Environment<'_>, name: &str) -> Vec<Value> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = environment.directory.join(name);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn check_records(environment: &Environment<'_>, dataplane: &str) {
    let (before, after) = (
        records(environment, "audit.1"),
        records(environment, "audit.jsonl"),
    );
    let mut last_ns = 0;
    for record in before.iter().chain(&after) {
        assert_eq!(
            (record["v"].as_u64(), record["gateway"].as_u64()),
            (Some(1), Some(5))
        );
        let time = record["time"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        let boot_ns = record["boot_ns"].as_u64().unwrap();
        assert!(boot_ns >= last_ns, "in order: {record}");
        last_ns = boot_ns;
    }
    let count = |records: &[Value]| -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        // Session records are not counted, because a device that is late for a renewal opens an additional session.
        for record in records.iter().filter(|record| record["event"] != "session") {
            *counts
                .entry(record["event"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
        counts
    };
    let expected = [
        ("admitted", 2),
        ("reload_refused", 2),
        ("reloaded", 1),
        ("started", 1),
    ];
    let expected: BTreeMap<String, usize> = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(count(&before), expected, "{before:#?}");
    let expected = [("blocked", 1), ("stopped", 1), ("verdicts", 1)];
    let expected: BTreeMap<String, usize> = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(count(&after), expected, "{after:#?}");

    let find = |records: &[Value], name: &str| -> Value {
        records
            .iter()
            .find(|record| record["event"] == name)
            .unwrap()
            .clone()
    };
    let start_record = find(&before, "started");
    assert_eq!(
        (
            start_record["dataplane"].as_str(),
            start_record["interfaces"]["lo"].as_u64()
        ),
        (Some(dataplane), Some(1))
    );
    let session = before
        .iter()
        .find(|record| record["event"] == "session" && record["device"] == "00000000000000d1")
        .unwrap();
    assert_eq!(
        (
            session["mode"].as_str(),
            session["row"].as_u64(),
            session["address"].as_str()
        ),
        (Some("pool"), Some(0), Some("127.0.0.1"))
    );
    assert!(session["port"].as_u64() > Some(0) && session["session"].as_str().unwrap().len() == 16);
    let blocked = find(&after, "blocked");
    assert_eq!(
        (blocked["device"].as_str(), blocked["was_installed"].as_bool()),
        (Some("00000000000000d1"), Some(true))
    );
    assert!(find(&after, "verdicts")["counts"]["reply_ack"].as_u64() >= Some(4));
    assert_eq!(find(&after, "stopped")["unused_rows_reported"], true);
    let refused = find(&before, "reload_refused")["errors"].to_string();
    assert!(refused.contains("did you mean `nak_per_s`"), "{refused}");
}

#[test]
fn on_host_a_configuration_is_reloaded_while_devices_renew_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    reload_scenario(&environment, "host");
}

#[test]
fn on_xdp_a_configuration_is_reloaded_while_devices_renew_sessions() {
    in_private_namespace(|environment| reload_scenario(environment, "xdp"));
}

/// The gateway audit log has reached its maximum size: devices still authenticate, and lost records are counted and
/// reported.
#[test]
fn a_full_audit_file_does_not_prevent_authentication() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    write_configuration(&environment, "host", port, 300, "");
    let limited =
        std::fs::read_to_string(environment.directory.join("gateway.toml")).unwrap() + "bytes_max = 4096\n";
    std::fs::write(environment.directory.join("gateway.toml"), limited).unwrap();
    std::fs::write(environment.directory.join("audit.jsonl"), "x".repeat(4090) + "\n").unwrap();
    environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
    environment.run(
        "linewarden device enroll simulated --device d1 --rows 6 --out devices --config controller.toml",
    );
    let _controller = environment.start_controller();
    let gateway =
        environment.start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    gateway.wait_for("loss", |line| {
        line["audit_failing"] == true && line["audit_lost"].as_u64() > Some(0)
    });
    environment.run(&format!(
        "linewarden-agent run --config devices/00000000000000d1.toml --gateway 127.0.0.1:{port} --once --timeout 30"
    ));
    std::fs::remove_file(environment.directory.join("audit.jsonl")).unwrap();
    gateway.signal(Signal::SIGHUP);
    gateway.event("reloaded");
    let state = gateway.wait_for("the end of the audit failure", |line| {
        line["audit_failing"] == false
    });
    assert!(
        state["audit_lost"].as_u64() > Some(0),
        "the counter of lost records is kept"
    );
    gateway.terminate();
    let last = records(&environment, "audit.jsonl").pop().unwrap();
    assert_eq!(last["event"], "stopped");
}

/// Prepares a directory with the configuration of a gateway on `host`, a registry and a device. Returns the environment and the
/// gateway's LAP port.
fn host_environment(directory: &Path, wrapper: Vec<String>) -> (Environment<'_>, u16) {
    let (environment, port) = (Environment { directory, wrapper }, free_udp_port());
    write_configuration(&environment, "host", port, 300, "");
    // These commands do not use the gateway audit log, so they do not need the wrapper.
    let outer_environment = Environment {
        directory,
        wrapper: Vec::new(),
    };
    outer_environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
    outer_environment.run(
        "linewarden device enroll simulated --device d1 --rows 6 --out devices --config controller.toml",
    );
    (environment, port)
}

/// The disk of the gateway audit log is full, and then has space again: each change is logged once, and devices still
/// authenticate.
#[test]
fn a_full_disk_of_the_gateway_audit_log_is_reported_once_and_used_again() {
    require_root();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("disk")).unwrap();
    let mount = "mount -t tmpfs -o size=64k tmpfs disk && exec \"$@\"";
    let wrapper = ["unshare", "--mount", "sh", "-c", mount, "sh"].map(str::to_owned);
    let (environment, port) = host_environment(directory.path(), wrapper.to_vec());
    let path = environment.directory.join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("audit.jsonl", "disk/audit.jsonl")).unwrap();
    let _controller = environment.start_controller();
    let mut command =
        environment.command("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    command.stderr(std::fs::File::create(environment.directory.join("log")).unwrap());
    let gateway = Process::start(command);
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    // The disk in the gateway's mount namespace.
    let disk = Path::new("/proc")
        .join(gateway.id().to_string())
        .join("root")
        .join(environment.directory.join("disk").strip_prefix("/").unwrap());
    let mut filler = std::fs::File::create(disk.join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[0; 512]).is_ok() {}
    drop(filler);
    let outer_environment = Environment {
        directory: environment.directory,
        wrapper: Vec::new(),
    };
    let authenticate = || {
        outer_environment.run(&format!(
            "linewarden-agent run --config devices/00000000000000d1.toml --gateway 127.0.0.1:{port} --once --timeout 30"
        ));
    };
    // The log's last page can have free space, which the records of rejected reloads fill.
    let text = std::fs::read_to_string(&path).unwrap();
    let mistakes: String = (0..10).map(|n| format!("mistake{n} = 1\n")).collect();
    std::fs::write(&path, text.clone() + &mistakes).unwrap();
    while gateway
        .events("status")
        .last()
        .is_none_or(|line| line["audit_failing"] != true)
    {
        gateway.signal(Signal::SIGHUP);
        gateway.event("reload_refused");
        gateway.event("status");
    }
    std::fs::write(&path, text).unwrap();
    authenticate();
    std::fs::remove_file(disk.join("filler")).unwrap();
    gateway.wait_for("free space", |line| line["audit_failing"] == false);
    outer_environment.run("linewarden device revoke d1 --config controller.toml");
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    let audit_log = std::fs::File::open(disk.join("audit.jsonl")).unwrap();
    let refused_count = gateway.events("reload_refused").len();
    gateway.terminate();
    let lines: Vec<Value> = std::io::BufRead::lines(std::io::BufReader::new(audit_log))
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    let count_of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    // If the filesystem had space for a few more pages than it reported, no record is lost.
    let is_complete = (count_of("reload_refused"), count_of("session")) == (refused_count, 1);
    assert!(
        count_of("records_lost") >= 1 || is_complete,
        "{refused_count}: {lines:#?}"
    );
    assert_eq!((count_of("blocked"), count_of("stopped")), (1, 1), "{lines:#?}");
    let log = std::fs::read_to_string(environment.directory.join("log")).unwrap();
    assert_eq!(
        log.matches("writing the gateway audit log failed; retrying; lost records are counted")
            .count(),
        1,
        "{log}"
    );
    assert_eq!(
        log.matches("gateway audit log is writable again").count(),
        1,
        "{log}"
    );
}

/// The gateway sends notifications of sd_notify(3) to a socket of the test.
#[test]
fn the_service_manager_is_notified_of_start_reload_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let (environment, _) = host_environment(directory.path(), Vec::new());
    let path = environment.directory.join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(support::TEST_TIMEOUT)).unwrap();
    let notification = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let _controller = environment.start_controller();
    let mut command =
        environment.command("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    command.env("NOTIFY_SOCKET", &path);
    let gateway = Process::start(command);
    assert_eq!(notification(), "READY=1");
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    for setting in ["session_lifetime_s = 200", "session_lifetime_s = 0"] {
        let config = environment.directory.join("gateway.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(
            &config,
            text.replace("session_lifetime_s = 300", setting)
                .replace("session_lifetime_s = 200", setting),
        )
        .unwrap();
        gateway.signal(Signal::SIGHUP);
        let reloading = notification();
        let (first, second) = reloading.split_once('\n').unwrap();
        assert_eq!(first, "RELOADING=1");
        let at_us = second.strip_prefix("MONOTONIC_USEC=").unwrap();
        assert!(at_us.parse::<u64>().unwrap() > 0);
        assert_eq!(
            notification(),
            "READY=1",
            "the old configuration applies after a rejected reload"
        );
    }
    gateway.event("reloaded");
    gateway.event("reload_refused");
    gateway.terminate();
    assert_eq!(notification(), "STOPPING=1");
}

/// A used port ends the start before the interface is changed.
#[test]
fn a_used_ticket_port_ends_the_start_before_the_interface_is_changed() {
    in_private_namespace(|environment| {
        write_configuration(environment, "xdp", 20_550, 300, "ticket_port = 20560");
        environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
        let socket_script = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
             s.bind(('127.0.0.1', 20560))\nprint('{}', flush=True)\ntime.sleep(600)\n";
        let mut holder = Command::new(&environment.wrapper[0]);
        holder
            .args(&environment.wrapper[1..])
            .args(["python3", "-c", socket_script]);
        let holder = Process::start(holder);
        holder.wait_for("port", |_| true);
        let output = environment
            .command("linewarden-gateway run --config gateway.toml --output json")
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(output.stdout, b"", "the data plane was attached");
        assert!(
            error.contains("ticket relay cannot use 127.0.0.1:20560 (`ticket_port`): another process, possibly another gateway, uses"),
            "{error}"
        );
        drop(holder);
        let gateway = environment.start("linewarden-gateway run --config gateway.toml --output json");
        gateway.event("started");
    });
}
