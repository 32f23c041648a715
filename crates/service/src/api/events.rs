//! What happens, as it happens, and what has happened.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event as Line, KeepAlive};
use linewarden_registry::{Follower, JournalFilter};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::lists::{List, Part, device, gateway};
use crate::auth::{Principal, Viewer};
use crate::error::{ApiError, Result};
use crate::extract::{Json, Query};
use crate::limits::Listening;
use crate::state::App;
use crate::stream::{Event, Happening, PAGE_ENTRIES, event_of, is_told};

/// Kinds that one question names: each is looked for by itself.
const KINDS_MAX: usize = 32;
/// Events that wait for one slow listener.
const QUEUE: usize = 256;
/// From one sign of life to the next.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// How long somebody may leave unread what waits.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Kinds {
    /// Of these kinds only, with commas between them.
    kinds: Option<String>,
    /// As the header `Last-Event-ID`, which counts before it.
    last_event_id: Option<u64>,
}

fn list_of(kinds: Option<&str>) -> Result<Vec<String>> {
    let kinds = kinds.into_iter().flat_map(|kinds| kinds.split(','));
    let kinds: Vec<String> = kinds
        .filter(|kind| !kind.is_empty())
        .take(KINDS_MAX + 1)
        .map(str::to_owned)
        .collect();
    match kinds.len() > KINDS_MAX {
        true => Err(ApiError::invalid("kinds", format!("at most {KINDS_MAX} of them"))),
        false => Ok(kinds),
    }
}

/// Server-sent events: entries of the journal with their numbers as ids, and each second how things stand. With `Last-Event-ID` it goes
/// on behind that one.
#[utoipa::path(get, path = "/api/v1/events", params(Kinds), responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(crate) async fn stream(
    Viewer(principal): Viewer,
    State(app): State<App>,
    Query(kinds): Query<Kinds>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Line, Infallible>>>> {
    let place = app.limits.listen(&principal.name);
    let place = place.ok_or_else(|| ApiError::rate_limited(ALIVE_EVERY.as_secs() as u32))?;
    let last = headers
        .get("last-event-id")
        .and_then(|last| last.to_str().ok()?.parse().ok())
        .or(kinds.last_event_id);
    let (out, lines) = mpsc::channel(QUEUE);
    let listener = Listener {
        app,
        principal,
        kinds: list_of(kinds.kinds.as_deref())?,
        out,
        looked_at: Instant::now(),
        _place: place,
    };
    tokio::spawn(listener.run(last));
    let alive = KeepAlive::new().interval(ALIVE_EVERY).text("alive");
    Ok(Sse::new(ReceiverStream::new(lines)).keep_alive(alive))
}

/// Somebody who listens.
struct Listener {
    app: App,
    principal: Principal,
    kinds: Vec<String>,
    out: mpsc::Sender<Result<Line, Infallible>>,
    /// When it was looked last whether they may listen.
    looked_at: Instant,
    /// Until it ends.
    _place: Listening,
}

impl Listener {
    /// Ends when the listener is gone, or may not listen any more.
    async fn run(mut self, last: Option<u64>) {
        // Before the past is read, so that nothing falls in between.
        let mut events = self.app.stream.listen();
        let mut seen = last;
        let mut is_behind = last.is_some();
        let mut clock = tokio::time::interval(ALIVE_EVERY);
        loop {
            if is_behind {
                if !self.catch_up(&mut seen).await {
                    return;
                }
                is_behind = false;
            }
            let event = tokio::select! {
                event = events.recv() => event,
                () = self.out.closed() => return,
                _ = clock.tick() => match self.may_stay().await {
                    true => continue,
                    false => return,
                },
            };
            match event {
                Ok(event) if is_old(&event, seen) => {}
                Ok(event) => {
                    seen = event.number.or(seen);
                    if !self.send(&event).await {
                        return;
                    }
                }
                // It was too slow; what it missed is in the journal.
                Err(RecvError::Lagged(_)) => is_behind = seen.is_some(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn may_stay(&mut self) -> bool {
        self.looked_at = Instant::now();
        self.principal.may_stay(&self.app.registry).await
    }

    /// False when the listener is gone, reads nothing, or may not listen any more.
    async fn send(&mut self, event: &Event) -> bool {
        let is_wanted = self.kinds.is_empty() || self.kinds.iter().any(|kind| **kind == *event.kind);
        if !is_wanted {
            return true;
        }
        if self.looked_at.elapsed() >= ALIVE_EVERY && !self.may_stay().await {
            return false;
        }
        let sent = tokio::time::timeout(UNREAD_MAX, self.out.send(Ok(line(event)))).await;
        matches!(sent, Ok(Ok(())))
    }

    /// What the journal has behind `seen`. False when the listener is gone, or the registry cannot be read: the listener comes again.
    async fn catch_up(&mut self, seen: &mut Option<u64>) -> bool {
        let Some(from) = *seen else { return true };
        let mut follower = Follower::after(from);
        loop {
            if self.out.is_closed() || !self.may_stay().await {
                return false;
            }
            let Ok(entries) = follower.next(&self.app.registry, PAGE_ENTRIES).await else {
                return false;
            };
            *seen = Some(follower.read());
            if entries.is_empty() {
                return true;
            }
            for entry in entries.iter().filter(|entry| is_told(entry)) {
                if !self.send(&event_of(entry)).await {
                    return false;
                }
            }
        }
    }
}

fn is_old(event: &Event, seen: Option<u64>) -> bool {
    event
        .number
        .is_some_and(|number| seen.is_some_and(|seen| number <= seen))
}

fn line(event: &Event) -> Line {
    let line = Line::default().event(&*event.kind).data(&*event.data);
    match event.number {
        Some(number) => line.id(number.to_string()),
        None => line,
    }
}

/// Which entries.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct History {
    /// Of these kinds only, with commas between them.
    pub kinds: Option<String>,
    /// About this device.
    pub device: Option<String>,
    /// About this gateway.
    pub gateway: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    pub limit: Option<u32>,
    /// From the `next` of the part before.
    pub after: Option<String>,
}

/// What has happened, newest first.
#[utoipa::path(get, path = "/api/v1/events/history", params(History), responses((status = 200, body = List<Happening>)))]
pub(crate) async fn history(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<History>,
) -> Result<Json<List<Happening>>> {
    let part = Part {
        limit: which.limit,
        after: which.after,
    };
    let filter = JournalFilter {
        kinds: list_of(which.kinds.as_deref())?,
        device: which
            .device
            .as_deref()
            .map(|id| device(id, "device"))
            .transpose()?,
        gateway: which.gateway.as_deref().map(gateway).transpose()?,
        without_refused: true,
        ..JournalFilter::default()
    };
    let page = app
        .registry
        .journal(&filter, part.after_number()?, part.limit()?)
        .await?;
    Ok(Json(List {
        items: page.entries.iter().filter_map(Happening::of).collect(),
        next: page.next.map(|number| number.to_string()),
    }))
}
