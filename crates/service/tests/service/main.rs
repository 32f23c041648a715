//! The service over real TLS: what users may, what is kept of it, gateways at work over gRPC with devices that authenticate, several
//! controllers over one database.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../../../gateway/tests/site/mod.rs"]
mod site;

mod access;
mod attested;
mod database;
mod devices;
mod events;
#[path = "../dashboard/fleet.rs"]
mod fleet;
mod floods;
mod full;
mod gateways;
mod lists;
mod nats;
mod office;
mod others;
mod refused;
mod results;
mod telemetry;
mod trust;
