//! Operations that the TPM, the device or the controller must refuse.

use std::fs;

use linewarden_tpm::device::{
    AcceptError, BoundKey, Cause, EndorsementKind, KeyBlobs, Tpm, TpmError, TpmKey,
};
use linewarden_tpm::endorsement::{EkHash, EndorsementError, EndorsementTrust};
use linewarden_tpm::enroll::{
    self, EnrollError, Enrollment, EnrollmentId, Identity, KeyOffer, OfferResponse,
};
use linewarden_tpm::evidence::EvidenceError;
use linewarden_tpm::policy::PcrPolicy;
use linewarden_tpm::public::{Attributes, Kind, Public};
use linewarden_tpm::quote::{QuoteError, verify_quote};
use linewarden_tpm::signature::SignatureError;
use linewarden_tpm::template::{AttestationSigner, EndorsementKey, TemplateError};
use linewarden_tpm::{AttestationKey as _, KeyError, Retry};
use tempfile::TempDir;

use crate::emulator::swtpm::{Emulator, TpmManufacturer};
use crate::emulator::{
    BANK, NOW_S, create_keys, enroll_device, make_offer, require_emulator, rng, round_trip, selection,
    take_quote,
};

/// Two TPMs of one manufacturer, each with keys.
struct TwoTpms {
    manufacturer: TpmManufacturer,
    emulators: [Emulator; 2],
    keys: [KeyBlobs; 2],
}

impl TwoTpms {
    fn new() -> Self {
        let manufacturer = TpmManufacturer::new();
        let emulators = [Emulator::made_by(&manufacturer), Emulator::made_by(&manufacturer)];
        let keys = [0, 1].map(|tpm: usize| create_keys(&mut emulators[tpm].open(), EndorsementKind::Rsa2048));
        Self {
            manufacturer,
            emulators,
            keys,
        }
    }

    fn open(&self, number: usize) -> Tpm {
        self.emulators[number].open()
    }

    fn make_offer(&self, number: usize, seed: u64) -> (Identity, KeyOffer, Enrollment) {
        make_offer(
            &mut self.open(number),
            &self.keys[number],
            &self.manufacturer.trust(),
            seed,
        )
    }
}

fn expect_tpm_refusal<T: std::fmt::Debug>(result: Result<T, AcceptError>, command: &str) -> TpmError {
    match result {
        Err(AcceptError::Tpm(error)) if error.command == command => error,
        other => panic!("not refused by {command}: {other:?}"),
    }
}

#[test]
fn another_tpm_cannot_open_the_credential_or_import_the_key() {
    require_emulator();
    let tpms = TwoTpms::new();
    let (_, offer_for_first, _) = tpms.make_offer(0, 1);
    let (_, offer_for_second, _) = tpms.make_offer(1, 2);
    expect_tpm_refusal(
        tpms.open(1).accept(&tpms.keys[1], &offer_for_first),
        "TPM2_ActivateCredential",
    );
    let with_key_of_first_offer = KeyOffer {
        key: offer_for_first.key.clone(),
        key_duplicate: offer_for_first.key_duplicate.clone(),
        key_seed: offer_for_first.key_seed.clone(),
        ..offer_for_second.clone()
    };
    expect_tpm_refusal(
        tpms.open(1).accept(&tpms.keys[1], &with_key_of_first_offer),
        "TPM2_Import",
    );
    // The blob of an imported key is useless for another TPM.
    let (key, _) = tpms.open(1).accept(&tpms.keys[1], &offer_for_second).unwrap();
    let error = TpmKey::load(tpms.open(0), EndorsementKind::Rsa2048, &key).unwrap_err();
    assert_eq!((error.command, error.retry()), ("TPM2_Load", Retry::Never));
    // A blob with one wrong bit is useless for its own TPM, too.
    for index in [0, 40, key.blob.private.len() - 1] {
        let mut damaged = key.clone();
        damaged.blob.private[index] ^= 1;
        let error = TpmKey::load(tpms.open(1), EndorsementKind::Rsa2048, &damaged).unwrap_err();
        assert_eq!(
            (error.command, error.retry()),
            ("TPM2_Load", Retry::Never),
            "byte {index}"
        );
    }
    TpmKey::load(tpms.open(1), EndorsementKind::Rsa2048, &key).unwrap();
}

