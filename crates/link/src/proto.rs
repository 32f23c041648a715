//! The messages of the link. `build.rs` generates them from `proto/`, which documents them.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "generated: the .proto files document it"
)]

tonic::include_proto!("linewarden.link.v1");
