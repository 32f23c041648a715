//! Rate and concurrency limits.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use linewarden_protocol::ids::GatewayId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::permits::{KeyedPermit, KeyedPermits};

/// Maximum number of requests of one user per second. A burst may have as many requests.
const REQUESTS_PER_USER_PER_S: u32 = 5_000;
/// Maximum number of concurrent responses to one user, including event streams. A response that the user does not read
/// stays in memory for a minute, with at most a third of a MiB.
const RESPONSES_PER_USER_MAX: usize = 512;
/// Maximum number of failed authentications from one address per minute.
const ATTEMPTS_PER_MINUTE: u32 = 30;
/// Maximum number of registry look-ups from one address per minute for secrets that did not authenticate recently. A burst
/// may have as many look-ups. The limit is ten times [`ATTEMPTS_PER_MINUTE`], so that a new user who shares the address
/// of an attacker has a chance to authenticate.
const LOOKUPS_PER_MINUTE: u32 = 300;

/// Maximum number of concurrent event streams of one user.
const STREAMS_PER_USER_MAX: usize = 100;

/// Maximum number of concurrent imports of one user and of all users. An import holds three chunks of devices in memory;
/// only one chunk of all imports is stored at a time.
const IMPORTS_PER_USER_MAX: usize = 4;
const IMPORTS_MAX: usize = 16;

/// Maximum number of registrations of one gateway per minute. A registration issues a fencing token and adds an entry to
/// the event log.
const REGISTRATIONS_PER_MINUTE: u32 = 30;

/// All limits. Clones share their state.
#[derive(Clone)]
pub(crate) struct Limits {
    requests: Arc<DefaultKeyedRateLimiter<String>>,
    failed_attempts: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    lookups: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    registrations: Arc<DefaultKeyedRateLimiter<GatewayId>>,
    responses: KeyedPermits<String>,
    streams: KeyedPermits<String>,
    imports: KeyedPermits<String>,
    all_imports: Arc<Semaphore>,
    chunk_storage: Arc<Semaphore>,
}

/// Permit for one import, released when dropped.
pub(crate) type ImportPermit = (KeyedPermit<String>, OwnedSemaphorePermit);

/// Permit for one response, released when dropped.
pub(crate) type ResponsePermit = KeyedPermit<String>;

/// Permit for one event stream, released when dropped.
pub(crate) type StreamPermit = KeyedPermit<String>;

const fn at_least_one(count: u32) -> NonZeroU32 {
    match NonZeroU32::new(count) {
        Some(count) => count,
        None => NonZeroU32::MIN,
    }
}

impl Limits {
    pub(crate) fn new() -> Self {
        Self {
            requests: Arc::new(RateLimiter::keyed(Quota::per_second(at_least_one(
                REQUESTS_PER_USER_PER_S,
            )))),
            failed_attempts: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
                ATTEMPTS_PER_MINUTE,
            )))),
            lookups: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
                LOOKUPS_PER_MINUTE,
            )))),
            registrations: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
                REGISTRATIONS_PER_MINUTE,
            )))),
            responses: KeyedPermits::new(RESPONSES_PER_USER_MAX),
            streams: KeyedPermits::new(STREAMS_PER_USER_MAX),
            imports: KeyedPermits::new(IMPORTS_PER_USER_MAX),
            all_imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            chunk_storage: Arc::new(Semaphore::new(1)),
        }
    }

    /// Counts a request of the user; returns whether the rate is within the limit.
    pub(crate) fn allow_request(&self, user: &String) -> bool {
        self.requests.check_key(user).is_ok()
    }

    /// A permit for one more response to the user, if available.
    pub(crate) fn response_permit(&self, user: &str) -> Option<ResponsePermit> {
        self.responses.take(user.to_owned())
    }

    /// Counts a failed authentication from the address; returns whether the rate is within the limit.
    pub(crate) fn allow_attempt(&self, address: IpAddr) -> bool {
        self.failed_attempts.check_key(&address).is_ok()
    }

    /// Counts a registry look-up of a secret from the address; returns whether the rate is within the limit. Callers count
    /// only secrets that did not authenticate recently.
    pub(crate) fn allow_lookup(&self, address: IpAddr) -> bool {
        self.lookups.check_key(&address).is_ok()
    }

    /// A permit for one more event stream of the user, if available.
    pub(crate) fn stream_permit(&self, user: &str) -> Option<StreamPermit> {
        self.streams.take(user.to_owned())
    }

    /// A permit for one more import of the user, if available.
    pub(crate) fn import_permit(&self, user: &str) -> Option<ImportPermit> {
        let permit = self.imports.take(user.to_owned())?;
        let global_permit = Arc::clone(&self.all_imports).try_acquire_owned().ok()?;
        Some((permit, global_permit))
    }

    /// A permit to store a chunk of an import. Only one chunk is stored at a time, so that a request of a gateway waits for
    /// at most one chunk.
    pub(crate) async fn storing_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.chunk_storage.acquire().await.ok()
    }

    /// Counts a registration of the gateway; returns whether the rate is within the limit.
    pub(crate) fn allow_registration(&self, gateway: GatewayId) -> bool {
        self.registrations.check_key(&gateway).is_ok()
    }

    /// Removes inactive users, addresses and gateways.
    pub(crate) fn shrink(&self) {
        self.requests.retain_recent();
        self.requests.shrink_to_fit();
        self.failed_attempts.retain_recent();
        self.failed_attempts.shrink_to_fit();
        self.lookups.retain_recent();
        self.lookups.shrink_to_fit();
        self.registrations.retain_recent();
        self.registrations.shrink_to_fit();
    }

    /// Interval of [`Self::shrink`].
    pub(crate) const SHRINK_INTERVAL: Duration = Duration::from_secs(60);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_limits_are_per_user() {
        let limits = Limits::new();
        let [alice, bob] = ["alice", "bob"].map(str::to_owned);
        let allowed = (0..10 * REQUESTS_PER_USER_PER_S)
            .filter(|_| limits.allow_request(&alice))
            .count();
        // The burst, plus the refill during the test.
        assert!(allowed >= REQUESTS_PER_USER_PER_S as usize, "{allowed}");
        assert!(allowed < 10 * REQUESTS_PER_USER_PER_S as usize, "{allowed}");
        assert!(limits.allow_request(&bob));
    }

    #[test]
    fn imports_are_limited_per_user_and_globally() {
        let limits = Limits::new();
        let users = IMPORTS_MAX / IMPORTS_PER_USER_MAX;
        let mut permits = Vec::new();
        for user in 0..users {
            let user = user.to_string();
            permits.extend((0..IMPORTS_PER_USER_MAX).map(|_| limits.import_permit(&user).unwrap()));
            assert!(limits.import_permit(&user).is_none(), "limit of user {user}");
        }
        assert!(limits.import_permit("another").is_none(), "limit of all users");
        permits.pop();
        assert!(limits.import_permit("0").is_none(), "limit of the user");
        let _permit = limits.import_permit("another").unwrap();
        assert!(limits.import_permit("yet another").is_none());
    }
}
