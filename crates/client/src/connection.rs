//! Where a controller is, whom to believe, and as whom to come.

use std::time::Duration;

use linewarden_tls::{ClientTls, Identity, install_provider};
use reqwest::Url;
use zeroize::Zeroizing;

use crate::error::ClientError;

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How often a quiet connection is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// As whom one comes.
pub enum Secrets {
    /// By a token of `linewarden user add`.
    Token(Zeroizing<String>),
    /// By a certificate and its key, PEM, that were judged before.
    Certificate {
        /// The chain.
        chain: Vec<u8>,
        /// The private key.
        key: Zeroizing<Vec<u8>>,
    },
}

/// Nothing of them is shown.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Certificate { .. } => "Certificate",
        })
    }
}

/// How a controller is reached.
#[derive(Debug)]
pub struct ClientOptions {
    /// `https://HOST[:PORT]`.
    pub server: String,
    /// The CA of its certificate, PEM; those that the system believes if not given.
    pub ca: Option<Vec<u8>>,
    /// As whom one comes.
    pub secrets: Secrets,
    /// How long a controller that is away or too busy is asked again.
    pub patience: Duration,
}

/// A controller. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) base: Url,
    pub(crate) token: Option<Zeroizing<String>>,
    pub(crate) patience: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}

/// The address, as `https://HOST[:PORT]/` and nothing more.
fn base(server: &str) -> Result<Url, ClientError> {
    let wrong = |why: &str| ClientError::Address {
        server: server.to_owned(),
        why: why.to_owned(),
    };
    let url = Url::parse(server).map_err(|error| wrong(&error.to_string()))?;
    // Not shown: somebody may have written a password there.
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ClientError::Address {
            server: url.host_str().unwrap_or_default().to_owned(),
            why: "it names a user; tokens go into a file".to_owned(),
        });
    }
    if url.scheme() != "https" {
        return Err(wrong("only https:// is spoken; tokens go nowhere in the clear"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("name the host and the port alone"));
    }
    Ok(url)
}

impl Client {
    /// Says where; asks nothing yet.
    ///
    /// # Errors
    /// An address that is none, or certificates that cannot be used.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        install_provider();
        let unusable = |error: reqwest::Error| ClientError::Tls(crate::error::chain(&error));
        let mut builder = reqwest::Client::builder()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_MAX)
            // The second version says "closed" where TLS has said why one's certificate is not taken.
            .http1_only()
            .tcp_keepalive(KEEPALIVE)
            .user_agent(concat!("linewarden/", env!("CARGO_PKG_VERSION")));
        if let Some(ca) = &options.ca {
            ClientTls::new(ca).map_err(|error| ClientError::Tls(error.to_string()))?;
            let roots = reqwest::Certificate::from_pem_bundle(ca).map_err(unusable)?;
            builder = builder.tls_certs_only(roots);
        }
        let token = match options.secrets {
            Secrets::Token(token) => Some(token),
            Secrets::Certificate { chain, key } => {
                Identity::from_pem(&chain, &key).map_err(|error| ClientError::Tls(error.to_string()))?;
                let mut pem = Zeroizing::new(chain);
                pem.push(b'\n');
                pem.extend_from_slice(&key);
                builder = builder.identity(reqwest::Identity::from_pem(&pem).map_err(unusable)?);
                None
            }
        };
        Ok(Self {
            http: builder.build().map_err(unusable)?,
            base: base(&options.server)?,
            token,
            patience: options.patience,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn server(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }
}

#[cfg(test)]
mod tests {
    use super::base;

    #[test]
    fn only_the_address_of_a_controller_is_one() {
        for server in [
            "https://ctl.example",
            "https://127.0.0.1:20560",
            "https://[::1]:7/",
        ] {
            assert!(base(server).is_ok(), "{server}");
        }
        for server in [
            "ctl.example",
            "http://ctl.example",
            "https://ctl.example/api",
            "https://ctl.example?a",
            "https://",
        ] {
            assert!(base(server).is_err(), "{server}");
        }
        let told = base("https://u:secret@ctl.example").unwrap_err().to_string();
        assert!(!told.contains("secret"), "{told}");
    }
}
