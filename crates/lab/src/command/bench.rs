//! `linewarden-lab bench`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use linewarden_lab::bench::scale::{Part, Progress, Size};
use linewarden_lab::bench::{
    self, BenchError, Better, Pending, Report, Row, Scale, attest, figures, service, signatures, switch,
};

/// Subcommands of `linewarden-lab bench`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure authentication: cost per packet, rate and latency of the xdp and host data planes
    #[command(after_help = "\
Requires root, because the benchmark loads eBPF programs and builds a virtual network of namespaces. No traffic leaves the machine. Each cost is the \
minimum of several runs. On a busy machine the costs are too high; their ratios are more stable.

Examples:
  linewarden-lab bench auth
  linewarden-lab bench auth --json bench.json --figures figures
  linewarden-lab bench auth --quick")]
    Auth(BenchAuthArgs),
    /// Measure scale: a million devices in one gateway, from enrollment to a restart
    #[command(after_help = "\
Requires root, 4 GB of memory and 3 GB of disk in the directory for temporary files (TMPDIR). Rows come from a seeded generator: \
the cost of a PUF model is not included. No traffic leaves the machine.

Examples:
  linewarden-lab bench scale
  linewarden-lab bench scale --json scale.json --figures figures
  linewarden-lab bench scale --devices 100000
  linewarden-lab bench scale --only eviction --only memory
  linewarden-lab bench scale --quick")]
    Scale(BenchScaleArgs),
    /// Measure attestation: ciphers and proofs in the data plane and on the host
    #[command(after_help = "\
Requires root, because the benchmark loads eBPF programs and builds a virtual network of namespaces; only the parts stream and round run without \
root (round then uses the host data plane on loopback). No traffic leaves the machine. Each cost is the minimum of several runs. Parts: \
cipher (ciphers in the data plane), rate (output rate of these ciphers by input rate), proof (PROOFs in the kernel, and in memory), p4dra \
(the same for p4dra-classic), link (PROOFs over a veth, compared with verifiers in user space), round (a round of 10^5 provers through \
the gateway), stream (Forró on the host).

Examples:
  linewarden-lab bench attest
  linewarden-lab bench attest --json attest.json --figures figures
  linewarden-lab bench attest --only stream
  linewarden-lab bench attest --only link --figures figures
  linewarden-lab bench attest --quick")]
    Attest(BenchAttestArgs),
    /// Measure the P4 switch: cost per packet, rate over interfaces, ciphers and verifiers in P4
    #[command(after_help = "\
Requires the compiled programs and packet tests of the repository (--p4). The parts link and rate require root: they build a \
virtual network of namespaces. No traffic leaves the machine. Each cost is the minimum of several runs. Parts: router (in memory), link (over packet \
sockets, veth to veth, and the highest rate without loss), registers (cost of evidence per register write), messages (LAP/1 and \
proofs), ciphers (Forró and ChaCha in P4), rate (output rate of these ciphers by input rate), ports (rate by the number of \
recirculations and of recirculation ports).

Examples:
  linewarden-lab bench switch
  linewarden-lab bench switch --json switch.json --figures figures
  linewarden-lab bench switch --only router --only ciphers
  linewarden-lab bench switch --quick")]
    Switch(BenchSwitchArgs),
    /// Measure signed messages: every scheme on one core and on the GPU, and the scheduler
    #[command(after_help = "\
Requires no privilege; no traffic leaves the machine. The variants of an operation are measured alternately; each result is the best of \
many rounds. Results that need missing hardware are reported as pending, never estimated. Parts: cpu (one core: one message at a time, \
eight messages at a time, and Table 1 of the HAA thesis), batches (the stages of Rapid Authentication by batch size and by number of \
threads), scheduler (the real engine: immediate messages under load, two lanes compared with one), simulator (the scheduler in virtual \
time with this machine's rates), gpu (verification and signing on the GPU).

Examples:
  linewarden-lab bench signatures
  linewarden-lab bench signatures --json signatures.json --figures figures
  linewarden-lab bench signatures --only cpu
  linewarden-lab bench signatures --quick")]
    Signatures(BenchSignaturesArgs),
    /// Measure the service: import, queries, events and revocations with a million devices
    #[command(after_help = "\
Starts controllers and gateways of this program, over TLS on loopback, with files in the directory for temporary files (TMPDIR): \
2 GB of disk, 3 GB of memory, some minutes. No traffic leaves the machine. Clients and services share the processors. Parts: floor \
(cost of disk, TLS and registry alone), import (into SQLite and, if installed, PostgreSQL), reads, events, revoke (three gateways on \
loopback), auth-rate (requires root and two processors: the xdp data plane on one, the controller on the other).

Examples:
  linewarden-lab bench service
  linewarden-lab bench service --json service.json
  linewarden-lab bench service --devices 100000 --only reads
  linewarden-lab bench service --quick")]
    Service(BenchServiceArgs),
}

