//! Limits the rate of an operation.

/// Allows at most a given number of operations per second of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct RateWindow {
    second: u64,
    count: u64,
}

impl RateWindow {
    /// Returns whether the limit allows one more operation in the current second. Counts an allowed operation.
    pub(crate) fn allows(&mut self, monotonic_ns: u64, per_s: u32) -> bool {
        let second = monotonic_ns / 1_000_000_000;
        if self.second != second {
            *self = Self { second, count: 0 };
        }
        let is_allowed = self.count < u64::from(per_s);
        self.count += u64::from(is_allowed);
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_window_restarts_with_each_second() {
        let mut window = RateWindow::default();
        let allowed = |window: &mut RateWindow, ns| (0..3).filter(|_| window.allows(ns, 2)).count();
        assert_eq!(allowed(&mut window, 999_999_999), 2);
        assert_eq!(allowed(&mut window, 1_000_000_000), 2);
        assert_eq!(allowed(&mut window, 1_999_999_999), 0);
    }
}
