//! `linewarden switch stf`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use linewarden_files::{read_bounded, read_text_bounded};
use linewarden_switch::stf::{Test, run as runner};
use serde::Serialize;

use super::PROGRAM_BYTES_MAX;
use crate::failure::Failure;
use crate::output::{Output, counted};

/// No packet test is longer.
const TEST_BYTES_MAX: usize = 16 << 20;

/// Which packet tests.
#[derive(Args, Debug)]
pub struct StfArgs {
    /// Directories with packet tests, or single ones
    #[arg(required = true, value_name = "DIR|FILE.stf")]
    tests: Vec<PathBuf>,
    /// The compiled program that all of them are run against
    #[arg(long, value_name = "FILE.json")]
    program: Option<PathBuf>,
    /// JSON for machines: one object a test
    #[arg(long)]
    pub json: bool,
}

/// How one test went.
#[derive(Serialize)]
struct Outcome<'a> {
    test: &'a str,
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Does it.
pub fn run(args: &StfArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    let start = Instant::now();
    let tests = collect(&args.tests)?;
    let mut failed = 0u64;
    for path in &tests {
        let error = one(path, args.program.as_deref()).err();
        let name = path.display().to_string();
        if let Some(error) = &error {
            failed += 1;
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
        "{} in {:.1} s: {} passed, {failed} failed",
        counted(total, "packet test"),
        start.elapsed().as_secs_f64(),
        total - failed,
    ))?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::failed(format_args!(
            "{} failed",
            counted(failed, "packet test")
        ))),
    }
}

/// The tests, in order of their names.
fn collect(given: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut tests = Vec::new();
    for path in given {
        if !path.is_dir() {
            tests.push(path.clone());
            continue;
        }
        let wrong = |error: std::io::Error| Failure::input(format_args!("{}: {error}", path.display()));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(wrong)? {
            found.push(entry.map_err(wrong)?.path());
        }
        found.retain(|path| path.extension().is_some_and(|extension| extension == "stf"));
        found.sort();
        if found.is_empty() {
            return Err(Failure::input(format_args!(
                "{} has no packet tests (*.stf)",
                path.display()
            )));
        }
        tests.extend(found);
    }
    Ok(tests)
}

fn one(path: &Path, program: Option<&Path>) -> Result<(), String> {
    let text = read_text_bounded(path, TEST_BYTES_MAX).map_err(|error| error.to_string())?;
    let test = Test::parse(&path.display().to_string(), &text).map_err(|error| error.to_string())?;
    let program = match program {
        Some(program) => program.to_path_buf(),
        None => find_program(path).ok_or("no compiled program belongs to it: name one with --program")?,
    };
    let json = read_bounded(&program, PROGRAM_BYTES_MAX)
        .map_err(|error| format!("{}: {error}", program.display()))?;
    runner::run(&json, &test).map_err(|error| error.to_string())
}

/// The compiled program of a test: the longest part of its name, cut at hyphens, that one has.
fn find_program(test: &Path) -> Option<PathBuf> {
    let directory = test.parent()?;
    let mut places = vec![directory.to_path_buf(), directory.join("compiled")];
    places.extend(directory.parent().map(|above| above.join("compiled")));
    if directory.as_os_str().is_empty() {
        places.push(PathBuf::from("../compiled"));
    }
    let mut name = test.file_stem()?.to_str()?;
    loop {
        let found = places
            .iter()
            .map(|place| place.join(format!("{name}.json")))
            .find(|json| json.is_file());
        if found.is_some() {
            return found;
        }
        name = name.rsplit_once('-')?.0;
    }
}
