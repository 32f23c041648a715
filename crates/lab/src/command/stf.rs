//! `linewarden-lab stf`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use linewarden_files::{read_bounded, read_text_bounded};
use linewarden_switch::stf::{Test, run as runner};
use serde::Serialize;

/// Maximum size of a compiled program, bytes.
const PROGRAM_BYTES_MAX: usize = 64 << 20;
/// Maximum size of a packet test, bytes.
const TEST_BYTES_MAX: usize = 16 << 20;

/// Arguments of `linewarden-lab stf`.
#[derive(Args, Debug)]
#[command(after_help = "\
A test NAME-WHAT.stf, or NAME.stf, is run against NAME.json: in the same directory, in its subdirectory compiled, or in the \
sibling directory compiled.

Examples:
  linewarden-lab stf p4/tests
  linewarden-lab stf tests/router-ttl.stf --program router.json")]
pub struct StfArgs {
    /// Packet tests, or directories of packet tests (path)
    #[arg(required = true, value_name = "DIR|FILE.stf")]
    tests: Vec<PathBuf>,
    /// Compiled program for all tests (path, default: found by the test's name)
    #[arg(long, value_name = "FILE.json")]
    program: Option<PathBuf>,
}

/// Result of one test.
#[derive(Serialize)]
struct Outcome<'a> {
    test: &'a str,
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs packet tests.
pub fn run(args: &StfArgs, output: Output) -> Result<(), Failure> {
    let start = Instant::now();
    let tests = find_tests(&args.tests)?;
    let mut failed_count = 0u64;
    for path in &tests {
        let error = run_test(path, args.program.as_deref()).err();
        let name = path.display().to_string();
        if let Some(error) = &error {
            failed_count += 1;
            output.line(format_args!("FAILED {name}\n  {}", error.replace('\n', "\n  ")))?;
        }
        output.object(&Outcome {
            test: &name,
            passed: error.is_none(),
            error,
        })?;
    }
    let total = tests.len() as u64;
    output.line(format_args!(
        "{} in {:.1} s: {} passed, {failed_count} failed",
        counted(total, "packet test"),
        start.elapsed().as_secs_f64(),
        total - failed_count,
    ))?;
    match failed_count {
        0 => Ok(()),
        _ => Err(Failure::failed(format_args!(
            "{} failed",
            counted(failed_count, "packet test")
        ))),
    }
}

/// Returns the tests in the order of `paths`. The tests of a directory are sorted by name.
fn find_tests(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut tests = Vec::new();
    for path in paths {
        if !path.is_dir() {
            tests.push(path.clone());
            continue;
        }
        let unreadable = |error: std::io::Error| Failure::input(format_args!("{}: {error}", path.display()));
        let mut directory_tests = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            directory_tests.push(entry.map_err(unreadable)?.path());
        }
        directory_tests.retain(|path| path.extension().is_some_and(|extension| extension == "stf"));
        directory_tests.sort();
        if directory_tests.is_empty() {
            return Err(Failure::input(format_args!(
                "{}: directory contains no packet tests (*.stf)",
                path.display()
            )));
        }
        tests.extend(directory_tests);
    }
    Ok(tests)
}

fn run_test(path: &Path, program: Option<&Path>) -> Result<(), String> {
    let text = read_text_bounded(path, TEST_BYTES_MAX).map_err(|error| error.to_string())?;
    let test = Test::parse(&path.display().to_string(), &text).map_err(|error| error.to_string())?;
    let program = match program {
        Some(program) => program.to_path_buf(),
        None => find_program(path).ok_or("no compiled program found for the test: use --program")?,
    };
    let json = read_bounded(&program, PROGRAM_BYTES_MAX)
        .map_err(|error| format!("{}: {error}", program.display()))?;
    runner::run(&json, &test).map_err(|error| error.to_string())
}

/// Finds the compiled program of a test: first a program with the name of the test. Without a program of this name, removes
/// the part of the name after the last hyphen, and searches again.
fn find_program(test: &Path) -> Option<PathBuf> {
    let directory = test.parent()?;
    let mut directories = vec![directory.to_path_buf(), directory.join("compiled")];
    directories.extend(directory.parent().map(|parent| parent.join("compiled")));
    if directory.as_os_str().is_empty() {
        directories.push(PathBuf::from("../compiled"));
    }
    let mut name = test.file_stem()?.to_str()?;
    loop {
        let program = directories
            .iter()
            .map(|candidate| candidate.join(format!("{name}.json")))
            .find(|json| json.is_file());
        if program.is_some() {
            return program;
        }
        name = name.rsplit_once('-')?.0;
    }
}
