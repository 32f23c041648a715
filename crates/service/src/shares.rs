//! How many of something each has.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// Counts them; clones count together.
pub(crate) struct Shares<Owner> {
    counts: Arc<Mutex<HashMap<Owner, usize>>>,
    most: usize,
}

/// A place, until it is dropped.
pub(crate) struct Share<Owner: Eq + Hash> {
    of: Shares<Owner>,
    owner: Owner,
}

impl<Owner> Clone for Shares<Owner> {
    fn clone(&self) -> Self {
        Self {
            counts: Arc::clone(&self.counts),
            most: self.most,
        }
    }
}

impl<Owner: Clone + Eq + Hash> Shares<Owner> {
    /// At most so many of each.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            counts: Arc::default(),
            most,
        }
    }

    /// A place for one more of this one, if there is one.
    pub(crate) fn take(&self, owner: Owner) -> Option<Share<Owner>> {
        let mut counts = self.counts();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share {
            of: self.clone(),
            owner,
        })
    }
}

impl<Owner> Shares<Owner> {
    fn counts(&self) -> MutexGuard<'_, HashMap<Owner, usize>> {
        // Whole at every moment, whoever panicked.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Owner: Eq + Hash> Drop for Share<Owner> {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

/// The answer, which has the place until its last part is handed over.
pub(crate) fn until_sent<Place>(answer: Response, place: Place) -> Response
where
    Place: Unpin + Send + 'static,
{
    answer.map(|body| Body::new(Placed { body, _place: place }))
}

struct Placed<Place> {
    body: Body,
    _place: Place,
}

impl<Place: Unpin> HttpBody for Placed<Place> {
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
    fn each_has_its_share_and_gets_it_back() {
        let shares = Shares::new(2);
        let first = shares.take(1);
        let second = shares.take(1);
        assert!(first.is_some() && second.is_some());
        assert!(shares.take(1).is_none());
        assert!(shares.take(2).is_some());
        drop(second);
        assert!(shares.take(1).is_some());
        drop(first);
        assert!(shares.counts().is_empty(), "nobody is remembered");
    }

    #[test]
    fn an_answer_has_its_place_until_it_is_sent() {
        let shares = Shares::new(1);
        let answer = Response::new(Body::from("an answer"));
        let answer = until_sent(answer, shares.take(1));
        assert_eq!(answer.body().size_hint().exact(), Some(9));
        assert!(shares.take(1).is_none());
        drop(answer);
        assert!(shares.take(1).is_some());
    }
}
