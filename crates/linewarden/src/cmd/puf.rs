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
too little entropy is left, or two devices have memory in common. Of each memory, enrollment takes the first MiB.

Examples:
  linewarden puf report readouts --svg report.svg
  linewarden puf report readouts --json | jq .uniqueness")]
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
    /// Number of readouts that rebuild trials enroll from; the others are rebuilt from (integer)
    #[arg(long, value_name = "COUNT", default_value_t = ReportOptions::default().enrollment_readouts)]
    enrollment_readouts: usize,
    /// For a single device: size of a window that represents a device (integer, bits)
    #[arg(long, value_name = "BITS", default_value_t = ReportOptions::default().window_bits)]
    window_bits: usize,
    /// Print JSON instead of text (flag)
    #[arg(long)]
    json: bool,
}

impl PufCommand {
    /// Whether the command prints JSON.
    pub fn prints_json(&self) -> bool {
        let Self::Report(args) = self;
        args.json
    }
}

/// Runs the command.
pub fn run(command: &PufCommand) -> Result<(), Failure> {
    let PufCommand::Report(args) = command;
    let output = Output::new(args.json);
    args.svg.as_deref().map_or(Ok(()), results::check)?;
    let options = ReportOptions {
        window_bits: args.window_bits,
        enrollment_readouts: args.enrollment_readouts,
        ..ReportOptions::default()
    };
    let bar = output.spinner();
    let report = PufReport::from_directory(&args.directory, &options, &|doing| {
        bar.set_message(doing.to_owned())
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
        [refusal, others @ ..] => Err(Failure::unsafe_(format!(
            "enrollment refuses {refusal}; and {}",
            counted(others.len() as u64, "finding")
        ))),
    }
}
