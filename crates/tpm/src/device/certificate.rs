//! The endorsement key certificate that the TPM manufacturer stored.

use tss_esapi::Error;
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle, ObjectHandle, TpmHandle};
use tss_esapi::interface_types::resource_handles::NvAuth;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::connection::{Tpm, invalid_result};
use super::error::TpmError;
use super::keys::EndorsementKind;

const READ: &str = "TPM2_NV_Read";
const READ_PUBLIC: &str = "TPM2_NV_ReadPublic";
const CERTIFICATE: &str = "the endorsement key's certificate";
/// Bytes of one read; every TPM of a PC supports reads of this size.
const READ_BYTES_MAX: u16 = 512;

impl EndorsementKind {
    /// The NV index of the certificate (TCG EK Credential Profile 2.5, 2.2.1.4, "Low Range").
    const fn index(self) -> u32 {
        match self {
            Self::Rsa2048 => 0x01c0_0002,
            Self::EccP256 => 0x01c0_000a,
        }
    }
}

impl Tpm {
    /// The manufacturer's certificates for this endorsement key: none, or one in DER.
    ///
    /// # Errors
    /// The TPM failed; a missing certificate is not an error.
    pub fn endorsement_certificates(&mut self, kind: EndorsementKind) -> Result<Vec<Vec<u8>>, TpmError> {
        let index = NvIndexTpmHandle::new(kind.index());
        let index =
            TpmHandle::NvIndex(index.map_err(|error| TpmError::new(READ_PUBLIC, CERTIFICATE, error))?);
        let handle = self.run(READ_PUBLIC, CERTIFICATE, |context| {
            match context.execute_without_session(|context| context.tr_from_tpm_public(index)) {
                Ok(handle) => Ok(Some(handle)),
                Err(Error::Tss2Error(code)) if code.kind() == Some(Tss2ResponseCodeKind::Handle) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        let Some(mut handle) = handle else {
            return Ok(Vec::new());
        };
        let bytes = self.read_index(handle);
        let close_result = self.run("closing an index", CERTIFICATE, |context| {
            context.tr_close(&mut handle)
        });
        let bytes = bytes.and_then(|bytes| close_result.map(|()| bytes))?;
        Ok(vec![without_padding(bytes)])
    }

    fn read_index(&mut self, handle: ObjectHandle) -> Result<Vec<u8>, TpmError> {
        let index = NvIndexHandle::from(handle);
        let (public, _) = self.run(READ_PUBLIC, CERTIFICATE, |context| {
            context.execute_without_session(|context| context.nv_read_public(index))
        })?;
        let size = public.data_size();
        let mut bytes = Vec::with_capacity(size);
        while bytes.len() < size {
            let too_long = || invalid_result(READ, CERTIFICATE, "the index is longer than the maximum");
            let offset = u16::try_from(bytes.len()).map_err(|_| too_long())?;
            let length = u16::try_from(size - bytes.len())
                .map_err(|_| too_long())?
                .min(READ_BYTES_MAX);
            let part = self.run_with_empty_password(READ, CERTIFICATE, |context| {
                context.nv_read(NvAuth::NvIndex(index), index, length, offset)
            })?;
            if part.value().len() != usize::from(length) {
                return Err(invalid_result(
                    READ,
                    CERTIFICATE,
                    "the TPM returned another number of bytes than requested",
                ));
            }
            bytes.extend_from_slice(part.value());
        }
        Ok(bytes)
    }
}

/// Removes the bytes after the certificate, with which some manufacturers pad the index.
fn without_padding(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Ok((rest, _)) = X509Certificate::from_der(&bytes) {
        let length = bytes.len() - rest.len();
        bytes.truncate(length);
    }
    bytes
}
