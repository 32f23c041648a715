//! `linewarden-switch` as its users run it.

mod control;
mod evidence;
mod run;
mod tls;

use std::path::{Path, PathBuf};

use crate::support::command;

/// The path of a compiled P4 program in the directory `p4`.
fn compiled(name: &str) -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/compiled");
    compiled.canonicalize().unwrap().join(format!("{name}.json"))
}

/// Runs a command that must fail with this exit code. Returns its standard error.
#[track_caller]
fn expect_failure(directory_path: &Path, command_line: &str, code: i32) -> String {
    let output = command(directory_path, command_line).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command_line}: {errors}");
    errors
}
