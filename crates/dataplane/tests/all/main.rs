//! Tests of the data planes against the oracle, in real networks and under load.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod ask;
mod capability;
mod cipher;
mod classic;
mod contract;
mod differential;
mod kept;
mod link;
mod measure;
mod p4runtime;
mod packets;
mod proofs;
mod records;
mod sealed;
mod shed;
mod stamp;
mod stress;
mod support;
mod waiting;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
