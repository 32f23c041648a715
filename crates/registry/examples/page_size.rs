//! Measures the effect of SQLite's page size: `cargo run -p linewarden-registry --example page_size [DEVICES]`.
//!
//! The first table measures a registry of devices with 100 rows of 24 B, by page size. The second table measures only
//! the sealed credentials: of 50, 100 and 200 rows as the schema stores them (in the order of enrollment, with an
//! index), and of 100 rows clustered by device id (`INTEGER PRIMARY KEY`), as the alternative. Each time is the best
//! of five runs; the runs alternate between the page sizes, so that a busy machine affects all sizes equally.

mod support;

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    BulkOptions, LeaseRequest, MasterKey, Options, POOL_ROW_BYTES, Registry, SEAL_OVERHEAD_BYTES,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection as _, QueryBuilder, Sqlite, SqliteConnection};

const PAGE_SIZES: [u32; 5] = [4096, 8192, 16_384, 32_768, 65_536];
const ROWS: usize = 100;
const LOOKUPS: usize = 2000;
const RUNS: usize = 5;
/// Key type of a table in the order of enrollment, with an index.
const HEAP: &str = "BIGINT PRIMARY KEY";
/// Key type of a table that is clustered by device id.
const CLUSTERED: &str = "INTEGER PRIMARY KEY";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let devices: usize = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |count| count.parse())?;
    let ids = support::sparse_ids(devices, 1);
    println!("{devices} devices of {ROWS} rows, sparse ids; every commit is synced to disk\n");
    let mut registries = [Figures::WORST; PAGE_SIZES.len()];
    let mut heaps = [f64::INFINITY; PAGE_SIZES.len()];
    let mut clusters = [f64::INFINITY; PAGE_SIZES.len()];
    for _ in 0..RUNS {
        for (page_size, best) in PAGE_SIZES.into_iter().zip(&mut registries) {
            *best = best.better(registry(page_size, &ids).await?);
        }
        for (page_size, (heap, cluster)) in PAGE_SIZES.into_iter().zip(heaps.iter_mut().zip(&mut clusters)) {
            *heap = heap.min(blobs(HEAP, page_size, ROWS, &ids).await?.1);
            *cluster = cluster.min(blobs(CLUSTERED, page_size, ROWS, &ids).await?.1);
        }
    }
    println!(
        "page_B  file_B/device  enroll_devices/s  lookup_us  lease_all_ms  lease_one_us  stream_devices/s"
    );
    for (page_size, best) in PAGE_SIZES.into_iter().zip(registries) {
        println!(
            "{page_size:6}  {:13.0}  {:15.0}  {:9.0}  {:14.0}  {:14.0}  {:16.0}",
            best.file_bytes / devices as f64,
            devices as f64 / best.enroll_s,
            best.lookup_s * 1e6,
            best.lease_all_s * 1e3,
            best.lease_one_s * 1e6,
            devices as f64 / best.stream_s,
        );
    }
    println!("\nonly the sealed credentials: file bytes per byte sealed, load time at {ROWS} rows");
    println!(
        "page_B  heap_50  heap_100  heap_200  heap_ms  clustered_100  clustered_ms  clustered/heap_time"
    );
    for (page_size, (heap_s, cluster_s)) in PAGE_SIZES.into_iter().zip(heaps.into_iter().zip(clusters)) {
        let mut sizes = [0.0; 4];
        let cases = [(HEAP, 50), (HEAP, 100), (HEAP, 200), (CLUSTERED, 100)];
        for (size, (key_type, rows)) in sizes.iter_mut().zip(cases) {
            *size = blobs(key_type, page_size, rows, &ids).await?.0;
        }
        let [heap_50, heap_100, heap_200, clustered] = sizes;
        println!(
            "{page_size:6}  {heap_50:7.2}  {heap_100:8.2}  {heap_200:8.2}  {:7.0}  {clustered:13.2}  {:12.0}  {:19.1}",
            heap_s * 1e3,
            cluster_s * 1e3,
            cluster_s / heap_s,
        );
    }
    Ok(())
}

