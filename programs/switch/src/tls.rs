//! TLS files and options of the switch's server and its clients.

use std::path::PathBuf;

use clap::Args;
use linewarden_cli::failure::Failure;
use linewarden_cli::tls::{file_failure, read_certificates, read_identity};
use linewarden_tls::{ClientTls, ServerTls};

/// TLS options of the server, named as in simple_switch_grpc.
#[derive(Args, Debug)]
pub struct ServerTlsArgs {
    /// Server certificate, followed by its chain; enables TLS (path, PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_key")]
    grpc_server_cert: Option<PathBuf>,
    /// Private key of the server certificate, readable by its owner only (path, PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_cert")]
    grpc_server_key: Option<PathBuf>,
    /// CA of client certificates; clients without a certificate of this CA are refused (path, PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_cert")]
    grpc_server_cacert: Option<PathBuf>,
    /// Required by simple_switch_grpc beside --grpc-server-cert
    #[arg(long, hide = true, requires = "grpc_server_cert")]
    grpc_server_ssl: bool,
    /// Required by simple_switch_grpc beside --grpc-server-cacert
    #[arg(long, hide = true, requires = "grpc_server_cacert")]
    grpc_server_with_client_auth: bool,
}

impl ServerTlsArgs {
    /// Whether TLS is enabled.
    pub fn is_requested(&self) -> bool {
        self.grpc_server_cert.is_some()
    }

    /// The server's TLS settings; `None` without TLS.
    ///
    /// # Errors
    /// A file cannot be read or has invalid content, or other users can read the key.
    pub fn read(&self) -> Result<Option<ServerTls>, Failure> {
        let (Some(cert), Some(key)) = (&self.grpc_server_cert, &self.grpc_server_key) else {
            return Ok(None);
        };
        let identity = read_identity(cert, key)?;
        let ca = self.grpc_server_cacert.as_deref();
        let bytes = ca.map(read_certificates).transpose()?;
        let tls = ServerTls::new(identity, bytes.as_deref());
        tls.map(Some)
            .map_err(|error| file_failure(ca.unwrap_or(cert), &error))
    }
}

/// TLS options of a client.
#[derive(Args, Debug)]
pub struct ClientTlsArgs {
    /// CA of the switch's certificate; enables TLS (path, PEM)
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate (path, PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key_file"])]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, readable by its owner only (path, PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key_file: Option<PathBuf>,
    /// Name or address in the switch's certificate (text, default: the address of --grpc-addr)
    #[arg(long, value_name = "NAME", requires = "ca")]
    domain: Option<String>,
}

impl ClientTlsArgs {
    /// The client's TLS settings; `None` without TLS.
    ///
    /// # Errors
    /// As [`ServerTlsArgs::read`], or the name of `--domain` is invalid.
    pub fn read(&self) -> Result<Option<ClientTls>, Failure> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut tls = ClientTls::new(&read_certificates(ca)?).map_err(|error| file_failure(ca, &error))?;
        if let (Some(cert), Some(key)) = (&self.cert, &self.key_file) {
            tls = tls.with_identity(read_identity(cert, key)?);
        }
        if let Some(name) = &self.domain {
            let result = tls.with_domain(name);
            tls = result.map_err(|error| Failure::input(format_args!("--domain: {}", error.reason)))?;
        }
        Ok(Some(tls))
    }

    /// Returns advice for the case that the switch closes the connection.
    pub fn hint(&self) -> &'static str {
        match (&self.ca, &self.cert) {
            (None, _) => "if the switch requires TLS, use --ca",
            (_, None) => "if the switch requires a client certificate, use --cert and --key-file",
            _ => {
                "if the switch requires a client certificate, the certificate of --cert may have expired or be of another CA"
            }
        }
    }
}
