//! `linewarden puf`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::results;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_puf::report::{PufReport, ReportOptions};

/// Subcommands of `linewarden puf`.
#[derive(Subcommand, Debug)]
pub enum PufCommand {
    /// Report the quality of PUF readouts: uniformity, uniqueness, reliability, entropy, rebuild failures
    #[command(after_help = "\
The directory holds the dumps of one device, or one subdirectory of dumps per device. Dumps are files ending in .bin, \
.raw, .dump (binary), .txt or .hex (hexadecimal text); all dumps of a device cover the same memory.

Exits with code 4 if enrollment would refuse a device: a part of its memory is not power-up state, its readouts are copies, \
too little entropy is left, or two devices have memory in common. Enrollment uses only the first MiB of each memory.

Examples:
  linewarden puf report readouts --svg report.svg
  linewarden puf report readouts --output json | jq .uniqueness")]
    Report(ReportArgs),
}

/// Arguments of `linewarden puf report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Directory of readouts (path)
    directory: PathBuf,
    /// Write the report as a picture to this SVG file (path)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Rebuild trials: number of first readouts with which a trial enrolls; it rebuilds the key from each later readout (integer)
    #[arg(long, value_name = "COUNT", default_value_t = ReportOptions::default().enrollment_readouts)]
    enrollment_readouts: usize,
    /// With readouts of a single device: size of the windows of its memory that are compared like devices (integer, bits)
    #[arg(long, value_name = "BITS", default_value_t = ReportOptions::default().window_bits)]
    window_bits: usize,
}

/// Runs the command.
pub fn run(command: &PufCommand, output: Output) -> Result<(), Failure> {
    let PufCommand::Report(args) = command;
    args.svg.as_deref().map_or(Ok(()), results::check)?;
    let options = ReportOptions {
        window_bits: args.window_bits,
        enrollment_readouts: args.enrollment_readouts,
        ..ReportOptions::default()
    };
    let bar = output.spinner();
    let report = PufReport::from_directory(&args.directory, &options, &|step| {
        bar.set_message(step.to_owned())
    })
    .map_err(Failure::input)?;
    bar.finish_and_clear();
    output.object(&report)?;
    let rows = report
        .rows()
        .into_iter()
        .map(|row| vec![row.metric, row.value, row.target]);
    output.table(&["metric", "value", "target"], &[], rows.collect())?;
    output.line(report.text_chart())?;
    if let Some(path) = &args.svg {
        results::write(path, &report.svg().map_err(Failure::failed)?)?;
        output.line(format_args!("picture: {}", path.display()))?;
    }
    match report.refusals().as_slice() {
        [] => Ok(()),
        [refusal] => Err(Failure::unsafe_(format!("enrollment refuses {refusal}"))),
        [refusal, remaining @ ..] => Err(Failure::unsafe_(format!(
            "enrollment refuses {refusal}; and {} more",
            counted(remaining.len() as u64, "finding")
        ))),
    }
}
