//! What an agent says of itself when it gets no session.

use std::fs::{self, File};

use super::*;

/// A registry and a device with so many rows for a gateway on `host`.
fn prepare(place: &Place<'_>, port: u16, rows: u32) {
    fs::write(
        place.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\nlease_s = 2\n\
             slots = 100\nthreads = 1\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n"
        ),
    )
    .unwrap();
    place.run("registry create --registry fleet.registry --key-file master.key");
    place.run(&format!(
        "device enroll simulated --device d1 --rows {rows} --out devices --config gateway.toml"
    ));
}

/// An agent whose log goes to a file.
fn agent(place: &Place<'_>, words: &str) -> Process {
    let mut command = place.command(&format!(
        "agent --config devices/00000000000000d1.toml --json {words}"
    ));
    command.stderr(File::create(place.directory.join("agent.log")).unwrap());
    Process::start(command)
}

fn log(place: &Place<'_>) -> String {
    fs::read_to_string(place.directory.join("agent.log")).unwrap()
}

/// The registry and what lies beside it are set back to an earlier state, as by a snapshot of the disk: rows are offered that are
/// spent. The agent names the row, once, and does not answer it, also started anew. A copy put in the file's place
/// ends that.
#[test]
fn an_agent_that_is_offered_a_spent_row_says_so_and_never_answers() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    // The copy leaves 48 rows out: 16 that are leased, and as many for each of two gateways that do not know of it.
    prepare(&place, port, 60);
    let registry = place.directory.join("fleet.registry");
    let record = place.directory.join("fleet.registry.storage");
    let serve = || {
        let gateway = place.start("serve --config gateway.toml --json --every 1");
        gateway.event("started");
        gateway
    };
    let gateway = serve();
    let words = format!("--gateway 127.0.0.1:{port} --log debug");
    let device = agent(&place, &words);
    device.event("authenticated");
    gateway.terminate();
    for beside in ["fleet.registry-wal", "fleet.registry-shm"] {
        assert!(!place.directory.join(beside).exists(), "{beside}");
    }
    let old = [&registry, &record].map(|file| (file, fs::read(file).unwrap()));
    let gateway = serve();
    let spent = (0..2).map(|_| device.event("authenticated")["idx"].as_u64().unwrap());
    let spent: Vec<u64> = spent.collect();
    gateway.terminate();
    for (file, content) in old {
        fs::write(file, content).unwrap();
    }
    let gateway = serve();
    let offered = |line: &Value| {
        let why = line["why"].as_str().unwrap_or_default();
        line["event"] == "failed" && why.contains("which this device has spent")
    };
    let failed = device.wait_for("offer of a spent row", offered);
    // Told in every report, and in the log once.
    device.wait_for("the next one", |line| line["event"] == "failed");
    device.terminate();
    let said = log(&place);
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert!(
        warnings.len() == 1 && warnings[0].contains(failed["why"].as_str().unwrap()),
        "{said}"
    );
    for line in [
        "sent what=REQUEST",
        "received what=CHALLENGE of gateway 5 for row",
        "sent what=RESPONSE to gateway 5 with row",
        "received what=ACK of row",
        "dropped it why=the row is spent",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let device = agent(&place, &words);
    device.wait_for("the same, by a process that has spent nothing", offered);
    gateway.terminate();
    place.run("registry backup copy.registry --config gateway.toml");
    fs::rename(place.directory.join("copy.registry"), &registry).unwrap();
    let gateway = serve();
    let session = device.event("authenticated");
    assert!(
        session["idx"].as_u64() > spent.last().copied(),
        "{session} {spent:?}"
    );
    device.terminate();
    gateway.terminate();
}

/// After a restore a pool may have too few rows for a lease above those that gateways may still spend. The device is told, and so is the
/// operator, with what to do.
#[test]
fn a_device_with_too_few_rows_after_a_restore_is_refused_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&place, port, 20);
    let gateway = place.start("serve --config gateway.toml --json --every 1");
    gateway.event("started");
    let words = format!("--gateway 127.0.0.1:{port}");
    let device = agent(&place, &words);
    device.event("authenticated");
    device.terminate();
    gateway.terminate();
    place.run("registry backup copy.registry --config gateway.toml");
    fs::rename(
        place.directory.join("copy.registry"),
        place.directory.join("fleet.registry"),
    )
    .unwrap();
    let mut command = place.command("serve --config gateway.toml --json --every 1");
    let said_at = place.directory.join("gateway.log");
    command.stderr(File::create(&said_at).unwrap());
    let gateway = Process::start(command);
    gateway.event("started");
    let device = agent(&place, &words);
    let refused = device.event("refused");
    assert!(
        refused["reason"].as_str().unwrap().contains("no rows left"),
        "{refused}"
    );
    let failed = device.event("failed");
    let why = failed["why"].as_str().unwrap();
    assert!(
        why.contains("no rows left") && why.contains("device enroll --replace"),
        "{failed}"
    );
    gateway.wait_for("a count of refused requests", |line| {
        line["event"] == "status" && line["unserved"].as_u64() > Some(0)
    });
    let said = fs::read_to_string(said_at).unwrap();
    let named = said
        .lines()
        .filter(|line| line.contains("request refused") && line.contains("00000000000000d1"));
    assert_eq!(named.count(), 1, "{said}");
    let shown = place.command("device show d1 --config gateway.toml").output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    assert!(shown.contains("enroll it again with --replace"), "{shown}");
    // What the operator does then.
    device.terminate();
    place.run("device enroll simulated --device d1 --rows 20 --replace --out devices --config gateway.toml");
    let device = agent(&place, &words);
    device.event("authenticated");
    device.terminate();
    gateway.terminate();
}

/// Where nobody answers, the log tells that REQUESTs leave and what becomes of them, and the report that nobody answered.
#[test]
fn an_agent_that_nobody_answers_shows_what_it_sends() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&place, port, 40);
    let device = agent(&place, &format!("--gateway 127.0.0.1:{port} --log debug"));
    let failed = device.event("failed");
    assert!(
        failed["why"].as_str().unwrap().starts_with("no gateway answered"),
        "{failed}"
    );
    device.terminate();
    let said = log(&place);
    let requests = said.lines().filter(|line| line.contains("sent what=REQUEST"));
    assert!(requests.count() > 0, "{said}");
    assert!(
        said.contains("receiving failed") && !said.contains("WARN"),
        "{said}"
    );
}
