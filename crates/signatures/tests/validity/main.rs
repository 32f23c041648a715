//! What a valid signature is, as a table.
//!
//! Each vector is tagged with what is unusual about it, and a tag says who refuses it: nobody; we, before any lane sees it; or every verifier,
//! because the equation does not hold. So a vector is valid exactly if nobody refuses one of its tags, and it must have that verdict from
//! AWS-LC, one at a time, from eight lanes, from the kernels of a GPU compiled for this processor, and from each GPU of this machine, wherever
//! in a group it stands.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "../common/mod.rs"]
mod common;
mod curves;
mod devices;
mod edwards;
mod messages;
mod p256;
mod plain;
mod primes;
mod rsa;

/// Who refuses a vector because of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Nobody,
    /// Whoever takes a key or a signature over: AWS-LC itself would let it pass.
    Us,
    Everybody,
}
