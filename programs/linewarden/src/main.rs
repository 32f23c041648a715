//! The program `linewarden`: administers a fleet, through the API of a controller or directly on a registry.
//!
//! ```text
//!   arguments ─► cli ─► cmd::run ─► cmd::{device, attest, registry, ..} ─► access ─► API: of a controller, or over a registry
//!                          │
//!                          └──────► Failure ─► message, exit code
//! ```
//!
//! The program contains no protocol and no cryptography: the other crates of this repository implement them. The
//! program parses arguments, calls these crates, and prints results as text, tables or JSON.
//!
//! | Module | Contents |
//! |---|---|
//! | `cli` | grammar of the command line |
//! | `cmd` | the commands, one module each |
//! | `access` | client of the API, of a controller or over a registry |
//! | `date` | dates in the output |
//! | `registry` | registries that a command opens directly |
#![forbid(unsafe_code)]

mod access;
mod cli;
mod cmd;
mod date;
mod registry;

use std::process::ExitCode;

use linewarden_cli::program;

fn main() -> ExitCode {
    program::main(std::env::args_os(), |cli: &cli::Cli| &cli.global, cmd::run)
}
