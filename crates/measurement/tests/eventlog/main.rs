//! Event logs: which logs are accepted or rejected at which entry, and the proven parts of their data.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
mod machines;
mod parse;
mod replay;
