//! The messages of the link, generated from `proto/`, where they are explained.
//!
//! `cargo run -p linewarden-link --example generate_link_messages` writes them anew; the test `generated` compares.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "generated: the .proto files document it"
)]

include!("proto/linewarden.link.v1.rs");
