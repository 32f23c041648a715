//! A TPM that dies at each command of the conversation, or has no time for it: the error names the command, and says whether to
//! try again.

use std::sync::{Arc, Mutex};

use linewarden_tpm::device::{AcceptError, EndorsementKind, Retries, SignerKind, Tpm, TpmError, TpmKey};
use linewarden_tpm::endorsement::{EkHash, Trust};
use linewarden_tpm::public::Public;
use linewarden_tpm::template::EndorsementKey;
use linewarden_tpm::{Again, AttestationKey as _, KeyError};

use crate::proxy::{At, Fault, Proxy};
use crate::swtpm::{Emulator, Maker, installed, tcti};
use crate::{BANK, NOW_S, created, offered, selection, sent};

/// The commands by which the conversation goes, with the name that errors have to give them.
const COMMANDS: [(u32, &str); 15] = [
    (0x131, "TPM2_CreatePrimary"),
    (0x147, "TPM2_ActivateCredential"),
    (0x151, "TPM2_PolicySecret"),
    (0x155, "TPM2_HMAC"),
    (0x156, "TPM2_Import"),
    (0x157, "TPM2_Load"),
    (0x158, "TPM2_Quote"),
    (0x165, "TPM2_FlushContext"),
    (0x176, "TPM2_StartAuthSession"),
    (0x17e, "TPM2_PCR_Read"),
    (0x17f, "TPM2_PolicyPCR"),
    (0x171, "TPM2_PolicyOR"),
    (0x153, "TPM2_Create"),
    (0x14e, "TPM2_NV_Read"),
    (0x169, "TPM2_NV_ReadPublic"),
];

fn name(code: u32) -> &'static str {
    let known = COMMANDS.iter().find(|(known, _)| *known == code);
    known.unwrap_or_else(|| panic!("an unknown command, {code:#x}")).1
}

fn through(proxy: &Proxy, retries: Retries) -> Tpm {
    Tpm::open(&tcti(proxy.port()), retries).unwrap()
}

#[test]
fn a_tpm_that_dies_at_any_command_of_an_enrolment_is_named_and_can_go_on() {
    if !installed() {
        return;
    }
    let emulator = Emulator::made_by(&Maker::new());
    let mut tpm = emulator.open();
    let keys = created(&mut tpm, EndorsementKind::EccP256);
    let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
    let mut trust = Trust::new();
    let key = EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap();
    trust.pin(EkHash::of(&key));
    drop(tpm);
    let emulator = Arc::new(Mutex::new(emulator));
    let mut seen = Vec::new();
    for at in 1.. {
        let mut tpm = emulator.lock().unwrap().open();
        let (_, offer, mut enrolment) = offered(&mut tpm, &keys, &trust, at as u64);
        drop(tpm);
        let fault = match at % 2 {
            0 => Fault::Killed,
            _ => Fault::KilledAfter,
        };
        let proxy = Proxy::to(&emulator, At(at, fault));
        let mut tpm = through(&proxy, Retries::none());
        let error = match tpm.accept(&keys, &offer) {
            Err(AcceptError::Tpm(error)) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => {
                assert_eq!(proxy.failed_at(), None, "command {at}");
                break;
            }
        };
        drop(tpm);
        assert_named(&error, &proxy, at);
        seen.push(error.command);
        emulator.lock().unwrap().start();
        let (_, answer) = emulator.lock().unwrap().open().accept(&keys, &offer).unwrap();
        enrolment.finish(&sent(&answer), NOW_S).unwrap();
    }
    // Every command of the way was tried at least once.
    for command in [
        "TPM2_CreatePrimary",
        "TPM2_Load",
        "TPM2_ActivateCredential",
        "TPM2_Import",
        "TPM2_HMAC",
        "TPM2_Quote",
    ] {
        assert!(seen.contains(&command), "{command} is not in {seen:?}");
    }
}

#[test]
fn a_tpm_that_dies_before_the_offer_is_named_and_can_go_on() {
    if !installed() {
        return;
    }
    let emulator = Arc::new(Mutex::new(Emulator::made_by(&Maker::new())));
    let first_message = |tpm: &mut Tpm| {
        let keys = tpm.create_keys(EndorsementKind::Rsa2048, SignerKind::default())?;
        tpm.identity(&keys, BANK, selection(), None)
    };
    let mut seen = Vec::new();
    for at in 1.. {
        let proxy = Proxy::to(&emulator, At(at, Fault::Killed));
        match first_message(&mut through(&proxy, Retries::none())) {
            Ok(identity) => {
                assert_eq!(identity.certificates.len(), 1);
                break;
            }
            Err(error) => {
                assert_named(&error, &proxy, at);
                seen.push(error.command);
            }
        }
        emulator.lock().unwrap().start();
    }
    for command in [
        "TPM2_Create",
        "TPM2_NV_ReadPublic",
        "TPM2_NV_Read",
        "TPM2_PCR_Read",
    ] {
        assert!(seen.contains(&command), "{command} is not in {seen:?}");
    }
}

