//! `[telemetry]` of a controller: validates the section and reads its files.

use std::path::Path;

use linewarden_cli::failure::Failure;
use linewarden_cli::tls;
use linewarden_service::TelemetryOptions;
use linewarden_tls::ClientTls;

use super::fields::{ControllerConfig, TelemetrySection};
use crate::file::ConfigFile;
use crate::problem::Problem;

/// Reads the section, if there is one.
///
/// # Errors
/// A field is invalid, or a file cannot be read or has invalid content.
pub fn read(file: &ConfigFile<ControllerConfig>) -> Result<Option<TelemetryOptions>, Problem> {
    let Some(section) = &file.value.telemetry else {
        return Ok(None);
    };
    options(section).map(Some).map_err(|(field, failure)| {
        file.problem(&["telemetry", field], &failure.to_string())
            .with_code(failure.code())
    })
}

/// Returns the first error of the section, without reading files. A section with a CA is not checked, because the check needs
/// the content of the CA file.
pub(super) fn field_error(section: &TelemetrySection) -> Option<(&'static str, String)> {
    if section.ca.is_some() {
        return None;
    }
    let options = TelemetryOptions {
        otlp: section.otlp.clone(),
        tls: None,
        plaintext: section.plaintext,
        sample: section.sample,
    };
    let error = options.check().err()?;
    Some((error.field(), error.to_string()))
}

fn options(section: &TelemetrySection) -> Result<TelemetryOptions, (&'static str, Failure)> {
    let tls = section.ca.as_deref().map(read_ca).transpose();
    let options = TelemetryOptions {
        otlp: section.otlp.clone(),
        tls: tls.map_err(|failure| ("ca", failure))?,
        plaintext: section.plaintext,
        sample: section.sample,
    };
    options.check().map_err(|error| {
        let field = error.field();
        (field, Failure::input(error.to_string()))
    })?;
    Ok(options)
}

fn read_ca(ca: &Path) -> Result<ClientTls, Failure> {
    ClientTls::new(&tls::read_certificates(ca)?).map_err(|error| tls::file_failure(ca, &error))
}
