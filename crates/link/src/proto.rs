//! The messages of the link, generated from `proto/`. The `.proto` file documents them.
//!
//! `cargo run -p linewarden-link --example generate_link_messages` generates them; the test `generated` fails if they
//! are out of date.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "generated: the .proto files document it"
)]

include!("proto/linewarden.link.v1.rs");
