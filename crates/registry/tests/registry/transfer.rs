//! Export and import: transferred and omitted data, and bad files without effect.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::{gateway, in_memory, key_device, lease, pool_device, pool_device_from};
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{
    BulkError, BulkOptions, DatabaseError, DeviceFilter, DeviceLine, ExportKey, MasterKey, OnConflict,
    OnDamage, OpenError, Registry, RegistryError,
};
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

const REPLACE: BulkOptions = BulkOptions {
    chunk_devices: 2,
    on_conflict: OnConflict::Replace,
};

fn export_key() -> ExportKey {
    ExportKey::from_bytes([9; 32])
}

/// Five devices: without a lease, with a lease, in key mode, revoked, and with replaced credentials.
async fn fleet() -> Registry {
    let registry = in_memory().await;
    for id in [1, 2, 4, u64::MAX] {
        registry.enroll(pool_device(id, 10)).await.unwrap();
    }
    registry.enroll(key_device(3)).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let _ = lease(&registry, &fencing_token, 2, 0, 4).await.unwrap();
    registry
        .revoke(DeviceId(4), "lost \"at\" sea\n", 1_800_000_000)
        .await
        .unwrap();
    registry
        .enroll_chunk(vec![pool_device_from(u64::MAX, 30, 5)], OnConflict::Replace)
        .await
        .unwrap();
    registry
}

async fn export_fleet() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.jsonl");
    assert_eq!(
        fleet()
            .await
            .export_file(&path, Some(&export_key()), OnDamage::Refuse, |_| ())
            .await
            .unwrap()
            .devices,
        5
    );
    (directory, path)
}

async fn import(registry: &Registry, path: &Path) -> Result<u64, RegistryError> {
    registry
        .import_file(path, &export_key(), BulkOptions::default(), |_| ())
        .await
}

#[test]
async fn a_sealed_export_carries_everything_to_a_registry_with_another_key() {
    let source = fleet().await;
    let (_directory, path) = export_fleet().await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let target = Registry::in_memory(&MasterKey::from_bytes([0x77; 32]))
        .await
        .unwrap();
    assert_eq!(import(&target, &path).await.unwrap(), 5);
    let line = |info| DeviceLine::from(&info);
    for id in [1, 2, 3, 4, u64::MAX].map(DeviceId) {
        assert_eq!(
            line(target.get(id).await.unwrap()),
            line(source.get(id).await.unwrap())
        );
        match source.load(id).await {
            Ok(device) => assert_eq!(target.load(id).await.unwrap().credentials, device.credentials),
            Err(_) => assert_eq!(
                id,
                DeviceId(4),
                "only the credentials of the revoked device are not exported"
            ),
        }
    }
    assert_eq!(
        lease(&target, &gateway(&target).await, 2, 0, 4)
            .await
            .unwrap()
            .rows,
        4..8
    );
    assert!(target.check().await.unwrap().is_empty());
}

#[test]
async fn a_public_export_holds_no_credentials_and_cannot_be_imported() {
    let mut out = Vec::new();
    assert_eq!(
        fleet()
            .await
            .export(&mut out, None, OnDamage::Refuse, |_| ())
            .await
            .unwrap()
            .devices,
        5
    );
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains("sealed") && !text.contains("salt"), "{text}");
    for line in text.lines().skip(1) {
        serde_json::from_str::<DeviceLine>(line).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("public.jsonl");
    fs::write(&path, text).unwrap();
    let message = import(&in_memory().await, &path).await.unwrap_err().to_string();
    assert!(
        message.contains("line 1: the export contains public information only"),
        "{message}"
    );
}

#[test]
async fn an_export_does_not_overwrite() {
    let (_directory, path) = export_fleet().await;
    let content_before = fs::read(&path).unwrap();
    let error = fleet()
        .await
        .export_file(&path, None, OnDamage::Refuse, |_| ())
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Open(OpenError::FileExists { .. })));
    assert_eq!(fs::read(&path).unwrap(), content_before);
    assert_eq!(
        fs::read_dir(path.parent().unwrap()).unwrap().count(),
        1,
        "no temporary file remains"
    );
}

#[test]
async fn conflicting_devices_are_refused_or_replaced_without_lowering_marks() {
    let (_directory, path) = export_fleet().await;
    let target = in_memory().await;
    target.enroll(pool_device(2, 10)).await.unwrap();
    let fencing_token = gateway(&target).await;
    let _ = lease(&target, &fencing_token, 2, 0, 7).await.unwrap();

    let message = import(&target, &path).await.unwrap_err().to_string();
    assert!(
        message.contains("line 3: the device is already enrolled"),
        "{message}"
    );
    assert_eq!(target.count(&DeviceFilter::default()).await.unwrap(), 1);

    let mut done_counts = Vec::new();
    target
        .import_file(&path, &export_key(), REPLACE, |progress| {
            done_counts.push(progress.done)
        })
        .await
        .unwrap();
    assert_eq!(done_counts, [2, 4, 5]);
    assert_eq!(target.get(DeviceId(2)).await.unwrap().idx_floor, RowIndex(7));
    // A repeated import succeeds: a revoked device may be imported if the file contains the device as revoked.
    target
        .import_file(&path, &export_key(), REPLACE, |_| ())
        .await
        .unwrap();
}

