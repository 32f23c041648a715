//! Lower bounds of the other measurements on the same machine, disk and clients.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linewarden_protocol::ids::{Mode, Suite};
use linewarden_registry::{BulkOptions, Credentials, DeviceRecord, MasterKey, PoolRow, Registry};
use tokio::task::JoinSet;

use super::devices::{ROWS, row_key};
use super::{Fleet, Size, TestController, invalid_measurement, quantile, runtime};
use crate::bench::{BenchError, Row, io};

/// Number of synchronous writes.
const SYNC_COUNT: u32 = 200;
/// Bytes of a database page of the registry.
const PAGE_BYTES: usize = 16_384;

/// Adds the rows of this part.
pub(super) fn rows(
    controller: &TestController,
    fleet: &Fleet,
    size: &Size,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    rows.push(Row::lower(
        "floor.fsync_ms.p50",
        fsync_ms(controller)?,
        "ms",
        None,
    ));
    let per_s = responses_per_s(controller, Duration::from_millis(size.read_ms / 4))?;
    rows.push(Row::higher("floor.responses_per_s", per_s, "1/s", None));
    let (memory, file, lookup_us) = registry(controller, fleet.count.min(100_000))?;
    rows.extend([
        Row::higher("floor.enrolled_per_s.memory", memory, "1/s", None),
        Row::higher("floor.enrolled_per_s.file", file, "1/s", None),
        Row::lower("floor.lookup_us", lookup_us, "µs", None),
    ]);
    Ok(())
}

/// Median time of a synchronous write of one page on the registry's disk, ms.
fn fsync_ms(controller: &TestController) -> Result<f64, BenchError> {
    let path = controller.programs.directory.join("floor");
    let write_pages = || {
        let mut file = File::create(&path)?;
        let mut times_ms = Vec::new();
        for _ in 0..SYNC_COUNT {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&[0x5a; PAGE_BYTES])?;
            let start_time = Instant::now();
            file.sync_data()?;
            times_ms.push(start_time.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times_ms)
    };
    let mut times_ms = write_pages().map_err(io("write to the disk"))?;
    Ok(quantile(&mut times_ms, 0.5))
}

/// Rate of health-check responses over TLS: the cost of connections, HTTP and clients.
fn responses_per_s(controller: &TestController, length: Duration) -> Result<f64, BenchError> {
    runtime()?.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..super::reads::CLIENTS {
            let (mut client, stop) = (controller.client(number), Arc::clone(&stop));
            tasks.spawn(async move {
                let mut responses = 0_u64;
                while !stop.load(Relaxed) {
                    client.get("/healthz").await?;
                    responses += 1;
                }
                Ok::<_, BenchError>(responses)
            });
        }
        let start_time = Instant::now();
        tokio::time::sleep(length).await;
        stop.store(true, Relaxed);
        let mut responses = 0;
        while let Some(result) = tasks.join_next().await {
            responses += result.map_err(invalid_measurement)??;
        }
        Ok(responses as f64 / start_time.elapsed().as_secs_f64())
    })
}

/// Enrollment rates into memory (encryption, tags, SQL statements) and into a file, devices/s, and the time of one
/// lookup, µs.
fn registry(controller: &TestController, count: u32) -> Result<(f64, f64, f64), BenchError> {
    let key = MasterKey::from_bytes([0x42; 32]);
    let fleet = Fleet::new(count);
    let path = controller.programs.directory.join("floor.registry");
    runtime()?.block_on(async {
        let memory = enroll(&Registry::in_memory(&key).await?, &fleet).await?;
        let registry = Registry::create(&path, &key).await?;
        let file = enroll(&registry, &fleet).await?;
        let lookups = count.min(10_000);
        let start_time = Instant::now();
        for number in 0..lookups {
            registry.get(fleet.id(number)).await?;
        }
        let lookup_us = start_time.elapsed().as_secs_f64() * 1e6 / f64::from(lookups);
        registry.close().await;
        Ok((memory, file, lookup_us))
    })
}

async fn enroll(registry: &Registry, fleet: &Fleet) -> Result<f64, BenchError> {
    let records: Vec<DeviceRecord> = (0..fleet.count).map(|number| record(fleet, number)).collect();
    let start_time = Instant::now();
    registry
        .enroll_bulk(records, BulkOptions::default(), |_| {})
        .await?;
    Ok(f64::from(fleet.count) / start_time.elapsed().as_secs_f64())
}

fn record(fleet: &Fleet, number: u32) -> DeviceRecord {
    let device = fleet.id(number);
    let credentials = match Fleet::mode(number) {
        Mode::Key => Credentials::Key(row_key(device, 0)),
        Mode::Pool => Credentials::pool(
            (0..ROWS)
                .map(|idx| PoolRow {
                    challenge: (u64::from(idx) + 1).to_be_bytes(),
                    row_key: row_key(device, idx),
                })
                .collect(),
        ),
    };
    DeviceRecord {
        device,
        name: Fleet::name(number),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: "bench".to_owned(),
        credentials,
    }
}
