//! `linewarden switch`.

mod attest;
mod control;
mod evidence;
mod run;
mod simple_switch;
mod stf;
mod tls;

use clap::Subcommand;
use linewarden_cli::failure::Failure;

pub use self::simple_switch::without_separator;

/// Maximum size of a compiled program or a P4Info, bytes.
const PROGRAM_BYTES_MAX: usize = 64 << 20;

/// Subcommands of `linewarden switch`.
#[derive(Subcommand, Debug)]
pub enum SwitchCommand {
    /// Run a P4 program on interfaces or capture files
    #[command(after_help = "\
The program is the output of p4c for BMv2: p4c-bm2-ss --arch v1model --p4runtime-files router.txtpb -o router.json \
router.p4. Controllers fill its tables by P4Runtime, or install another program.

Examples:
  linewarden switch run router.json --p4info router.txtpb -i 0@veth0 -i 1@veth1
  linewarden switch run --no-p4 --cpu-port 510 -i 0@veth0 -i 1@veth1
  linewarden switch run router.json -i 0@veth0 -i 1@veth1 --switch-id 7 --boot-count boots \\
    --evidence-key switch.key
  linewarden switch run --no-p4 -i 0@veth0 --grpc-server-addr 192.0.2.1:9559 \\
    --grpc-server-cert tls.crt --grpc-server-key tls.key --grpc-server-cacert ca.crt
  linewarden switch run router.json -i 0@port0 --use-files 0    # port0_in.pcap, port0_out.pcap")]
    Run(run::RunArgs),
    /// Show digests of a running switch, or export a signed statement
    #[command(after_help = "\
Without --out the present digests are printed; they are not authenticated. A statement is signed by the switch, with the nonce of \
the verifier; verify it with `linewarden appraise`.

Examples:
  linewarden switch evidence
  linewarden switch evidence --out s.cose --inventory s.inventory --nonce $NONCE
  linewarden appraise s.cose --reference r.reference --key switch.pub --inventory s.inventory
  linewarden switch evidence --grpc-addr 192.0.2.1:9559 --ca ca.crt --cert me.crt --key-file me.key")]
    Evidence(evidence::EvidenceArgs),
    /// Run packet tests in p4c's STF format against compiled programs
    #[command(after_help = "\
A test NAME-WHAT.stf, or NAME.stf, is run against NAME.json: in the same directory, in its subdirectory compiled, or in the \
sibling directory compiled.

Examples:
  linewarden switch stf p4/tests
  linewarden switch stf tests/router-ttl.stf --program router.json")]
    Stf(stf::StfArgs),
}

impl SwitchCommand {
    /// Whether the command prints JSON.
    pub fn prints_json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::Evidence(args) => args.json,
            Self::Stf(args) => args.json,
        }
    }
}

/// Runs the command.
pub fn run(command: &SwitchCommand) -> Result<(), Failure> {
    match command {
        SwitchCommand::Run(args) => run::run(args),
        SwitchCommand::Evidence(args) => evidence::run(args),
        SwitchCommand::Stf(args) => stf::run(args),
    }
}
