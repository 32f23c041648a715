//! TLS configuration of clients and servers. PEM input is validated before a server listens or a client connects, and errors
//! name the invalid part ([`TlsPart`]).
//!
//! A server authenticates with its certificate. With a client CA, a tonic server also requires a client certificate before it
//! reads any request; a client with a certificate of that CA has full access. A server with the configuration for rustls accepts
//! clients without a certificate. The server must then authenticate each request of these clients, for example by a token.
//! Revocation of certificates is not checked.
//!
//! The crate does not read files and does not authorize users.
//!
//! | type | purpose |
//! |---|---|
//! | [`Identity`] | certificate chain and private key |
//! | [`ServerTls`] | server configuration for rustls and tonic |
//! | [`ClientTls`] | client configuration: trusted CA, server name, identity |
//! | [`endpoint`] | a tonic endpoint with or without TLS |
//!
//! ```
//! use linewarden_tls::{ClientTls, TlsPart};
//!
//! let error = ClientTls::new(b"not PEM").unwrap_err();
//! assert_eq!(error.part, TlsPart::Ca);
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, ServerTlsConfig};
use zeroize::Zeroizing;

/// Maximum duration of a TLS handshake, so that a slow peer cannot occupy a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The invalid part of a TLS configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPart {
    /// The certificate chain.
    Certificate,
    /// The private key.
    Key,
    /// The trusted CA certificates.
    Ca,
    /// The expected name in the server certificate.
    Domain,
}

impl fmt::Display for TlsPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "certificate",
            Self::Key => "private key",
            Self::Ca => "CA certificate",
            Self::Domain => "domain name",
        })
    }
}

/// Why a TLS configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid {part}: {reason}")]
pub struct TlsError {
    /// The invalid part.
    pub part: TlsPart,
    /// Description of the problem, for operators.
    pub reason: String,
}

impl TlsError {
    fn new(part: TlsPart, reason: impl Into<String>) -> Self {
        Self {
            part,
            reason: reason.into(),
        }
    }
}

/// A certificate chain, leaf first, and its private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

/// Does not print the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Parses the chain and the key from PEM. The key must be in PKCS #8, PKCS #1 or SEC 1 format and not encrypted.
    ///
    /// # Errors
    /// Invalid PEM, or a key that does not match the first certificate.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let certificates = certificates(TlsPart::Certificate, chain)?;
        let invalid_key = |reason: String| TlsError::new(TlsPart::Key, reason);
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => invalid_key("no unencrypted private key in PEM".to_owned()),
            _ => invalid_key("damaged PEM".to_owned()),
        })?;
        CertifiedKey::from_der(certificates, private, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                invalid_key("does not match the first certificate of the chain".to_owned())
            }
            error => invalid_key(format!("cannot be used: {error}")),
        })?;
        Ok(Self {
            chain: chain.to_vec(),
            key: Zeroizing::new(key.to_vec()),
        })
    }

    fn to_tonic(&self) -> tonic::transport::Identity {
        tonic::transport::Identity::from_pem(&self.chain, &*self.key)
    }
}

/// TLS configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    identity: Identity,
    client_ca: Option<Vec<u8>>,
}

impl ServerTls {
    /// Creates the configuration. `client_ca` (PEM, one or more certificates) is the CA of client certificates. If this CA
    /// is present, [`ServerTls::to_tonic`] requires a client certificate, and [`ServerTls::to_rustls`] only allows one.
    ///
    /// # Errors
    /// The CA is invalid.
    pub fn new(identity: Identity, client_ca: Option<&[u8]>) -> Result<Self, TlsError> {
        Ok(Self {
            identity,
            client_ca: client_ca.map(checked_ca).transpose()?,
        })
    }

    /// Whether the configuration has a CA of client certificates.
    #[must_use]
    pub fn authenticates_clients(&self) -> bool {
        self.client_ca.is_some()
    }

