//! What an agent says of itself when it gets no session.

use std::fs::{self, File};

use super::*;

/// A registry and a device for a gateway on `host`.
fn prepare(place: &Place<'_>, port: u16) {
    fs::write(
        place.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\nlease_s = 2\n\
             slots = 100\nthreads = 1\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n"
        ),
    )
    .unwrap();
    place.run("registry create --registry fleet.registry --key-file master.key");
    place.run("device enroll simulated --device d1 --rows 120 --out devices --config gateway.toml");
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

/// Somebody writes an older content over the registry's file, which only a copy of the registry's own could show: rows are
/// offered that are spent. The agent names the row, once, and does not answer it, also started anew. A copy put in the file's place
/// ends that.
#[test]
fn an_agent_that_is_offered_a_spent_row_says_so_and_never_answers() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&place, port);
    let registry = place.directory.join("fleet.registry");
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
    let old = fs::read(&registry).unwrap();
    let gateway = serve();
    let spent = (0..2).map(|_| device.event("authenticated")["idx"].as_u64().unwrap());
    let spent: Vec<u64> = spent.collect();
    gateway.terminate();
    fs::write(&registry, old).unwrap();
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

/// Where nobody answers, the log tells that REQUESTs leave and what becomes of them, and the report that nobody answered.
#[test]
fn an_agent_that_nobody_answers_shows_what_it_sends() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&place, port);
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
