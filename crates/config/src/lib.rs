//! Configuration files of gateways, agents and controllers, in TOML.
//!
//! ```text
//!   text ─► ConfigFile: fields, checked by the schema ─► Validated: values that fit together ─► options of the program
//!             └─ reader                                    └─ Configuration::validate             └─ reads files, names
//!                                                                                                    and interfaces
//!   all stages ─► Problem: line, column, field, remedy
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`file`](mod@file) | the stages: [`ConfigFile`], [`Validated`] |
//! | `agent`, `controller`, `gateway` (features) | the configuration of each program: fields, validation, options |
//! | [`problem`] | mistakes in files and in fields |
//! | [`text`] | texts of files, and positions of fields |
//! | [`program`] | the program that a file belongs to |
//! | [`schema`] | JSON Schemas of configurations |
//! | [`example`] | commented examples, generated from the schemas |
//! | [`command`] | the commands `check` and `config` |
#![forbid(unsafe_code)]

#[cfg(feature = "agent")]
pub mod agent;
pub mod command;
#[cfg(feature = "controller")]
pub mod controller;
pub mod example;
pub mod file;
#[cfg(feature = "gateway")]
pub mod gateway;
pub mod problem;
pub mod program;
mod reader;
pub mod schema;
pub mod text;

pub use file::{ConfigFile, Configuration, Parsed, Validated};
pub use problem::{FieldError, Problem, failure};
pub use program::Program;
pub use text::read_text;

#[cfg(all(test, feature = "agent", feature = "controller", feature = "gateway"))]
mod tests;
