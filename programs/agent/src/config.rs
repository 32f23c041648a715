//! Reads the section that the commands about attestation need.

use std::path::Path;

use linewarden_cli::failure::Failure;
use linewarden_config::ConfigFile;
use linewarden_config::agent::{AgentConfig, AttestSection};

/// Reads a configuration with `[attest]`; other sections are parsed, but not validated.
///
/// # Errors
/// All mistakes that parsing finds in the file, or the file has no `[attest]`.
pub fn read_attest(path: &Path) -> Result<(ConfigFile<AgentConfig>, AttestSection), Failure> {
    let file = ConfigFile::<AgentConfig>::read(path)?;
    match file.value.attest.clone() {
        Some(section) => Ok((file, section)),
        None => Err(file.field_failure(
            &["attest"],
            "is missing: set the measured files, as `linewarden-agent config example` shows",
        )),
    }
}
