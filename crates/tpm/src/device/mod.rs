//! The device's side: an open TPM, its keys, and the answers that a controller asks for.
//!
//! Nothing is written into the TPM's non-volatile memory. The endorsement key is made anew from its template whenever it is
//! needed; it comes out the same each time. The other keys are its children: [`KeyBlobs`], encrypted by the TPM for itself,
//! which the caller keeps in a file and which are of no use elsewhere.

mod certificate;
mod connection;
mod enrol;
mod error;
mod keys;
mod pcrs;
mod signing;

pub use connection::{DEFAULT_TCTI, Retries, Tpm, check_tcti};
pub use enrol::{AcceptError, Quoted};
pub use error::{Cause, TpmError};
pub use keys::{BoundKey, EndorsementKind, KeyBlobs, SignerKind, TpmKey};
pub use signing::{SigningBlob, TpmSigner};

/// An agent may use its TPM from any one thread.
const fn is_send<T: Send>() {}
const _: () = is_send::<TpmKey>();
