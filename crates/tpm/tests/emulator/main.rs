//! Enrolment, quotes and keys against a real TPM 2.0 in software, and everything that must be refused.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing
)]

mod enrolment;
mod killed;
mod proxy;
mod refused;
mod signing;
mod swtpm;
mod tools;

use std::collections::BTreeMap;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use linewarden_tpm::Protection;
use linewarden_tpm::device::{BoundKey, EndorsementKind, KeyBlobs, SignerKind, Tpm};
use linewarden_tpm::endorsement::Trust;
use linewarden_tpm::enrol::{self, Answer, Enrolled, Enrolment, Identity, Offer, Version, from_json};
use linewarden_tpm::evidence::{Evidence, EvidenceQuote};
use linewarden_tpm::policy::PcrPolicy;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// In the life of the emulator's certificates, which are valid from their making on.
const NOW_S: i64 = 4_000_000_000;
const BANK: HashAlgorithm = HashAlgorithm::Sha256;

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// PCRs of the firmware and one that a process may extend. Eight: more than that tpm2_policypcr does not take.
fn selection() -> PcrSelection {
    "0-6,16".parse().unwrap()
}

/// Over the wire and back.
fn sent<M: Serialize + DeserializeOwned>(message: &M) -> M {
    from_json(&serde_json::to_vec(message).unwrap()).unwrap()
}

/// The first half of an enrolment, up to the offer, bound to the PCRs as they are.
fn offered(tpm: &mut Tpm, keys: &KeyBlobs, trust: &Trust, seed: u64) -> (Identity, Offer, Enrolment) {
    let identity = sent(&tpm.identity(keys, BANK, selection(), None).unwrap());
    let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
    let (offer, enrolment) = enrol::offer(&identity, trust, policy, NOW_S, &mut rng(seed)).unwrap();
    (identity, sent(&offer), sent(&enrolment))
}

/// A whole enrolment.
fn enrolled(tpm: &mut Tpm, keys: &mut KeyBlobs, trust: &Trust, seed: u64) -> Enrolled {
    let (_, offer, mut enrolment) = offered(tpm, keys, trust, seed);
    let (key, answer): (BoundKey, Answer) = tpm.accept(keys, &offer).unwrap();
    keys.key = Some(sent(&key));
    enrolment.finish(&sent(&answer), NOW_S + 1).unwrap()
}

fn created(tpm: &mut Tpm, kind: EndorsementKind) -> KeyBlobs {
    tpm.create_keys(kind, SignerKind::default()).unwrap()
}

/// What the device sends of these PCRs, quoted over a nonce, and their values.
fn quoted(
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
