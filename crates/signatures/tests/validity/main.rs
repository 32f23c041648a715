//! What a valid signature is, as a table.
//!
//! Each vector is tagged with what is unusual about it, and a tag says who refuses it: nobody; we, before any lane sees it; or every verifier,
//! because the equation does not hold. So a vector is valid exactly if nobody refuses one of its tags, and it must have that verdict from
//! AWS-LC, one at a time, and from eight lanes, wherever in a group it stands.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod edwards;
mod p256;
mod plain;

/// Who refuses a vector because of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Nobody,
    /// Whoever takes a key or a signature over: AWS-LC itself would let it pass.
    Us,
    Everybody,
}
