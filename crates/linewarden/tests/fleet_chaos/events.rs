//! Compares the event stream with the journal.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use linewarden_lab::netns::NetNs;
use linewarden_registry::{EventLogEntry, Registry};

use crate::support::TEST_TIMEOUT;

/// The controllers' default stream.
const STREAM: &str = "LINEWARDEN";

/// The ids in the stream, in order, once the stream contains `last`; more may follow.
async fn published(address: String, last: String) -> Vec<String> {
    let client = async_nats::connect(address).await.unwrap();
    let context = jetstream::new(client);
    let until = Instant::now() + TEST_TIMEOUT;
    let mut ids: Vec<String> = Vec::new();
    while !ids.contains(&last) {
        assert!(
            Instant::now() < until,
            "{last} is not published: {:?}",
            ids.last()
        );
        let mut stream = context.get_stream(STREAM).await.unwrap();
        let upto = stream.info().await.unwrap().state.last_sequence;
        while (ids.len() as u64) < upto {
            let message = stream.get_raw_message(ids.len() as u64 + 1).await.unwrap();
            let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID).unwrap();
            ids.push(id.to_string());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ids
}

/// Checks that each event of the journal was published once and in order; returns the number of events.
pub fn compare(inside: &NetNs, address: String, journal: &[EventLogEntry]) -> usize {
    let expected: Vec<String> = journal
        .iter()
        .filter(|entry| !entry.refused)
        .map(|entry| format!("{}-{}", entry.number, entry.at_ms))
        .collect();
    let last = expected.last().unwrap().clone();
    let read = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(published(address, last))
    };
    let found = inside.run(read).unwrap();
    assert_eq!(found[..expected.len()], expected);
    expected.len()
}

/// All of the journal.
pub async fn journal(registry: &Registry) -> Vec<EventLogEntry> {
    let mut all: Vec<EventLogEntry> = Vec::new();
    loop {
        let from = all.last().map_or(0, |entry| entry.number);
        let more = registry.events_after(from, 1_000).await.unwrap();
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}
