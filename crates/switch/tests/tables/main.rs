//! Compares match-action tables with a simple model of BMv2's rules, and tests the guarantees to control planes.
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
