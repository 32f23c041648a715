//! Command-line grammar: global options and the top-level commands.

use clap::{Parser, Subcommand};
use linewarden_cli::color::ColorWhen;
use linewarden_cli::exit_codes;

use crate::cmd::{
    agent, appraise, attest, audit, bench, certificate, check, completions, config, controller, device,
    events, evidence, gateway, manual, policy, puf, registry, serve, signed, signer, switch, user,
};

/// Authenticate and attest devices in the network data plane: XDP on Linux, or a P4 switch
#[derive(Parser, Debug)]
#[command(name = "linewarden", version, after_help = EXAMPLES, after_long_help = LONG_HELP, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Log level (error, warn, info, debug, trace or off) or filter, such as linewarden_gateway=debug [env: LINEWARDEN_LOG]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,
    /// When to color the output
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
}

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden device enroll simulated --count 100 --out devices \\
    --registry fleet.registry --key-file master.key
  linewarden serve --config gateway.toml
  linewarden agent --config devices/00000000000000d1.toml --gateway 192.0.2.1"
    };
}
const EXAMPLES: &str = examples!();
const LONG_HELP: &str = concat!(examples!(), "\n\n", exit_codes!());

/// The top-level commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a gateway
    Serve(serve::ServeArgs),
    /// Run a controller: API, dashboard and connections of remote gateways
    Controller(controller::ControllerArgs),
    /// Manage API users
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden user create alice --role admin --config controller.toml
  linewarden user list --config controller.toml"
    )]
    User(user::UserCommand),
    /// Manage gateways
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden gateway list --config controller.toml
  linewarden gateway revoke 7 --reason stolen --config controller.toml"
    )]
    Gateway(gateway::GatewayCommand),
    /// Manage attestation policies
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden policy list --config controller.toml
  linewarden policy results --state missed --config controller.toml"
    )]
    Policy(policy::PolicyCommand),
    /// Manage trusted signers
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden signer list --config controller.toml
  linewarden signer create truck7/signer.json --name \"truck 7\" --reason new --config controller.toml"
    )]
    Signer(signer::SignerCommand),
    /// Stream events
    Events(events::EventsArgs),
    /// Show the registry audit log
    Audit(audit::AuditArgs),
    /// Manage certificates of controllers, gateways and API users
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden certificate ca --out pki
  linewarden certificate gateway --ca pki --id 7 --out gateway-7"
    )]
    Certificate(certificate::CertificateCommand),
    /// Validate a configuration file
    Check(check::CheckArgs),
    /// Run a device agent: authenticate to a gateway and keep the session open
    Agent(agent::AgentArgs),
    /// Manage devices
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden device enroll simulated --count 100 --out devices --config controller.toml
  linewarden device list --config controller.toml
  linewarden device revoke d1 --config controller.toml"
    )]
    Device(device::DeviceCommand),
    /// Manage device attestation: groups, enrollment, rounds and results
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden attest measure --config agent.toml --out pumps.conf         # on a reference device
  linewarden attest group set pumps --reference pumps.conf --config controller.toml
  linewarden attest enroll d1 --group pumps --software --key-out d1.attest-key \\
    --config controller.toml
  linewarden attest round --config controller.toml
  linewarden attest status --fail --config controller.toml
  linewarden attest explain d1 --config controller.toml"
    )]
    Attest(attest::AttestCommand),
    /// Manage signed evidence of a gateway's data plane
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden evidence key --out gateway.evidence-key > gateway.pub
  linewarden evidence export --socket evidence.sock --out s.cose --inventory s.inventory"
    )]
    Evidence(evidence::EvidenceCommand),
    /// Verify a signed statement against reference values
    Appraise(Box<appraise::AppraiseArgs>),
    /// Manage signed broadcast messages
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden signed keygen --scheme ra-rsa2048 --layout bsm --masks 4096 --out truck7
  linewarden signed masks truck7 --count 100000"
    )]
    Signed(signed::SignedCommand),
    /// Manage registries
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden registry check --registry fleet.registry --key-file master.key"
    )]
    Registry(registry::RegistryCommand),
    /// Evaluate PUF readouts
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden puf report readouts --svg report.svg"
    )]
    Puf(puf::PufCommand),
    /// Run P4 programs and packet tests
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden switch run router.json -i 0@veth0 -i 1@veth1
  linewarden switch stf p4/tests"
    )]
    Switch(switch::SwitchCommand),
    /// Run benchmarks
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden bench auth --quick
  linewarden bench attest --only round"
    )]
    Bench(bench::BenchCommand),
    /// Show example configuration files
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden config example > gateway.toml
  linewarden config example agent > agent.toml"
    )]
    Config(config::ConfigCommand),
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Write the manual pages
    Manual(manual::ManualArgs),
}

impl Command {
    /// Whether the command prints JSON.
    pub fn prints_json(&self) -> bool {
        match self {
            Self::Serve(args) => args.json,
            Self::Agent(args) => args.json,
            Self::Controller(args) => args.json,
            Self::User(command) => command.prints_json(),
            Self::Gateway(command) => command.prints_json(),
            Self::Policy(command) => command.prints_json(),
            Self::Signer(command) => command.prints_json(),
            Self::Events(args) => args.json,
            Self::Audit(args) => args.json,
            Self::Certificate(command) => command.prints_json(),
            Self::Check(args) => args.json,
            Self::Device(command) => command.prints_json(),
            Self::Attest(command) => command.prints_json(),
            Self::Evidence(command) => command.prints_json(),
            Self::Appraise(args) => args.json,
            Self::Signed(command) => command.prints_json(),
            Self::Registry(command) => command.prints_json(),
            Self::Puf(command) => command.prints_json(),
            Self::Switch(command) => command.prints_json(),
            // `bench --json` names a file; the other commands have no option `--json`.
            Self::Bench(_) | Self::Config(_) | Self::Completions(_) | Self::Manual(_) => false,
        }
    }
}
