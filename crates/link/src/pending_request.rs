//! Counts the requests that a client abandons.
//!
//! A controller may process a request after the client has abandoned it. By then, the client may have repeated the
//! request, or acted on other responses. Each request therefore carries the number of requests abandoned so far, and a
//! controller refuses a request with a lower number than recorded.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::proto;

/// A request in flight. It counts as abandoned if it is dropped before [`PendingRequest::complete`] is called.
pub(crate) struct PendingRequest<'a> {
    abandoned_requests: &'a AtomicU64,
    is_complete: bool,
}

impl<'a> PendingRequest<'a> {
    /// Begins a request. Also returns the fields that the request carries.
    pub(crate) fn begin(abandoned_requests: &'a AtomicU64, connection_id: Vec<u8>) -> (Self, RequestContext) {
        let context = RequestContext {
            connection_id,
            abandoned_requests: abandoned_requests.load(SeqCst),
        };
        let pending = Self {
            abandoned_requests,
            is_complete: false,
        };
        (pending, context)
    }

    /// Ends the request: the controller has processed or refused it.
    pub(crate) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.abandoned_requests.fetch_add(1, SeqCst);
        }
    }
}

/// The fields that a request carries.
pub(crate) struct RequestContext {
    /// The id of the connection.
    pub(crate) connection_id: Vec<u8>,
    /// Number of requests that the client has abandoned before.
    pub(crate) abandoned_requests: u64,
}

impl RequestContext {
    pub(crate) fn registration(self, fencing_token: u64) -> Option<proto::Registration> {
        Some(proto::Registration {
            fencing_token,
            connection_id: self.connection_id,
            abandoned_requests: self.abandoned_requests,
        })
    }
}