/// Arguments of `linewarden-lab bench service`.
#[derive(Args, Debug)]
pub struct BenchServiceArgs {
    /// Write results as JSON rows of name, value, unit, better (path)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Number of devices of the fleet (integer)
    #[arg(long, value_name = "COUNT", default_value_t = service::Size::FULL.devices, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    pub devices: u32,
    /// Run only this part; repeatable; the fleet is imported once for all parts (name)
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(service::Part::ALL.map(service::Part::name)))]
    pub only: Vec<String>,
    /// Short run of less than a minute, to check that the benchmark works; its results are not meaningful (flag)
    #[arg(long, conflicts_with = "devices")]
    pub quick: bool,
}

/// Arguments of `linewarden-lab bench signatures`.
#[derive(Args, Debug)]
pub struct BenchSignaturesArgs {
    /// Write results as JSON rows of name, value, unit, better (path)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw Table 1 and Figures 3 to 11 of the HAA thesis with these results into this directory (path)
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Rounds per measurement; the result is the best round (integer)
    #[arg(long, value_name = "COUNT", default_value_t = signatures::Size::FULL.runs, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Run only this part; repeatable (name)
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(signatures::Part::ALL.map(signatures::Part::name)))]
    pub only: Vec<String>,
    /// Short run of less than a minute, to check that the benchmark works; its results are not meaningful (flag)
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
}

/// Arguments of `linewarden-lab bench switch`.
#[derive(Args, Debug)]
pub struct BenchSwitchArgs {
    /// Write results as JSON rows of name, value, unit, better (path)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw Figure 10 of the P4DRA paper for the P4 ciphers, and rate by recirculations, into this directory (path)
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Directory of the P4 programs: compiled/NAME.json and tests/NAME-*.stf (path)
    #[arg(long, value_name = "DIR", default_value = "p4")]
    pub p4: PathBuf,
    /// Runs per measurement; the result is their minimum (integer)
    #[arg(long, value_name = "COUNT", default_value_t = switch::Size::FULL.runs, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Run only this part; repeatable (name)
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(switch::Part::ALL.map(switch::Part::name)))]
    pub only: Vec<String>,
    /// Short run of a few seconds, to check that the benchmark works; its results are not meaningful (flag)
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
}

/// Arguments of `linewarden-lab bench attest`.
#[derive(Args, Debug)]
pub struct BenchAttestArgs {
    /// Write results as JSON rows of name, value, unit, better (path)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw Figures 10, 11, 16 and 17 of the P4DRA paper with these results into this directory (path)
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Runs per measurement; the result is their minimum (integer)
    #[arg(long, value_name = "COUNT", default_value_t = attest::Size::FULL.runs, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Run only this part; repeatable (name)
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(attest::Part::ALL.map(attest::Part::name)))]
    pub only: Vec<String>,
    /// Short run of a few seconds, to check that the benchmark works; its results are not meaningful (flag)
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
}

/// Arguments of `linewarden-lab bench scale`.
#[derive(Args, Debug)]
pub struct BenchScaleArgs {
    /// Write results as JSON rows of name, value, unit, better (path)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw Figure 12 of the IoT paper with these results, and the hit rates of the eviction policies, into this directory (path)
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Number of devices of the fleet, with 100 rows each (integer)
    #[arg(long, value_name = "COUNT", default_value_t = Size::FULL.devices, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub devices: u32,
    /// Runs per measurement; the result is their minimum (integer)
    #[arg(long, value_name = "COUNT", default_value_t = Size::FULL.runs, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Run only this part; repeatable (name)
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(Part::ALL.map(Part::name)))]
    pub only: Vec<String>,
    /// Short run of a few seconds, to check that the benchmark works; its results are not meaningful (flag)
    #[arg(long, conflicts_with_all = ["runs", "devices"])]
    pub quick: bool,
}

