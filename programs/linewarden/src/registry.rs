//! Selects and opens the registry of a command.

use indicatif::ProgressBar;
use linewarden_cli::failure::Failure;
use linewarden_config::Validated;
use linewarden_config::controller::ControllerConfig;
use std::path::PathBuf;

use clap::Args;
use linewarden_registry::{Location, MasterKey, Progress, Registry};

/// Environment variable that holds the master key if no key file is named.
pub const KEY_VARIABLE: &str = "LINEWARDEN_MASTER_KEY";

/// Options that locate a registry and its key.
#[derive(Args, Debug)]
pub struct LocationArgs {
    /// Configuration file of the controller, whose `registry` section names the registry and its key (path)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["registry", "key_file", "server"])]
    pub config: Option<PathBuf>,
    /// Registry (file, or postgres://USER@HOST/DATABASE)
    #[arg(long, value_name = "REGISTRY", conflicts_with = "server")]
    pub registry: Option<String>,
    /// File of the master key, mode 0600 (path, default: the key in LINEWARDEN_MASTER_KEY)
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub key_file: Option<PathBuf>,
}

/// Registry options of a command that only works directly on a registry.
#[derive(Args, Debug)]
pub struct RegistryArgs {
    #[command(flatten)]
    location: LocationArgs,
    /// Accepted only to report that the command does not work through a controller.
    #[arg(long, value_name = "URL", hide = true)]
    server: Option<String>,
}

impl RegistryArgs {
    /// Opens the registry, runs `work`, and closes the registry also after an error. A registry that was not closed leaves a
    /// write-ahead log beside its file.
    pub fn with<T>(&self, work: impl AsyncFnOnce(&Registry) -> Result<T, Failure>) -> Result<T, Failure> {
        block_on(async {
            let registry = self.open().await?;
            let result = work(&registry).await;
            registry.close().await;
            result
        })
    }

    async fn open(&self) -> Result<Registry, Failure> {
        if self.server.is_some() {
            return Err(Failure::input(
                "command not available with --server: run the command on the controller with `--config controller.toml`, or on the machine of the \
                 registry with --registry and --key-file",
            ));
        }
        self.location.open().await
    }
}

impl LocationArgs {
    /// Whether an option names a registry.
    pub fn names_registry(&self) -> bool {
        self.config.is_some() || self.registry.is_some()
    }

    /// Opens the registry.
    pub async fn open(&self) -> Result<Registry, Failure> {
        if let Some(path) = &self.config {
            let config = Validated::<ControllerConfig>::read(path)?;
            return config.valid.registry.open().await;
        }
        let location = self.registry.as_deref().ok_or_else(|| {
            Failure::input("no registry selected: use --config FILE with the configuration of the controller, or --registry and --key-file")
        })?;
        let location = parse_location(location)?;
        let key = match &self.key_file {
            Some(file) => MasterKey::from_file(file)?,
            None => MasterKey::from_env(KEY_VARIABLE)?,
        };
        Ok(Registry::open(location, &key).await?)
    }
}

/// Parses the location of a registry. The location is not parsed by clap, because clap repeats invalid values in its messages,
/// and an address may contain a password.
pub fn parse_location(text: &str) -> Result<Location, Failure> {
    text.parse().map_err(Failure::input)
}

/// Runs the asynchronous part of a command to its end, on a new runtime.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(future)
}

/// Sets a progress bar to the progress of an operation.
pub fn update_bar(bar: &ProgressBar, progress: Progress) {
    if let Some(total) = progress.total {
        bar.set_length(total);
    }
    bar.set_position(progress.done);
}
