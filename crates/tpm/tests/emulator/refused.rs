//! What must be refused: by the TPM, by the device, by the controller.

use std::fs;

use linewarden_tpm::device::{
    AcceptError, BoundKey, Cause, EndorsementKind, KeyBlobs, Tpm, TpmError, TpmKey,
};
use linewarden_tpm::endorsement::{EkHash, EndorsementError, Trust};
use linewarden_tpm::enrol::{self, Answer, Conversation, EnrolError, Enrolment, Identity, Offer};
use linewarden_tpm::evidence::EvidenceError;
use linewarden_tpm::policy::PcrPolicy;
use linewarden_tpm::public::{Attributes, Kind, Public};
use linewarden_tpm::quote::{QuoteError, verify_quote};
use linewarden_tpm::signature::SignatureError;
use linewarden_tpm::template::{AttestationSigner, EndorsementKey, TemplateError};
use linewarden_tpm::{Again, AttestationKey as _, KeyError};
use tempfile::TempDir;

use crate::swtpm::{Emulator, Maker, installed};
use crate::{BANK, NOW_S, created, enrolled, offered, quoted, rng, selection, sent};

/// Two TPMs of one maker, each with keys.
struct Pair {
    maker: Maker,
    emulators: [Emulator; 2],
    keys: [KeyBlobs; 2],
}

impl Pair {
    fn new() -> Self {
        let maker = Maker::new();
        let emulators = [Emulator::made_by(&maker), Emulator::made_by(&maker)];
        let keys = [0, 1].map(|tpm: usize| created(&mut emulators[tpm].open(), EndorsementKind::Rsa2048));
        Self {
            maker,
            emulators,
            keys,
        }
    }

    fn open(&self, which: usize) -> Tpm {
        self.emulators[which].open()
    }

    fn offered(&self, which: usize, seed: u64) -> (Identity, Offer, Enrolment) {
        offered(
            &mut self.open(which),
            &self.keys[which],
            &self.maker.trust(),
            seed,
        )
    }
}

fn refused_by_tpm<T: std::fmt::Debug>(result: Result<T, AcceptError>, command: &str) -> TpmError {
    match result {
        Err(AcceptError::Tpm(error)) if error.command == command => error,
        other => panic!("not refused by {command}: {other:?}"),
    }
}

#[test]
fn another_tpm_cannot_open_the_credential_or_import_the_key() {
    if !installed() {
        return;
    }
    let pair = Pair::new();
    let (_, for_first, _) = pair.offered(0, 1);
    let (_, for_second, _) = pair.offered(1, 2);
    refused_by_tpm(
        pair.open(1).accept(&pair.keys[1], &for_first),
        "TPM2_ActivateCredential",
    );
    let with_key_of_first = Offer {
        key: for_first.key.clone(),
        key_duplicate: for_first.key_duplicate.clone(),
        key_seed: for_first.key_seed.clone(),
        ..for_second.clone()
    };
    refused_by_tpm(
        pair.open(1).accept(&pair.keys[1], &with_key_of_first),
        "TPM2_Import",
    );
    // The blob of a key that was imported is of no use to another TPM either.
    let (key, _) = pair.open(1).accept(&pair.keys[1], &for_second).unwrap();
    let error = TpmKey::load(pair.open(0), EndorsementKind::Rsa2048, &key).unwrap_err();
    assert_eq!((error.command, error.again()), ("TPM2_Load", Again::Never));
    // Nor, if one bit of the file is wrong, to its own.
    for at in [0, 40, key.blob.private.len() - 1] {
        let mut damaged = key.clone();
        damaged.blob.private[at] ^= 1;
        let error = TpmKey::load(pair.open(1), EndorsementKind::Rsa2048, &damaged).unwrap_err();
        assert_eq!(
            (error.command, error.again()),
            ("TPM2_Load", Again::Never),
            "byte {at}"
        );
    }
    TpmKey::load(pair.open(1), EndorsementKind::Rsa2048, &key).unwrap();
}

