//! `linewarden demo`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::failure::Failure;

/// What to show.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden demo
  linewarden demo --devices 1000 --dataplane host --json demo.json")]
pub struct DemoArgs {
    /// Simulated devices
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub devices: u32,
    /// The verifier; the comparison of both needs xdp
    #[arg(long, value_name = "NAME", default_value = "xdp")]
    pub dataplane: DataPlaneName,
    /// Where to write the figures
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to draw the latency's distribution; beside the figures if not given
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Makes devices, noise and attacks repeatable
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// A data plane by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPlaneName {
    /// The eBPF program
    Xdp,
    /// Threads on UDP sockets
    Host,
}

/// Runs the demonstration.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    Err(Failure::failed(format!("{args:?}: not in this build")))
}
