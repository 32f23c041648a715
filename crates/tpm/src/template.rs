//! Which endorsement and attestation keys count: their attributes, policies and schemes.

use linewarden_measurement::HashAlgorithm;

use crate::public::{Attributes, Kind, Public, Scheme, Symmetric};

/// PolicyA, TPM2_PolicySecret(TPM_RH_ENDORSEMENT) with SHA-256: the authPolicy of the templates L-1 and L-2 (TCG EK Credential
/// Profile 2.5, annex B).
pub const ENDORSEMENT_POLICY: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24, 0xfd,
    0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];

pub(crate) const ENDORSEMENT_ATTRIBUTES: Attributes = Attributes::FIXED_TPM
    .and(Attributes::FIXED_PARENT)
    .and(Attributes::SENSITIVE_DATA_ORIGIN)
    .and(Attributes::ADMIN_WITH_POLICY)
    .and(Attributes::RESTRICTED)
    .and(Attributes::DECRYPT);

/// What an attestation key must have: a key that its TPM drew, that never leaves it, and that signs nothing from outside
/// which looks like the TPM's own.
pub(crate) const ATTESTATION_ATTRIBUTES: Attributes = Attributes::FIXED_TPM
    .and(Attributes::FIXED_PARENT)
    .and(Attributes::SENSITIVE_DATA_ORIGIN)
    .and(Attributes::RESTRICTED)
    .and(Attributes::SIGN);

/// Why a key does not count as what it is shown for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The attributes are not those of the template.
    #[error("{key}: its attributes are {got:#010x}, but {why}")]
    Attributes {
        /// Which key.
        key: &'static str,
        /// Its attributes.
        got: u32,
        /// What they must be.
        why: &'static str,
    },
    /// The policy is not the template's.
    #[error("the endorsement key: its policy is not PolicySecret(endorsement) of the templates L-1 and L-2")]
    Policy,
    /// Another algorithm, size or scheme.
    #[error("{key}: {why}")]
    Parameters {
        /// Which key.
        key: &'static str,
        /// What they must be.
        why: &'static str,
    },
}

/// A public area that has the form of a standard endorsement key: RSA 2048 (template L-1) or ECC P-256 (L-2), a storage
/// key with AES-128-CFB that never leaves its TPM. Whether it is one of a real TPM is another question: [`crate::endorsement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndorsementKey(Public);

impl EndorsementKey {
    /// # Errors
    /// Anything that is not of the templates.
    pub fn new(public: Public) -> Result<Self, TemplateError> {
        const KEY: &str = "the endorsement key";
        if public.attributes != ENDORSEMENT_ATTRIBUTES {
            return Err(TemplateError::Attributes {
                key: KEY,
                got: public.attributes.bits(),
                why: "those of the templates L-1 and L-2 are 0x000300b2",
            });
        }
        if public.name_alg != HashAlgorithm::Sha256 || public.auth_policy != ENDORSEMENT_POLICY {
            return Err(TemplateError::Policy);
        }
        match &public.kind {
            Kind::Rsa {
                symmetric: Symmetric::AesCfb(128),
                scheme: Scheme::Null,
                modulus,
                ..
            } if modulus.len() == 256 => Ok(Self(public)),
            Kind::EccP256 {
                symmetric: Symmetric::AesCfb(128),
                scheme: Scheme::Null,
                ..
            } => Ok(Self(public)),
            _ => Err(TemplateError::Parameters {
                key: KEY,
                why: "only RSA 2048 (L-1) and ECC P-256 (L-2) with AES-128-CFB and no scheme are taken",
            }),
        }
    }

    /// The public area.
    pub const fn public(&self) -> &Public {
        &self.0
    }
}

/// A public area that has the form of an attestation key: restricted, signing, drawn by its TPM and never leaving it; RSASSA or
/// RSAPSS with RSA of at least 2,048 bits, or ECDSA on P-256, with SHA-256. That it lies in one TPM with a certain
/// endorsement key is what [`crate::enrol`] finds out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttestationSigner(Public);

impl AttestationSigner {
    /// # Errors
    /// Anything else.
    pub fn new(public: Public) -> Result<Self, TemplateError> {
        const KEY: &str = "the attestation key";
        const SHA256: HashAlgorithm = HashAlgorithm::Sha256;
        if !public.attributes.has(ATTESTATION_ATTRIBUTES) || public.attributes.has(Attributes::DECRYPT) {
            return Err(TemplateError::Attributes {
                key: KEY,
                got: public.attributes.bits(),
                why: "fixedTPM, fixedParent, sensitiveDataOrigin, restricted and sign must be set and decrypt clear",
            });
        }
        let scheme = match &public.kind {
            Kind::Rsa { scheme, .. } | Kind::EccP256 { scheme, .. } => *scheme,
            Kind::KeyedHash { .. } => Scheme::Null,
        };
        match scheme {
            Scheme::Rsassa(SHA256) | Scheme::Rsapss(SHA256) | Scheme::Ecdsa(SHA256)
                if public.name_alg == SHA256 =>
            {
                Ok(Self(public))
            }
            _ => Err(TemplateError::Parameters {
                key: KEY,
                why: "only RSASSA, RSAPSS and ECDSA on P-256, with SHA-256 as its hash and its name's, are taken",
            }),
        }
    }

    /// The public area.
    pub const fn public(&self) -> &Public {
        &self.0
    }
}
