//! Configurations: canonical encodings, and an encoding from an independent program.

use std::collections::{BTreeMap, HashSet};

use linewarden_measurement::configuration::{Configuration, ConfigurationError, EncodingProblem};
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, LinkTarget, Mode};
use linewarden_measurement::pcr::{PcrIndex, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../../docs/vectors/measurement.json")).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    hex::decode(hex.as_str().unwrap()).unwrap()
}

fn pcrs(case: &Value) -> PcrValues {
    let bank: HashAlgorithm = case["bank"].as_str().unwrap().parse().unwrap();
    let mut pcrs = PcrValues::new(bank);
    for (index, value) in case["pcrs"].as_object().unwrap() {
        let index = PcrIndex::try_from(index.parse::<u32>().unwrap()).unwrap();
        pcrs.set(index, Digest::new(bank, &bytes(value)).unwrap())
            .unwrap();
    }
    pcrs
}

fn entry(entry: &Value) -> FileEntry {
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let mode = || Mode::new(u16::try_from(number(&entry["mode"])).unwrap()).unwrap();
    let device = || (number(&entry["device"][0]), number(&entry["device"][1]));
    match entry["kind"].as_str().unwrap() {
        "absent" => FileEntry::Absent,
        "file" => FileEntry::File {
            mode: mode(),
            content: ContentHash(bytes(&entry["content"]).try_into().unwrap()),
        },
        "link" => FileEntry::Link {
            target: LinkTarget::new(bytes(&entry["target"])).unwrap(),
        },
        "directory" => FileEntry::Directory { mode: mode() },
        "fifo" => FileEntry::Fifo { mode: mode() },
        "socket" => FileEntry::Socket { mode: mode() },
        "character_device" => FileEntry::CharacterDevice {
            mode: mode(),
            device: device(),
        },
        "block_device" => FileEntry::BlockDevice {
            mode: mode(),
            device: device(),
        },
        other => panic!("{other}"),
    }
}

#[test]
fn encodings_and_hashes_equal_the_vectors() {
    let vectors = vectors();
    let mut hashes = HashSet::new();
    for case in vectors["configurations"].as_array().unwrap() {
        let files = case["files"].as_object().unwrap().iter();
        let files: BTreeMap<_, _> = files
            .map(|(path, file_entry)| {
                (
                    FilePath::new(hex::decode(path).unwrap()).unwrap(),
                    entry(file_entry),
                )
            })
            .collect();
        let configuration = Configuration::new(pcrs(case), files).unwrap();
        assert_eq!(hex::encode(configuration.encode()), case["encoding"]);
        assert_eq!(configuration.hash().to_string(), case["h"].as_str().unwrap());
        assert_eq!(
            Configuration::decode(&bytes(&case["encoding"])),
            Ok(configuration.clone())
        );
        hashes.insert(configuration.hash());
    }
    assert_eq!(hashes.len(), 4);
}

#[test]
fn non_canonical_encodings_are_rejected() {
    for case in vectors()["refused"].as_array().unwrap() {
        let result = Configuration::decode(&bytes(&case["encoding"]));
        assert!(result.is_err(), "{}", case["reason"]);
    }
}

#[test]
fn a_truncated_encoding_is_refused_at_an_offset_within_it() {
    for case in vectors()["configurations"].as_array().unwrap() {
        let encoding = bytes(&case["encoding"]);
        for length in 0..encoding.len() {
            let error = Configuration::decode(&encoding[..length]).unwrap_err();
            let ConfigurationError::InvalidEncoding {
                offset: position,
                problem,
            } = error
            else {
                panic!("{error}")
            };
            assert!(position <= length);
            assert!(
                matches!(problem, EncodingProblem::Truncated(_) | EncodingProblem::Domain),
                "{length}: {problem}"
            );
        }
    }
}

#[test]
fn the_sha_1_bank_and_too_many_files_are_refused() {
    assert_eq!(
        Configuration::new(PcrValues::new(HashAlgorithm::Sha1), BTreeMap::new()),
        Err(ConfigurationError::WeakBank(HashAlgorithm::Sha1))
    );
    let path = |number: usize| FilePath::new(format!("/{number:04000}")).unwrap();
    let files: BTreeMap<_, _> = (0..4200)
        .map(|number| (path(number), FileEntry::Absent))
        .collect();
    let error = Configuration::new(PcrValues::new(HashAlgorithm::Sha256), files).unwrap_err();
    assert!(matches!(error, ConfigurationError::TooLong(_)), "{error}");
}

fn configuration(bank: HashAlgorithm, pcrs: &[(u32, u8)], files: &[(&str, u8)]) -> Configuration {
    let mut values = PcrValues::new(bank);
    for (index, value) in pcrs {
        let value = Digest::new(bank, &vec![*value; bank.digest_bytes()]).unwrap();
        values.set(PcrIndex::try_from(*index).unwrap(), value).unwrap();
    }
    let entry = |content: u8| FileEntry::File {
        mode: Mode::new(0o644).unwrap(),
        content: ContentHash([content; 32]),
    };
    let files = files
        .iter()
        .map(|(path, content)| (FilePath::new(*path).unwrap(), entry(*content)));
    Configuration::new(values, files.collect()).unwrap()
}

#[test]
fn an_overlay_replaces_or_adds_entries() {
    use HashAlgorithm::{Sha256, Sha384};
    let base = configuration(Sha256, &[(0, 1), (7, 2)], &[("/a", 1), ("/b", 2)]);
    let overlay = configuration(Sha256, &[(7, 3), (11, 4)], &[("/b", 3), ("/c", 4)]);
    let combined = configuration(
        Sha256,
        &[(0, 1), (7, 3), (11, 4)],
        &[("/a", 1), ("/b", 3), ("/c", 4)],
    );
    assert_eq!(base.with_overlay(&overlay), Ok(combined.clone()));
    // A second application of an overlay has no effect; an empty overlay has no effect.
    assert_eq!(combined.with_overlay(&overlay), Ok(combined.clone()));
    for bank in [Sha256, Sha384] {
        assert_eq!(
            base.with_overlay(&configuration(bank, &[], &[])),
            Ok(base.clone())
        );
        let without_pcrs = configuration(Sha256, &[], &[("/a", 1)]);
        let files_overlay = configuration(bank, &[], &[("/a", 9)]);
        assert_eq!(
            without_pcrs.with_overlay(&files_overlay),
            Ok(configuration(Sha256, &[], &[("/a", 9)]))
        );
    }
    let sha384 = configuration(Sha384, &[(7, 3)], &[]);
    assert_eq!(
        configuration(Sha256, &[], &[]).with_overlay(&sha384),
        Ok(sha384.clone())
    );
    assert_eq!(
        base.with_overlay(&sha384),
        Err(ConfigurationError::BankMismatch {
            bank: Sha256,
            overlay: Sha384
        })
    );
}
