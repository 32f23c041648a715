//! Retries with exponential backoff and jitter.

use std::time::Duration;

use linewarden_api::ABANDONED_AFTER_S;
use linewarden_protocol::backoff::{Backoff, random_part};
use tokio::time::Instant;

use crate::error::ClientError;
use crate::request::Result;

/// The first and the longest delay, less the jitter.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Minimum retry timeout while the controller still executes an earlier attempt. After [`ABANDONED_AFTER_S`] the
/// controller abandons the idempotency key of that attempt, and the next retry executes the request.
const IN_PROGRESS_TIMEOUT: Duration = Duration::from_secs(ABANDONED_AFTER_S + 10);

/// Determines the retry delays. The timeout starts with the first attempt, or with the first error of a stream.
pub(crate) struct RetryTimer {
    started: Instant,
    timeout: Duration,
    backoff: Backoff,
}

impl RetryTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            started: Instant::now(),
            timeout,
            backoff: Backoff::new(BACKOFF_FIRST, BACKOFF_MAX),
        }
    }

    /// Waits before a retry: at least for the delay that the controller requested, or with exponential backoff.
    ///
    /// # Errors
    /// Returns `error` if a retry cannot succeed, or if the delay would exceed the timeout.
    pub(crate) async fn wait_or_fail(&mut self, error: ClientError) -> Result<()> {
        // If the kernel has no random number, only the jitter is missing.
        let random = getrandom::u64().unwrap_or_default();
        let Some(delay) = self.next_delay(&error, self.started.elapsed(), random) else {
            return Err(error);
        };
        tracing::warn!(%error, retry_in_ms = delay.as_millis() as u64, "request failed; retrying");
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// The delay before the next retry; `None` if a retry cannot succeed, or if the delay would exceed the timeout.
    /// `random` selects the delay. A requested delay is the same for all clients of an overloaded controller, and
    /// therefore grows by up to a half.
    fn next_delay(&mut self, error: &ClientError, elapsed: Duration, random: u64) -> Option<Duration> {
        let timeout = match error.code() {
            Some("in_progress") => self.timeout.max(IN_PROGRESS_TIMEOUT),
            _ => self.timeout,
        };
        let backoff = self.backoff.next(random);
        let delay = error.retry_after().map_or(backoff, |requested| {
            requested + random_part(requested / 2, random)
        });
        (error.is_transient() && elapsed + delay <= timeout).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use linewarden_api::ErrorDetail;

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
            retry_after: wait,
        }
    }

    /// The total delay and the number of retries for a repeated error and a repeated random number.
    fn retries_with(random: u64, timeout_s: u64, error: &ClientError) -> (Duration, u32) {
        let mut retry_timer = RetryTimer::new(Duration::from_secs(timeout_s));
        let (mut total_delay, mut retries) = (Duration::ZERO, 0);
        while let Some(delay) = retry_timer.next_delay(error, total_delay, random) {
            total_delay += delay;
            retries += 1;
        }
        (total_delay, retries)
    }

    fn retries_of(timeout_s: u64, error: &ClientError) -> (Duration, u32) {
        retries_with(0, timeout_s, error)
    }

    #[test]
    fn transient_errors_are_retried_until_the_timeout() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        // Permanent errors are reported at once.
        assert_eq!(retries_of(60, &refused("conflict", 409, None)), (s(0), 0));
        // Exponential: half of 0.1, 0.2, 0.4, 0.8, 1.6 and then 2 s.
        assert_eq!(retries_of(5, &refused("unavailable", 503, None)), (ms(4_550), 8));
        // The delay that the controller requested, with status 503 and with status 429.
        assert_eq!(
            retries_of(10, &refused("unavailable", 503, Some(s(3)))),
            (s(9), 3)
        );
        let limited = ClientError::RateLimited {
            server: String::new(),
            retry_after: s(4),
        };
        assert_eq!(retries_of(10, &limited), (s(8), 2));
        // Even with a short timeout, a request in progress is retried until its key is abandoned.
        let (total_delay, _) = retries_of(0, &refused("in_progress", 409, Some(s(1))));
        assert!(total_delay > s(ABANDONED_AFTER_S), "{total_delay:?}");
    }

    #[test]
    fn clients_of_an_overloaded_controller_do_not_retry_at_the_same_moment() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        let unavailable = refused("unavailable", 503, Some(s(2)));
        assert_eq!(retries_with(0, 2, &unavailable), (s(2), 1));
        assert_eq!(retries_with(1 << 63, 3, &unavailable), (ms(2_500), 1));
        let unreachable = refused("unavailable", 503, None);
        let (total_delay, _) = retries_with(1 << 63, 1, &unreachable);
        assert_eq!(total_delay, ms(75 + 150 + 300));
    }
}
