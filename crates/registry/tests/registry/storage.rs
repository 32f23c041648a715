//! A registry in a file distinguishes a restart from a restore of an earlier state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linewarden_harness::skip;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{FencingToken, Location, Options, Registry};
use rustix::fs::{XattrFlags, setxattr};
use sqlx::{Connection as _, Executor as _, SqliteConnection};

use crate::copies::is_restored;
use crate::support::{create_fleet, fleet_file, gateway, is_on_postgres, lease, master_key, open, sql};

/// Environment variable with the directory without extended attributes in which this program repeats one of its tests.
const WITHOUT_ATTRIBUTES: &str = "LINEWARDEN_TEST_WITHOUT_ATTRIBUTES";

/// The path of a database's storage record.
fn storage_record(database: &Path) -> PathBuf {
    database.with_file_name("fleet.registry.storage")
}

/// Opens the registry, leases one more row to a registered gateway, and closes the registry, like a controller process.
async fn serve(path: &Path, fencing_token: &FencingToken, from: u32) {
    let registry = open(path).await.unwrap();
    registry.verify_fencing_token(fencing_token).await.unwrap();
    let _granted = lease(&registry, fencing_token, 1, from, 1).await.unwrap();
    registry.close().await;
}

/// Registers a gateway and returns its fencing token.
async fn register(path: &Path) -> FencingToken {
    let registry = open(path).await.unwrap();
    let fencing_token = gateway(&registry).await;
    registry.close().await;
    fencing_token
}

fn run(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

async fn vacuum_into(path: &Path, copy: &Path) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let statement = format!("VACUUM INTO '{}'", copy.display());
    connection
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(statement)))
        .await
        .unwrap();
    connection.close().await.unwrap();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backup {
    /// `cp`: content only.
    Content,
    /// `cp -a`, `rsync -X`: with extended attributes.
    Attributes,
    /// SQLite's statement `VACUUM INTO`.
    Vacuum,
    /// The registry's own backup.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restore {
    /// `cp`: the existing file and its attributes remain, with new content.
    Over,
    /// `mv`: the backup replaces the existing file.
    Move,
    /// `cp -a` over the file.
    OverWithAttributes,
}

/// Makes a backup, leases rows, restores the backup, and expects that the restore is detected.
async fn expect_detected(directory: &Path, backup: Backup, restore: Restore) {
    let path = directory.join("fleet.registry");
    create_fleet(&Location::from(&path)).await;
    let fencing_token = register(&path).await;
    serve(&path, &fencing_token, 0).await;
    let copy = directory.join("copy");
    match backup {
        Backup::Content => drop(fs::copy(&path, &copy).unwrap()),
        Backup::Attributes => run("cp", &[Path::new("-a"), &path, &copy]),
        Backup::Vacuum => vacuum_into(&path, &copy).await,
        Backup::Own => {
            let registry = open(&path).await.unwrap();
            registry.copy_to(&*copy, |_| ()).await.unwrap();
            registry.close().await;
        }
    }
    serve(&path, &fencing_token, 1).await;
    match restore {
        Restore::Over => {
            let content = fs::read(&copy).unwrap();
            fs::write(&path, content).unwrap();
        }
        Restore::Move => fs::rename(&copy, &path).unwrap(),
        Restore::OverWithAttributes => run("cp", &[Path::new("-a"), &copy, &path]),
    }
    let registry = open(&path).await.unwrap();
    let result = registry.verify_fencing_token(&fencing_token).await;
    assert!(is_restored(&result), "{backup:?}, {restore:?}: {result:?}");
    let new_token = gateway(&registry).await;
    assert!(
        new_token.number() > fencing_token.number() + 1,
        "another incarnation"
    );
    let next = lease(&registry, &new_token, 1, 0, 1).await.unwrap();
    assert!(next.rows.start >= 2, "{:?}", next.rows);
    registry.close().await;
    // After the detection the restored file is used as the registry.
    let registry = open(&path).await.unwrap();
    registry.verify_fencing_token(&new_token).await.unwrap();
    registry.close().await;
    for file in [&path, &storage_record(&path)] {
        fs::remove_file(file).unwrap();
    }
    let _ = fs::remove_file(copy);
}

