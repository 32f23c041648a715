//! Retries with exponential backoff.

use std::time::Duration;

use linewarden_api::ABANDONED_AFTER_S;
use tokio::time::Instant;

use crate::error::ClientError;
use crate::request::Result;

/// The first delay. Each retry doubles the delay, up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Minimum retry timeout while the controller still executes an earlier attempt. After [`ABANDONED_AFTER_S`] the
/// controller abandons the idempotency key of that attempt, and the next retry executes the request.
const IN_PROGRESS_TIMEOUT: Duration = Duration::from_secs(ABANDONED_AFTER_S + 10);

/// Determines the retry delays. The timeout starts with the first attempt, or with the first error of a stream.
pub(crate) struct RetryTimer {
    started: Instant,
    timeout: Duration,
    backoff: Duration,
}

impl RetryTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            started: Instant::now(),
            timeout,
            backoff: BACKOFF_FIRST,
        }
    }

    /// Waits before a retry: for the delay that the controller requested, or with exponential backoff.
    ///
    /// # Errors
    /// Returns `error` if a retry cannot succeed, or if the delay would exceed the timeout.
    pub(crate) async fn wait_or_fail(&mut self, error: ClientError) -> Result<()> {
        let Some(delay) = self.next_delay(&error, self.started.elapsed()) else {
            return Err(error);
        };
        tracing::warn!(%error, retry_in_ms = delay.as_millis() as u64, "request failed; retrying");
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// The delay before the next retry; `None` if a retry cannot succeed, or if the delay would exceed the timeout.
    fn next_delay(&mut self, error: &ClientError, elapsed: Duration) -> Option<Duration> {
        let timeout = match error.code() {
            Some("in_progress") => self.timeout.max(IN_PROGRESS_TIMEOUT),
            _ => self.timeout,
        };
        let delay = error.retry_after().unwrap_or(self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
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

    /// The total delay and the number of retries for a repeated error.
    fn retries_of(timeout_s: u64, error: &ClientError) -> (Duration, u32) {
        let mut retry_timer = RetryTimer::new(Duration::from_secs(timeout_s));
        let (mut total_delay, mut retries) = (Duration::ZERO, 0);
        while let Some(delay) = retry_timer.next_delay(error, total_delay) {
            total_delay += delay;
            retries += 1;
        }
        (total_delay, retries)
    }

    #[test]
    fn transient_errors_are_retried_until_the_timeout() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        // Permanent errors are reported at once.
        assert_eq!(retries_of(60, &refused("conflict", 409, None)), (s(0), 0));
        // Exponential: 0.1, 0.2, 0.4, 0.8, 1.6 and then 2 s.
        assert_eq!(retries_of(10, &refused("unavailable", 503, None)), (ms(9_100), 8));
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
}
