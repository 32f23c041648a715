//! `[registry]` of a controller: the registry and its master key.

use std::path::PathBuf;

use linewarden_cli::failure::Failure;
use linewarden_registry::{Location, MasterKey, Registry, RegistryError};

use super::fields::RegistrySection;
use crate::problem::FieldError;

/// A registry, and where its master key is.
#[derive(Debug)]
pub struct ValidRegistry {
    location: Location,
    key: MasterKeySource,
}

#[derive(Debug)]
enum MasterKeySource {
    File(PathBuf),
    Variable(String),
}

impl RegistrySection {
    /// # Errors
    /// No master key is named, or two are.
    pub(super) fn validate(&self) -> Result<ValidRegistry, FieldError> {
        let refuse = |field, problem| Err(FieldError::new(&["registry", field], problem));
        let key = match (&self.master_key_file, &self.master_key_env) {
            (Some(path), None) => MasterKeySource::File(path.clone()),
            (None, Some(variable)) => MasterKeySource::Variable(variable.clone()),
            (None, None) => {
                return refuse(
                    "master_key_file",
                    "is missing: set the path of the master key, or set master_key_env to an environment variable that holds the key",
                );
            }
            (Some(_), Some(_)) => {
                return refuse(
                    "master_key_env",
                    "conflicts with master_key_file: remove master_key_env or master_key_file",
                );
            }
        };
        Ok(ValidRegistry {
            location: self.path.clone(),
            key,
        })
    }
}

impl ValidRegistry {
    /// Opens the registry.
    ///
    /// # Errors
    /// The master key or the registry cannot be opened.
    pub async fn open(&self) -> Result<Registry, Failure> {
        let key = self.key.read()?;
        Ok(Registry::open(&self.location, &key).await?)
    }

    /// Checks whether the registry can be opened, without changing the registry.
    ///
    /// # Errors
    /// The field that is wrong, and the reason.
    pub(super) async fn check(&self) -> Result<(), (&'static str, Failure)> {
        let field = match self.key {
            MasterKeySource::File(_) => "master_key_file",
            MasterKeySource::Variable(_) => "master_key_env",
        };
        let key = self.key.read().map_err(|error| (field, error.into()))?;
        let result = Registry::examine(&self.location, &key).await;
        result.map_err(|error| ("path", error.into()))
    }
}

impl MasterKeySource {
    fn read(&self) -> Result<MasterKey, RegistryError> {
        match self {
            Self::File(path) => MasterKey::from_file(path),
            Self::Variable(variable) => MasterKey::from_env(variable),
        }
    }
}
