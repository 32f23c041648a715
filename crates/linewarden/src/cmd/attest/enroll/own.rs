//! The entries of a device's own, which are laid over the reference value of its group.

use std::path::Path;

use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_registry::{OVERLAY_BYTES_MAX, ProverRecord};

use super::EnrollArgs;
use crate::cmd::attest::reference;
use crate::failure::Failure;

/// The entries that a device has, or is to have, and whether an enrollment has accepted them.
#[derive(Debug)]
pub struct Own {
    /// Where they come from, for messages: a file, or the registry.
    name: String,
    entries: Configuration,
    /// PCRs among them whose values no enrollment with a TPM has accepted yet. A file of `attest measure` holds those of whatever boot
    /// the device was in, so these values say nothing of whether that boot is accepted.
    unaccepted: PcrSelection,
}

impl Own {
    /// Those that `--own` names, or else those of the record of this prover.
    ///
    /// # Errors
    /// A file that is no measurement, or a record that is none.
    pub fn read(args: &EnrollArgs, prover: Option<&ProverRecord>) -> Result<Option<Self>, Failure> {
        let overlay = prover.and_then(|prover| prover.overlay.as_deref());
        let stored = match overlay.map(Configuration::decode).transpose() {
            Err(_) if args.own.is_some() => None,
            stored => stored.map_err(Failure::failed)?,
        };
        let (name, entries) = match (&args.own, &stored) {
            (Some(path), _) => (path.display().to_string(), reference::read(path)?),
            (None, Some(stored)) => ("the device's own entries".to_owned(), stored.clone()),
            (None, None) => return Ok(None),
        };
        // Nothing has compared the PCRs of a device with a key in a file.
        let has_tpm = prover.is_some_and(|prover| prover.binding.is_some());
        let accepted = stored.filter(|_| has_tpm);
        let accepted = accepted.as_ref().map(Configuration::pcrs);
        let is_unaccepted = |pcr: &PcrIndex| {
            let value = accepted.and_then(|accepted| accepted.get(*pcr));
            value != entries.pcrs().get(*pcr)
        };
        Ok(Some(Self {
            name,
            unaccepted: entries.pcrs().selection().iter().filter(is_unaccepted).collect(),
            entries,
        }))
    }

    /// Where they come from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All of them.
    pub const fn entries(&self) -> &Configuration {
        &self.entries
    }

    /// Those without the PCRs that no enrollment has accepted.
    pub fn accepted(&self) -> Result<Configuration, Failure> {
        let mut pcrs = PcrValues::new(self.entries.pcrs().bank());
        for (pcr, value) in self.entries.pcrs().iter() {
            if !self.unaccepted.contains(pcr) {
                pcrs.set(pcr, *value).map_err(Failure::failed)?;
            }
        }
        Configuration::new(pcrs, self.entries.files().clone()).map_err(Failure::failed)
    }

    /// Refuses PCRs whose values are those of none of these boots, which are accepted: the next enrollment would take such values for
    /// accepted ones.
    pub fn check<'a>(&self, mut boots: impl Iterator<Item = &'a PcrValues>) -> Result<(), Failure> {
        let own = self.entries.pcrs();
        let is_of = |boot: &PcrValues| own.iter().all(|(pcr, value)| boot.get(pcr) == Some(value));
        match self.unaccepted.is_empty() || boots.any(is_of) {
            true => Ok(()),
            false => Err(Failure::unsafe_(format!(
                "{}: its PCRs {} are not those of the boot that the device is in, nor of a file of --state; measure the entries of \
                 the device's own in that boot, or without `tpm` under [attest] of the agent",
                self.name,
                own.selection()
            ))),
        }
    }

    /// Why PCRs among them have not accepted the boot.
    pub fn notice(&self) -> Option<String> {
        (!self.unaccepted.is_empty()).then(|| {
            format!(
                "{}: its PCRs {} do not accept the boot in which they were measured",
                self.name, self.unaccepted
            )
        })
    }

    /// As [`Own::from_hex`] reads them; refuses more than the registry stores.
    pub fn to_hex(&self) -> Result<String, Failure> {
        let encoding = self.entries.encode();
        match encoding.len() {
            ..=OVERLAY_BYTES_MAX => Ok(hex::encode(encoding)),
            bytes => Err(Failure::input(format!(
                "{}: {bytes} B; at most {OVERLAY_BYTES_MAX} B are accepted; measure only the entries of the device's own",
                self.name
            ))),
        }
    }

    /// Those that were accepted at `--identity`, from the file of `--pending` at this path.
    pub fn from_hex(text: &str, path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::input(format!("{name}: entries of the device's own: {error}"))
        };
        let bytes = hex::decode(text).map_err(|error| wrong(&error))?;
        let entries = Configuration::decode(&bytes).map_err(|error| wrong(&error))?;
        Ok(Self {
            name,
            entries,
            unaccepted: PcrSelection::default(),
        })
    }
}