#[test]
fn keys_of_two_tpms_are_not_accepted_as_keys_of_one_tpm() {
    require_emulator();
    let tpms = TwoTpms::new();
    let (first, ..) = tpms.make_offer(0, 1);
    let (second, ..) = tpms.make_offer(1, 2);
    let mixed = Identity {
        attestation_key: second.attestation_key.clone(),
        ..first
    };
    let policy = PcrPolicy::new(std::slice::from_ref(&mixed.pcrs.0)).unwrap();
    let (offer, mut enrollment) =
        enroll::offer(&mixed, &tpms.manufacturer.trust(), policy, NOW_S, &mut rng(3)).unwrap();
    expect_tpm_refusal(
        tpms.open(0).accept(&tpms.keys[0], &offer),
        "TPM2_ActivateCredential",
    );
    // Two TPMs cannot share an enrollment: the TPM with the quote cannot activate the credential of the other TPM.
    let quoted = tpms
        .open(1)
        .quote(&tpms.keys[1], &offer.nonce, BANK, selection())
        .unwrap();
    let response = OfferResponse {
        version: enroll::Version,
        enrollment_id: offer.enrollment_id,
        activation: [0; 32],
        quote: quoted.attest,
        signature: quoted.signature,
        key_proof: [0; 32],
    };
    assert_eq!(
        enrollment.finish(&response, NOW_S).unwrap_err(),
        EnrollError::CredentialNotActivated
    );
}

#[test]
fn the_tpm_uses_the_key_only_in_the_states_that_it_is_bound_to() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let mut emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    // The key is bound to the states before and after the extension of PCR 16; the enrollment is in the second state.
    let all_pcrs = "0-23".parse().unwrap();
    let values_before = tpm.pcrs(BANK, all_pcrs).unwrap();
    drop(tpm);
    emulator.extend_pcr_16();
    let mut tpm = emulator.open();
    let identity = tpm.identity(&keys, BANK, all_pcrs, None).unwrap();
    let policy = PcrPolicy::new(&[values_before, identity.pcrs.0.clone()]).unwrap();
    let (offer, mut enrollment) =
        enroll::offer(&identity, &manufacturer.trust(), policy, NOW_S, &mut rng(1)).unwrap();
    let (bound, response) = tpm.accept(&keys, &offer).unwrap();
    drop(tpm);
    let device = enrollment.finish(&response, NOW_S).unwrap();
    let hmac = |emulator: &Emulator| {
        TpmKey::load(emulator.open(), keys.endorsement, &bound)
            .unwrap()
            .hmac(b"m")
    };
    assert_eq!(hmac(&emulator), Ok(device.key.hmac(b"m")));
    emulator.extend_pcr_16();
    assert!(matches!(hmac(&emulator), Err(KeyError::BootDiffers(_))));
    emulator.kill();
    emulator.start();
    assert_eq!(hmac(&emulator), Ok(device.key.hmac(b"m")));
}

#[test]
fn a_key_for_one_state_is_refused_in_another_even_while_it_is_loaded() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    let (_, offer, _) = make_offer(&mut tpm, &keys, &manufacturer.trust(), 1);
    enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), 2);
    let mut key = TpmKey::load(tpm, keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    key.hmac(b"m").unwrap();
    emulator.extend_pcr_16();
    let Err(KeyError::BootDiffers(message)) = key.hmac(b"m") else {
        panic!("the key was used in another state");
    };
    assert!(message.starts_with("TPM2_HMAC"), "{message}");
    // An offer made before the change is not accepted.
    let error = expect_tpm_refusal(key.tpm().accept(&keys, &offer), "TPM2_HMAC");
    assert!(matches!(error.cause, Cause::BootDiffers { .. }), "{error}");
}

