//! A TPM's key signs the statement of a data plane.

use linewarden_evidence::keys::{PublicKey, Signer as _};
use linewarden_evidence::state::{MeasuredState, program_digest};
use linewarden_evidence::statement::{DataPlaneKind, Nonce, Statement, StatementError, verify};
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_tpm::device::{EndorsementKind, SigningBlob, TpmSigner};

use crate::emulator::swtpm::{Emulator, TpmManufacturer};
use crate::emulator::{require_emulator, round_trip};

fn statement() -> Statement {
    let mut measured = MeasuredState::new(SwitchId(1), BootCount(2), program_digest(b"program"));
    Statement {
        kind: DataPlaneKind::P4,
        snapshot: measured.snapshot(),
        objects: measured.objects(),
        // This is longer than the maximum that a TPM hashes at once.
        exclusions: vec!["queues".repeat(1_000)],
        software_version: "1".to_owned(),
    }
}

#[test]
fn a_statement_is_signed_by_the_tpm_that_has_the_key() {
    require_emulator();
    let mut emulator = Emulator::made_by(&TpmManufacturer::new());
    let kind = EndorsementKind::EccP256;
    let blob: SigningBlob = round_trip(&emulator.open().create_signing_key(kind).unwrap());
    let mut signer = TpmSigner::load(emulator.open(), &blob).unwrap();
    let key = signer.public_key();
    assert_eq!(PublicKey::from_pem(&key.to_pem()).unwrap(), key);
    // Short r and s occur once in 128 signatures; the structure tests cover the padding.
    for number in 0..4 {
        let nonce = Nonce([number; 32]);
        let signed = statement().sign(nonce, &mut signer).unwrap();
        assert_eq!(
            verify(&signed, &key, nonce).unwrap().snapshot(),
            &statement().snapshot
        );
        let other_nonce = Nonce([number + 1; 32]);
        assert!(matches!(
            verify(&signed, &key, other_nonce),
            Err(StatementError::NonceMismatch)
        ));
    }
    drop(signer);
    // After a restart of the machine the TPM has the same key; another machine cannot use the key.
    emulator.kill();
    emulator.start();
    let mut signer = TpmSigner::load(emulator.open(), &blob).unwrap();
    assert_eq!(signer.public_key(), key);
    assert!(signer.sign(b"message").is_ok());
    let other_emulator = Emulator::made_by(&TpmManufacturer::new());
    assert!(TpmSigner::load(other_emulator.open(), &blob).is_err());
    // An unreachable TPM is reported, and nothing is signed.
    emulator.kill();
    let result = statement().sign(Nonce([0; 32]), &mut signer);
    assert!(
        matches!(result, Err(StatementError::SigningFailed(_))),
        "{result:?}"
    );
}
