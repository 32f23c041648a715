//! Logs of real firmware, from recordings (tests/data) or from a boot during the test. The logs are accepted and replay
//! to the TPM's values. A log with a changed bit is rejected, or the changed data are unproven.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use linewarden_harness::skip;
use linewarden_measurement::eventlog::{
    DigestCoverage, EventLog, EventType, LogFormat, Notice, ReplayError, ReplayedLog, notices, verify_replay,
};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};

/// All PCRs except 10, which IMA extends and logs separately.
const PCRS_WITHOUT_IMA: &str = "0-9,11-23";

/// An event log, and the PCR values at the same time.
struct Recording {
    log: Vec<u8>,
    pcrs: Vec<(HashAlgorithm, PcrIndex, Digest)>,
}

impl Recording {
    fn read(directory: &Path) -> Self {
        let pcr = |line: &str| {
            let [bank, index, value] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let bank = bank.parse().unwrap();
            let index = PcrIndex::try_from(index.parse::<u32>().unwrap()).unwrap();
            (
                bank,
                index,
                Digest::new(bank, &hex::decode(value).unwrap()).unwrap(),
            )
        };
        Self {
            log: fs::read(directory.join("log.bin")).unwrap(),
            pcrs: fs::read_to_string(directory.join("pcrs"))
                .unwrap()
                .lines()
                .map(pcr)
                .collect(),
        }
    }

    fn of_case(name: &str) -> Self {
        Self::read(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/data")
                .join(name),
        )
    }

    fn values(&self, bank: HashAlgorithm, selection: &str) -> PcrValues {
        let selection: PcrSelection = selection.parse().unwrap();
        let mut values = PcrValues::new(bank);
        for (_, index, value) in self.pcrs.iter().filter(|(value_bank, ..)| *value_bank == bank) {
            if selection.contains(*index) {
                values.set(*index, *value).unwrap();
            }
        }
        assert_eq!(values.selection(), selection);
        values
    }

    /// Checks that the log replays in every bank to all PCR values except PCR 10, and that no data are unexplained.
    /// Returns the log.
    fn check(&self) -> EventLog {
        let log = EventLog::parse(&self.log).unwrap();
        for bank in log.banks() {
            let replayed = verify_replay(&log, &self.values(*bank, PCRS_WITHOUT_IMA)).unwrap();
            assert!(replayed.events().len() > 10);
            assert_eq!(replayed.unexplained().next(), None);
            let error = verify_replay(&log, &self.values(*bank, "10")).unwrap_err();
            assert!(
                matches!(error, ReplayError::ValueMismatch { last_entry: None, .. }),
                "{error}"
            );
        }
        log
    }
}

/// The events of this PCR, each as text.
fn event_lines(recording: &Recording, bank: HashAlgorithm, pcr: u32) -> Vec<String> {
    let log = EventLog::parse(&recording.log).unwrap();
    let replayed = verify_replay(&log, &recording.values(bank, &pcr.to_string())).unwrap();
    replayed.events().iter().map(ToString::to_string).collect()
}

#[test]
fn the_ovmf_log_replays_in_all_banks() {
    let recording = Recording::of_case("direct");
    assert_eq!(recording.check().banks(), HashAlgorithm::ALL);
    let lines = event_lines(&recording, HashAlgorithm::Sha256, 4);
    assert_eq!(
        lines[1],
        "entry 13, PCR 4, EV_EFI_ACTION: Calling EFI Application from Boot Option"
    );
    assert!(
        lines[0].contains("kernel, ") && lines[0].ends_with(" bytes (claimed)"),
        "{}",
        lines[0]
    );
}

#[test]
fn secure_boot_with_shim_and_grub_replays() {
    let recording = Recording::of_case("shim");
    recording.check();
    let sha256 = |pcr| event_lines(&recording, HashAlgorithm::Sha256, pcr).join("\n");
    assert!(
        sha256(7).contains(
            "EV_EFI_VARIABLE_DRIVER_CONFIG: SecureBoot (8be4df61-93ca-11d2-aa0d-00e098032b8c): 01\n"
        )
    );
    assert!(
        sha256(7)
            .contains("EV_EFI_VARIABLE_AUTHORITY: SbatLevel (605dab50-e046-4300-abb6-3dd810dd8b23): sbat,1,")
    );
    assert!(sha256(8).contains("kernel_cmdline: /vmlinuz console=ttyS0 quiet panic=1 (in part claimed)\n"));
    assert!(sha256(9).contains("EV_IPL: /initrd (claimed)"));
    assert!(sha256(14).contains("EV_IPL: MokListTrusted (claimed)"));
}

