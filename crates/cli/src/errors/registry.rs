//! Exit codes for the errors of a registry.

use linewarden_registry::RegistryError;

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
