//! The clock of sessions.

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_BOOTTIME, milliseconds. This clock includes the time in suspend, so that a session also expires while the device is
/// suspended (LAP/1 1.5).
pub(crate) fn boot_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1000) + nanoseconds / 1_000_000
}
