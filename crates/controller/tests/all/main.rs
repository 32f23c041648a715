//! Tests of the controller: requests of gateways, reports, tickets, attestation, trust in gateways.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod attestation;
mod link;
mod report;
mod ticket;
mod trust;
