//! Files of TLS: certificates and keys, as PEM.

use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;
use linewarden_link::Identities;
use linewarden_tls::{ClientTls, Identity, Part, ServerTls, TlsError};

use crate::failure::Failure;
use crate::secret_file;

/// The longest chain or bundle that is read.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
/// A key of RSA with 16,384 bits is below 13 KB.
const KEY_BYTES_MAX: usize = 16_384;

/// Whom to believe and who one is, read with each connection: exchanged files count from then on.
#[derive(Clone, Debug)]
pub struct Files {
    /// The CA of the other side.
    pub ca: PathBuf,
    /// One's own certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The name in the other side's certificate, if it is not the host's.
    pub domain: Option<String>,
}

impl Files {
    /// As they are now.
    ///
    /// # Errors
    /// A file that cannot be read, or is not what it should be; a key that others can read.
    pub fn read(&self) -> Result<ClientTls, Failure> {
        let identity = identity(&self.cert, &self.key)?;
        let tls = ClientTls::new(&certificates(&self.ca)?).map_err(|error| in_file(&self.ca, &error))?;
        let tls = match &self.domain {
            Some(domain) => tls
                .with_domain(domain)
                .map_err(|error| Failure::input(error.to_string()))?,
            None => tls,
        };
        Ok(tls.with_identity(identity))
    }

    /// The same for who serves: whoever shows a certificate must have one of the CA.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn read_server(&self) -> Result<ServerTls, Failure> {
        let identity = identity(&self.cert, &self.key)?;
        ServerTls::new(identity, Some(&certificates(&self.ca)?)).map_err(|error| in_file(&self.ca, &error))
    }
}

impl Identities for Files {
    fn now(&self) -> Result<ClientTls, String> {
        self.read().map_err(|failure| failure.to_string())
    }
}

/// The gateway that a certificate names.
///
/// # Errors
/// A file that cannot be read, or holds none.
pub fn gateway_of(cert: &Path) -> Result<Option<u32>, Failure> {
    let chain =
        linewarden_tls::first_certificate(&certificates(cert)?).map_err(|error| in_file(cert, &error))?;
    Ok(linewarden_link::gateway_of(&chain).map(|gateway| gateway.0))
}

/// Who one is.
///
/// # Errors
/// A file that cannot be read, or is not what it should be; a key that others can read.
pub fn identity(cert: &Path, key: &Path) -> Result<Identity, Failure> {
    let chain = certificates(cert)?;
    let secret = secret_file::read(key, KEY_BYTES_MAX)?;
    Identity::from_pem(&chain, &secret).map_err(|error| match error.part {
        Part::Key => in_file(key, &error),
        _ => in_file(cert, &error),
    })
}

/// A chain or bundle.
///
/// # Errors
/// A file that cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<u8>, Failure> {
    read_bounded(path, CERTIFICATES_BYTES_MAX)
        .map_err(|error| Failure::input(format_args!("{}: {error}", path.display())))
}

/// An error of what a file holds.
pub fn in_file(path: &Path, error: &TlsError) -> Failure {
    Failure::input(format_args!("{}: {}", path.display(), error.why))
}
