//! `[controller]`: the controllers of a gateway.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use linewarden_cli::failure::Failure;
use linewarden_cli::tls::{TlsFiles, file_failure, read_certificates};
use linewarden_link::{Client, ClientOptions, Controllers, Identities};
use linewarden_protocol::ids::GatewayId;
use linewarden_tls::ClientTls;

use super::fields::{ControllerSection, GatewayConfig};
use crate::file::Validated;
use crate::problem::{FieldError, Problem};

/// Where the controllers of a gateway are.
#[derive(Clone, Debug)]
pub(super) enum ControllerAddress {
    /// On this machine: the path of the socket.
    Socket(PathBuf),
    /// On other machines.
    Remote {
        /// HOST:PORT, tried in this order.
        addresses: Vec<String>,
        /// CA, certificate and key.
        files: TlsFiles,
    },
}

impl ControllerSection {
    /// # Errors
    /// All fields that are missing, invalid, or contradict `socket`.
    pub(super) fn validate(&self) -> Result<ControllerAddress, Vec<FieldError>> {
        match &self.socket {
            Some(path) => self.validate_socket(path),
            None => self.validate_remote(),
        }
    }

    fn validate_socket(&self, path: &Path) -> Result<ControllerAddress, Vec<FieldError>> {
        let fields = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("key", self.key.is_some()),
            ("addresses", !self.addresses.is_empty()),
            ("server_name", self.server_name.is_some()),
        ];
        let problem = "remove this setting, or remove socket: a socket needs no address and no certificate";
        let set = fields.into_iter().filter(|(_, is_set)| *is_set);
        let errors: Vec<_> = set
            .map(|(field, _)| FieldError::new(&["controller", field], problem))
            .collect();
        match errors.is_empty() {
            true => Ok(ControllerAddress::Socket(path.to_owned())),
            false => Err(errors),
        }
    }

    fn validate_remote(&self) -> Result<ControllerAddress, Vec<FieldError>> {
        if self.addresses.is_empty() {
            let problem = "addresses is missing: HOST:PORT of at least one controller (or set socket, for a controller on this machine)";
            return Err(vec![FieldError::new(&["controller"], problem)]);
        }
        let mut errors = Vec::new();
        let mut required = |field: &str, path: &Option<PathBuf>| {
            let problem = format!("{field} is missing: the path of a PEM file");
            let error = || errors.push(FieldError::new(&["controller"], problem));
            path.clone().ok_or_else(error).ok()
        };
        let (ca, cert, key) = (
            required("ca", &self.ca),
            required("cert", &self.cert),
            required("key", &self.key),
        );
        let has_port = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        for address in self.addresses.iter().filter(|address| !has_port(address)) {
            let problem = format!("must be HOST:PORT; found {address:?}");
            errors.push(FieldError::new(&["controller", "addresses"], problem));
        }
        match (ca, cert, key) {
            (Some(ca), Some(cert), Some(key)) if errors.is_empty() => Ok(ControllerAddress::Remote {
                addresses: self.addresses.clone(),
                files: TlsFiles {
                    ca,
                    cert,
                    key,
                    domain: self.server_name.clone(),
                },
            }),
            _ => Err(errors),
        }
    }
}

impl Validated<GatewayConfig> {
    /// The client of the gateway's controllers.
    ///
    /// # Errors
    /// A certificate or key cannot be read, or the certificate is not of this gateway.
    pub fn controller_client(&self) -> Result<Client, Problem> {
        Ok(Client::new(ClientOptions {
            controllers: self.controllers()?,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(5),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    fn controllers(&self) -> Result<Controllers, Problem> {
        let file = &self.file;
        let id = file.value.gateway.id;
        let (addresses, files) = match &self.valid.controller {
            ControllerAddress::Socket(path) => {
                return Ok(Controllers::Socket {
                    path: path.clone(),
                    gateway: GatewayId(id),
                });
            }
            ControllerAddress::Remote { addresses, files } => (addresses, files),
        };
        let problem = |failure: Failure| {
            file.problem(&["controller"], &failure.to_string())
                .with_code(failure.code())
        };
        files.read().map_err(problem)?;
        let certificate_id = gateway_in_certificate(&files.cert).map_err(problem)?;
        if certificate_id != Some(id) {
            let text = match certificate_id {
                Some(other_id) => format!(
                    "the certificate is of gateway {other_id}, but `id` is {id}; install the certificate of this gateway, or correct `id`"
                ),
                None => "not a gateway certificate (no urn:linewarden:gateway:N): create one with `linewarden certificate gateway`".to_owned(),
            };
            let problem = format!("{}: {text}", files.cert.display());
            return Err(file.problem(&["controller", "cert"], &problem));
        }
        Ok(Controllers::Remote {
            addresses: addresses.clone(),
            identities: Arc::new(GatewayCertificate(files.clone())),
        })
    }
}

/// Files of the gateway's certificate, read for each connection, so that replaced files take effect.
struct GatewayCertificate(TlsFiles);

impl Identities for GatewayCertificate {
    fn current(&self) -> Result<ClientTls, String> {
        self.0.read().map_err(|failure| failure.to_string())
    }
}

/// Returns the gateway ID in a certificate; `None` if the certificate is not of a gateway.
fn gateway_in_certificate(cert: &Path) -> Result<Option<u32>, Failure> {
    let certificate = linewarden_tls::first_certificate(&read_certificates(cert)?)
        .map_err(|error| file_failure(cert, &error))?;
    Ok(linewarden_link::gateway_of(&certificate).map(|gateway| gateway.0))
}
