//! PCRs of the device's TPM.

use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};
use tss_esapi::Error;
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::structures::{PcrSelectSize, PcrSelectionList, PcrSlot};

use super::connection::{Tpm, invalid_result};
use super::error::TpmError;

const READ: &str = "TPM2_PCR_Read";
const PCRS: &str = "the PCRs";

pub(super) const fn hash(bank: HashAlgorithm) -> HashingAlgorithm {
    match bank {
        HashAlgorithm::Sha1 => HashingAlgorithm::Sha1,
        HashAlgorithm::Sha256 => HashingAlgorithm::Sha256,
        HashAlgorithm::Sha384 => HashingAlgorithm::Sha384,
        HashAlgorithm::Sha512 => HashingAlgorithm::Sha512,
    }
}

fn pcr_slot(index: PcrIndex) -> Result<PcrSlot, Error> {
    PcrSlot::try_from(1 << index.get())
}

/// The selection in the type of the TPM software stack. It has three bytes, as in the digest of a policy.
pub(super) fn selection_list(
    bank: HashAlgorithm,
    selection: PcrSelection,
) -> Result<PcrSelectionList, Error> {
    let slots = selection.iter().map(pcr_slot).collect::<Result<Vec<_>, _>>()?;
    PcrSelectionList::builder()
        .with_size_of_select(PcrSelectSize::ThreeOctets)
        .with_selection(hash(bank), &slots)
        .build()
}

impl Tpm {
    /// Reads these PCRs of a bank. A TPM returns eight PCRs at a time. A quote detects a PCR that changes between two
    /// reads.
    ///
    /// # Errors
    /// The TPM failed, or does not have this bank.
    pub fn pcrs(&mut self, bank: HashAlgorithm, selection: PcrSelection) -> Result<PcrValues, TpmError> {
        let mut values = PcrValues::new(bank);
        let indices: Vec<PcrIndex> = selection.iter().collect();
        for part in indices.chunks(8) {
            self.read_part(part, &mut values)?;
        }
        Ok(values)
    }

    fn read_part(&mut self, part: &[PcrIndex], values: &mut PcrValues) -> Result<(), TpmError> {
        let bank = values.bank();
        let requested: PcrSelection = part.iter().copied().collect();
        let (_, selections, digests) = self.run(READ, PCRS, |context| {
            let selection = selection_list(bank, requested)?;
            context.execute_without_session(|context| context.pcr_read(selection))
        })?;
        let invalid = |reason: String| invalid_result(READ, PCRS, reason);
        let is_complete = match selections.get_selections() {
            [selection] => selection.selected().len() == part.len() && digests.len() == part.len(),
            _ => false,
        };
        if !is_complete {
            return Err(invalid(format!(
                "the TPM has no PCRs {requested} in a bank of {bank}"
            )));
        }
        for (index, digest) in part.iter().zip(digests.value()) {
            let digest = Digest::new(bank, digest.value()).map_err(|error| invalid(error.to_string()))?;
            values
                .set(*index, digest)
                .map_err(|error| invalid(error.to_string()))?;
        }
        Ok(())
    }
}
