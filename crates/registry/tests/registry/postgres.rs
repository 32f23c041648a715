//! All tests with registries on PostgreSQL, and tests specific to PostgreSQL.

use std::process::Command;
use std::time::Duration;

use linewarden_harness::skip;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{DatabaseError, Location, MasterKey, OpenError, Options, Registry, RegistryError};
use linewarden_testbed::{Postgres, PostgresOptions};

use crate::support::{
    ON_POSTGRES, fleet_of_40, gateway, is_on_postgres, lease, master_key, open, pool_device, server, sql,
    unused_location,
};

/// Minimum number of tests run on PostgreSQL.
const TESTS_MIN: u32 = 100;
/// Tests that do not run on PostgreSQL.
const NOT_ON_POSTGRES: [&str; 8] = [
    // This test would recurse.
    "all_tests_pass_on_postgresql",
    // About SQLite files: permissions, locks, logs, foreign and older files.
    "files::",
    // About key files, without a registry.
    "keys::",
    // About values of wrong types, which PostgreSQL refuses.
    "columns::",
    // About edited copies of a file. The tags that detect edits are the same on PostgreSQL.
    "attestation_tampering::",
    // About bytes of a file: truncated, flipped, searched for keys. Files of PostgreSQL belong to its server.
    "truncated_files",
    "flipped_bytes",
    "no_key_material",
];

#[test]
fn all_tests_pass_on_postgresql() {
    if std::env::var_os(ON_POSTGRES).is_some() {
        return;
    }
    let server = match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(reason) => skip!("needs PostgreSQL: {reason}"),
    };
    // The documented PostgreSQL version, or newer.
    let version = server.psql("SHOW server_version_num").unwrap();
    assert!(version.trim().parse::<u32>().unwrap() >= 150_000, "{version}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(NOT_ON_POSTGRES.map(|name| format!("--skip={name}")))
        .env(ON_POSTGRES, server.directory())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{message}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A name that matches no test would skip nothing, and a name that matches all tests would skip all tests.
    let passed = message
        .split_once("test result: ok. ")
        .and_then(|(_, rest)| rest.split_once(" passed"))
        .map(|(passed, _)| passed.parse::<u32>().unwrap());
    assert!(passed >= Some(TESTS_MIN), "{message}");
    println!("passed tests on PostgreSQL: {passed:?}");
}

/// Objects that could undo writes without invalidating a tag. A user with rights on the database created them.
#[test]
async fn triggers_rules_policies_and_changed_tables_are_refused() {
    if !is_on_postgres() {
        return;
    }
    for (statement, kind) in [
        (
            "CREATE FUNCTION f() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
             CREATE TRIGGER undo BEFORE UPDATE ON device FOR EACH ROW EXECUTE FUNCTION f()",
            "trigger",
        ),
        (
            "CREATE RULE undo AS ON UPDATE TO device DO INSTEAD NOTHING",
            "rule",
        ),
        ("CREATE POLICY undo ON device", "policy"),
        ("ALTER TABLE device ENABLE ROW LEVEL SECURITY", "relation"),
        ("CREATE TABLE another () INHERITS (device)", "child"),
        ("CREATE UNIQUE INDEX one ON device (suite)", "index"),
        ("ALTER TABLE lease DROP CONSTRAINT lease_check", "constraint"),
        ("ALTER TABLE device ALTER COLUMN epoch SET DEFAULT 0", "column"),
        ("ALTER TABLE lease SET UNLOGGED", "relation"),
        (
            "CREATE OR REPLACE FUNCTION typeof(BIGINT) RETURNS TEXT LANGUAGE SQL AS 'SELECT CAST(NULL AS TEXT)'",
            "function",
        ),
    ] {
        let (_directory, location) = fleet_of_40().await;
        let opened_before = open(&location).await.unwrap();
        if statement.contains("UNIQUE INDEX") {
            sql(&location, "UPDATE device SET suite = device_id").await;
        }
        sql(&location, statement).await;
        let error = open(&location).await.unwrap_err();
        assert!(
            matches!(&error, RegistryError::Open(OpenError::UnexpectedSchemaObject { kind: reported, .. }) if reported == kind),
            "{statement}: {error}"
        );
        assert!(opened_before.check().await.is_err(), "{statement}");
    }
    // Objects that do not affect the tables.
    let (_directory, location) = fleet_of_40().await;
    sql(
        &location,
        "CREATE VIEW names AS SELECT name FROM device; CREATE TABLE of_others (a TEXT)",
    )
    .await;
    open(&location).await.unwrap();
}

