//! Certificates of the connection to the controller.

use std::path::Path;

use linewarden_cli::failure::Failure;
use linewarden_cli::tls::{TlsFiles, file_failure, read_certificates};
use linewarden_link::Identities;
use linewarden_tls::ClientTls;

/// Files of the gateway's certificate, read for each connection, so that replaced files take effect.
pub struct GatewayCertificate(pub TlsFiles);

impl Identities for GatewayCertificate {
    fn current(&self) -> Result<ClientTls, String> {
        self.0.read().map_err(|failure| failure.to_string())
    }
}

/// Returns the gateway ID in a certificate; `None` if the certificate is not of a gateway.
///
/// # Errors
/// The file cannot be read, or contains no certificate.
pub fn gateway_in_certificate(cert: &Path) -> Result<Option<u32>, Failure> {
    let certificate = linewarden_tls::first_certificate(&read_certificates(cert)?)
        .map_err(|error| file_failure(cert, &error))?;
    Ok(linewarden_link::gateway_of(&certificate).map(|gateway| gateway.0))
}
