//! How much anybody may ask.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use linewarden_protocol::ids::GatewayId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::shares::{Share, Shares};

/// Questions a second of one user, and how many at once.
const USER_PER_S: u32 = 5_000;
/// Answers of one user on their way at once, events included: those that nobody reads are kept for a minute, of a third of a MiB each.
const ANSWERS_OF_USER_MAX: usize = 512;
/// Attempts to come in a minute from one address.
const ATTEMPTS_PER_MINUTE: u32 = 30;
/// Secrets a minute from one address, and how many at once, that the registry is asked about though nobody has come in by them lately:
/// ten times as many as are refused with a word, so that who comes first behind the address of somebody who guesses has a chance.
const LOOK_UPS_PER_MINUTE: u32 = 300;

/// Streams of events of one user at once: browsers and programs that listen.
const STREAMS_OF_USER_MAX: usize = 100;

/// Imports of one user at once, and of all: each has three chunks of devices in memory, and all store one after the other.
const IMPORTS_OF_USER_MAX: usize = 4;
const IMPORTS_MAX: usize = 16;

/// Registrations of one gateway: each is a fence and an entry of the journal.
const REGISTRATIONS_PER_MINUTE: u32 = 30;

/// Counts them.
#[derive(Clone)]
pub(crate) struct Limits {
    users: Arc<DefaultKeyedRateLimiter<String>>,
    attempts: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    look_ups: Arc<DefaultKeyedRateLimiter<IpAddr>>,
    registrations: Arc<DefaultKeyedRateLimiter<GatewayId>>,
    answers: Shares<String>,
    streams: Shares<String>,
    imports: Shares<String>,
    all_imports: Arc<Semaphore>,
    storing: Arc<Semaphore>,
}

/// A user's place for one import, until it is dropped.
pub(crate) type Importing = (Share<String>, OwnedSemaphorePermit);

/// A user's place for one answer, until it is dropped.
pub(crate) type Answering = Share<String>;

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
            look_ups: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
                LOOK_UPS_PER_MINUTE,
            )))),
            registrations: Arc::new(RateLimiter::keyed(Quota::per_minute(at_least_one(
                REGISTRATIONS_PER_MINUTE,
            )))),
            answers: Shares::new(ANSWERS_OF_USER_MAX),
            streams: Shares::new(STREAMS_OF_USER_MAX),
            imports: Shares::new(IMPORTS_OF_USER_MAX),
            all_imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            storing: Arc::new(Semaphore::new(1)),
        }
    }

    /// Whether a user may ask one more question now.
    pub(crate) fn may_ask(&self, user: &String) -> bool {
        self.users.check_key(user).is_ok()
    }

    /// A place for one more answer to a user, if there is one.
    pub(crate) fn answer(&self, user: &str) -> Option<Answering> {
        self.answers.take(user.to_owned())
    }

    /// Whether somebody who was refused may be looked at once more.
    pub(crate) fn may_try(&self, address: IpAddr) -> bool {
        self.attempts.check_key(&address).is_ok()
    }

    /// Whether the registry may be asked about one more secret of that address by which nobody has come in lately.
    pub(crate) fn may_look_up(&self, address: IpAddr) -> bool {
        self.look_ups.check_key(&address).is_ok()
    }

    /// A place for one more stream of events of a user, if there is one.
    pub(crate) fn listen(&self, user: &str) -> Option<Listening> {
        self.streams.take(user.to_owned())
    }

    /// A place for one more import of a user, if there is one.
    pub(crate) fn import(&self, user: &str) -> Option<Importing> {
        let share = self.imports.take(user.to_owned())?;
        let place = Arc::clone(&self.all_imports).try_acquire_owned().ok()?;
        Some((share, place))
    }

    /// The turn to store a chunk of an import, until it is dropped: a gateway that writes waits for no more than one of them.
    pub(crate) async fn store(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.storing.acquire().await.ok()
    }

    /// Whether a gateway may register once more now.
    pub(crate) fn may_register(&self, gateway: GatewayId) -> bool {
        self.registrations.check_key(&gateway).is_ok()
    }

    /// Forgets who has not asked for a while.
    pub(crate) fn shrink(&self) {
        self.users.retain_recent();
        self.users.shrink_to_fit();
        self.attempts.retain_recent();
        self.attempts.shrink_to_fit();
        self.look_ups.retain_recent();
        self.look_ups.shrink_to_fit();
        self.registrations.retain_recent();
        self.registrations.shrink_to_fit();
    }

    /// From one time to forget to the next.
    pub(crate) const SHRINK_EVERY: Duration = Duration::from_secs(60);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_asks_without_end_is_slowed_down_and_nobody_else_is() {
        let limits = Limits::new();
        let [alice, bob] = ["alice", "bob"].map(str::to_owned);
        let asked = (0..10 * USER_PER_S).filter(|_| limits.may_ask(&alice)).count();
        // At once, and what comes again while this is counted.
        assert!(asked >= USER_PER_S as usize, "{asked}");
        assert!(asked < 10 * USER_PER_S as usize, "{asked}");
        assert!(limits.may_ask(&bob));
    }

    #[test]
    fn imports_are_few_of_a_user_and_of_all() {
        let limits = Limits::new();
        let users = IMPORTS_MAX / IMPORTS_OF_USER_MAX;
        let mut places = Vec::new();
        for user in 0..users {
            let user = user.to_string();
            places.extend((0..IMPORTS_OF_USER_MAX).map(|_| limits.import(&user).unwrap()));
            assert!(limits.import(&user).is_none(), "one more of {user}");
        }
        assert!(limits.import("another").is_none(), "one more of all");
        places.pop();
        assert!(limits.import("0").is_none(), "the place was another's");
        let _place = limits.import("another").unwrap();
        assert!(limits.import("yet another").is_none());
    }
}
