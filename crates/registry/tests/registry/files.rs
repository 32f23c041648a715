//! Foreign, newer, locked, unwritable and tampered files: each causes a clear error and is not modified.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{fleet_file, gateway, key_device, lease, master_key, open, pool_device, sql};
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{DatabaseError, MasterKey, OpenError, Options, Registry, RegistryError};
use rand::{Rng as _, SeedableRng as _};
use sqlx::{Connection as _, Executor as _, SqliteConnection};

#[test]
async fn foreign_files_are_recognized_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    assert!(matches!(
        open(&path).await,
        Err(RegistryError::Open(OpenError::NoRegistry { .. }))
    ));
    assert!(matches!(
        open(directory.path()).await,
        Err(RegistryError::Open(OpenError::NotARegistry { .. }))
    ));
    assert!(!path.exists(), "opening creates nothing");

    let mut random = vec![0u8; 10_000];
    rand_chacha::ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut random);
    let cases: [(&[u8], &str); 5] = [
        (b"", "the file is empty"),
        (b"SQLite format 3\0", "shorter than a database header"),
        (b"a text file, no database\n", "shorter than a database header"),
        (&[b'x'; 5000], "the file is not a SQLite database"),
        (&random, "the file is not a SQLite database"),
    ];
    for (content, expected) in cases {
        fs::write(&path, content).unwrap();
        let error = open(&path).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Open(OpenError::NotARegistry { .. })),
            "{error}"
        );
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(fs::read(&path).unwrap(), content);
        assert!(matches!(
            Registry::create(&path, &master_key()).await,
            Err(RegistryError::Open(OpenError::AlreadyExists { .. }))
        ));
    }
    fs::remove_file(&path).unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true);
    let mut foreign = SqliteConnection::connect_with(&options).await.unwrap();
    foreign.execute("CREATE TABLE device (x)").await.unwrap();
    foreign.close().await.unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(
        error.to_string().contains("database of another program"),
        "{error}"
    );
}

#[test]
async fn the_wrong_master_key_is_one_clear_error() {
    let (_directory, path) = fleet_file().await;
    let error = Registry::open(&path, &MasterKey::from_bytes([1; 32]))
        .await
        .unwrap_err();
    assert!(
        matches!(error, RegistryError::Open(OpenError::WrongMasterKey { .. })),
        "{error}"
    );
    open(&path).await.unwrap();
}

#[test]
async fn a_newer_schema_is_refused_and_not_touched() {
    let (_directory, path) = fleet_file().await;
    sql(
        &path,
        "INSERT INTO _sqlx_migrations VALUES (99, 'later', '2030-01-01', TRUE, x'00', 0)",
    )
    .await;
    let error = open(&path).await.unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::Open(OpenError::NewerSchema {
                found: 99,
                supported: 1,
                ..
            })
        ),
        "{error}"
    );
}

#[test]
async fn missing_parts_are_named() {
    for (statement, expected) in [
        ("DROP TABLE _sqlx_migrations", "no such table"),
        ("DROP TABLE registry", "no such table"),
        ("DELETE FROM registry", "key check is missing"),
    ] {
        let (_directory, path) = fleet_file().await;
        sql(&path, statement).await;
        let message = open(&path).await.unwrap_err().to_string();
        assert!(
            message.contains(expected) && message.contains("restore a backup"),
            "{message}"
        );
    }
}

#[test]
async fn a_lock_of_another_program_is_reported_after_the_timeout() {
    let (_directory, path) = fleet_file().await;
    let options = Options {
        busy_timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let registry = Registry::open_with(&path, &master_key(), &options).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let mut other_program =
        SqliteConnection::connect_with(&sqlx::sqlite::SqliteConnectOptions::new().filename(&path))
            .await
            .unwrap();
    other_program.execute("BEGIN IMMEDIATE").await.unwrap();
    let error = lease(&registry, &fencing_token, 1, 0, 4).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Database(DatabaseError::Locked)),
        "{error}"
    );
    // The lock of another program does not block reads.
    registry.load(DeviceId(1)).await.unwrap();
    other_program.execute("ROLLBACK").await.unwrap();
    assert_eq!(
        lease(&registry, &fencing_token, 1, 0, 4).await.unwrap().rows,
        0..4
    );
}

/// Environment variable of the unprivileged child process: the path of a registry that this process cannot write.
const UNPRIVILEGED: &str = "LINEWARDEN_TEST_UNWRITABLE";

