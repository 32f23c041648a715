//! `linewarden demo`.

mod progress;
mod table;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use linewarden_dataplane::DataPlaneError;
use linewarden_lab::demo::{self, Backend, DEVICES_MAX, DEVICES_MIN, DemoError, Options, Report, Sabotage};

use self::progress::Watcher;
use crate::failure::Failure;
use crate::output::Output;
use crate::results;
use crate::signals::Signals;

/// Name of the picture in the directory of results.
const PICTURE: &str = "demo-latency.svg";

/// What to show.
#[derive(Args, Debug)]
#[command(after_help = "\
Builds a private network of namespaces, enrols simulated devices with noisy PUFs into a fresh registry, and lets all of \
them authenticate through a real gateway while attackers try what they can. Some prove round after round what they run, until \
one is changed, found and shut out (not with `--dataplane p4`). Nothing of it leaves the machine, and nothing stays behind. Fails when anything unauthorised was accepted or an honest device was refused.

Needs root. With `--dataplane host` it also runs without: over loopback, and says what it leaves out.

Examples:
  linewarden demo
  linewarden demo --devices 1000 --dataplane host --json demo.json")]
pub struct DemoArgs {
    /// Simulated devices
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(i64::from(DEVICES_MIN)..=i64::from(DEVICES_MAX)))]
    devices: u32,
    /// The verifier
    #[arg(long, value_name = "NAME", default_value = "xdp")]
    dataplane: DataPlaneName,
    /// Where to write the figures
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to put the picture of latencies, demo-latency.svg
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Decides chips, their noise, and what attackers draw
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Seconds after which a device without a session counts as refused
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Spoil the run, to see that the judge notices
    #[arg(long, value_name = "HOW", hide = true)]
    spoil: Option<Spoil>,
}

/// A data plane by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPlaneName {
    /// The eBPF program
    Xdp,
    /// Threads on UDP sockets
    Host,
    /// A P4 switch in this process, through P4Runtime
    P4,
}

/// A way to spoil a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Spoil {
    /// An honest device is revoked before its turn
    RevokeBeforeTurn,
    /// The gate is left off
    GateLeftOff,
    /// The software that is to be changed is not
    FileLeftAlone,
    /// Another device's software is changed as well
    SecondFile,
}

impl DemoArgs {
    fn options(&self) -> Options {
        let backend = match self.dataplane {
            DataPlaneName::Xdp => Backend::Xdp,
            DataPlaneName::Host => Backend::Host,
            DataPlaneName::P4 => Backend::P4,
        };
        Options {
            limit: Duration::from_secs(self.limit),
            sabotage: self.spoil.map(|spoil| match spoil {
                Spoil::RevokeBeforeTurn => Sabotage::RevokeBeforeTurn,
                Spoil::GateLeftOff => Sabotage::GateLeftOff,
                Spoil::FileLeftAlone => Sabotage::FileLeftAlone,
                Spoil::SecondFile => Sabotage::SecondFile,
            }),
            ..Options::new(self.devices, backend, self.seed)
        }
    }
}

/// Runs the demonstration.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let options = args.options();
    let output = Output::new(false);
    // Before the work: whether what it is for can be written.
    let _out = results::Directory::prepare(&args.out)?;
    args.json.as_deref().map_or(Ok(()), results::check)?;
    let signal = Signals::to_stop()?;
    let started = Instant::now();
    let report = show(&options, &signal)?;
    table::print(output, &report)?;
    write_results(args, output, &report)?;
    judge(output, &report, started.elapsed())
}

/// The run itself. A signal ends it in order.
fn show(options: &Options, signal: &Signals) -> Result<Report, Failure> {
    let stop = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let mut watcher = Watcher::new(options.devices);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                // A signal that cannot be waited for ends the run as well.
                if !matches!(signal.wait(Duration::from_millis(100)), Ok(None)) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        });
        let report = demo::run(options, &stop, &mut |event| watcher.on(&event));
        done.store(true, Ordering::Relaxed);
        report
    });
    watcher.end();
    report.map_err(failure)
}

fn failure(error: DemoError) -> Failure {
    match error {
        DemoError::Capability(_) | DemoError::DataPlane(DataPlaneError::Privilege { .. }) => {
            Failure::privilege(error).and("or use `--dataplane host`, which works without, over loopback")
        }
        DemoError::Devices(_) | DemoError::Rows(_) => Failure::input(error),
        other => Failure::failed(other),
    }
}

fn write_results(args: &DemoArgs, output: Output, report: &Report) -> Result<(), Failure> {
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
        // Nobody was authenticated; what failed is said below.
        Err(error) => output.line(format_args!("no picture: {error}")),
    }
}

/// The last word.
fn judge(output: Output, report: &Report, took: Duration) -> Result<(), Failure> {
    for left_out in &report.left_out {
        output.line(format_args!("left out: {left_out}"))?;
    }
    for finding in &report.findings {
        output.line(format_args!("finding: {finding}"))?;
    }
    let counts = format!(
        "{} false accepts, {} false rejects, {} attacks inconclusive",
        report.false_accepts, report.false_rejects, report.inconclusive
    );
    if report.passed {
        output.line(format_args!("demo: passed in {} s: {counts}", took.as_secs()))
    } else {
        Err(Failure::failed(format!("demo: {counts}")))
    }
}
