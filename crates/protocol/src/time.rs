//! Time is an argument: this crate reads no clock.
//!
//! Two clocks have separate types. The monotonic clock stops while the machine is suspended and measures the age of
//! the freshness value (LAP/1 1.4.1). The boot-time clock continues during suspend, so that suspending the machine
//! does not extend a session (LAP/1 1.4.1).

/// The time of an event on both clocks, milliseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// `CLOCK_MONOTONIC`, ms.
    pub monotonic_ms: u64,
    /// `CLOCK_BOOTTIME`, ms.
    pub boot_ms: u64,
}

/// A time on the monotonic clock, ms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Monotonic(pub u64);

/// A time on the boot-time clock, ms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct BootTime(pub u64);

impl Now {
    /// The monotonic clock's reading.
    #[must_use]
    pub fn monotonic(self) -> Monotonic {
        Monotonic(self.monotonic_ms)
    }

    /// The boot-time clock's reading.
    #[must_use]
    pub fn boot(self) -> BootTime {
        BootTime(self.boot_ms)
    }

    /// The time `ms` later, without a suspend in between.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self {
            monotonic_ms: self.monotonic_ms.saturating_add(ms),
            boot_ms: self.boot_ms.saturating_add(ms),
        }
    }

    /// The time of waking from a suspend of `ms`: only the boot-time clock advances.
    #[must_use]
    pub fn plus_suspend_ms(self, ms: u64) -> Self {
        Self {
            boot_ms: self.boot_ms.saturating_add(ms),
            ..self
        }
    }
}

impl Monotonic {
    /// The time since `earlier`, ms. A reading from another CPU's coarse clock may be a tick before `earlier`; the
    /// result is then 0.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The whole second of this time, the window of rate limits.
    #[must_use]
    pub fn second(self) -> u64 {
        self.0 / 1000
    }
}

impl BootTime {
    /// Whole seconds, the unit of session expiry in a device's line. Saturates after 136 years.
    #[must_use]
    pub fn seconds(self) -> u32 {
        u32::try_from(self.0 / 1000).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspend_moves_only_the_boot_clock() {
        let start = Now {
            monotonic_ms: 5_000,
            boot_ms: 9_000,
        };
        let awake = start.plus_ms(1).plus_suspend_ms(60_000);
        assert_eq!(awake.monotonic().since_ms(start.monotonic()), 1);
        assert_eq!(awake.boot().seconds(), 69);
        assert_eq!(start.monotonic().since_ms(awake.monotonic()), 0);
    }
}
