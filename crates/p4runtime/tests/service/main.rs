//! Server and client of P4Runtime. One test binary, because each binary links all of gRPC.
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
