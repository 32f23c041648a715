//! `linewarden puf`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_puf::report::{PufReport, ReportOptions};

use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::results;

/// What about PUFs.
#[derive(Subcommand, Debug)]
pub enum PufCommand {
    /// Quality of PUF readouts: uniformity, uniqueness, reliability, entropy, rebuild failures
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

/// What to report on.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The directory of readouts
    directory: PathBuf,
    /// Where to put a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Readouts that the rebuild trials enrol from; all others are rebuilt from
    #[arg(long, value_name = "COUNT", default_value_t = ReportOptions::default().enrolment_readouts)]
    enrolment_readouts: usize,
    /// With one device only: bits of a window that stands in for a device
    #[arg(long, value_name = "BITS", default_value_t = ReportOptions::default().window_bits)]
    window_bits: usize,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl PufCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        let Self::Report(args) = self;
        args.json
    }
}

/// Does it.
pub fn run(command: &PufCommand) -> Result<(), Failure> {
    let PufCommand::Report(args) = command;
    let output = Output::new(args.json);
    args.svg.as_deref().map_or(Ok(()), results::check)?;
    let options = ReportOptions {
        window_bits: args.window_bits,
        enrolment_readouts: args.enrolment_readouts,
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
        .map(|row| vec![row.metric, row.value, row.wanted]);
    output.table(&["metric", "value", "ideal or demanded"], &[], rows.collect())?;
    output.line(report.sketch())?;
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
