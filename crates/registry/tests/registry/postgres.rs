//! All tests with registries on PostgreSQL, and tests specific to PostgreSQL.

use std::process::Command;
use std::time::Duration;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Location, MasterKey, Options, Registry, RegistryError};
use linewarden_testbed::{Postgres, PostgresOptions};

use crate::support::{
    ON_POSTGRES, fleet_of_40, gateway, is_on_postgres, lease, master_key, open, pool_device, server, sql,
    unused_location,
};

/// Minimum number of tests run on PostgreSQL.
const LEAST: u32 = 100;
/// Tests that do not run on PostgreSQL.
const NOT_ON_POSTGRES: [&str; 8] = [
    // This test, which would recurse.
    "all_tests_pass_on_postgresql",
    // About SQLite files: permissions, locks, logs, foreign and older files.
    "files::",
    // About key files, without a registry.
    "keys::",
    // About values of wrong types, which PostgreSQL refuses.
    "columns::",
    // About edited copies of a file. The MACs that detect edits are the same on PostgreSQL.
    "attestation_vandals::",
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
        Err(missing) => {
            println!("SKIPPED: needs PostgreSQL: {missing}");
            return;
        }
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
    // A name that matches no test would skip nothing, and one that matches all would skip all.
    let passed = message
        .split_once("test result: ok. ")
        .and_then(|(_, rest)| rest.split_once(" passed"))
        .map(|(passed, _)| passed.parse::<u32>().unwrap());
    assert!(passed >= Some(LEAST), "{message}");
    print!("on PostgreSQL: {message}");
}

/// Objects that could undo writes without invalidating a MAC, created by a user with rights on the database.
#[tokio::test]
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
        let (_directory, place) = fleet_of_40().await;
        let before = open(&place).await.unwrap();
        if statement.contains("UNIQUE INDEX") {
            sql(&place, "UPDATE device SET suite = device_id").await;
        }
        sql(&place, statement).await;
        let error = open(&place).await.unwrap_err();
        assert!(
            matches!(&error, RegistryError::UnexpectedSchemaObject { kind: found, .. } if found == kind),
            "{statement}: {error}"
        );
        assert!(before.check().await.is_err(), "{statement}");
    }
    // Objects that do not affect the tables.
    let (_directory, place) = fleet_of_40().await;
    sql(
        &place,
        "CREATE VIEW names AS SELECT name FROM device; CREATE TABLE of_others (a TEXT)",
    )
    .await;
    open(&place).await.unwrap();
}

#[tokio::test]
async fn unusable_databases_are_refused_with_a_reason() {
    let Some(server) = server() else {
        return;
    };
    server
        .psql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'")
        .unwrap();
    let refused = async |place: &str| {
        let place: Location = place.parse().unwrap();
        let [opened, created] = [open(&place).await, Registry::create(&place, &master_key()).await]
            .map(|result| result.unwrap_err());
        (opened, created)
    };
    let host = server.directory().display().to_string();
    let (opened, created) = refused(&format!("postgres://postgres@localhost/latin?host={host}")).await;
    for error in [opened, created] {
        assert!(error.to_string().contains("--encoding UTF8"), "{error}");
    }
    let (opened, created) = refused(&format!("postgres://postgres@localhost/none?host={host}")).await;
    for error in [opened, created] {
        assert!(error.to_string().contains("unreachable"), "{error}");
    }
    let (opened, _) = refused(&format!(
        "postgres://postgres@localhost/postgres?host={host}&options[search_path]=none"
    ))
    .await;
    assert!(opened.to_string().contains("search_path"), "{opened}");
    let (_directory, unused_location) = unused_location();
    assert!(matches!(
        open(&unused_location).await,
        Err(RegistryError::NoRegistry { .. })
    ));
    let (_directory, place) = fleet_of_40().await;
    let other = MasterKey::from_bytes([7; 32]);
    assert!(matches!(
        Registry::open(&place, &other).await,
        Err(RegistryError::WrongMasterKey { .. })
    ));
    assert!(matches!(
        Registry::create(&place, &master_key()).await,
        Err(RegistryError::AlreadyExists { .. })
    ));
}

