//! Tracks requests on a connection, and whether their responses are read.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::Timeouts;

/// Size of the parts in which a response is passed to the HTTP library. A part is passed when the peer can receive it, so
/// that a slow peer does not cause a copy of the whole response in memory.
const PART_BYTES: usize = 16 << 10;

/// The activity on one connection. Clones share their state.
#[derive(Clone)]
pub(super) struct Activity(Arc<Mutex<State>>);

struct State {
    opened_at: Instant,
    /// Start of the latest request or end of the latest response, whichever is later; `None` before the first request.
    last_activity: Option<Instant>,
    /// Number of requests in progress.
    in_flight: usize,
    /// Number of the next response.
    next_number: u64,
    /// For each response in progress, the time at which its last part was passed to the HTTP library.
    last_parts: BTreeMap<u64, Instant>,
}

/// A request in progress, until its response is sent.
struct InFlight(Activity);

/// A response body, in parts.
struct ResponseParts {
    body: Body,
    /// Data that was read from the body and not yet passed to the HTTP library.
    unsent: Bytes,
    number: u64,
    in_flight: InFlight,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            opened_at: Instant::now(),
            last_activity: None,
            in_flight: 0,
            next_number: 0,
            last_parts: BTreeMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The data is consistent even if a holder of the lock panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> InFlight {
        let mut state = self.state();
        state.in_flight += 1;
        state.last_activity = Some(Instant::now());
        InFlight(self.clone())
    }

    /// Waits until a timeout of the connection expires: before the first request, between requests, or while the peer
    /// reads nothing of a response.
    pub(super) async fn until_timeout(&self, timeouts: Timeouts) {
        loop {
            let deadline = {
                let state = self.state();
                let oldest_part = state.last_parts.values().min();
                let write_deadline = oldest_part.map(|passed_at| *passed_at + timeouts.write);
                let idle_deadline = match state.last_activity {
                    None => state.opened_at + timeouts.request,
                    // The connection is not idle: check again later.
                    Some(_) if state.in_flight > 0 => Instant::now() + timeouts.write,
                    Some(ended_at) => ended_at + timeouts.idle,
                };
                write_deadline.map_or(idle_deadline, |deadline| deadline.min(idle_deadline))
            };
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }

    /// Wraps a service so that its requests are tracked.
    pub(super) fn track<S>(self, service: S) -> TrackedService<S> {
        TrackedService {
            activity: self,
            service,
        }
    }
}

impl ResponseParts {
    fn new(body: Body, in_flight: InFlight) -> Self {
        let mut state = in_flight.0.state();
        let number = state.next_number;
        state.next_number += 1;
        state.last_parts.insert(number, Instant::now());
        drop(state);
        Self {
            body,
            unsent: Bytes::new(),
            number,
            in_flight,
        }
    }

    /// Removes the next part from `unsent`, and records the time.
    fn next_part(&mut self) -> Bytes {
        let mut state = self.in_flight.0.state();
        state.last_parts.insert(self.number, Instant::now());
        drop(state);
        self.unsent.split_to(self.unsent.len().min(PART_BYTES))
    }
}

impl HttpBody for ResponseParts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.unsent.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unsent = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end_or_error => return Poll::Ready(end_or_error),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_part()))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let unsent = u64::try_from(self.unsent.len()).unwrap_or(u64::MAX);
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = body.upper().and_then(|upper| upper.checked_add(unsent)) {
            hint.set_upper(upper);
        }
        hint.set_lower(body.lower().saturating_add(unsent));
        hint
    }
}

impl Drop for ResponseParts {
    fn drop(&mut self) {
        self.in_flight.0.state().last_parts.remove(&self.number);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_flight -= 1;
        state.last_activity = Some(Instant::now());
    }
}

/// A service whose requests are tracked, from [`Activity::track`].
#[derive(Clone)]
pub(super) struct TrackedService<S> {
    activity: Activity,
    service: S,
}

impl<S> Service<Request<Incoming>> for TrackedService<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let in_flight = self.activity.begin();
        let response = self.service.call(request);
        Box::pin(async move {
            let response = response.await?;
            Ok(response.map(|body| Body::new(ResponseParts::new(body, in_flight))))
        })
    }
}
