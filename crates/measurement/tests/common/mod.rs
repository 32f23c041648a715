//! Shared test code.

pub mod log;
