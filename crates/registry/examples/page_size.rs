//! Measures what SQLite's page size costs and gains: `cargo run -p linewarden-registry --example page_size [DEVICES]`.
//!
//! First table: a registry of devices with 100 rows of 24 B, by page size. Second table: only the sealed
//! credentials of 50, 100 and 200 rows as the schema keeps them (in the order of enrolment, with an index), and
//! those of 100 rows clustered by device id (`INTEGER PRIMARY KEY`), as the alternative.

mod support;

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{
    BulkOptions, MasterKey, Options, POOL_ROW_BYTES, Registry, ReserveRequest, SEAL_OVERHEAD_BYTES,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection as _, QueryBuilder, Sqlite, SqliteConnection};

const PAGE_SIZES: [u32; 5] = [4096, 8192, 16_384, 32_768, 65_536];
const ROWS: usize = 100;
const LOOKUPS: usize = 2000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let devices: usize = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |count| count.parse())?;
    let ids = support::sparse_ids(devices, 1);
    println!("{devices} devices of {ROWS} rows, sparse ids; every commit is synced to disk\n");
    println!(
        "page_B  file_B/device  enrol_devices/s  lookup_us  reserve_all_ms  reserve_one_us  stream_devices/s"
    );
    for page_size_bytes in PAGE_SIZES {
        registry(page_size_bytes, &ids).await?;
    }
    println!("\nonly the sealed credentials: file bytes per byte sealed, devices/s at {ROWS} rows");
    println!("page_B  heap_50  heap_100  heap_200  heap_devices/s  clustered_100  clustered_devices/s");
    for page_size in PAGE_SIZES {
        let (heap_50, _) = blobs("BIGINT PRIMARY KEY", page_size, 50, &ids).await?;
        let (heap_100, heap_per_s) = blobs("BIGINT PRIMARY KEY", page_size, ROWS, &ids).await?;
        let (heap_200, _) = blobs("BIGINT PRIMARY KEY", page_size, 200, &ids).await?;
        let (clustered, clustered_per_s) = blobs("INTEGER PRIMARY KEY", page_size, ROWS, &ids).await?;
        println!(
            "{page_size:6}  {heap_50:7.2}  {heap_100:8.2}  {heap_200:8.2}  {heap_per_s:14.0}  {clustered:13.2}  {clustered_per_s:19.0}"
        );
    }
    Ok(())
}

async fn registry(page_size_bytes: u32, ids: &[DeviceId]) -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("registry");
    let key = MasterKey::from_bytes([1; 32]);
    let options = Options {
        page_size_bytes,
        ..Options::default()
    };
    let registry = Registry::create_with(&path, &key, &options).await?;

    let records: Vec<_> = ids.iter().map(|id| support::record(*id, ROWS)).collect();
    let began = Instant::now();
    registry
        .enrol_bulk(records, BulkOptions::default(), |_| ())
        .await?;
    let enrol_per_s = per_second(ids.len(), began);
    // Closing folds the log into the file, whose size then counts everything.
    registry.close().await;
    let bytes_per_device = std::fs::metadata(&path)?.len() / ids.len() as u64;

    let registry = Registry::open_with(&path, &key, &options).await?;
    let began = Instant::now();
    let step = (ids.len() / LOOKUPS).max(1);
    let mut lookups = 0u32;
    for id in ids.iter().step_by(step) {
        registry.load_credentials(*id).await?;
        lookups += 1;
    }
    let lookup_us = began.elapsed().as_secs_f64() * 1e6 / f64::from(lookups);

    let requests: Vec<_> = ids
        .iter()
        .map(|device| ReserveRequest {
            device: *device,
            from_hint: RowIndex(0),
            count: 4,
        })
        .collect();
    let began = Instant::now();
    registry.reserve_bulk(&requests).await?;
    let reserve_ms = began.elapsed().as_secs_f64() * 1e3;

    let began = Instant::now();
    let singles = ids.len().min(200);
    for id in ids.iter().take(singles) {
        let _ = registry.reserve(*id, RowIndex(0), 4).await?;
    }
    let reserve_us = began.elapsed().as_secs_f64() * 1e6 / singles as f64;

    let began = Instant::now();
    let mut stream = registry.stream_active(1000);
    let mut streamed = 0;
    while let Some(chunk) = stream.next_chunk().await? {
        streamed += chunk.devices.len();
    }
    let stream_per_s = per_second(streamed, began);
    println!(
        "{page_size_bytes:6}  {bytes_per_device:13}  {enrol_per_s:15.0}  {lookup_us:9.0}  {reserve_ms:14.0}  {reserve_us:14.0}  {stream_per_s:16.0}"
    );
    Ok(())
}

/// Stores blobs of sealed size under a key of the given type; file bytes per blob byte, and blobs per second.
async fn blobs(
    key_type: &str,
    page_size: u32,
    rows: usize,
    ids: &[DeviceId],
) -> Result<(f64, f64), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("blobs");
    let mut connection = connect(&path, page_size).await?;
    let table = format!("CREATE TABLE credential (device_id {key_type}, sealed BLOB NOT NULL)");
    sqlx::query(sqlx::AssertSqlSafe(table))
        .execute(&mut connection)
        .await?;
    let blob = vec![0x5au8; rows * POOL_ROW_BYTES + SEAL_OVERHEAD_BYTES];
    let began = Instant::now();
    for chunk in ids.chunks(1000) {
        let mut transaction = connection.begin().await?;
        for batch in chunk.chunks(50) {
            let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO credential (device_id, sealed) ");
            insert.push_values(batch, |mut values, id| {
                values.push_bind(id.0.cast_signed()).push_bind(blob.as_slice());
            });
            insert.build().execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
    }
    let rate = per_second(ids.len(), began);
    connection.close().await?;
    let bytes = std::fs::metadata(&path)?.len() as f64;
    Ok((bytes / (ids.len() * blob.len()) as f64, rate))
}

async fn connect(path: &Path, page_size: u32) -> sqlx::Result<SqliteConnection> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .page_size(page_size)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    SqliteConnection::connect_with(&options).await
}

fn per_second(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}