#[test]
fn keys_of_two_tpms_are_not_taken_for_one() {
    if !installed() {
        return;
    }
    let pair = Pair::new();
    let (first, ..) = pair.offered(0, 1);
    let (second, ..) = pair.offered(1, 2);
    let mixed = Identity {
        attestation_key: second.attestation_key.clone(),
        ..first
    };
    let policy = PcrPolicy::new(std::slice::from_ref(&mixed.pcrs.0)).unwrap();
    let (offer, mut enrolment) =
        enrol::offer(&mixed, &pair.maker.trust(), policy, NOW_S, &mut rng(3)).unwrap();
    refused_by_tpm(
        pair.open(0).accept(&pair.keys[0], &offer),
        "TPM2_ActivateCredential",
    );
    // Nor do the two help each other: one imports the key, the other quotes.
    let quoted = pair
        .open(1)
        .quote(&pair.keys[1], &offer.nonce, BANK, selection())
        .unwrap();
    let answer = Answer {
        version: enrol::Version,
        conversation: offer.conversation,
        activation: [0; 32],
        quote: quoted.attest,
        signature: quoted.signature,
        key_proof: [0; 32],
    };
    assert_eq!(
        enrolment.finish(&answer, NOW_S).unwrap_err(),
        EnrolError::Activation
    );
}

