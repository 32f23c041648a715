//! Exit codes for the errors of the crates that operate a fleet.

use linewarden_agent::AgentError;
use linewarden_client::ClientError;
use linewarden_dataplane::DataPlaneError;
use linewarden_gateway::data_plane::RemoveGateError;
use linewarden_gateway::{GatewayError, TicketRelayError};
use linewarden_registry::RegistryError;
use linewarden_signatures::store::{MaskFileError, SealedFileError, SignerFileError};

use crate::failure::Failure;

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        if let RegistryError::InvalidImportLines { path, problems } = &error
            && problems.len() > 1
        {
            let summary = format!("{}: nothing was imported", path.display());
            let mut messages: Vec<String> = problems.iter().map(|problem| problem.with_path(path)).collect();
            messages.push(summary);
            let first = messages.remove(0);
            return Self::input(first).with_further_messages(messages);
        }
        let code = match &error {
            RegistryError::KeyFileUnsafe { .. } | RegistryError::DuplicatePuf { .. } => 4,
            RegistryError::ChunkRefused { source, .. }
                if matches!(**source, RegistryError::DuplicatePuf { .. }) =>
            {
                4
            }
            RegistryError::KeyMalformed { .. }
            | RegistryError::KeyVariableMissing { .. }
            | RegistryError::KeyFileUnreadable { .. }
            | RegistryError::NoRegistry { .. }
            | RegistryError::NotARegistry { .. }
            | RegistryError::InvalidImportLines { .. }
            | RegistryError::UnknownDevice { .. }
            | RegistryError::NotAProver { .. }
            | RegistryError::UnknownGroup { .. }
            | RegistryError::InvalidGroup { .. }
            | RegistryError::InvalidRecord { .. } => 2,
            _ => 1,
        };
        Self::new(code, error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused {
                status: 401 | 403, ..
            }
            | ClientError::CertificateRejected { .. } => 3,
            refusal if refusal.code() == Some("duplicate_puf") => 4,
            ClientError::Refused {
                status: 400 | 404 | 413 | 415 | 422,
                ..
            }
            | ClientError::InvalidAddress { .. }
            | ClientError::InvalidCertificate(_)
            | ClientError::InvalidRequest(_) => 2,
            _ => 1,
        };
        Self::new(code, error)
    }
}

impl From<DataPlaneError> for Failure {
    fn from(error: DataPlaneError) -> Self {
        match error {
            DataPlaneError::Privilege { .. } => Self::privilege(error),
            DataPlaneError::Config(_) => Self::input(error),
            other => Self::failed(other),
        }
    }
}

impl From<RemoveGateError> for Failure {
    fn from(error: RemoveGateError) -> Self {
        match error {
            RemoveGateError::Interface(error) => Self::input(error),
            RemoveGateError::DataPlane(error) => error.into(),
        }
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        Self::failed(error)
    }
}

impl From<TicketRelayError> for Failure {
    fn from(error: TicketRelayError) -> Self {
        Self::failed(error)
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self::failed(error)
    }
}

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
