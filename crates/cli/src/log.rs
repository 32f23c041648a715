//! The log, on standard error, so that standard output has only the command's results.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;

/// Environment variable with the log level. A command-line option overrides the variable.
pub const VARIABLE: &str = "LINEWARDEN_LOG";

/// Changes the level at run time. Empty if an option or the environment variable determines the level.
static FILTER_RELOAD: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Starts the log. Precedence of levels, highest first: `flag` (command-line option), environment variable, `configured`
/// (configuration file), `default`.
///
/// # Errors
/// The level is invalid.
pub fn start(flag: Option<&str>, configured: Option<&str>, default: &str) -> Result<(), Failure> {
    let variable = std::env::var(VARIABLE).ok().filter(|level| !level.is_empty());
    let override_level = flag.or(variable.as_deref());
    let level = override_level.or(configured).unwrap_or(default);
    let filter = filter(level).map_err(|problem| Failure::input(format!("log level {problem}")))?;
    let color =
        std::io::stderr().is_terminal() && anstream::ColorChoice::global() != anstream::ColorChoice::Never;
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(color)
        .with_target(false)
        .with_env_filter(filter)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    if override_level.is_none() {
        // `set` cannot fail, because `init` above panics in a second call of `start`.
        let _ = FILTER_RELOAD.set(Box::new(move |filter| {
            let _ = handle.reload(filter);
        }));
    }
    Ok(())
}

/// Parses a level, or a filter with levels per module. The error names the invalid text and the valid levels.
pub fn filter(level: &str) -> Result<EnvFilter, String> {
    const VALID_LEVELS: &str =
        "error, warn, info, debug, trace, off, or a filter such as linewarden_gateway=debug";
    // EnvFilter would take a word without "=" for a module name and disable all other modules. A filter with brackets is
    // not checked for such words, because commas in brackets do not separate parts.
    let is_word = |part: &str| !part.contains('=') && part.trim().parse::<LevelFilter>().is_err();
    let is_invalid = |part: &str| part.trim().is_empty() || is_word(part);
    if level.trim().is_empty() || (!level.contains('[') && level.split(',').any(is_invalid)) {
        return Err(format!("{level:?} is invalid; use {VALID_LEVELS}"));
    }
    EnvFilter::try_new(level).map_err(|error| format!("{level:?}: {error}; use {VALID_LEVELS}"))
}

/// Sets the level at run time, unless an option or the environment variable determines the level.
pub fn set_level(configured: Option<&str>, default: &str) {
    if let (Some(change), Ok(filter)) = (FILTER_RELOAD.get(), filter(configured.unwrap_or(default))) {
        change(filter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_a_level_is_rejected() {
        for valid in [
            "info",
            "WARN",
            "off",
            "warn,linewarden_gateway=debug",
            "linewarden_gateway[a{b=1}]=debug",
        ] {
            assert!(filter(valid).is_ok(), "{valid}");
        }
        for invalid in [
            "loud",
            "",
            "info,",
            "info,loud",
            "linewarden_gateway",
            "a=b=c",
            "linewarden_gateway=loud",
        ] {
            let error = filter(invalid).unwrap_err();
            assert!(
                error.starts_with(&format!("{invalid:?}")) && error.contains("trace"),
                "{error}"
            );
        }
    }
}