/// Root can write everywhere, so the test runs in an unprivileged child process.
#[test]
async fn an_unwritable_directory_is_named() {
    let (directory, path) = fleet_file().await;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = rustix::process::geteuid().is_root();
    let program = directory.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    if !root {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    }
    let mut child = Command::new(&program);
    child
        .args(["--ignored", "--exact", "files::child_in_an_unwritable_directory"])
        .env(UNPRIVILEGED, &path);
    if root {
        child.uid(65_534).gid(65_534);
    }
    let output = child.output().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "the child process of an_unwritable_directory_is_named"]
async fn child_in_an_unwritable_directory() {
    let Some(path) = std::env::var_os(UNPRIVILEGED).map(PathBuf::from) else {
        return;
    };
    let error = open(&path).await.unwrap_err();
    assert!(error.to_string().contains("not writable"), "{error}");
    let error = Registry::create(path.with_file_name("new"), &master_key())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not writable"), "{error}");
}

#[test]
async fn an_interrupted_or_refused_creation_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none").join("registry");
    let error = Registry::create(&path, &master_key()).await.unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
    let path = directory.path().join("registry");
    let first = Registry::open_or_create(&path, &master_key()).await.unwrap();
    first.enroll(key_device(1)).await.unwrap();
    let second = Registry::open_or_create(&path, &master_key()).await.unwrap();
    second.load(DeviceId(1)).await.unwrap();
    first.close().await;
    second.close().await;
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["registry", "registry.storage"],
        "no temporary files and no logs remain"
    );
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A copy of a registry in use contains also the last commits, even if they are not in the file yet.
#[test]
async fn a_backup_holds_every_commit_and_overwrites_nothing() {
    let (directory, path) = fleet_file().await;
    let registry = open(&path).await.unwrap();
    registry.revoke(DeviceId(3), "stolen", 9).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let granted = lease(&registry, &fencing_token, 4, 0, 5).await.unwrap();
    let copy = directory.path().join("copy.registry");
    registry.copy_to(&copy, |_| ()).await.unwrap();
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(
        registry.copy_to(&copy, |_| ()).await,
        Err(RegistryError::Open(OpenError::AlreadyExists { .. }))
    ));
    let restored = open(&copy).await.unwrap();
    assert!(restored.check().await.unwrap().is_empty());
    assert!(!restored.get(DeviceId(3)).await.unwrap().status.is_active());
    let floor = restored.get(DeviceId(4)).await.unwrap().idx_floor;
    assert_eq!(floor, RowIndex(granted.rows.end));
    let drafts = fs::read_dir(directory.path()).unwrap();
    let drafts = drafts.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains(".new-")
    });
    assert_eq!(drafts.count(), 0);
}

fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .filter(|(name, _)| !name.ends_with("-shm"))
        .collect();
    files.sort();
    files
}

/// The log of a killed process contains commits that are not in the file yet. A refused open must not checkpoint these
/// commits.
#[test]
async fn refused_files_are_not_changed() {
    let (_directory, path) = fleet_file().await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'newer', 1, x'00', 1)";
    let wrong_key = MasterKey::from_bytes([0x55; 32]);
    for (statement, key) in [("PRAGMA user_version = 3", wrong_key), (newer, master_key())] {
        // Copies of the file and its log while the registry is in use are the state after a kill.
        let registry = open(&path).await.unwrap();
        sql(&path, statement).await;
        let killed = tempfile::tempdir().unwrap();
        for suffix in ["", "-wal"] {
            let name = format!("fleet.registry{suffix}");
            fs::copy(path.with_file_name(&name), killed.path().join(&name)).unwrap();
        }
        registry.close().await;
        let copy = killed.path().join("fleet.registry");
        let files_before = files(killed.path());
        assert_eq!(files_before.len(), 2);
        assert!(!files_before[1].1.is_empty(), "the log is empty");
        for is_examined in [true, false] {
            let result = match is_examined {
                true => Registry::examine(&copy, &key).await,
                false => Registry::open(&copy, &key).await.map(drop),
            };
            assert!(
                matches!(
                    result,
                    Err(RegistryError::Open(
                        OpenError::WrongMasterKey { .. } | OpenError::NewerSchema { .. }
                    ))
                ),
                "{result:?}"
            );
            assert!(files(killed.path()) == files_before, "{statement}");
        }
    }
}

