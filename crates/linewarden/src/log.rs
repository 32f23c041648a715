//! The log: on standard error, so that what a command prints stays clean.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// The environment variable that sets the level when no flag does.
pub const VARIABLE: &str = "LINEWARDEN_LOG";

/// Puts another level into force; set while the configuration decides.
static CHANGE: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Starts the log at the level of the flag, else of the environment, else of the configuration, else `default`.
///
/// # Errors
/// A level that means nothing.
pub fn start(flag: Option<&str>, configured: Option<&str>, default: &str) -> Result<(), Failure> {
    let variable = std::env::var(VARIABLE).ok();
    let fixed = flag.or(variable.as_deref());
    let level = fixed.or(configured).unwrap_or(default);
    let filter = filter(level).map_err(|problem| Failure::input(format!("log level {problem}")))?;
    let colour =
        std::io::stderr().is_terminal() && anstream::ColorChoice::global() != anstream::ColorChoice::Never;
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .with_env_filter(filter)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    if fixed.is_none() {
        // Whoever starts the log twice keeps the first.
        let _ = CHANGE.set(Box::new(move |filter| {
            let _ = handle.reload(filter);
        }));
    }
    Ok(())
}

/// A level or filter; the error says what is wrong with it.
pub fn filter(level: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(level)
        .map_err(|error| format!("{level:?}: {error}; try error, warn, info, debug or trace"))
}

/// From now on the log has this level, unless a flag or the environment has set it.
pub fn change(configured: Option<&str>, default: &str) {
    if let (Some(change), Ok(filter)) = (CHANGE.get(), filter(configured.unwrap_or(default))) {
        change(filter);
    }
}
