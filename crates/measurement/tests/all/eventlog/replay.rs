//! Logs replay to PCR values, and the digests prove parts of the logs' data.

use linewarden_measurement::HashAlgorithm::{Sha1, Sha256, Sha384};
use linewarden_measurement::eventlog::{DigestCoverage, EventType, ReplayError, verify_replay};
use linewarden_measurement::{Digest, HashAlgorithm};

use crate::common::log::{Log, digests, pcr, utf16, values_of, variable};

/// Returns which part of `data` the digest of `measured` covers, for an event of this type in PCR 7.
fn digest_coverage(kind: EventType, measured: &[u8], data: &[u8]) -> DigestCoverage {
    let mut log = Log::new();
    log.no_action(0, b"a remark").event(7, kind, measured, data);
    let log = log.parse();
    let replayed = verify_replay(&log, &values_of(&log, Sha256, "7")).unwrap();
    let [event] = replayed.events() else { panic!() };
    assert_eq!((event.entry, event.pcr, event.kind), (2, pcr(7), kind));
    assert_eq!(event.digest, Sha256.digest(&[measured]));
    let is_unexplained = event.coverage == DigestCoverage::Unexplained;
    assert_eq!(replayed.unexplained().count(), usize::from(is_unexplained));
    assert_eq!(event.to_string().contains("unexplained, digest "), is_unexplained);
    event.coverage.clone()
}

