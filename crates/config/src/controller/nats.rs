//! `[nats]` of a controller: validates the section and reads its files.

use std::path::Path;

use linewarden_cli::failure::Failure;
use linewarden_cli::{secret_file, tls};
use linewarden_service::{NatsOptions, NatsTls};
use linewarden_tls::ClientTls;
use zeroize::Zeroizing;

use super::{ControllerConfig, NatsSection};
use crate::file::ConfigFile;
use crate::problem::Problem;

/// Maximum size of a credentials file, bytes.
const CREDENTIALS_BYTES_MAX: usize = 65_536;

/// A field, and its error.
type FieldFailure = (&'static str, Failure);

/// Reads the section, if there is one.
///
/// # Errors
/// A field is invalid, or a file cannot be read or has invalid content.
pub fn read(file: &ConfigFile<ControllerConfig>) -> Result<Option<NatsOptions>, Problem> {
    let Some(section) = &file.value.nats else {
        return Ok(None);
    };
    options(section).map(Some).map_err(|(field, failure)| {
        file.problem(&["nats", field], &failure.to_string())
            .with_code(failure.code())
    })
}

/// Returns the first error of the section, without reading files.
pub fn field_error(section: &NatsSection) -> Option<(&'static str, String)> {
    let tls = section.ca.clone().map(|ca| NatsTls {
        ca,
        identity: section.cert.clone().zip(section.key.clone()),
    });
    let options = NatsOptions {
        servers: section.servers.clone(),
        tls,
        plaintext: section.plaintext,
        credentials: None,
        stream: section.stream.clone(),
        subject_prefix: section.subject_prefix.clone(),
    };
    let error = options.check().err()?;
    Some((error.field(), error.to_string()))
}

fn options(section: &NatsSection) -> Result<NatsOptions, FieldFailure> {
    let credentials = section.credentials_file.as_deref().map(credentials).transpose();
    let options = NatsOptions {
        servers: section.servers.clone(),
        tls: tls_of(section)?,
        plaintext: section.plaintext,
        credentials: credentials.map_err(|failure| ("credentials_file", failure))?,
        stream: section.stream.clone(),
        subject_prefix: section.subject_prefix.clone(),
    };
    options.check().map_err(|error| {
        let field = error.field();
        (field, Failure::input(error.to_string()))
    })?;
    Ok(options)
}

fn tls_of(section: &NatsSection) -> Result<Option<NatsTls>, FieldFailure> {
    let refuse = |problem: &str| Err(("cert", Failure::input(problem)));
    match (&section.ca, &section.cert, &section.key) {
        (None, None, None) => Ok(None),
        (None, ..) => refuse("TLS needs `ca`: set the path of the CA of the servers"),
        (Some(_), Some(_), None) | (Some(_), None, Some(_)) => {
            refuse("`cert` and `key` must be set together")
        }
        (Some(ca), cert, key) => {
            let pem = tls::read_certificates(ca).map_err(|failure| ("ca", failure))?;
            ClientTls::new(&pem).map_err(|error| ("ca", tls::file_failure(ca, &error)))?;
            let identity = cert.clone().zip(key.clone());
            if let Some((cert, key)) = &identity {
                tls::read_identity(cert, key).map_err(|failure| ("cert", failure))?;
            }
            Ok(Some(NatsTls {
                ca: ca.clone(),
                identity,
            }))
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
