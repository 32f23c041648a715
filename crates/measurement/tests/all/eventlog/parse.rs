//! Valid and invalid logs.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::eventlog::{
    ENTRIES_MAX, EntryProblem, EventLog, EventType, LOG_BYTES_MAX, LogFormat, ParseError,
};

use crate::common::log::{Log, digests, spec_id};

fn parse_error(log: &Log) -> (usize, EntryProblem) {
    match EventLog::parse(&log.bytes) {
        Err(ParseError::Entry {
            entry,
            problem,
            offset,
        }) => {
            assert_eq!(Some(&offset), log.entry_offsets.get(entry), "{problem}");
            (entry, problem)
        }
        other => panic!("{other:?}"),
    }
}

fn small_log() -> Log {
    let mut log = Log::new();
    log.event(0, EventType::EV_S_CRTM_VERSION, b"1\0", b"1\0")
        .event(7, EventType(0x9999_0001), b"anything", b"kept")
        .event(0, EventType::EV_SEPARATOR, &[0; 4], &[0; 4]);
    log
}

#[test]
fn both_formats_are_read() {
    let log = small_log().parse();
    assert_eq!(
        (log.format(), log.banks().len(), log.events().len()),
        (LogFormat::Agile, 2, 4)
    );
    let unknown = &log.events()[2];
    assert_eq!(
        (unknown.kind(), unknown.data()),
        (EventType(0x9999_0001), &b"kept"[..])
    );
    assert_eq!(unknown.kind().to_string(), "event type 0x99990001");
    assert_eq!(
        unknown.digest(HashAlgorithm::Sha1),
        Some(&HashAlgorithm::Sha1.digest(&[b"anything"]))
    );

    let mut sha1_log = Log::empty();
    sha1_log
        .legacy(0, EventType::EV_NO_ACTION, &[0; 20], b"Spec ID Event02\0....")
        .legacy(4, EventType::EV_IPL, &[7; 20], b"loader");
    let sha1_log = sha1_log.parse();
    assert_eq!(
        (sha1_log.format(), sha1_log.banks(), sha1_log.events().len()),
        (LogFormat::Sha1, &[HashAlgorithm::Sha1][..], 2)
    );
}

#[test]
fn a_log_that_ends_inside_an_entry_is_refused_with_the_entry_number() {
    let log = small_log();
    let boundaries: Vec<_> = log
        .entry_offsets
        .iter()
        .skip(1)
        .chain([&log.bytes.len()])
        .copied()
        .collect();
    for length in 1..=log.bytes.len() {
        let entry = boundaries.iter().filter(|end| **end < length).count();
        match EventLog::parse(&log.bytes[..length]) {
            // Zero bytes at the start of an entry for PCR 0 look like padding. The PCR values reveal the missing entry.
            Ok(truncated_log) => {
                let end = truncated_log
                    .events()
                    .len()
                    .checked_sub(1)
                    .map_or(0, |last| boundaries[last]);
                assert!(
                    log.bytes[end..length].iter().all(|byte| *byte == 0),
                    "{length} bytes"
                );
            }
            Err(ParseError::Entry {
                entry: error_entry,
                problem: EntryProblem::Truncated(_),
                ..
            }) => {
                assert_eq!(error_entry, entry, "{length} bytes");
                assert!(!boundaries.contains(&length));
            }
            Err(other) => panic!("{length} bytes: {other}"),
        }
    }
}

#[test]
fn bytes_after_the_last_entry_are_rejected_as_the_next_entry() {
    let with_tail = |tail: &[u8]| {
        let mut log = small_log();
        log.entry_offsets.push(log.bytes.len());
        log.bytes.extend(tail);
        log
    };
    assert_eq!(
        parse_error(&with_tail(&[1])),
        (4, EntryProblem::Truncated("PCR index"))
    );
    // These bytes are not padding, because padding repeats one byte up to the end.
    let mut two_byte_values = vec![0xff; 64];
    two_byte_values.push(0);
    assert_eq!(
        parse_error(&with_tail(&two_byte_values)),
        (4, EntryProblem::InvalidPcr(u32::MAX))
    );
    let mut two_byte_values = vec![0; 64];
    two_byte_values.push(0xff);
    assert!(EventLog::parse(&with_tail(&two_byte_values).bytes).is_err());
    // A truncated entry is rejected even if all bytes at its end are equal.
    let mut log = small_log();
    log.event(4, EventType::EV_SEPARATOR, &[0xff; 4], &[0xff; 4]);
    log.bytes.pop();
    assert_eq!(parse_error(&log), (4, EntryProblem::Truncated("event data")));
}

