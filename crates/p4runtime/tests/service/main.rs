//! The server and the client of P4Runtime. One program: each by itself would be built with all of gRPC again.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod programs;
mod properties;
mod requests;
mod rules;
mod session;
mod shell;
mod support;
mod tls;
