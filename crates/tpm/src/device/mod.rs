//! The device side: an open TPM, its keys, and the responses to a controller.
//!
//! Nothing is written to the TPM's non-volatile memory. The endorsement key is created again from its template for each
//! use; the TPM always derives the same key. The other keys are children of the endorsement key. The TPM returns these keys as
//! [`KeyBlobs`], encrypted for itself. The caller stores the blobs in a file; no other TPM can use the blobs.

mod certificate;
mod connection;
mod enroll;
mod error;
mod keys;
mod pcrs;
mod signing;

pub use connection::{DEFAULT_TCTI, Retries, Tpm, check_tcti};
pub use enroll::{AcceptError, QuoteWithValues};
pub use error::{Cause, TpmError};
pub use keys::{BoundKey, EndorsementKind, KeyBlobs, SignerKind, TpmKey};
pub use signing::{SigningBlob, TpmSigner};

/// Checks at compile time that [`TpmKey`] is `Send`: an agent uses its TPM from one thread, which may be any thread.
const fn is_send<T: Send>() {}
const _: () = is_send::<TpmKey>();
