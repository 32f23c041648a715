//! An HMAC key, generated outside, that one TPM imports and never exports.
//!
//! The controller draws k and encrypts it for the TPM's endorsement key; TPM2_Import makes it a child of that key.
//! Only the controller and the TPM ever see k: neither the device's software nor an attacker on the bus between
//! processor and TPM does.
//!
//! **Why it cannot be exported.** An imported object cannot have fixedTPM or fixedParent, so attributes do not
//! prevent TPM2_Duplicate. The policy does: duplication needs the role DUP, which requires a policy session with
//! TPM2_PolicyCommandCode(TPM2_Duplicate) or TPM2_PolicyDuplicationSelect (TPM 2.0 Library, Part 1, "Authorization
//! Roles"). Both change the session's digest, and the key's authPolicy is PolicyPCR, or PolicyOR of such, with
//! neither in any branch. adminWithPolicy does the same for TPM2_ObjectChangeAuth and TPM2_Certify's admin role.
//! There is no password: userWithAuth is clear. The blob returned by TPM2_Import is encrypted under the endorsement
//! key's own seed, which never leaves the TPM.
//!
//! **What PolicyPCR provides.** Each HMAC needs a session in which the TPM has compared the current PCRs with the
//! digests in the policy; a PCR that changes in between makes the TPM refuse. A machine that booted other firmware,
//! another boot loader or another kernel, as far as these are measured, cannot use k.

use rand::CryptoRng;
use zeroize::Zeroizing;

use crate::kdf::sha256;
use crate::key::AttestationSecret;
use crate::policy::PcrPolicy;
use crate::protect::{ProtectError, Purpose, Seed};
use crate::public::{Attributes, Kind, Public};
use crate::template::EndorsementKey;
use crate::wire::Writer;

const ALG_KEYEDHASH: u16 = 0x0008;

/// All attributes that are set. noDA: a policy cannot be guessed, so no lockout is needed.
const ATTRIBUTES: Attributes = Attributes::SIGN
    .union(Attributes::NO_DA)
    .union(Attributes::ADMIN_WITH_POLICY);

/// An encrypted key for one TPM: the arguments of TPM2_Import with the endorsement key as parent and no inner
/// wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// Its public area.
    pub public: Public,
    /// The content of TPM2B_PRIVATE.
    pub duplicate: Vec<u8>,
    /// The content of TPM2B_ENCRYPTED_SECRET.
    pub encrypted_seed: Vec<u8>,
}

/// Encrypts `key` for import into the TPM with `for_key` (TPM 2.0 Library, Part 1, "Duplication"). The TPM uses it
/// only for HMAC-SHA-256 while `policy` is met.
///
/// # Errors
/// The key is invalid.
pub fn wrap<R: CryptoRng + ?Sized>(
    for_key: &EndorsementKey,
    key: &AttestationSecret,
    policy: &PcrPolicy,
    rng: &mut R,
) -> Result<WrappedKey, ProtectError> {
    let mut obfuscation = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *obfuscation);
    let unique = sha256(&[&*obfuscation, key.expose()]);
    let public = Public::hmac_key(ATTRIBUTES, policy.digest().to_vec(), unique.to_vec());
    let sensitive = Zeroizing::new(
        Writer::new()
            .u16(ALG_KEYEDHASH)
            .sized_buffer(&[])
            .sized_buffer(&*obfuscation)
            .sized_buffer(key.expose())
            .into_bytes(),
    );
    let plain = Zeroizing::new(Writer::new().sized_buffer(&sensitive).into_bytes());
    let seed = Seed::new(for_key, Purpose::Duplicate, rng)?;
    Ok(WrappedKey {
        duplicate: seed.protect(&public.name(), &plain)?,
        public,
        encrypted_seed: seed.encrypted,
    })
}

/// Whether this is the public area of a key made by [`wrap`] under `policy`. A device checks the offered key: another
/// type of key might be unusable or exportable.
pub fn is_bound_key(public: &Public, policy: &PcrPolicy) -> bool {
    let Kind::KeyedHash { unique, .. } = &public.kind else {
        return false;
    };
    *public == Public::hmac_key(ATTRIBUTES, policy.digest().to_vec(), unique.clone())
}
