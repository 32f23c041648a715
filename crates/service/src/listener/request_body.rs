//! Bodies of requests that get a response before their body is read, for example a refusal.
//!
//! Over HTTP/2, a dropped body resets its stream, also if the response is not yet sent: the client would receive a
//! connection error instead of the response. A background task therefore reads and discards the unread part of the body.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::runtime::Handle;

/// Maximum time for reading the unread part of a body.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read from the unread part.
const DRAIN_BYTES_MAX: usize = 4 << 20;

/// A request body. After its drop, a task reads the unread part, within [`DRAIN_TIMEOUT`] and [`DRAIN_BYTES_MAX`].
pub(super) struct DrainedBody(Option<Incoming>);

impl DrainedBody {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl HttpBody for DrainedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl Drop for DrainedBody {
    fn drop(&mut self) {
        let unread = self.0.take().filter(|body| !body.is_end_stream());
        // Outside of a runtime, no connection exists that could be reset.
        if let (Some(body), Ok(runtime)) = (unread, Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(body)));
        }
    }
}

async fn drain(mut body: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > DRAIN_BYTES_MAX {
            return;
        }
    }
}