/// Arguments of `linewarden-lab bench auth`.
#[derive(Args, Debug)]
pub struct BenchAuthArgs {
    /// Write results as JSON rows of name, value, unit, better (path)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the papers' figures with these results into this directory (path)
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Runs per measurement; the result is their minimum (integer)
    #[arg(long, value_name = "COUNT", default_value_t = Scale::FULL.runs, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Short run of a few seconds, to check that the benchmark works; its results are not meaningful (flag)
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
}

/// Runs a benchmark.
pub fn run(command: &BenchCommand, output: Output) -> Result<(), Failure> {
    match command {
        BenchCommand::Auth(args) => auth(args, output),
        BenchCommand::Scale(args) => scale(args, output),
        BenchCommand::Attest(args) => attest(args, output),
        BenchCommand::Switch(args) => switch(args, output),
        BenchCommand::Signatures(args) => signatures(args, output),
        BenchCommand::Service(args) => service(args, output),
    }
}

fn switch(args: &BenchSwitchArgs, output: Output) -> Result<(), Failure> {
    let _figures = prepare(args.json.as_deref(), args.figures.as_deref())?;
    let size = match args.quick {
        true => switch::Size::QUICK,
        false => switch::Size {
            runs: args.runs,
            ..switch::Size::FULL
        },
    };
    let parts: Vec<_> = switch::Part::ALL
        .into_iter()
        .filter(|part| is_selected(&args.only, part.name()))
        .collect();
    let report = with_progress(output, |progress| switch::run(&size, &args.p4, &parts, progress))?;
    print(output, &report)?;
    write_json(output, args.json.as_deref(), &report)?;
    draw(output, args.figures.as_deref(), &report, switch::figures::draw)
}

fn signatures(args: &BenchSignaturesArgs, output: Output) -> Result<(), Failure> {
    let _figures = prepare(args.json.as_deref(), args.figures.as_deref())?;
    let size = match args.quick {
        true => signatures::Size::QUICK,
        false => signatures::Size {
            runs: args.runs,
            ..signatures::Size::FULL
        },
    };
    let parts: Vec<_> = signatures::Part::ALL
        .into_iter()
        .filter(|part| is_selected(&args.only, part.name()))
        .collect();
    let report = with_progress(output, |progress| signatures::run(&size, &parts, progress))?;
    print(output, &report)?;
    write_json(output, args.json.as_deref(), &report)?;
    draw(
        output,
        args.figures.as_deref(),
        &report,
        signatures::figures::draw,
    )
}

fn attest(args: &BenchAttestArgs, output: Output) -> Result<(), Failure> {
    let _figures = prepare(args.json.as_deref(), args.figures.as_deref())?;
    let size = match args.quick {
        true => attest::Size::QUICK,
        false => attest::Size {
            runs: args.runs,
            ..attest::Size::FULL
        },
    };
    let parts: Vec<_> = attest::Part::ALL
        .into_iter()
        .filter(|part| is_selected(&args.only, part.name()))
        .collect();
    let report = with_progress(output, |progress| attest::run(&size, &parts, progress))?;
    print(output, &report)?;
    write_json(output, args.json.as_deref(), &report)?;
    draw(output, args.figures.as_deref(), &report, attest::figures::draw)
}

/// Whether a part is selected. Without --only, all parts are selected.
fn is_selected(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|selected| selected == name)
}

