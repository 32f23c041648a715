//! The service over real TLS: permissions of users, stored state, gateways over gRPC with authenticating devices,
//! several controllers over one database.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../../../gateway/tests/site/mod.rs"]
mod site;

mod access;
mod api;
mod attested;
mod controller;
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
mod refused;
mod results;
mod socket;
mod telemetry;
mod trust;
