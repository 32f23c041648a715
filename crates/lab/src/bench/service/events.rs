//! From a change that somebody asks for to the line at a client that listens to events; and how fast a client that comes late is told
//! what it has missed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client::full;
use super::{Client, Fleet, Office, Size, contradiction, quantile, runtime};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Who changes something at once.
const WRITERS: u32 = 8;
/// What has not come by then is lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// Lines of an event stream.
struct Listener {
    body: Incoming,
    text: Vec<u8>,
}

impl Listener {
    async fn start(client: &mut Client, path: &str, last: &str) -> Result<Self, BenchError> {
        let headers = [("last-event-id", last)];
        let answer = client.send(Method::GET, path, &headers, full("")).await?;
        Ok(Self {
            body: answer.into_body(),
            text: Vec::new(),
        })
    }

    /// What the next events say that are complete; none for what only says that the stream lives.
    async fn next(&mut self) -> Result<Vec<Value>, BenchError> {
        let frame = self.body.frame().await;
        let frame = frame.ok_or_else(|| contradiction("the event stream ended"))?;
        let data: Bytes = frame.map_err(contradiction)?.into_data().unwrap_or_default();
        self.text.extend_from_slice(&data);
        let Some(end) = self.text.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        let rest = self.text.split_off(end + 1);
        let complete = std::mem::replace(&mut self.text, rest);
        let lines = complete.split(|byte| *byte == b'\n');
        let said = lines.filter_map(|line| line.strip_prefix(b"data: "));
        said.map(|said| serde_json::from_slice(said).map_err(contradiction))
            .collect()
    }
}

/// The number of the newest entry of the journal.
async fn newest(client: &mut Client) -> Result<u64, BenchError> {
    let history = client.get("/api/v1/events/history?limit=1").await?;
    let history: Value = serde_json::from_slice(&history).map_err(contradiction)?;
    let number = history.pointer("/items/0/id").and_then(serde_json::Value::as_u64);
    number.ok_or_else(|| contradiction("the journal is empty"))
}

async fn in_time<T>(what: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let done = tokio::time::timeout(PATIENCE, what).await;
    done.map_err(|_| contradiction("not all events came in time"))?
}

/// When a change was asked for, and when that was answered.
type Asked = (String, Instant, Instant);

async fn change(mut client: Client, devices: Vec<String>) -> Result<Vec<Asked>, BenchError> {
    let mut asked = Vec::with_capacity(devices.len());
    for device in devices {
        let began = Instant::now();
        let body = full(json!({"reason": "bench"}).to_string());
        client
            .post(&format!("/api/v1/devices/{device}/quarantine"), body)
            .await?;
        asked.push((device, began, Instant::now()));
    }
    Ok(asked)
}

/// All rows of this part.
pub(super) fn rows(
    office: &Office,
    fleet: &Fleet,
    size: &Size,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("changes and events", None);
    runtime()?.block_on(async {
        let changes = size.changes.min(fleet.count / 2);
        // The first devices of the fleet are another part's.
        let device = |number: u32| fleet.id(fleet.count - 1 - number).to_string();
        let mut client = office.client(0);
        // Behind what has happened, so that nothing falls in between.
        let from = newest(&mut client).await?.to_string();
        let mut listener = Listener::start(&mut client, "/api/v1/events?kinds=quarantined", &from).await?;
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let devices = (0..changes)
                .filter(|number| number % WRITERS == writer)
                .map(device);
            writers.spawn(change(office.client(writer as usize), devices.collect()));
        }
        let came = in_time(async {
            let mut came: HashMap<String, Instant> = HashMap::new();
            while came.len() < changes as usize {
                let told = listener.next().await?;
                let now = Instant::now();
                let devices = told.iter().filter_map(|event| event["device"].as_str());
                came.extend(devices.map(|device| (device.to_owned(), now)));
            }
            Ok(came)
        })
        .await?;
        let mut asked = Vec::new();
        while let Some(ended) = writers.join_next().await {
            asked.extend(ended.map_err(contradiction)??);
        }
        live(&asked, &came, rows)?;
        replay(office, rows).await
    })
}

fn live(asked: &[Asked], came: &HashMap<String, Instant>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let first = asked.iter().map(|(_, began, _)| *began).min();
    let last = came.values().max();
    let (Some(first), Some(last)) = (first, last) else {
        return Err(contradiction("no change, no event"));
    };
    let (mut told_ms, mut answered_ms) = (Vec::new(), Vec::new());
    for (device, began, answered) in asked {
        let Some(at) = came.get(device) else {
            return Err(contradiction(format_args!("no event about {device}")));
        };
        told_ms.push(at.duration_since(*began).as_secs_f64() * 1e3);
        answered_ms.push(answered.duration_since(*began).as_secs_f64() * 1e3);
    }
    let per_s = asked.len() as f64 / last.duration_since(first).as_secs_f64();
    rows.extend([
        Row::higher("events.per_s", per_s, "1/s", None),
        Row::lower("events.told_ms.p50", quantile(&mut told_ms, 0.5), "ms", None),
        Row::lower("events.told_ms.p99", quantile(&mut told_ms, 0.99), "ms", None),
        Row::lower(
            "events.answered_ms.p50",
            quantile(&mut answered_ms, 0.5),
            "ms",
            None,
        ),
    ]);
    Ok(())
}

/// Everything from the first entry of the journal on.
async fn replay(office: &Office, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut client = office.client(1);
    let newest = newest(&mut client).await?;
    let began = Instant::now();
    let mut listener = Listener::start(&mut client, "/api/v1/events", "0").await?;
    let events = in_time(async {
        let (mut events, mut seen) = (0_u64, 0);
        while seen < newest {
            for event in listener.next().await? {
                if let Some(number) = event.get("id").and_then(serde_json::Value::as_u64) {
                    (events, seen) = (events + 1, number);
                }
            }
        }
        Ok(events)
    })
    .await?;
    let per_s = events as f64 / began.elapsed().as_secs_f64();
    rows.push(Row::higher("events.replayed_per_s", per_s, "1/s", None));
    Ok(())
}
