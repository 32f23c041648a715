//! A key for HMAC, made outside, that one TPM takes in and never gives out again.
//!
//! The controller draws k and encrypts it for the TPM's endorsement key; TPM2_Import makes it a child of that key. Nobody
//! but the controller and the TPM ever sees k: neither the device's software nor who listens between processor and TPM.
//!
//! **Why it stays there.** An object that is imported cannot have fixedTPM or fixedParent, so TPM2_Duplicate is not ruled out by
//! attributes. It is by policy: duplication needs the role DUP, which is given by a policy session only, and only after
//! TPM2_PolicyCommandCode(TPM2_Duplicate) or TPM2_PolicyDuplicationSelect in it (TPM 2.0 Library, Part 1, "Authorization Roles"). Both change the
//! session's digest, and the key's authPolicy is PolicyPCR, or PolicyOR of such, with neither in any branch. adminWithPolicy does
//! the same for TPM2_ObjectChangeAuth and TPM2_Certify's admin role. There is no password: userWithAuth is clear. The blob that
//! TPM2_Import gives back is encrypted under the endorsement key's own seed, which does not leave the TPM.
//!
//! **What PolicyPCR gives.** Each HMAC needs a session in which the TPM has compared the PCRs as they are with the digests in the
//! policy; a PCR that changes in between makes the TPM refuse. A machine that started other firmware, another boot loader or
//! another kernel, as far as these are measured, has no use of k.

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

/// All that is set. noDA: nobody can guess at a policy, so nothing is to be locked out.
const ATTRIBUTES: Attributes = Attributes::SIGN
    .and(Attributes::NO_DA)
    .and(Attributes::ADMIN_WITH_POLICY);

/// A key on its way into one TPM: the arguments of TPM2_Import with the endorsement key as parent and no inner wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// Its public area.
    pub public: Public,
    /// The inside of TPM2B_PRIVATE.
    pub duplicate: Vec<u8>,
    /// The inside of TPM2B_ENCRYPTED_SECRET.
    pub encrypted_seed: Vec<u8>,
}

/// Encrypts `key` for import into the TPM that has `for_key` (TPM 2.0 Library, Part 1, "Duplication"). The TPM will use it for HMAC-SHA-256
/// while `policy` is met, and for nothing else.
///
/// # Errors
/// A key that is none.
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
            .sized(&[])
            .sized(&*obfuscation)
            .sized(key.expose())
            .done(),
    );
    let plain = Zeroizing::new(Writer::new().sized(&sensitive).done());
    let seed = Seed::new(for_key, Purpose::Duplicate, rng)?;
    Ok(WrappedKey {
        duplicate: seed.protect(&public.name(), &plain)?,
        public,
        encrypted_seed: seed.encrypted,
    })
}

/// Whether this is the public area of a key as [`wrap`] makes it under `policy`. A device checks what it is offered: a key of
/// another kind would be none that it can use, or one that can be taken out again.
pub fn is_bound_key(public: &Public, policy: &PcrPolicy) -> bool {
    let Kind::KeyedHash { unique, .. } = &public.kind else {
        return false;
    };
    *public == Public::hmac_key(ATTRIBUTES, policy.digest().to_vec(), unique.clone())
}
