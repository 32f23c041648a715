//! Attestation results: EARs (draft-ietf-rats-ear-04), signed as JWTs (RFC 7515, RFC 7519) with ES256.
//!
//! A result contains only what was observed. A missing proof does not prove a changed device, so a quarantined device
//! is *contraindicated* as a whole, without a claim about its executables.

use std::collections::BTreeMap;

use aws_lc_rs::encoding::{AsBigEndian as _, EcPublicKeyUncompressedBin};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use linewarden_protocol::gateway::Configuration;
use linewarden_registry::{Appraisal, AttestationState, Protection};
use serde::Serialize;
use zeroize::Zeroizing;

/// The profile of draft-ietf-rats-ear-04.
const PROFILE: &str = "tag:ietf.org,2026:rats/ear#04";
/// The affirming value of AR4SI claims: 2.
const AFFIRMING: i8 = 2;
/// Maximum number of devices in one token.
pub const SUBMODULES_MAX: usize = 100;
/// The JOSE header of every token.
const HEADER: &str = r#"{"typ":"JWT","alg":"ES256"}"#;
const PEM_LABEL: &str = "PRIVATE KEY";

/// The reason why no result is signed.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The text contains no usable key.
    #[error("cannot read the signing key: no P-256 private key in PEM (PKCS #8): {0}")]
    InvalidKey(String),
    /// Signing failed.
    #[error("cannot sign an attestation result: {0}")]
    SigningFailed(String),
}

/// Signs attestation results with the controller's key.
pub struct Signer {
    key_pair: EcdsaKeyPair,
    public: Vec<u8>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer(..)")
    }
}

/// One device's result, as contained in an EAR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceResult {
    /// The appraisal.
    pub appraisal: Appraisal,
    /// How the device's key is protected.
    pub protection: Protection,
    /// The device's group.
    pub group: String,
    /// Whether the last appraised round is too old, so nothing is affirmed.
    pub is_stale: bool,
}

impl Signer {
    /// Generates a key, as PEM.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn generate_pem() -> Result<Zeroizing<String>, ResultsError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|error| ResultsError::InvalidKey(error.to_string()))?;
        let pem = pem::Pem::new(PEM_LABEL, document.as_ref());
        Ok(Zeroizing::new(pem::encode(&pem)))
    }

    /// Reads a key from PEM.
    ///
    /// # Errors
    /// The text contains no usable key.
    pub fn from_pem(text: &str) -> Result<Self, ResultsError> {
        let refuse = |reason: &dyn ToString| ResultsError::InvalidKey(reason.to_string());
        let parsed = pem::parse(text).map_err(|error| refuse(&error))?;
        if parsed.tag() != PEM_LABEL {
            return Err(refuse(&format!("PEM block is a {}", parsed.tag())));
        }
        let pkcs8 = Zeroizing::new(parsed.into_contents());
        let key_pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8)
            .map_err(|error| refuse(&error))?;
        let public: EcPublicKeyUncompressedBin<'_> = key_pair
            .public_key()
            .as_be_bytes()
            .map_err(|error| refuse(&error))?;
        Ok(Self {
            public: public.as_ref().to_vec(),
            key_pair,
        })
    }

    /// Returns the public key as a JWK (RFC 7517). A recipient verifies results with this key.
    #[must_use]
    pub fn public_jwk(&self) -> String {
        // 0x04 | x[32] | y[32]
        let coordinate = |start: usize| {
            let bytes = self.public.get(start..start + 32).unwrap_or_default();
            BASE64_URL_SAFE_NO_PAD.encode(bytes)
        };
        let (x, y) = (coordinate(1), coordinate(33));
        format!(r#"{{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","x":"{x}","y":"{y}"}}"#)
    }

    /// Returns one token for the first [`SUBMODULES_MAX`] of these devices. `issued_s` and `expires_s`, the end of the
    /// token's validity, are in seconds since 1970-01-01 UTC.
    ///
    /// # Errors
    /// Signing failed.
    pub fn sign(
        &self,
        device_results: &[DeviceResult],
        issued_s: u64,
        expires_s: u64,
    ) -> Result<String, ResultsError> {
        let submods = device_results.iter().take(SUBMODULES_MAX).map(|device_result| {
            (
                device_result.appraisal.device.to_string(),
                Submodule::from_result(device_result),
            )
        });
        let claims = Claims {
            eat_profile: PROFILE,
            iat: issued_s,
            exp: expires_s,
            ear_verifier_id: VerifierId {
                developer: env!("CARGO_PKG_REPOSITORY"),
                build: concat!("linewarden ", env!("CARGO_PKG_VERSION")),
            },
            submods: submods.collect(),
        };
        self.sign_claims(&claims)
    }

    /// Returns one token over the claims-set of an EAR, such as the appraisal of a data plane's evidence.
    ///
    /// # Errors
    /// Signing failed.
    pub fn sign_claims(&self, claims: &impl Serialize) -> Result<String, ResultsError> {
        let refuse = |reason: &dyn ToString| ResultsError::SigningFailed(reason.to_string());
        let claims = serde_json::to_vec(claims).map_err(|error| refuse(&error))?;
        let mut token = BASE64_URL_SAFE_NO_PAD.encode(HEADER);
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = self
            .key_pair
            .sign(&SystemRandom::new(), token.as_bytes())
            .map_err(|error| refuse(&error))?;
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}

/// The claims-set of an EAR, with the JSON names of draft-ietf-rats-ear-04.
#[derive(Serialize)]
struct Claims<'a> {
    eat_profile: &'a str,
    iat: u64,
    exp: u64,
    ear_verifier_id: VerifierId<'a>,
    submods: BTreeMap<String, Submodule<'a>>,
}

