//! Attestation results as they leave: EARs (draft-ietf-rats-ear-04), signed as JWTs with ES256.
//!
//! A result says what was seen and nothing more: silence is no proof of a changed device, so a quarantined device is
//! *contraindicated* as a whole, without a claim about its executables.

use std::collections::BTreeMap;

use aws_lc_rs::encoding::{AsBigEndian as _, EcPublicKeyUncompressedBin};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ear::{Algorithm, Appraisal as EarAppraisal, Ear, RawValue, TrustTier, VerifierID};
use linewarden_protocol::gateway::Configuration;
use linewarden_registry::{Appraisal, Protection, State};
use zeroize::Zeroizing;

/// The profile of draft-ietf-rats-ear-04.
const PROFILE: &str = "tag:ietf.org,2026:rats/ear#04";
/// AR4SI's values that affirm: 2 of each claim.
const AFFIRMING: i8 = 2;
/// Devices in one token.
pub const SUBMODULES_MAX: usize = 100;
const PEM_LABEL: &str = "PRIVATE KEY";

/// Why there is no signed result.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The key's text is none.
    #[error("no P-256 private key in PEM (PKCS #8): {0}")]
    Key(String),
    /// Nothing could be signed.
    #[error("a result could not be signed: {0}")]
    Sign(String),
}

/// Signs results. The key is the controller's own.
pub struct Signer {
    pkcs8: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer(..)")
    }
}

/// One device's result, as far as it goes into an EAR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it stands.
    pub appraisal: Appraisal,
    /// Where its key lies.
    pub protection: Protection,
    /// Its group.
    pub group: String,
    /// Nobody has looked for too long: nothing is affirmed, whatever was seen before.
    pub is_stale: bool,
}

impl Signer {
    /// A new key, as PEM.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn generate_pem() -> Result<Zeroizing<String>, ResultsError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|error| ResultsError::Key(error.to_string()))?;
        let pem = pem::Pem::new(PEM_LABEL, document.as_ref());
        Ok(Zeroizing::new(pem::encode(&pem)))
    }

    /// Reads a key.
    ///
    /// # Errors
    /// A text that is none.
    pub fn from_pem(text: &str) -> Result<Self, ResultsError> {
        let refuse = |why: &dyn ToString| ResultsError::Key(why.to_string());
        let parsed = pem::parse(text).map_err(|error| refuse(&error))?;
        if parsed.tag() != PEM_LABEL {
            return Err(refuse(&format!("it is a {}", parsed.tag())));
        }
        let pkcs8 = Zeroizing::new(parsed.into_contents());
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8)
            .map_err(|error| refuse(&error))?;
        let public: EcPublicKeyUncompressedBin<'_> =
            pair.public_key().as_be_bytes().map_err(|error| refuse(&error))?;
        Ok(Self {
            public: public.as_ref().to_vec(),
            pkcs8,
        })
    }

    /// The public key as a JWK (RFC 7517), with which results are verified.
    #[must_use]
    pub fn public_jwk(&self) -> String {
        // 0x04 | x[32] | y[32]
        let coordinate = |at: usize| {
            let bytes = self.public.get(at..at + 32).unwrap_or_default();
            BASE64_URL_SAFE_NO_PAD.encode(bytes)
        };
        let (x, y) = (coordinate(1), coordinate(33));
        format!(r#"{{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","x":"{x}","y":"{y}"}}"#)
    }

    /// One token for these devices, at most 100; `issued_s` in seconds since 1970-01-01 UTC. It must not be
    /// believed after `expires_s`.
    ///
    /// # Errors
    /// It cannot be signed.
    pub fn sign(&self, outcomes: &[Outcome], issued_s: u64, expires_s: u64) -> Result<String, ResultsError> {
        let seconds = |time_s: u64| i64::try_from(time_s).unwrap_or(i64::MAX);
        let submods = outcomes
            .iter()
            .take(SUBMODULES_MAX)
            .map(|outcome| (outcome.appraisal.device.to_string(), submodule(outcome)));
        let mut ear = Ear::new();
        ear.profile = PROFILE.to_owned();
        ear.iat = seconds(issued_s);
        ear.exp = Some(seconds(expires_s));
        ear.vid = VerifierID {
            build: concat!("linewarden ", env!("CARGO_PKG_VERSION")).to_owned(),
            developer: env!("CARGO_PKG_REPOSITORY").to_owned(),
        };
        ear.submods = submods.collect::<BTreeMap<_, _>>();
        ear.sign_jwk_der(Algorithm::ES256, &self.pkcs8)
            .map_err(|error| ResultsError::Sign(error.to_string()))
    }
}

