//! A TPM is killed or busy at any one command of an enrollment: the error names the command and whether a retry may
//! succeed.

use std::sync::{Arc, Mutex};

use linewarden_tpm::device::{AcceptError, EndorsementKind, Retries, SignerKind, Tpm, TpmError, TpmKey};
use linewarden_tpm::endorsement::{EkHash, EndorsementTrust};
use linewarden_tpm::public::Public;
use linewarden_tpm::template::EndorsementKey;
use linewarden_tpm::{AttestationKey as _, KeyError, Retry};

use crate::emulator::proxy::{Fault, FaultPoint, Proxy};
use crate::emulator::swtpm::{Emulator, TpmManufacturer, tcti};
use crate::emulator::{BANK, NOW_S, create_keys, make_offer, require_emulator, round_trip, selection};

/// The commands of an enrollment, with their names in errors.
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

fn command_name(code: u32) -> &'static str {
    let command = COMMANDS.iter().find(|(known, _)| *known == code);
    command
        .unwrap_or_else(|| panic!("an unknown command, {code:#x}"))
        .1
}

fn open_through(proxy: &Proxy, retries: Retries) -> Tpm {
    Tpm::open(&tcti(proxy.port()), retries).unwrap()
}

#[test]
fn a_tpm_killed_at_any_enrollment_command_is_reported_and_the_enrollment_can_continue() {
    require_emulator();
    let emulator = Emulator::made_by(&TpmManufacturer::new());
    let mut tpm = emulator.open();
    let keys = create_keys(&mut tpm, EndorsementKind::EccP256);
    let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
    let mut trust = EndorsementTrust::new();
    let key = EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap();
    trust.pin(EkHash::of_key(&key));
    drop(tpm);
    let emulator = Arc::new(Mutex::new(emulator));
    let mut failed_commands = Vec::new();
    for number in 1.. {
        let mut tpm = emulator.lock().unwrap().open();
        let (_, offer, mut enrollment) = make_offer(&mut tpm, &keys, &trust, number as u64);
        drop(tpm);
        let fault = match number % 2 {
            0 => Fault::KilledBeforeCommand,
            _ => Fault::KilledAfterResponse,
        };
        let proxy = Proxy::to(&emulator, FaultPoint(number, fault));
        let mut tpm = open_through(&proxy, Retries::none());
        let error = match tpm.accept(&keys, &offer) {
            Err(AcceptError::Tpm(error)) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => {
                assert_eq!(proxy.failed_at(), None, "command {number}");
                break;
            }
        };
        drop(tpm);
        assert_error_names_command(&error, &proxy, number);
        failed_commands.push(error.command);
        emulator.lock().unwrap().start();
        let (_, response) = emulator.lock().unwrap().open().accept(&keys, &offer).unwrap();
        enrollment.finish(&round_trip(&response), NOW_S).unwrap();
    }
    // The TPM was killed at each of these commands.
    for command in [
        "TPM2_CreatePrimary",
        "TPM2_Load",
        "TPM2_ActivateCredential",
        "TPM2_Import",
        "TPM2_HMAC",
        "TPM2_Quote",
    ] {
        assert!(
            failed_commands.contains(&command),
            "{command} is not in {failed_commands:?}"
        );
    }
}