#[test]
async fn reading_a_registry_creates_no_file() {
    let (directory, path) = fleet_file().await;
    let names = || fs::read_dir(directory.path()).unwrap().count();
    let (files_before, count) = (files(directory.path()), names());
    Registry::examine(&path, &master_key()).await.unwrap();
    let error = Registry::examine(&path, &MasterKey::from_bytes([0x55; 32])).await;
    assert!(matches!(
        error,
        Err(RegistryError::Open(OpenError::WrongMasterKey { .. }))
    ));
    assert!(files(directory.path()) == files_before && names() == count);
    // A registry in use by another process can be examined.
    let registry = open(&path).await.unwrap();
    registry.enroll(pool_device(1000, 2)).await.unwrap();
    Registry::examine(&path, &master_key()).await.unwrap();
    registry.enroll(pool_device(1001, 2)).await.unwrap();
    registry.close().await;
}

/// The tags of records do not cover the effects of a trigger, a view, an index or a modified table definition.
#[test]
async fn a_schema_that_no_migration_creates_is_refused() {
    for (statement, kind, name) in [
        (
            "CREATE TRIGGER undo AFTER UPDATE OF quarantined_at_s ON device BEGIN \
             UPDATE device SET quarantined_at_s = OLD.quarantined_at_s, tag = OLD.tag WHERE device_id = OLD.device_id; END",
            "trigger",
            "undo",
        ),
        (
            "ALTER TABLE prover RENAME TO other; CREATE VIEW prover AS SELECT * FROM other WHERE device_id <> 7",
            "view",
            "prover",
        ),
        (
            "CREATE VIEW everything AS SELECT * FROM device",
            "view",
            "everything",
        ),
        (
            "CREATE UNIQUE INDEX one ON appraisal (gateway_id)",
            "index",
            "one",
        ),
        ("CREATE TABLE mine (x)", "table", "mine"),
        (
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET \
             sql = replace(sql, 'quarantined_at_s   BIGINT', 'quarantined_at_s BIGINT UNIQUE ON CONFLICT IGNORE') \
             WHERE name = 'device'; PRAGMA writable_schema = OFF",
            "table",
            "device",
        ),
        // The schema version is missing. Inserting it would fire the trigger.
        (
            "DELETE FROM _sqlx_migrations WHERE version = 1; \
             CREATE TRIGGER \"\u{1b}[2J\" AFTER INSERT ON _sqlx_migrations BEGIN DELETE FROM device; END",
            "trigger",
            "\\u{1b}[2J",
        ),
    ] {
        let (_directory, path) = fleet_file().await;
        sql(&path, statement).await;
        let content_before = fs::read(&path).unwrap();
        for result in [
            Registry::examine(&path, &master_key()).await,
            open(&path).await.map(drop),
        ] {
            let error = result.unwrap_err();
            assert!(
                matches!(&error, RegistryError::Open(OpenError::UnexpectedSchemaObject { kind: reported_kind, name: reported_name, .. })
                    if reported_kind == kind && reported_name == name),
                "{statement}: {error}"
            );
            let text = error.to_string();
            assert!(text.contains("restore a backup"), "the remedy is missing: {text}");
            assert_eq!(
                text.contains("DROP"),
                name != "device",
                "only an unexpected object has the remedy DROP: {text}"
            );
        }
        assert!(fs::read(&path).unwrap() == content_before, "{statement}");
    }
    // Internal objects of SQLite are accepted.
    let (_directory, path) = fleet_file().await;
    sql(&path, "ANALYZE; VACUUM").await;
    let registry = open(&path).await.unwrap();

    // If an object is added while a registry is open, the registry refuses writes until the object is removed.
    for (statement, remedy) in [
        (
            "CREATE TRIGGER undo AFTER UPDATE ON device BEGIN SELECT 1; END",
            "DROP TRIGGER undo",
        ),
        (
            "CREATE UNIQUE INDEX one ON device (status) WHERE status = 2",
            "DROP INDEX one",
        ),
        (
            "ALTER TABLE pair ADD COLUMN mine",
            "ALTER TABLE pair DROP COLUMN mine",
        ),
    ] {
        sql(&path, statement).await;
        let error = registry.revoke(DeviceId(7), "stolen", 9).await.unwrap_err();
        assert!(
            matches!(
                error,
                RegistryError::Open(OpenError::UnexpectedSchemaObject { .. })
            ),
            "{statement}: {error}"
        );
        assert!(registry.get(DeviceId(7)).await.unwrap().status.is_active());
        sql(&path, remedy).await;
        registry
            .enroll(pool_device(statement.len() as u64 + 1000, 2))
            .await
            .unwrap();
    }
    registry.revoke(DeviceId(7), "stolen", 9).await.unwrap();
    assert!(registry.check().await.unwrap().is_empty());
}