#[test]
fn an_offered_key_that_could_be_used_otherwise_is_not_imported() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let keys = create_keys(&mut tpm, EndorsementKind::EccP256);
    let pinned = {
        let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
        let mut trust = EndorsementTrust::new();
        let key = Public::from_sized(&identity.endorsement_key).unwrap();
        let key = linewarden_tpm::template::EndorsementKey::new(key).unwrap();
        trust.pin(linewarden_tpm::endorsement::EkHash::of_key(&key));
        trust
    };
    let (_, offer, _) = make_offer(&mut tpm, &keys, &pinned, 1);
    let changed_offer = |change: &dyn Fn(&mut Public)| {
        let mut key = Public::from_sized(&offer.key).unwrap();
        change(&mut key);
        KeyOffer {
            key: key.to_sized(),
            ..offer.clone()
        }
    };
    for wrong_offer in [
        changed_offer(&|key| key.attributes = key.attributes.union(Attributes::USER_WITH_AUTH)),
        changed_offer(&|key| key.attributes = key.attributes.union(Attributes::DECRYPT)),
        changed_offer(&|key| key.auth_policy = vec![0; 32]),
        changed_offer(&|key| key.auth_policy.clear()),
        changed_offer(&|key| {
            if let Kind::KeyedHash { hmac, .. } = &mut key.kind {
                *hmac = None;
            }
        }),
    ] {
        assert_eq!(tpm.accept(&keys, &wrong_offer), Err(AcceptError::WrongKeyUse));
    }
    let truncated = KeyOffer {
        key: offer.key[..20].to_vec(),
        ..offer.clone()
    };
    assert!(matches!(
        tpm.accept(&keys, &truncated),
        Err(AcceptError::InvalidKey(_))
    ));
}

#[test]
fn wrong_quotes_are_refused_with_their_reasons() {
    require_emulator();
    let tpms = TwoTpms::new();
    let mut tpm = tpms.open(0);
    let keys = &tpms.keys[0];
    let nonce = [7; 32];
    let quoted = tpm.quote(keys, &nonce, BANK, selection()).unwrap();
    let own_signer = signer(keys);
    let verify = |signer: &AttestationSigner, attest: &[u8], signature: &[u8], nonce: &[u8; 32]| {
        verify_quote(
            signer,
            attest,
            signature,
            nonce,
            (BANK, selection()),
            &quoted.values,
        )
    };
    verify(&own_signer, &quoted.attest, &quoted.signature, &nonce).unwrap();
    assert_eq!(
        verify(&own_signer, &quoted.attest, &quoted.signature, &[8; 32]),
        Err(QuoteError::NonceMismatch)
    );
    assert_eq!(
        verify(&signer(&tpms.keys[1]), &quoted.attest, &quoted.signature, &nonce),
        Err(QuoteError::Signature(SignatureError::Mismatch))
    );
    for index in 0..quoted.attest.len() {
        let mut changed = quoted.attest.clone();
        changed[index] ^= 1;
        assert!(
            verify(&own_signer, &changed, &quoted.signature, &nonce).is_err(),
            "byte {index}"
        );
    }
    for index in 0..quoted.signature.len() {
        let mut changed = quoted.signature.clone();
        changed[index] ^= 1;
        assert!(
            verify(&own_signer, &quoted.attest, &changed, &nonce).is_err(),
            "byte {index}"
        );
    }
    let quote_of_other_pcrs = tpm.quote(keys, &nonce, BANK, "0-7".parse().unwrap()).unwrap();
    assert_eq!(
        verify(
            &own_signer,
            &quote_of_other_pcrs.attest,
            &quote_of_other_pcrs.signature,
            &nonce
        ),
        Err(QuoteError::SelectionMismatch {
            bank: BANK,
            selection: selection()
        })
    );
    let request = (BANK, selection());
    assert!(matches!(
        verify_quote(
            &own_signer,
            &quoted.attest,
            &quoted.signature,
            &nonce,
            request,
            &quote_of_other_pcrs.values
        ),
        Err(QuoteError::ValuesSelectionMismatch { .. })
    ));
    drop(tpm);
    tpms.emulators[0].extend_pcr_16();
    let changed = tpms.open(0).quote(keys, &nonce, BANK, selection()).unwrap();
    assert_eq!(
        verify(&own_signer, &changed.attest, &changed.signature, &nonce),
        Err(QuoteError::DigestMismatch)
    );
}

