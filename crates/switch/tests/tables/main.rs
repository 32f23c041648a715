//! The match-action tables against a plain reading of BMv2's rules, and what control planes rely on.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod differential;
mod keys;
mod model;
mod prefixes;
mod profiles;
mod publishing;
