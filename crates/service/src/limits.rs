//! Rate and concurrency limits.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use linewarden_protocol::ids::GatewayId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::permits::{KeyedPermit, KeyedPermits};

/// Requests per second of one user; also the burst.
const REQUESTS_PER_USER_PER_S: u32 = 5_000;
/// Concurrent responses to one user, including event streams. Unread responses are kept for a minute, at a third of a
/// MiB each.
const RESPONSES_PER_USER_MAX: usize = 512;
/// Failed authentications per minute from one address.
const ATTEMPTS_PER_MINUTE: u32 = 30;
/// Registry look-ups per minute, and in a burst, from one address for secrets that did not authenticate recently. The
/// limit is ten times that of failed attempts, so that a new user behind the address of an attacker still has a
/// chance.
const LOOKUPS_PER_MINUTE: u32 = 300;

/// Concurrent event streams of one user.
const STREAMS_PER_USER_MAX: usize = 100;

/// Concurrent imports of one user and of all users. Each holds three chunks of devices in memory, and chunks are
/// stored one at a time.
const IMPORTS_PER_USER_MAX: usize = 4;
const IMPORTS_MAX: usize = 16;

/// Registrations per minute of one gateway. Each issues a fencing token and adds an entry to the event log.
const REGISTRATIONS_PER_MINUTE: u32 = 30;

/// All limits. Clones share their state.
#[derive(Clone)]
pub(crate) struct Limits {
    users: Arc<DefaultKeyedRateLimiter<String>>,
    attempts: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    lookups: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    registrations: Arc<DefaultKeyedRateLimiter<GatewayId>>,
    responses: KeyedPermits<String>,
    streams: KeyedPermits<String>,
    imports: KeyedPermits<String>,
    all_imports: Arc<Semaphore>,
    storing: Arc<Semaphore>,
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
            users: Arc::new(RateLimiter::keyed(Quota::per_second(at_least_one(
                REQUESTS_PER_USER_PER_S,
            )))),
            attempts: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
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
            storing: Arc::new(Semaphore::new(1)),
        }
    }

    /// Whether the user may send one more request now.
    pub(crate) fn allow_request(&self, user: &String) -> bool {
        self.users.check_key(user).is_ok()
    }

    /// A permit for one more response to the user, if available.
    pub(crate) fn response_permit(&self, user: &str) -> Option<ResponsePermit> {
        self.responses.take(user.to_owned())
    }

    /// Whether the address may fail to authenticate once more.
    pub(crate) fn allow_attempt(&self, address: IpAddr) -> bool {
        self.attempts.check_key(&address).is_ok()
    }

    /// Whether the registry may be asked about one more secret from the address that did not authenticate recently.
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

    /// Permit to store a chunk of an import. Only one chunk is stored at a time, so that gateways wait for at most
    /// one.
    pub(crate) async fn storing_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.storing.acquire().await.ok()
    }

    /// Whether the gateway may register once more now.
    pub(crate) fn allow_registration(&self, gateway: GatewayId) -> bool {
        self.registrations.check_key(&gateway).is_ok()
    }

    /// Removes inactive users and addresses.
    pub(crate) fn shrink(&self) {
        self.users.retain_recent();
        self.users.shrink_to_fit();
        self.attempts.retain_recent();
        self.attempts.shrink_to_fit();
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
