//! Clocks and randomness of the process.

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_controller::trust::Timestamps;
use linewarden_link::ServerEnvironment;
use linewarden_registry::{BootId, BootTimestamp};
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since 1970-01-01 UTC.
pub(crate) fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |duration| {
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Seconds since 1970-01-01 UTC.
pub(crate) fn now_s() -> u64 {
    now_ms() / 1000
}

/// Clocks and randomness of this machine.
pub(crate) struct MachineClock {
    boot: Option<BootId>,
}

impl MachineClock {
    pub(crate) fn new() -> Self {
        Self { boot: boot_id() }
    }
}

/// Nanoseconds since the boot of this machine, including time in suspend.
fn boot_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Reads the boot ID of this machine.
fn boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let bytes = hex::decode(digits).ok()?;
    bytes.try_into().ok().map(BootId)
}

impl ServerEnvironment for MachineClock {
    fn timestamps(&self) -> Timestamps {
        Timestamps {
            now_ns: boot_ns(),
            now_s: now_s(),
        }
    }

    fn boot_timestamp(&self) -> Option<BootTimestamp> {
        Some(BootTimestamp {
            boot_id: self.boot?,
            ns: i64::try_from(boot_ns()).unwrap_or(i64::MAX),
        })
    }

    fn fill_random(&self, bytes: &mut [u8]) -> bool {
        getrandom::fill(bytes).is_ok()
    }
}
