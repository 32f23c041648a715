//! Which registry a command works on.

use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_gateway::config::{GatewayConfig, RegistrySection};
use linewarden_registry::{Location, MasterKey, Registry};

use crate::config_file::{ConfigFile, Role, read_text, role_of};
use crate::controller_config;
use crate::failure::Failure;

/// The environment variable that holds the master key where no key file is named.
pub const KEY_VARIABLE: &str = "LINEWARDEN_MASTER_KEY";

/// Where a registry and its key are.
#[derive(Args, Debug)]
pub struct PlaceArgs {
    /// A gateway's or controller's configuration, whose registry is meant
    #[arg(long, value_name = "FILE", conflicts_with_all = ["registry", "key_file", "server"])]
    pub config: Option<PathBuf>,
    /// The registry: a file, or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "REGISTRY", conflicts_with = "server")]
    pub registry: Option<String>,
    /// The master key's file, of mode 0600; without it the key is taken from LINEWARDEN_MASTER_KEY
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub key_file: Option<PathBuf>,
}

/// The registry and its key, of a command that a controller cannot do for somebody elsewhere.
#[derive(Args, Debug)]
pub struct RegistryArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Known, to say that it does not go.
    #[arg(long, value_name = "URL", hide = true)]
    server: Option<String>,
}

impl RegistryArgs {
    /// Opens it and works on it. Whatever comes of that, it is closed after it, so that no log stays beside its file.
    pub fn with<T>(&self, work: impl AsyncFnOnce(&Registry) -> Result<T, Failure>) -> Result<T, Failure> {
        block_on(async {
            let registry = self.open().await?;
            let done = work(&registry).await;
            registry.close().await;
            done
        })
    }

    async fn open(&self) -> Result<Registry, Failure> {
        if self.server.is_some() {
            return Err(Failure::input(
                "a controller does not do this for somebody elsewhere; run it where the registry is, with --config, or --registry and \
                 --key-file",
            ));
        }
        self.place.open().await
    }
}

impl PlaceArgs {
    /// Whether something is named.
    pub fn is_named(&self) -> bool {
        self.config.is_some() || self.registry.is_some()
    }

    /// Opens it.
    pub async fn open(&self) -> Result<Registry, Failure> {
        if let Some(path) = &self.config {
            return open(&section(path)?).await;
        }
        let named = self.registry.as_deref().ok_or_else(|| {
            Failure::input("which registry? name it by --config FILE, or by --registry and --key-file")
        })?;
        let location = location(named)?;
        let key = match &self.key_file {
            Some(file) => MasterKey::from_file(file)?,
            None => MasterKey::from_env(KEY_VARIABLE)?,
        };
        Ok(Registry::open(location, &key).await?)
    }
}

/// What a gateway's or a controller's configuration says of its registry, its paths made absolute.
fn section(path: &Path) -> Result<RegistrySection, Failure> {
    if role_of(&read_text(path)?) == Some(Role::Controller) {
        return Ok(controller_config::read(path)?.value.registry);
    }
    let mut file = ConfigFile::<GatewayConfig>::read(path)?;
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    file.value.registry.ok_or_else(|| {
        Failure::input(format!(
            "{}: names no registry, but a [controller]; ask that by --server, or name a registry by --registry",
            path.display()
        ))
    })
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

/// Only looks whether a configuration's registry could be opened.
///
/// # Errors
/// The field that is at fault, and what is wrong.
pub async fn examine(section: &RegistrySection) -> Result<(), (&'static str, Failure)> {
    let (field, key) = match (&section.master_key_file, &section.master_key_env) {
        (Some(path), _) => ("master_key_file", MasterKey::from_file(path)),
        (None, Some(variable)) => ("master_key_env", MasterKey::from_env(variable)),
        // That is a mistake of the file, and told as one.
        (None, None) => return Ok(()),
    };
    let key = key.map_err(|error| (field, error.into()))?;
    let examined = Registry::examine(&section.path, &key).await;
    examined.map_err(|error| ("path", error.into()))
}

/// Runs a command's asynchronous part.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(future)
}
