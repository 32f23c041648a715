//! Enrolment of a fleet through the API, from the first byte of the body to the answer: TLS, JSON, sealing, and every transaction on
//! the disk.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};

use super::{Client, Database, Fleet, Office, Size, contradiction, pending, runtime};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row};

/// The bar.
const DEVICES_PER_S: f64 = 20_000.0;
/// Rows of the larger devices.
pub(super) const LARGE_ROWS: u32 = 100;
const RATE: &str = "import.devices_per_s";
const RATIO: &str = "postgres_over_sqlite.import";

/// Imports them, and returns how long that took. What is sent was made before.
pub(super) fn fleet(office: &Office, fleet: &Fleet, progress: Progress<'_>) -> Result<Duration, BenchError> {
    let lines = fleet.lines();
    progress("importing", Some((0, fleet.count.into())));
    runtime()?.block_on(async {
        let mut client = office.client(0);
        let began = Instant::now();
        let all = lines.len() as u64;
        let (sent, mut at) = tokio::sync::mpsc::unbounded_channel();
        let pieces = lines.into_iter().enumerate().map(move |(number, piece)| {
            // Nobody looks any more.
            let _ = sent.send(number as u64);
            Ok(Frame::data(piece))
        });
        let body = StreamBody::new(tokio_stream::iter(pieces)).boxed();
        let mut asked = std::pin::pin!(send(&mut client, body));
        let answer = loop {
            tokio::select! {
                answer = asked.as_mut() => break answer?,
                Some(number) = at.recv() => {
                    if number % 64 == 0 {
                        progress("importing", Some((number * u64::from(fleet.count) / all, fleet.count.into())));
                    }
                }
            }
        };
        let took = began.elapsed();
        let answer: serde_json::Value = serde_json::from_slice(&answer).map_err(contradiction)?;
        match answer.get("stored").and_then(serde_json::Value::as_u64) == Some(fleet.count.into()) {
            true => Ok(took),
            false => Err(contradiction(format_args!("{} devices sent, {answer}", fleet.count))),
        }
    })
}

async fn send(client: &mut Client, body: super::client::Body) -> Result<Bytes, BenchError> {
    client.post("/api/v1/devices/import", body).await
}

fn per_s(fleet: &Fleet, took: Duration) -> f64 {
    f64::from(fleet.count) / took.as_secs_f64()
}

/// All rows of this part; the fleet is in already.
pub(super) fn rows(
    office: &Office,
    fleet: &Fleet,
    size: &Size,
    took: Duration,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let sqlite = per_s(fleet, took);
    let large = fleet.beside(size.large_devices, LARGE_ROWS);
    let took = self::fleet(office, &large, progress)?;
    report.rows.extend([
        Row::higher(RATE, sqlite, "1/s", Some(DEVICES_PER_S)),
        Row::higher(format!("{RATE}.100_rows"), per_s(&large, took), "1/s", None),
    ]);
    progress("starting PostgreSQL", None);
    match Office::open_if_there(office.program.path.clone(), Database::Postgres)? {
        Ok(other) => {
            let postgres = per_s(fleet, self::fleet(&other, fleet, progress)?);
            report.rows.extend([
                Row::higher(format!("{RATE}.postgres"), postgres, "1/s", None),
                Row::higher(RATIO, postgres / sqlite, "ratio", None),
            ]);
        }
        Err(missing) => report.pending.push(pending(RATIO, "ratio", None, missing)),
    }
    Ok(())
}
