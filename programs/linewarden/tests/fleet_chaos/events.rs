//! Compares the event stream with the registry event log.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use linewarden_lab::netns::NetNs;
use linewarden_registry::{EventLogEntry, Registry};

use crate::support::TEST_TIMEOUT;

/// The controllers' default stream.
const STREAM: &str = "LINEWARDEN";

/// Waits until the stream contains the ID `last_id`. Returns the IDs in the stream, in order; further IDs can follow `last_id`.
async fn published_ids(address: String, last_id: String) -> Vec<String> {
    let client = async_nats::connect(address).await.unwrap();
    let context = jetstream::new(client);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut ids: Vec<String> = Vec::new();
    while !ids.contains(&last_id) {
        assert!(
            Instant::now() < deadline,
            "{last_id} is not published: {:?}",
            ids.last()
        );
        let mut stream = context.get_stream(STREAM).await.unwrap();
        let last_sequence = stream.info().await.unwrap().state.last_sequence;
        while (ids.len() as u64) < last_sequence {
            let message = stream.get_raw_message(ids.len() as u64 + 1).await.unwrap();
            let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID).unwrap();
            ids.push(id.to_string());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ids
}

/// Checks that each entry of the registry event log was published once and in order; returns the number of entries.
pub fn assert_all_published(inside: &NetNs, address: String, entries: &[EventLogEntry]) -> usize {
    let expected: Vec<String> = entries
        .iter()
        .filter(|entry| !entry.refused)
        .map(|entry| format!("{}-{}", entry.number, entry.at_ms))
        .collect();
    let last_id = expected.last().unwrap().clone();
    let read_ids = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(published_ids(address, last_id))
    };
    let streamed_ids = inside.run(read_ids).unwrap();
    assert_eq!(streamed_ids[..expected.len()], expected);
    expected.len()
}

/// All entries of the registry event log.
pub async fn read_all(registry: &Registry) -> Vec<EventLogEntry> {
    let mut entries: Vec<EventLogEntry> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |entry| entry.number);
        let page = registry.events_after(after, 1_000).await.unwrap();
        if page.is_empty() {
            return entries;
        }
        entries.extend(page);
    }
}
