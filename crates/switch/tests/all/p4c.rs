//! p4c's own packet tests (testdata/p4_16_samples, v1model), which are not in this repository.
//!
//! `LINEWARDEN_P4C_COMPILED` names a directory with `NAME.json` and `NAME.stf` for each test.

use std::path::PathBuf;

use linewarden_harness::skip;
use linewarden_switch::stf::{Test, run};

#[test]
fn every_packet_test_of_p4c_passes() {
    let Some(directory) = std::env::var_os("LINEWARDEN_P4C_COMPILED").map(PathBuf::from) else {
        skip!("LINEWARDEN_P4C_COMPILED names no directory with compiled programs and packet tests");
    };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "stf"))
        .collect();
    paths.sort();
    let mut failures = Vec::new();
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).unwrap();
        let json = std::fs::read(path.with_extension("json")).unwrap();
        let outcome = Test::parse(&name, &text).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|test| run::run(&json, &test).map_err(|error| error.to_string()));
        if let Err(error) = outcome {
            failures.push(format!("{name}: {error}"));
        }
    }
    println!("{} of {} pass", paths.len() - failures.len(), paths.len());
    assert!(
        failures.is_empty(),
        "{} fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
