//! Exit codes for the errors of signed messages.

use linewarden_signatures::store::{MaskFileError, SealedFileError, SignerFileError};

use crate::failure::Failure;

/// Whether the storage is full. Full storage is not an invalid argument, although other I/O errors of a path are.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl From<SealedFileError> for Failure {
    fn from(error: SealedFileError) -> Self {
        match error {
            SealedFileError::UnsafePermissions { .. } => Self::unsafe_(error),
            SealedFileError::Entropy(_) => Self::failed(error),
            SealedFileError::Io { ref source, .. } if is_full(source) => Self::failed(error),
            _ => Self::input(error),
        }
    }
}

impl From<SignerFileError> for Failure {
    fn from(error: SignerFileError) -> Self {
        match error {
            SignerFileError::Sealed(error) => error.into(),
            SignerFileError::UnsafeSealingKey { .. } => Self::unsafe_(error),
            SignerFileError::Entropy(_) => Self::failed(error),
            SignerFileError::Io { ref source, .. } if is_full(source) => Self::failed(error),
            _ => Self::input(error),
        }
    }
}

impl From<MaskFileError> for Failure {
    fn from(error: MaskFileError) -> Self {
        match error {
            MaskFileError::UnsafePermissions { .. }
            | MaskFileError::OtherMachine { .. }
            | MaskFileError::Copied { .. }
            | MaskFileError::RolledBack { .. }
            | MaskFileError::InvalidCounter { .. } => Self::unsafe_(error),
            MaskFileError::Entropy(_) | MaskFileError::InUse { .. } => Self::failed(error),
            MaskFileError::Io { ref source, .. } if is_full(source) => Self::failed(error),
            _ => Self::input(error),
        }
    }
}