/// Makes a backup while a process continues to lease rows without a new registration. The process is closed if
/// `is_closed`, and killed otherwise. Expects that a restore of the backup is detected.
async fn expect_detected_within_a_process(directory: &Path, restore: Restore, is_closed: bool) {
    let path = directory.join("fleet.registry");
    create_fleet(&Location::from(&path)).await;
    // With a period of zero the process records its storage at each lease: a killed process cannot record it later.
    let options = match is_closed {
        true => Options::default(),
        false => Options {
            storage_period: Duration::ZERO,
            ..Options::default()
        },
    };
    let registry = Registry::open_with(&path, &master_key(), &options).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let _granted = lease(&registry, &fencing_token, 1, 0, 1).await.unwrap();
    let copy = directory.join("copy");
    // `cp` makes the copy: if this process closed a file descriptor of the database, SQLite's locks would be released.
    checkpoint(&path).await;
    run("cp", &[Path::new("-a"), &path, &copy]);
    let _granted = lease(&registry, &fencing_token, 1, 1, 1).await.unwrap();
    match is_closed {
        true => registry.close().await,
        false => {
            checkpoint(&path).await;
            drop(registry);
        }
    }
    for log in ["fleet.registry-wal", "fleet.registry-shm"] {
        let _ = fs::remove_file(directory.join(log));
    }
    match restore {
        Restore::Over => run("cp", &[&copy, &path]),
        Restore::Move => fs::rename(&copy, &path).unwrap(),
        Restore::OverWithAttributes => run("cp", &[Path::new("-a"), &copy, &path]),
    }
    let registry = open(&path).await.unwrap();
    let result = registry.verify_fencing_token(&fencing_token).await;
    assert!(is_restored(&result), "{restore:?}, {is_closed}: {result:?}");
    registry.close().await;
    for file in [&path, &storage_record(&path)] {
        fs::remove_file(file).unwrap();
    }
}

/// Writes the write-ahead log into the file.
async fn checkpoint(path: &Path) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let (is_busy, _, _): (i64, i64, i64) = sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(is_busy, 0);
    connection.close().await.unwrap();
}

async fn expect_every_restore_detected(directory: &Path) {
    for restore in [Restore::Over, Restore::Move, Restore::OverWithAttributes] {
        for is_closed in [false, true] {
            expect_detected_within_a_process(directory, restore, is_closed).await;
        }
    }
    for backup in [Backup::Content, Backup::Attributes, Backup::Vacuum, Backup::Own] {
        for restore in [Restore::Over, Restore::Move, Restore::OverWithAttributes] {
            expect_detected(directory, backup, restore).await;
        }
    }
}

/// Expects that restarts are not taken for restores, even if a process was killed before it updated the record.
async fn expect_no_restore_detected_after_restarts(path: &Path) {
    let fencing_token = register(path).await;
    for row in 0..3 {
        let record = fs::read(storage_record(path)).unwrap();
        serve(path, &fencing_token, row).await;
        if row == 1 {
            fs::write(storage_record(path), record).unwrap();
        }
    }
    let registry = open(path).await.unwrap();
    registry.verify_fencing_token(&fencing_token).await.unwrap();
    // Another process registers a gateway meanwhile.
    let other_process = open(path).await.unwrap();
    let second = other_process.register_gateway(GatewayId(2), 1).await.unwrap();
    registry.verify_fencing_token(&second).await.unwrap();
    other_process.close().await;
    let next_token = gateway(&registry).await;
    assert_eq!(
        next_token.number(),
        fencing_token.number() + 1,
        "the same incarnation"
    );
    let device = linewarden_protocol::ids::DeviceId(1);
    assert_eq!(registry.leases_of(device).await.unwrap().len(), 1);
    registry.close().await;
}

#[test]
async fn a_restart_is_no_restore() {
    if is_on_postgres() {
        return;
    }
    let (_directory, path) = fleet_file().await;
    expect_no_restore_detected_after_restarts(&path).await;
}

#[test]
async fn a_restore_is_detected_however_it_was_copied_and_put_in_place() {
    if is_on_postgres() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    expect_every_restore_detected(directory.path()).await;
}

/// A registry is backed up before its first gateway registers. In the second case, the backup has no recorded storage.
#[test]
async fn a_restored_backup_from_before_the_first_lease_is_detected() {
    if is_on_postgres() {
        return;
    }
    for is_recorded in [true, false] {
        let (directory, path) = fleet_file().await;
        if !is_recorded {
            // The registry is now like one that was moved here and not yet opened.
            sql(&path, "UPDATE registry SET storage = NULL").await;
            fs::remove_file(storage_record(&path)).unwrap();
        }
        let copy = directory.path().join("copy");
        run("cp", &[&path, &copy]);
        let fencing_token = register(&path).await;
        serve(&path, &fencing_token, 0).await;
        run("cp", &[&copy, &path]);
        let registry = open(&path).await.unwrap();
        let first = gateway(&registry).await;
        assert!(
            first.number() > fencing_token.number() + 1,
            "another incarnation, {is_recorded}"
        );
        registry.close().await;
        let registry = open(&path).await.unwrap();
        registry.verify_fencing_token(&first).await.unwrap();
    }
}

