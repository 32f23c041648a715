//! What happens, to all who listen: entries of the journal as they come, and how things stand, each second.

use std::sync::Arc;
use std::time::Duration;

use linewarden_registry::{Entry, Follower, Registry};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

/// Events that wait for a slow listener; then it is told to catch up by itself.
const BACKLOG: usize = 4_096;
/// Entries read at once.
pub(crate) const PAGE_ENTRIES: u32 = 1_000;
/// How often the journal is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Of an entry of the journal, its number.
    pub(crate) number: Option<u64>,
    pub(crate) kind: Arc<str>,
    pub(crate) data: Arc<str>,
}

/// What was refused is for the audit only, and what somebody else has written for nobody.
pub(crate) fn is_told(entry: &Entry) -> bool {
    entry.authentic && !entry.refused
}

/// What goes out for an entry.
pub(crate) fn event_of(entry: &Entry) -> Event {
    Event {
        number: Some(entry.number),
        kind: entry.note.kind.as_str().into(),
        data: body_of(entry).to_string().into(),
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Happening {
    /// Its number in the journal.
    pub id: u64,
    /// When, milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// Of which kind: `revoked`, `enrolled`, ..
    pub kind: String,
    /// At which gateway.
    pub gateway: Option<u32>,
    /// To which device.
    pub device: Option<String>,
    /// What.
    pub detail: String,
    /// Who had it done, if anybody.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

impl Happening {
    /// Of an entry that is told: what was refused is for the audit only, and what somebody else has written for nobody.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        is_told(entry).then(|| Self::from(entry))
    }
}

impl From<&Entry> for Happening {
    fn from(entry: &Entry) -> Self {
        Self {
            id: entry.number,
            at_ms: entry.at_ms,
            kind: entry.note.kind.clone(),
            gateway: entry.note.gateway.map(|gateway| gateway.0),
            device: entry.note.device.map(|device| device.to_string()),
            detail: entry.note.detail.clone(),
            by: entry.actor.as_ref().map(|actor| actor.name.clone()),
            reason: entry.reason.clone(),
        }
    }
}

/// An entry as JSON.
pub(crate) fn body_of(entry: &Entry) -> serde_json::Value {
    serde_json::to_value(Happening::from(entry)).unwrap_or_default()
}

/// To all listeners of this controller.
pub(crate) struct Stream {
    sender: broadcast::Sender<Event>,
    newest: watch::Sender<u64>,
}

impl Stream {
    pub(crate) fn new() -> Arc<Self> {
        let (sender, _) = broadcast::channel(BACKLOG);
        Arc::new(Self {
            sender,
            newest: watch::Sender::new(0),
        })
    }

    /// The number of the journal's newest entry that authenticates, as it grows; 0 before that is known.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    pub(crate) fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    /// To whoever listens now.
    pub(crate) fn send(&self, event: Event) {
        // Nobody listens.
        let _ = self.sender.send(event);
    }

    /// Sends on what the journal gets, whoever writes it.
    pub(crate) async fn follow(self: Arc<Self>, registry: Registry) {
        let mut follower: Option<Follower> = None;
        let mut clock = tokio::time::interval(LOOK_EVERY);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            let follower = match &mut follower {
                Some(follower) => follower,
                None => match registry.journal_end().await {
                    Ok(end) => follower.insert(Follower::after(end)),
                    Err(_) => continue,
                },
            };
            let Ok(entries) = follower.next(&registry, PAGE_ENTRIES).await else {
                continue;
            };
            self.newest.send_if_modified(|newest| {
                let before = std::mem::replace(newest, follower.read());
                before != *newest
            });
            for entry in &entries {
                if !entry.authentic {
                    tracing::error!(
                        number = entry.number,
                        "an entry of the journal was changed: run `linewarden registry check`"
                    );
                }
                if is_told(entry) {
                    self.send(event_of(entry));
                }
            }
        }
    }
}
