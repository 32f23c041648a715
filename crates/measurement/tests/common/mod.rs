//! What several tests need.

pub mod log;
