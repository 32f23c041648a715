//! The log: on standard error, so that what a command prints stays clean.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
    let variable = std::env::var(VARIABLE).ok().filter(|level| !level.is_empty());
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
    const KNOWN: &str = "error, warn, info, debug, trace, off, or a filter such as linewarden_gateway=debug";
    // A word by itself would be taken for a module, and everything else be silent. Commas in brackets are no ends.
    let is_word = |part: &str| !part.contains('=') && part.trim().parse::<LevelFilter>().is_err();
    let is_wrong = |part: &str| part.trim().is_empty() || is_word(part);
    if level.trim().is_empty() || (!level.contains('[') && level.split(',').any(is_wrong)) {
        return Err(format!("{level:?} is no level: {KNOWN}"));
    }
    EnvFilter::try_new(level).map_err(|error| format!("{level:?}: {error}; {KNOWN}"))
}

/// From now on the log has this level, unless a flag or the environment has set it.
pub fn change(configured: Option<&str>, default: &str) {
    if let (Some(change), Ok(filter)) = (CHANGE.get(), filter(configured.unwrap_or(default))) {
        change(filter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_a_mistake() {
        for right in [
            "info",
            "WARN",
            "off",
            "warn,linewarden_gateway=debug",
            "linewarden_gateway[a{b=1}]=debug",
        ] {
            assert!(filter(right).is_ok(), "{right}");
        }
        for wrong in [
            "loud",
            "",
            "info,",
            "info,loud",
            "linewarden_gateway",
            "a=b=c",
            "linewarden_gateway=loud",
        ] {
            let error = filter(wrong).unwrap_err();
            assert!(
                error.starts_with(&format!("{wrong:?}")) && error.contains("trace"),
                "{error}"
            );
        }
    }
}
