//! The log: on standard error, so that what a command prints stays clean.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// The environment variable that sets the level when no flag does.
pub const VARIABLE: &str = "LINEWARDEN_LOG";

/// Starts the log at the level of the flag, else of the environment, else of the configuration, else `default`.
///
/// # Errors
/// A level that means nothing.
pub fn start(flag: Option<&str>, configured: Option<&str>, default: &str) -> Result<(), Failure> {
    let variable = std::env::var(VARIABLE).ok();
    let level = flag.or(variable.as_deref()).or(configured).unwrap_or(default);
    let filter = EnvFilter::try_new(level).map_err(|error| {
        Failure::input(format!(
            "log level {level:?}: {error}; try error, warn, info, debug or trace"
        ))
    })?;
    let colour =
        std::io::stderr().is_terminal() && anstream::ColorChoice::global() != anstream::ColorChoice::Never;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .init();
    Ok(())
}
