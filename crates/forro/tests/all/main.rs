//! Tests of Forró on every backend.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, missing_docs)]

mod differential;
mod support;
mod vectors;
