//! Configuration files of gateways, agents and controllers, in TOML.
//!
//! ```text
//!   text ─► recovery: all mistakes of the text ─► ConfigFile: content, positions of fields ─► Problem: line, column, field
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`file`](mod@file) | reads a file; positions of fields; problems |
//! | [`program`] | the program that a file belongs to |
//! | [`command`] | the commands `check` and `config` |
//! | `controller` (feature) | the configuration of a controller |
#![forbid(unsafe_code)]

pub mod command;
#[cfg(feature = "controller")]
pub mod controller;
pub mod file;
mod messages;
pub mod program;
mod recovery;

pub use file::{ConfigFile, Parsed, Problem, failure, read_text};
pub use program::Program;
