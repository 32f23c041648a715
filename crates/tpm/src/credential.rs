//! TPM2_MakeCredential without a TPM: a secret that only the TPM which holds both of two keys gives out.

use rand::CryptoRng;

use crate::protect::{ProtectError, Purpose, Seed};
use crate::public::Name;
use crate::template::EndorsementKey;
use crate::wire::Writer;

/// A secret on its way to the TPM that has an endorsement key and, loaded, the object of a certain name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The inside of TPM2B_ID_OBJECT.
    pub id_object: Vec<u8>,
    /// The inside of TPM2B_ENCRYPTED_SECRET.
    pub encrypted_secret: Vec<u8>,
}

/// Encrypts `secret` so that TPM2_ActivateCredential gives it out in the TPM that has `for_key`, and only while the object
/// named `object` is loaded there (TPM 2.0 Library, Part 1, "Credential Protection").
///
/// # Errors
/// A key that is none.
pub fn make_credential<R: CryptoRng + ?Sized>(
    for_key: &EndorsementKey,
    object: &Name,
    secret: &[u8; 32],
    rng: &mut R,
) -> Result<Credential, ProtectError> {
    let seed = Seed::new(for_key, Purpose::Identity, rng)?;
    let plain = zeroize::Zeroizing::new(Writer::new().sized(secret).done());
    Ok(Credential {
        id_object: seed.protect(object, &plain)?,
        encrypted_secret: seed.encrypted,
    })
}