fn signer(keys: &KeyBlobs) -> AttestationSigner {
    AttestationSigner::new(Public::from_sized(&keys.attestation_key.public).unwrap()).unwrap()
}

#[test]
fn an_untrusted_tpm_is_refused_with_the_reason() {
    require_emulator();
    let tpms = TwoTpms::new();
    let (identity, ..) = tpms.make_offer(0, 1);
    let (other_identity, ..) = tpms.make_offer(1, 2);
    let endorsement_error = |identity: &Identity, trust: &EndorsementTrust, now_s: i64| {
        let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
        match enroll::offer(identity, trust, policy, now_s, &mut rng(3)) {
            Err(EnrollError::UntrustedEndorsement { key, error }) => {
                let public = Public::from_sized(&identity.endorsement_key).unwrap();
                assert_eq!(key, EkHash::of_key(&EndorsementKey::new(public).unwrap()));
                error
            }
            other => panic!("{other:?}"),
        }
    };
    let trust = tpms.manufacturer.trust();
    let other_root = {
        let manufacturer = TpmManufacturer::new();
        Emulator::made_by(&manufacturer);
        manufacturer.trust()
    };
    // The other manufacturer's CA has the same name as the issuer but did not sign the certificate.
    assert!(matches!(
        endorsement_error(&identity, &other_root, NOW_S),
        EndorsementError::WrongUse { reason, .. } if reason.contains("signature")
    ));
    assert!(matches!(
        endorsement_error(&identity, &EndorsementTrust::new(), NOW_S),
        EndorsementError::UntrustedIssuer { .. }
    ));
    assert!(matches!(
        endorsement_error(&identity, &trust, 0),
        EndorsementError::OutsideValidity { now: 0, .. }
    ));
    let with_certificates = |certificates: Vec<Vec<u8>>| Identity {
        certificates,
        ..identity.clone()
    };
    assert!(matches!(
        endorsement_error(&with_certificates(Vec::new()), &trust, NOW_S),
        EndorsementError::NoEndorsement
    ));
    assert_eq!(
        endorsement_error(&with_certificates(other_identity.certificates), &trust, NOW_S),
        EndorsementError::KeyMismatch
    );
    let mut forged = identity.certificates.clone();
    *forged[0].last_mut().unwrap() ^= 1;
    assert!(matches!(
        endorsement_error(&with_certificates(forged), &trust, NOW_S),
        EndorsementError::WrongUse { .. }
    ));
}

#[test]
fn keys_of_the_wrong_kind_are_refused() {
    require_emulator();
    let tpms = TwoTpms::new();
    let (identity, ..) = tpms.make_offer(0, 1);
    let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
    let trust = tpms.manufacturer.trust();
    let refusal_of = |identity: &Identity| {
        enroll::offer(identity, &trust, policy.clone(), NOW_S, &mut rng(2)).unwrap_err()
    };
    let swapped = Identity {
        endorsement_key: identity.attestation_key.clone(),
        attestation_key: identity.endorsement_key.clone(),
        ..identity.clone()
    };
    assert!(matches!(
        refusal_of(&swapped),
        EnrollError::WrongKeyType(TemplateError::WrongAttributes { .. })
    ));
    let with_decryption_key = Identity {
        attestation_key: identity.endorsement_key.clone(),
        ..identity.clone()
    };
    assert!(matches!(
        refusal_of(&with_decryption_key),
        EnrollError::WrongKeyType(TemplateError::WrongAttributes { .. })
    ));
    let truncated = Identity {
        attestation_key: identity.attestation_key[..40].to_vec(),
        ..identity.clone()
    };
    assert!(matches!(
        refusal_of(&truncated),
        EnrollError::InvalidStructure { .. }
    ));
    let with_many_certificates = Identity {
        certificates: vec![identity.certificates[0].clone(); 7],
        ..identity.clone()
    };
    assert_eq!(
        refusal_of(&with_many_certificates),
        EnrollError::TooManyCertificates(7)
    );
    let mut with_other_state = identity.clone();
    with_other_state.pcrs.0 = tpms.open(0).pcrs(BANK, "0-7".parse().unwrap()).unwrap();
    assert_eq!(refusal_of(&with_other_state), EnrollError::StateNotAccepted);
}

