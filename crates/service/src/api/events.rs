//! Events: live stream and history.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event as SseEvent, KeepAlive};
use linewarden_api::{EventHistoryQuery, EventRecord, List};
use linewarden_registry::{EventFilter, EventLogReader};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::lists::{parse_cursor, parse_device_id, parse_gateway_id, parse_limit};
use crate::auth::{Principal, Viewer};
use crate::error::{ApiError, Result};
use crate::extract::{Json, Query};
use crate::limits::StreamPermit;
use crate::state::App;
use crate::stream::{PAGE_ENTRIES, StreamEvent, event_from_public_entry, is_public, to_stream_event};

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
    /// The number of an event: the stream continues after this event. The header `Last-Event-ID` takes precedence.
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

/// Server-sent events: the events of the event log with their numbers as ids, appraised rounds, and the status each
/// second. With `Last-Event-ID` the stream continues after that event.
#[utoipa::path(get, path = "/api/v1/events", params(EventStreamQuery), responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(crate) async fn stream(
    Viewer(principal): Viewer,
    State(app): State<App>,
    Query(query): Query<EventStreamQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>> {
    let permit = app.limits.stream_permit(&principal.name);
    let permit = permit.ok_or_else(|| ApiError::rate_limited(KEEPALIVE_INTERVAL.as_secs() as u32))?;
    let last_event_id = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.parse().ok())
        .or(query.last_event_id);
    let (sender, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
    let subscriber = EventSubscriber {
        app,
        principal,
        kinds: parse_kinds(query.kinds.as_deref())?,
        sender,
        authorized_at: Instant::now(),
        _permit: permit,
    };
    tokio::spawn(subscriber.run(last_event_id));
    let keep_alive = KeepAlive::new().interval(KEEPALIVE_INTERVAL).text("alive");
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(keep_alive))
}

/// A subscriber of the event stream.
struct EventSubscriber {
    app: App,
    principal: Principal,
    kinds: Vec<String>,
    sender: mpsc::Sender<Result<SseEvent, Infallible>>,
    /// Time of the last check of the authorization.
    authorized_at: Instant,
    /// The permit, held until the stream ends.
    _permit: StreamPermit,
}

impl EventSubscriber {
    /// Sends events until the subscriber has disconnected or is no longer authorized. Starts after the event
    /// `last_event_id`, or with the next event.
    async fn run(mut self, last_event_id: Option<u64>) {
        // The subscription begins before the history is read, so that no event is missed.
        let mut events = self.app.stream.subscribe();
        // The number of the last event that was sent or skipped.
        let mut last_number = last_event_id;
        let mut is_behind = last_event_id.is_some();
        let mut clock = tokio::time::interval(KEEPALIVE_INTERVAL);
        loop {
            if is_behind {
                if !self.catch_up(&mut last_number).await {
                    return;
                }
                is_behind = false;
            }
            let event = tokio::select! {
                event = events.recv() => event,
                () = self.sender.closed() => return,
                _ = clock.tick() => match self.is_still_authorized().await {
                    true => continue,
                    false => return,
                },
            };
            match event {
                Ok(event) if is_already_sent(&event, last_number) => {}
                Ok(event) => {
                    last_number = event.number.or(last_number);
                    if !self.send(&event).await {
                        return;
                    }
                }
                // The subscriber was too slow; the missed events are in the event log.
                Err(RecvError::Lagged(_)) => is_behind = last_number.is_some(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn is_still_authorized(&mut self) -> bool {
        self.authorized_at = Instant::now();
        self.principal.is_still_authorized(&self.app.registry).await
    }

    /// Sends an event if the subscriber has selected the kind of the event. Returns `false` if the subscriber has
    /// disconnected, reads nothing for [`SEND_TIMEOUT`], or is no longer authorized.
    async fn send(&mut self, event: &StreamEvent) -> bool {
        let is_selected = self.kinds.is_empty() || self.kinds.iter().any(|kind| **kind == *event.kind);
        if !is_selected {
            return true;
        }
        if self.authorized_at.elapsed() >= KEEPALIVE_INTERVAL && !self.is_still_authorized().await {
            return false;
        }
        let result = tokio::time::timeout(SEND_TIMEOUT, self.sender.send(Ok(sse_event(event)))).await;
        matches!(result, Ok(Ok(())))
    }

    /// Sends the events of the event log after `last_number`. Returns `false` if the subscriber has disconnected or is no
    /// longer authorized, or if the registry cannot be read: the stream then ends, and the subscriber reconnects.
    async fn catch_up(&mut self, last_number: &mut Option<u64>) -> bool {
        let Some(start) = *last_number else { return true };
        let mut reader = EventLogReader::after(start);
        loop {
            if self.sender.is_closed() || !self.is_still_authorized().await {
                return false;
            }
            let Ok(entries) = reader.next(&self.app.registry, PAGE_ENTRIES).await else {
                return false;
            };
            *last_number = Some(reader.position());
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

fn is_already_sent(event: &StreamEvent, last_number: Option<u64>) -> bool {
    event
        .number
        .is_some_and(|number| last_number.is_some_and(|last_number| number <= last_number))
}

fn sse_event(event: &StreamEvent) -> SseEvent {
    let sse_event = SseEvent::default().event(&*event.kind).data(&*event.data);
    match event.number {
        Some(number) => sse_event.id(number.to_string()),
        None => sse_event,
    }
}

/// Lists past events, newest first.
#[utoipa::path(get, path = "/api/v1/events/history", params(EventHistoryQuery), responses((status = 200, body = List<EventRecord>)))]
pub(crate) async fn history(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<EventHistoryQuery>,
) -> Result<Json<List<EventRecord>>> {
    let filter = EventFilter {
        kinds: parse_kinds(query.kinds.as_deref())?,
        device: query
            .device
            .as_deref()
            .map(|id| parse_device_id(id, "device"))
            .transpose()?,
        gateway: query.gateway.as_deref().map(parse_gateway_id).transpose()?,
        exclude_refused: true,
        ..EventFilter::default()
    };
    let page = app
        .registry
        .events(
            &filter,
            parse_cursor(query.after.as_deref())?,
            parse_limit(query.limit)?,
        )
        .await?;
    Ok(Json(List {
        items: page.entries.iter().filter_map(event_from_public_entry).collect(),
        next: page.next.map(|number| number.to_string()),
        damaged_records: page.entries.iter().filter(|entry| !entry.authentic).count() as u64,
    }))
}
