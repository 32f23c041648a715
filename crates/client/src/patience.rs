//! How long it is worth asking again.

use std::time::Duration;

use linewarden_service::wire::GIVEN_UP_S;
use tokio::time::Instant;

use crate::ask::Result;
use crate::error::ClientError;

/// From one try to the next, at first; each time twice as long.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// What is under way is over once the controller gives its key up, and is done then by whoever asks next: that, and time for a few tries.
const UNDER_WAY_MAX: Duration = Duration::from_secs(GIVEN_UP_S + 10);

/// From the first try, or the first trouble, on.
pub(crate) struct Patience {
    began: Instant,
    max: Duration,
    backoff: Duration,
}

impl Patience {
    pub(crate) fn new(max: Duration) -> Self {
        Self {
            began: Instant::now(),
            max,
            backoff: BACKOFF_FIRST,
        }
    }

    /// Waits before the same is asked again: as long as the controller says, or ever longer.
    ///
    /// # Errors
    /// The same one, where that helps no more or would take too long.
    pub(crate) async fn bear(&mut self, error: ClientError) -> Result<()> {
        let Some(wait) = self.wait_after(&error, self.began.elapsed()) else {
            return Err(error);
        };
        tracing::warn!(%error, "asked again");
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// How long to wait where so long has been waited; not at all where that helps no more.
    fn wait_after(&mut self, error: &ClientError, waited: Duration) -> Option<Duration> {
        let max = match error.code() {
            Some("under_way") => self.max.max(UNDER_WAY_MAX),
            _ => self.max,
        };
        let wait = error.wait().unwrap_or(self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        (error.is_passing() && waited + wait <= max).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use linewarden_service::wire::ErrorDetail;

    use super::*;

    fn refused(code: &'static str, status: u16, wait: Option<Duration>) -> ClientError {
        ClientError::Refused {
            status,
            detail: ErrorDetail {
                code: code.into(),
                message: String::new(),
                field: None,
                stored: None,
            },
            wait,
        }
    }

    /// How long the same error is borne, and how often.
    fn borne(max_s: u64, error: &ClientError) -> (Duration, u32) {
        let mut patience = Patience::new(Duration::from_secs(max_s));
        let (mut waited, mut tries) = (Duration::ZERO, 0);
        while let Some(wait) = patience.wait_after(error, waited) {
            waited += wait;
            tries += 1;
        }
        (waited, tries)
    }

    #[test]
    fn the_same_is_asked_as_often_as_that_can_help() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        // What does not pass is told at once.
        assert_eq!(borne(60, &refused("conflict", 409, None)), (s(0), 0));
        // Ever longer: 0.1, 0.2, 0.4, 0.8, 1.6 and then 2 s.
        assert_eq!(borne(10, &refused("unavailable", 503, None)), (ms(9_100), 8));
        // As it is told, on a 503 as on a 429.
        assert_eq!(borne(10, &refused("unavailable", 503, Some(s(3)))), (s(9), 3));
        let limited = ClientError::RateLimited {
            server: String::new(),
            wait: s(4),
        };
        assert_eq!(borne(10, &limited), (s(8), 2));
        // What is under way is waited for until its key is given up, however short the patience.
        let (waited, _) = borne(0, &refused("under_way", 409, Some(s(1))));
        assert!(waited > s(GIVEN_UP_S), "{waited:?}");
    }
}
