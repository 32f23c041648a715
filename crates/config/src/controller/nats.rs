//! `[nats]` of a controller: validates the section and reads its files.

use std::path::{Path, PathBuf};

use linewarden_cli::failure::Failure;
use linewarden_cli::{secret_file, tls};
use linewarden_service::{NatsOptions, NatsTls};
use linewarden_tls::ClientTls;
use zeroize::Zeroizing;

use super::fields::{ControllerConfig, NatsSection};
use crate::file::Validated;
use crate::problem::Problem;

/// Maximum size of a credentials file, bytes.
const CREDENTIALS_BYTES_MAX: usize = 65_536;

/// The validated section.
#[derive(Debug)]
pub(super) struct ValidNats {
    /// The options, without credentials.
    options: NatsOptions,
    credentials_file: Option<PathBuf>,
}

/// Validates the section, without reading files.
///
/// # Errors
/// The first field that is invalid, and the reason.
pub(super) fn validate(section: &NatsSection) -> Result<ValidNats, (&'static str, String)> {
    let options = NatsOptions {
        servers: section.servers.clone(),
        tls: tls_of(section)?,
        plaintext: section.plaintext,
        credentials: None,
        stream: section.stream.clone(),
        subject_prefix: section.subject_prefix.clone(),
    };
    match options.check() {
        Ok(()) => Ok(ValidNats {
            options,
            credentials_file: section.credentials_file.clone(),
        }),
        Err(error) => Err((error.field(), error.to_string())),
    }
}

fn tls_of(section: &NatsSection) -> Result<Option<NatsTls>, (&'static str, String)> {
    let refuse = |problem: &str| Err(("cert", problem.to_owned()));
    match (&section.ca, &section.cert, &section.key) {
        (None, None, None) => Ok(None),
        (None, ..) => refuse("TLS needs `ca`: set the path of the CA of the servers"),
        (Some(_), Some(_), None) | (Some(_), None, Some(_)) => {
            refuse("`cert` and `key` must be set together")
        }
        (Some(ca), cert, key) => Ok(Some(NatsTls {
            ca: ca.clone(),
            identity: cert.clone().zip(key.clone()),
        })),
    }
}

/// Reads the files of the section, if there is one.
///
/// # Errors
/// A file cannot be read or has invalid content.
pub fn read(config: &Validated<ControllerConfig>) -> Result<Option<NatsOptions>, Problem> {
    let options = config.valid.nats.as_ref().map(ValidNats::read).transpose();
    options.map_err(|(field, failure)| {
        config
            .file
            .problem(&["nats", field], &failure.to_string())
            .with_code(failure.code())
    })
}

impl ValidNats {
    fn read(&self) -> Result<NatsOptions, (&'static str, Failure)> {
        if let Some(NatsTls { ca, identity }) = &self.options.tls {
            let pem = tls::read_certificates(ca).map_err(|failure| ("ca", failure))?;
            ClientTls::new(&pem).map_err(|error| ("ca", tls::file_failure(ca, &error)))?;
            if let Some((cert, key)) = identity {
                tls::read_identity(cert, key).map_err(|failure| ("cert", failure))?;
            }
        }
        let credentials = self.credentials_file.as_deref().map(credentials).transpose();
        let options = NatsOptions {
            credentials: credentials.map_err(|failure| ("credentials_file", failure))?,
            ..self.options.clone()
        };
        // The validation did not know the text of the credentials.
        match options.check() {
            Ok(()) => Ok(options),
            Err(error) => Err((error.field(), Failure::input(error.to_string()))),
        }
    }
}

fn credentials(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let bytes = secret_file::read(path, CREDENTIALS_BYTES_MAX)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(Failure::input(format!("{}: not UTF-8 text", path.display()))),
    }
}
