//! `linewarden bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_lab::bench::{self, BenchError, Better, Report, Row, Scale, figures};

use crate::cmd::write_result;
use crate::failure::Failure;
use crate::output::Output;

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Authentication: cost per packet, rate and latency of xdp and host, beside the papers' figures
    #[command(after_help = "\
Needs root: it loads eBPF programs and builds a private network. Nothing of it leaves the machine. Figures are the
minimum of several runs; those of a busy machine are too high, their ratios less so.

Examples:
  linewarden bench auth
  linewarden bench auth --json bench.json --figures figures
  linewarden bench auth --quick")]
    Auth(BenchAuthArgs),
}

/// How to measure.
#[derive(Args, Debug)]
pub struct BenchAuthArgs {
    /// Where to write the rows of name, value, unit, better
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to draw the papers' figures with ours in them
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Timings are the minimum of so many runs
    #[arg(long, value_name = "COUNT", default_value_t = Scale::FULL.runs, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// A few seconds only, to see that it works; the figures say little
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
}

/// Measures.
pub fn run(command: &BenchCommand) -> Result<(), Failure> {
    let BenchCommand::Auth(args) = command;
    let output = Output::new(false);
    let scale = if args.quick {
        Scale::QUICK
    } else {
        Scale {
            runs: args.runs,
            ..Scale::FULL
        }
    };
    let spinner = output.spinner();
    let report = bench::auth(&scale, &mut |step| spinner.set_message(step.to_owned())).map_err(failure);
    spinner.finish_and_clear();
    let report = report?;
    print(output, &report)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
        write_result(path, &(text + "\n"))?;
    }
    if let Some(directory) = &args.figures {
        for path in figures::draw(&report, directory).map_err(failure)? {
            output.line(format!("drawn: {}", path.display()))?;
        }
    }
    Ok(())
}

fn print(output: Output, report: &Report) -> Result<(), Failure> {
    let rows = report.rows.iter().map(cells).collect();
    output.table(
        &["figure", "value", "unit", "better", "must reach", ""],
        &[1, 4],
        rows,
    )
}

fn cells(row: &Row) -> Vec<String> {
    let better = match row.better {
        Better::Lower => "lower",
        Better::Higher => "higher",
        Better::Neither => "",
    };
    let verdict = match row.reached() {
        Some(true) => "reached",
        Some(false) => "NOT reached",
        None => "",
    };
    vec![
        row.name.clone(),
        number(row.value),
        row.unit.to_owned(),
        better.to_owned(),
        row.bar.map_or_else(String::new, number),
        verdict.to_owned(),
    ]
}

/// Three significant digits or whole numbers, whichever is longer.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn failure(error: BenchError) -> Failure {
    use linewarden_dataplane::DataPlaneError;
    use linewarden_lab::loadgen::LoadError;
    use linewarden_lab::topology::LabError;
    match &error {
        BenchError::DataPlane(DataPlaneError::Privilege { .. })
        | BenchError::Lab(LabError::Capability(_))
        | BenchError::Load(LoadError::Capability(_)) => Failure::privilege(error),
        _ => Failure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(number(2_344_001.95), "2344002");
        assert_eq!(number(84.04), "84.0");
        assert_eq!(number(1.2249), "1.22");
    }

    #[test]
    fn a_bar_that_is_missed_is_said() {
        assert_eq!(cells(&Row::lower("x", 91.0, "ns", Some(90.0)))[5], "NOT reached");
        assert_eq!(cells(&Row::higher("x", 5.0, "ratio", Some(5.0)))[5], "reached");
    }
}
