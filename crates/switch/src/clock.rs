//! Clock of the switch.

use rustix::time::{ClockId, clock_gettime};

/// Counts microseconds since the start of the switch. The time includes system suspend (CLOCK_BOOTTIME), so a suspend does
/// not extend a deadline of a program.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start_us: u64,
}

impl Clock {
    /// Starts the clock at 0.
    #[must_use]
    pub fn start() -> Self {
        Self { start_us: boot_us() }
    }

    /// Current time, µs.
    #[must_use]
    pub fn now_us(self) -> u64 {
        boot_us().saturating_sub(self.start_us)
    }
}

fn boot_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let [seconds, nanoseconds] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000 + nanoseconds / 1000
}
