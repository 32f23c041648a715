//! Common parts of the command-line programs: exit codes, output, progress, log, signals.
//!
//! The crate contains neither the command-line grammar of a program nor its operations.
//!
//! | Module | Contents |
//! |---|---|
//! | [`failure`] | errors with exit codes; [`exit_codes!`], the list of exit codes in `--help` |
//! | [`output`] | text, tables and JSON on standard output; progress bars on standard error |
//! | [`results`] | output files, checked before long operations |
//! | [`log`], [`color`] | the log on standard error, the option `--color` |
//! | [`signals`] | signals as a file descriptor |
//! | `fleet` (feature) | exit codes for the errors of the crates that operate a fleet |
//!
//! ```
//! use linewarden_cli::failure::Failure;
//! use linewarden_cli::output::Output;
//!
//! fn run(output: Output) -> Result<(), Failure> {
//!     output.line("2 devices enrolled")
//! }
//!
//! assert!(run(Output::new(false)).is_ok());
//! assert_eq!(Failure::input("no such group: lamps").code(), 2);
//! ```
#![forbid(unsafe_code)]

pub mod color;
pub mod failure;
#[cfg(feature = "fleet")]
mod fleet;
pub mod log;
pub mod output;
pub mod results;
pub mod signals;
