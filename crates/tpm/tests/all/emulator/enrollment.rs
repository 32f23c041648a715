//! Enrollments, key uses and quotes that must succeed.

use linewarden_tpm::device::{EndorsementKind, KeyBlobs, SignerKind, TpmKey};
use linewarden_tpm::endorsement::{EkHash, Endorsement, EndorsementTrust};
use linewarden_tpm::enroll::EnrolledDevice;
use linewarden_tpm::public::{Kind, Public};
use linewarden_tpm::template::EndorsementKey;
use linewarden_tpm::{AttestationKey, Protection, SoftwareKey};

use crate::emulator::swtpm::{Emulator, TpmManufacturer};
use crate::emulator::{
    BANK, create_keys, enroll_device, require_emulator, round_trip, selection, take_quote,
};

/// Loads the stored key like an agent at its start, and compares its HMACs with those of the enrolled key.
fn assert_key_is_usable(emulator: &Emulator, keys: &KeyBlobs, device: &EnrolledDevice) {
    let keys: KeyBlobs = round_trip(keys);
    let mut key = TpmKey::load(emulator.open(), keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    assert_eq!(key.protection(), Protection::Tpm);
    let mut software = SoftwareKey::new(device.key.clone());
    for message in [&b"lap1 attest"[..], b"", &[7; 1_024]] {
        assert_eq!(key.hmac(message).unwrap(), software.hmac(message).unwrap());
    }
    assert_eq!(key.hmac(&[7; 1_025]), software.hmac(&[7; 1_025]));
    assert_eq!(software.protection(), Protection::Software);
}

#[test]
fn a_device_with_an_rsa_endorsement_key_is_enrolled_and_uses_its_key() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let mut emulator = Emulator::made_by(&manufacturer);
    for (seed, signer) in [
        SignerKind::EcdsaP256,
        SignerKind::Rsassa2048,
        SignerKind::Rsapss2048,
    ]
    .into_iter()
    .enumerate()
    {
        let mut tpm = emulator.open();
        let mut keys = tpm.create_keys(EndorsementKind::Rsa2048, signer).unwrap();
        let device = enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), seed as u64);
        drop(tpm);
        let Endorsement::Certificate { issuers, .. } = &device.binding.endorsement else {
            panic!("{:?}", device.binding.endorsement);
        };
        assert_eq!(
            issuers[..],
            ["CN=swtpm-localca", "CN=swtpm-localca-rootca"],
            "{signer:?}"
        );
        assert_key_is_usable(&emulator, &keys, &device);
        if signer == SignerKind::EcdsaP256 {
            // A restart of the machine with the same measurements.
            emulator.kill();
            emulator.start();
            assert_key_is_usable(&emulator, &keys, &device);
        }
    }
}

#[test]
fn a_device_with_an_ecc_endorsement_key_is_enrolled_and_uses_its_key() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::EccP256);
    assert!(
        tpm.endorsement_certificates(EndorsementKind::EccP256)
            .unwrap()
            .is_empty()
    );
    let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
    drop(tpm);
    let Kind::EccP256 { x, y, .. } = Public::from_sized(&identity.endorsement_key).unwrap().kind else {
        panic!("the key is not on P-256");
    };
    let certificate = manufacturer.certify_p256(&x, &y);
    // Some manufacturers pad the index.
    emulator.store_p256_certificate(&[&certificate[..], &[0; 30]].concat());
    let mut tpm = emulator.open();
    assert_eq!(
        tpm.endorsement_certificates(EndorsementKind::EccP256).unwrap(),
        [certificate]
    );
    let device = enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), 1);
    drop(tpm);
    assert_key_is_usable(&emulator, &keys, &device);
}

#[test]
fn a_pinned_key_needs_no_certificate_and_is_reported_as_pinned() {
    require_emulator();
    let emulator = Emulator::made_by(&TpmManufacturer::new());
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::EccP256);
    let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
    let key = EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap();
    let mut trust = EndorsementTrust::new();
    trust.pin(EkHash::of_key(&key));
    let device = enroll_device(&mut tpm, &mut keys, &trust, 1);
    assert_eq!(device.binding.endorsement, Endorsement::Pinned);
    assert_eq!(device.binding.endorsement_key, EkHash::of_key(&key));
}

#[test]
fn quotes_verify_after_an_enrollment() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    let device = enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), 1);
    drop(tpm);
    emulator.extend_pcr_16();
    let all_pcrs = "0-23".parse().unwrap();
    let (evidence, values) = take_quote(&mut emulator.open(), &keys, all_pcrs, &[2; 32]);
    let checked = round_trip(&evidence)
        .check(Some(&device.binding), &[2; 32])
        .unwrap();
    let quote = checked.verified_quote.unwrap();
    assert_eq!(values.selection(), all_pcrs);
    let enrolled_pcrs = &device.binding.pcrs.0;
    let changed: Vec<_> = enrolled_pcrs
        .iter()
        .filter(|(index, value)| values.get(*index) != Some(*value))
        .map(|(index, _)| index.get())
        .collect();
    assert_eq!(changed, [16]);
    assert_eq!(quote.firmware_version, device.binding.quote.firmware_version);
    assert!(quote.clock.clock_ms >= device.binding.quote.clock.clock_ms);
}