/// Two programs create a registry concurrently: one succeeds.
#[tokio::test]
async fn one_of_two_concurrent_creations_succeeds() {
    let (_directory, place) = unused_location();
    let key = master_key();
    let (one, other) = tokio::join!(Registry::create(&place, &key), Registry::create(&place, &key));
    let mut made = 0;
    for result in [one, other] {
        match result {
            Ok(_) => made += 1,
            Err(error) => assert!(matches!(error, RegistryError::AlreadyExists { .. }), "{error}"),
        }
    }
    assert_eq!(made, 1);
    assert!(open(&place).await.unwrap().check().await.unwrap().is_empty());
}

/// The server stops under load and returns: requests fail in between, and no row is leased twice.
#[tokio::test]
async fn a_server_is_used_again_after_an_outage() {
    if std::env::var_os(ON_POSTGRES).is_some() {
        return;
    }
    let Ok(mut server) = Postgres::start(PostgresOptions::default()) else {
        println!("SKIPPED: needs PostgreSQL");
        return;
    };
    let place: Location = server.new_schema("away").unwrap().parse().unwrap();
    Registry::create(&place, &master_key())
        .await
        .unwrap()
        .close()
        .await;
    let options = Options {
        busy_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let registry = Registry::open_with(&place, &master_key(), &options)
        .await
        .unwrap();
    registry.enroll(pool_device(1, 100)).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let first = lease(&registry, &fencing_token, 1, 0, 4).await.unwrap();
    server.stop();
    let away = lease(&registry, &fencing_token, 1, 4, 4).await.unwrap_err();
    assert!(matches!(away, RegistryError::Unreachable(_)), "{away}");
    let away = registry.get(DeviceId(1)).await.unwrap_err();
    assert!(matches!(away, RegistryError::Unreachable(_)), "{away}");
    server.restart().unwrap();
    let again = lease(&registry, &fencing_token, 1, 4, 4).await.unwrap();
    assert_eq!((first.rows, again.rows), (0..4, 4..8));
}

/// A write that timed out or was canceled leaves its connection unchanged.
#[tokio::test]
async fn a_writer_succeeds_after_the_lock_timeout_once_the_lock_is_free() {
    if !is_on_postgres() {
        return;
    }
    let (_directory, place) = fleet_of_40().await;
    let options = Options {
        busy_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let registry = Registry::open_with(&place, &master_key(), &options)
        .await
        .unwrap();
    // A moving copy locks the registry while its progress callback runs.
    let holder = open(&place).await.unwrap();
    let (_kept, target) = unused_location();
    let (reported, mut received) = tokio::sync::mpsc::unbounded_channel();
    let mut held = Box::pin(holder.move_to(&target, move |_| reported.send(()).unwrap_or_default()));
    tokio::select! {
        _ = &mut held => panic!("it ended before its first report"),
        _ = received.recv() => {}
    }
    for _ in 0..4 {
        let refused = registry.revoke(DeviceId(3), "lost", 1).await.unwrap_err();
        assert!(matches!(refused, RegistryError::Locked), "{refused}");
        let canceled = registry.revoke(DeviceId(3), "lost", 1);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), canceled)
                .await
                .is_err()
        );
    }
    drop(held);
    let patient = open(&place).await.unwrap();
    patient.revoke(DeviceId(4), "lost", 1).await.unwrap();
    for device in [3, 5, 6] {
        registry.revoke(DeviceId(device), "lost", 1).await.unwrap();
    }
}

/// An unfinished copy leaves nothing.
#[tokio::test]
async fn an_interrupted_copy_leaves_no_registry() {
    if !is_on_postgres() {
        return;
    }
    let (_directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
    let (_kept, target) = unused_location();
    {
        let (reported, mut received) = tokio::sync::mpsc::unbounded_channel();
        let copy = registry.copy_to(&target, move |_| reported.send(()).unwrap_or_default());
        tokio::pin!(copy);
        tokio::select! {
            _ = &mut copy => panic!("it ended before its first report"),
            _ = received.recv() => {}
        }
        assert!(matches!(
            open(&target).await,
            Err(RegistryError::NoRegistry { .. })
        ));
    }
    registry.copy_to(&target, |_| ()).await.unwrap();
    assert!(open(&target).await.unwrap().check().await.unwrap().is_empty());
}
