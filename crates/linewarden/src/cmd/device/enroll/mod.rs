//! `linewarden device enroll`: from simulated PUFs, stored readouts, or a program that reads real ones.

mod files;
mod make;
mod pipeline;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use linewarden_agent::config::parse_device_id;
use linewarden_agent::source::Model;
use linewarden_protocol::ids::DeviceId;
use linewarden_puf::readout::Span;

use crate::cmd::device::list::ModeName;
use crate::failure::Failure;
use crate::output::Output;
use crate::site::{ReasonArgs, SiteArgs};

/// Where the PUF is.
#[derive(Subcommand, Debug)]
pub enum EnrollCommand {
    /// Simulated PUFs, for trials: any number of devices whose chips follow from one seed file
    #[command(after_help = "\
Examples:
  linewarden device enroll simulated --count 1000 --out devices --config gateway.toml
  linewarden device enroll simulated --model sram --out devices --config gateway.toml")]
    Simulated(SimulatedArgs),
    /// One device from stored readouts of its memory (key mode)
    #[command(after_help = "\
Examples:
  linewarden device enroll readouts dumps/chip7 --name \"pump 7\" --out devices --config gateway.toml
  linewarden device enroll readouts dumps/chip7 --range 0x4000..0x8000 --out devices \\
    --config gateway.toml")]
    Readouts(ReadoutsArgs),
    /// One device whose PUF a program reads; see `config example agent` for what the program gets and prints
    #[command(after_help = "\
Examples:
  linewarden device enroll command --mode pool --rows 500 --out devices --config gateway.toml \\
    -- /usr/local/bin/read-puf --bus 1")]
    Command(CommandArgs),
}

/// What every enrolment needs.
#[derive(Args, Debug)]
pub struct CommonArgs {
    /// Directory for the devices' files: helper data, and a configuration of the agent
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// For people; of several devices its beginning
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// The id, up to 16 hexadecimal digits; random if not given
    #[arg(long, value_name = "ID", value_parser = parse_device_id)]
    device: Option<DeviceId>,
    /// Give a device that is enrolled already new credentials; its numbers go on
    #[arg(long, requires = "device")]
    replace: bool,
    /// The gateway's address for the agent's configuration
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<String>,
    /// The device's interface towards the gateway, which a gate demands, for the agent's configuration
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Simulated PUFs.
#[derive(Args, Debug)]
pub struct SimulatedArgs {
    /// Devices
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// The model; sram is enrolled in key mode, the others in pool mode
    #[arg(long, value_name = "MODEL", default_value = "xor-arbiter")]
    model: ModelName,
    /// Rows of a device in pool mode: so many authentications
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    rows: u32,
    /// Stages of an arbiter chain
    #[arg(long, default_value_t = 64)]
    stages: usize,
    /// Chains
    #[arg(long, default_value_t = 4)]
    chains: usize,
    /// Cells of SRAM
    #[arg(long, default_value_t = 32_768)]
    cells: usize,
    /// Mean bit error rate of a reading
    #[arg(long, value_name = "RATE", default_value_t = 0.05)]
    bit_error_rate: f64,
    /// The fleet's seed; made if nothing is there, fleet.seed in the directory if not given
    #[arg(long, value_name = "FILE")]
    seed_file: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Stored readouts.
#[derive(Args, Debug)]
pub struct ReadoutsArgs {
    /// The directory of dumps, at least three of the same memory
    directory: PathBuf,
    /// Enroll this part of the memory only: START..END in bytes, END excluded, such as 0x4000..0x8000; at most 1 MiB, START a multiple of 256
    #[arg(long, value_name = "RANGE", default_value = "0..")]
    range: Span,
    #[command(flatten)]
    common: CommonArgs,
}

/// A program.
#[derive(Args, Debug)]
pub struct CommandArgs {
    /// pool: the PUF answers challenges. key: it has cells that are read as a whole
    #[arg(long, value_name = "MODE")]
    mode: ModeName,
    /// Rows in pool mode
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    rows: u32,
    /// Cells to read in key mode
    #[arg(long, default_value_t = 32_768)]
    cells: usize,
    /// Readings of the cells in key mode
    #[arg(long, default_value_t = 5)]
    readouts: usize,
    /// How long one reading may take
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
    #[command(flatten)]
    common: CommonArgs,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// A model by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ModelName {
    /// One chain, easily learnt by machines
    Arbiter,
    /// Several chains
    XorArbiter,
    /// Two layers
    Interpose,
    /// Memory
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
    /// What every enrolment needs.
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::Simulated(args) => &args.common,
            Self::Readouts(args) => &args.common,
            Self::Command(args) => &args.common,
        }
    }
}

/// Enrols.
pub fn run(command: EnrollCommand, output: Output) -> Result<(), Failure> {
    if let EnrollCommand::Simulated(args) = &command
        && args.count > 1
        && args.common.device.is_some()
    {
        return Err(Failure::input(
            "--device names one device, --count asks for several",
        ));
    }
    std::fs::create_dir_all(&command.common().out).map_err(|error| {
        Failure::input(format!(
            "{}: cannot be made: {error}",
            command.common().out.display()
        ))
    })?;
    let maker = make::Maker::new(&command)?;
    pipeline::run(command.common(), &maker, output)
}
