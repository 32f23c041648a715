//! Whether anything is asked or answered on a connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::Patience;

/// What has happened on one connection. Clones share it.
#[derive(Clone)]
pub(super) struct Activity(Arc<Mutex<State>>);

struct State {
    begun: Instant,
    /// The end of the newest answer; `None` before the first question.
    newest: Option<Instant>,
    under_way: usize,
}

/// An answer on its way, until its last byte is handed over.
struct UnderWay(Activity);

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            begun: Instant::now(),
            newest: None,
            under_way: 0,
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

    /// Ends when nothing was asked for too long: before the first question, or after the last answer.
    pub(super) async fn silence(&self, patience: Patience) {
        loop {
            let ends = {
                let state = self.state();
                match state.newest {
                    None => state.begun + patience.first,
                    Some(_) if state.under_way > 0 => Instant::now() + patience.idle,
                    Some(newest) => newest + patience.idle,
                }
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
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let under_way = self.activity.begin();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    // Until the body is dropped.
                    let _ = &under_way;
                    frame
                }))
            }))
        })
    }
}
