//! Enrollment of a fleet through the API, from the first byte of the body to the response: TLS, JSON, encryption, and all
//! transactions on the disk.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};

use super::{Client, Database, Fleet, Size, TestController, invalid_measurement, pending, runtime};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row};

/// Target rate.
const TARGET_DEVICES_PER_S: f64 = 20_000.0;
/// Rows of a device with many rows.
pub(super) const LARGE_ROWS: u32 = 100;
const RATE_ROW: &str = "import.devices_per_s";
const RATIO_ROW: &str = "postgres_over_sqlite.import";

/// Imports the devices and returns the elapsed time, without the time to create the body.
pub(super) fn fleet(
    controller: &TestController,
    fleet: &Fleet,
    progress: Progress<'_>,
) -> Result<Duration, BenchError> {
    let lines = fleet.import_chunks();
    progress("importing", Some((0, fleet.count.into())));
    runtime()?.block_on(async {
        let mut client = controller.client(0);
        let start_time = Instant::now();
        let chunk_count = lines.len() as u64;
        // Only the newest number is of interest, and replaces older numbers.
        let (progress_sender, mut progress_receiver) = tokio::sync::watch::channel(0);
        let chunks = lines.into_iter().enumerate().map(move |(number, chunk)| {
            if number.is_multiple_of(64) {
                // The progress receiver may be gone.
                let _ = progress_sender.send(number as u64);
            }
            Ok(Frame::data(chunk))
        });
        let body = StreamBody::new(tokio_stream::iter(chunks)).boxed();
        let mut import = std::pin::pin!(send(&mut client, body));
        let response = loop {
            tokio::select! {
                response = import.as_mut() => break response?,
                Ok(()) = progress_receiver.changed() => {
                    let number = *progress_receiver.borrow_and_update();
                    progress("importing", Some((number * u64::from(fleet.count) / chunk_count, fleet.count.into())));
                }
            }
        };
        let elapsed = start_time.elapsed();
        let response: serde_json::Value = serde_json::from_slice(&response).map_err(invalid_measurement)?;
        match response.get("stored").and_then(serde_json::Value::as_u64) == Some(fleet.count.into()) {
            true => Ok(elapsed),
            false => Err(invalid_measurement(format_args!("the controller did not store all {} devices: {response}", fleet.count))),
        }
    })
}

async fn send(client: &mut Client, body: super::client::Body) -> Result<Bytes, BenchError> {
    client.post("/api/v1/devices/import", body).await
}

fn per_s(fleet: &Fleet, elapsed: Duration) -> f64 {
    f64::from(fleet.count) / elapsed.as_secs_f64()
}

/// Adds the rows of this part; the fleet has already been imported.
pub(super) fn rows(
    controller: &TestController,
    fleet: &Fleet,
    size: &Size,
    elapsed: Duration,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let sqlite = per_s(fleet, elapsed);
    let large = fleet.additional(size.large_devices, LARGE_ROWS);
    let elapsed = self::fleet(controller, &large, progress)?;
    report.rows.extend([
        Row::higher(RATE_ROW, sqlite, "1/s", Some(TARGET_DEVICES_PER_S)),
        Row::higher(
            format!("{RATE_ROW}.100_rows"),
            per_s(&large, elapsed),
            "1/s",
            None,
        ),
    ]);
    progress("starting PostgreSQL", None);
    match TestController::start_if_available(&controller.programs.executables, Database::Postgres)? {
        Ok(postgres_controller) => {
            let postgres = per_s(fleet, self::fleet(&postgres_controller, fleet, progress)?);
            report.rows.extend([
                Row::higher(format!("{RATE_ROW}.postgres"), postgres, "1/s", None),
                Row::higher(RATIO_ROW, postgres / sqlite, "ratio", None),
            ]);
        }
        Err(missing) => report.pending.push(pending(RATIO_ROW, "ratio", None, missing)),
    }
    Ok(())
}