#[test]
fn a_tpm_killed_before_the_offer_is_reported_and_the_enrollment_can_continue() {
    require_emulator();
    let emulator = Arc::new(Mutex::new(Emulator::made_by(&TpmManufacturer::new())));
    let first_message = |tpm: &mut Tpm| {
        let keys = tpm.create_keys(EndorsementKind::Rsa2048, SignerKind::default())?;
        tpm.identity(&keys, BANK, selection(), None)
    };
    let mut failed_commands = Vec::new();
    for number in 1.. {
        let proxy = Proxy::to(&emulator, FaultPoint(number, Fault::KilledBeforeCommand));
        match first_message(&mut open_through(&proxy, Retries::none())) {
            Ok(identity) => {
                assert_eq!(identity.certificates.len(), 1);
                break;
            }
            Err(error) => {
                assert_error_names_command(&error, &proxy, number);
                failed_commands.push(error.command);
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
        assert!(
            failed_commands.contains(&command),
            "{command} is not in {failed_commands:?}"
        );
    }
}

fn assert_error_names_command(error: &TpmError, proxy: &Proxy, number: usize) {
    let killed_command = proxy.failed_at().map(command_name);
    let killed_command =
        killed_command.unwrap_or_else(|| panic!("command {number}: the TPM was not killed: {error}"));
    assert_eq!(error.command, killed_command, "command {number}: {error}");
    assert_eq!(error.retry(), Retry::AfterReopen, "command {number}: {error}");
}

#[test]
fn a_key_of_a_killed_tpm_returns_a_connection_error_and_no_hmac() {
    require_emulator();
    let manufacturer = TpmManufacturer::new();
    let mut emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::Rsa2048);
    let device = crate::emulator::enroll_device(&mut tpm, &mut keys, &manufacturer.trust(), 1);
    let mut key = TpmKey::load(tpm, keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    assert_eq!(key.hmac(b"before").unwrap(), device.key.hmac(b"before"));
    emulator.kill();
    for _ in 0..2 {
        let Err(KeyError::Tpm { message, retry }) = key.hmac(b"after") else {
            panic!("a killed TPM responded");
        };
        assert_eq!(retry, Retry::AfterReopen, "{message}");
        assert!(message.contains("TPM2_"), "{message}");
    }
    drop(key);
    let error = Tpm::open(&emulator.tcti(), Retries::none()).unwrap_err();
    assert_eq!(error.retry(), Retry::AfterReopen, "{error}");
    emulator.start();
    let mut key = TpmKey::load(emulator.open(), keys.endorsement, keys.key.as_ref().unwrap()).unwrap();
    assert_eq!(key.hmac(b"retry").unwrap(), device.key.hmac(b"retry"));
}

/// Returns a retry policy that records the number of each retry, and the recorded numbers.
fn recorded_retries(max_retries: u32) -> (Retries, Arc<Mutex<Vec<u32>>>) {
    let retry_numbers = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&retry_numbers);
    (
        Retries::new(max_retries, move |number| {
            recorder.lock().unwrap().push(number);
        }),
        retry_numbers,
    )
}

#[test]
fn temporary_errors_are_retried_a_bounded_number_of_times() {
    require_emulator();
    const NV_RATE: u32 = 0x920;
    const LOCKOUT: u32 = 0x921;
    const FAILURE: u32 = 0x101;
    let manufacturer = TpmManufacturer::new();
    let emulator = Emulator::made_by(&manufacturer);
    let mut tpm = emulator.open();
    let mut keys = create_keys(&mut tpm, EndorsementKind::EccP256);
    let identity = tpm.identity(&keys, BANK, selection(), None).unwrap();
    let mut trust = EndorsementTrust::new();
    let key = EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap();
    trust.pin(EkHash::of_key(&key));
    let device = crate::emulator::enroll_device(&mut tpm, &mut keys, &trust, 1);
    drop(tpm);
    let emulator = Arc::new(Mutex::new(emulator));
    let hmac_with_errors = |code: u32, times: usize, max_retries: u32, number: usize| {
        let proxy = Proxy::to(
            &emulator,
            FaultPoint(number, Fault::ErrorResponse { code, times }),
        );
        let (retries, retry_numbers) = recorded_retries(max_retries);
        let tpm = open_through(&proxy, retries);
        let hmac = TpmKey::load(tpm, keys.endorsement, keys.key.as_ref().unwrap())
            .map_err(KeyError::from)
            .and_then(|mut key| key.hmac(b"m"));
        let retry_numbers = retry_numbers.lock().unwrap().clone();
        (hmac, retry_numbers, proxy.failed_at().map(command_name))
    };
    // The number of the last command that had a fault.
    let mut last_faulty_command = 0;
    for number in 1.. {
        let (hmac, retry_numbers, failed_at) = hmac_with_errors(NV_RATE, 2, 3, number);
        let Some(failed_at) = failed_at else {
            assert_eq!(retry_numbers, [0; 0]);
            break;
        };
        if failed_at == "TPM2_FlushContext" && retry_numbers.is_empty() {
            // This flush follows the HMAC, and the device does not retry it.
            continue;
        }
        assert_eq!(hmac, Ok(device.key.hmac(b"m")), "command {number}, {failed_at}");
        assert_eq!(retry_numbers, [1, 2], "command {number}, {failed_at}");
        last_faulty_command = number;
        let (hmac, retry_numbers, _) = hmac_with_errors(LOCKOUT, 3, 2, number);
        let Err(KeyError::Tpm { message, retry }) = hmac else {
            panic!("command {number}, {failed_at}: {hmac:?}");
        };
        assert!(message.starts_with(failed_at), "{message} at {failed_at}");
        assert_eq!(
            (retry, &retry_numbers[..]),
            (Retry::Later, &[1, 2][..]),
            "{message}"
        );
        let (hmac, retry_numbers, _) = hmac_with_errors(FAILURE, 1, 2, number);
        let Err(KeyError::Tpm { message, retry }) = hmac else {
            panic!("command {number}, {failed_at}: {hmac:?}");
        };
        assert_eq!((retry, &retry_numbers[..]), (Retry::Never, &[][..]), "{message}");
    }
    assert!(last_faulty_command >= 8, "only {last_faulty_command} commands");
}
