//! Untrusted bytes: logs and configurations are parsed or rejected. Each parsed value has exactly one encoding, except
//! for the padding of logs.

use std::collections::BTreeMap;

use crate::common::log::{BANKS, Log, digests, spec_id};
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{Event, EventLog, EventType, LogFormat, verify_replay};
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, LinkTarget, Mode};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

const LOGS: [&[u8]; 4] = [
    include_bytes!("../data/bios/log.bin"),
    include_bytes!("../data/direct/log.bin"),
    include_bytes!("../data/shim/log.bin"),
    include_bytes!("../data/uki/log.bin"),
];

/// A list of edits. Each edit is a position as a fraction of the length, a byte, and the number of an operation.
fn edits() -> impl Strategy<Value = Vec<(f64, u8, u8)>> {
    vec((0.0..1.0, any::<u8>(), 0u8..6), 0..5)
}

fn with_edits(bytes: &[u8], edits: &[(f64, u8, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (share, value, operation) in edits {
        // The first entry, with the list of algorithms, is in the first 80 bytes: half of the edits are there.
        let position_limit = if value & 1 == 0 {
            bytes.len()
        } else {
            bytes.len().min(80)
        };
        let position = (share * position_limit as f64) as usize;
        match operation {
            0 => bytes.truncate(position),
            1 => bytes.insert(position, *value),
            2 if position < bytes.len() => drop(bytes.remove(position)),
            3 => bytes.extend_from_within(position..),
            _ if position < bytes.len() => bytes[position] ^= value | 1,
            _ => {}
        }
    }
    bytes
}

/// Whether digests of unknown algorithms were skipped: the first entry lists more algorithms than the log has banks.
fn has_unknown_banks(log: &EventLog) -> bool {
    let first = log.events().first().map(Event::data).unwrap_or_default();
    let listed = first.get(24).map(|count| usize::from(*count));
    log.format() == LogFormat::Agile && listed != Some(log.banks().len())
}

/// Encodes a parsed log.
fn encode_again(log: &EventLog) -> Vec<u8> {
    let mut bytes = Log::empty();
    for (entry, event) in log.events().iter().enumerate() {
        let pcr = event.pcr().map_or(u32::MAX, PcrIndex::get);
        if log.format() == LogFormat::Sha1 || entry == 0 {
            let digest = event.digest(HashAlgorithm::Sha1).unwrap();
            bytes.legacy(pcr, event.kind(), digest.as_bytes(), event.data());
        } else {
            let digest_field = |bank: &HashAlgorithm| {
                event
                    .digest(*bank)
                    .map(|digest| (bank.tcg_id(), digest.as_bytes().to_vec()))
            };
            let digests: Vec<_> = log.banks().iter().filter_map(digest_field).collect();
            bytes.agile(pcr, event.kind(), &digests, event.data());
        }
    }
    bytes.bytes
}

fn all_pcrs() -> PcrSelection {
    PcrSelection::from_bitmap([0xff; 3])
}

/// Describes all events and replays the log in all banks; checks that no message has a line break.
fn exercise(log: &EventLog) {
    for line in log.events().iter().map(Event::describe) {
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
    for bank in HashAlgorithm::ALL {
        let Ok(replayed) = log.replay(bank) else { continue };
        match verify_replay(log, &replayed) {
            Ok(replayed_log) => assert!(
                replayed_log
                    .events()
                    .iter()
                    .all(|event| !event.to_string().contains('\n'))
            ),
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
}

fn event() -> impl Strategy<Value = (u32, u32, Vec<u8>, bool)> {
    let kind = prop_oneof![
        0u32..0x14,
        0x8000_0000u32..0x8000_0011,
        0x8000_00e0u32..0x8000_00e5,
        any::<u32>()
    ];
    (0u32..25, kind, vec(any::<u8>(), 0..120), any::<bool>())
}

fn bank() -> impl Strategy<Value = HashAlgorithm> {
    prop::sample::select(&HashAlgorithm::ALL[1..])
}

fn mode() -> impl Strategy<Value = Mode> {
    (0u16..0o10000).prop_map(|bits| Mode::new(bits).unwrap())
}

fn entry() -> impl Strategy<Value = FileEntry> {
    let device = (any::<u32>(), any::<u32>());
    prop_oneof![
        Just(FileEntry::Absent),
        (mode(), any::<[u8; 32]>()).prop_map(|(mode, content)| FileEntry::File {
            mode,
            content: ContentHash(content)
        }),
        vec(1u8.., 1..9).prop_map(|text| FileEntry::Link {
            target: LinkTarget::new(text).unwrap()
        }),
        mode().prop_map(|mode| FileEntry::Directory { mode }),
        mode().prop_map(|mode| FileEntry::Fifo { mode }),
        mode().prop_map(|mode| FileEntry::Socket { mode }),
        (mode(), device).prop_map(|(mode, device)| FileEntry::CharacterDevice { mode, device }),
        (mode(), device).prop_map(|(mode, device)| FileEntry::BlockDevice { mode, device }),
    ]
}

/// The paths and PCR values are from small sets, so that two configurations often have equal entries.
fn configuration() -> impl Strategy<Value = Configuration> {
    let path = "/[ab]{1,2}(/[ab\u{e9}])?".prop_map(|path| FilePath::new(path).unwrap());
    let pcrs = btree_map(0u32..24, 0u8..2, 0..6);
    (bank(), pcrs, btree_map(path, entry(), 0..6)).prop_map(|(bank, pcrs, files)| {
        let mut values = PcrValues::new(bank);
        for (index, byte) in pcrs {
            let value = Digest::new(bank, &vec![byte; bank.digest_bytes()]).unwrap();
            values.set(PcrIndex::try_from(index).unwrap(), value).unwrap();
        }
        Configuration::new(values, files).unwrap()
    })
}

/// Returns the new configuration, computed from the old configuration and the difference.
fn apply_difference(old: &Configuration, difference: &Difference) -> Configuration {
    let bank = difference.banks.map_or(old.pcrs().bank(), |banks| banks.new);
    let mut values: BTreeMap<_, _> = old.pcrs().iter().map(|(index, value)| (index, *value)).collect();
    for change in &difference.pcrs {
        match change.value.new {
            Some(value) => values.insert(change.pcr, value),
            None => values.remove(&change.pcr),
        };
    }
    let mut files = old.files().clone();
    for change in &difference.files {
        match &change.entry.new {
            Some(entry) => files.insert(change.path.clone(), entry.clone()),
            None => files.remove(&change.path),
        };
    }
    let mut pcrs = PcrValues::new(bank);
    for (index, value) in values {
        pcrs.set(index, value).unwrap();
    }
    Configuration::new(pcrs, files).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edited_logs_are_refused_or_consist_of_entries_and_padding(log_index in 0..4usize, changes in edits()) {
        let bytes = with_edits(LOGS[log_index], &changes);
        if let Ok(log) = EventLog::parse(&bytes) {
            exercise(&log);
            if !has_unknown_banks(&log) {
                let encoded = encode_again(&log);
                let padding = &bytes[encoded.len()..];
                prop_assert!(padding.iter().all(|byte| *byte == 0) || padding.iter().all(|byte| *byte == 0xff));
                prop_assert_eq!(EventLog::parse(&encoded), Ok(log));
            }
        }
    }

    #[test]
    fn edited_logs_never_replay_to_other_proven_values(log_index in 1..4usize, changes in edits()) {
        let log = EventLog::parse(LOGS[log_index]).unwrap();
        let values = log.replay(HashAlgorithm::Sha256).unwrap();
        let proven_digests = |log: &EventLog| {
            let replayed_log = verify_replay(log, &values).ok()?;
            Some(replayed_log.events().iter().map(|event| (event.pcr, event.digest)).collect::<Vec<_>>())
        };
        let before = proven_digests(&log);
        prop_assert!(before.is_some());
        if let Some(after) = EventLog::parse(&with_edits(LOGS[log_index], &changes)).ok().as_ref().and_then(proven_digests) {
            // Entries of different PCRs may change their order; entries of one PCR may not.
            for index in all_pcrs().iter() {
                let digests_of_pcr = |events: &[(PcrIndex, Digest)]| -> Vec<Digest> {
                    events.iter().filter(|(pcr, _)| *pcr == index).map(|(_, digest)| *digest).collect()
                };
                prop_assert_eq!(digests_of_pcr(before.as_deref().unwrap()), digests_of_pcr(&after));
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_as_a_log_or_can_be_replayed(tail in vec(any::<u8>(), 0..300), agile in any::<bool>()) {
        let mut log = Log::empty();
        if agile {
            log.legacy(0, EventType::EV_NO_ACTION, &[0; 20], &spec_id(&[(4, 20), (11, 32)]));
        }
        log.bytes.extend(tail);
        if let Ok(log) = EventLog::parse(&log.bytes) {
            exercise(&log);
        }
    }

    #[test]
    fn any_events_can_be_replayed(events in vec(event(), 0..20)) {
        let mut log = Log::new();
        for (pcr, kind, data, digest_matches) in &events {
            let measured: &[u8] = if *digest_matches { data } else { b"something else" };
            log.agile(*pcr, EventType(*kind), &digests(measured), data);
        }
        if let Ok(log) = EventLog::parse(&log.bytes) {
            exercise(&log);
            // If each digest is the digest of the logged data, no event is unexplained.
            if events.iter().all(|(.., digest_matches)| *digest_matches) && let Ok(replayed) = log.replay(BANKS[1]) {
                let replayed_log = verify_replay(&log, &replayed).unwrap();
                prop_assert_eq!(replayed_log.unexplained().next(), None);
            }
        }
    }

    #[test]
    fn decoded_configurations_equal_the_encoded_ones(configuration in configuration()) {
        let bytes = configuration.encode();
        prop_assert_eq!(Configuration::decode(&bytes), Ok(configuration));
    }

    #[test]
    fn edited_configurations_are_refused_or_canonical(configuration in configuration(), changes in edits()) {
        let bytes = with_edits(&configuration.encode(), &changes);
        if let Ok(decoded) = Configuration::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn a_difference_lists_all_differing_entries(old in configuration(), new in configuration()) {
        let difference = Difference::between(&old, &new);
        prop_assert_eq!(difference.is_empty(), old == new);
        prop_assert_eq!(old == new, old.hash() == new.hash());
        prop_assert_eq!(difference.to_string().lines().count(), {
            let changes = usize::from(difference.banks.is_some()) + difference.pcrs.len() + difference.files.len();
            changes.max(1)
        });
        prop_assert_eq!(apply_difference(&old, &difference), new);
    }

    #[test]
    fn a_configuration_equals_itself(configuration in configuration()) {
        prop_assert!(Difference::between(&configuration, &configuration).is_empty());
    }
}
