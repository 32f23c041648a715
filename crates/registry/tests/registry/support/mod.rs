//! Devices for the tests.

pub mod attestation;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    BulkOptions, Credentials, DeviceRecord, FencingToken, LeaseGrant, LeaseRequest, Location, MasterKey,
    PoolRow, Registry, RegistryError, Result,
};
use linewarden_testbed::Postgres;
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;

pub fn master_key() -> MasterKey {
    MasterKey::from_bytes([0x42; 32])
}

/// Environment variable with the directory of the PostgreSQL server. This test program sets the variable when it runs
/// itself again with all registries on PostgreSQL.
pub const ON_POSTGRES: &str = "LINEWARDEN_TEST_REGISTRIES_ON_POSTGRES";

/// The PostgreSQL server of this run; `None` in a run on SQLite.
pub fn server() -> Option<&'static Postgres> {
    static SERVER: OnceLock<Option<Postgres>> = OnceLock::new();
    let attach = || Some(Postgres::attach(Path::new(&std::env::var_os(ON_POSTGRES)?)));
    SERVER.get_or_init(attach).as_ref()
}

/// Whether this run uses PostgreSQL.
pub fn is_on_postgres() -> bool {
    server().is_some()
}

/// The token of a gateway without leases, which quarantines and releases devices.
pub async fn appraising_gateway(registry: &Registry) -> FencingToken {
    registry.register_gateway(GatewayId(99), 0).await.unwrap()
}

/// A location without a registry, valid while the directory is kept.
pub fn unused_location() -> (TempDir, Location) {
    static SCHEMAS: AtomicU32 = AtomicU32::new(0);
    let directory = tempfile::tempdir().unwrap();
    let location = match server() {
        Some(server) => {
            let schema = format!("test_{}", SCHEMAS.fetch_add(1, Relaxed));
            server.new_schema(&schema).unwrap().parse().unwrap()
        }
        None => Location::Sqlite(directory.path().join("fleet.registry")),
    };
    (directory, location)
}

/// A new registry that the test does not open again: in memory or, in a run on PostgreSQL, in a new schema.
pub async fn in_memory() -> Registry {
    match server() {
        Some(_) => Registry::create(unused_location().1, &master_key())
            .await
            .unwrap(),
        None => Registry::in_memory(&master_key()).await.unwrap(),
    }
}

/// Rows whose bytes depend on device, number and generation.
pub fn rows(device: u64, generation: u8, count: u32) -> Vec<PoolRow> {
    (0..count)
        .map(|n| {
            let mut key = [generation.wrapping_add(1); 16];
            key[..8].copy_from_slice(&device.to_be_bytes());
            key[8..12].copy_from_slice(&n.to_be_bytes());
            PoolRow {
                challenge: (device ^ u64::from(n) << 32).to_be_bytes(),
                row_key: RowKey::from_bytes(key),
            }
        })
        .collect()
}

pub fn record(device: u64, credentials: Credentials) -> DeviceRecord {
    DeviceRecord {
        device: DeviceId(device),
        name: format!("device {device:x}"),
        suite: Suite::SipHash128,
        enrolled_at_s: 1_790_000_000,
        puf_profile: "arbiter".to_owned(),
        credentials,
    }
}

pub fn pool_device(device: u64, count: u32) -> DeviceRecord {
    record(device, Credentials::pool(rows(device, 0, count)))
}

pub fn pool_device_from(device: u64, first_idx: u32, count: u32) -> DeviceRecord {
    let credentials = Credentials::Pool {
        first_idx: RowIndex(first_idx),
        rows: rows(device, 1, count),
    };
    record(device, credentials)
}

pub fn key_device(device: u64) -> DeviceRecord {
    record(device, Credentials::Key(RowKey::from_bytes([7; 16])))
}

/// A lease request for `count` rows, which may all be spent at once.
pub fn lease_request(device: DeviceId, from: u32, count: u32) -> LeaseRequest {
    LeaseRequest {
        device,
        epoch: 0,
        from: RowIndex(from),
        received: RowIndex(from),
        hold_rows: count,
        spendable_rows: count,
        statement: RowStatement::default(),
    }
}

/// Registers gateway 1 and returns its fencing token.
pub async fn gateway(registry: &Registry) -> FencingToken {
    registry
        .register_gateway(GatewayId(1), 1_790_000_000)
        .await
        .unwrap()
}

