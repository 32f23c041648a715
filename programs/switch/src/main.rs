//! The program `linewarden-switch`: runs P4 programs that p4c compiled for BMv2, and provides evidence of their state.
//!
//! | Module | Contents |
//! |---|---|
//! | `run`, `control`, `attest` | the switch, its P4Runtime server, its evidence |
//! | `simple_switch` | options of simple_switch and simple_switch_grpc |
//! | `evidence` | digests and signed statements of a running switch |
//! | `tls` | TLS files and options |
#![forbid(unsafe_code)]

mod attest;
mod control;
mod evidence;
mod run;
mod simple_switch;
mod tls;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::program::{self, CommonCommand, GlobalArgs};
use linewarden_cli::{exit_codes, log};

/// Maximum size of a compiled program or a P4Info, bytes.
const PROGRAM_BYTES_MAX: usize = 64 << 20;

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden-switch run router.json -i 0@veth0 -i 1@veth1
  linewarden-switch evidence show"
    };
}

/// Run P4 programs, and provide evidence of their state
#[derive(Parser, Debug)]
#[command(name = "linewarden-switch", version, after_help = examples!(), after_long_help = concat!(examples!(), "\n\n", exit_codes!()), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a P4 program on interfaces or capture files
    #[command(after_help = "\
The program is the output of p4c for BMv2: p4c-bm2-ss --arch v1model --p4runtime-files router.txtpb -o router.json \
router.p4. Controllers fill its tables by P4Runtime, or install another program.

Examples:
  linewarden-switch run router.json --p4info router.txtpb -i 0@veth0 -i 1@veth1
  linewarden-switch run --no-p4 --cpu-port 510 -i 0@veth0 -i 1@veth1
  linewarden-switch run router.json -i 0@veth0 -i 1@veth1 --switch-id 7 --boot-count boots \\
    --evidence-key switch.key
  linewarden-switch run --no-p4 -i 0@veth0 --grpc-server-addr 192.0.2.1:9559 \\
    --grpc-server-cert tls.crt --grpc-server-key tls.key --grpc-server-cacert ca.crt
  linewarden-switch run router.json -i 0@port0 --use-files 0    # port0_in.pcap, port0_out.pcap")]
    Run(Box<run::RunArgs>),
    /// Manage evidence of a running switch
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden-switch evidence key --out switch.key > switch.pub
  linewarden-switch evidence export --out s.cose --inventory s.inventory --nonce $NONCE"
    )]
    Evidence(evidence::EvidenceCommand),
    #[command(flatten)]
    Common(CommonCommand),
}

fn main() -> ExitCode {
    program::main(
        simple_switch::without_separator(std::env::args_os()),
        |cli: &Cli| &cli.global,
        run_command,
    )
}

fn run_command(cli: Cli) -> Result<(), Failure> {
    // Commands report errors of the TPM library themselves.
    log::start(cli.global.log.as_deref(), None, "warn,tss_esapi=off")?;
    let output = cli.global.output();
    match &cli.command {
        Command::Run(args) => run::run(args, output),
        Command::Evidence(command) => evidence::run(command, output),
        Command::Common(command) => command.run::<Cli>(None),
    }
}