#[test]
fn responses_that_are_late_repeated_mixed_up_or_wrong_are_refused() {
    require_emulator();
    let tpms = TwoTpms::new();
    let (_, offer, mut enrollment) = tpms.make_offer(0, 1);
    let (_, other_offer, _) = tpms.make_offer(0, 2);
    let (_, response) = tpms.open(0).accept(&tpms.keys[0], &offer).unwrap();
    let (_, other_response) = tpms.open(0).accept(&tpms.keys[0], &other_offer).unwrap();
    let mut refusal_of =
        |response: &OfferResponse, now_s: i64| enrollment.finish(response, now_s).unwrap_err();
    assert_eq!(refusal_of(&other_response, NOW_S), EnrollError::WrongEnrollment);
    assert_eq!(
        refusal_of(&response, NOW_S + 301),
        EnrollError::ResponseTooLate(301)
    );
    assert_eq!(refusal_of(&response, NOW_S - 1), EnrollError::ResponseTooLate(-1));
    let enrollment_id: EnrollmentId = response.enrollment_id;
    // Responses with proofs of the other enrollment: all proofs, the quote only, the key proof only.
    let with_other_activation = OfferResponse {
        enrollment_id,
        ..other_response.clone()
    };
    assert_eq!(
        refusal_of(&with_other_activation, NOW_S),
        EnrollError::CredentialNotActivated
    );
    let with_other_quote = OfferResponse {
        quote: other_response.quote.clone(),
        signature: other_response.signature.clone(),
        ..response.clone()
    };
    assert_eq!(
        refusal_of(&with_other_quote, NOW_S),
        EnrollError::InvalidQuote(QuoteError::NonceMismatch)
    );
    let with_other_key_proof = OfferResponse {
        key_proof: other_response.key_proof,
        ..response.clone()
    };
    assert_eq!(
        refusal_of(&with_other_key_proof, NOW_S),
        EnrollError::InvalidKeyProof
    );
    // The enrollment is still open, and the controller may have been restarted.
    let mut enrollment: Enrollment = round_trip(&enrollment);
    enrollment.finish(&response, NOW_S + 300).unwrap();
    let mut enrollment: Enrollment = round_trip(&enrollment);
    assert_eq!(
        enrollment.finish(&response, NOW_S).unwrap_err(),
        EnrollError::AlreadyFinished
    );
}

#[test]
fn repeated_quotes_and_quotes_of_a_cleared_tpm_are_refused() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    let mut device = enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), 1).binding;
    let (evidence, _) = take_quote(&mut tpm, &keys, selection(), &[2; 32]);
    assert_eq!(
        evidence.check(Some(&device), &[3; 32]).unwrap_err(),
        EvidenceError::InvalidQuote(QuoteError::NonceMismatch)
    );
    evidence.check(Some(&device), &[2; 32]).unwrap();
    // The binding now says that the TPM counted more resets at the enrollment than in the evidence.
    device.quote.clock.reset_count += 1;
    assert!(matches!(
        evidence.check(Some(&device), &[2; 32]),
        Err(EvidenceError::TpmCleared { .. })
    ));
}