/// Results of one run; times in seconds.
#[derive(Clone, Copy)]
struct Figures {
    file_bytes: f64,
    enroll_s: f64,
    lookup_s: f64,
    lease_all_s: f64,
    lease_one_s: f64,
    stream_s: f64,
}

impl Figures {
    const WORST: Self = Self {
        file_bytes: f64::INFINITY,
        enroll_s: f64::INFINITY,
        lookup_s: f64::INFINITY,
        lease_all_s: f64::INFINITY,
        lease_one_s: f64::INFINITY,
        stream_s: f64::INFINITY,
    };

    /// Returns the better value of each measurement.
    fn better(self, other: Self) -> Self {
        Self {
            file_bytes: self.file_bytes.min(other.file_bytes),
            enroll_s: self.enroll_s.min(other.enroll_s),
            lookup_s: self.lookup_s.min(other.lookup_s),
            lease_all_s: self.lease_all_s.min(other.lease_all_s),
            lease_one_s: self.lease_one_s.min(other.lease_one_s),
            stream_s: self.stream_s.min(other.stream_s),
        }
    }
}

/// Measures a registry with this page size.
async fn registry(page_size_bytes: u32, ids: &[DeviceId]) -> Result<Figures, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("registry");
    let key = MasterKey::from_bytes([1; 32]);
    let options = Options {
        page_size_bytes,
        ..Options::default()
    };
    let registry = Registry::create_with(&path, &key, &options).await?;

    let records: Vec<_> = ids.iter().map(|id| support::record(*id, ROWS)).collect();
    let started = Instant::now();
    registry
        .enroll_bulk(records, BulkOptions::default(), |_| ())
        .await?;
    let enroll_s = started.elapsed().as_secs_f64();
    // Closing checkpoints the log into the file, so the file size is complete.
    registry.close().await;
    let file_bytes = std::fs::metadata(&path)?.len() as f64;

    let registry = Registry::open_with(&path, &key, &options).await?;
    let started = Instant::now();
    let step = (ids.len() / LOOKUPS).max(1);
    let mut lookups = 0u32;
    for id in ids.iter().step_by(step) {
        registry.load(*id).await?;
        lookups += 1;
    }
    let lookup_s = started.elapsed().as_secs_f64() / f64::from(lookups);

    let requests: Vec<_> = ids
        .iter()
        .map(|device| LeaseRequest {
            device: *device,
            epoch: 0,
            from: RowIndex(0),
            received: RowIndex(0),
            hold_rows: 32,
            spendable_rows: 4,
            statement: RowStatement::default(),
        })
        .collect();
    let fencing_token = registry.register_gateway(GatewayId(1), 0).await?;
    let started = Instant::now();
    registry.lease(&fencing_token, &requests).await?;
    let lease_all_s = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let singles = ids.len().min(200);
    for request in requests.iter().take(singles) {
        let _ = registry.lease(&fencing_token, &[*request]).await?;
    }
    let lease_one_s = started.elapsed().as_secs_f64() / singles as f64;

    let started = Instant::now();
    let mut stream = registry.stream_leased(fencing_token, 1000);
    while stream.next_chunk().await?.is_some() {}
    let stream_s = started.elapsed().as_secs_f64();
    Ok(Figures {
        file_bytes,
        enroll_s,
        lookup_s,
        lease_all_s,
        lease_one_s,
        stream_s,
    })
}

/// Stores blobs of sealed size with the given key type; returns file bytes per blob byte, and seconds.
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
    let started = Instant::now();
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
    let load_s = started.elapsed().as_secs_f64();
    connection.close().await?;
    let bytes = std::fs::metadata(&path)?.len() as f64;
    Ok((bytes / (ids.len() * blob.len()) as f64, load_s))
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
