//! The reported differences between two configurations.

use std::collections::BTreeMap;

use crate::common::log::{Log, values_of};
use linewarden_measurement::HashAlgorithm::Sha256;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{EventLog, EventType, verify_replay};
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, LinkTarget, Mode};
use linewarden_measurement::pcr::PcrValues;
use serde_json::json;

fn file(mode: u16, content: u8) -> FileEntry {
    FileEntry::File {
        mode: Mode::new(mode).unwrap(),
        content: ContentHash([content; 32]),
    }
}

fn link(target: &str) -> FileEntry {
    FileEntry::Link {
        target: LinkTarget::new(target).unwrap(),
    }
}

fn configuration_of_files(entries: &[(&str, FileEntry)]) -> Configuration {
    let entries = entries
        .iter()
        .map(|(path, entry)| (FilePath::new(*path).unwrap(), entry.clone()));
    Configuration::new(PcrValues::new(Sha256), entries.collect()).unwrap()
}

#[test]
fn every_type_of_file_change_is_reported() {
    let content = |digit: &str| digit.repeat(32);
    let cases = [
        (Some(file(0o644, 0x11)), Some(file(0o644, 0x11)), None),
        (
            None,
            Some(file(0o644, 0x11)),
            Some(format!("added, file 0644 {}", content("11"))),
        ),
        (
            Some(FileEntry::Absent),
            Some(link("x")),
            Some("added, link to x".to_owned()),
        ),
        (
            Some(link("x")),
            Some(FileEntry::Absent),
            Some("removed, was link to x".to_owned()),
        ),
        (Some(link("x")), None, Some("removed, was link to x".to_owned())),
        (
            None,
            Some(FileEntry::Absent),
            Some("now measured, absent".to_owned()),
        ),
        (
            Some(FileEntry::Absent),
            None,
            Some("no longer measured, was absent".to_owned()),
        ),
        (
            Some(file(0o755, 0x11)),
            Some(file(0o4755, 0x11)),
            Some("mode 0755 is now 4755".to_owned()),
        ),
        (
            Some(link("x")),
            Some(link("y")),
            Some("link to x is now link to y".to_owned()),
        ),
        (
            Some(file(0o644, 0x11)),
            Some(file(0o600, 0x22)),
            Some(format!(
                "file 0644 {} is now file 0600 {}",
                content("11"),
                content("22")
            )),
        ),
        (
            Some(file(0o644, 0x11)),
            Some(link("x")),
            Some(format!("file 0644 {} is now link to x", content("11"))),
        ),
    ];
    for (old, new, expected) in cases {
        let configuration = |entry: &Option<FileEntry>| {
            configuration_of_files(
                &entry
                    .iter()
                    .map(|entry| ("/f", entry.clone()))
                    .collect::<Vec<_>>(),
            )
        };
        let difference = Difference::between(&configuration(&old), &configuration(&new));
        assert_eq!(difference.is_empty(), expected.is_none());
        let expected = expected.map_or("no differences\n".to_owned(), |expected| {
            format!("/f: {expected}\n")
        });
        assert_eq!(difference.to_string(), expected);
    }
}

#[test]
fn files_are_reported_in_order_and_as_json() {
    let old = configuration_of_files(&[
        ("/a", file(0o644, 1)),
        ("/b", link("x")),
        ("/c", FileEntry::Absent),
    ]);
    let new = configuration_of_files(&[("/a", file(0o600, 1)), ("/b", link("x")), ("/c", file(0o644, 2))]);
    let difference = Difference::between(&old, &new);
    let content = |byte: u8| hex::encode([byte; 32]);
    assert_eq!(
        serde_json::to_value(&difference).unwrap(),
        json!({ "pcrs": [], "files": [
            {
                "path": "/a", "change": "mode",
                "old": { "kind": "file", "mode": "0644", "content": content(1) },
                "new": { "kind": "file", "mode": "0600", "content": content(1) },
            },
            {
                "path": "/c", "change": "added",
                "old": { "kind": "absent" },
                "new": { "kind": "file", "mode": "0644", "content": content(2) },
            },
        ] })
    );
}

fn boot_log(kernel: &[u8], has_debug_event: bool) -> EventLog {
    let mut log = Log::new();
    log.event(4, EventType::EV_EFI_ACTION, b"Calling", b"Calling")
        .event(7, EventType::EV_SEPARATOR, &[0; 4], &[0; 4])
        .event(4, EventType::EV_EFI_BOOT_SERVICES_APPLICATION, kernel, &[])
        .event(8, EventType::EV_IPL, b"quiet", b"grub_cmd: quiet\0");
    if has_debug_event {
        log.event(8, EventType::EV_IPL, b"debug", b"grub_cmd: debug\0");
    }
    log.parse()
}

#[test]
fn the_first_differing_event_is_reported_for_each_pcr() {
    let logs = [boot_log(b"one", false), boot_log(b"two", true)];
    let values = logs.each_ref().map(|log| values_of(log, Sha256, "4,7-8"));
    let configurations = values
        .each_ref()
        .map(|values| Configuration::new(values.clone(), BTreeMap::new()).unwrap());
    let [old, new] = [0, 1].map(|log_index| verify_replay(&logs[log_index], &values[log_index]).unwrap());
    let difference = Difference::between(&configurations[0], &configurations[1]).with_events(&old, &new);
    let value = |log_index: usize, pcr: u32| values[log_index].get(crate::common::log::pcr(pcr)).unwrap();
    let expected = format!(
        "PCR 4: {} is now {}\n\
         \x20   was entry 3, PCR 4, EV_EFI_BOOT_SERVICES_APPLICATION: nothing (claimed)\n\
         \x20   is entry 3, PCR 4, EV_EFI_BOOT_SERVICES_APPLICATION: nothing (claimed)\n\
         PCR 8: {} is now {}\n\
         \x20   was no further event\n\
         \x20   is entry 5, PCR 8, EV_IPL: grub_cmd: debug (in part claimed)\n",
        value(0, 4),
        value(1, 4),
        value(0, 8),
        value(1, 8),
    );
    assert_eq!(difference.to_string(), expected);
    let json = serde_json::to_value(&difference).unwrap();
    assert_eq!(json["pcrs"][1]["pcr"], 8);
    assert_eq!(json["pcrs"][1]["first_event"]["new"]["kind"], "EV_IPL");
    assert_eq!(json["pcrs"][1]["first_event"]["old"], serde_json::Value::Null);
    assert!(Difference::between(&configurations[0], &configurations[0]).is_empty());
}
