//! What lies in the stream of events, beside the journal.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use linewarden_lab::netns::NetNs;
use linewarden_registry::{Entry, Registry};

use crate::support::PATIENCE;

/// The stream that controllers make, unless their configuration names another.
const STREAM: &str = "LINEWARDEN";

/// The ids in the stream, in their order, once it has this one; more may follow.
async fn published(address: String, last: String) -> Vec<String> {
    let client = async_nats::connect(address).await.unwrap();
    let context = jetstream::new(client);
    let until = Instant::now() + PATIENCE;
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

/// Each event of the journal was published once, in its order; how many.
pub fn compare(inside: &NetNs, address: String, journal: &[Entry]) -> usize {
    let wanted: Vec<String> = journal
        .iter()
        .filter(|entry| !entry.refused)
        .map(|entry| format!("{}-{}", entry.number, entry.at_ms))
        .collect();
    let last = wanted.last().unwrap().clone();
    let read = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(published(address, last))
    };
    let found = inside.run(read).unwrap();
    assert_eq!(found[..wanted.len()], wanted);
    wanted.len()
}

/// All of the journal.
pub async fn journal(registry: &Registry) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let from = all.last().map_or(0, |entry| entry.number);
        let more = registry.journal_after(from, 1_000).await.unwrap();
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}
