//! `linewarden-agent measure`.

use std::path::PathBuf;

use clap::Args;
use linewarden_agent::attest::MeasureError;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::results;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::eventlog::{Notice, ReplayedEvent};
use serde::Serialize;

use crate::config::read_attest;

/// Arguments of `linewarden-agent measure`.
#[derive(Args, Debug)]
#[command(after_help = "\
Measures the files and PCRs of [attest], as the agent does at the start of a period, and prints the measured values and their hash h. The \
TCG event log must replay to the PCRs that it covers; warnings name events whose data do not match their digest, and PCRs that differ \
between devices of the same configuration. --out writes the configuration in canonical encoding: the reference value of all devices \
with this configuration. No key is needed.

Examples:
  linewarden-agent measure --config agent.toml
  linewarden-agent measure --config agent.toml --out sensor-v2.reference
  linewarden-agent measure --config agent.toml --output json | jq .files")]
pub struct MeasureArgs {
    /// Configuration file of the agent (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Output file for the measured configuration, which can be a group's reference value or a device's overlay (path)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite an existing file (flag)
    #[arg(long, requires = "out")]
    force: bool,
}

/// JSON output.
#[derive(Serialize)]
struct MeasurementOutput<'a> {
    /// The hash h of the configuration.
    hash: String,
    #[serde(flatten)]
    configuration: &'a Configuration,
    /// Number of events that led to the PCRs.
    events: usize,
    /// Events whose data do not match their digest.
    unexplained: Vec<&'a ReplayedEvent>,
    /// Notices about the PCRs.
    notices: &'a [Notice],
}

/// Measures the configuration.
pub fn run(args: &MeasureArgs, output: Output) -> Result<(), Failure> {
    let (file, section) = read_attest(&args.config)?;
    let scope = section
        .scope()
        .map_err(|error| file.field_failure(&error.path, &error.problem))?;
    if let Some(path) = &args.out {
        results::check_new(path, args.force)?;
    }
    let measured = scope.measure().map_err(|error| match &error {
        MeasureError::Key(_) => file.field_failure(&["attest", "tpm"], &error.to_string()),
        _ => Failure::failed(error),
    })?;
    let configuration = &measured.configuration;
    for path in measured.absent() {
        tracing::warn!(%path, "path does not exist; its absence is measured, and a device that has the path differs");
    }
    let notices = measured.notices();
    for notice in &notices {
        tracing::warn!(reason = %notice, "measured PCRs need attention");
    }
    let log = measured.replayed().map(|(_, replayed)| replayed);
    let events = log.map_or(0, |log| log.events().len());
    if let Some(path) = &args.out {
        results::write(path, configuration.encode())?;
    }
    let hash = configuration.hash().to_string();
    output.object(&MeasurementOutput {
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
            "the TCG event log replays to the PCRs with {}",
            counted(events, "event")
        ))?;
    }
    output.line(format_args!("h {hash}"))?;
    match &args.out {
        Some(path) => output.line(format_args!("reference value: {}", path.display())),
        None => Ok(()),
    }
}
