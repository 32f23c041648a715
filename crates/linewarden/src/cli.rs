//! What can be typed.

use clap::{Parser, Subcommand, ValueEnum};

use crate::cmd::{
    agent, appraise, attest, audit, bench, certificate, check, completions, config, controller, demo, device,
    events, evidence, gateway, manual, policy, puf, registry, serve, signed, signer, switch, user,
};
use crate::failure::exit_codes;

/// Proves who devices are, at line rate, in the packet path
#[derive(Parser, Debug)]
#[command(name = "linewarden", version, about, after_help = EXAMPLES, after_long_help = LONG_HELP, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// error, warn, info, debug, trace, off, or a filter such as linewarden_gateway=debug [env: LINEWARDEN_LOG]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Colours
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

/// When to use colours.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorWhen {
    /// Sets it for all that is printed.
    pub fn apply(self) {
        match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Authenticate a simulated fleet over a private network, under attack
    Demo(demo::DemoArgs),
    /// Run a gateway
    Serve(serve::ServeArgs),
    /// Run a controller: API, dashboard, and gateways on other machines
    Controller(controller::ControllerArgs),
    /// Keep who may use a controller's API
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden user add alice --role admin --config controller.toml
  linewarden user list --config controller.toml"
    )]
    User(user::UserCommand),
    /// Keep the book of gateways, and see how they stand
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden gateway list --config controller.toml
  linewarden gateway retire 7 --reason stolen --config controller.toml"
    )]
    Gateway(gateway::GatewayCommand),
    /// Say how groups of devices are asked what they run, and see what came of it
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden policy list --config controller.toml
  linewarden policy results --state silent --config controller.toml"
    )]
    Policy(policy::PolicyCommand),
    /// Keep whose broadcast messages are believed
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden signer list --config controller.toml
  linewarden signer add truck7/signer.json --name \"truck 7\" --reason new --config controller.toml"
    )]
    Signer(signer::SignerCommand),
    /// Show what has happened, and what happens
    Events(events::EventsArgs),
    /// Show who had what done, and why
    Audit(audit::AuditArgs),
    /// Make certificates for controllers, gateways and users
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden certificate ca --out pki
  linewarden certificate gateway --ca pki --id 7 --out gateway-7"
    )]
    Certificate(certificate::CertificateCommand),
    /// Check a configuration, and start nothing
    Check(check::CheckArgs),
    /// Run a device's side: authenticate, keep the lease alive, print the state
    Agent(agent::AgentArgs),
    /// Keep the registry's devices
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden device enroll simulated --count 100 --out devices --config gateway.toml
  linewarden device list --config gateway.toml
  linewarden device revoke d1 --config gateway.toml"
    )]
    Device(device::DeviceCommand),
    /// Check what devices run: groups, enrolment, rounds, and how devices stand
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden attest measure --config agent.toml --out pumps.conf         # on a good device
  linewarden attest group set pumps --reference pumps.conf --config gateway.toml
  linewarden attest enroll d1 --group pumps --software --key-out d1.attest-key --config gateway.toml
  linewarden attest round --config gateway.toml
  linewarden attest status --fail --config gateway.toml
  linewarden attest explain d1 --config gateway.toml"
    )]
    Attest(attest::AttestCommand),
    /// Show what a data plane runs, signed
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden evidence key --out gateway.evidence-key > gateway.pub
  linewarden evidence ask --socket evidence.sock --out s.cose --inventory s.inventory"
    )]
    Evidence(evidence::EvidenceCommand),
    /// Compare what a data plane runs with what it should, and name what differs
    Appraise(Box<appraise::AppraiseArgs>),
    /// Sign and verify broadcast messages
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden signed keygen --scheme ra-rsa2048 --layout bsm --masks 4096 --out truck7
  linewarden signed masks truck7 --count 100000"
    )]
    Signed(signed::SignedCommand),
    /// Make and check registries
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden registry check --registry fleet.registry --key-file master.key"
    )]
    Registry(registry::RegistryCommand),
    /// Judge PUFs
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden puf report readouts --svg report.svg"
    )]
    Puf(puf::PufCommand),
    /// Run P4 programs, and test them
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden switch run router.json -i 0@veth0 -i 1@veth1
  linewarden switch stf p4/tests"
    )]
    Switch(switch::SwitchCommand),
    /// Measure
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden bench auth --quick
  linewarden bench attest --only round"
    )]
    Bench(bench::BenchCommand),
    /// Show configuration files
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden config example > gateway.toml
  linewarden config example agent > agent.toml"
    )]
    Config(config::ConfigCommand),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write manual pages
    Manual(manual::ManualArgs),
}

impl Command {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Serve(args) => args.json,
            Self::Agent(args) => args.json,
            Self::Controller(args) => args.json,
            Self::User(command) => command.wants_json(),
            Self::Gateway(command) => command.wants_json(),
            Self::Policy(command) => command.wants_json(),
            Self::Signer(command) => command.wants_json(),
            Self::Events(args) => args.json,
            Self::Audit(args) => args.json,
            Self::Certificate(command) => command.wants_json(),
            Self::Check(args) => args.json,
            Self::Device(command) => command.wants_json(),
            Self::Attest(command) => command.wants_json(),
            Self::Evidence(command) => command.wants_json(),
            Self::Appraise(args) => args.json,
            Self::Signed(command) => command.wants_json(),
            Self::Registry(command) => command.wants_json(),
            Self::Puf(command) => command.wants_json(),
            Self::Switch(command) => command.wants_json(),
            // Their --json names a file.
            Self::Demo(_) | Self::Bench(_) | Self::Config(_) | Self::Completions(_) | Self::Manual(_) => {
                false
            }
        }
    }
}
