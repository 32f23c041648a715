//! A signer's keys on a device.

use std::sync::Arc;

use crate::gpu::{BatchError, Goal, Gpu, MaskKey, RaBatch, RaKeys, RaSigner};
use crate::key::PrivateKey;
use crate::ra::{Digits, Mask, RaPrivate, RaPublic, Table};
use crate::signer::{NamedSignature, new_mask_name};

/// Messages signed in one batch.
pub(super) const SIGNED_MAX: usize = 4_096;

pub(super) const NO_RANDOM_BYTES: BatchError = BatchError::Malformed("getting random bytes failed");

const BAD_KEY: BatchError = BatchError::Malformed("the signer's key cannot make masks");

/// Receives masks: [`Signer::add_masks`](crate::signer::Signer::add_masks), or a mask file.
pub type MaskDelivery = Box<dyn FnMut(Vec<Mask>) + Send>;

/// The signer for whom a device works.
pub(super) struct DeviceSigner {
    pub(super) key: Arc<PrivateKey>,
    pub(super) deliver: MaskDelivery,
    /// Uploaded on demand, kept while the device is open.
    pub(super) mask_key: Option<MaskKey>,
    pub(super) table: Option<DeviceTable>,
}

/// Data on a device for signing messages and for verifying the signatures.
pub(super) struct DeviceTable {
    signer: RaSigner,
    verifier: RaKeys,
}

impl DeviceTable {
    pub(super) fn new(
        gpu: &mut Gpu,
        key: &RaPrivate,
        table: &Table,
        digits: &Digits,
    ) -> Result<Self, BatchError> {
        let mut device_table = Self {
            signer: gpu.ra_signer_of(table, SIGNED_MAX)?,
            verifier: gpu.ra_verifier_of(key.public())?,
        };
        let name = new_mask_name().map_err(|_| NO_RANDOM_BYTES)?;
        let masks = key.masks(&[name]).map_err(|_| BAD_KEY)?;
        device_table.sign(gpu, key.public(), masks, &[digits])?;
        Ok(device_table)
    }

    pub(super) fn sign(
        &mut self,
        gpu: &mut Gpu,
        public: &RaPublic,
        masks: Vec<Mask>,
        digits: &[&Digits],
    ) -> Result<Vec<NamedSignature>, BatchError> {
        if masks.len() != digits.len() {
            return Err(BatchError::Malformed(
                "the number of masks differs from the number of messages",
            ));
        }
        gpu.put_masks(&mut self.signer, masks)?;
        let all_digits: Vec<u16> = digits
            .iter()
            .flat_map(|digits| digits.as_slice())
            .copied()
            .collect();
        let signed = gpu.sign_ra(&mut self.signer, &all_digits, Goal::Automatic)?;
        let results = gpu.verify_ra(
            &RaBatch {
                keys: &self.verifier,
                key_of: &vec![0; digits.len()],
                digits: &all_digits,
                seeds: &signed.seeds,
                signatures: &signed.numbers,
            },
            Goal::Automatic,
        )?;
        let invalid_count = results.iter().filter(|is_valid| !**is_valid).count();
        let numbers = signed.numbers.chunks_exact(public.rsa().size().bytes());
        let signed: Vec<NamedSignature> = signed
            .seeds
            .into_iter()
            .zip(numbers.map(<[u8]>::to_vec))
            .collect();
        let last = signed.last().zip(digits.last());
        let last_is_valid = last.is_none_or(|((name, number), digits)| public.verify(name, digits, number));
        match (invalid_count, last_is_valid) {
            (0, true) => Ok(signed),
            (0, false) => Err(BatchError::CheckFailed(signed.len())),
            _ => Err(BatchError::CheckFailed(invalid_count)),
        }
    }
}
