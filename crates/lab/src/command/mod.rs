//! The commands.

pub mod demo;
