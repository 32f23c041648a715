//! Tests of LAP/1, attest/2 and the classic profiles: rules, vectors, models, packet tests of the P4 programs.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod device_forgers;
mod device_rules;
mod device_support;
mod device_transitions;
mod down_numbers;
mod gateway_frames;
mod generated_headers;
mod model;
mod p4_packets;
mod p4dra;
mod vectors;
