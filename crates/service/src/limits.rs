//! How much anybody may ask.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Questions a second of one user, and how many at once.
const USER_PER_S: u32 = 5_000;
/// Attempts to come in a minute from one address.
const ATTEMPTS_PER_MINUTE: u32 = 30;

/// Counts them.
#[derive(Clone)]
pub(crate) struct Limits {
    users: Arc<DefaultKeyedRateLimiter<String>>,
    attempts: Arc<DefaultKeyedRateLimiter<IpAddr>>,
}

const fn at_least_one(count: u32) -> NonZeroU32 {
    match NonZeroU32::new(count) {
        Some(count) => count,
        None => NonZeroU32::MIN,
    }
}

impl Limits {
    pub(crate) fn new() -> Self {
        Self {
            users: Arc::new(RateLimiter::keyed(Quota::per_second(at_least_one(USER_PER_S)))),
            attempts: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
                ATTEMPTS_PER_MINUTE,
            )))),
        }
    }

    /// Whether a user may ask one more question now.
    pub(crate) fn may_ask(&self, user: &String) -> bool {
        self.users.check_key(user).is_ok()
    }

    /// Whether somebody who was refused may be looked at once more.
    pub(crate) fn may_try(&self, address: IpAddr) -> bool {
        self.attempts.check_key(&address).is_ok()
    }

    /// Forgets who has not asked for a while.
    pub(crate) fn shrink(&self) {
        self.users.retain_recent();
        self.users.shrink_to_fit();
        self.attempts.retain_recent();
        self.attempts.shrink_to_fit();
    }

    /// From one time to forget to the next.
    pub(crate) const SHRINK_EVERY: Duration = Duration::from_secs(60);
}
