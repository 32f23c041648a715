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
    place.run("device enroll simulated --device d1 --rows 40 --out devices --config gateway.toml");
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

/// A gateway whose registry came from a backup offers rows that are spent. The agent names the row, once, and is served
/// again when it is started anew, as it says.
#[test]
fn an_agent_that_is_offered_a_spent_row_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let port = free_udp_port();
    prepare(&place, port);
    place.run("registry backup old.registry --config gateway.toml");
    let gateway = place.start("serve --config gateway.toml --json --every 1");
    gateway.event("started");
    let words = format!("--gateway 127.0.0.1:{port} --log debug");
    let device = agent(&place, &words);
    for row in 0..2 {
        assert_eq!(device.event("authenticated")["idx"], row);
    }
    gateway.terminate();
    for beside in ["fleet.registry-wal", "fleet.registry-shm"] {
        assert!(!place.directory.join(beside).exists(), "{beside}");
    }
    fs::rename(
        place.directory.join("old.registry"),
        place.directory.join("fleet.registry"),
    )
    .unwrap();
    let gateway = place.start("serve --config gateway.toml --json --every 1");
    gateway.event("started");
    let offered = "offers row 0, which this device has spent";
    let failed = device.wait_for("offer of a spent row", |line| {
        line["event"] == "failed" && line["why"].as_str().unwrap().contains(offered)
    });
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
        "received what=CHALLENGE of gateway 5 for row 0",
        "sent what=RESPONSE to gateway 5 with row 0",
        "received what=ACK of row 0, lease 2 s",
        "dropped it why=the row is spent",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }

    let device = agent(&place, &format!("{words} --once"));
    assert_eq!(device.event("authenticated")["idx"], 0, "it is spent once more");
    device.ended_well();
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
