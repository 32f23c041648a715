//! Limits of requests that read or contain reference values of groups.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use linewarden_measurement::configuration::CONFIGURATION_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum size of a request with a reference value, bytes: two digits for each byte, and the other fields.
pub(crate) const BODY_BYTES_MAX: usize = 2 * CONFIGURATION_BYTES_MAX + (1 << 16);
/// Maximum number of requests that read groups at the same time, and of requests with a reference value in their body: a group
/// has up to two reference values, and a registry any number of groups. These limits bound the memory.
const READS_MAX: usize = 4;
const UPLOADS_MAX: usize = 4;

/// Permits for requests with large reference values.
pub(crate) struct GroupPermits {
    reads: Semaphore,
    uploads: Arc<Semaphore>,
}

impl Default for GroupPermits {
    fn default() -> Self {
        Self {
            reads: Semaphore::new(READS_MAX),
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
        }
    }
}

impl GroupPermits {
    /// Waits for a permit to read groups. The caller drops the reference values before the permit.
    pub(crate) async fn read(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }

    /// Waits for a permit to receive a reference value.
    pub(crate) async fn upload(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.uploads).acquire_owned().await.ok()
    }
}

/// Whether the body of the request contains a reference value.
pub(crate) fn is_upload(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = path.and_then(|path| path.strip_prefix("/api/v1/groups/{name}"));
    matches!(
        (request.method(), route),
        (&Method::PUT, Some("")) | (&Method::POST, Some("/roll-out"))
    )
}
