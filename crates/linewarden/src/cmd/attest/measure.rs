//! `linewarden attest measure`.

use std::path::PathBuf;

use clap::Args;
use linewarden_agent::attest::MeasureError;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::eventlog::{Notice, ReplayedEvent};
use serde::Serialize;

use super::read;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::results;

/// What to measure.
#[derive(Args, Debug)]
#[command(after_help = "\
Measures the files and PCRs of [attest], as the agent does when a period begins, and prints h and what it is made of. The \
event log must replay to the PCRs, if it says anything about them; warnings name events whose data are not what their digest is \
of, and PCRs in which devices that run the same differ. With --out the configuration is written in its one encoding: the reference value of all \
devices that run the same. No key is needed.

Examples:
  linewarden attest measure --config agent.toml
  linewarden attest measure --config agent.toml --out sensor-v2.reference
  linewarden attest measure --config agent.toml --json | jq .files")]
pub struct MeasureArgs {
    /// The agent's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where to put the configuration as a reference value
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write over a file that is there
    #[arg(long, requires = "out")]
    force: bool,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// What machines get.
#[derive(Serialize)]
struct Told<'a> {
    /// h.
    hash: String,
    #[serde(flatten)]
    configuration: &'a Configuration,
    /// Events that led to the PCRs.
    events: usize,
    /// Those whose data are not what their digest is of.
    unexplained: Vec<&'a ReplayedEvent>,
    /// What to know of the PCRs.
    notices: &'a [Notice],
}

/// Measures.
pub fn run(args: &MeasureArgs, output: Output) -> Result<(), Failure> {
    let (file, section) = read(&args.config)?;
    let subject = section
        .subject()
        .map_err(|error| file.field(&error.path, &error.problem))?;
    if let Some(path) = &args.out {
        results::check_new(path, args.force)?;
    }
    let measured = subject.measure().map_err(|error| match &error {
        MeasureError::Key(_) => file.field(&["attest", "tpm"], &error.to_string()),
        _ => Failure::failed(error),
    })?;
    let configuration = &measured.configuration;
    for path in measured.absent() {
        tracing::warn!(%path, "nothing is there, which is what is measured: a device that has it differs");
    }
    let notices = measured.notices();
    for notice in &notices {
        tracing::warn!(%notice, "measured PCRs");
    }
    let log = measured.replayed().map(|(_, replayed)| replayed);
    let events = log.map_or(0, |log| log.events().len());
    if let Some(path) = &args.out {
        results::write(path, configuration.encode())?;
    }
    let hash = configuration.hash().to_string();
    output.object(&Told {
        hash: hash.clone(),
        configuration,
        events,
        unexplained: log.into_iter().flat_map(|log| log.unexplained()).collect(),
        notices: &notices,
    })?;
    for (pcr, value) in configuration.pcrs().iter() {
        output.line(format_args!("PCR {pcr}: {value}"))?;
    }
    for (path, entry) in configuration.files() {
        output.line(format_args!("{path}: {entry}"))?;
    }
    if events > 0 {
        let events = u64::try_from(events).unwrap_or(u64::MAX);
        output.line(format_args!(
            "the event log replays to the PCRs with {}",
            counted(events, "event")
        ))?;
    }
    output.line(format_args!("h {hash}"))?;
    match &args.out {
        Some(path) => output.line(format_args!("reference value: {}", path.display())),
        None => Ok(()),
    }
}
