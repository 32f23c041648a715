//! The service over real TLS: permissions of users, stored state, gateways over gRPC with authenticating devices, several
//! controllers over one database, and the dashboard in a browser.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod access;
mod api;
mod attested;
mod controller;
mod dashboard;
mod database;
mod devices;
mod events;
mod fleet;
mod floods;
mod full;
mod gateways;
mod late_requests;
mod lists;
mod local;
mod nats;
mod refused;
mod results;
mod servers;
#[path = "../../../gateway/tests/all/site.rs"]
#[allow(dead_code, reason = "the tests of crates/gateway use all items")]
mod site;
mod socket;
mod telemetry;
mod trust;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