    /// Returns the configuration for a server that performs handshakes itself. `protocols` are the ALPN protocol names.
    /// Clients without a certificate are accepted; clients with a certificate of another CA are rejected.
    ///
    /// # Errors
    /// rustls refuses a certificate or key that [`Identity::from_pem`] or [`ServerTls::new`] accepted.
    pub fn to_rustls(&self, protocols: &[&[u8]]) -> Result<rustls::ServerConfig, TlsError> {
        let chain = certificates(TlsPart::Certificate, &self.identity.chain)?;
        let invalid_key = |reason: String| TlsError::new(TlsPart::Key, reason);
        let key = PrivateKeyDer::from_pem_slice(&self.identity.key)
            .map_err(|error| invalid_key(error.to_string()))?;
        let builder = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid_key(error.to_string()))?;
        let builder = match &self.client_ca {
            Some(ca) => {
                let roots = Arc::new(roots(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| TlsError::new(TlsPart::Ca, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| invalid_key(error.to_string()))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }

    /// Returns the configuration for tonic.
    #[must_use]
    pub fn to_tonic(&self) -> ServerTlsConfig {
        // tonic uses the default cryptography provider, which must be installed first.
        provider();
        let config = ServerTlsConfig::new()
            .identity(self.identity.to_tonic())
            .timeout(HANDSHAKE_TIMEOUT);
        match &self.client_ca {
            Some(ca) => config.client_ca_root(Certificate::from_pem(ca)),
            None => config,
        }
    }
}

/// TLS configuration of a client: trusted CA, server name and client identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    ca: Vec<u8>,
    domain: Option<String>,
    identity: Option<Identity>,
}

impl ClientTls {
    /// Trusts only servers with a certificate of this CA (PEM, one or more certificates).
    ///
    /// # Errors
    /// The CA is invalid.
    pub fn new(ca: &[u8]) -> Result<Self, TlsError> {
        Ok(Self {
            ca: checked_ca(ca)?,
            domain: None,
            identity: None,
        })
    }

    /// Expects this DNS name or IP address in the server certificate, instead of the host in the server's address.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn with_domain(mut self, name: &str) -> Result<Self, TlsError> {
        ServerName::try_from(name).map_err(|_| {
            let reason = format!("{name:?} is neither a DNS name nor an IP address");
            TlsError::new(TlsPart::Domain, reason)
        })?;
        self.domain = Some(name.to_owned());
        Ok(self)
    }

    /// Presents this certificate to servers that request one.
    #[must_use]
    pub fn with_identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Returns the configuration for tonic.
    #[must_use]
    pub fn to_tonic(&self) -> ClientTlsConfig {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .timeout(HANDSHAKE_TIMEOUT);
        if let Some(domain) = &self.domain {
            config = config.domain_name(domain);
        }
        if let Some(identity) = &self.identity {
            config = config.identity(identity.to_tonic());
        }
        config
    }
}

/// Returns an endpoint for the server at `HOST:PORT`: with TLS, or without encryption if `tls` is `None`.
///
/// # Errors
/// The address is invalid.
pub fn endpoint(address: &str, tls: Option<&ClientTls>) -> Result<Endpoint, tonic::transport::Error> {
    match tls {
        None => Endpoint::from_shared(format!("http://{address}")),
        // With the scheme `http`, tonic would ignore the TLS configuration.
        Some(tls) => {
            provider();
            Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls.to_tonic())
        }
    }
}

/// Returns the default cryptography provider of the process; installs aws-lc-rs if the process has no default. Without
/// a default, rustls panics as soon as a dependency enables a second provider.
fn provider() -> Arc<CryptoProvider> {
    if let Some(provider) = CryptoProvider::get_default() {
        return Arc::clone(provider);
    }
    // If two threads install a provider at the same time, both install the same provider.
    let _ = aws_lc_rs::default_provider().install_default();
    CryptoProvider::get_default().map_or_else(|| Arc::new(aws_lc_rs::default_provider()), Arc::clone)
}

/// Installs the default cryptography provider of the process, for callers that create their own connections.
pub fn install_provider() {
    provider();
}

/// Parses and checks all certificates of a PEM text. `part` is the part that errors name.
fn certificates(part: TlsPart, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::new(part, "damaged PEM"))?;
    if certificates.is_empty() {
        return Err(TlsError::new(part, "no certificate in PEM"));
    }
    for (index, certificate) in certificates.iter().enumerate() {
        ParsedCertificate::try_from(certificate).map_err(|error| {
            let reason = format!("certificate {} of the file cannot be used: {error}", index + 1);
            TlsError::new(part, reason)
        })?;
    }
    Ok(certificates)
}

/// Returns the first certificate (DER) of a chain in PEM.
///
/// # Errors
/// The chain contains no certificate, or is invalid.
pub fn first_certificate(chain: &[u8]) -> Result<Vec<u8>, TlsError> {
    let certificates = certificates(TlsPart::Certificate, chain)?;
    let first = certificates.into_iter().next();
    first
        .map(|certificate| certificate.to_vec())
        .ok_or_else(|| TlsError::new(TlsPart::Certificate, "no certificate in PEM"))
}

/// Checks that rustls accepts the CA certificates; returns the PEM text unchanged.
fn checked_ca(text: &[u8]) -> Result<Vec<u8>, TlsError> {
    roots(text)?;
    Ok(text.to_vec())
}

fn roots(text: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(TlsPart::Ca, text)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::new(TlsPart::Ca, format!("cannot be used: {error}")))?;
    }
    Ok(roots)
}
