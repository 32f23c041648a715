//! Which registry a command works on.

use std::path::PathBuf;

use clap::Args;
use linewarden_gateway::config::{GatewayConfig, RegistrySection};
use linewarden_registry::{Location, MasterKey, Registry};

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
    /// The registry: a file, or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "REGISTRY", required_unless_present = "config")]
    pub registry: Option<String>,
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
            let section = file.value.registry.as_ref();
            let section = section.ok_or_else(|| {
                Failure::input(format!(
                    "{}: names no registry, but a [controller]; ask that, or name a registry by --registry",
                    path.display()
                ))
            })?;
            return open(section).await;
        }
        let key = match &self.key_file {
            Some(file) => MasterKey::from_file(file)?,
            None => MasterKey::from_env(KEY_VARIABLE)?,
        };
        let location = location(self.registry.as_deref().unwrap_or_default())?;
        Ok(Registry::open(location, &key).await?)
    }
}

/// Where a registry is, as an argument says it. It is not read as an argument: what is wrong with one is told with all of it, and an
/// address may hold a password.
pub fn location(text: &str) -> Result<Location, Failure> {
    text.parse().map_err(Failure::input)
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
