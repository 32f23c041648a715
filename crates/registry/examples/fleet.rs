//! Measures a fleet's life in the registry: `cargo run -p linewarden-registry --example fleet [DEVICES]`.
//!
//! Enrols devices of 100 rows in bulk, then does what a gateway does at its start: leases rows of all of them
//! and loads all their credentials.

mod support;

use std::error::Error;
use std::time::Instant;

use linewarden_protocol::ids::{GatewayId, RowIndex};
use linewarden_protocol::nonce::Statement;
use linewarden_registry::{BulkOptions, Filter, LeaseRequest, MasterKey, Registry};

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

    // Making the records counts, too: an enrolling station does both.
    let began = Instant::now();
    registry
        .enrol_bulk(
            ids.iter().map(|id| support::record(*id, ROWS)),
            BulkOptions::default(),
            |_| (),
        )
        .await?;
    report("enrol_bulk", devices, began);

    let requests: Vec<_> = ids
        .iter()
        .map(|device| LeaseRequest {
            device: *device,
            epoch: 0,
            from: RowIndex(0),
            received: RowIndex(0),
            hold: 32,
            ahead: 4,
            stated: Statement::default(),
        })
        .collect();
    let fence = registry.register_gateway(GatewayId(1), 0).await?;
    let began = Instant::now();
    let granted = registry
        .lease(&fence, &requests)
        .await?
        .iter()
        .filter(|answer| answer.is_ok())
        .count();
    report("lease", granted, began);

    let began = Instant::now();
    let mut stream = registry.stream_leased(fence, 1000);
    let mut loaded = 0;
    while let Some(chunk) = stream.next_chunk().await? {
        loaded += chunk.devices.len();
    }
    report("stream_leased", loaded, began);

    let singles = 200.min(devices);
    let began = Instant::now();
    for request in requests.iter().take(singles) {
        let _ = registry.lease(&fence, &[*request]).await?;
    }
    report("lease, one by one", singles, began);

    let count = registry.count(&Filter::default()).await?;
    registry.close().await;
    let bytes = std::fs::metadata(&path)?.len();
    println!(
        "{count} devices of {ROWS} rows: {bytes} B, {} B per device",
        bytes / count.max(1)
    );
    Ok(())
}

fn report(what: &str, devices: usize, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{what:20} {devices:7} devices  {seconds:8.3} s  {:9.0} devices/s",
        devices as f64 / seconds
    );
}
