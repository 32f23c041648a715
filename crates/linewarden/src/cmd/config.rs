//! `linewarden config`.

use clap::{Subcommand, ValueEnum};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

/// Subcommands of `linewarden config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print a commented example configuration
    #[command(after_help = "\
Examples:
  linewarden config example > gateway.toml
  linewarden config example agent > agent.toml
  linewarden config example controller > controller.toml")]
    Example {
        /// Program that the configuration is for
        #[arg(default_value = "gateway")]
        kind: Kind,
    },
}

/// The program that a configuration is for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// `linewarden serve`
    Gateway,
    /// `linewarden agent`
    Agent,
    /// `linewarden controller`
    Controller,
}

/// Example configuration of a gateway with all fields.
pub const GATEWAY: &str = include_str!("../../config/gateway.toml");
/// Example configuration of an agent with all fields.
pub const AGENT: &str = include_str!("../../config/agent.toml");
/// Example configuration of a controller with all fields.
pub const CONTROLLER: &str = include_str!("../../config/controller.toml");

/// Prints an example configuration.
pub fn run(command: &ConfigCommand, output: Output) -> Result<(), Failure> {
    let ConfigCommand::Example { kind } = command;
    let text = match kind {
        Kind::Gateway => GATEWAY,
        Kind::Agent => AGENT,
        Kind::Controller => CONTROLLER,
    };
    output.raw(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use linewarden_agent::AgentConfig;
    use linewarden_gateway::config::GatewayConfig;

    use super::*;
    use crate::controller_config::ControllerConfig;

    /// The text with every commented field enabled.
    fn all_fields(text: &str) -> String {
        let line = |line: &str| match line.strip_prefix("# ") {
            Some(field) if field.starts_with('[') || field.contains(" = ") => field.to_owned(),
            _ => line.to_owned(),
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_examples_are_configurations_as_they_are_and_with_every_field() {
        for text in [GATEWAY.to_owned(), all_fields(GATEWAY)] {
            toml::from_str::<GatewayConfig>(&text).unwrap();
        }
        for text in [AGENT.to_owned(), all_fields(AGENT)] {
            toml::from_str::<AgentConfig>(&text).unwrap();
        }
        for text in [CONTROLLER.to_owned(), all_fields(CONTROLLER)] {
            toml::from_str::<ControllerConfig>(&text).unwrap();
        }
    }

    #[test]
    fn the_gateway_example_shows_the_defaults() {
        let example: GatewayConfig = toml::from_str(&all_fields(GATEWAY)).unwrap();
        let smallest = "[gateway]\nid = 1\n[controller]\nsocket = \"s\"\n";
        let default: GatewayConfig = toml::from_str(smallest).unwrap();
        let (example, default) = (example.gateway, default.gateway);
        assert_eq!(
            (
                example.port,
                example.session_lifetime_s,
                example.slots(),
                example.ring
            ),
            (
                default.port,
                default.session_lifetime_s,
                default.slots(),
                default.ring
            )
        );
        assert_eq!(
            (
                example.low_rows,
                example.mark_block,
                example.nak_per_s,
                example.alarm_per_s,
                example.feed_poll_ms
            ),
            (
                default.low_rows,
                default.mark_block,
                default.nak_per_s,
                default.alarm_per_s,
                default.feed_poll_ms
            )
        );
    }
}