#[derive(Serialize)]
struct VerifierId<'a> {
    developer: &'a str,
    build: &'a str,
}

/// The appraisal of one device.
#[derive(Serialize)]
struct Submodule<'a> {
    ear_status: &'a str,
    /// AR4SI claims; claims without a value are omitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ear_trustworthiness_vector: BTreeMap<&'a str, i8>,
    ear_appraisal_policy_ids: [String; 1],
    ear_verifier_claims: VerifierClaims<'a>,
}

/// Claims of the verifier.
#[derive(Serialize)]
struct VerifierClaims<'a> {
    state: &'a str,
    since: u64,
    gateway: u32,
    round: u32,
    key: &'a str,
    /// The reference value that the device has proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'a str>,
}

impl<'a> Submodule<'a> {
    fn from_result(device_result: &'a DeviceResult) -> Self {
        let DeviceResult {
            appraisal,
            protection,
            group,
            is_stale,
        } = device_result;
        let is_affirmed = appraisal.state == AttestationState::Ok && !is_stale;
        let has_proven =
            matches!(appraisal.state, AttestationState::Ok | AttestationState::Late) && !is_stale;
        let is_tpm = *protection == Protection::Tpm;
        let claims = ["instance-identity", "configuration", "executables", "file-system"];
        let hardware = is_tpm.then_some("hardware");
        let affirmed = claims.into_iter().chain(hardware).filter(|_| is_affirmed);
        Self {
            ear_status: match appraisal.state {
                _ if *is_stale => "none",
                AttestationState::Ok => "affirming",
                // A device that has not sent its first proof yet does not cause a warning.
                AttestationState::Unproven => "none",
                AttestationState::Late | AttestationState::Missed => "warning",
                AttestationState::Quarantined => "contraindicated",
            },
            ear_trustworthiness_vector: affirmed.map(|claim| (claim, AFFIRMING)).collect(),
            ear_appraisal_policy_ids: [format!("linewarden:group:{group}")],
            ear_verifier_claims: VerifierClaims {
                // A stale state must not look like an accepted proof.
                state: if *is_stale {
                    "stale"
                } else {
                    appraisal.state.name()
                },
                since: appraisal.since_s,
                gateway: appraisal.gateway.0,
                round: appraisal.since_round,
                key: if is_tpm { "tpm" } else { "software" },
                reference: has_proven.then_some(match appraisal.configuration {
                    Configuration::Current => "base",
                    Configuration::Alternate => "roll-out",
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
    use linewarden_protocol::ids::{DeviceId, GatewayId};

    use super::*;

    fn device_result(state: AttestationState, is_stale: bool) -> DeviceResult {
        DeviceResult {
            appraisal: Appraisal {
                device: DeviceId(0xd1),
                gateway: GatewayId(3),
                address: None,
                state,
                since_s: 1_790_000_000,
                since_round: 7,
                configuration: Configuration::Current,
                missed_rounds: Vec::new(),
                rounds_total: 9,
            },
            protection: Protection::Tpm,
            group: "pumps".to_owned(),
            is_stale,
        }
    }

    fn signer() -> Signer {
        Signer::from_pem(&Signer::generate_pem().unwrap()).unwrap()
    }

    /// Returns the claims of a token that verifies with the public key alone.
    fn read(jwk: &str, token: &str) -> Option<serde_json::Value> {
        let jwk: serde_json::Value = serde_json::from_str(jwk).unwrap();
        let bytes = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).ok();
        let mut point = vec![4];
        point.extend(bytes(jwk["x"].as_str().unwrap()).unwrap());
        point.extend(bytes(jwk["y"].as_str().unwrap()).unwrap());
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        let (signed, signature) = token.rsplit_once('.')?;
        key.verify(signed.as_bytes(), &bytes(signature)?).ok()?;
        let (header, claims) = signed.split_once('.')?;
        let header: serde_json::Value = serde_json::from_slice(&bytes(header)?).ok()?;
        assert_eq!(
            (header["alg"].as_str(), header["typ"].as_str()),
            (Some("ES256"), Some("JWT"))
        );
        serde_json::from_slice(&bytes(claims)?).ok()
    }

    /// Returns the status of the one device in a result, its state, and whether a claim affirms it.
    fn status(signer: &Signer, state: AttestationState, is_stale: bool) -> (String, String, bool) {
        let device_results = [device_result(state, is_stale)];
        let token = signer
            .sign(&device_results, 1_790_000_100, 1_790_000_200)
            .unwrap();
        let claims = read(&signer.public_jwk(), &token).unwrap();
        assert_eq!(claims["exp"], 1_790_000_200);
        let device = &claims["submods"]["00000000000000d1"];
        let verifier_claims = &device["ear_verifier_claims"];
        let claims = [
            &device["ear_trustworthiness_vector"],
            &verifier_claims["reference"],
        ];
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        (
            text(&device["ear_status"]),
            text(&verifier_claims["state"]),
            claims.iter().any(|claim| !claim.is_null()),
        )
    }

    #[test]
    fn the_claims_are_those_of_the_draft() {
        let signer = signer();
        let token = signer
            .sign(&[device_result(AttestationState::Ok, false)], 100, 200)
            .unwrap();
        let claims = read(&signer.public_jwk(), &token).unwrap();
        let expected = serde_json::json!({
            "eat_profile": "tag:ietf.org,2026:rats/ear#04",
            "iat": 100,
            "exp": 200,
            "ear_verifier_id": {
                "developer": env!("CARGO_PKG_REPOSITORY"),
                "build": concat!("linewarden ", env!("CARGO_PKG_VERSION")),
            },
            "submods": {"00000000000000d1": {
                "ear_status": "affirming",
                "ear_trustworthiness_vector": {
                    "instance-identity": 2, "configuration": 2, "executables": 2, "file-system": 2, "hardware": 2,
                },
                "ear_appraisal_policy_ids": ["linewarden:group:pumps"],
                "ear_verifier_claims": {
                    "state": "ok", "since": 1_790_000_000, "gateway": 3, "round": 7, "key": "tpm", "reference": "base",
                },
            }},
        });
        assert_eq!(claims, expected);
    }

    #[test]
    fn only_a_fresh_proof_is_affirmed() {
        let signer = signer();
        for (state, is_stale, expected) in [
            (AttestationState::Ok, false, ("affirming", "ok", true)),
            (AttestationState::Ok, true, ("none", "stale", false)),
            (AttestationState::Missed, false, ("warning", "missed", false)),
            (AttestationState::Unproven, false, ("none", "unproven", false)),
            (
                AttestationState::Quarantined,
                false,
                ("contraindicated", "quarantined", false),
            ),
        ] {
            let (status, state_name, is_claimed) = status(&signer, state, is_stale);
            assert_eq!((status.as_str(), state_name.as_str(), is_claimed), expected);
        }
    }

    #[test]
    fn a_changed_token_or_another_key_does_not_verify() {
        let signer = signer();
        let token = signer
            .sign(&[device_result(AttestationState::Ok, false)], 1, u64::MAX)
            .unwrap();
        let other_signer = self::signer();
        let verifies = |signer: &Signer, token: &str| read(&signer.public_jwk(), token).is_some();
        assert!(verifies(&signer, &token));
        assert!(!verifies(&other_signer, &token));
        let position = token.find('.').unwrap() + 10;
        let mut altered = token.into_bytes();
        altered[position] = if altered[position] == b'A' { b'B' } else { b'A' };
        assert!(!verifies(&signer, &String::from_utf8(altered).unwrap()));
    }

    /// The claims are those of the appraisal; the test checks that they are encoded unchanged.
    #[test]
    fn an_appraisal_of_a_data_plane_becomes_an_attestation_result() {
        use linewarden_evidence::appraisal::{Reference, appraise};
        use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
        use linewarden_evidence::state::{MeasuredState, program_digest};
        use linewarden_evidence::statement::{DataPlaneKind, Nonce, Statement, verify};
        use linewarden_evidence::{BootCount, SwitchId};

        let mut measured = MeasuredState::new(SwitchId(7), BootCount(1), program_digest(b"program"));
        let statement = Statement {
            kind: DataPlaneKind::Xdp,
            snapshot: measured.snapshot(),
            objects: measured.objects(),
            exclusions: Vec::new(),
            software_version: "1".to_owned(),
        };
        let mut key = Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap();
        let signed = statement.sign(Nonce([1; 32]), &mut key).unwrap();
        let evidence = verify(&signed, &key.public_key(), Nonce([1; 32])).unwrap();
        let reference = Reference::from_statement("gateways", &evidence, None, |_| false);
        let attestation_result = appraise(&evidence, &reference, None).unwrap().ear(100, 200);
        let signer = signer();
        let claims = read(
            &signer.public_jwk(),
            &signer.sign_claims(&attestation_result).unwrap(),
        )
        .unwrap();
        assert_eq!(claims, serde_json::to_value(&attestation_result).unwrap());
        assert_eq!(
            claims["submods"]["0000000000000007/program"]["ear_status"],
            "affirming"
        );
    }

    #[test]
    fn text_without_a_key_is_rejected() {
        for text in [
            "",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "-----BEGIN X-----\n-----END X-----\n",
        ] {
            assert!(
                matches!(Signer::from_pem(text), Err(ResultsError::InvalidKey(_))),
                "{text}"
            );
        }
    }
}
