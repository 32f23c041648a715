//! The overlay: device-specific entries that override the reference value of a group.

use linewarden_cli::failure::Failure;
use std::path::Path;

use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_registry::{OVERLAY_BYTES_MAX, ProverRecord};

use super::EnrollArgs;
use crate::cmd::attest::reference;

/// The overlay of a device, and the PCRs of the overlay that no enrollment has accepted.
#[derive(Debug)]
pub struct Overlay {
    /// The source, for messages: the path of a file, or "the device's overlay".
    name: String,
    entries: Configuration,
    /// PCRs whose values no enrollment with a TPM has accepted. A file of `linewarden-agent measure` contains the values of the
    /// boot in which the device was measured, even if this boot is not accepted.
    unaccepted_pcrs: PcrSelection,
}

impl Overlay {
    /// Reads the overlay from the file of `--overlay`; without `--overlay`, from the record `prover`.
    ///
    /// # Errors
    /// The file is not a measurement, or the record is unreadable.
    pub fn read(args: &EnrollArgs, prover: Option<&ProverRecord>) -> Result<Option<Self>, Failure> {
        let overlay = prover.and_then(|prover| prover.overlay.as_deref());
        let stored = match overlay.map(Configuration::decode).transpose() {
            Err(_) if args.overlay.is_some() => None,
            stored => stored.map_err(Failure::failed)?,
        };
        let (name, entries) = match (&args.overlay, &stored) {
            (Some(path), _) => (path.display().to_string(), reference::read(path)?),
            (None, Some(stored)) => ("the device's overlay".to_owned(), stored.clone()),
            (None, None) => return Ok(None),
        };
        // If the key of a device is in a file, the PCRs in the stored overlay were never checked.
        let has_tpm = prover.is_some_and(|prover| prover.binding.is_some());
        let accepted = stored.filter(|_| has_tpm);
        let accepted_pcrs = accepted.as_ref().map(Configuration::pcrs);
        let is_unaccepted = |pcr: &PcrIndex| {
            let value = accepted_pcrs.and_then(|accepted_pcrs| accepted_pcrs.get(*pcr));
            value != entries.pcrs().get(*pcr)
        };
        Ok(Some(Self {
            name,
            unaccepted_pcrs: entries.pcrs().selection().iter().filter(is_unaccepted).collect(),
            entries,
        }))
    }

    /// The source of the overlay.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All entries.
    pub const fn entries(&self) -> &Configuration {
        &self.entries
    }

    /// All entries except PCRs that no enrollment has accepted.
    pub fn accepted_entries(&self) -> Result<Configuration, Failure> {
        let mut pcrs = PcrValues::new(self.entries.pcrs().bank());
        for (pcr, value) in self.entries.pcrs().iter() {
            if !self.unaccepted_pcrs.contains(pcr) {
                pcrs.set(pcr, *value).map_err(Failure::failed)?;
            }
        }
        Configuration::new(pcrs, self.entries.files().clone()).map_err(Failure::failed)
    }

    /// Refuses an overlay with unaccepted PCRs unless the PCRs are equal to the PCRs of an accepted boot in `boots`.
    ///
    /// Without this check, the next enrollment would treat the PCRs of the stored overlay as accepted.
    pub fn check<'a>(&self, mut boots: impl Iterator<Item = &'a PcrValues>) -> Result<(), Failure> {
        let pcrs = self.entries.pcrs();
        let has_values = |boot: &PcrValues| pcrs.iter().all(|(pcr, value)| boot.get(pcr) == Some(value));
        match self.unaccepted_pcrs.is_empty() || boots.any(has_values) {
            true => Ok(()),
            false => Err(Failure::unsafe_(format!(
                "{}: the PCRs {} of the overlay are neither those of the present boot nor those of a file of --state: measure the overlay in one of \
                 these boots, or without `tpm` under [attest] of the agent",
                self.name,
                pcrs.selection()
            ))),
        }
    }

    /// Returns a notice if the overlay has unaccepted PCRs: their boot is not accepted because of the overlay.
    pub fn notice(&self) -> Option<String> {
        (!self.unaccepted_pcrs.is_empty()).then(|| {
            format!(
                "{}: the overlay does not make the boot accepted in which its PCRs {} were measured",
                self.name, self.unaccepted_pcrs
            )
        })
    }

    /// Encodes the overlay for [`Overlay::from_hex`]; refuses an encoding that is longer than the registry accepts.
    pub fn to_hex(&self) -> Result<String, Failure> {
        let encoding = self.entries.encode();
        match encoding.len() {
            ..=OVERLAY_BYTES_MAX => Ok(hex::encode(encoding)),
            bytes => Err(Failure::input(format!(
                "{}: overlay of {bytes} B is longer than {OVERLAY_BYTES_MAX} B: measure only the device-specific entries",
                self.name
            ))),
        }
    }

    /// Decodes the overlay that `--identity` accepted, from the file of `--pending` at this path.
    pub fn from_hex(text: &str, path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let invalid =
            |error: &dyn std::fmt::Display| Failure::input(format!("{name}: invalid overlay: {error}"));
        let bytes = hex::decode(text).map_err(|error| invalid(&error))?;
        let entries = Configuration::decode(&bytes).map_err(|error| invalid(&error))?;
        Ok(Self {
            name,
            entries,
            unaccepted_pcrs: PcrSelection::default(),
        })
    }
}