fn submodule(outcome: &Outcome) -> EarAppraisal {
    let Outcome {
        appraisal,
        protection,
        group,
        is_stale,
    } = outcome;
    let mut result = EarAppraisal::new();
    let is_tpm = *protection == Protection::Tpm;
    result.status = match appraisal.state {
        _ if *is_stale => TrustTier::None,
        State::Ok => TrustTier::Affirming,
        State::Late | State::Silent => TrustTier::Warning,
        State::Quarantined => TrustTier::Contraindicated,
    };
    if appraisal.state == State::Ok && !is_stale {
        let vector = &mut result.trust_vector;
        vector.instance_identity.set(AFFIRMING);
        vector.configuration.set(AFFIRMING);
        vector.executables.set(AFFIRMING);
        vector.file_system.set(AFFIRMING);
        if is_tpm {
            vector.hardware.set(AFFIRMING);
        }
    }
    result.policy_ids = vec![format!("linewarden:group:{group}")];
    let text = |value: &str| RawValue::String(value.to_owned());
    let number = |value: u64| RawValue::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    result.verifier_claims = BTreeMap::from([
        ("state".to_owned(), text(appraisal.state.name())),
        ("since".to_owned(), number(appraisal.since_s)),
        ("gateway".to_owned(), number(appraisal.gateway.0.into())),
        ("round".to_owned(), number(appraisal.since_round.into())),
        ("key".to_owned(), text(if is_tpm { "tpm" } else { "software" })),
        (
            "reference".to_owned(),
            text(match appraisal.configuration {
                Configuration::Current => "base",
                Configuration::Alternate => "roll-out",
            }),
        ),
    ]);
    result
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::{DeviceId, GatewayId};

    use super::*;

    fn outcome(state: State, is_stale: bool) -> Outcome {
        Outcome {
            appraisal: Appraisal {
                device: DeviceId(0xd1),
                gateway: GatewayId(3),
                address: None,
                state,
                since_s: 1_790_000_000,
                since_round: 7,
                configuration: Configuration::Current,
                silences: Vec::new(),
                asked: 9,
            },
            protection: Protection::Tpm,
            group: "pumps".to_owned(),
            is_stale,
        }
    }

    fn signer() -> Signer {
        Signer::from_pem(&Signer::generate_pem().unwrap()).unwrap()
    }

    /// Verified by the reader of the same draft, with the public key alone.
    fn read(signer: &Signer, token: &str) -> Ear {
        Ear::from_jwt_jwk(token, Algorithm::ES256, signer.public_jwk().as_bytes()).unwrap()
    }

    fn status(signer: &Signer, state: State, is_stale: bool) -> TrustTier {
        let token = signer
            .sign(&[outcome(state, is_stale)], 1_790_000_100, u64::MAX)
            .unwrap();
        let ear = read(signer, &token);
        let device = ear.submods.values().next().unwrap();
        assert_eq!(device.trust_vector.any_set(), state == State::Ok && !is_stale);
        device.status
    }

    #[test]
    fn only_a_fresh_proof_is_affirmed() {
        let signer = signer();
        assert_eq!(status(&signer, State::Ok, false), TrustTier::Affirming);
        assert_eq!(status(&signer, State::Ok, true), TrustTier::None);
        assert_eq!(status(&signer, State::Silent, false), TrustTier::Warning);
        assert_eq!(
            status(&signer, State::Quarantined, false),
            TrustTier::Contraindicated
        );
    }

    #[test]
    fn a_changed_token_or_another_key_does_not_verify() {
        let signer = signer();
        let token = signer.sign(&[outcome(State::Ok, false)], 1, u64::MAX).unwrap();
        let other = super::tests::signer();
        let by = |signer: &Signer, token: &str| {
            Ear::from_jwt_jwk(token, Algorithm::ES256, signer.public_jwk().as_bytes()).is_ok()
        };
        assert!(by(&signer, &token));
        assert!(!by(&other, &token));
        let at = token.find('.').unwrap() + 10;
        let mut bent = token.into_bytes();
        bent[at] = if bent[at] == b'A' { b'B' } else { b'A' };
        assert!(!by(&signer, &String::from_utf8(bent).unwrap()));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in [
            "",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "-----BEGIN X-----\n-----END X-----\n",
        ] {
            assert!(
                matches!(Signer::from_pem(text), Err(ResultsError::Key(_))),
                "{text}"
            );
        }
    }
}
