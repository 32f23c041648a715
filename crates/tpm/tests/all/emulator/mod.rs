//! Enrollments, quotes and keys with a software TPM 2.0, and the inputs that must be refused.

mod enrollment;
mod killed;
mod proxy;
mod refused;
mod signing;
#[path = "../../emulator/swtpm.rs"]
mod swtpm;
mod tools;

use std::collections::BTreeMap;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use linewarden_tpm::Protection;
use linewarden_tpm::device::{BoundKey, EndorsementKind, KeyBlobs, SignerKind, Tpm};
use linewarden_tpm::endorsement::EndorsementTrust;
use linewarden_tpm::enroll::{
    self, EnrolledDevice, Enrollment, Identity, KeyOffer, OfferResponse, Version, from_json,
};
use linewarden_tpm::evidence::{Evidence, EvidenceQuote};
use linewarden_tpm::policy::PcrPolicy;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A time within the validity of the emulator's certificates, which begins at their creation.
const NOW_S: i64 = 4_000_000_000;
const BANK: HashAlgorithm = HashAlgorithm::Sha256;

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// Skips the test if the emulator or one of its tools is not installed.
fn require_emulator() {
    if let Some(reason) = swtpm::missing_tool() {
        linewarden_harness::skip!("{reason}");
    }
}

/// Seven PCRs of the firmware, and PCR 16, which any process may extend. Eight PCRs are the maximum of tpm2_policypcr.
fn selection() -> PcrSelection {
    "0-6,16".parse().unwrap()
}

/// Serializes and deserializes a message.
fn round_trip<M: Serialize + DeserializeOwned>(message: &M) -> M {
    from_json(&serde_json::to_vec(message).unwrap()).unwrap()
}

/// Starts an enrollment whose key is bound to the current PCRs; returns the identity, the offer and the enrollment.
fn make_offer(
    tpm: &mut Tpm,
    keys: &KeyBlobs,
    trust: &EndorsementTrust,
    seed: u64,
) -> (Identity, KeyOffer, Enrollment) {
    let identity = round_trip(&tpm.identity(keys, BANK, selection(), None).unwrap());
    let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
    let (offer, enrollment) = enroll::offer(&identity, trust, policy, NOW_S, &mut rng(seed)).unwrap();
    (identity, round_trip(&offer), round_trip(&enrollment))
}

/// Runs a complete enrollment, stores the new key in `keys` and returns the enrolled device.
fn enroll_device(tpm: &mut Tpm, keys: &mut KeyBlobs, trust: &EndorsementTrust, seed: u64) -> EnrolledDevice {
    let (_, offer, mut enrollment) = make_offer(tpm, keys, trust, seed);
    let (key, response): (BoundKey, OfferResponse) = tpm.accept(keys, &offer).unwrap();
    keys.key = Some(round_trip(&key));
    enrollment.finish(&round_trip(&response), NOW_S + 1).unwrap()
}

fn create_keys(tpm: &mut Tpm, kind: EndorsementKind) -> KeyBlobs {
    tpm.create_keys(kind, SignerKind::default()).unwrap()
}

/// Returns evidence with the device's quote of these PCRs over a nonce, and the PCRs' values.
fn take_quote(
    tpm: &mut Tpm,
    keys: &KeyBlobs,
    selection: PcrSelection,
    nonce: &[u8; 32],
) -> (Evidence, PcrValues) {
    let quoted = tpm.quote(keys, nonce, BANK, selection).unwrap();
    let configuration = Configuration::new(quoted.values.clone(), BTreeMap::new()).unwrap();
    let evidence = Evidence {
        version: Version,
        period: 1,
        configuration: configuration.encode(),
        event_log: None,
        quote: Some(EvidenceQuote {
            quote: quoted.attest,
            signature: quoted.signature,
        }),
        protection: Protection::Tpm,
    };
    (evidence, quoted.values)
}
