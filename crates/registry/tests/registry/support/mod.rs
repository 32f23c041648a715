//! Devices for the tests.

pub mod attestation;

use std::path::{Path, PathBuf};

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    BulkOptions, Credentials, DeviceRecord, Fence, Granted, LeaseRequest, MasterKey, PoolRow, Registry,
    RegistryError, Result,
};
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;

pub fn master_key() -> MasterKey {
    MasterKey::from_bytes([0x42; 32])
}

pub async fn in_memory() -> Registry {
    Registry::in_memory(&master_key()).await.unwrap()
}

/// Rows whose bytes tell device, number and generation apart.
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

/// A wish for `count` rows, all of them to be spent at once.
pub fn wish(device: DeviceId, from: u32, count: u32) -> LeaseRequest {
    LeaseRequest {
        device,
        epoch: 0,
        from: RowIndex(from),
        received: RowIndex(from),
        hold: count,
        ahead: count,
    }
}

/// Gateway 1, registered.
pub async fn gateway(registry: &Registry) -> Fence {
    registry
        .register_gateway(GatewayId(1), 1_790_000_000)
        .await
        .unwrap()
}

/// Leases four rows of each of these devices to gateway 1, and lets it spend none of them.
pub async fn lease_all(registry: &Registry, ids: impl Iterator<Item = u64>) -> Fence {
    let fence = gateway(registry).await;
    let wish = |id| LeaseRequest {
        ahead: 0,
        ..wish(DeviceId(id), 0, 4)
    };
    let wishes: Vec<_> = ids.map(wish).collect();
    let answers = registry.lease(&fence, &wishes).await.unwrap();
    assert!(answers.iter().all(Result::is_ok));
    fence
}

/// Leases `count` rows to the gateway.
pub async fn lease(
    registry: &Registry,
    fence: &Fence,
    device: u64,
    from: u32,
    count: u32,
) -> Result<Granted> {
    let wish = wish(DeviceId(device), from, count);
    registry.lease(fence, &[wish]).await?.remove(0)
}

/// A closed registry of 40 devices with 100 rows, about 120 KiB.
pub async fn fleet_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.registry");
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    registry
        .enrol_bulk(
            (1..=40).map(|id| pool_device(id, 100)),
            BulkOptions::default(),
            |_| (),
        )
        .await
        .unwrap();
    registry.close().await;
    (directory, path)
}

pub async fn open(path: &Path) -> std::result::Result<Registry, RegistryError> {
    Registry::open(path, &master_key()).await
}

/// Changes the file behind the registry's back, as somebody with a SQL shell would.
pub async fn sql(path: &Path, statement: &str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(path)
        .foreign_keys(false);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let statement = sqlx::AssertSqlSafe(statement.to_owned());
    connection.execute(sqlx::raw_sql(statement)).await.unwrap();
    connection.close().await.unwrap();
}
