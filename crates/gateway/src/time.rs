//! The two clocks of a gateway (LAP/1 1.4.1).

/// The time on both clocks, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// `CLOCK_MONOTONIC`, which stops during a suspend.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME`, which continues during a suspend.
    pub boot_ns: u64,
}

impl Clock {
    /// Reads both clocks. A thread switch between the two readings would look like a suspend, so the readings are
    /// repeated (up to 8 times) until they are close together.
    #[must_use]
    pub fn now() -> Self {
        const APART_NS: u64 = 1_000_000;
        let mut pair = Self::read();
        for _ in 0..8 {
            if nanoseconds(rustix::time::ClockId::Monotonic).saturating_sub(pair.monotonic_ns) < APART_NS {
                break;
            }
            pair = Self::read();
        }
        pair
    }

    fn read() -> Self {
        Self {
            monotonic_ns: nanoseconds(rustix::time::ClockId::Monotonic),
            boot_ns: nanoseconds(rustix::time::ClockId::Boottime),
        }
    }

    /// Time that the machine was suspended since its start.
    #[must_use]
    pub(crate) fn suspended_ns(self) -> u64 {
        self.boot_ns.saturating_sub(self.monotonic_ns)
    }
}

fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance_and_boot_time_is_not_behind() {
        let first = Clock::now();
        let second = Clock::now();
        assert!(second.monotonic_ns >= first.monotonic_ns);
        assert!(second.boot_ns >= first.boot_ns);
        assert!(first.boot_ns >= first.monotonic_ns);
    }
}
