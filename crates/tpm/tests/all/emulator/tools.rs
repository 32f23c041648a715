//! Interoperation with tpm2-tools: the device accepts structures that the tools made, and the tools accept
//! structures of this crate.

use std::fs;

use linewarden_tpm::device::{EndorsementKind, SignerKind};
use linewarden_tpm::enroll::{KeyOffer, activation_proof};
use linewarden_tpm::policy::PcrPolicy;
use linewarden_tpm::public::Public;
use tempfile::TempDir;

use crate::emulator::swtpm::{Emulator, TpmManufacturer};
use crate::emulator::{BANK, create_keys, make_offer, require_emulator, selection};

#[test]
fn a_credential_of_tpm2_tools_is_opened_like_a_linewarden_credential() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    let (identity, offer, _) = make_offer(&mut tpm, &keys, &manufacturer.trust(), 1);
    let dir = TempDir::new().unwrap();
    let secret = [0x5a; 32];
    fs::write(dir.path().join("ek.pub"), &identity.endorsement_key).unwrap();
    fs::write(dir.path().join("secret"), secret).unwrap();
    let name = Public::from_sized(&identity.attestation_key).unwrap().name();
    let name = hex::encode(name.as_bytes());
    let make_credential = [
        "tpm2_makecredential",
        "-T",
        "none",
        "-u",
        "ek.pub",
        "-s",
        "secret",
        "-n",
        &name,
        "-o",
        "blob",
    ];
    emulator.tool(dir.path(), &make_credential);
    let blob = fs::read(dir.path().join("blob")).unwrap();
    // The file has eight bytes added by the tools, then the credential and the seed, each after its size.
    let (id_object, tail) = split_sized(&blob[8..]);
    let (seed, tail) = split_sized(tail);
    assert!(tail.is_empty());
    let tools_offer = KeyOffer {
        credential: id_object.to_vec(),
        credential_seed: seed.to_vec(),
        ..offer.clone()
    };
    assert_eq!(tools_offer.credential.len(), offer.credential.len());
    assert_eq!(tools_offer.credential_seed.len(), offer.credential_seed.len());
    let (_, response) = tpm.accept(&keys, &tools_offer).unwrap();
    assert_eq!(response.activation, activation_proof(&secret, &offer.nonce));
}

fn split_sized(bytes: &[u8]) -> (&[u8], &[u8]) {
    let size = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    bytes[2..].split_at(size)
}

#[test]
fn tpm2_tools_verify_linewarden_quotes() {
    require_emulator();
    let emulator = Emulator::made_by(&TpmManufacturer::new());
    for signer in [SignerKind::EcdsaP256, SignerKind::Rsassa2048] {
        let mut tpm = emulator.open();
        let keys = tpm.create_keys(EndorsementKind::EccP256, signer).unwrap();
        let quoted = tpm.quote(&keys, &[0x2c; 32], BANK, selection()).unwrap();
        drop(tpm);
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("ak.pub"), &keys.attestation_key.public).unwrap();
        fs::write(dir.path().join("quote"), &quoted.attest).unwrap();
        fs::write(dir.path().join("sig"), &quoted.signature).unwrap();
        let check_command =
            |nonce: &str| format!("tpm2_checkquote -u ak.pub -m quote -s sig -g sha256 -q {nonce}");
        let check_with_nonce = check_command(&"2c".repeat(32));
        emulator.tool(dir.path(), &check_with_nonce.split(' ').collect::<Vec<_>>());
        emulator.tool_fails(dir.path(), &check_command(&"2d".repeat(32)));
    }
}

#[test]
fn the_tpm_computes_the_same_policy_digests() {
    require_emulator();
    let emulator = Emulator::made_by(&TpmManufacturer::new());
    let dir = TempDir::new().unwrap();
    let tool = |command: &str| emulator.tool(dir.path(), &command.split(' ').collect::<Vec<_>>());
    let mut states = Vec::new();
    for file in ["first.policy", "second.policy"] {
        let values = emulator.open().pcrs(BANK, selection()).unwrap();
        tool("tpm2_startauthsession -S trial.ctx");
        tool(&format!(
            "tpm2_policypcr -S trial.ctx -l sha256:0,1,2,3,4,5,6,16 -L {file}"
        ));
        tool("tpm2_flushcontext trial.ctx");
        let policy = PcrPolicy::new(std::slice::from_ref(&values)).unwrap();
        assert_eq!(fs::read(dir.path().join(file)).unwrap(), policy.digest());
        states.push(values);
        emulator.extend_pcr_16();
    }
    let policy = PcrPolicy::new(&states).unwrap();
    for (number, branch) in policy.branches().iter().enumerate() {
        fs::write(dir.path().join(format!("{number}.branch")), branch).unwrap();
    }
    tool("tpm2_startauthsession -S trial.ctx");
    tool("tpm2_policyor -S trial.ctx -L or.policy sha256:0.branch,1.branch");
    tool("tpm2_flushcontext trial.ctx");
    assert_eq!(fs::read(dir.path().join("or.policy")).unwrap(), policy.digest());
}
