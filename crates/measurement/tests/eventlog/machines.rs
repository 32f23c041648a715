//! Logs of machines that are honest and unusual (tests/data/README.md): none is refused, and what is unexplained is told.

use linewarden_measurement::HashAlgorithm::{self, Sha1, Sha256};
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{
    Binding, EventLog, EventType, LogFormat, Notice, Replayed, notices, replays,
};
use linewarden_measurement::pcr::PcrValues;

use crate::common::log::{Log, pcr, values_of};

/// All PCRs that firmware extends.
const FIRMWARE: &str = "0-7";

fn replayed(bytes: &[u8], bank: HashAlgorithm) -> (PcrValues, Replayed) {
    let log = EventLog::parse(bytes).unwrap();
    let values = values_of(&log, bank, FIRMWARE);
    let replayed = replays(&log, &values).unwrap();
    (values, replayed)
}

/// Entry, type and description of what is unexplained.
fn unexplained(replayed: &Replayed) -> Vec<(usize, EventType, &str)> {
    let events = replayed.unexplained();
    events
        .map(|event| (event.entry, event.kind, event.description.as_str()))
        .collect()
}

#[test]
fn a_version_whose_digest_is_of_something_else_is_unexplained() {
    let log = include_bytes!("../data/cases/dell-poweredge-crtm-version.bin");
    let (values, replayed) = replayed(log, Sha256);
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
    assert_eq!(serde_json::to_value(event).unwrap()["binding"], "unexplained");
    let told: Vec<String> = notices(values.selection(), Ok(&replayed))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        told[0].starts_with("1 event of the log with data that the digest is not of, appraised by digest alone; the first: entry 3"),
        "{told:?}"
    );
    assert!(
        told[1].starts_with("PCR 1 holds data of the machine alone on most hardware"),
        "{told:?}"
    );
}

#[test]
fn digests_of_files_under_their_names_are_unexplained() {
    let (_, replayed) = replayed(include_bytes!("../data/cases/coreboot-ev-action.bin"), Sha256);
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
fn separators_in_a_field_of_fifty_bytes_are_proven_in_part() {
    let (_, replayed) = replayed(include_bytes!("../data/cases/starlabs-separator-50.bin"), Sha256);
    assert_eq!((replayed.events().len(), unexplained(&replayed).len()), (8, 0));
    for event in replayed.events() {
        assert_eq!(
            (&event.binding, event.description.as_str()),
            (&Binding::Part(0..4), "end of the phase")
        );
    }
}

#[test]
fn a_variable_of_which_firmware_for_tpm_1_2_measures_the_value_is_proven_in_part() {
    let log = include_bytes!("../data/cases/lenovo-n1fet43w-tpm12-driver-config.bin");
    let parsed = EventLog::parse(log).unwrap();
    assert_eq!((parsed.format(), parsed.banks()), (LogFormat::Sha1, &[Sha1][..]));
    let (_, replayed) = replayed(log, Sha1);
    let last = replayed.events().last().unwrap();
    assert_eq!(
        (last.kind, &last.binding),
        (EventType::EV_EFI_VARIABLE_DRIVER_CONFIG, &Binding::Part(52..53))
    );
    assert!(last.to_string().ends_with(": 00 (in part claimed)"), "{last}");
    assert_eq!(unexplained(&replayed), []);
}

#[test]
fn a_log_that_says_nothing_of_a_bank_is_silent_about_its_values() {
    let mut values = PcrValues::new(Sha256);
    values.set(pcr(0), Sha256.digest(&[b"whatever"])).unwrap();
    let lenovo = include_bytes!("../data/cases/lenovo-n1fet43w-tpm12-driver-config.bin");
    let empty = include_bytes!("../data/cases/empty.bin");
    for (bytes, why) in [
        (&empty[..], "the event log is empty"),
        (&[0xff; 4096], "the event log is empty"),
        (
            lenovo,
            "the event log has no digests of the bank sha256, only of sha1",
        ),
    ] {
        let silence = replays(&EventLog::parse(bytes).unwrap(), &values).unwrap_err();
        assert!(silence.is_silence());
        assert_eq!(silence.to_string(), why);
        let [notice @ Notice::NoLog { .. }] = &notices(values.selection(), Err(why))[..] else {
            panic!()
        };
        assert_eq!(
            notice.to_string(),
            format!(
                "{why}: PCRs 0 are appraised by their values alone, and no event says how these came about"
            )
        );
    }
    // A log that says something else is none of these.
    let mut log = Log::new();
    log.event(0, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    assert!(!replays(&log.parse(), &values).unwrap_err().is_silence());
}

/// As a confidential guest gives its log: the table's whole memory, filled with 0xff.
#[test]
fn every_log_is_the_same_with_the_filling_of_a_ccel_table() {
    let recorded = [
        (&include_bytes!("../data/direct/log.bin")[..], Sha256),
        (include_bytes!("../data/bios/log.bin"), Sha1),
        (include_bytes!("../data/cases/coreboot-ev-action.bin"), Sha256),
        (
            include_bytes!("../data/cases/dell-poweredge-crtm-version.bin"),
            Sha256,
        ),
    ];
    for (log, bank) in recorded {
        let mut filled = log.to_vec();
        filled.resize(1 << 17, 0xff);
        assert_eq!(replayed(&filled, bank), replayed(log, bank));
    }
}

#[test]
fn data_of_one_machine_are_noticed_wherever_firmware_puts_them() {
    let mut log = Log::new();
    log.event(2, EventType::EV_EFI_VARIABLE_BOOT, b"order", b"")
        .event(3, EventType::EV_EFI_HANDOFF_TABLES, b"SMBIOS", b"")
        .event(5, EventType::EV_EFI_GPT_EVENT, b"disk", b"disk")
        .event(6, EventType::EV_TABLE_OF_DEVICES, b"devices", b"")
        .event(7, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    let (values, replayed) = replayed(&log.bytes, Sha256);
    let specific = |notice: &Notice| match notice {
        Notice::MachineSpecific { pcr, event } => Some((pcr.get(), event.as_ref().map(|event| event.entry))),
        _ => None,
    };
    let noticed: Vec<_> = notices(values.selection(), Ok(&replayed))
        .iter()
        .filter_map(specific)
        .collect();
    assert_eq!(
        noticed,
        [(1, None), (2, Some(1)), (3, Some(2)), (5, Some(3)), (6, Some(4))]
    );
}

/// Data that nothing proves decide nothing: only the digests do.
#[test]
fn two_logs_with_the_same_claim_differ_by_their_digests() {
    let boot = |measured: &[u8]| {
        let mut log = Log::new();
        log.event(0, EventType::EV_S_CRTM_VERSION, measured, b"2.3.5");
        let (values, replayed) = replayed(&log.bytes, Sha256);
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
