//! The definition of a valid signature, as a table of vectors.
//!
//! Each vector is tagged with its special properties. A tag has one of three effects: no verifier refuses the vector;
//! this crate's input check refuses the vector before any lane; or every verifier refuses the vector, because the
//! equation does not hold. A vector is valid exactly if no tag causes a refusal. The verifiers are AWS-LC, the single
//! lane, the batch lane, the GPU kernels compiled for this CPU, and each GPU of this machine. They must agree at any
//! position of a batch.

mod curves;
mod devices;
mod edwards;
mod messages;
mod p256;
mod plain;
mod primes;
mod rsa;

/// The party that refuses a vector because of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusedBy {
    NoVerifier,
    /// The check of a key or signature on input. AWS-LC accepts these vectors.
    InputCheck,
    EveryVerifier,
}
