//! Whether anything is asked or answered on a connection, and whether the answers are read.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::Patience;

/// An answer is handed over in parts of so many bytes, each once there is room for it at the other end: without that the whole of it
/// would wait in memory for somebody who takes a byte of it.
const PART_BYTES: usize = 16 << 10;

/// What has happened on one connection. Clones share it.
#[derive(Clone)]
pub(super) struct Activity(Arc<Mutex<State>>);

struct State {
    begun: Instant,
    /// The end of the newest answer; `None` before the first question.
    newest: Option<Instant>,
    under_way: usize,
    next: u64,
    /// Of answers that have begun, when the last part was handed over.
    parts: BTreeMap<u64, Instant>,
}

/// A question and its answer on the way, until the last byte is handed over.
struct UnderWay(Activity);

/// An answer, in parts.
struct Parts {
    body: Body,
    /// The rest of what was read of it.
    rest: Bytes,
    number: u64,
    under_way: UnderWay,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            begun: Instant::now(),
            newest: None,
            under_way: 0,
            next: 0,
            parts: BTreeMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whole at every moment, whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> UnderWay {
        let mut state = self.state();
        state.under_way += 1;
        state.newest = Some(Instant::now());
        UnderWay(self.clone())
    }

    /// Ends when nothing was asked for too long, before the first question or after the last answer, or nothing is taken of an answer.
    pub(super) async fn silence(&self, patience: Patience) {
        loop {
            let ends = {
                let state = self.state();
                let unread = state.parts.values().min().map(|part| *part + patience.unread);
                let silent = match state.newest {
                    None => state.begun + patience.first,
                    Some(_) if state.under_way > 0 => Instant::now() + patience.unread,
                    Some(newest) => newest + patience.idle,
                };
                unread.map_or(silent, |unread| unread.min(silent))
            };
            if ends <= Instant::now() {
                return;
            }
            sleep_until(ends).await;
        }
    }

    /// The same service, whose questions and answers are noted.
    pub(super) fn watch<S>(self, service: S) -> Watched<S> {
        Watched {
            activity: self,
            service,
        }
    }
}

impl Parts {
    fn new(body: Body, under_way: UnderWay) -> Self {
        let mut state = under_way.0.state();
        let number = state.next;
        state.next += 1;
        state.parts.insert(number, Instant::now());
        drop(state);
        Self {
            body,
            rest: Bytes::new(),
            number,
            under_way,
        }
    }

    /// The next part was taken.
    fn hand_over(&mut self) -> Bytes {
        let mut state = self.under_way.0.state();
        state.parts.insert(self.number, Instant::now());
        drop(state);
        self.rest.split_to(self.rest.len().min(PART_BYTES))
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.hand_over()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = body.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint.set_lower(body.lower().saturating_add(rest));
        hint
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.under_way.0.state().parts.remove(&self.number);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way -= 1;
        state.newest = Some(Instant::now());
    }
}

/// Made by [`Activity::watch`].
#[derive(Clone)]
pub(super) struct Watched<S> {
    activity: Activity,
    service: S,
}

impl<S> Service<Request<Incoming>> for Watched<S>
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
        let under_way = self.activity.begin();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Body::new(Parts::new(body, under_way))))
        })
    }
}