/// Shows progress while a benchmark runs.
fn with_progress(
    output: Output,
    run: impl FnOnce(Progress<'_>) -> Result<Report, BenchError>,
) -> Result<Report, Failure> {
    let spinner = output.spinner();
    let report = run(&mut |step, part| {
        spinner.set_message(match part {
            Some((done, total)) => format!("{step}: {done} of {total}"),
            None => step.to_owned(),
        });
    });
    spinner.finish_and_clear();
    report.map_err(failure)
}

fn service(args: &BenchServiceArgs, output: Output) -> Result<(), Failure> {
    prepare(args.json.as_deref(), None)?;
    let size = match args.quick {
        true => service::Size::QUICK,
        false => service::Size {
            devices: args.devices,
            ..service::Size::FULL
        },
    };
    let parts: Vec<_> = service::Part::ALL
        .into_iter()
        .filter(|part| is_selected(&args.only, part.name()))
        .collect();
    let lab = std::env::current_exe()?;
    // The other programs are installed in the same directory.
    let executables = lab.parent().unwrap_or(&lab);
    let report = with_progress(output, |progress| {
        service::run(executables, &size, &parts, progress)
    })?;
    print(output, &report)?;
    write_json(output, args.json.as_deref(), &report)
}

fn scale(args: &BenchScaleArgs, output: Output) -> Result<(), Failure> {
    let _figures = prepare(args.json.as_deref(), args.figures.as_deref())?;
    let size = match args.quick {
        true => Size::QUICK,
        false => Size {
            devices: args.devices,
            runs: args.runs,
            ..Size::FULL
        },
    };
    let parts: Vec<Part> = Part::ALL
        .into_iter()
        .filter(|part| is_selected(&args.only, part.name()))
        .collect();
    let report = with_progress(output, |progress| bench::scale::run(&size, &parts, progress))?;
    print(output, &report)?;
    write_json(output, args.json.as_deref(), &report)?;
    draw(
        output,
        args.figures.as_deref(),
        &report,
        bench::scale::figures::draw,
    )
}

/// Prepares the directory for figures, and checks that the JSON file can be written, before the benchmark runs.
fn prepare(json: Option<&Path>, figures: Option<&Path>) -> Result<Option<results::Directory>, Failure> {
    let directory = figures.map(results::Directory::prepare).transpose()?;
    json.map_or(Ok(()), results::check)?;
    Ok(directory)
}

type Draw = fn(&Report, &Path) -> Result<Vec<PathBuf>, BenchError>;

fn draw(output: Output, directory: Option<&Path>, report: &Report, draw: Draw) -> Result<(), Failure> {
    let Some(directory) = directory else {
        return Ok(());
    };
    for path in draw(report, directory).map_err(failure)? {
        output.line(format!("figure: {}", path.display()))?;
    }
    Ok(())
}

fn write_json(output: Output, path: Option<&Path>, report: &Report) -> Result<(), Failure> {
    output.object(report)?;
    let Some(path) = path else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
    results::write(path, &(text + "\n"))
}

fn auth(args: &BenchAuthArgs, output: Output) -> Result<(), Failure> {
    let _figures = prepare(args.json.as_deref(), args.figures.as_deref())?;
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
    write_json(output, args.json.as_deref(), &report)?;
    draw(output, args.figures.as_deref(), &report, figures::draw)
}

fn print(output: Output, report: &Report) -> Result<(), Failure> {
    let measured = report.rows.iter().map(cells);
    let rows = measured.chain(report.pending.iter().map(pending_cells)).collect();
    output.table(
        &["result", "value", "unit", "better", "target", ""],
        &[1, 4],
        rows,
    )
}

fn pending_cells(row: &Pending) -> Vec<String> {
    vec![
        row.name.clone(),
        "pending".to_owned(),
        row.unit.to_owned(),
        direction(row.better).to_owned(),
        row.target.map_or_else(String::new, number),
        row.reason.clone(),
    ]
}

fn direction(better: Better) -> &'static str {
    match better {
        Better::Lower => "lower",
        Better::Higher => "higher",
        Better::Neither => "",
    }
}

fn cells(row: &Row) -> Vec<String> {
    let target_result = match row.meets_target() {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "",
    };
    vec![
        row.name.clone(),
        number(row.value),
        row.unit.to_owned(),
        direction(row.better).to_owned(),
        row.target.map_or_else(String::new, number),
        target_result.to_owned(),
    ]
}

/// Formats a value without decimals from 100 on, with one decimal from 10 on, and with two decimals below 10.
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
        // The original message suggests another data plane, which a benchmark cannot use.
        BenchError::DataPlane(DataPlaneError::Privilege {
            capability: needed, ..
        }) => Failure::privilege(format!("missing privilege {needed}: run as root")),
        BenchError::Lab(LabError::Capability(_)) | BenchError::Load(LoadError::Capability(_)) => {
            Failure::privilege(error)
        }
        BenchError::P4File { .. } => Failure::input(error),
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
    fn a_missed_target_is_reported() {
        assert_eq!(cells(&Row::lower("x", 91.0, "ns", Some(90.0)))[5], "NOT MET");
        assert_eq!(cells(&Row::higher("x", 5.0, "ratio", Some(5.0)))[5], "met");
    }
}