#[test]
fn a_unified_kernel_image_replays() {
    let recording = Recording::of_case("uki");
    recording.check();
    let lines = event_lines(&recording, HashAlgorithm::Sha256, 11);
    let proven_lines: Vec<_> = lines.iter().filter(|line| !line.ends_with("(claimed)")).collect();
    assert_eq!(proven_lines.len(), 4, "{lines:?}");
    assert!(
        proven_lines[2].ends_with("EV_IPL: .cmdline"),
        "{}",
        proven_lines[2]
    );
}

#[test]
fn a_bios_log_with_only_sha_1_replays() {
    let recording = Recording::of_case("bios");
    assert_eq!(recording.check().banks(), [HashAlgorithm::Sha1]);
    assert!(event_lines(&recording, HashAlgorithm::Sha1, 4)[0].ends_with("EV_ACTION: Calling INT 19h"));
    // These data are valid UTF-16, but not text: they must be displayed as hexadecimal digits.
    let line = &event_lines(&recording, HashAlgorithm::Sha1, 1)[0];
    assert_eq!(
        line.rsplit(' ')
            .next()
            .map(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit())),
        Some(true),
        "{line}"
    );
}

/// Returns the PCRs that the notices report as machine-specific.
fn machine_specific(name: &str, bank: HashAlgorithm, selection: &str) -> Vec<u32> {
    let recording = Recording::of_case(name);
    let values = recording.values(bank, selection);
    let log = EventLog::parse(&recording.log).unwrap();
    let replayed = verify_replay(&log, &values).unwrap();
    let notices = notices(values.selection(), Ok(&replayed));
    let specific = |notice: &Notice| match notice {
        Notice::MachineSpecific { pcr, event } => {
            assert!(event.as_ref().is_some_and(|event| event.pcr == *pcr), "{notice}");
            assert!(notice.to_string().contains("remove it from `pcrs`"), "{notice}");
            pcr.get()
        }
        other => panic!("{other}"),
    };
    notices.iter().map(specific).collect()
}

#[test]
fn machine_specific_data_gives_a_notice_and_the_default_pcrs_give_none() {
    for name in ["direct", "uki"] {
        assert_eq!(
            machine_specific(name, HashAlgorithm::Sha256, "0,2-4,7"),
            [0; 0],
            "{name}"
        );
        assert_eq!(
            machine_specific(name, HashAlgorithm::Sha256, "0-4,7"),
            [1],
            "{name}"
        );
    }
}

#[test]
fn a_log_does_not_replay_to_values_of_another_machine() {
    let log = EventLog::parse(&Recording::of_case("direct").log).unwrap();
    let values = Recording::of_case("uki").values(HashAlgorithm::Sha256, PCRS_WITHOUT_IMA);
    let error = verify_replay(&log, &values).unwrap_err();
    assert!(
        matches!(error, ReplayError::ValueMismatch { pcr, last_entry: Some(_), .. } if pcr.get() == 1),
        "{error}"
    );
}

/// Types whose digest must cover the data (docs/measurement.md, 1.1).
const TYPES_WITH_BOUND_DATA: [EventType; 7] = [
    EventType::EV_SEPARATOR,
    EventType::EV_ACTION,
    EventType::EV_EFI_ACTION,
    EventType::EV_S_CRTM_VERSION,
    EventType::EV_EFI_VARIABLE_DRIVER_CONFIG,
    EventType::EV_EFI_VARIABLE_BOOT,
    EventType::EV_EFI_VARIABLE_AUTHORITY,
];

/// Returns the part of the entry's data that the digest covers.
fn proven_bytes(log: &EventLog, entry: usize, coverage: &DigestCoverage) -> Option<Vec<u8>> {
    let data = log.events()[entry].data();
    match coverage {
        DigestCoverage::All => Some(data.to_vec()),
        DigestCoverage::Part(part) => Some(data[part.clone()].to_vec()),
        DigestCoverage::NotLogged | DigestCoverage::Unexplained => None,
    }
}

/// Checks that an accepted log with one changed bit proves no data that the original log does not prove.
fn assert_proves_no_more(
    before: (&EventLog, &ReplayedLog),
    after: (&EventLog, &ReplayedLog),
    position: usize,
) {
    assert_eq!(before.1.events().len(), after.1.events().len(), "byte {position}");
    for (old, new) in before.1.events().iter().zip(after.1.events()) {
        assert_eq!(
            (old.entry, old.pcr, old.digest),
            (new.entry, new.pcr, new.digest),
            "byte {position}"
        );
        let bytes = (
            proven_bytes(before.0, old.entry, &old.coverage),
            proven_bytes(after.0, new.entry, &new.coverage),
        );
        match bytes {
            // Changed data are no longer proven. They are unexplained if the digest of this type must cover the data.
            (Some(_), None) => assert!(
                !TYPES_WITH_BOUND_DATA.contains(&old.kind)
                    || new.kind != old.kind
                    || new.coverage == DigestCoverage::Unexplained,
                "byte {position}: {old} became {new}"
            ),
            (old_bytes, new_bytes) => assert_eq!(old_bytes, new_bytes, "byte {position}: {old} became {new}"),
        }
    }
}

