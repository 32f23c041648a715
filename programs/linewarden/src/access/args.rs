//! Options and environment variables that select a local registry or a remote controller.

use linewarden_cli::failure::Failure;
use linewarden_cli::{secret_file, tls};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use linewarden_client::{Client, ClientOptions, Credentials};
use linewarden_controller::attest::Signer;
use linewarden_registry::{BulkOptions, ExportKey, NewEvent, Progress, Registry};
use linewarden_service::{LocalApi, local_action};
use linewarden_tls::Identity;
use zeroize::Zeroizing;

use super::store::import_file;
use crate::registry::{LocationArgs, block_on};

const SERVER: &str = "LINEWARDEN_SERVER";
const SERVER_CA: &str = "LINEWARDEN_SERVER_CA";
const TOKEN_FILE: &str = "LINEWARDEN_TOKEN_FILE";
const CLIENT_CERT: &str = "LINEWARDEN_CLIENT_CERT";
const CLIENT_KEY: &str = "LINEWARDEN_CLIENT_KEY";

/// Maximum size of a token file, bytes.
const TOKEN_BYTES_MAX: usize = 4_096;
/// Maximum size of a file with a private key, bytes.
const KEY_BYTES_MAX: usize = 16_384;

/// A local registry, or a controller.
#[derive(Args, Debug)]
pub struct AccessArgs {
    #[command(flatten)]
    location: LocationArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of a remote controller.
#[derive(Args, Debug)]
#[command(next_help_heading = "Remote administration")]
struct ServerArgs {
    /// Controller to connect to (https://HOST:PORT) [env: LINEWARDEN_SERVER]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// CA of the controller's certificate (path, PEM, default: the system's CAs) [env: LINEWARDEN_SERVER_CA]
    #[arg(long, value_name = "FILE")]
    server_ca: Option<PathBuf>,
    /// File of the API user's token, mode 0600 (path) [env: LINEWARDEN_TOKEN_FILE]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["client_cert", "client_key"])]
    token_file: Option<PathBuf>,
    /// Client certificate, instead of a token (path, PEM) [env: LINEWARDEN_CLIENT_CERT]
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Private key of the client certificate, mode 0600 (path, PEM) [env: LINEWARDEN_CLIENT_KEY]
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// How long to retry while the controller is unreachable or busy (integer, seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    retry_for: u64,
}

/// Returns the value of an option; without the option, the value of an environment variable.
fn path_or_env(option: Option<&Path>, variable: &str) -> Option<PathBuf> {
    let from_env = || std::env::var_os(variable).filter(|value| !value.is_empty());
    option
        .map(Path::to_owned)
        .or_else(|| from_env().map(PathBuf::from))
}

impl AccessArgs {
    /// Whether an option names a local registry.
    pub fn names_registry(&self) -> bool {
        self.location.names_registry()
    }

    /// Runs `work` as [`AccessArgs::with_signer`], without a signer.
    ///
    /// # Errors
    /// As [`AccessArgs::with_signer`].
    pub fn with<T>(&self, work: impl AsyncFnOnce(&Client) -> Result<T, Failure>) -> Result<T, Failure> {
        self.with_signer(None, work)
    }

    /// Runs `work` with a client: of the selected controller, or of the API over the selected registry, which signs
    /// attestation results with `signer`. The registry is closed also after an error, so that no write-ahead log stays beside
    /// the registry's file.
    ///
    /// # Errors
    /// No registry or controller is named, a file is invalid, the registry cannot be opened, or `work` fails.
    pub fn with_signer<T>(
        &self,
        signer: Option<Signer>,
        work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        block_on(async {
            // Options take precedence over environment variables.
            if !self.names_registry() {
                return work(&self.server.create_client()?).await;
            }
            self.with_registry(async |registry| {
                let api = LocalApi::new(registry.clone(), signer).await?;
                work(&Client::in_process(api)?).await
            })
            .await
        })
    }

    /// Opens the registry, runs `work`, and closes the registry also after an error.
    async fn with_registry<T>(
        &self,
        work: impl AsyncFnOnce(&Registry) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let registry = self.location.open().await?;
        let result = work(&registry).await;
        registry.close().await;
        result
    }

    /// Imports an export file; returns the number of stored devices. A local registry refuses the file as a whole if a device
    /// conflicts with an enrolled device; a controller stores the devices before the first conflict.
    ///
    /// # Errors
    /// As [`AccessArgs::with_signer`]; an invalid file, or a refused device.
    pub fn import_file(
        &self,
        path: &Path,
        key: &ExportKey,
        options: BulkOptions,
        reason: &str,
        progress: impl FnMut(Progress),
    ) -> Result<u64, Failure> {
        if !self.names_registry() {
            return self.with(async |client| import_file(client, path, key, options, reason, progress).await);
        }
        let event = NewEvent {
            kind: "enrolled".to_owned(),
            detail: "devices imported here".to_owned(),
            ..NewEvent::default()
        };
        block_on(self.with_registry(async |registry| {
            let audited = registry.with_action(local_action(reason, event))?;
            Ok(audited.import_file(path, key, options, progress).await?)
        }))
    }
}

impl ServerArgs {
    fn create_client(&self) -> Result<Client, Failure> {
        let from_env = || std::env::var(SERVER).ok().filter(|server| !server.is_empty());
        let server = self.server.clone().or_else(from_env).ok_or_else(|| {
            Failure::input(
                "no registry selected: use --config FILE, --registry and --key-file, or --server URL of a controller",
            )
        })?;
        let ca = match path_or_env(self.server_ca.as_deref(), SERVER_CA) {
            Some(path) => {
                let pem = tls::read_certificates(&path)?;
                linewarden_tls::ClientTls::new(&pem).map_err(|error| tls::file_failure(&path, &error))?;
                Some(pem)
            }
            None => None,
        };
        Ok(Client::new(ClientOptions {
            server,
            ca,
            credentials: self.read_credentials()?,
            retry_timeout: Duration::from_secs(self.retry_for),
        })?)
    }

    /// Reads the API credential. Options take precedence over environment variables, even over variables of another kind
    /// of credential.
    fn read_credentials(&self) -> Result<Credentials, Failure> {
        if let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) {
            return read_certificate(cert, key);
        }
        if let Some(path) = path_or_env(self.token_file.as_deref(), TOKEN_FILE) {
            return read_token(&path);
        }
        match (path_or_env(None, CLIENT_CERT), path_or_env(None, CLIENT_KEY)) {
            (Some(cert), Some(key)) => read_certificate(&cert, &key),
            _ => Err(Failure::input(
                "no API credential given: use --token-file (create a token file with `umask 077; linewarden user create NAME > FILE`), or --client-cert and \
                 --client-key",
            )),
        }
    }
}

fn read_token(path: &Path) -> Result<Credentials, Failure> {
    let bytes = secret_file::read(path, TOKEN_BYTES_MAX)?;
    let text = std::str::from_utf8(&bytes).map(str::trim).unwrap_or_default();
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    match is_token {
        true => Ok(Credentials::Token(Zeroizing::new(text.to_owned()))),
        false => Err(Failure::input(format!(
            "{}: not a token; `linewarden user create NAME` prints a token",
            path.display()
        ))),
    }
}

fn read_certificate(cert: &Path, key: &Path) -> Result<Credentials, Failure> {
    let _: Identity = tls::read_identity(cert, key)?;
    Ok(Credentials::Certificate {
        chain: tls::read_certificates(cert)?,
        key: secret_file::read(key, KEY_BYTES_MAX)?,
    })
}
