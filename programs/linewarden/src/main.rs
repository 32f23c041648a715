//! The program `linewarden`: administers a fleet, through the API of a controller or directly on a registry.
//!
//! ```text
//!   arguments ─► cli ─► cmd::run ─► cmd::{device, attest, registry, ..} ─► registry_access ─► registry, or API of a controller
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
//! | `registry`, `registry_access` | access to a registry, directly or through a controller |
#![forbid(unsafe_code)]

mod cli;
mod cmd;
mod registry;
mod registry_access;

use std::process::ExitCode;

use linewarden_cli::program;

fn main() -> ExitCode {
    program::main(std::env::args_os(), |cli: &cli::Cli| &cli.global, cmd::run)
}