fn assert_named(error: &TpmError, proxy: &Proxy, at: usize) {
    let killed_at = proxy.failed_at().map(name);
    let killed_at = killed_at.unwrap_or_else(|| panic!("command {at}, and nothing was killed: {error}"));
    assert_eq!(error.command, killed_at, "command {at}: {error}");
    assert_eq!(error.again(), Again::Reopened, "command {at}: {error}");
}

#[test]
fn a_tpm_that_dies_under_a_key_gives_no_hmac_and_says_that_it_is_gone() {
    if !installed() {
        return;
    }
    let maker = Maker::new();
    let mut emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let mut keys = created(&mut tpm, EndorsementKind::Rsa2048);
    let device = crate::enrolled(&mut tpm, &mut keys, &maker.trust(), 1);
    let mut key = TpmKey::load(tpm, keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    assert_eq!(key.hmac(b"before").unwrap(), device.key.hmac(b"before"));
    emulator.kill();
    for _ in 0..2 {
        let Err(KeyError::Tpm { what, again }) = key.hmac(b"after") else {
            panic!("a dead TPM answered");
        };
        assert_eq!(again, Again::Reopened, "{what}");
        assert!(what.contains("TPM2_"), "{what}");
    }
    drop(key);
    let error = Tpm::open(&emulator.tcti(), Retries::none()).unwrap_err();
    assert_eq!(error.again(), Again::Reopened, "{error}");
    emulator.start();
    let mut key = TpmKey::load(emulator.open(), keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    assert_eq!(key.hmac(b"anew").unwrap(), device.key.hmac(b"anew"));
}

/// How often the wait between two attempts was called, and with which numbers.
fn counted(most: u32) -> (Retries, Arc<Mutex<Vec<u32>>>) {
    let waits = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&waits);
    (
        Retries::new(most, move |number| note.lock().unwrap().push(number)),
        waits,
    )
}

#[test]
fn what_may_succeed_later_is_tried_again_a_bounded_number_of_times() {
    if !installed() {
        return;
    }
    const NV_RATE: u32 = 0x920;
    const LOCKOUT: u32 = 0x921;
    const FAILURE: u32 = 0x101;
    let maker = Maker::new();
    let emulator = Emulator::made_by(&maker);
    let mut tpm = emulator.open();
    let mut keys = created(&mut tpm, EndorsementKind::EccP256);
    let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
    let mut trust = Trust::new();
    let key = EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap();
    trust.pin(EkHash::of(&key));
    let device = crate::enrolled(&mut tpm, &mut keys, &trust, 1);
    drop(tpm);
    let emulator = Arc::new(Mutex::new(emulator));
    let asked = |code: u32, times: usize, most: u32, at: usize| {
        let proxy = Proxy::to(&emulator, At(at, Fault::Answered { code, times }));
        let (retries, waits) = counted(most);
        let tpm = through(&proxy, retries);
        let hmac = TpmKey::load(tpm, keys.endorsement, keys.key.as_ref().unwrap())
            .map_err(KeyError::from)
            .and_then(|mut key| key.hmac(b"m"));
        let waits = waits.lock().unwrap().clone();
        (hmac, waits, proxy.failed_at().map(name))
    };
    // Without a fault the way has this many commands.
    let mut last = 0;
    for at in 1.. {
        let (hmac, waits, failed_at) = asked(NV_RATE, 2, 3, at);
        let Some(failed_at) = failed_at else {
            assert_eq!(waits, [0; 0]);
            break;
        };
        if failed_at == "TPM2_FlushContext" && waits.is_empty() {
            // Flushed when all was done already.
            continue;
        }
        assert_eq!(hmac, Ok(device.key.hmac(b"m")), "command {at}, {failed_at}");
        assert_eq!(waits, [1, 2], "command {at}, {failed_at}");
        last = at;
        let (hmac, waits, _) = asked(LOCKOUT, 3, 2, at);
        let Err(KeyError::Tpm { what, again }) = hmac else {
            panic!("command {at}, {failed_at}: {hmac:?}");
        };
        assert!(what.starts_with(failed_at), "{what} at {failed_at}");
        assert_eq!((again, &waits[..]), (Again::Later, &[1, 2][..]), "{what}");
        let (hmac, waits, _) = asked(FAILURE, 1, 2, at);
        let Err(KeyError::Tpm { what, again }) = hmac else {
            panic!("command {at}, {failed_at}: {hmac:?}");
        };
        assert_eq!((again, &waits[..]), (Again::Never, &[][..]), "{what}");
    }
    assert!(last >= 8, "only {last} commands");
}
