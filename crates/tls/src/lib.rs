//! TLS at both ends of a connection. What people give as PEM is judged here, before anything listens or connects, and an
//! error says which of it is at fault ([`Part`]).
//!
//! A server proves with its certificate who it is. With a CA for clients it also asks each client for a certificate, before
//! it reads anything else: whoever has one of that CA may then do everything. Nobody looks for revoked certificates.
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

/// Longest handshake: whoever is slower holds no connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What of a configuration is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The chain of certificates.
    Certificate,
    /// The private key.
    Key,
    /// The certificates of those who are believed.
    Ca,
    /// The name that the server's certificate has to have.
    Domain,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "certificate",
            Self::Key => "private key",
            Self::Ca => "CA certificate",
            Self::Domain => "domain name",
        })
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{part}: {why}")]
pub struct TlsError {
    /// What is at fault.
    pub part: Part,
    /// What is wrong with it, for a person.
    pub why: String,
}

impl TlsError {
    fn new(part: Part, why: impl Into<String>) -> Self {
        Self {
            part,
            why: why.into(),
        }
    }
}

/// A chain of certificates, one's own first, and its private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

/// The key is not shown.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Takes both as PEM; the key as PKCS #8, PKCS #1 or SEC 1, not encrypted.
    ///
    /// # Errors
    /// Something that is neither, or a key that is not the first certificate's.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let certificates = certificates(Part::Certificate, chain)?;
        let wrong = |why: String| TlsError::new(Part::Key, why);
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => wrong("holds no private key in PEM that is not encrypted".to_owned()),
            _ => wrong("its PEM is damaged".to_owned()),
        })?;
        CertifiedKey::from_der(certificates, private, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                wrong("belongs to another certificate than the first of the chain".to_owned())
            }
            error => wrong(format!("cannot be used: {error}")),
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

/// How a server is reached by TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    identity: Identity,
    client_ca: Option<Vec<u8>>,
}

impl ServerTls {
    /// With a CA (PEM, one or more certificates) clients without a certificate of it are turned away.
    ///
    /// # Errors
    /// A CA that is none.
    pub fn new(identity: Identity, client_ca: Option<&[u8]>) -> Result<Self, TlsError> {
        Ok(Self {
            identity,
            client_ca: client_ca.map(trusted).transpose()?,
        })
    }

    /// Whether clients have to show a certificate.
    #[must_use]
    pub fn authenticates_clients(&self) -> bool {
        self.client_ca.is_some()
    }

    /// For servers that do their own handshakes. Who has no certificate of the CA for clients may come in without one; who shows one
    /// of another CA may not.
    ///
    /// # Errors
    /// What was judged to be right before, and is not.
    pub fn to_rustls(&self, protocols: &[&[u8]]) -> Result<rustls::ServerConfig, TlsError> {
        let chain = certificates(Part::Certificate, &self.identity.chain)?;
        let wrong = |why: String| TlsError::new(Part::Key, why);
        let key =
            PrivateKeyDer::from_pem_slice(&self.identity.key).map_err(|error| wrong(error.to_string()))?;
        let builder = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?;
        let builder = match &self.client_ca {
            Some(ca) => {
                let roots = Arc::new(roots(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| TlsError::new(Part::Ca, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| wrong(error.to_string()))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }

    /// For tonic.
    #[must_use]
    pub fn to_tonic(&self) -> ServerTlsConfig {
        // What tonic builds its configuration with.
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

/// Whom a client believes, and who it is itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    ca: Vec<u8>,
    domain: Option<String>,
    identity: Option<Identity>,
}

impl ClientTls {
    /// Believes servers with a certificate of this CA (PEM, one or more certificates) and no other.
    ///
    /// # Errors
    /// A CA that is none.
    pub fn new(ca: &[u8]) -> Result<Self, TlsError> {
        Ok(Self {
            ca: trusted(ca)?,
            domain: None,
            identity: None,
        })
    }

    /// The certificate must be for this name, or IP address, not for the host that is connected to.
    ///
    /// # Errors
    /// A name that no certificate can have.
    pub fn with_domain(mut self, name: &str) -> Result<Self, TlsError> {
        ServerName::try_from(name).map_err(|_| {
            let why = format!("{name:?} is neither a DNS name nor an IP address");
            TlsError::new(Part::Domain, why)
        })?;
        self.domain = Some(name.to_owned());
        Ok(self)
    }

    /// Shows this to servers that ask for a certificate.
    #[must_use]
    pub fn with_identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// For tonic.
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

/// A server at `HOST:PORT`; by TLS, or in the clear where there is no configuration.
///
/// # Errors
/// What is no address.
pub fn endpoint(address: &str, tls: Option<&ClientTls>) -> Result<Endpoint, tonic::transport::Error> {
    match tls {
        None => Endpoint::from_shared(format!("http://{address}")),
        // The scheme has to say so too: a configuration beside `http` would be passed over.
        Some(tls) => {
            provider();
            Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls.to_tonic())
        }
    }
}

/// The cryptography of the whole process: where nothing else has been chosen, what the rest of this workspace signs with.
/// Without a choice rustls panics as soon as somebody's feature brings a second one.
fn provider() -> Arc<CryptoProvider> {
    if let Some(provider) = CryptoProvider::get_default() {
        return Arc::clone(provider);
    }
    // Where two threads choose, they choose the same.
    let _ = aws_lc_rs::default_provider().install_default();
    CryptoProvider::get_default().map_or_else(|| Arc::new(aws_lc_rs::default_provider()), Arc::clone)
}

/// Chooses the cryptography of the process, for who makes its own connections.
pub fn install_provider() {
    provider();
}

fn certificates(part: Part, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::new(part, "its PEM is damaged"))?;
    if certificates.is_empty() {
        return Err(TlsError::new(part, "holds no certificate in PEM"));
    }
    for (place, certificate) in certificates.iter().enumerate() {
        ParsedCertificate::try_from(certificate).map_err(|error| {
            let why = format!("certificate {} in it cannot be used: {error}", place + 1);
            TlsError::new(part, why)
        })?;
    }
    Ok(certificates)
}

/// The first certificate (DER) of a chain in PEM.
///
/// # Errors
/// There is none.
pub fn first_certificate(chain: &[u8]) -> Result<Vec<u8>, TlsError> {
    let certificates = certificates(Part::Certificate, chain)?;
    let first = certificates.into_iter().next();
    first
        .map(|certificate| certificate.to_vec())
        .ok_or_else(|| TlsError::new(Part::Certificate, "holds no certificate in PEM"))
}

fn trusted(text: &[u8]) -> Result<Vec<u8>, TlsError> {
    roots(text)?;
    Ok(text.to_vec())
}

fn roots(text: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(Part::Ca, text)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::new(Part::Ca, format!("cannot be used: {error}")))?;
    }
    Ok(roots)
}
