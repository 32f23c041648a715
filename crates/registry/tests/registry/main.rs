//! Tests of the registry's public interface, on SQLite and again on PostgreSQL.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod abandoned_requests;
mod attestation;
mod attestation_tampering;
mod columns;
mod copies;
mod crash;
mod enrollment;
mod feed;
mod files;
mod fingerprints;
mod groups;
mod keys;
mod leases;
mod model;
mod pairs;
mod postgres;
mod quarantine;
mod renewal;
mod returned_rows;
mod roaming;
mod rounds;
mod row_statements;
mod service;
mod storage;
mod support;
mod tampering;
mod transfer;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
