//! `[telemetry]` of a controller: where traces go, once all of it can be used.

use std::path::Path;

use linewarden_service::TelemetryOptions;
use linewarden_tls::ClientTls;

use crate::config_file::{ConfigFile, Problem};
use crate::controller_config::{ControllerConfig, TelemetrySection};
use crate::failure::Failure;
use crate::tls;

/// What the section says, if there is one.
///
/// # Errors
/// A field that cannot be used, or a file that cannot be read or is not what it should be.
pub fn read(file: &ConfigFile<ControllerConfig>) -> Result<Option<TelemetryOptions>, Problem> {
    let Some(section) = &file.value.telemetry else {
        return Ok(None);
    };
    options(section).map(Some).map_err(|(field, failure)| {
        file.problem(&["telemetry", field], &failure.to_string())
            .with_code(failure.code())
    })
}

/// What is wrong with the section whatever its files hold. With a CA only its file tells.
pub fn mistake(section: &TelemetrySection) -> Option<(&'static str, String)> {
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
    let tls = section.ca.as_deref().map(whom_to_believe).transpose();
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

fn whom_to_believe(ca: &Path) -> Result<ClientTls, Failure> {
    ClientTls::new(&tls::certificates(ca)?).map_err(|error| tls::in_file(ca, &error))
}