/// Every alteration of a valid file causes an error with its line, and nothing is stored.
#[test]
async fn altered_files_are_refused_whole() {
    let (directory, path) = export_fleet().await;
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let join = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let replaced = |line: usize, from: &str, to: &str| {
        let mut altered: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        assert!(altered[line - 1].contains(from), "line {line} has no {from}");
        altered[line - 1] = altered[line - 1].replacen(from, to, 1);
        altered.iter().map(|line| format!("{line}\n")).collect::<String>()
    };
    let swapped_seals = {
        let mut a: DeviceLine = serde_json::from_str(lines[1]).unwrap();
        let mut b: DeviceLine = serde_json::from_str(lines[2]).unwrap();
        std::mem::swap(&mut a.sealed, &mut b.sealed);
        let (a, b) = (
            serde_json::to_string(&a).unwrap(),
            serde_json::to_string(&b).unwrap(),
        );
        join(&[lines[0], &a, &b, lines[3], lines[4], lines[5]])
    };
    let mut repeated = lines.clone();
    repeated[5] = lines[1];
    let not_authentic = "field sealed: does not authenticate";
    let cases = [
        (String::new(), "line 1: the file is empty"),
        (
            "hello\n".to_owned(),
            "line 1: not the header of a Linewarden export",
        ),
        (
            replaced(1, "\"linewarden_export\":1", "\"linewarden_export\":2"),
            "the export has format 2, but this program reads format 1",
        ),
        (replaced(1, "\"salt\":\"", "\"salt\":\"zz"), "field salt"),
        (
            replaced(1, "\"devices\":5", "\"devices\":4"),
            "line 6: the header announces 4 devices",
        ),
        (
            replaced(1, "\"devices\":5", "\"devices\":6"),
            "line 7: the file ends after 5 of 6 devices",
        ),
        (join(&lines[..5]), "line 6: the file ends after 4 of 5 devices"),
        (
            text[..text.len() - 1].to_owned(),
            "the line has no line feed: the file was truncated",
        ),
        (
            text[..text.len() - 200].to_owned(),
            "the line has no line feed: the file was truncated",
        ),
        (swapped_seals, "lines 2 to 3: field sealed"),
        (
            join(&repeated),
            "line 6: field device_id: 0000000000000001 already occurs on line 2",
        ),
        (
            replaced(2, "\"device_id\":\"0", "\"device_id\":\"1"),
            not_authentic,
        ),
        (
            replaced(2, "\"device_id\":\"0", "\"device_id\":\"x"),
            "line 2: field device_id",
        ),
        (replaced(3, "\"idx_floor\":4", "\"idx_floor\":0"), not_authentic),
        (replaced(3, "\"epoch\":0", "\"epoch\":1"), not_authentic),
        (
            replaced(3, "\"rows_total\":10", "\"rows_total\":9"),
            not_authentic,
        ),
        (
            replaced(3, "\"mode\":\"pool\"", "\"mode\":\"key\""),
            not_authentic,
        ),
        (
            replaced(3, "\"mode\":\"pool\"", "\"mode\":\"none\""),
            "line 3: field mode: unknown mode \"none\"",
        ),
        (replaced(3, "\"suite\":1", "\"suite\":2"), "line 3: field suite"),
        (replaced(3, "\"name\":\"", "\"name\":\"x"), not_authentic),
        (replaced(3, "\"sealed\":\"", "\"sealed\":\"00"), not_authentic),
        (
            replaced(3, "\"sealed\":\"", "\"sealed\":\"-"),
            "line 3: field sealed",
        ),
        (replaced(3, "\"idx_floor\":4,", ""), "missing field `idx_floor`"),
        (
            replaced(3, "\"idx_floor\":4", "\"idx_floor\":-4"),
            "line 3: invalid value",
        ),
        (
            replaced(3, "\"epoch\":0", "\"epoch\":0,\"new\":1"),
            "unknown field `new`",
        ),
    ];
    let target = in_memory().await;
    for (content, expected) in cases {
        let altered = directory.path().join("altered.jsonl");
        fs::write(&altered, content).unwrap();
        let error = import(&target, &altered).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Bulk(BulkError::InvalidImportLines { .. })),
            "{expected}: {error}"
        );
        let message = error.to_string();
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(message.contains("altered.jsonl"), "{message}");
        assert_eq!(
            target.count(&DeviceFilter::default()).await.unwrap(),
            0,
            "{expected}"
        );
    }
    let revoked = lines
        .iter()
        .position(|line| line.contains("\"revoked\""))
        .unwrap()
        + 1;
    for (from, to) in [
        ("\"status\":\"revoked\"", "\"status\":\"active\""),
        ("1800000000", "1800000001"),
    ] {
        fs::write(
            directory.path().join("altered.jsonl"),
            replaced(revoked, from, to),
        )
        .unwrap();
        import(&target, &directory.path().join("altered.jsonl"))
            .await
            .unwrap_err();
    }
}

