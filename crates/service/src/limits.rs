//! How much anybody may ask.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::shares::{Share, Shares};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Questions a second of one user, and how many at once.
const USER_PER_S: u32 = 5_000;
/// Attempts to come in a minute from one address.
const ATTEMPTS_PER_MINUTE: u32 = 30;

/// Streams of events of one user at once: browsers and programs that listen.
const STREAMS_OF_USER_MAX: usize = 100;

/// Counts them.
#[derive(Clone)]
pub(crate) struct Limits {
    users: Arc<DefaultKeyedRateLimiter<String>>,
    attempts: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    streams: Shares<String>,
}

/// A user's place for one stream, until it is dropped.
pub(crate) type Listening = Share<String>;

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
            streams: Shares::new(STREAMS_OF_USER_MAX),
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

    /// A place for one more stream of events of a user, if there is one.
    pub(crate) fn listen(&self, user: &str) -> Option<Listening> {
        self.streams.take(user.to_owned())
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