/// Returns for each byte of the log whether the byte may change without contradicting the PCR values. These bytes are
/// the types, the digests of other banks, the data, and platform class and version of EV_NO_ACTION entries.
fn unproven_bytes(log: &EventLog, bank: HashAlgorithm) -> Vec<bool> {
    let agile = log.format() == LogFormat::Agile;
    let mut unproven_bytes = Vec::new();
    let mut push = |bytes: usize, is_unproven: bool| unproven_bytes.extend(vec![is_unproven; bytes]);
    for (entry, event) in log.events().iter().enumerate() {
        let is_no_action = event.kind() == EventType::EV_NO_ACTION;
        push(4, is_no_action);
        push(4, !is_no_action);
        if agile && entry > 0 {
            push(4, false);
            for log_bank in log.banks() {
                push(2, false);
                push(log_bank.digest_bytes(), is_no_action || *log_bank != bank);
            }
        } else {
            push(20, is_no_action);
        }
        // If the last entry's data repeat one byte, a shorter length turns the end of the data into padding.
        let may_be_padding = [0, 0xff].map(|fill| event.data().iter().all(|byte| *byte == fill));
        push(4, entry + 1 == log.events().len() && may_be_padding != [false; 2]);
        let data = event.data().len();
        match is_no_action {
            // Signature, then platform class and version, then the list of algorithms.
            true => {
                push(16, false);
                push(8, true);
                push(data - 24, false);
            }
            false => push(data, true),
        }
    }
    unproven_bytes
}

/// Flips one bit of the log at a time: each bit with a number that is a multiple of `step`.
fn flip_bits(name: &str, bank: HashAlgorithm, step: usize) {
    let recording = Recording::of_case(name);
    let values = recording.values(bank, PCRS_WITHOUT_IMA);
    let log = EventLog::parse(&recording.log).unwrap();
    let replayed = verify_replay(&log, &values).unwrap();
    let unproven_bytes = unproven_bytes(&log, bank);
    assert_eq!(unproven_bytes.len(), recording.log.len());
    let (mut refused, mut accepted, mut unexplained) = (0, 0, 0);
    for bit in (0..recording.log.len() * 8).step_by(step) {
        let mut bytes = recording.log.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(changed_log) = EventLog::parse(&bytes) else {
            refused += 1;
            continue;
        };
        match verify_replay(&changed_log, &values) {
            Ok(changed_replay) => {
                accepted += 1;
                unexplained += changed_replay.unexplained().count();
                assert!(unproven_bytes[bit / 8], "a change of bit {bit} is not detected");
                assert_proves_no_more((&log, &replayed), (&changed_log, &changed_replay), bit / 8);
            }
            Err(_) => refused += 1,
        }
    }
    println!(
        "{name}: {refused} changed bits rejected, {accepted} accepted, {unexplained} unexplained events in accepted logs"
    );
    assert!(refused > 0 && unexplained > 0);
}

#[test]
fn changed_bits_of_the_ovmf_log_are_rejected_or_leave_data_unproven() {
    flip_bits("direct", HashAlgorithm::Sha256, 1);
}

#[test]
fn changed_bits_of_the_shim_and_grub_log_are_rejected_or_leave_data_unproven() {
    // One bit of almost each byte; the bit's position in the byte increases from byte to byte.
    flip_bits("shim", HashAlgorithm::Sha256, 9);
}

#[test]
fn changed_bits_of_the_unified_image_log_are_rejected_or_leave_data_unproven() {
    flip_bits("uki", HashAlgorithm::Sha256, 3);
}

#[test]
fn changed_bits_of_the_bios_log_are_rejected_or_leave_data_unproven() {
    flip_bits("bios", HashAlgorithm::Sha1, 1);
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/firmware-log")
}

#[test]
fn the_log_of_a_new_boot_replays() {
    let check = Command::new(script()).arg("--check").output().unwrap();
    if !check.status.success() {
        skip!(
            "{}",
            String::from_utf8_lossy(&check.stderr).trim().replace('\n', "; ")
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let run = Command::new(script())
        .arg("direct")
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let recording = Recording::read(directory.path());
    let log = recording.check();
    // Linux measures the initrd under this name with every OVMF release.
    assert!(
        log.events()
            .iter()
            .any(|event| event.describe() == "Linux initrd: Linux initrd")
    );
}
