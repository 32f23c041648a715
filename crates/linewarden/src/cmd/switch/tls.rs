//! Files and flags of TLS: those of the switch's server, and those of who asks it.

use std::path::PathBuf;

use clap::Args;
use linewarden_tls::{ClientTls, ServerTls};

use crate::failure::Failure;
use crate::tls::{certificates, identity, in_file};

/// How controllers reach the server. The flags are simple_switch_grpc's.
#[derive(Args, Debug)]
pub struct ServerTlsArgs {
    /// Serve by TLS with this certificate (PEM), below it those that lead to its CA
    #[arg(long, value_name = "FILE", requires = "grpc_server_key")]
    grpc_server_cert: Option<PathBuf>,
    /// Its private key (PEM), which nobody else may read
    #[arg(long, value_name = "FILE", requires = "grpc_server_cert")]
    grpc_server_key: Option<PathBuf>,
    /// Turn away whoever shows no certificate of this CA (PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_cert")]
    grpc_server_cacert: Option<PathBuf>,
    /// What simple_switch_grpc needs beside --grpc-server-cert
    #[arg(long, hide = true, requires = "grpc_server_cert")]
    grpc_server_ssl: bool,
    /// What simple_switch_grpc needs beside --grpc-server-cacert
    #[arg(long, hide = true, requires = "grpc_server_cacert")]
    grpc_server_with_client_auth: bool,
}

impl ServerTlsArgs {
    /// Whether there is to be a server, by TLS.
    pub fn is_asked_for(&self) -> bool {
        self.grpc_server_cert.is_some()
    }

    /// What the server is to be reached by, if not in the clear.
    ///
    /// # Errors
    /// A file that cannot be read, or is not what it should be; a key that others can read.
    pub fn read(&self) -> Result<Option<ServerTls>, Failure> {
        let (Some(cert), Some(key)) = (&self.grpc_server_cert, &self.grpc_server_key) else {
            return Ok(None);
        };
        let identity = identity(cert, key)?;
        let ca = self.grpc_server_cacert.as_deref();
        let bytes = ca.map(certificates).transpose()?;
        let tls = ServerTls::new(identity, bytes.as_deref());
        tls.map(Some).map_err(|error| in_file(ca.unwrap_or(cert), &error))
    }
}

/// How a switch is reached.
#[derive(Args, Debug)]
pub struct ClientTlsArgs {
    /// Connect by TLS, and believe a switch with a certificate of this CA (PEM) only
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Show the switch this certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key_file"])]
    cert: Option<PathBuf>,
    /// Its private key (PEM), which nobody else may read
    #[arg(long, value_name = "FILE", requires = "cert")]
    key_file: Option<PathBuf>,
    /// The name or address in the switch's certificate, where it is another than --grpc-addr
    #[arg(long, value_name = "NAME", requires = "ca")]
    domain: Option<String>,
}

impl ClientTlsArgs {
    /// What to connect by, if not in the clear.
    ///
    /// # Errors
    /// As [`ServerTlsArgs::read`], and a name that is none.
    pub fn read(&self) -> Result<Option<ClientTls>, Failure> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut tls = ClientTls::new(&certificates(ca)?).map_err(|error| in_file(ca, &error))?;
        if let (Some(cert), Some(key)) = (&self.cert, &self.key_file) {
            tls = tls.with_identity(identity(cert, key)?);
        }
        if let Some(name) = &self.domain {
            let named = tls.with_domain(name);
            tls = named.map_err(|error| Failure::input(format_args!("--domain: {}", error.why)))?;
        }
        Ok(Some(tls))
    }

    /// What may be amiss where the switch hangs up.
    pub fn hint(&self) -> &'static str {
        match (&self.ca, &self.cert) {
            (None, _) => "if it serves by TLS, --ca is needed",
            (_, None) => "if it asks for a certificate, --cert and --key-file are needed",
            _ => "if it asks for a certificate, this one has expired or is not of the CA that it believes",
        }
    }
}