/// The storage record of an earlier registry does not apply to a registry that is moved to the same place.
#[test]
async fn a_registry_moved_onto_a_stale_storage_record_continues() {
    if is_on_postgres() {
        return;
    }
    let (_directory, path) = fleet_file().await;
    let fencing_token = register(&path).await;
    serve(&path, &fencing_token, 0).await;
    let moved = path.with_file_name("moved.registry");
    let stale_record = path.with_file_name("moved.registry.storage");
    fs::copy(storage_record(&path), &stale_record).unwrap();
    let registry = open(&path).await.unwrap();
    registry.move_to(&*moved, |_| ()).await.unwrap();
    let registry = open(&moved).await.unwrap();
    registry.verify_fencing_token(&fencing_token).await.unwrap();
    assert!(stale_record.exists(), "opening records the storage");
}

/// A directory was restored with the storage record, but without extended attributes.
#[test]
async fn a_directory_that_is_restored_without_attributes_is_detected() {
    if is_on_postgres() {
        return;
    }
    let (directory, path) = fleet_file().await;
    if setxattr(
        directory.path(),
        "user.linewarden.test",
        b"1",
        XattrFlags::empty(),
    )
    .is_err()
    {
        skip!("needs a temporary directory with extended attributes");
    }
    let fencing_token = register(&path).await;
    serve(&path, &fencing_token, 0).await;
    let files = [path.clone(), storage_record(&path)];
    let saved = files.clone().map(|file| fs::read(file).unwrap());
    serve(&path, &fencing_token, 1).await;
    for (file, content) in files.iter().zip(saved) {
        fs::remove_file(file).unwrap();
        fs::write(file, content).unwrap();
    }
    let registry = open(&path).await.unwrap();
    assert!(is_restored(&registry.verify_fencing_token(&fencing_token).await));
}

/// A database has no storage record, a damaged storage record, or the storage record of another database.
#[test]
async fn a_database_without_its_storage_record_counts_as_restored() {
    if is_on_postgres() {
        return;
    }
    let (_directory, path) = fleet_file().await;
    let fencing_token = register(&path).await;
    let record = storage_record(&path);
    let content = fs::read_to_string(&record).unwrap();
    let other_content = content.replacen(
        &content[2..4],
        if &content[2..4] == "00" { "01" } else { "00" },
        1,
    );
    for (name, change) in [
        ("absent", None),
        ("damaged", Some("1 ")),
        ("another's", Some(&*other_content)),
    ] {
        match change {
            None => fs::remove_file(&record).unwrap(),
            Some(text) => fs::write(&record, text).unwrap(),
        }
        let registry = open(&path).await.unwrap();
        assert!(
            is_restored(&registry.verify_fencing_token(&fencing_token).await),
            "{name}"
        );
        registry.close().await;
        fs::write(&record, &content).unwrap();
        let registry = open(&path).await.unwrap();
        registry.verify_fencing_token(&fencing_token).await.unwrap();
        registry.close().await;
    }
    // A registry moved with `registry move` has no storage record yet, and continues.
    let moved = path.with_file_name("moved.registry");
    let registry = open(&path).await.unwrap();
    registry.move_to(&*moved, |_| ()).await.unwrap();
    registry.close().await;
    let registry = open(&moved).await.unwrap();
    registry.verify_fencing_token(&fencing_token).await.unwrap();
    let _granted = lease(&registry, &fencing_token, 1, 0, 1).await.unwrap();
    registry.close().await;
    assert!(path.with_file_name("moved.registry.storage").exists());
}

/// On a file system without extended attributes, only the storage record decides. The test program runs itself again on
/// such a file system.
#[test]
fn without_extended_attributes_a_restore_is_detected_and_a_restart_is_not() {
    if is_on_postgres() || std::env::var_os(WITHOUT_ATTRIBUTES).is_some() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let mount = "mount -t ramfs ramfs \"$1\" || exit 77; exec \"$0\" --exact --nocapture storage::on_a_file_system_without_attributes";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", mount])
        .args([&program, directory.path()])
        .env(WITHOUT_ATTRIBUTES, directory.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let message = String::from_utf8_lossy(&output.stdout);
            assert!(message.contains("1 passed"), "{message}");
        }
        // The test harness exits with this code when a test fails.
        Ok(output) if output.status.code() == Some(101) => panic!("{output:?}"),
        other => skip!("needs root to mount a file system without extended attributes: {other:?}"),
    }
}

#[test]
async fn on_a_file_system_without_attributes() {
    let Some(directory) = std::env::var_os(WITHOUT_ATTRIBUTES) else {
        return;
    };
    let directory = PathBuf::from(directory);
    let result = setxattr(&directory, "user.linewarden.test", b"1", XattrFlags::empty());
    assert!(result.is_err(), "the directory has extended attributes");
    let path = directory.join("fleet.registry");
    create_fleet(&Location::from(&path)).await;
    expect_no_restore_detected_after_restarts(&path).await;
    fs::remove_file(&path).unwrap();
    fs::remove_file(storage_record(&path)).unwrap();
    expect_every_restore_detected(&directory).await;
}
