//! The same tests with every registry on PostgreSQL, and what only PostgreSQL can do.

use std::process::Command;
use std::time::Duration;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Location, MasterKey, Options, Registry, RegistryError};
use linewarden_testbed::{Postgres, PostgresOptions};

use crate::support::{
    ON_POSTGRES, fleet_of_40, gateway, is_on_postgres, lease, master_key, nowhere, open, pool_device, server,
    sql,
};

/// So many tests are run on PostgreSQL at least.
const LEAST: u32 = 100;
/// Those that are not.
const NOT_ON_POSTGRES: [&str; 8] = [
    // This one: it would never end.
    "all_tests_pass_on_postgresql",
    // Of files of SQLite: their rights, locks and logs, foreign and older ones; PostgreSQL's own are below.
    "files::",
    // Of key files, before any registry is opened.
    "keys::",
    // Of values of other types than their columns', which PostgreSQL does not take, put into copies of a file.
    "columns::",
    // Of copies of one file, each edited behind the registry's back. The codes that find it are the same there.
    "attestation_vandals::",
    // Of bytes of a file: cut off, turned, and looked through for keys. PostgreSQL's files are its server's.
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
    // What the documents say it is tested with, or newer.
    let version = server.psql("SHOW server_version_num").unwrap();
    assert!(version.trim().parse::<u32>().unwrap() >= 150_000, "{version}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(NOT_ON_POSTGRES.map(|name| format!("--skip={name}")))
        .env(ON_POSTGRES, server.directory())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Names that nothing has skip nothing, and one that all have would skip all.
    let passed = said
        .split_once("test result: ok. ")
        .and_then(|(_, rest)| rest.split_once(" passed"))
        .map(|(passed, _)| passed.parse::<u32>().unwrap());
    assert!(passed >= Some(LEAST), "{said}");
    print!("on PostgreSQL: {said}");
}

/// Somebody with rights on the database, who could undo what is written without any record's code telling.
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
            matches!(&error, RegistryError::ForeignSchema { kind: found, .. } if found == kind),
            "{statement}: {error}"
        );
        assert!(before.check().await.is_err(), "{statement}");
    }
    // What is beside the tables and acts on none of them.
    let (_directory, place) = fleet_of_40().await;
    sql(
        &place,
        "CREATE VIEW names AS SELECT name FROM device; CREATE TABLE of_others (a TEXT)",
    )
    .await;
    open(&place).await.unwrap();
}

#[tokio::test]
async fn what_cannot_hold_a_registry_says_why() {
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
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }
    let (opened, _) = refused(&format!(
        "postgres://postgres@localhost/postgres?host={host}&options[search_path]=none"
    ))
    .await;
    assert!(opened.to_string().contains("search_path"), "{opened}");
    let (_directory, nowhere) = nowhere();
    assert!(matches!(
        open(&nowhere).await,
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

/// Two programs that make a registry at once: one has made it.
#[tokio::test]
async fn one_of_two_makes_it() {
    let (_directory, place) = nowhere();
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

/// The server goes away under load and comes back: errors in between, and nothing is leased twice.
#[tokio::test]
async fn a_server_that_was_away_is_used_again() {
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
    registry.enrol(pool_device(1, 100)).await.unwrap();
    let fence = gateway(&registry).await;
    let first = lease(&registry, &fence, 1, 0, 4).await.unwrap();
    server.stop();
    let away = lease(&registry, &fence, 1, 4, 4).await.unwrap_err();
    assert!(matches!(away, RegistryError::Unreachable(_)), "{away}");
    let away = registry.get(DeviceId(1)).await.unwrap_err();
    assert!(matches!(away, RegistryError::Unreachable(_)), "{away}");
    server.resume().unwrap();
    let again = lease(&registry, &fence, 1, 4, 4).await.unwrap();
    assert_eq!((first.rows, again.rows), (0..4, 4..8));
}

/// A write that waited in vain leaves its connection as it was, whether it ran into the time for it or was given up.
#[tokio::test]
async fn who_waited_in_vain_for_the_lock_writes_once_it_is_free() {
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
    // A copy that moves holds it for as long as it is being told how far it is.
    let holder = open(&place).await.unwrap();
    let (_kept, target) = nowhere();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let mut held = Box::pin(holder.move_to(&target, move |_| told.send(()).unwrap_or_default()));
    tokio::select! {
        _ = &mut held => panic!("it has ended before anything was heard of it"),
        _ = heard.recv() => {}
    }
    for _ in 0..4 {
        let refused = registry.revoke(DeviceId(3), "lost", 1).await.unwrap_err();
        assert!(matches!(refused, RegistryError::Locked), "{refused}");
        let given_up = registry.revoke(DeviceId(3), "lost", 1);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), given_up)
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

/// Whatever is not finished was never there.
#[tokio::test]
async fn a_copy_that_is_broken_off_leaves_nothing() {
    if !is_on_postgres() {
        return;
    }
    let (_directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
    let (_kept, target) = nowhere();
    {
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let copy = registry.copy_to(&target, move |_| told.send(()).unwrap_or_default());
        tokio::pin!(copy);
        tokio::select! {
            _ = &mut copy => panic!("it has ended before anything was heard of it"),
            _ = heard.recv() => {}
        }
        assert!(matches!(
            open(&target).await,
            Err(RegistryError::NoRegistry { .. })
        ));
    }
    registry.copy_to(&target, |_| ()).await.unwrap();
    assert!(open(&target).await.unwrap().check().await.unwrap().is_empty());
}
