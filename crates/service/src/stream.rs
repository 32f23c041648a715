//! The event stream: new entries of the event log, appraised rounds, and the status each second.

use std::sync::Arc;
use std::time::Duration;

use linewarden_api::EventRecord;
use linewarden_registry::{EventLogEntry, EventLogReader, Registry};
use tokio::sync::{broadcast, watch};

/// Number of events that are buffered for a slow subscriber. A slower subscriber receives the missed events from the event
/// log.
const BACKLOG_EVENTS: usize = 4_096;
/// Entries per read of the event log.
pub(crate) const PAGE_ENTRIES: u32 = 1_000;
/// Interval of event log reads.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An event for subscribers.
#[derive(Clone, Debug)]
pub(crate) struct StreamEvent {
    /// The number in the event log; `None` for an event that is not in the log.
    pub(crate) number: Option<u64>,
    pub(crate) kind: Arc<str>,
    pub(crate) data: Arc<str>,
}

/// Whether an entry is public. A refused action is visible only in the registry audit log. An entry that does not
/// authenticate is not public.
pub(crate) fn is_public(entry: &EventLogEntry) -> bool {
    entry.authentic && !entry.refused
}

/// The stream event for an entry.
pub(crate) fn to_stream_event(entry: &EventLogEntry) -> StreamEvent {
    StreamEvent {
        number: Some(entry.number),
        kind: entry.event.kind.as_str().into(),
        data: entry_to_json(entry).to_string().into(),
    }
}

/// The event of an entry; `None` if the entry is not public: a refused action, or an entry that does not authenticate.
pub(crate) fn event_from_public_entry(entry: &EventLogEntry) -> Option<EventRecord> {
    is_public(entry).then(|| event_from_entry(entry))
}

fn event_from_entry(entry: &EventLogEntry) -> EventRecord {
    EventRecord {
        id: entry.number,
        at_ms: entry.at_ms,
        kind: entry.event.kind.clone(),
        gateway: entry.event.gateway.map(|gateway| gateway.0),
        device: entry.event.device.map(|device| device.to_string()),
        detail: entry.event.detail.clone(),
        actor: entry.actor.as_ref().map(|actor| actor.name.clone()),
        reason: entry.reason.clone(),
    }
}

/// Converts an entry to JSON.
pub(crate) fn entry_to_json(entry: &EventLogEntry) -> serde_json::Value {
    serde_json::to_value(event_from_entry(entry)).unwrap_or_default()
}

/// Distributes events to all subscribers of this controller.
pub(crate) struct EventStream {
    sender: broadcast::Sender<StreamEvent>,
    /// Number of the newest authentic entry of the event log.
    newest: watch::Sender<u64>,
}

impl EventStream {
    pub(crate) fn new() -> Arc<Self> {
        let (sender, _) = broadcast::channel(BACKLOG_EVENTS);
        Arc::new(Self {
            sender,
            newest: watch::Sender::new(0),
        })
    }

    /// The number of the newest authentic entry of the event log, updated when the log grows; 0 while unknown.
    pub(crate) fn subscribe_newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<StreamEvent> {
        self.sender.subscribe()
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Sends an event to all current subscribers.
    pub(crate) fn send(&self, event: StreamEvent) {
        // Fails only if there are no subscribers.
        let _ = self.sender.send(event);
    }

    /// Distributes the entries of the event log after the entry `after`, from this and other controllers; without `after`, all
    /// future entries.
    pub(crate) async fn follow(self: Arc<Self>, registry: Registry, after: Option<u64>) {
        let mut reader = after.map(EventLogReader::after);
        let mut clock = tokio::time::interval(POLL_INTERVAL);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            let reader = match &mut reader {
                Some(reader) => reader,
                None => match registry.newest_authentic_event().await {
                    Ok(end) => reader.insert(EventLogReader::after(end)),
                    Err(_) => continue,
                },
            };
            let Ok(entries) = reader.next(&registry, PAGE_ENTRIES).await else {
                continue;
            };
            self.newest.send_if_modified(|newest| {
                let previous = std::mem::replace(newest, reader.position());
                previous != *newest
            });
            for entry in &entries {
                if !entry.authentic {
                    tracing::error!(
                        event = entry.number,
                        "event log entry is not authentic; run `linewarden registry check`"
                    );
                }
                if is_public(entry) {
                    self.send(to_stream_event(entry));
                }
            }
        }
    }
}