#[test]
async fn unusable_databases_are_refused_with_a_reason() {
    let Some(server) = server() else {
        return;
    };
    server
        .psql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'")
        .unwrap();
    let open_errors = async |location: &str| {
        let location: Location = location.parse().unwrap();
        let [opened, created] = [
            open(&location).await,
            Registry::create(&location, &master_key()).await,
        ]
        .map(|result| result.unwrap_err());
        (opened, created)
    };
    let host = server.directory().display().to_string();
    let (opened, created) = open_errors(&format!("postgres://postgres@localhost/latin?host={host}")).await;
    for error in [opened, created] {
        assert!(error.to_string().contains("--encoding UTF8"), "{error}");
    }
    let (opened, created) = open_errors(&format!("postgres://postgres@localhost/none?host={host}")).await;
    for error in [opened, created] {
        assert!(error.to_string().contains("unreachable"), "{error}");
    }
    let (opened, _) = open_errors(&format!(
        "postgres://postgres@localhost/postgres?host={host}&options[search_path]=none"
    ))
    .await;
    assert!(opened.to_string().contains("search_path"), "{opened}");
    let (_directory, unused_location) = unused_location();
    assert!(matches!(
        open(&unused_location).await,
        Err(RegistryError::Open(OpenError::NoRegistry { .. }))
    ));
    let (_directory, location) = fleet_of_40().await;
    let wrong_key = MasterKey::from_bytes([7; 32]);
    assert!(matches!(
        Registry::open(&location, &wrong_key).await,
        Err(RegistryError::Open(OpenError::WrongMasterKey { .. }))
    ));
    assert!(matches!(
        Registry::create(&location, &master_key()).await,
        Err(RegistryError::Open(OpenError::AlreadyExists { .. }))
    ));
}

/// Two programs create a registry concurrently: one succeeds.
#[test]
async fn one_of_two_concurrent_creations_succeeds() {
    let (_directory, location) = unused_location();
    let key = master_key();
    let (first, second) = tokio::join!(
        Registry::create(&location, &key),
        Registry::create(&location, &key)
    );
    let mut created = 0;
    for result in [first, second] {
        match result {
            Ok(_) => created += 1,
            Err(error) => assert!(
                matches!(error, RegistryError::Open(OpenError::AlreadyExists { .. })),
                "{error}"
            ),
        }
    }
    assert_eq!(created, 1);
    assert!(open(&location).await.unwrap().check().await.unwrap().is_empty());
}

/// The server stops and starts again: requests fail during the outage, and no row is leased twice.
#[test]
async fn a_server_is_used_again_after_an_outage() {
    if std::env::var_os(ON_POSTGRES).is_some() {
        return;
    }
    let Ok(mut server) = Postgres::start(PostgresOptions::default()) else {
        skip!("needs PostgreSQL");
    };
    let location: Location = server.new_schema("away").unwrap().parse().unwrap();
    Registry::create(&location, &master_key())
        .await
        .unwrap()
        .close()
        .await;
    let options = Options {
        busy_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let registry = Registry::open_with(&location, &master_key(), &options)
        .await
        .unwrap();
    registry.enroll(pool_device(1, 100)).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let first = lease(&registry, &fencing_token, 1, 0, 4).await.unwrap();
    server.stop();
    let error = lease(&registry, &fencing_token, 1, 4, 4).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Database(DatabaseError::Unreachable(_))),
        "{error}"
    );
    let error = registry.get(DeviceId(1)).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Database(DatabaseError::Unreachable(_))),
        "{error}"
    );
    server.restart().unwrap();
    let second = lease(&registry, &fencing_token, 1, 4, 4).await.unwrap();
    assert_eq!((first.rows, second.rows), (0..4, 4..8));
}

/// A write that timed out or was canceled leaves its connection unchanged.
#[test]
async fn a_writer_succeeds_after_the_lock_timeout_once_the_lock_is_free() {
    if !is_on_postgres() {
        return;
    }
    let (_directory, location) = fleet_of_40().await;
    let options = Options {
        busy_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let registry = Registry::open_with(&location, &master_key(), &options)
        .await
        .unwrap();
    // A move locks the registry while its progress callback runs.
    let moving_registry = open(&location).await.unwrap();
    let (_kept, target) = unused_location();
    let (reported, mut received) = tokio::sync::mpsc::unbounded_channel();
    let mut unfinished_move =
        Box::pin(moving_registry.move_to(&target, move |_| reported.send(()).unwrap_or_default()));
    tokio::select! {
        _ = &mut unfinished_move => panic!("the move ended before its first report"),
        _ = received.recv() => {}
    }
    for _ in 0..4 {
        let error = registry.revoke(DeviceId(3), "lost", 1).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Database(DatabaseError::Locked)),
            "{error}"
        );
        let canceled = registry.revoke(DeviceId(3), "lost", 1);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), canceled)
                .await
                .is_err()
        );
    }
    drop(unfinished_move);
    let registry_with_long_timeout = open(&location).await.unwrap();
    registry_with_long_timeout
        .revoke(DeviceId(4), "lost", 1)
        .await
        .unwrap();
    for device in [3, 5, 6] {
        registry.revoke(DeviceId(device), "lost", 1).await.unwrap();
    }
}

/// An unfinished copy leaves nothing.
#[test]
async fn an_interrupted_copy_leaves_no_registry() {
    if !is_on_postgres() {
        return;
    }
    let (_directory, location) = fleet_of_40().await;
    let registry = open(&location).await.unwrap();
    let (_kept, target) = unused_location();
    {
        let (reported, mut received) = tokio::sync::mpsc::unbounded_channel();
        let copy = registry.copy_to(&target, move |_| reported.send(()).unwrap_or_default());
        tokio::pin!(copy);
        tokio::select! {
            _ = &mut copy => panic!("the copy ended before its first report"),
            _ = received.recv() => {}
        }
        assert!(matches!(
            open(&target).await,
            Err(RegistryError::Open(OpenError::NoRegistry { .. }))
        ));
    }
    registry.copy_to(&target, |_| ()).await.unwrap();
    assert!(open(&target).await.unwrap().check().await.unwrap().is_empty());
}
