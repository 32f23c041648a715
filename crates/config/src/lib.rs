//! Configuration files of gateways, agents and controllers, in TOML.
//!
//! ```text
//!   text ─► ConfigFile: fields, checked by the schema
//!             │
//!             ▼ Configuration::validate; a gateway's also reads files with CRPs, provers and certificates
//!           Validated: values of which none contradicts another one
//!             │
//!             ▼ reads keys, and interfaces and addresses of the machine
//!           options of the program
//!
//!   each stage ─► Problem: line, column, field, remedy
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

pub use file::{ConfigFile, Configuration, Validated};
pub use problem::{FieldError, Problem, failure};
pub use program::Program;
pub use text::read_text;

#[cfg(test)]
mod tests;
