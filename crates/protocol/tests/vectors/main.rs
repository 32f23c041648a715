//! The test vectors in docs/vectors: written and checked here, recomputed by independent code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod classic;
mod files;
mod lap1;
mod pair;
mod reference;
mod ticket;
