//! What is named on the command line or in the environment: a registry at hand, or a controller elsewhere.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use linewarden_client::{Client, ClientOptions, Secrets};
use linewarden_tls::Identity;
use zeroize::Zeroizing;

use super::Site;
use crate::failure::Failure;
use crate::registry::{PlaceArgs, block_on};
use crate::{secret_file, tls};

const SERVER: &str = "LINEWARDEN_SERVER";
const SERVER_CA: &str = "LINEWARDEN_SERVER_CA";
const TOKEN_FILE: &str = "LINEWARDEN_TOKEN_FILE";
const CLIENT_CERT: &str = "LINEWARDEN_CLIENT_CERT";
const CLIENT_KEY: &str = "LINEWARDEN_CLIENT_KEY";

/// No token is longer.
const TOKEN_BYTES_MAX: usize = 4_096;
const KEY_BYTES_MAX: usize = 16_384;

/// The registry, or the controller in front of it.
#[derive(Args, Debug)]
pub struct SiteArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// A controller elsewhere.
#[derive(Args, Debug)]
#[command(next_help_heading = "By a controller")]
struct ServerArgs {
    /// Ask this controller, https://HOST:PORT [env: LINEWARDEN_SERVER]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The CA of its certificate, PEM; those that the system believes if not given [env: LINEWARDEN_SERVER_CA]
    #[arg(long, value_name = "FILE")]
    server_ca: Option<PathBuf>,
    /// The file of one's token, of mode 0600 [env: LINEWARDEN_TOKEN_FILE]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["client_cert", "client_key"])]
    token_file: Option<PathBuf>,
    /// One's certificate in place of a token, PEM [env: LINEWARDEN_CLIENT_CERT]
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Its key, PEM, of mode 0600 [env: LINEWARDEN_CLIENT_KEY]
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// How long a controller that is away or too busy is asked again
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    patience: u64,
}

/// A flag, or what the environment says in its place.
fn or_env(flag: Option<&Path>, variable: &str) -> Option<PathBuf> {
    let from_env = || std::env::var_os(variable).filter(|value| !value.is_empty());
    flag.map(Path::to_owned).or_else(|| from_env().map(PathBuf::from))
}

impl SiteArgs {
    /// Opens the registry, or gets ready to ask the controller, and asks. Whatever comes of it, the registry is closed after it, so that no
    /// log stays beside its file.
    ///
    /// # Errors
    /// Neither is named, a file that cannot be used, a registry that cannot be opened, or what the question ends with.
    pub fn with<T>(&self, ask: impl AsyncFnOnce(&Site) -> Result<T, Failure>) -> Result<T, Failure> {
        block_on(async {
            let site = self.open().await?;
            let answer = ask(&site).await;
            site.close().await;
            answer
        })
    }

    async fn open(&self) -> Result<Site, Failure> {
        // What is named in the command counts before what lies about in the environment.
        if self.place.is_named() {
            return Ok(Site::Local(self.place.open().await?));
        }
        let server = match &self.server.server {
            Some(server) => Some(server.clone()),
            None => std::env::var(SERVER).ok().filter(|server| !server.is_empty()),
        };
        let server = server.ok_or_else(|| {
            Failure::input(
                "which registry? name it by --config FILE, or by --registry and --key-file, or the controller in front of it by --server",
            )
        })?;
        Ok(Site::Remote(self.server.client(server)?))
    }
}

impl ServerArgs {
    fn client(&self, server: String) -> Result<Client, Failure> {
        let ca = match or_env(self.server_ca.as_deref(), SERVER_CA) {
            Some(path) => {
                let pem = tls::certificates(&path)?;
                linewarden_tls::ClientTls::new(&pem).map_err(|error| tls::in_file(&path, &error))?;
                Some(pem)
            }
            None => None,
        };
        Ok(Client::new(ClientOptions {
            server,
            ca,
            secrets: self.secrets()?,
            patience: Duration::from_secs(self.patience),
        })?)
    }

    /// Flags count before the environment, also of the other way to come in.
    fn secrets(&self) -> Result<Secrets, Failure> {
        if let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) {
            return certificate(cert, key);
        }
        if let Some(path) = or_env(self.token_file.as_deref(), TOKEN_FILE) {
            return token(&path);
        }
        match (or_env(None, CLIENT_CERT), or_env(None, CLIENT_KEY)) {
            (Some(cert), Some(key)) => certificate(&cert, &key),
            _ => Err(Failure::input(
                "as whom? name the file of a token by --token-file (`linewarden user add NAME > FILE` makes one, of mode 0600), or \
                 a certificate by --client-cert and --client-key",
            )),
        }
    }
}

fn token(path: &Path) -> Result<Secrets, Failure> {
    let bytes = secret_file::read(path, TOKEN_BYTES_MAX)?;
    let text = std::str::from_utf8(&bytes).map(str::trim).unwrap_or_default();
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    match is_token {
        true => Ok(Secrets::Token(Zeroizing::new(text.to_owned()))),
        false => Err(Failure::input(format!(
            "{}: holds no token; `linewarden user add NAME` prints one",
            path.display()
        ))),
    }
}

fn certificate(cert: &Path, key: &Path) -> Result<Secrets, Failure> {
    let _: Identity = tls::identity(cert, key)?;
    Ok(Secrets::Certificate {
        chain: tls::certificates(cert)?,
        key: secret_file::read(key, KEY_BYTES_MAX)?,
    })
}
