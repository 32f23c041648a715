//! Common parts of the command-line programs: exit codes, output, progress, log, signals.
//!
//! The crate contains neither the command-line grammar of a program nor its operations. Each program selects the features that it
//! needs, so that it links no other crate.
//!
//! | Module | Contents |
//! |---|---|
//! | [`failure`] | errors with exit codes; [`exit_codes!`], the list of exit codes in `--help` |
//! | [`output`] | text, tables and JSON on standard output; progress bars on standard error |
//! | [`results`] | output files, checked before long operations |
//! | [`log`], [`color`] | the log on standard error, the option `--color` |
//! | [`signals`] | signals as a file descriptor |
//! | [`program`], [`manual`] | global options, the commands `completions` and `manual`, the start of a program |
//! | [`secret_file`], `tls`, `evidence` (features) | files of keys, certificates and reference values |
//! | [`metrics_file`] | metrics in the text format of Prometheus |
//! | [`service_manager`] | sd_notify |
//! | `errors` (features) | exit codes for the errors of the crates that a program links |
//!
//! ```
//! use linewarden_cli::failure::Failure;
//! use linewarden_cli::output::Output;
//!
//! fn run(output: Output) -> Result<(), Failure> {
//!     output.line("2 devices enrolled")
//! }
//!
//! assert!(run(Output::default()).is_ok());
//! assert_eq!(Failure::input("no such group: lamps").code(), 2);
//! ```
#![forbid(unsafe_code)]

pub mod color;
mod errors;
#[cfg(feature = "evidence")]
pub mod evidence;
pub mod failure;
pub mod log;
pub mod manual;
pub mod metrics_file;
pub mod output;
pub mod program;
pub mod results;
pub mod secret_file;
pub mod service_manager;
pub mod signals;
#[cfg(feature = "tls")]
pub mod tls;

/// Seconds since 1970-01-01 UTC.
///
/// # Errors
/// The clock is before 1970.
pub fn now_s() -> Result<u64, failure::Failure> {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map(|since| since.as_secs())
        .map_err(|_| failure::Failure::failed("system time is before 1970: set the clock"))
}

/// 8 random bytes from the operating system, as a number.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn random_u64() -> Result<u64, failure::Failure> {
    getrandom::u64().map_err(|error| random_failure(&error))
}

fn random_failure(error: &getrandom::Error) -> failure::Failure {
    failure::Failure::failed(format!(
        "reading random bytes from the kernel failed: {error}; repeat the command"
    ))
}
