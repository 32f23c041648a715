//! Configuration files of gateways, agents and controllers, in TOML.
//!
//! ```text
//!   text ─► reader: checked by the schema ─► ConfigFile: content, positions of fields ─► Problem: line, column, field, remedy
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`file`](mod@file) | parsed files: their content and their mistakes |
//! | [`problem`] | mistakes in files and in fields |
//! | [`text`] | texts of files, and positions of fields |
//! | [`program`] | the program that a file belongs to |
//! | [`schema`] | JSON Schemas of configurations |
//! | [`example`](mod@example) | commented examples, generated from the schemas |
//! | `command` (feature) | the commands `check` and `config` |
//! | `controller` (feature) | the configuration of a controller |
#![forbid(unsafe_code)]

#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "controller")]
pub mod controller;
pub mod example;
pub mod file;
pub mod problem;
pub mod program;
mod reader;
pub mod schema;
pub mod text;

#[cfg(feature = "command")]
pub use command::failure;
pub use file::{ConfigFile, Parsed};
pub use problem::{FieldError, Problem};
pub use program::Program;
pub use text::read_text;
