//! Read requests of dashboards and operators, from several clients that send requests without a pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;

use super::{Client, Fleet, Size, TestController, invalid_measurement, runtime};
use crate::bench::{BenchError, Row};

/// Number of clients, each with one connection.
pub(super) const CLIENTS: usize = 16;
/// Largest recorded latency, µs.
const LATENCY_US_MAX: u64 = 60_000_000;
const TARGET_READS_PER_S: f64 = 2_000.0;
const TARGET_P99_MS: f64 = 50.0;

/// The kind of a read request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadKind {
    /// One device with its leases, its attestation and its history.
    Device,
    /// A page of all devices.
    Page,
    /// A page of active devices in key mode.
    Filtered,
    /// A page of devices with a name prefix.
    Names,
    /// A page of devices with an id prefix.
    Ids,
    /// A page of revoked devices.
    Revoked,
    /// The status of the controller, with counts.
    Status,
    /// The list of gateways.
    Gateways,
    /// The newest events of the history.
    History,
}

impl ReadKind {
    /// Each kind with its share, %.
    const MIX: [(Self, u32); 9] = [
        (Self::Device, 50),
        (Self::Page, 8),
        (Self::Filtered, 6),
        (Self::Names, 8),
        (Self::Ids, 8),
        (Self::Revoked, 4),
        (Self::Status, 8),
        (Self::Gateways, 4),
        (Self::History, 4),
    ];

    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let mut point = rng.random_range(0..100);
        for (kind, share) in Self::MIX {
            match point < share {
                true => return kind,
                false => point -= share,
            }
        }
        Self::Device
    }

    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Page => "page",
            Self::Filtered => "filtered",
            Self::Names => "names",
            Self::Ids => "ids",
            Self::Revoked => "revoked",
            Self::Status => "status",
            Self::Gateways => "gateways",
            Self::History => "history",
        }
    }

    fn path(self, fleet: &Fleet, rng: &mut ChaCha8Rng) -> String {
        let number = rng.random_range(0..fleet.count);
        let id = fleet.id(number);
        match self {
            Self::Device => format!("/api/v1/devices/{id}"),
            Self::Page => format!("/api/v1/devices?limit=50&after={id}"),
            Self::Filtered => format!("/api/v1/devices?status=active&mode=key&limit=20&after={id}"),
            Self::Names => {
                let name = Fleet::name(number);
                let prefix: String = name.chars().take(name.len() - 3).collect();
                format!("/api/v1/devices?name_prefix={prefix}&limit=20")
            }
            Self::Ids => {
                let prefix: String = id.to_string().chars().take(4).collect();
                format!("/api/v1/devices?id_prefix={prefix}&limit=20")
            }
            Self::Revoked => "/api/v1/devices?status=revoked&limit=20".to_owned(),
            Self::Status => "/api/v1/status".to_owned(),
            Self::Gateways => "/api/v1/gateways".to_owned(),
            Self::History => "/api/v1/events/history?limit=50".to_owned(),
        }
    }
}

/// Latencies of all requests and by kind, µs.
struct Latencies {
    overall: Histogram<u64>,
    by_kind: Vec<Histogram<u64>>,
}

impl Latencies {
    fn new() -> Result<Self, BenchError> {
        let histogram = || Histogram::new_with_max(LATENCY_US_MAX, 3).map_err(invalid_measurement);
        Ok(Self {
            overall: histogram()?,
            by_kind: ReadKind::MIX
                .iter()
                .map(|_| histogram())
                .collect::<Result<_, _>>()?,
        })
    }

    fn record(&mut self, kind: ReadKind, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.overall.saturating_record(us);
        let position = ReadKind::MIX.iter().position(|(other, _)| *other == kind);
        if let Some(histogram) = position.and_then(|position| self.by_kind.get_mut(position)) {
            histogram.saturating_record(us);
        }
    }

    fn add(&mut self, other: &Self) -> Result<(), BenchError> {
        self.overall.add(&other.overall).map_err(invalid_measurement)?;
        for (sum, other) in self.by_kind.iter_mut().zip(&other.by_kind) {
            sum.add(other).map_err(invalid_measurement)?;
        }
        Ok(())
    }
}

/// Sends requests until `stop` is set.
async fn run_reader(
    mut client: Client,
    fleet: Fleet,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> Result<Latencies, BenchError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut latencies = Latencies::new()?;
    while !stop.load(Relaxed) {
        let kind = ReadKind::draw(&mut rng);
        let path = kind.path(&fleet, &mut rng);
        let start_time = Instant::now();
        client.get(&path).await?;
        latencies.record(kind, start_time.elapsed());
    }
    Ok(latencies)
}

/// Runs all clients until `stop` is set; returns the number of responses.
pub(super) async fn run_load(
    controller: &TestController,
    fleet: &Fleet,
    seed: u64,
    stop: &Arc<AtomicBool>,
) -> Result<u64, BenchError> {
    Ok(run_readers(controller, fleet, seed, stop).await?.overall.len())
}

async fn run_readers(
    controller: &TestController,
    fleet: &Fleet,
    seed: u64,
    stop: &Arc<AtomicBool>,
) -> Result<Latencies, BenchError> {
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        let seed = seed * CLIENTS as u64 + number as u64;
        tasks.spawn(run_reader(
            controller.client(number),
            *fleet,
            seed,
            Arc::clone(stop),
        ));
    }
    let mut latencies = Latencies::new()?;
    while let Some(result) = tasks.join_next().await {
        latencies.add(&result.map_err(invalid_measurement)??)?;
    }
    Ok(latencies)
}

/// Adds the rows of this part.
pub(super) fn rows(
    controller: &TestController,
    fleet: &Fleet,
    size: &Size,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let run = |seed, length| {
        runtime()?.block_on(async {
            let stop = Arc::new(AtomicBool::new(false));
            let start_time = Instant::now();
            let timer = async {
                tokio::time::sleep(length).await;
                stop.store(true, Relaxed);
            };
            let (latencies, ()) = tokio::join!(run_readers(controller, fleet, seed, &stop), timer);
            Ok::<_, BenchError>((latencies?, start_time.elapsed()))
        })
    };
    let length = Duration::from_millis(size.read_ms);
    // Warm-up: opens connections and fills the caches of statements and database pages.
    run(1, length / 4)?;
    let (latencies, elapsed) = run(2, length)?;
    let ms = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    rows.extend([
        Row::higher(
            "api.reads_per_s",
            latencies.overall.len() as f64 / elapsed.as_secs_f64(),
            "1/s",
            Some(TARGET_READS_PER_S),
        ),
        Row::lower(
            "api.read_p99_ms",
            ms(&latencies.overall, 0.99),
            "ms",
            Some(TARGET_P99_MS),
        ),
        Row::lower("api.read_p50_ms", ms(&latencies.overall, 0.5), "ms", None),
    ]);
    for ((kind, _), histogram) in ReadKind::MIX.iter().zip(&latencies.by_kind) {
        let name = format!("api.read_p99_ms.{}", kind.name());
        rows.push(Row::lower(name, ms(histogram, 0.99), "ms", None));
    }
    Ok(())
}
