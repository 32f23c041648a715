//! Command-line grammar: global options and the top-level commands.

use clap::{Parser, Subcommand};
use linewarden_cli::evidence::KeyArgs;
use linewarden_cli::exit_codes;
use linewarden_cli::program::{CommonCommand, GlobalArgs};

use crate::cmd::{
    appraise, attest, audit, certificate, device, event, gateway, puf, registry, signed, signer, user,
};

/// Administer devices, gateways, groups and signers, through a controller or directly on a registry
#[derive(Parser, Debug)]
#[command(name = "linewarden", version, after_help = EXAMPLES, after_long_help = LONG_HELP, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: GlobalArgs,
}

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden device enroll simulated --count 100 --out devices \\
    --registry fleet.registry --key-file master.key
  linewarden device list --registry fleet.registry --key-file master.key"
    };
}
const EXAMPLES: &str = examples!();
const LONG_HELP: &str = concat!(examples!(), "\n\n", exit_codes!());

/// The top-level commands.
#[derive(Subcommand, Debug)]
pub enum Command {
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
    /// Manage trusted signers
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden signer list --config controller.toml
  linewarden signer create truck7/signer.json --name \"truck 7\" --reason new --config controller.toml"
    )]
    Signer(signer::SignerCommand),
    /// List and trace events
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden event list --limit 20 --config controller.toml
  linewarden event trace --kind revoked --config controller.toml"
    )]
    Event(event::EventCommand),
    /// Show the registry audit log
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden audit list --config controller.toml"
    )]
    Audit(audit::AuditCommand),
    /// Manage certificates of controllers, gateways and API users
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden certificate ca --out pki
  linewarden certificate gateway --ca pki --id 7 --out gateway-7"
    )]
    Certificate(certificate::CertificateCommand),
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
  linewarden-agent measure --config agent.toml --out pumps.conf          # on a reference device
  linewarden attest group set pumps --reference pumps.conf --config controller.toml
  linewarden attest enroll d1 --group pumps --software --key-out d1.attest-key \\
    --config controller.toml
  linewarden attest round run --config controller.toml
  linewarden attest check --config controller.toml
  linewarden attest show d1 --config controller.toml"
    )]
    Attest(attest::AttestCommand),
    /// Manage keys that sign reference values
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden evidence key --out reference.key > reference.pub"
    )]
    Evidence(EvidenceCommand),
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
    #[command(flatten)]
    Common(CommonCommand),
}

/// Subcommands of `evidence`.
#[derive(Subcommand, Debug)]
pub enum EvidenceCommand {
    /// Create or show a key that signs reference values
    Key(KeyArgs),
}
