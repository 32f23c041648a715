//! Time is an argument: nothing in this crate reads a clock.
//!
//! Two clocks are told apart because they answer different questions. The monotonic clock stops while the machine
//! is suspended and measures the age of the freshness value (LAP/1 1.4.1). The boot-time clock goes on through
//! suspend, so a lease cannot be stretched by closing a lid (LAP/1 1.4.1).

/// The moment at which something is handled, on both clocks, milliseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// `CLOCK_MONOTONIC`, ms.
    pub monotonic_ms: u64,
    /// `CLOCK_BOOTTIME`, ms.
    pub boot_ms: u64,
}

/// A moment on the monotonic clock, ms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Monotonic(pub u64);

/// A moment on the boot-time clock, ms.
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

    /// The same moment `ms` later, without a suspend in between.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self {
            monotonic_ms: self.monotonic_ms.saturating_add(ms),
            boot_ms: self.boot_ms.saturating_add(ms),
        }
    }

    /// The moment of waking from a suspend of `ms`: only the boot-time clock went on.
    #[must_use]
    pub fn plus_suspend_ms(self, ms: u64) -> Self {
        Self {
            boot_ms: self.boot_ms.saturating_add(ms),
            ..self
        }
    }
}

impl Monotonic {
    /// How much later this is than `earlier`, ms. A reading from another CPU's coarse clock may lie a tick before
    /// `earlier`; that counts as no time passed.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The whole second that this lies in, which is the window of rate limits.
    #[must_use]
    pub fn second(self) -> u64 {
        self.0 / 1000
    }
}

impl BootTime {
    /// Whole seconds, as leases are kept in a device's line. Saturates after 136 years.
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