#[test]
fn a_log_replays_to_its_values_only() {
    let mut log = Log::new();
    log.event(4, EventType::EV_EFI_ACTION, b"Calling", b"Calling")
        .event(0, EventType::EV_POST_CODE, b"code", b"name")
        .event(4, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    let log = log.parse();
    let mut values = values_of(&log, Sha256, "4,11");
    // The test computes PCR 4 without the crate's replay; PCR 11 keeps its start value.
    let extend = |old: &[u8], data: &[u8]| Sha256.digest(&[old, Sha256.digest(&[data]).as_bytes()]);
    let computed = extend(extend(&[0; 32], b"Calling").as_bytes(), &[0; 4]);
    assert_eq!(values.get(pcr(4)), Some(&computed));
    let replayed = verify_replay(&log, &values).unwrap();
    assert_eq!(
        replayed
            .events()
            .iter()
            .map(|event| event.entry)
            .collect::<Vec<_>>(),
        [1, 3]
    );
    assert_eq!(
        replayed.events()[0].to_string(),
        "entry 1, PCR 4, EV_EFI_ACTION: Calling"
    );

    let other = Sha256.digest(&[b"other"]);
    values.set(pcr(4), other).unwrap();
    let error = verify_replay(&log, &values).unwrap_err();
    assert_eq!(
        error,
        ReplayError::ValueMismatch {
            pcr: pcr(4),
            replayed: Box::new(computed),
            actual: Box::new(other),
            last_entry: Some(3)
        }
    );
    assert!(
        error
            .to_string()
            .contains("the last entry of this PCR is 3; the log is truncated or of"),
        "{error}"
    );
    values.set(pcr(4), computed).unwrap();
    values.set(pcr(11), other).unwrap();
    let error = verify_replay(&log, &values).unwrap_err();
    assert!(
        matches!(error, ReplayError::ValueMismatch { last_entry: None, .. }),
        "{error}"
    );
}

#[test]
fn data_with_another_digest_are_unexplained_and_the_log_is_accepted() {
    use EventType as T;
    for kind in [
        T::EV_SEPARATOR,
        T::EV_ACTION,
        T::EV_EFI_ACTION,
        T::EV_OMIT_BOOT_DEVICE_EVENTS,
        T::EV_S_CRTM_VERSION,
        T::EV_EFI_VARIABLE_DRIVER_CONFIG,
        T::EV_EFI_VARIABLE_BOOT,
        T::EV_EFI_VARIABLE_AUTHORITY,
        T::EV_EFI_GPT_EVENT,
    ] {
        let data = variable("SecureBoot", &[1]);
        assert_eq!(digest_coverage(kind, &data, &data), DigestCoverage::All, "{kind}");
        // Data that differ from the measured data are never reported as proven.
        for other_data in [variable("SecureBoot", &[0]), Vec::new()] {
            assert_eq!(
                digest_coverage(kind, &data, &other_data),
                DigestCoverage::Unexplained,
                "{kind}"
            );
        }
    }
    for kind in [
        T::EV_EFI_BOOT_SERVICES_APPLICATION,
        T::EV_EVENT_TAG,
        T::EV_IPL,
        T(0x1234),
    ] {
        assert_eq!(
            digest_coverage(kind, b"image", b"where it was"),
            DigestCoverage::NotLogged,
            "{kind}"
        );
    }
}

#[test]
fn the_formats_of_firmware_and_boot_loaders_are_recognized() {
    use EventType as T;
    let boot = variable("Boot0001", b"option");
    let signed = [&[0xaa; 16][..], b"certificate"].concat();
    let authority = variable("db", &signed);
    let shim_14 = [&variable("Shim", b"certificate")[..], b"\0"].concat();
    let (line, line_nul) = (utf16("quiet splash"), utf16("quiet splash\0"));
    let tagged = [&0x8f3b_22ecu32.to_le_bytes()[..], &5u32.to_le_bytes(), b"inner"].concat();
    let part = |start: usize, end: usize| DigestCoverage::Part(start..end);
    // Type, measured bytes, data, expected coverage.
    type Case<'a> = (T, &'a [u8], &'a [u8], DigestCoverage);
    let cases: [Case<'_>; 22] = [
        (T::EV_EFI_VARIABLE_BOOT, b"option", &boot, part(48, 54)),
        (T::EV_EFI_VARIABLE_BOOT2, &boot, &boot, DigestCoverage::All),
        (T::EV_EFI_VARIABLE_DRIVER_CONFIG, b"option", &boot, part(48, 54)),
        (
            T::EV_EFI_VARIABLE_DRIVER_CONFIG,
            b"optio",
            &boot,
            DigestCoverage::Unexplained,
        ),
        (T::EV_SEPARATOR, &[0; 4], &[0; 50], part(0, 4)),
        (T::EV_EFI_VARIABLE_AUTHORITY, &signed, &authority, part(36, 63)),
        (
            T::EV_EFI_VARIABLE_AUTHORITY,
            b"certificate",
            &authority,
            part(52, 63),
        ),
        (
            T::EV_EFI_VARIABLE_AUTHORITY,
            &shim_14[..51],
            &shim_14,
            part(0, 51),
        ),
        (T::EV_EFI_ACTION, b"Exit", b"Exit\0", part(0, 4)),
        (
            T::EV_IPL,
            b"set timeout=5",
            b"grub_cmd: set timeout=5\0",
            part(10, 23),
        ),
        (
            T::EV_IPL,
            b"set timeout=5\0",
            b"grub_cmd set timeout=5\0",
            part(9, 23),
        ),
        (T::EV_IPL, &line_nul, &line_nul, DigestCoverage::All),
        (T::EV_IPL, &line, &line_nul, part(0, 24)),
        (T::EV_IPL, b".linux\0", &utf16(".linux\0"), DigestCoverage::All),
        (
            T::EV_IPL,
            b"the kernel",
            &utf16(".linux\0"),
            DigestCoverage::NotLogged,
        ),
        (T::EV_IPL, &line_nul, &line_nul[..25], DigestCoverage::All),
        (
            T::EV_IPL,
            b"quiet\0",
            b"grub_kernel_cmdline quiet\0",
            part(20, 26),
        ),
        (
            T::EV_IPL,
            b"quiet",
            b"kernel_cmdline: debug\0",
            DigestCoverage::Unexplained,
        ),
        (
            T::EV_IPL,
            b"set timeout=5",
            b"grub_cmd: set timeout=6\0",
            DigestCoverage::Unexplained,
        ),
        (T::EV_EVENT_TAG, b"inner", &tagged, part(8, 13)),
        (
            T::EV_SEPARATOR,
            &[1, 0, 0, 0],
            b"what went wrong",
            DigestCoverage::NotLogged,
        ),
        (T::EV_COMPACT_HASH, b"abc", b"abc", DigestCoverage::All),
    ];
    for (kind, measured, data, expected) in cases {
        assert_eq!(
            digest_coverage(kind, measured, data),
            expected,
            "{kind} {}",
            String::from_utf8_lossy(data)
        );
    }
}

#[test]
fn entries_for_other_pcrs_and_no_action_entries_are_not_examined() {
    let mut log = Log::new();
    log.event(5, EventType::EV_EFI_ACTION, b"one thing", b"another")
        .no_action(7, b"whatever")
        .event(7, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    let log = log.parse();
    assert_eq!(
        verify_replay(&log, &values_of(&log, Sha256, "7"))
            .unwrap()
            .events()
            .len(),
        1
    );
    let replayed = verify_replay(&log, &values_of(&log, Sha256, "0-7")).unwrap();
    let unexplained: Vec<_> = replayed.unexplained().map(|event| event.entry).collect();
    assert_eq!(unexplained, [1]);
}

#[test]
fn the_error_names_a_bank_without_digests() {
    let mut log = Log::new();
    log.event(7, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]).agile(
        7,
        EventType::EV_SEPARATOR,
        &digests(&[0; 4])[..1],
        &[0; 4],
    );
    let log = log.parse();
    assert!(log.replay(Sha1).is_ok());
    let error = log.replay(Sha256).unwrap_err();
    assert!(!error.has_no_statement());
    assert_eq!(
        error.to_string(),
        "event log entry 2 (EV_SEPARATOR, PCR 7) has no digest of the bank sha256"
    );
    assert_eq!(
        log.replay(Sha384),
        Err(ReplayError::MissingBank {
            bank: Sha384,
            available: vec![Sha1, Sha256]
        })
    );
}

#[test]
fn the_start_value_of_pcr_0_is_the_startup_locality() {
    let start_value = |bank: HashAlgorithm, locality_byte: u8| {
        let mut bytes = vec![0; bank.digest_bytes()];
        *bytes.last_mut().unwrap() = locality_byte;
        Digest::new(bank, &bytes).unwrap()
    };
    let locality = |locality: u8| [b"StartupLocality\0", &[locality][..]].concat();
    let separator_data = [0u8; 4];
    let mut logs = Vec::new();
    for stated in [0, 3, 4] {
        let mut log = Log::new();
        log.no_action(0, &locality(stated)).event(
            0,
            EventType::EV_SEPARATOR,
            &separator_data,
            &separator_data,
        );
        logs.push((log, stated, separator_data.to_vec()));
    }
    let mut log = Log::new();
    log.event(0, EventType::EV_EFI_HCRTM_EVENT, b"microcode", b"HCRTM");
    logs.push((log, 4, b"microcode".to_vec()));
    let mut log = Log::new();
    log.event(0, EventType::EV_SEPARATOR, &separator_data, &separator_data);
    logs.push((log, 0, separator_data.to_vec()));
    for (log, locality_byte, measured) in logs {
        for bank in [Sha1, Sha256] {
            let expected = start_value(bank, locality_byte).extended(&bank.digest(&[&measured]));
            assert_eq!(
                log.parse().replay(bank).unwrap().get(pcr(0)),
                Some(&expected),
                "{locality_byte}"
            );
        }
    }
    // The startup event is missing, invalid or repeated, or comes late. Then the replay tries the start values of the
    // localities 0, 3 and 4, and no other start values.
    let startup_event_lists: [&[&[u8]]; 5] = [
        &[],
        &[&locality(1)],
        &[&locality(0), &locality(3)],
        &[&locality(3)[..16]],
        &[&[&locality(3)[..], b"x"].concat()],
    ];
    for events in startup_event_lists {
        let mut log = Log::new();
        for startup_event in events {
            log.no_action(0, startup_event);
        }
        log.event(0, EventType::EV_SEPARATOR, &separator_data, &separator_data)
            .no_action(0, &locality(3));
        let log = log.parse();
        for (locality_byte, is_locality) in [(0, true), (3, true), (4, true), (1, false), (0x80, false)] {
            let mut values = values_of(&log, Sha256, "0,7");
            let value = start_value(Sha256, locality_byte).extended(&Sha256.digest(&[&separator_data]));
            values.set(pcr(0), value).unwrap();
            assert_eq!(
                verify_replay(&log, &values).is_ok(),
                is_locality,
                "{locality_byte}"
            );
            // PCR 7 cannot start with a locality.
            values.set(pcr(7), start_value(Sha256, 3)).unwrap();
            assert!(verify_replay(&log, &values).is_err());
        }
    }
}

#[test]
fn text_in_event_data_is_escaped() {
    let mut log = Log::new();
    log.event(
        8,
        EventType::EV_IPL,
        b"",
        b"grub_cmd: \x1b[2Jset a\nb \xe2\x80\xaereversed",
    )
    .event(
        8,
        EventType::EV_EFI_VARIABLE_BOOT,
        b"",
        &variable("Na\u{7}me", b""),
    )
    .event(8, EventType::EV_IPL, b"", &[b'x'; 5000]);
    let log = log.parse();
    let descriptions: Vec<_> = log
        .events()
        .iter()
        .skip(1)
        .map(|event| event.describe())
        .collect();
    // Data with a control character are not displayed as text.
    assert!(
        descriptions[0].bytes().all(|byte| byte.is_ascii_hexdigit())
            || descriptions[0].contains("bytes with"),
        "{}",
        descriptions[0]
    );
    assert_eq!(
        descriptions[1],
        "Na\\u{7}me (8be4df61-93ca-11d2-aa0d-00e098032b8c): nothing"
    );
    assert!(descriptions[2].chars().count() <= 201);
    assert!(
        descriptions
            .iter()
            .all(|line| !line.chars().any(char::is_control))
    );
}
