//! Unusual logs of genuine machines (tests/data/README.md): all logs are accepted, and unexplained data are reported.

use linewarden_measurement::HashAlgorithm::{self, Sha1, Sha256};
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{
    DigestCoverage, EventLog, EventType, LogFormat, Notice, ReplayedLog, notices, verify_replay,
};
use linewarden_measurement::pcr::PcrValues;

use crate::common::log::{Log, pcr, values_of};

/// All PCRs that firmware extends.
const FIRMWARE_PCRS: &str = "0-7";

fn replay_firmware_log(bytes: &[u8], bank: HashAlgorithm) -> (PcrValues, ReplayedLog) {
    let log = EventLog::parse(bytes).unwrap();
    let values = values_of(&log, bank, FIRMWARE_PCRS);
    let replayed = verify_replay(&log, &values).unwrap();
    (values, replayed)
}

/// Returns entry number, type and description of the events with unexplained data.
fn unexplained(replayed: &ReplayedLog) -> Vec<(usize, EventType, &str)> {
    let events = replayed.unexplained();
    events
        .map(|event| (event.entry, event.kind, event.description.as_str()))
        .collect()
}

#[test]
fn a_version_with_a_digest_of_other_data_is_unexplained() {
    let log = include_bytes!("../../data/cases/dell-poweredge-crtm-version.bin");
    let (values, replayed) = replay_firmware_log(log, Sha256);
    assert_eq!(
        unexplained(&replayed),
        [(3, EventType::EV_S_CRTM_VERSION, "2.3.5")]
    );
    let event = replayed.unexplained().next().unwrap();
    assert_eq!(
        event.to_string(),
        format!(
            "entry 3, PCR 0, EV_S_CRTM_VERSION: 2.3.5 (unexplained, digest {})",
            event.digest
        )
    );
    assert_eq!(serde_json::to_value(event).unwrap()["coverage"], "unexplained");
    let notice_lines: Vec<String> = notices(values.selection(), Ok(&replayed))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        notice_lines[0].starts_with(
            "1 event with data that the digest does not cover, appraised by digest alone; the first: entry 3"
        ),
        "{notice_lines:?}"
    );
    assert!(
        notice_lines[1].starts_with("PCR 1 contains machine-specific data on most hardware"),
        "{notice_lines:?}"
    );
}

#[test]
fn events_with_a_file_name_and_a_digest_of_the_file_are_unexplained() {
    let (_, replayed) =
        replay_firmware_log(include_bytes!("../../data/cases/coreboot-ev-action.bin"), Sha256);
    let action = EventType::EV_ACTION;
    assert_eq!(
        unexplained(&replayed),
        [
            (1, action, "FMAP: FMAP"),
            (2, action, "CBFS: bootblock"),
            (3, action, "CBFS: fallback/romstage")
        ]
    );
}

#[test]
fn separators_with_fifty_bytes_of_data_are_proven_partly() {
    let (_, replayed) = replay_firmware_log(
        include_bytes!("../../data/cases/starlabs-separator-50.bin"),
        Sha256,
    );
    assert_eq!((replayed.events().len(), unexplained(&replayed).len()), (8, 0));
    for event in replayed.events() {
        assert_eq!(
            (&event.coverage, event.description.as_str()),
            (&DigestCoverage::Part(0..4), "end of the phase")
        );
    }
}

#[test]
fn variables_measured_by_value_for_tpm_1_2_are_proven_partly() {
    let log = include_bytes!("../../data/cases/lenovo-n1fet43w-tpm12-driver-config.bin");
    let parsed = EventLog::parse(log).unwrap();
    assert_eq!((parsed.format(), parsed.banks()), (LogFormat::Sha1, &[Sha1][..]));
    let (_, replayed) = replay_firmware_log(log, Sha1);
    let last = replayed.events().last().unwrap();
    assert_eq!(
        (last.kind, &last.coverage),
        (
            EventType::EV_EFI_VARIABLE_DRIVER_CONFIG,
            &DigestCoverage::Part(52..53)
        )
    );
    assert!(last.to_string().ends_with(": 00 (in part claimed)"), "{last}");
    assert_eq!(unexplained(&replayed), []);
}

