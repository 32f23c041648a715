//! `linewarden-lab demo` as a user calls it. The full demonstration needs root.

use std::process::{Command, Output};

use crate::common::require;
use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use serde_json::Value;

/// Messages of each attack. The tests of the library send more.
const MESSAGES: &str = "100";

struct Demo {
    directory: tempfile::TempDir,
    output: Output,
}

impl Demo {
    fn run(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_linewarden-lab"))
            .args(["demo", "--json", "demo.json", "--messages", MESSAGES])
            .args(arguments)
            .current_dir(directory.path())
            // The demonstration's registry is in a temporary directory, which must be deleted at the end.
            .env("TMPDIR", directory.path())
            .output()
            .unwrap();
        Self { directory, output }
    }

    fn json(&self) -> Value {
        let text = std::fs::read_to_string(self.directory.path().join("demo.json"))
            .unwrap_or_else(|error| panic!("{error}: {}", self.stderr()));
        serde_json::from_str(&text).unwrap()
    }

    fn stdout(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    fn stderr(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    fn leftover_directories(&self) -> Vec<String> {
        std::fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("linewarden-demo"))
            .collect()
    }
}

#[test]
fn a_demonstration_prints_a_table_and_writes_json_and_a_chart() {
    require(FOR_LOAD_GENERATOR);
    for dataplane in ["xdp", "host"] {
        let demo = Demo::run(&[
            "--devices",
            "32",
            "--dataplane",
            dataplane,
            "--seed",
            "5",
            "--verbose",
        ]);
        assert!(demo.output.status.success(), "{}", demo.stderr());
        let json = demo.json();
        for (field, expected) in [
            ("devices", 32),
            ("authenticated", 32),
            ("false_accepts", 0),
            ("false_rejects", 0),
        ] {
            assert_eq!(json[field], expected, "{field}");
        }
        assert_eq!(json["dataplane"], dataplane);
        assert_eq!(json["parameters"]["seed"], 5);
        assert!(json["attack_attempts"].as_u64().unwrap() > 1_000);
        assert!(json["auth_per_s"].as_f64().unwrap() > 0.0);
        for quantile in ["p50", "p99"] {
            assert!(json["latency_us"][quantile].as_f64().unwrap() > 0.0);
        }
        let attack = &json["attacks"][0];
        assert!(attack["name"].is_string() && attack["attempts"].as_u64().unwrap() > 0);
        assert_eq!(attack["successes"], 0);

        assert_eq!(json["attestation"]["quarantined"], true);
        assert_eq!(json["attestation"]["wrongly_quarantined"], 0);
        let svg = std::fs::read_to_string(demo.directory.path().join("out/demo-latency.svg")).unwrap();
        assert!(svg.contains("xdp: 8 devices") && svg.contains("host: 8 devices"));
        let table = demo.stdout();
        for text in [
            "seed 5",
            "devices authenticated",
            "attack: clone",
            "modified on disk",
            "forged PROOF",
            "demo: passed",
        ] {
            assert!(table.contains(text), "{text}: {table}");
        }
        assert_eq!(table.contains("skipped: the gate"), dataplane == "host");
        assert!(demo.leftover_directories().is_empty());
    }
}

#[test]
fn a_demonstration_on_a_p4_switch_skips_no_check() {
    require(FOR_LOAD_GENERATOR);
    let demo = Demo::run(&["--devices", "32", "--dataplane", "p4", "--verbose"]);
    assert!(demo.output.status.success(), "{}", demo.stderr());
    let json = demo.json();
    assert_eq!(
        (&json["dataplane"], &json["authenticated"]),
        (&"p4".into(), &32.into())
    );
    assert_eq!(
        (&json["false_accepts"], &json["false_rejects"]),
        (&0.into(), &0.into())
    );
    let svg = std::fs::read_to_string(demo.directory.path().join("out/demo-latency.svg")).unwrap();
    assert!(svg.contains("xdp: 8 devices") && svg.contains("p4: 8 devices"));
    let table = demo.stdout();
    for text in [
        "data plane: p4",
        "attack: clone",
        "modified on disk",
        "forged PROOF",
        "demo: passed",
    ] {
        assert!(table.contains(text), "{text}: {table}");
    }
    assert!(!table.contains("skipped"), "{table}");
    assert!(demo.leftover_directories().is_empty());
}

#[test]
fn a_sabotaged_demonstration_fails_with_the_cause() {
    require(FOR_LOAD_GENERATOR);
    for (sabotage, field, finding) in [
        (
            "revoke-before-turn",
            "false_rejects",
            "legitimate devices without a session: 1",
        ),
        ("gate-left-off", "false_accepts", "attack succeeded"),
        (
            "file-left-alone",
            "false_accepts",
            "a modified device was not quarantined: 1",
        ),
    ] {
        let demo = Demo::run(&["--devices", "32", "--limit", "20", "--sabotage", sabotage]);
        assert_eq!(demo.output.status.code(), Some(1), "{}", demo.stderr());
        assert!(demo.json()[field].as_u64().unwrap() > 0);
        assert!(demo.stdout().contains(finding), "{}", demo.stdout());
        assert!(demo.stderr().contains("error:"));
        assert!(demo.leftover_directories().is_empty());
    }
}

#[test]
fn sizes_outside_the_limits_are_usage_errors() {
    for devices in ["0", "15", "60001"] {
        let demo = Demo::run(&["--devices", devices]);
        assert_eq!(demo.output.status.code(), Some(2));
    }
}

#[test]
fn an_interrupted_demonstration_deletes_its_registry() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_linewarden-lab"))
        .args(["demo", "--devices", "10000"])
        .current_dir(directory.path())
        .env("TMPDIR", directory.path())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("enrolling")));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(lines.any(|line| line.unwrap().contains("interrupted")));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn unwritable_output_paths_are_refused_before_the_demonstration_starts() {
    for (arguments, cause) in [
        (&["--out", "no/out"][..], "no/out: cannot be created"),
        (&["--json", "no/x.json"], "no/x.json: cannot be written"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_linewarden-lab"))
            .arg("demo")
            .args(arguments)
            .current_dir(directory.path())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(cause), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
