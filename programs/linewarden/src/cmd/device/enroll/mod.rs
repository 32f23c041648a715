//! `linewarden device enroll`: enrolls simulated PUFs, stored readouts, or PUFs that a program reads.

mod enroller;
mod files;
mod pipeline;

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use linewarden_agent::source::Model;
use linewarden_protocol::ids::DeviceId;
use linewarden_puf::readout::Span;

use crate::access::{AccessArgs, ReasonArgs};
use crate::cmd::device::list::ModeName;

/// The PUF source.
#[derive(Subcommand, Debug)]
pub enum EnrollCommand {
    /// Enroll simulated PUFs, for tests: any number of devices, whose chips are derived from one seed file
    #[command(after_help = "\
Examples:
  linewarden device enroll simulated --count 1000 --out devices --config controller.toml
  linewarden device enroll simulated --model sram --out devices --config controller.toml")]
    Simulated(SimulatedArgs),
    /// Enroll one device from stored readouts of its memory (key mode)
    #[command(after_help = "\
Examples:
  linewarden device enroll readouts dumps/chip7 --name \"pump 7\" --out devices \\
    --config controller.toml
  linewarden device enroll readouts dumps/chip7 --range 0x4000..0x8000 --out devices \\
    --config controller.toml")]
    Readouts(ReadoutsArgs),
    /// Enroll one device whose PUF a program reads; `linewarden-agent config example` describes the program's input and output
    #[command(after_help = "\
Examples:
  linewarden device enroll command --mode pool --rows 500 --out devices --config controller.toml \\
    -- /usr/local/bin/read-puf --bus 1")]
    Command(CommandArgs),
}

/// Arguments of all enrollments.
#[derive(Args, Debug)]
pub struct CommonArgs {
    /// Output directory for helper data and agent configurations (path)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Display name of the device; for several devices, the prefix of their names (text)
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// Device ID (1 to 16 hexadecimal digits, default: random)
    #[arg(long, value_name = "ID")]
    device: Option<DeviceId>,
    /// Replace the credentials of an enrolled device; row numbers continue (flag)
    #[arg(long, requires = "device")]
    replace: bool,
    /// Address of the gateway, for the agent's configuration (HOST or HOST:PORT)
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<String>,
    /// Interface of the device toward the gateway, for the agent's configuration; required if the gateway has a gate (name)
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden device enroll simulated`.
#[derive(Args, Debug)]
pub struct SimulatedArgs {
    /// Number of devices (integer)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// PUF model; sram is enrolled in key mode, all other models in pool mode
    #[arg(long, value_name = "MODEL", default_value = "xor-arbiter")]
    model: ModelName,
    /// Rows of a device in pool mode, one per authentication (integer)
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    rows: u32,
    /// Number of stages of an arbiter chain (integer)
    #[arg(long, default_value_t = 64)]
    stages: usize,
    /// Number of arbiter chains (integer)
    #[arg(long, default_value_t = 4)]
    chains: usize,
    /// Number of SRAM cells (integer)
    #[arg(long, default_value_t = 32_768)]
    cells: usize,
    /// Mean bit error rate of a readout (fraction from 0 to 1)
    #[arg(long, value_name = "RATE", default_value_t = 0.05)]
    bit_error_rate: f64,
    /// Seed file of the fleet; created if it does not exist (path, default: fleet.seed in --out)
    #[arg(long, value_name = "FILE")]
    seed_file: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `linewarden device enroll readouts`.
#[derive(Args, Debug)]
pub struct ReadoutsArgs {
    /// Directory of dumps, at least three of the same memory (path)
    directory: PathBuf,
    /// Part of the memory to enroll: START..END in bytes, END exclusive, such as 0x4000..0x8000; at most 1 MiB, START
    /// a multiple of 256
    #[arg(long, value_name = "RANGE", default_value = "0..")]
    range: Span,
    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `linewarden device enroll command`.
#[derive(Args, Debug)]
pub struct CommandArgs {
    /// Mode: `pool` for a PUF that responds to challenges, `key` for memory cells that are read as a whole
    #[arg(long, value_name = "MODE")]
    mode: ModeName,
    /// Rows in pool mode, one per authentication (integer)
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    rows: u32,
    /// Number of cells to read in key mode (integer)
    #[arg(long, default_value_t = 32_768)]
    cells: usize,
    /// Number of readouts in key mode (integer)
    #[arg(long, default_value_t = 5)]
    readouts: usize,
    /// Timeout of one readout (integer, milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
    #[command(flatten)]
    common: CommonArgs,
    /// Program and its arguments, after `--` (path and text)
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// A PUF model, as an option value.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ModelName {
    /// One arbiter chain; easy to model by machine learning
    Arbiter,
    /// Several arbiter chains
    XorArbiter,
    /// Two layers of arbiter chains
    Interpose,
    /// Power-up state of SRAM cells
    Sram,
}

impl From<ModelName> for Model {
    fn from(name: ModelName) -> Self {
        match name {
            ModelName::Arbiter => Self::Arbiter,
            ModelName::XorArbiter => Self::XorArbiter,
            ModelName::Interpose => Self::Interpose,
            ModelName::Sram => Self::Sram,
        }
    }
}

impl EnrollCommand {
    /// The common arguments.
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::Simulated(args) => &args.common,
            Self::Readouts(args) => &args.common,
            Self::Command(args) => &args.common,
        }
    }
}

/// Enrolls devices.
pub fn run(command: EnrollCommand, output: Output) -> Result<(), Failure> {
    if let EnrollCommand::Simulated(args) = &command
        && args.count > 1
        && args.common.device.is_some()
    {
        return Err(Failure::input(
            "--device conflicts with --count: omit --device or --count",
        ));
    }
    std::fs::create_dir_all(&command.common().out).map_err(|error| {
        Failure::input(format!(
            "{}: cannot be created: {error}",
            command.common().out.display()
        ))
    })?;
    let enroller = enroller::Enroller::new(&command)?;
    pipeline::run(command.common(), &enroller, output)
}
