//! The device side: an open TPM, its keys, and the responses to a controller.
//!
//! Nothing is written to the TPM's non-volatile memory. The endorsement key is recreated from its template whenever
//! it is needed, with the same result each time. The other keys are its children: [`KeyBlobs`], encrypted by the TPM
//! for itself. The caller stores them in a file; they are useless elsewhere.

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

/// An agent may use its TPM from any single thread.
const fn is_send<T: Send>() {}
const _: () = is_send::<TpmKey>();
