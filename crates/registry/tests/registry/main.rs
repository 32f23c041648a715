//! The registry by its interface, on SQLite itself and once more on PostgreSQL. One program: each by itself would be built with all of it again.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod attestation;
mod attestation_vandals;
mod columns;
mod copies;
mod crash;
mod enrolment;
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
mod roaming;
mod rounds;
mod service;
mod storage;
mod support;
mod transfer;
mod vandals;
