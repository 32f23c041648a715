//! Reference values in files of `linewarden-agent measure --out`.

use linewarden_cli::failure::Failure;
use std::path::Path;

use linewarden_files::read_bounded;
use linewarden_measurement::configuration::{CONFIGURATION_BYTES_MAX, Configuration};

/// Reads a reference value.
///
/// # Errors
/// The file cannot be read, is not a configuration, or is an empty configuration. Every device without measurements would prove
/// an empty configuration.
pub fn read(path: &Path) -> Result<Configuration, Failure> {
    let bytes = read_bounded(path, CONFIGURATION_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
    let configuration = Configuration::decode(&bytes).map_err(|error| {
        Failure::input(format!(
            "{}: {error}; expected a file of `linewarden-agent measure --out`",
            path.display()
        ))
    })?;
    match configuration.files().is_empty() && configuration.pcrs().selection().is_empty() {
        true => Err(Failure::input(format!(
            "{}: empty configuration: set `files`, or `tpm`, under [attest] of the measured agent, and measure again with \
             `linewarden-agent measure --out`",
            path.display()
        ))),
        false => Ok(configuration),
    }
}

/// Encodes a reference value for a request: hexadecimal.
pub fn encode_hex(reference: &Configuration) -> String {
    hex::encode(reference.encode())
}

/// Number of files and PCRs, such as "3 paths and 5 PCRs".
pub fn size_text(configuration: &Configuration) -> String {
    let counted = |count: usize, noun: &str| linewarden_cli::output::counted(count as u64, noun);
    let (files, pcrs) = (
        configuration.files().len(),
        configuration.pcrs().selection().len(),
    );
    match (files, pcrs) {
        (files, 0) => counted(files, "path"),
        (0, pcrs) => counted(pcrs, "PCR"),
        (files, pcrs) => format!("{} and {}", counted(files, "path"), counted(pcrs, "PCR")),
    }
}
