//! Events: live stream and history.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event as Line, KeepAlive};
use linewarden_registry::{EventFilter, EventLogReader};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::lists::{List, PageQuery, parse_device_id, parse_gateway_id};
use crate::auth::{Principal, Viewer};
use crate::error::{ApiError, Result};
use crate::extract::{Json, Query};
use crate::limits::StreamPermit;
use crate::state::App;
use crate::stream::{EventRecord, PAGE_ENTRIES, StreamEvent, is_public, to_stream_event};

/// Maximum number of kinds in one request; each kind is a separate query.
const KINDS_MAX: usize = 32;
/// Maximum number of queued events of one subscriber.
const QUEUED_EVENTS_MAX: usize = 256;
/// Interval between keep-alive messages.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time for sending an event to a subscriber.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Parameters of the event stream.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventStreamQuery {
    /// Only these kinds, separated by commas.
    kinds: Option<String>,
    /// As the header `Last-Event-ID`, which takes precedence.
    last_event_id: Option<u64>,
}

fn parse_kinds(kinds: Option<&str>) -> Result<Vec<String>> {
    let kinds = kinds.into_iter().flat_map(|kinds| kinds.split(','));
    let kinds: Vec<String> = kinds
        .filter(|kind| !kind.is_empty())
        .take(KINDS_MAX + 1)
        .map(str::to_owned)
        .collect();
    match kinds.len() > KINDS_MAX {
        true => Err(ApiError::invalid("kinds", format!("at most {KINDS_MAX} kinds"))),
        false => Ok(kinds),
    }
}

/// Server-sent events: the events of the event log with their numbers as ids, and the status each second. With
/// `Last-Event-ID` the stream continues after that event.
#[utoipa::path(get, path = "/api/v1/events", params(EventStreamQuery), responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(crate) async fn stream(
    Viewer(principal): Viewer,
    State(app): State<App>,
    Query(kinds): Query<EventStreamQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Line, Infallible>>>> {
    let permit = app.limits.stream_permit(&principal.name);
    let permit = permit.ok_or_else(|| ApiError::rate_limited(KEEPALIVE_INTERVAL.as_secs() as u32))?;
    let last = headers
        .get("last-event-id")
        .and_then(|last| last.to_str().ok()?.parse().ok())
        .or(kinds.last_event_id);
    let (out, lines) = mpsc::channel(QUEUED_EVENTS_MAX);
    let listener = EventSubscriber {
        app,
        principal,
        kinds: parse_kinds(kinds.kinds.as_deref())?,
        out,
        authorized_at: Instant::now(),
        _permit: permit,
    };
    tokio::spawn(listener.run(last));
    let alive = KeepAlive::new().interval(KEEPALIVE_INTERVAL).text("alive");
    Ok(Sse::new(ReceiverStream::new(lines)).keep_alive(alive))
}

/// A subscriber of the event stream.
struct EventSubscriber {
    app: App,
    principal: Principal,
    kinds: Vec<String>,
    out: mpsc::Sender<Result<Line, Infallible>>,
    /// Time of the last check of the authorization.
    authorized_at: Instant,
    /// The permit, held until the stream ends.
    _permit: StreamPermit,
}

impl EventSubscriber {
    /// Ends when the subscriber has disconnected or is no longer authorized.
    async fn run(mut self, last: Option<u64>) {
        // Subscribes before the history is read, so that no event is missed.
        let mut events = self.app.stream.subscribe();
        let mut seen = last;
        let mut is_behind = last.is_some();
        let mut clock = tokio::time::interval(KEEPALIVE_INTERVAL);
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
                _ = clock.tick() => match self.is_still_authorized().await {
                    true => continue,
                    false => return,
                },
            };
            match event {
                Ok(event) if is_already_sent(&event, seen) => {}
                Ok(event) => {
                    seen = event.number.or(seen);
                    if !self.send(&event).await {
                        return;
                    }
                }
                // The subscriber was too slow; the missed events are in the event log.
                Err(RecvError::Lagged(_)) => is_behind = seen.is_some(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn is_still_authorized(&mut self) -> bool {
        self.authorized_at = Instant::now();
        self.principal.is_still_authorized(&self.app.registry).await
    }

    /// Returns false if the subscriber has disconnected, reads nothing, or is no longer authorized.
    async fn send(&mut self, event: &StreamEvent) -> bool {
        let is_selected = self.kinds.is_empty() || self.kinds.iter().any(|kind| **kind == *event.kind);
        if !is_selected {
            return true;
        }
        if self.authorized_at.elapsed() >= KEEPALIVE_INTERVAL && !self.is_still_authorized().await {
            return false;
        }
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.out.send(Ok(sse_line(event)))).await;
        matches!(sent, Ok(Ok(())))
    }

    /// Sends the events after `seen`. Returns false if the subscriber has disconnected, or the registry cannot be
    /// read: the subscriber reconnects.
    async fn catch_up(&mut self, seen: &mut Option<u64>) -> bool {
        let Some(from) = *seen else { return true };
        let mut reader = EventLogReader::after(from);
        loop {
            if self.out.is_closed() || !self.is_still_authorized().await {
                return false;
            }
            let Ok(entries) = reader.next(&self.app.registry, PAGE_ENTRIES).await else {
                return false;
            };
            *seen = Some(reader.position());
            if entries.is_empty() {
                return true;
            }
            for entry in entries.iter().filter(|entry| is_public(entry)) {
                if !self.send(&to_stream_event(entry)).await {
                    return false;
                }
            }
        }
    }
}

fn is_already_sent(event: &StreamEvent, seen: Option<u64>) -> bool {
    event
        .number
        .is_some_and(|number| seen.is_some_and(|seen| number <= seen))
}

fn sse_line(event: &StreamEvent) -> Line {
    let line = Line::default().event(&*event.kind).data(&*event.data);
    match event.number {
        Some(number) => line.id(number.to_string()),
        None => line,
    }
}

/// A query for past events.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventHistoryQuery {
    /// Only these kinds, separated by commas.
    pub kinds: Option<String>,
    /// Only events of this device.
    pub device: Option<String>,
    /// Only events of this gateway.
    pub gateway: Option<String>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// Lists past events, newest first.
#[utoipa::path(get, path = "/api/v1/events/history", params(EventHistoryQuery), responses((status = 200, body = List<EventRecord>)))]
pub(crate) async fn history(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<EventHistoryQuery>,
) -> Result<Json<List<EventRecord>>> {
    let part = PageQuery {
        limit: which.limit,
        after: which.after,
    };
    let filter = EventFilter {
        kinds: parse_kinds(which.kinds.as_deref())?,
        device: which
            .device
            .as_deref()
            .map(|id| parse_device_id(id, "device"))
            .transpose()?,
        gateway: which.gateway.as_deref().map(parse_gateway_id).transpose()?,
        exclude_refused: true,
        ..EventFilter::default()
    };
    let page = app
        .registry
        .events(&filter, part.after_number()?, part.limit()?)
        .await?;
    Ok(Json(List {
        items: page
            .entries
            .iter()
            .filter_map(EventRecord::from_public_entry)
            .collect(),
        next: page.next.map(|number| number.to_string()),
    }))
}
