//! Tests of evidence about a data plane: encodings, set hashes, statements, appraisal.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod appraisal;
mod collisions;
mod common;
mod encoding;
mod inband;
mod sets;
mod statement;
