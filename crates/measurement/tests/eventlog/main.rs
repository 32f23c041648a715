//! Event logs: what is read, what is refused and by which entry's number, what is explained and how far it is proven.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
mod machines;
mod parse;
mod replay;