/// Stores the key in files for tpm2-tools, loads the key with the tools, and returns the directory of the files.
fn load_with_tools(emulator: &Emulator, key: &BoundKey) -> TempDir {
    let dir = TempDir::new().unwrap();
    let private = [
        &u16::try_from(key.blob.private.len()).unwrap().to_be_bytes()[..],
        &key.blob.private,
    ]
    .concat();
    fs::write(dir.path().join("key.pub"), &key.blob.public).unwrap();
    fs::write(dir.path().join("key.priv"), private).unwrap();
    let tool = |command: &str| emulator.tool(dir.path(), &command.split(' ').collect::<Vec<_>>());
    tool("tpm2_createek -c ek.ctx -G rsa -u ek.pub");
    tool("tpm2_startauthsession --policy-session -S load.ctx");
    tool("tpm2_policysecret -S load.ctx -c e");
    tool("tpm2_load -C ek.ctx -P session:load.ctx -u key.pub -r key.priv -c key.ctx");
    tool("tpm2_flushcontext load.ctx");
    tool("tpm2_flushcontext -t");
    dir
}

#[test]
fn the_key_never_leaves_the_tpm() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    let device = enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), 1);
    drop(tpm);
    let key = keys.key.as_ref().unwrap();
    let secret = device.key.expose();
    assert!(!key.blob.private.windows(32).any(|bytes| bytes == secret));
    let dir = load_with_tools(&emulator, key);
    let tool = |command: &str| emulator.tool(dir.path(), &command.split(' ').collect::<Vec<_>>());
    let public = tool("tpm2_readpublic -c key.ctx -o read.pub -f tss");
    assert!(!public.contains(&hex::encode(secret)), "{public}");
    assert_eq!(fs::read(dir.path().join("read.pub")).unwrap(), key.blob.public);
    let pcrs = "tpm2_policypcr -S try.ctx -l sha256:0,1,2,3,4,5,6,16";
    let duplicate = "tpm2_policycommandcode -S try.ctx TPM2_CC_Duplicate";
    for policy in [
        &[pcrs][..],
        &[duplicate],
        &[pcrs, duplicate],
        &[duplicate, pcrs],
        &[],
    ] {
        tool("tpm2_startauthsession --policy-session -S try.ctx");
        for step in policy {
            tool(step);
        }
        let error_output = emulator.tool_fails(
            dir.path(),
            "tpm2_duplicate -C null -c key.ctx -G null -p session:try.ctx -r dup.priv -s dup.seed",
        );
        let reasons = ["policy check failed", "command Code", "commandCode"];
        assert!(
            reasons.iter().any(|reason| error_output.contains(reason)),
            "{policy:?}: {error_output}"
        );
        tool("tpm2_flushcontext try.ctx");
        tool("tpm2_flushcontext -t");
    }
    // A new password would make the key usable by the device's software. A password change needs the role ADMIN, which
    // requires the policy.
    let error_output = emulator.tool_fails(
        dir.path(),
        "tpm2_changeauth -C ek.ctx -c key.ctx -r changed.priv password",
    );
    assert!(
        error_output.contains("authorization handle is not correct"),
        "{error_output}"
    );
    tool("tpm2_flushcontext -t");
    // The key has no password: it cannot be duplicated without a session, either.
    emulator.tool_fails(
        dir.path(),
        "tpm2_duplicate -C null -c key.ctx -G null -r dup.priv -s dup.seed",
    );
    tool("tpm2_flushcontext -t");
    emulator.tool_fails(dir.path(), "tpm2_hmac -c key.ctx key.pub");
    tool("tpm2_flushcontext -t");
    assert!(!dir.path().join("dup.priv").exists());
    // A session with the PCR policy can use the key: only the policy prevented the other operations.
    tool("tpm2_startauthsession --policy-session -S use.ctx");
    tool("tpm2_policypcr -S use.ctx -l sha256:0,1,2,3,4,5,6,16");
    tool("tpm2_hmac -c key.ctx -p session:use.ctx -o mac key.pub");
    assert_eq!(
        fs::read(dir.path().join("mac")).unwrap(),
        device.key.hmac(&key.blob.public)
    );
}
