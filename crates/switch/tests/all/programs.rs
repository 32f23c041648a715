//! Runs the packet tests of the programs in p4/ with the checked-in compiled programs.

use std::path::{Path, PathBuf};

use linewarden_switch::stf::{Test, run};

fn p4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4")
}

/// Compiled program of a test: `NAME-WHAT.stf` tests program `NAME`.
fn program_of(test: &str) -> Option<PathBuf> {
    let mut name = test;
    loop {
        let json = p4().join("compiled").join(format!("{name}.json"));
        if json.exists() {
            return Some(json);
        }
        name = name.rsplit_once('-')?.0;
    }
}

#[test]
fn every_program_passes_its_packet_tests() {
    let mut tests: Vec<PathBuf> = std::fs::read_dir(p4().join("tests"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "stf"))
        .collect();
    tests.sort();
    assert!(!tests.is_empty());
    let mut failures = Vec::new();
    for path in &tests {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).unwrap();
        let json = std::fs::read(program_of(&name).unwrap()).unwrap();
        let outcome = Test::parse(&name, &text).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|test| run::run(&json, &test).map_err(|error| error.to_string()));
        if let Err(error) = outcome {
            failures.push(format!("{name}: {error}"));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} fail:\n{}",
        failures.len(),
        tests.len(),
        failures.join("\n")
    );
}
