//! An HMAC key, generated outside, that one TPM imports and never exports.
//!
//! The controller generates the key k and encrypts k for the TPM's endorsement key. TPM2_Import makes k a child of the
//! endorsement key. Only the controller and the TPM know k. The device's software, and an attacker on the bus between
//! processor and TPM, do not.
//!
//! **Why k cannot be exported.** An imported object cannot have fixedTPM or fixedParent, so attributes do not prevent
//! TPM2_Duplicate. The policy prevents it: duplication needs the role DUP, which requires a policy session with
//! TPM2_PolicyCommandCode(TPM2_Duplicate) or TPM2_PolicyDuplicationSelect (TPM 2.0 Library, Part 1, "Authorization
//! Roles"). Both commands change the session's digest. The key's authPolicy is PolicyPCR, or PolicyOR of several
//! PolicyPCRs, and no branch contains one of these commands. adminWithPolicy prevents TPM2_ObjectChangeAuth and
//! TPM2_Certify in this way too: the role ADMIN then requires TPM2_PolicyCommandCode of the command. userWithAuth is
//! clear, so the key has no password. TPM2_Import returns a blob that is encrypted under the endorsement key's own
//! seed, which never leaves the TPM.
//!
//! **What PolicyPCR provides.** Each HMAC needs a session in which the TPM has compared the current PCRs with the
//! digests in the policy. If a PCR changes after the comparison, the TPM refuses the HMAC. A machine that booted another
//! firmware, boot loader or kernel, as far as these are measured, cannot use k.

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

/// All attributes of the key. noDA is set: a policy cannot be guessed, so no lockout is needed.
const ATTRIBUTES: Attributes = Attributes::SIGN
    .union(Attributes::NO_DA)
    .union(Attributes::ADMIN_WITH_POLICY);

/// An encrypted key for one TPM: the arguments of TPM2_Import with the endorsement key as parent and no inner
/// wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// The public area of the key.
    pub public: Public,
    /// The content of TPM2B_PRIVATE.
    pub duplicate: Vec<u8>,
    /// The content of TPM2B_ENCRYPTED_SECRET.
    pub encrypted_seed: Vec<u8>,
}

/// Encrypts `key` for import into the TPM with `for_key` (TPM 2.0 Library, Part 1, "Duplication"). The TPM uses the key
/// only for HMAC-SHA-256, and only while `policy` is met.
///
/// # Errors
/// The endorsement key is invalid, or the cryptographic library failed.
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

/// Whether `public` is the public area of a key from [`wrap`] under `policy`. A device checks the offered key in this way,
/// because another type of key might be unusable or exportable.
pub fn is_bound_key(public: &Public, policy: &PcrPolicy) -> bool {
    let Kind::KeyedHash { unique, .. } = &public.kind else {
        return false;
    };
    *public == Public::hmac_key(ATTRIBUTES, policy.digest().to_vec(), unique.clone())
}