#[test]
async fn a_wrong_export_key_and_a_missing_file_differ() {
    let (directory, path) = export_fleet().await;
    let target = in_memory().await;
    let other_key = ExportKey::from_bytes([8; 32]);
    let error = target
        .import_file(&path, &other_key, BulkOptions::default(), |_| ())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("lines 2 to 6: field sealed: does not authenticate; the export key"),
        "{error}"
    );
    let error = import(&target, &directory.path().join("none")).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Database(DatabaseError::Io { .. })),
        "{error}"
    );
}

/// A modified file is imported completely as exported, or not at all.
#[test]
async fn an_edited_export_is_refused_as_a_whole() {
    let (_directory, path) = export_fleet().await;
    let original = fs::read(&path).unwrap();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    for round in 0..300 {
        let mut bytes = original.clone();
        let index = rng.random_range(0..bytes.len());
        match round % 4 {
            0 => bytes[index] ^= 1 << rng.random_range(0..8),
            1 => bytes.truncate(index),
            2 => bytes.insert(index, rng.random()),
            _ => drop(bytes.remove(index)),
        }
        fs::write(&path, &bytes).unwrap();
        let target = in_memory().await;
        let imported = import(&target, &path).await;
        let count = target.count(&DeviceFilter::default()).await.unwrap();
        match imported {
            // White space and the last line break may differ.
            Ok(devices) => assert_eq!((devices, count), (5, 5), "round {round}, byte {index}"),
            Err(error) => {
                assert_eq!(count, 0, "round {round}, byte {index}: {error}");
            }
        }
    }
}

#[test]
async fn all_wrong_lines_are_named() {
    let (directory, path) = export_fleet().await;
    let mut lines: Vec<String> = fs::read_to_string(&path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    lines[2] = lines[2].replace("\"suite\":1", "\"suite\":2");
    lines[3] = lines[1].clone();
    lines[5] = "{".to_owned();
    let altered = directory.path().join("altered.jsonl");
    fs::write(&altered, lines.join("\n") + "\n").unwrap();
    let target = in_memory().await;
    let result = import(&target, &altered).await.unwrap_err().to_string();
    for expected in [
        "line 3: field suite",
        "; FILE, line 4: field device_id: 0000000000000001 already occurs on line 2",
        "; FILE, line 6: the line ends after 1 B",
        "; nothing was imported",
    ] {
        let expected = expected.replace("FILE", &altered.display().to_string());
        assert!(result.contains(&expected), "{expected}: {result}");
    }
    // With another key no line can be unsealed, which is reported as one problem.
    let fleet = in_memory().await;
    let many = (1..=30).map(|id| crate::support::pool_device(id, 1));
    fleet
        .enroll_bulk(many, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    let long = directory.path().join("long.jsonl");
    fleet
        .export_file(&long, Some(&export_key()), OnDamage::Refuse, |_| ())
        .await
        .unwrap();
    let other_key = ExportKey::from_bytes([8; 32]);
    let error = target
        .import_file(&long, &other_key, BulkOptions::default(), |_| ())
        .await;
    let result = error.unwrap_err().to_string();
    assert!(
        result.contains("lines 2 to 31: field sealed: does not auth"),
        "{result}"
    );
    // The number of reported problems is limited.
    let text = fs::read_to_string(&long).unwrap();
    let malformed = text.lines().enumerate().map(|(number, line)| {
        let mode = format!("\"mode\":\"{number}\"");
        line.replace("\"mode\":\"pool\"", &mode) + "\n"
    });
    fs::write(&long, malformed.collect::<String>()).unwrap();
    let result = import(&target, &long).await.unwrap_err().to_string();
    assert!(
        result.contains("line 21: field mode") && result.contains("lines 22 to 31: other problems"),
        "{result}"
    );
}

/// A leaked key of one row would also be the key of the other row.
#[test]
async fn a_pool_with_one_row_twice_is_refused() {
    let mut record = crate::support::pool_device(1, 4);
    let linewarden_registry::Credentials::Pool { rows, .. } = &mut record.credentials else {
        panic!("a pool");
    };
    rows[3] = linewarden_registry::PoolRow {
        challenge: [9; 8],
        row_key: linewarden_protocol::keys::RowKey::from_bytes(*rows[1].row_key.as_bytes()),
    };
    let fleet = in_memory().await;
    fleet.enroll(record).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.jsonl");
    fleet
        .export_file(&path, Some(&export_key()), OnDamage::Refuse, |_| ())
        .await
        .unwrap();
    let result = import(&in_memory().await, &path).await.unwrap_err().to_string();
    assert!(
        result.contains("line 2: field sealed: rows 1 and 3 of the pool have the same key"),
        "{result}"
    );
}
