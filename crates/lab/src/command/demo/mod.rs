//! `linewarden-lab demo`.

mod progress;
mod summary;
mod table;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use linewarden_dataplane::DataPlaneError;
use linewarden_lab::demo::{
    self, DEVICES_MAX, DEVICES_MIN, DataPlaneKind, DemoError, InjectedFault, MESSAGES_PER_ATTACK, Options,
    Report,
};

use self::progress::ProgressDisplay;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use linewarden_cli::signals::Signals;

/// Name of the picture in the output directory.
const PICTURE: &str = "demo-latency.svg";

/// Arguments of `linewarden-lab demo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Builds a virtual network of namespaces, enrolls simulated devices with noisy PUFs in a new registry, and authenticates all of \
them through a real gateway while simulated attackers interfere. Some devices are attested round by round, until one is modified, \
detected and quarantined (not with `--dataplane p4`). No traffic leaves the machine, and nothing is left behind. Exits with code 1 if \
an unauthorized request was accepted or a legitimate device was refused.

Requires root, except with `--dataplane host`, which without root runs over loopback and lists the skipped parts.

Examples:
  linewarden-lab demo
  linewarden-lab demo --devices 1000 --dataplane host --json demo.json")]
pub struct DemoArgs {
    /// Number of simulated devices (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(i64::from(DEVICES_MIN)..=i64::from(DEVICES_MAX)))]
    devices: u32,
    /// Data plane of the gateway
    #[arg(long, value_name = "NAME", default_value = "xdp")]
    dataplane: DataPlaneName,
    /// Write the results as JSON to this file (path)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the full table of checks and attacks (flag)
    #[arg(long)]
    verbose: bool,
    /// Directory for the picture of latencies, demo-latency.svg (path)
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Seed of chips, their noise, and the attackers' random choices (integer)
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Messages of each attack; some attacks send fewer, floods up to twenty times as many (integer)
    #[arg(long, value_name = "COUNT", default_value_t = MESSAGES_PER_ATTACK, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Time after which a device without a session counts as refused (integer, seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Sabotage the run, to test that failures are detected
    #[arg(long, value_name = "HOW", hide = true)]
    sabotage: Option<SabotageName>,
}

/// A data plane, as an option value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPlaneName {
    /// eBPF program
    Xdp,
    /// Threads with UDP sockets
    Host,
    /// P4 switch in this process, controlled by P4Runtime
    P4,
}

/// A sabotage of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SabotageName {
    /// Revoke a legitimate device before it authenticates
    RevokeBeforeTurn,
    /// Switch the gate off
    GateLeftOff,
    /// Do not modify the software that the attack modifies
    FileLeftAlone,
    /// Modify the software of a second device
    SecondFile,
}

impl DemoArgs {
    fn options(&self) -> Options {
        let backend = match self.dataplane {
            DataPlaneName::Xdp => DataPlaneKind::Xdp,
            DataPlaneName::Host => DataPlaneKind::Host,
            DataPlaneName::P4 => DataPlaneKind::P4,
        };
        Options {
            messages_per_attack: self.messages,
            timeout: Duration::from_secs(self.limit),
            fault: self.sabotage.map(|fault| match fault {
                SabotageName::RevokeBeforeTurn => InjectedFault::RevokeBeforeAuthentication,
                SabotageName::GateLeftOff => InjectedFault::GateDisabled,
                SabotageName::FileLeftAlone => InjectedFault::FileUnchanged,
                SabotageName::SecondFile => InjectedFault::SecondFileChanged,
            }),
            ..Options::new(self.devices, backend, self.seed)
        }
    }
}

/// Runs the demonstration and prints its results.
pub fn run(args: &DemoArgs, output: Output) -> Result<(), Failure> {
    let options = args.options();
    // Checks before the run that the results can be written.
    let _out = results::Directory::prepare(&args.out)?;
    args.json.as_deref().map_or(Ok(()), results::check)?;
    let signal = Signals::for_stop()?;
    let started = Instant::now();
    let report = run_demo(&options, &signal)?;
    if args.verbose {
        table::print(output, &report)?;
    }
    summary::print(output, &report)?;
    write_results(args, output, &report)?;
    report_result(output, &report, started.elapsed())
}

/// Runs the demonstration; a signal stops it early.
fn run_demo(options: &Options, signal: &Signals) -> Result<Report, Failure> {
    let stop = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let mut display = ProgressDisplay::new(options.devices);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                // A failed wait stops the run, like a signal.
                if !matches!(signal.wait(Duration::from_millis(100)), Ok(None)) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        });
        let report = demo::run(options, &stop, &mut |event| display.handle(&event));
        done.store(true, Ordering::Relaxed);
        report
    });
    display.finish();
    report.map_err(failure)
}

fn failure(error: DemoError) -> Failure {
    match error {
        DemoError::Capability(_) | DemoError::DataPlane(DataPlaneError::Privilege { .. }) => {
            Failure::privilege(error)
                .with_detail("or use `--dataplane host`, which runs without privileges over loopback")
        }
        DemoError::DeviceCount(_) | DemoError::RowCount(_) => Failure::input(error),
        other => Failure::failed(other),
    }
}

fn write_results(args: &DemoArgs, output: Output, report: &Report) -> Result<(), Failure> {
    output.object(report)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
        results::write(path, &(text + "\n"))?;
    }
    let path = args.out.join(PICTURE);
    match demo::picture::latency_cdf(&report.comparison) {
        Ok(svg) => {
            results::write(&path, &svg)?;
            output.line(format_args!("picture: {}", path.display()))
        }
        // No device was authenticated; the findings below give the reason.
        Err(error) => output.line(format_args!("no picture: {error}")),
    }
}

/// Prints findings and the final result.
fn report_result(output: Output, report: &Report, elapsed: Duration) -> Result<(), Failure> {
    for check in &report.skipped_checks {
        output.line(format_args!("skipped: {check}"))?;
    }
    for finding in &report.findings {
        output.line(format_args!("finding: {finding}"))?;
    }
    let counts = format!(
        "{} false accepts, {} false rejects, {} attacks inconclusive",
        report.false_accepts, report.false_rejects, report.inconclusive_attacks
    );
    if report.passed {
        output.line(format_args!("demo: passed in {} s: {counts}", elapsed.as_secs()))
    } else {
        Err(Failure::failed(format!("demo: {counts}")))
    }
}
