//! Concurrency limits per owner, for example per user, gateway or address.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// Limits the number of permits per owner. Clones share their counts.
pub(crate) struct KeyedPermits<Owner> {
    counts: Arc<Mutex<HashMap<Owner, usize>>>,
    limit: usize,
}

/// A permit, released when dropped.
pub(crate) struct KeyedPermit<Owner: Eq + Hash> {
    permits: KeyedPermits<Owner>,
    owner: Owner,
}

impl<Owner> Clone for KeyedPermits<Owner> {
    fn clone(&self) -> Self {
        Self {
            counts: Arc::clone(&self.counts),
            limit: self.limit,
        }
    }
}

impl<Owner: Clone + Eq + Hash> KeyedPermits<Owner> {
    /// Allows at most `limit` permits per owner.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            counts: Arc::default(),
            limit,
        }
    }

    /// A permit for this owner, if available.
    pub(crate) fn take(&self, owner: Owner) -> Option<KeyedPermit<Owner>> {
        let mut counts = self.counts();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(KeyedPermit {
            permits: self.clone(),
            owner,
        })
    }
}

impl<Owner> KeyedPermits<Owner> {
    fn counts(&self) -> MutexGuard<'_, HashMap<Owner, usize>> {
        // The counts are consistent even if a holder of the lock panicked.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Owner: Eq + Hash> Drop for KeyedPermit<Owner> {
    fn drop(&mut self) {
        let mut counts = self.permits.counts();
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

/// Attaches a permit to a response; the permit is released when the last part of the body was passed to the HTTP library.
pub(crate) fn hold_until_sent<Permit>(response: Response, permit: Permit) -> Response
where
    Permit: Unpin + Send + 'static,
{
    response.map(|body| {
        Body::new(BodyWithPermit {
            body,
            _permit: permit,
        })
    })
}

struct BodyWithPermit<Permit> {
    body: Body,
    _permit: Permit,
}

impl<Permit: Unpin> HttpBody for BodyWithPermit<Permit> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_per_owner_and_released() {
        let permits = KeyedPermits::new(2);
        let first = permits.take(1);
        let second = permits.take(1);
        assert!(first.is_some() && second.is_some());
        assert!(permits.take(1).is_none());
        assert!(permits.take(2).is_some());
        drop(second);
        assert!(permits.take(1).is_some());
        drop(first);
        assert!(permits.counts().is_empty(), "all owners are removed");
    }

    #[test]
    fn a_response_holds_its_permit_until_it_is_sent() {
        let permits = KeyedPermits::new(1);
        let response = Response::new(Body::from("a response"));
        let response = hold_until_sent(response, permits.take(1));
        assert_eq!(response.body().size_hint().exact(), Some(10));
        assert!(permits.take(1).is_none());
        drop(response);
        assert!(permits.take(1).is_some());
    }
}
