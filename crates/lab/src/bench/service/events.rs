//! Time from a change request to its event at a client of the event stream, and the rate at which a late client receives past
//! events.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client::full_body;
use super::{Client, Fleet, Size, TestController, invalid_measurement, quantile, runtime};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Concurrent clients that make changes.
const WRITERS: u32 = 8;
/// Timeout after which an event counts as lost.
const EVENT_TIMEOUT: Duration = Duration::from_secs(300);

/// A client's event stream.
struct EventStream {
    body: Incoming,
    /// Received bytes that have not been parsed.
    buffer: Vec<u8>,
}

impl EventStream {
    async fn start(client: &mut Client, path: &str, last_event_id: &str) -> Result<Self, BenchError> {
        let headers = [("last-event-id", last_event_id)];
        let response = client.send(Method::GET, path, &headers, full_body("")).await?;
        Ok(Self {
            body: response.into_body(),
            buffer: Vec::new(),
        })
    }

    /// Waits for the next part of the stream; returns the data of the events that are complete. Keep-alive lines have no data.
    async fn next(&mut self) -> Result<Vec<Value>, BenchError> {
        let frame = self.body.frame().await;
        let frame = frame.ok_or_else(|| invalid_measurement("the event stream ended"))?;
        let data: Bytes = frame
            .map_err(invalid_measurement)?
            .into_data()
            .unwrap_or_default();
        self.buffer.extend_from_slice(&data);
        let Some(end) = self.buffer.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        let rest = self.buffer.split_off(end + 1);
        let complete = std::mem::replace(&mut self.buffer, rest);
        let lines = complete.split(|byte| *byte == b'\n');
        let data_lines = lines.filter_map(|line| line.strip_prefix(b"data: "));
        data_lines
            .map(|data| serde_json::from_slice(data).map_err(invalid_measurement))
            .collect()
    }
}

/// The id of the newest event in the history.
async fn newest_event_id(client: &mut Client) -> Result<u64, BenchError> {
    let history = client.get("/api/v1/events/history?limit=1").await?;
    let history: Value = serde_json::from_slice(&history).map_err(invalid_measurement)?;
    let number = history.pointer("/items/0/id").and_then(serde_json::Value::as_u64);
    number.ok_or_else(|| invalid_measurement("the event history is empty"))
}

async fn with_timeout<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let result = tokio::time::timeout(EVENT_TIMEOUT, work).await;
    result.map_err(|_| invalid_measurement("not all events arrived within 300 s"))?
}

/// A device with the times of the change request and of its response.
type ChangeTimes = (String, Instant, Instant);

async fn quarantine_devices(
    mut client: Client,
    devices: Vec<String>,
) -> Result<Vec<ChangeTimes>, BenchError> {
    let mut change_times = Vec::with_capacity(devices.len());
    for device in devices {
        let start_time = Instant::now();
        let body = full_body(json!({"reason": "bench"}).to_string());
        client
            .post(&format!("/api/v1/devices/{device}/quarantine"), body)
            .await?;
        change_times.push((device, start_time, Instant::now()));
    }
    Ok(change_times)
}

/// Adds the rows of this part.
pub(super) fn rows(
    controller: &TestController,
    fleet: &Fleet,
    size: &Size,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("changes and events", None);
    runtime()?.block_on(async {
        let changes = size.changes.min(fleet.count / 2);
        // Changes the last devices, because another part of the benchmark uses the device in the middle of the fleet.
        let device = |number: u32| fleet.id(fleet.count - 1 - number).to_string();
        let mut client = controller.client(0);
        // The stream starts after the newest event, so that no event is missed.
        let newest_id = newest_event_id(&mut client).await?.to_string();
        let mut listener =
            EventStream::start(&mut client, "/api/v1/events?kinds=quarantined", &newest_id).await?;
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let devices = (0..changes)
                .filter(|number| number % WRITERS == writer)
                .map(device);
            writers.spawn(quarantine_devices(
                controller.client(writer as usize),
                devices.collect(),
            ));
        }
        let arrivals = with_timeout(async {
            let mut arrivals: HashMap<String, Instant> = HashMap::new();
            while arrivals.len() < changes as usize {
                let events = listener.next().await?;
                let now = Instant::now();
                let devices = events.iter().filter_map(|event| event["device"].as_str());
                arrivals.extend(devices.map(|device| (device.to_owned(), now)));
            }
            Ok(arrivals)
        })
        .await?;
        let mut change_times = Vec::new();
        while let Some(result) = writers.join_next().await {
            change_times.extend(result.map_err(invalid_measurement)??);
        }
        live_rows(&change_times, &arrivals, rows)?;
        replay_rows(controller, rows).await
    })
}

/// Adds the rows of events that arrive while the changes are made.
fn live_rows(
    change_times: &[ChangeTimes],
    arrivals: &HashMap<String, Instant>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let first = change_times.iter().map(|(_, start_time, _)| *start_time).min();
    let last = arrivals.values().max();
    let (Some(first), Some(last)) = (first, last) else {
        return Err(invalid_measurement("no change or no event was measured"));
    };
    let (mut delivery_ms, mut response_ms) = (Vec::new(), Vec::new());
    for (device, start_time, responded) in change_times {
        let Some(arrived) = arrivals.get(device) else {
            return Err(invalid_measurement(format_args!(
                "no event for the change of device {device}"
            )));
        };
        delivery_ms.push(arrived.duration_since(*start_time).as_secs_f64() * 1e3);
        response_ms.push(responded.duration_since(*start_time).as_secs_f64() * 1e3);
    }
    let per_s = change_times.len() as f64 / last.duration_since(first).as_secs_f64();
    rows.extend([
        Row::higher("events.per_s", per_s, "1/s", None),
        Row::lower(
            "events.delivery_ms.p50",
            quantile(&mut delivery_ms, 0.5),
            "ms",
            None,
        ),
        Row::lower(
            "events.delivery_ms.p99",
            quantile(&mut delivery_ms, 0.99),
            "ms",
            None,
        ),
        Row::lower(
            "events.response_ms.p50",
            quantile(&mut response_ms, 0.5),
            "ms",
            None,
        ),
    ]);
    Ok(())
}

/// Adds the rate at which a client receives all events from the beginning of the history.
async fn replay_rows(controller: &TestController, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut client = controller.client(1);
    let newest = newest_event_id(&mut client).await?;
    let start_time = Instant::now();
    let mut listener = EventStream::start(&mut client, "/api/v1/events", "0").await?;
    let events = with_timeout(async {
        let (mut events, mut last_id) = (0_u64, 0);
        while last_id < newest {
            for event in listener.next().await? {
                if let Some(number) = event.get("id").and_then(serde_json::Value::as_u64) {
                    (events, last_id) = (events + 1, number);
                }
            }
        }
        Ok(events)
    })
    .await?;
    let per_s = events as f64 / start_time.elapsed().as_secs_f64();
    rows.push(Row::higher("events.replayed_per_s", per_s, "1/s", None));
    Ok(())
}
