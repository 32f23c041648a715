//! Reference values: what devices are to run, in files as `attest measure --out` writes them.

use std::path::Path;

use linewarden_files::read_bounded;
use linewarden_measurement::configuration::{CONFIGURATION_BYTES_MAX, Configuration};

use crate::failure::Failure;

/// Reads one.
///
/// # Errors
/// A file that cannot be read, is no configuration, or is one of nothing, which every device proves that measures nothing.
pub fn read(path: &Path) -> Result<Configuration, Failure> {
    let bytes = read_bounded(path, CONFIGURATION_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
    let configuration = Configuration::decode(&bytes).map_err(|error| {
        Failure::input(format!(
            "{}: {error}; a file that `attest measure --out` has written is wanted",
            path.display()
        ))
    })?;
    match configuration.files().is_empty() && configuration.pcrs().selection().is_empty() {
        true => Err(Failure::input(format!(
            "{}: nothing was measured in it; set `files`, or `tpm`, under [attest] of the agent that is measured, and \
             measure again with `attest measure --out`",
            path.display()
        ))),
        false => Ok(configuration),
    }
}

/// h of an encoding that the registry holds, in words where a newer program has stored it.
pub fn hash_of(encoding: &[u8]) -> String {
    match Configuration::decode(encoding) {
        Ok(configuration) => configuration.hash().to_string(),
        Err(error) => format!("cannot be read: {error}"),
    }
}

/// "3 files and 5 PCRs".
pub fn extent(configuration: &Configuration) -> String {
    let counted = |count: usize, thing: &str| crate::output::counted(count as u64, thing);
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
