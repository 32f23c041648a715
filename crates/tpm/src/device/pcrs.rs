//! PCRs of the device's TPM.

use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};
use tss_esapi::Error;
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::structures::{PcrSelectSize, PcrSelectionList, PcrSlot};

use super::connection::{Tpm, unusable};
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

fn slot(index: PcrIndex) -> Result<PcrSlot, Error> {
    PcrSlot::try_from(1 << index.get())
}

/// The stack's form of a selection, in three bytes as the policy's digest has it.
pub(super) fn selection_list(
    bank: HashAlgorithm,
    selection: PcrSelection,
) -> Result<PcrSelectionList, Error> {
    let slots = selection.iter().map(slot).collect::<Result<Vec<_>, _>>()?;
    PcrSelectionList::builder()
        .with_size_of_select(PcrSelectSize::ThreeOctets)
        .with_selection(hash(bank), &slots)
        .build()
}

impl Tpm {
    /// Reads these PCRs of a bank. A TPM gives eight at a time: between two parts one may change, which a quote shows.
    ///
    /// # Errors
    /// The TPM failed, or does not have that bank.
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
        let asked: PcrSelection = part.iter().copied().collect();
        let (_, read, digests) = self.run(READ, PCRS, |context| {
            let selection = selection_list(bank, asked)?;
            context.execute_without_session(|context| context.pcr_read(selection))
        })?;
        let wrong = |why: String| unusable(READ, PCRS, why);
        let whole = match read.get_selections() {
            [only] => only.selected().len() == part.len() && digests.len() == part.len(),
            _ => false,
        };
        if !whole {
            return Err(wrong(format!("the TPM has no PCRs {asked} in a bank of {bank}")));
        }
        for (index, digest) in part.iter().zip(digests.value()) {
            let digest = Digest::new(bank, digest.value()).map_err(|error| wrong(error.to_string()))?;
            values
                .set(*index, digest)
                .map_err(|error| wrong(error.to_string()))?;
        }
        Ok(())
    }
}