#[test]
fn a_log_without_entries_of_a_bank_gives_a_notice_for_the_values() {
    let mut values = PcrValues::new(Sha256);
    values.set(pcr(0), Sha256.digest(&[b"whatever"])).unwrap();
    let lenovo = include_bytes!("../../data/cases/lenovo-n1fet43w-tpm12-driver-config.bin");
    let empty = include_bytes!("../../data/cases/empty.bin");
    for (bytes, reason) in [
        (&empty[..], "event log is empty"),
        (&[0xff; 4096], "event log is empty"),
        (
            lenovo,
            "event log has no digests of the bank sha256, only of sha1",
        ),
    ] {
        let error = verify_replay(&EventLog::parse(bytes).unwrap(), &values).unwrap_err();
        assert!(error.has_no_statement());
        assert_eq!(error.to_string(), reason);
        let [notice @ Notice::NoLog { .. }] = &notices(values.selection(), Err(reason))[..] else {
            panic!()
        };
        assert_eq!(
            notice.to_string(),
            format!("{reason}: PCRs 0 are appraised by their values alone, without an event log")
        );
    }
    // A log that contradicts the values gives a different error.
    let mut log = Log::new();
    log.event(0, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    assert!(
        !verify_replay(&log.parse(), &values)
            .unwrap_err()
            .has_no_statement()
    );
}

/// A confidential guest provides the whole memory area of its CCEL table: the log, padded with 0xff.
#[test]
fn logs_with_the_padding_of_a_ccel_table_replay_equally() {
    let recorded = [
        (&include_bytes!("../../data/direct/log.bin")[..], Sha256),
        (include_bytes!("../../data/bios/log.bin"), Sha1),
        (include_bytes!("../../data/cases/coreboot-ev-action.bin"), Sha256),
        (
            include_bytes!("../../data/cases/dell-poweredge-crtm-version.bin"),
            Sha256,
        ),
    ];
    for (log, bank) in recorded {
        let mut padded = log.to_vec();
        padded.resize(1 << 17, 0xff);
        assert_eq!(replay_firmware_log(&padded, bank), replay_firmware_log(log, bank));
    }
}

#[test]
fn machine_specific_data_gives_a_notice_at_every_location() {
    let mut log = Log::new();
    log.event(2, EventType::EV_EFI_VARIABLE_BOOT, b"order", b"")
        .event(3, EventType::EV_EFI_HANDOFF_TABLES, b"SMBIOS", b"")
        .event(5, EventType::EV_EFI_GPT_EVENT, b"disk", b"disk")
        .event(6, EventType::EV_TABLE_OF_DEVICES, b"devices", b"")
        .event(7, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    let (values, replayed) = replay_firmware_log(&log.bytes, Sha256);
    let machine_specific = |notice: &Notice| match notice {
        Notice::MachineSpecific { pcr, event } => Some((pcr.get(), event.as_ref().map(|event| event.entry))),
        _ => None,
    };
    let locations: Vec<_> = notices(values.selection(), Ok(&replayed))
        .iter()
        .filter_map(machine_specific)
        .collect();
    assert_eq!(
        locations,
        [(1, None), (2, Some(1)), (3, Some(2)), (5, Some(3)), (6, Some(4))]
    );
}

/// Decisions depend only on the digests, and not on unproven data.
#[test]
fn two_logs_with_the_same_claim_differ_by_their_digests() {
    let boot = |measured: &[u8]| {
        let mut log = Log::new();
        log.event(0, EventType::EV_S_CRTM_VERSION, measured, b"2.3.5");
        let (values, replayed) = replay_firmware_log(&log.bytes, Sha256);
        (Configuration::new(values, [].into()).unwrap(), replayed)
    };
    let ((old, old_log), (new, new_log)) = (boot(b"one"), boot(b"two"));
    let difference = Difference::between(&old, &new).with_events(&old_log, &new_log);
    let lines = difference.to_string();
    for measured in [&b"one"[..], b"two"] {
        let event = format!(
            "entry 1, PCR 0, EV_S_CRTM_VERSION: 2.3.5 (unexplained, digest {})",
            Sha256.digest(&[measured])
        );
        assert!(lines.contains(&event), "{lines}");
    }
}
