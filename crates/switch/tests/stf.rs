//! Packet tests: p4c's own, small ones, and texts that are none.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use linewarden_switch::stf::{
    ActionCall, Command, Comparison, CountedUnit, CounterCell, CounterCheck, Expectations, KeyValue, NumberError,
    StfError, Target, Test, names,
};
use proptest::prelude::*;

fn parse(text: &str) -> Test {
    Test::parse("own.stf", text).unwrap_or_else(|error| panic!("{error}"))
}

fn only(text: &str) -> Command {
    let mut statements = parse(text).statements;
    assert_eq!(statements.len(), 1, "{text}");
    statements.remove(0).command
}

fn files_under(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "stf") {
            found.push(path);
        }
    }
}

/// p4c's own parser refuses it, too: a comma is missing between two arguments.
const MALFORMED: &str = "p4tc_samples_stf/routing_default.stf";

#[test]
fn every_test_of_p4c_is_read() {
    let Some(p4c) = std::env::var_os("LINEWARDEN_P4C") else {
        println!("SKIPPED: LINEWARDEN_P4C does not name a directory with p4c's sources");
        return;
    };
    let mut files = Vec::new();
    files_under(&Path::new(&p4c).join("testdata"), &mut files);
    let mut errors = Vec::new();
    let mut statements = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        match Test::parse(&file.display().to_string(), &text) {
            Ok(test) => statements += test.statements.len(),
            Err(error) if file.ends_with(MALFORMED) => assert_eq!((error.line, error.column), (1, 64)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    assert!(files.len() > 300, "{} files", files.len());
    println!("{} files, {statements} statements", files.len());
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}
