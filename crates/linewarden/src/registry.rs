//! Which registry a command works on.

use std::path::PathBuf;

use clap::Args;
use linewarden_gateway::config::{GatewayConfig, RegistrySection};
use linewarden_registry::{MasterKey, Registry};

use crate::config_file::ConfigFile;
use crate::failure::Failure;

/// The environment variable that holds the master key where no key file is named.
pub const KEY_VARIABLE: &str = "LINEWARDEN_MASTER_KEY";

/// The registry and its key.
#[derive(Args, Debug)]
pub struct RegistryArgs {
    /// A gateway's configuration, whose registry is meant
    #[arg(long, value_name = "FILE", conflicts_with_all = ["registry", "key_file"])]
    pub config: Option<PathBuf>,
    /// The registry's file
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    pub registry: Option<PathBuf>,
    /// The master key's file, of mode 0600; without it the key is taken from LINEWARDEN_MASTER_KEY
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

impl RegistryArgs {
    /// Opens it.
    pub async fn open(&self) -> Result<Registry, Failure> {
        if let Some(path) = &self.config {
            let mut file = ConfigFile::<GatewayConfig>::read(path)?;
            let directory = file.directory();
            file.value.resolve_paths(&directory);
            return open(&file.value.registry).await;
        }
        let key = match &self.key_file {
            Some(file) => MasterKey::from_file(file)?,
            None => MasterKey::from_env(KEY_VARIABLE)?,
        };
        let path = self.registry.as_deref().unwrap_or(std::path::Path::new(""));
        Ok(Registry::open(path, &key).await?)
    }
}

/// Opens the registry that a configuration names.
pub async fn open(section: &RegistrySection) -> Result<Registry, Failure> {
    let key = match (&section.master_key_file, &section.master_key_env) {
        (Some(file), _) => MasterKey::from_file(file)?,
        (None, Some(variable)) => MasterKey::from_env(variable)?,
        (None, None) => {
            return Err(Failure::input(
                "[registry] names neither master_key_file nor master_key_env",
            ));
        }
    };
    Ok(Registry::open(&section.path, &key).await?)
}

/// Runs a command's asynchronous part.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(future)
}
