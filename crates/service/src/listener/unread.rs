//! Bodies of questions that are answered before they are read, as refusals are.
//!
//! Over HTTP/2 a body that is dropped resets its stream, and with that its answer where that is not on its way yet: who asked hears of an
//! error in the connection and not of the refusal. The rest is read in the background, and thrown away.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::runtime::Handle;

/// Of a body that goes on for longer, or is larger, the rest is refused.
const READ_MAX: Duration = Duration::from_secs(5);
const BYTES_MAX: usize = 4 << 20;

/// The body of a question, which is read to its end whoever drops it.
pub(super) struct ReadOut(Option<Incoming>);

impl ReadOut {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl HttpBody for ReadOut {
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

impl Drop for ReadOut {
    fn drop(&mut self) {
        let unread = self.0.take().filter(|body| !body.is_end_stream());
        // Without a runtime there is no connection either.
        if let (Some(body), Ok(runtime)) = (unread, Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(READ_MAX, read_out(body)));
        }
    }
}

async fn read_out(mut body: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > BYTES_MAX {
            return;
        }
    }
}