#[test]
fn padding_after_the_last_entry_is_ignored() {
    let mut with_0xff_at_the_end = small_log();
    with_0xff_at_the_end.event(4, EventType::EV_SEPARATOR, &[0xff; 4], &[0xff; 4]);
    for log in [small_log(), with_0xff_at_the_end] {
        for (fill, bytes) in [
            (0, 1),
            (0xff, 1),
            (0, 32),
            (0xff, 32),
            (0, 1 << 16),
            (0xff, 1 << 16),
        ] {
            let mut padded = log.bytes.clone();
            padded.resize(padded.len() + bytes, fill);
            assert_eq!(
                EventLog::parse(&padded).unwrap(),
                log.parse(),
                "{bytes} bytes of {fill}"
            );
        }
    }
    for empty in [&[][..], &[0; 100], &[0xff; 100]] {
        let log = EventLog::parse(empty).unwrap();
        assert_eq!((log.banks(), log.events()), (&[][..], &[][..]));
        assert!(log.replay(HashAlgorithm::Sha256).unwrap_err().has_no_statement());
    }
}

#[test]
fn invalid_entries_are_refused_with_their_number() {
    let error_of = |add_entry: &dyn for<'a> Fn(&'a mut Log) -> &'a mut Log| {
        let mut log = small_log();
        add_entry(&mut log);
        parse_error(&log)
    };
    let sha256 = digests(b"x")[1].clone();
    let kind = EventType::EV_IPL;
    assert_eq!(
        error_of(&|log| log.event(24, kind, b"", b"")),
        (4, EntryProblem::InvalidPcr(24))
    );
    assert_eq!(
        error_of(&|log| log.agile(4, kind, &[], b"x")),
        (4, EntryProblem::NoDigest)
    );
    // An EV_NO_ACTION entry extends no PCR.
    let mut log = small_log();
    log.agile(4, EventType::EV_NO_ACTION, &[], b"x");
    assert_eq!(log.parse().events().len(), 5);
    assert_eq!(
        error_of(&|log| log.agile(4, kind, &[sha256.clone(), sha256.clone()], b"")),
        (4, EntryProblem::InvalidAlgorithm(11))
    );
    assert_eq!(
        error_of(&|log| log.agile(4, kind, &[(12, vec![0; 48])], b"")),
        (4, EntryProblem::UnlistedAlgorithm(12))
    );
    let repeated = vec![sha256.clone(); 17];
    assert_eq!(
        error_of(&|log| log.agile(4, kind, &repeated, b"")),
        (4, EntryProblem::InvalidAlgorithmCount(17))
    );
    // An EV_NO_ACTION entry may have no PCR.
    let mut log = small_log();
    log.no_action(u32::MAX, b"about the whole platform");
    assert_eq!(log.parse().events()[4].pcr(), None);
}

#[test]
fn the_first_entrys_list_of_algorithms_is_checked() {
    let log_with = |algorithms: &[(u16, u16)]| {
        let mut log = Log::empty();
        log.legacy(0, EventType::EV_NO_ACTION, &[0; 20], &spec_id(algorithms));
        log
    };
    assert_eq!(
        parse_error(&log_with(&[])),
        (0, EntryProblem::InvalidAlgorithmCount(0))
    );
    assert_eq!(
        parse_error(&log_with(&[(11, 20)])),
        (0, EntryProblem::InvalidAlgorithm(11))
    );
    assert_eq!(
        parse_error(&log_with(&[(11, 32), (11, 32)])),
        (0, EntryProblem::InvalidAlgorithm(11))
    );
    assert_eq!(
        parse_error(&log_with(&[(0x99, 65)])),
        (0, EntryProblem::InvalidAlgorithm(0x99))
    );
    let encoding = spec_id(&[(11, 32)]);
    for length in 16..encoding.len() {
        let mut log = Log::empty();
        log.legacy(0, EventType::EV_NO_ACTION, &[0; 20], &encoding[..length]);
        assert!(
            matches!(parse_error(&log), (0, EntryProblem::TruncatedList(_))),
            "{length}"
        );
    }
}

#[test]
fn digests_of_unknown_algorithms_are_skipped_by_their_listed_size() {
    let mut log = Log::empty();
    let sm3 = (0x12, vec![9; 32]);
    log.legacy(
        0,
        EventType::EV_NO_ACTION,
        &[0; 20],
        &spec_id(&[(11, 32), (0x12, 32)]),
    )
    .agile(4, EventType::EV_IPL, &[sm3, digests(b"x")[1].clone()], b"x");
    let log = log.parse();
    assert_eq!(log.banks(), [HashAlgorithm::Sha256]);
    assert_eq!(
        log.events()[1].digest(HashAlgorithm::Sha256),
        Some(&HashAlgorithm::Sha256.digest(&[b"x"]))
    );
}

#[test]
fn length_and_number_of_entries_are_bounded() {
    assert_eq!(
        EventLog::parse(&vec![1; LOG_BYTES_MAX + 1]),
        Err(ParseError::TooLong(LOG_BYTES_MAX + 1))
    );
    let mut log = Log::empty();
    for _ in 0..=ENTRIES_MAX {
        log.legacy(4, EventType::EV_IPL, &[7; 20], b"");
    }
    assert_eq!(parse_error(&log), (ENTRIES_MAX, EntryProblem::TooMany));
}
