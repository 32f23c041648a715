//! What an operator does to a gateway at work: another configuration, a file moved away, counters, and the record of it.

use std::collections::BTreeMap;

use super::*;

/// The configuration, whose sixth line is the lease.
fn configuration(place: &Place<'_>, dataplane: &str, port: u16, lease_s: u32, more: &str) {
    std::fs::write(
        place.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"{dataplane}\"\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\", \"::1\"]\n\
             lease_s = {lease_s}\nport = {port}\nthreads = 1\n{more}\n\
             [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n\
             [audit]\npath = \"audit.jsonl\"\n"
        ),
    )
    .unwrap();
}

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn events(&self, name: &str) -> Vec<&Value> {
        self.seen.iter().filter(|line| line["event"] == name).collect()
    }
}

/// Refuses what has a mistake or needs a restart, naming line and field.
fn refuse(gateway: &mut Process, told: &str) {
    gateway.signal(Signal::SIGHUP);
    gateway.wait_for("refusal", event("reload_refused"));
    let errors = gateway.seen.last().unwrap()["errors"].to_string();
    assert!(errors.contains(told), "{errors}");
}

/// A configuration is exchanged while two devices renew their sessions, and nobody notices but by what it says.
fn story_of_reloads(place: &Place<'_>, dataplane: &str) {
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let configure = |lease_s, more: &str| configuration(place, dataplane, port, lease_s, more);
    configure(4, "slots = 100\nmark_block = 4");
    place.run("registry create --registry fleet.registry --key-file master.key");
    place.run("device enroll simulated --device d1 --rows 60 --out devices --config gateway.toml");
    place.run("device enroll simulated --device d2 --model sram --out devices --config gateway.toml");
    let mut gateway = Process::start(place.command("serve --config gateway.toml --json --every 1"));
    gateway.wait_for("loaded fleet", |line| {
        line["event"] == "status" && line["loaded"] == true
    });
    let agent = |id: &str, address: &str| {
        let words =
            format!("agent --config devices/00000000000000{id}.toml --gateway {address}:{port} --json");
        Process::start(place.command(&words))
    };
    let mut pool = agent("d1", "127.0.0.1");
    let mut key = agent("d2", "[::1]");
    for process in [&mut pool, &mut key] {
        process.wait_for("session", event("authenticated"));
    }

    // Nothing of a file with a mistake comes into force, the log being moved away included.
    configure(0, "slots = 100\nmark_block = 99\nnak_per_second = 1");
    refuse(
        &mut gateway,
        "gateway.toml:6:1: gateway.lease_s: 0: a session must last",
    );
    configure(2, "slots = 200\nmark_block = 4");
    refuse(
        &mut gateway,
        "gateway.toml:9:1: gateway.slots: was changed, which needs a restart",
    );
    pool.wait_for("renewal under the old lease", |line| {
        line["event"] == "authenticated" && line["lease_s"] == 4
    });

    configure(
        2,
        "slots = 100\nmark_block = 9\nlow_rows = 5\nmiss_per_s = 50\nnak_per_s = 5\nalarm_per_s = 5\nfeed_poll_ms = 20",
    );
    std::fs::rename(
        place.directory.join("audit.jsonl"),
        place.directory.join("audit.1"),
    )
    .unwrap();
    gateway.signal(Signal::SIGHUP);
    gateway.wait_for("another configuration", event("reloaded"));
    for process in [&mut pool, &mut key] {
        process.wait_for("renewal under the new lease", |line| {
            line["event"] == "authenticated" && line["lease_s"] == 2
        });
        for _ in 0..2 {
            process.wait_for("one more", event("authenticated"));
        }
        assert_eq!(process.events("expired").len(), 0, "nobody was dropped");
    }
    let rows: Vec<u64> = pool
        .events("authenticated")
        .iter()
        .map(|line| line["idx"].as_u64().unwrap())
        .collect();
    assert!(
        rows.iter().copied().eq(0..rows.len() as u64),
        "no row was lost: {rows:?}"
    );

    gateway.signal(Signal::SIGUSR1);
    gateway.wait_for("counters", |line| {
        line["event"] == "status" && line["reloads"] == 1 && line["reloads_refused"] == 2
    });
    place.run("device revoke d1 --reason lost --config gateway.toml");
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    assert_eq!(gateway.seen.last().unwrap()["audit_lost"], 0);
    assert_eq!(pool.terminate().0, 0);
    assert_eq!(key.terminate().0, 0);
    assert_eq!(gateway.terminate().0, 0);
    judge_records(place, dataplane);
}

