//! The log, on standard error, so that standard output has only the command's results.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;

/// Environment variable with the log level; a flag overrides it.
pub const VARIABLE: &str = "LINEWARDEN_LOG";

/// Changes the level at run time; set only if the configuration determines the level.
static FILTER_RELOAD: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Starts the log. Precedence of levels: flag, environment, configuration, `default`.
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
        // A second start keeps the first setting.
        let _ = FILTER_RELOAD.set(Box::new(move |filter| {
            let _ = handle.reload(filter);
        }));
    }
    Ok(())
}

/// Parses a level or filter; the error says what is wrong.
pub fn filter(level: &str) -> Result<EnvFilter, String> {
    const KNOWN: &str = "error, warn, info, debug, trace, off, or a filter such as linewarden_gateway=debug";
    // EnvFilter would take a word without "=" for a module name and disable all other modules. Commas in brackets do not
    // separate parts.
    let is_word = |part: &str| !part.contains('=') && part.trim().parse::<LevelFilter>().is_err();
    let is_invalid = |part: &str| part.trim().is_empty() || is_word(part);
    if level.trim().is_empty() || (!level.contains('[') && level.split(',').any(is_invalid)) {
        return Err(format!("{level:?} is invalid; use {KNOWN}"));
    }
    EnvFilter::try_new(level).map_err(|error| format!("{level:?}: {error}; use {KNOWN}"))
}

/// Sets the level at run time, unless a flag or the environment determines it.
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
