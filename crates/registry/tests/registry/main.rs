//! The registry by its interface, on SQLite itself. One program: each by itself would be built with all of it again.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod attestation;
mod attestation_vandals;
mod columns;
mod crash;
mod enrolment;
mod feed;
mod files;
mod groups;
mod keys;
mod leases;
mod model;
mod pairs;
mod quarantine;
mod renewal;
mod roaming;
mod rounds;
mod support;
mod transfer;
mod vandals;
