//! TPM2_MakeCredential without a TPM: encrypts a secret for one TPM. The TPM must have the endorsement key and a loaded
//! object with the given name.

use rand::CryptoRng;

use crate::protect::{ProtectError, Purpose, Seed};
use crate::public::Name;
use crate::template::EndorsementKey;
use crate::wire::Writer;

/// A credential in the sense of TPM 2.0: a secret, encrypted for the TPM that has a certain endorsement key and a loaded
/// object with a certain name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The content of TPM2B_ID_OBJECT.
    pub id_object: Vec<u8>,
    /// The content of TPM2B_ENCRYPTED_SECRET.
    pub encrypted_secret: Vec<u8>,
}

/// Encrypts `secret` so that TPM2_ActivateCredential decrypts it only in the TPM with `for_key`, and only while the
/// object named `object` is loaded there (TPM 2.0 Library, Part 1, "Credential Protection").
///
/// # Errors
/// The endorsement key is invalid, or the cryptographic library failed.
pub fn make_credential<R: CryptoRng + ?Sized>(
    for_key: &EndorsementKey,
    object: &Name,
    secret: &[u8; 32],
    rng: &mut R,
) -> Result<Credential, ProtectError> {
    let seed = Seed::new(for_key, Purpose::Identity, rng)?;
    let plain = zeroize::Zeroizing::new(Writer::new().sized_buffer(secret).into_bytes());
    Ok(Credential {
        id_object: seed.protect(object, &plain)?,
        encrypted_secret: seed.encrypted,
    })
}
