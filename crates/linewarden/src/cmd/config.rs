//! `linewarden config`.

use clap::{Subcommand, ValueEnum};

use crate::failure::Failure;
use crate::output::Output;

/// What about configuration files.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print a commented configuration
    #[command(after_help = "\
Examples:
  linewarden config example > gateway.toml
  linewarden config example agent > agent.toml
  linewarden config example controller > controller.toml")]
    Example {
        /// For which command
        #[arg(default_value = "gateway")]
        kind: Kind,
    },
}

/// Whose configuration.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// Of `serve`
    Gateway,
    /// Of `agent`
    Agent,
    /// Of `controller`
    Controller,
}

/// A configuration of `serve` with all fields.
pub const GATEWAY: &str = include_str!("../../config/gateway.toml");
/// A configuration of `agent` with all fields.
pub const AGENT: &str = include_str!("../../config/agent.toml");
/// A configuration of `controller` with all fields.
pub const CONTROLLER: &str = include_str!("../../config/controller.toml");

/// Prints it.
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

    /// The text with every commented field switched on.
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
        let shown: GatewayConfig = toml::from_str(&all_fields(GATEWAY)).unwrap();
        let smallest = "[gateway]\nid = 1\n[registry]\npath = \"r\"\nmaster_key_file = \"k\"\n";
        let default: GatewayConfig = toml::from_str(smallest).unwrap();
        let (shown, default) = (shown.gateway, default.gateway);
        assert_eq!(
            (shown.port, shown.lease_s, shown.slots(), shown.ring),
            (default.port, default.lease_s, default.slots(), default.ring)
        );
        assert_eq!(
            (
                shown.low_rows,
                shown.mark_block,
                shown.nak_per_s,
                shown.alarm_per_s,
                shown.feed_poll_ms
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
