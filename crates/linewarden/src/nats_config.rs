//! `[nats]` of a controller: where events are published, once all of it can be used.

use std::path::Path;

use linewarden_service::{NatsOptions, NatsTls};
use linewarden_tls::ClientTls;
use zeroize::Zeroizing;

use crate::config_file::{ConfigFile, Problem};
use crate::controller_config::{ControllerConfig, NatsSection};
use crate::failure::Failure;
use crate::{secret_file, tls};

/// Longest file of credentials, bytes.
const CREDENTIALS_BYTES_MAX: usize = 65_536;

/// A field, and what is wrong with it.
type Wrong = (&'static str, Failure);

/// What the section says, if there is one.
///
/// # Errors
/// A field that cannot be used, or a file that cannot be read or is not what it should be.
pub fn read(file: &ConfigFile<ControllerConfig>) -> Result<Option<NatsOptions>, Problem> {
    let Some(section) = &file.value.nats else {
        return Ok(None);
    };
    options(section).map(Some).map_err(|(field, failure)| {
        file.problem(&["nats", field], &failure.to_string())
            .with_code(failure.code())
    })
}

/// What is wrong with the section whatever its files hold.
pub fn mistake(section: &NatsSection) -> Option<(&'static str, String)> {
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

fn options(section: &NatsSection) -> Result<NatsOptions, Wrong> {
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

fn tls_of(section: &NatsSection) -> Result<Option<NatsTls>, Wrong> {
    let refuse = |problem: &str| Err(("cert", Failure::input(problem)));
    match (&section.ca, &section.cert, &section.key) {
        (None, None, None) => Ok(None),
        (None, ..) => refuse("without `ca` there is no TLS: name the CA of the servers too"),
        (Some(_), Some(_), None) | (Some(_), None, Some(_)) => refuse("`cert` and `key` go together"),
        (Some(ca), cert, key) => {
            let read = tls::certificates(ca).map_err(|failure| ("ca", failure))?;
            ClientTls::new(&read).map_err(|error| ("ca", tls::in_file(ca, &error)))?;
            let identity = cert.clone().zip(key.clone());
            if let Some((cert, key)) = &identity {
                tls::identity(cert, key).map_err(|failure| ("cert", failure))?;
            }
            Ok(Some(NatsTls {
                ca: ca.clone(),
                identity,
            }))
        }
    }
}

fn credentials(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let read = secret_file::read(path, CREDENTIALS_BYTES_MAX)?;
    match std::str::from_utf8(&read) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(Failure::input(format!("{}: is no text", path.display()))),
    }
}
