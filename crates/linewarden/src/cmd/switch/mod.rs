//! `linewarden switch`.

mod attest;
mod control;
mod evidence;
mod run;
mod simple_switch;
mod stf;
mod tls;

use clap::Subcommand;

pub use self::simple_switch::without_separator;

use crate::failure::Failure;

/// No compiled program, and no P4Info, is longer.
const PROGRAM_BYTES_MAX: usize = 64 << 20;

/// What about the P4 switch.
#[derive(Subcommand, Debug)]
pub enum SwitchCommand {
    /// Run a program on interfaces or capture files
    #[command(after_help = "\
The program is what p4c writes for BMv2: p4c-bm2-ss --arch v1model --p4runtime-files router.txtpb -o router.json \
router.p4. Controllers fill its tables by P4Runtime, or send another program.

Examples:
  linewarden switch run router.json --p4info router.txtpb -i 0@veth0 -i 1@veth1
  linewarden switch run --no-p4 --cpu-port 510 -i 0@veth0 -i 1@veth1
  linewarden switch run router.json -i 0@veth0 -i 1@veth1 --switch-id 7 --boot-count boots \\
    --evidence-key switch.key
  linewarden switch run --no-p4 -i 0@veth0 --grpc-server-addr 192.0.2.1:9559 \\
    --grpc-server-cert tls.crt --grpc-server-key tls.key --grpc-server-cacert ca.crt
  linewarden switch run router.json -i 0@port0 --use-files 0    # port0_in.pcap, port0_out.pcap")]
    Run(run::RunArgs),
    /// Ask a running switch what it runs: its digests, or a signed statement
    #[command(after_help = "\
Without --out the digests are printed as they are now; nothing proves them. A statement is signed by the switch, with the \
nonce of whoever is to believe it; `linewarden appraise` judges it.

Examples:
  linewarden switch evidence
  linewarden switch evidence --out s.cose --inventory s.inventory --nonce $NONCE
  linewarden appraise s.cose --reference r.reference --key switch.pub --inventory s.inventory
  linewarden switch evidence --grpc-addr 192.0.2.1:9559 --ca ca.crt --cert me.crt --key-file me.key")]
    Evidence(evidence::EvidenceArgs),
    /// Run packet tests in p4c's STF format against compiled programs
    #[command(after_help = "\
A test NAME-WHAT.stf, or NAME.stf, is run against NAME.json: beside it, in the directory's subdirectory compiled, or in \
the one beside it of that name.

Examples:
  linewarden switch stf p4/tests
  linewarden switch stf tests/router-ttl.stf --program router.json")]
    Stf(stf::StfArgs),
}

impl SwitchCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::Evidence(args) => args.json,
            Self::Stf(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &SwitchCommand) -> Result<(), Failure> {
    match command {
        SwitchCommand::Run(args) => run::run(args),
        SwitchCommand::Evidence(args) => evidence::run(args),
        SwitchCommand::Stf(args) => stf::run(args),
    }
}