/// Leases four rows of each of these devices to gateway 1; the marks allow no row to be spent. Returns the gateway's
/// fencing token.
pub async fn lease_all(registry: &Registry, ids: impl Iterator<Item = u64>) -> FencingToken {
    let fencing_token = gateway(registry).await;
    let lease_request = |id| LeaseRequest {
        spendable_rows: 0,
        ..lease_request(DeviceId(id), 0, 4)
    };
    let requests: Vec<_> = ids.map(lease_request).collect();
    let results = registry.lease(&fencing_token, &requests).await.unwrap();
    assert!(results.iter().all(Result::is_ok));
    fencing_token
}

/// Leases `count` rows to the gateway.
pub async fn lease(
    registry: &Registry,
    fencing_token: &FencingToken,
    device: u64,
    from: u32,
    count: u32,
) -> Result<LeaseGrant> {
    let lease_request = lease_request(DeviceId(device), from, count);
    registry.lease(fencing_token, &[lease_request]).await?.remove(0)
}

/// A closed registry of 40 devices with 100 rows each.
pub async fn fleet_of_40() -> (TempDir, Location) {
    let (directory, location) = unused_location();
    create_fleet(&location).await;
    (directory, location)
}

/// A closed registry like [`fleet_of_40`], always in a file, also in a run on PostgreSQL; about 120 KiB.
pub async fn fleet_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.registry");
    create_fleet(&Location::from(&path)).await;
    (directory, path)
}

/// Creates a registry of 40 devices with 100 rows each, and closes it.
pub async fn create_fleet(location: &Location) {
    let registry = Registry::create(location, &master_key()).await.unwrap();
    registry
        .enroll_bulk(
            (1..=40).map(|id| pool_device(id, 100)),
            BulkOptions::default(),
            |_| (),
        )
        .await
        .unwrap();
    registry.close().await;
}

pub async fn open(location: impl Into<Location>) -> std::result::Result<Registry, RegistryError> {
    Registry::open(location, &master_key()).await
}

/// Changes the database directly with SQL.
pub async fn sql(location: impl Into<Location>, statement: &str) {
    assert!(try_sql(location, statement).await, "{statement}");
}

/// Changes the database directly with SQL; returns `false` if the column types of the database refuse the change.
pub async fn try_sql(location: impl Into<Location>, statement: &str) -> bool {
    let location = location.into();
    let Some(path) = location.file() else {
        return psql(&location, statement);
    };
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(path)
        .foreign_keys(false);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let statement = sqlx::AssertSqlSafe(statement.to_owned());
    connection.execute(sqlx::raw_sql(statement)).await.unwrap();
    connection.close().await.unwrap();
    true
}

/// The names of the empty tables in a file, without internal tables of SQLite and sqlx.
pub async fn empty_tables(path: &Path) -> Vec<String> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\' \
                  AND name NOT LIKE 'sqlite%' ORDER BY name";
    let tables: Vec<(String,)> = sqlx::query_as(tables).fetch_all(&mut connection).await.unwrap();
    let mut empty = Vec::new();
    for (table,) in tables {
        let any = sqlx::AssertSqlSafe(format!("SELECT 1 FROM {table} LIMIT 1"));
        if sqlx::query(any)
            .fetch_optional(&mut connection)
            .await
            .unwrap()
            .is_none()
        {
            empty.push(table);
        }
    }
    connection.close().await.unwrap();
    empty
}

fn psql(location: &Location, statement: &str) -> bool {
    let location = location.to_string();
    let (_, schema) = location.split_once("[search_path]=").unwrap();
    let statement = statement.replace("x'", "'\\x");
    let statement = ["16", "2440"].iter().fold(statement, |statement, bytes| {
        let zeros = format!("decode(repeat('00', {bytes}), 'hex')");
        statement.replace(&format!("zeroblob({bytes})"), &zeros)
    });
    // On PostgreSQL foreign keys are triggers, which a replica does not fire.
    let statement =
        format!("SET search_path = {schema}; SET session_replication_role = replica; {statement}");
    match server().unwrap().psql(&statement) {
        Ok(_) => true,
        Err(error) => {
            let message = error.to_string();
            assert!(
                TYPE_ERRORS.iter().any(|refusal| message.contains(refusal)),
                "{statement}: {message}"
            );
            false
        }
    }
}

/// Parts of PostgreSQL's error messages for a value of a wrong type.
const TYPE_ERRORS: [&str; 4] = [
    "out of range",
    "invalid input syntax",
    "violates not-null",
    "violates unique",
];
