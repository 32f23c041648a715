//! TLS files: certificates and keys, PEM.

use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;
use linewarden_tls::{ClientTls, Identity, ServerTls, TlsError, TlsPart};

use crate::failure::Failure;
use crate::secret_file;

/// Maximum size of a certificate file, bytes.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a key file, bytes; an RSA key of 16,384 bits has less than 13 KB.
const KEY_BYTES_MAX: usize = 16_384;

/// Paths of CA, certificate and key. The files are read for each connection, so that replaced files take effect.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The CA of the peer's certificate.
    pub ca: PathBuf,
    /// The certificate of this side of the connection.
    pub cert: PathBuf,
    /// The private key of `cert`.
    pub key: PathBuf,
    /// The name in the peer's certificate, if this name differs from the host name.
    pub domain: Option<String>,
}

impl TlsFiles {
    /// Reads the files for a client.
    ///
    /// # Errors
    /// A file cannot be read or has invalid content, or other users can read the key.
    pub fn read(&self) -> Result<ClientTls, Failure> {
        let identity = read_identity(&self.cert, &self.key)?;
        let tls =
            ClientTls::new(&read_certificates(&self.ca)?).map_err(|error| file_failure(&self.ca, &error))?;
        let tls = match &self.domain {
            Some(domain) => tls
                .with_domain(domain)
                .map_err(|error| Failure::input(error.to_string()))?,
            None => tls,
        };
        Ok(tls.with_identity(identity))
    }

    /// Reads the files for a server: client certificates must be issued by the CA.
    ///
    /// # Errors
    /// As [`TlsFiles::read`].
    pub fn read_server(&self) -> Result<ServerTls, Failure> {
        let identity = read_identity(&self.cert, &self.key)?;
        ServerTls::new(identity, Some(&read_certificates(&self.ca)?))
            .map_err(|error| file_failure(&self.ca, &error))
    }
}

/// Reads a certificate and its key.
///
/// # Errors
/// A file cannot be read or has invalid content, or other users can read the key.
pub fn read_identity(cert: &Path, key: &Path) -> Result<Identity, Failure> {
    let chain = read_certificates(cert)?;
    let secret = secret_file::read(key, KEY_BYTES_MAX)?;
    Identity::from_pem(&chain, &secret).map_err(|error| match error.part {
        TlsPart::Key => file_failure(key, &error),
        _ => file_failure(cert, &error),
    })
}

/// Reads a certificate chain or bundle.
///
/// # Errors
/// The file cannot be read.
pub fn read_certificates(path: &Path) -> Result<Vec<u8>, Failure> {
    read_bounded(path, CERTIFICATES_BYTES_MAX)
        .map_err(|error| Failure::input(format_args!("{}: {error}", path.display())))
}

/// Converts an error in the content of a file to a failure that names the path of the file.
pub fn file_failure(path: &Path, error: &TlsError) -> Failure {
    Failure::input(format_args!("{}: {}", path.display(), error.reason))
}