#[test]
fn the_tpm_uses_the_key_only_in_the_states_that_it_is_bound_to() {
    if !installed() {
        return;
    }
    let maker = Maker::new();
    let mut emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let keys = created(&mut tpm, EndorsementKind::Rsa2048);
    // The states before and after PCR 16 is extended; the TPM is in the second while it is enrolled.
    let all = "0-23".parse().unwrap();
    let before = tpm.pcrs(BANK, all).unwrap();
    drop(tpm);
    emulator.extend_pcr_16();
    let mut tpm = emulator.open();
    let identity = tpm.identity(&keys, BANK, all, None).unwrap();
    let policy = PcrPolicy::new(&[before, identity.pcrs.0.clone()]).unwrap();
    let (offer, mut enrolment) = enrol::offer(&identity, &maker.trust(), policy, NOW_S, &mut rng(1)).unwrap();
    let (bound, answer) = tpm.accept(&keys, &offer).unwrap();
    drop(tpm);
    let device = enrolment.finish(&answer, NOW_S).unwrap();
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
    if !installed() {
        return;
    }
    let maker = Maker::new();
    let emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let mut keys = created(&mut tpm, EndorsementKind::Rsa2048);
    let (_, offer, _) = offered(&mut tpm, &keys, &maker.trust(), 1);
    enrolled(&mut tpm, &mut keys, &maker.trust(), 2);
    let mut key = TpmKey::load(tpm, keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    key.hmac(b"m").unwrap();
    emulator.extend_pcr_16();
    let Err(KeyError::BootDiffers(what)) = key.hmac(b"m") else {
        panic!("used in another state");
    };
    assert!(what.starts_with("TPM2_HMAC"), "{what}");
    // An offer that was made before the change gets no answer.
    let error = refused_by_tpm(key.tpm().accept(&keys, &offer), "TPM2_HMAC");
    assert!(matches!(error.cause, Cause::BootDiffers { .. }), "{error}");
}

#[test]
fn an_offered_key_that_could_be_used_otherwise_is_not_imported() {
    if !installed() {
        return;
    }
    let maker = Maker::new();
    let emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let keys = created(&mut tpm, EndorsementKind::EccP256);
    let pinned = {
        let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
        let mut trust = Trust::new();
        let key = Public::from_sized(&identity.endorsement_key).unwrap();
        let key = linewarden_tpm::template::EndorsementKey::new(key).unwrap();
        trust.pin(linewarden_tpm::endorsement::EkHash::of(&key));
        trust
    };
    let (_, offer, _) = offered(&mut tpm, &keys, &pinned, 1);
    let changed = |change: &dyn Fn(&mut Public)| {
        let mut key = Public::from_sized(&offer.key).unwrap();
        change(&mut key);
        Offer {
            key: key.to_sized(),
            ..offer.clone()
        }
    };
    for wrong in [
        changed(&|key| key.attributes = key.attributes.and(Attributes::USER_WITH_AUTH)),
        changed(&|key| key.attributes = key.attributes.and(Attributes::DECRYPT)),
        changed(&|key| key.auth_policy = vec![0; 32]),
        changed(&|key| key.auth_policy.clear()),
        changed(&|key| {
            if let Kind::KeyedHash { hmac, .. } = &mut key.kind {
                *hmac = None;
            }
        }),
    ] {
        assert_eq!(tpm.accept(&keys, &wrong), Err(AcceptError::Key));
    }
    let cut = Offer {
        key: offer.key[..20].to_vec(),
        ..offer.clone()
    };
    assert!(matches!(tpm.accept(&keys, &cut), Err(AcceptError::Form(_))));
}

#[test]
fn quotes_over_anything_else_are_refused_each_with_its_reason() {
    if !installed() {
        return;
    }
    let pair = Pair::new();
    let mut tpm = pair.open(0);
    let keys = &pair.keys[0];
    let nonce = [7; 32];
    let quoted = tpm.quote(keys, &nonce, BANK, selection()).unwrap();
    let own = signer(keys);
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
    verify(&own, &quoted.attest, &quoted.signature, &nonce).unwrap();
    assert_eq!(
        verify(&own, &quoted.attest, &quoted.signature, &[8; 32]),
        Err(QuoteError::Nonce)
    );
    assert_eq!(
        verify(&signer(&pair.keys[1]), &quoted.attest, &quoted.signature, &nonce),
        Err(QuoteError::Signature(SignatureError::Wrong))
    );
    for at in 0..quoted.attest.len() {
        let mut changed = quoted.attest.clone();
        changed[at] ^= 1;
        assert!(
            verify(&own, &changed, &quoted.signature, &nonce).is_err(),
            "byte {at}"
        );
    }
    for at in 0..quoted.signature.len() {
        let mut changed = quoted.signature.clone();
        changed[at] ^= 1;
        assert!(
            verify(&own, &quoted.attest, &changed, &nonce).is_err(),
            "byte {at}"
        );
    }
    let fewer = tpm.quote(keys, &nonce, BANK, "0-7".parse().unwrap()).unwrap();
    assert_eq!(
        verify(&own, &fewer.attest, &fewer.signature, &nonce),
        Err(QuoteError::Selection {
            bank: BANK,
            selection: selection()
        })
    );
    let asked = (BANK, selection());
    assert!(matches!(
        verify_quote(
            &own,
            &quoted.attest,
            &quoted.signature,
            &nonce,
            asked,
            &fewer.values
        ),
        Err(QuoteError::Values { .. })
    ));
    drop(tpm);
    pair.emulators[0].extend_pcr_16();
    let changed = pair.open(0).quote(keys, &nonce, BANK, selection()).unwrap();
    assert_eq!(
        verify(&own, &changed.attest, &changed.signature, &nonce),
        Err(QuoteError::Digest)
    );
}

fn signer(keys: &KeyBlobs) -> AttestationSigner {
    AttestationSigner::new(Public::from_sized(&keys.attestation_key.public).unwrap()).unwrap()
}

#[test]
fn a_tpm_that_nobody_vouches_for_is_refused_with_the_reason() {
    if !installed() {
        return;
    }
    let pair = Pair::new();
    let (identity, ..) = pair.offered(0, 1);
    let (other, ..) = pair.offered(1, 2);
    let asked = |identity: &Identity, trust: &Trust, now_s: i64| {
        let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
        match enrol::offer(identity, trust, policy, now_s, &mut rng(3)) {
            Err(EnrolError::Endorsement { key, error }) => {
                let public = Public::from_sized(&identity.endorsement_key).unwrap();
                assert_eq!(key, EkHash::of(&EndorsementKey::new(public).unwrap()));
                error
            }
            other => panic!("{other:?}"),
        }
    };
    let trust = pair.maker.trust();
    let somebody_else = {
        let maker = Maker::new();
        Emulator::made_by(&maker);
        maker.trust()
    };
    // By name the other maker's CA could have issued it, but it did not.
    assert!(matches!(
        asked(&identity, &somebody_else, NOW_S),
        EndorsementError::Use { why, .. } if why.contains("signature")
    ));
    assert!(matches!(
        asked(&identity, &Trust::new(), NOW_S),
        EndorsementError::Issuer { .. }
    ));
    assert!(matches!(
        asked(&identity, &trust, 0),
        EndorsementError::Expired { now: 0, .. }
    ));
    let with = |certificates: Vec<Vec<u8>>| Identity {
        certificates,
        ..identity.clone()
    };
    assert!(matches!(
        asked(&with(Vec::new()), &trust, NOW_S),
        EndorsementError::Unknown
    ));
    assert_eq!(
        asked(&with(other.certificates), &trust, NOW_S),
        EndorsementError::OtherKey
    );
    let mut forged = identity.certificates.clone();
    *forged[0].last_mut().unwrap() ^= 1;
    assert!(matches!(
        asked(&with(forged), &trust, NOW_S),
        EndorsementError::Use { .. }
    ));
}

#[test]
fn keys_of_the_wrong_kind_are_refused() {
    if !installed() {
        return;
    }
    let pair = Pair::new();
    let (identity, ..) = pair.offered(0, 1);
    let policy = PcrPolicy::new(std::slice::from_ref(&identity.pcrs.0)).unwrap();
    let trust = pair.maker.trust();
    let refused =
        |identity: &Identity| enrol::offer(identity, &trust, policy.clone(), NOW_S, &mut rng(2)).unwrap_err();
    let swapped = Identity {
        endorsement_key: identity.attestation_key.clone(),
        attestation_key: identity.endorsement_key.clone(),
        ..identity.clone()
    };
    assert!(matches!(
        refused(&swapped),
        EnrolError::Template(TemplateError::Attributes { .. })
    ));
    let decrypting = Identity {
        attestation_key: identity.endorsement_key.clone(),
        ..identity.clone()
    };
    assert!(matches!(
        refused(&decrypting),
        EnrolError::Template(TemplateError::Attributes { .. })
    ));
    let cut = Identity {
        attestation_key: identity.attestation_key[..40].to_vec(),
        ..identity.clone()
    };
    assert!(matches!(refused(&cut), EnrolError::Form { .. }));
    let many = Identity {
        certificates: vec![identity.certificates[0].clone(); 7],
        ..identity.clone()
    };
    assert_eq!(refused(&many), EnrolError::Certificates(7));
    let mut state = identity.clone();
    state.pcrs.0 = pair.open(0).pcrs(BANK, "0-7".parse().unwrap()).unwrap();
    assert_eq!(refused(&state), EnrolError::State);
}

#[test]
fn answers_that_are_late_repeated_mixed_up_or_wrong_are_refused() {
    if !installed() {
        return;
    }
    let pair = Pair::new();
    let (_, offer, mut enrolment) = pair.offered(0, 1);
    let (_, other_offer, _) = pair.offered(0, 2);
    let (_, answer) = pair.open(0).accept(&pair.keys[0], &offer).unwrap();
    let (_, other) = pair.open(0).accept(&pair.keys[0], &other_offer).unwrap();
    let mut refused = |answer: &Answer, now_s: i64| enrolment.finish(answer, now_s).unwrap_err();
    assert_eq!(refused(&other, NOW_S), EnrolError::Conversation);
    assert_eq!(refused(&answer, NOW_S + 301), EnrolError::Late(301));
    assert_eq!(refused(&answer, NOW_S - 1), EnrolError::Late(-1));
    let conversation: Conversation = answer.conversation;
    // Each proof of another conversation in turn.
    let activation = Answer {
        conversation,
        ..other.clone()
    };
    assert_eq!(refused(&activation, NOW_S), EnrolError::Activation);
    let quote = Answer {
        quote: other.quote.clone(),
        signature: other.signature.clone(),
        ..answer.clone()
    };
    assert_eq!(refused(&quote, NOW_S), EnrolError::Quote(QuoteError::Nonce));
    let proof = Answer {
        key_proof: other.key_proof,
        ..answer.clone()
    };
    assert_eq!(refused(&proof, NOW_S), EnrolError::KeyProof);
    // None of that has ended the conversation, and the controller may have been restarted.
    let mut enrolment: Enrolment = sent(&enrolment);
    enrolment.finish(&answer, NOW_S + 300).unwrap();
    let mut enrolment: Enrolment = sent(&enrolment);
    assert_eq!(
        enrolment.finish(&answer, NOW_S).unwrap_err(),
        EnrolError::Finished
    );
}

#[test]
fn repeated_quotes_and_those_of_a_cleared_tpm_are_refused() {
    if !installed() {
        return;
    }
    let maker = Maker::new();
    let emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let mut keys = created(&mut tpm, EndorsementKind::Rsa2048);
    let mut device = enrolled(&mut tpm, &mut keys, &maker.trust(), 1).binding;
    let (evidence, _) = quoted(&mut tpm, &keys, selection(), &[2; 32]);
    assert_eq!(
        evidence.examine(Some(&device), &[3; 32]).unwrap_err(),
        EvidenceError::Quote(QuoteError::Nonce)
    );
    evidence.examine(Some(&device), &[2; 32]).unwrap();
    // As if the TPM had counted more starts at enrolment than it does now.
    device.quote.clock.reset_count += 1;
    assert!(matches!(
        evidence.examine(Some(&device), &[2; 32]),
        Err(EvidenceError::Cleared { .. })
    ));
}

/// Puts the key where tpm2-tools find it, loads it, and gives the directory.
fn loaded_with_tools(emulator: &Emulator, key: &BoundKey) -> TempDir {
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
fn the_key_does_not_come_out_of_the_tpm() {
    if !installed() {
        return;
    }
    let maker = Maker::new();
    let emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let mut keys = created(&mut tpm, EndorsementKind::Rsa2048);
    let device = enrolled(&mut tpm, &mut keys, &maker.trust(), 1);
    drop(tpm);
    let key = keys.key.as_ref().unwrap();
    let secret = device.key.expose();
    assert!(!key.blob.private.windows(32).any(|bytes| bytes == secret));
    let dir = loaded_with_tools(&emulator, key);
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
        let refused = emulator.tool_fails(
            dir.path(),
            "tpm2_duplicate -C null -c key.ctx -G null -p session:try.ctx -r dup.priv -s dup.seed",
        );
        let reasons = ["policy check failed", "command Code", "commandCode"];
        assert!(
            reasons.iter().any(|reason| refused.contains(reason)),
            "{policy:?}: {refused}"
        );
        tool("tpm2_flushcontext try.ctx");
        tool("tpm2_flushcontext -t");
    }
    // A new password would make it a key of the device's software: that is the role ADMIN, and the policy's too.
    let refused = emulator.tool_fails(
        dir.path(),
        "tpm2_changeauth -C ek.ctx -c key.ctx -r changed.priv password",
    );
    assert!(
        refused.contains("authorization handle is not correct"),
        "{refused}"
    );
    tool("tpm2_flushcontext -t");
    // Nor without a session: there is no password.
    emulator.tool_fails(
        dir.path(),
        "tpm2_duplicate -C null -c key.ctx -G null -r dup.priv -s dup.seed",
    );
    tool("tpm2_flushcontext -t");
    emulator.tool_fails(dir.path(), "tpm2_hmac -c key.ctx key.pub");
    tool("tpm2_flushcontext -t");
    assert!(!dir.path().join("dup.priv").exists());
    // The same session does let the key be used: what stands in the way is the policy, not the way of asking.
    tool("tpm2_startauthsession --policy-session -S use.ctx");
    tool("tpm2_policypcr -S use.ctx -l sha256:0,1,2,3,4,5,6,16");
    tool("tpm2_hmac -c key.ctx -p session:use.ctx -o mac key.pub");
    assert_eq!(
        fs::read(dir.path().join("mac")).unwrap(),
        device.key.hmac(&key.blob.public)
    );
}
