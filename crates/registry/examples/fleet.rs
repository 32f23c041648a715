//! Measures the registry's operations on a fleet: `cargo run -p linewarden-registry --example fleet [DEVICES]`.
//!
//! Enrolls devices of 100 rows in bulk, then leases rows of all devices and loads all credentials, as a gateway does
//! at startup.

mod support;

use std::error::Error;
use std::time::Instant;

use linewarden_protocol::ids::{GatewayId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{BulkOptions, DeviceFilter, LeaseRequest, MasterKey, Registry};

const ROWS: usize = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let devices: usize = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |count| count.parse())?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("registry");
    let registry = Registry::create(&path, &MasterKey::from_bytes([1; 32])).await?;
    let ids = support::sparse_ids(devices, 1);

    // The time includes creating the records, as at an enrollment station.
    let started = Instant::now();
    registry
        .enroll_bulk(
            ids.iter().map(|id| support::record(*id, ROWS)),
            BulkOptions::default(),
            |_| (),
        )
        .await?;
    report("enroll_bulk", devices, started);

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
    let granted = registry
        .lease(&fencing_token, &requests)
        .await?
        .iter()
        .filter(|result| result.is_ok())
        .count();
    report("lease", granted, started);

    let started = Instant::now();
    let mut stream = registry.stream_leased(fencing_token, 1000);
    let mut loaded = 0;
    while let Some(chunk) = stream.next_chunk().await? {
        loaded += chunk.devices.len();
    }
    report("stream_leased", loaded, started);

    let singles = 200.min(devices);
    let started = Instant::now();
    for request in requests.iter().take(singles) {
        let _ = registry.lease(&fencing_token, &[*request]).await?;
    }
    report("lease, one by one", singles, started);

    let count = registry.count(&DeviceFilter::default()).await?;
    registry.close().await;
    let bytes = std::fs::metadata(&path)?.len();
    println!(
        "{count} devices of {ROWS} rows: {bytes} B, {} B per device",
        bytes / count.max(1)
    );
    Ok(())
}

fn report(operation: &str, devices: usize, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{operation:20} {devices:7} devices  {seconds:8.3} s  {:9.0} devices/s",
        devices as f64 / seconds
    );
}
