//! Exit codes for the errors of a registry.

use linewarden_registry::{AttestationError, BulkError, DeviceError, KeyError, OpenError, RegistryError};

use crate::failure::Failure;

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        if let RegistryError::Bulk(BulkError::InvalidImportLines { path, problems }) = &error
            && problems.len() > 1
        {
            let summary = format!("{}: nothing was imported", path.display());
            let mut messages: Vec<String> = problems.iter().map(|problem| problem.with_path(path)).collect();
            messages.push(summary);
            let first = messages.remove(0);
            return Self::input(first).with_further_messages(messages);
        }
        let code = match &error {
            RegistryError::Key(KeyError::FileUnsafe { .. })
            | RegistryError::Device(DeviceError::DuplicatePuf { .. }) => 4,
            RegistryError::Bulk(BulkError::ChunkRefused { source, .. })
                if matches!(**source, RegistryError::Device(DeviceError::DuplicatePuf { .. })) =>
            {
                4
            }
            RegistryError::Key(
                KeyError::Malformed { .. }
                | KeyError::VariableMissing { .. }
                | KeyError::FileUnreadable { .. },
            )
            | RegistryError::Open(OpenError::NoRegistry { .. } | OpenError::NotARegistry { .. })
            | RegistryError::Bulk(BulkError::InvalidImportLines { .. })
            | RegistryError::Device(DeviceError::UnknownDevice { .. } | DeviceError::InvalidRecord { .. })
            | RegistryError::Attestation(
                AttestationError::NotAProver { .. }
                | AttestationError::UnknownGroup { .. }
                | AttestationError::InvalidGroup { .. },
            ) => 2,
            _ => 1,
        };
        Self::new(code, error)
    }
}