fn records(place: &Place<'_>, name: &str) -> Vec<Value> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = place.directory.join(name);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn judge_records(place: &Place<'_>, dataplane: &str) {
    let (before, after) = (records(place, "audit.1"), records(place, "audit.jsonl"));
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
        // A device that is late for a renewal opens another session.
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
    let expected = [("revoked", 1), ("stopped", 1), ("verdicts", 1)];
    let expected: BTreeMap<String, usize> = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(count(&after), expected, "{after:#?}");

    let find = |records: &[Value], name: &str| -> Value {
        records
            .iter()
            .find(|record| record["event"] == name)
            .unwrap()
            .clone()
    };
    let started = find(&before, "started");
    assert_eq!(
        (
            started["dataplane"].as_str(),
            started["interfaces"]["lo"].as_u64()
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
    let revoked = find(&after, "revoked");
    assert_eq!(
        (revoked["device"].as_str(), revoked["shut_out"].as_bool()),
        (Some("00000000000000d1"), Some(true))
    );
    assert!(find(&after, "verdicts")["counts"]["reply_ack"].as_u64() >= Some(4));
    assert_eq!(find(&after, "stopped")["settled"], true);
    let refused = find(&before, "reload_refused")["errors"].to_string();
    assert!(refused.contains("did you mean `nak_per_s`"), "{refused}");
}

#[test]
fn a_configuration_is_exchanged_under_devices_at_work_on_host() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    story_of_reloads(&place, "host");
}

#[test]
fn a_configuration_is_exchanged_under_devices_at_work_on_xdp() {
    in_private_namespace(|place| story_of_reloads(place, "xdp"));
}

/// The audit record's disk is full: devices authenticate all the same, and the loss is counted and told.
#[test]
fn a_full_audit_file_keeps_nobody_out() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    configuration(&place, "host", port, 300, "");
    let full = std::fs::read_to_string(place.directory.join("gateway.toml")).unwrap() + "bytes_max = 4096\n";
    std::fs::write(place.directory.join("gateway.toml"), full).unwrap();
    std::fs::write(place.directory.join("audit.jsonl"), "x".repeat(4090) + "\n").unwrap();
    place.run("registry create --registry fleet.registry --key-file master.key");
    place.run("device enroll simulated --device d1 --rows 6 --out devices --config gateway.toml");
    let mut gateway = Process::start(place.command("serve --config gateway.toml --json --every 1"));
    gateway.wait_for("loss", |line| {
        line["audit_failing"] == true && line["audit_lost"].as_u64() > Some(0)
    });
    place.run(&format!(
        "agent --config devices/00000000000000d1.toml --gateway 127.0.0.1:{port} --once --timeout 30"
    ));
    std::fs::remove_file(place.directory.join("audit.jsonl")).unwrap();
    gateway.signal(Signal::SIGHUP);
    gateway.wait_for("another file", event("reloaded"));
    gateway.wait_for("its state", |line| line["audit_failing"] == false);
    assert!(
        gateway.seen.last().unwrap()["audit_lost"].as_u64() > Some(0),
        "what was lost stays lost"
    );
    assert_eq!(gateway.terminate().0, 0);
    let last = records(&place, "audit.jsonl").pop().unwrap();
    assert_eq!(last["event"], "stopped");
}
