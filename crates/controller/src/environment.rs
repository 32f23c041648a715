//! Clocks and random numbers of a controller.

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_types::{BootId, BootTimestamp};
use rustix::time::{ClockId, clock_gettime};

use crate::trust::Timestamps;

/// Clocks and random numbers, which the caller provides.
pub trait Environment: Send + Sync {
    /// The current time.
    fn timestamps(&self) -> Timestamps;
    /// The current boot-time clock of this machine; `None` if the kernel does not provide the boot id.
    fn boot_timestamp(&self) -> Option<BootTimestamp>;
    /// Fills the slice with random bytes; returns `false` if the source fails.
    fn fill_random(&self, bytes: &mut [u8]) -> bool;
}

/// `N` random bytes; `None` if the source fails.
pub fn random<const N: usize>(environment: &dyn Environment) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    environment.fill_random(&mut bytes).then_some(bytes)
}

/// Clocks and random numbers of this machine.
#[derive(Debug)]
pub struct MachineEnvironment {
    boot: Option<BootId>,
}

impl MachineEnvironment {
    /// Reads the boot id.
    #[must_use]
    pub fn new() -> Self {
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
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| digits.len() == 32)?;
    Some(BootId(number.to_be_bytes()))
}

impl Default for MachineEnvironment {
    fn default() -> Self {
        Self::new()
    }
}

impl Environment for MachineEnvironment {
    fn timestamps(&self) -> Timestamps {
        Timestamps {
            now_ns: boot_ns(),
            now_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since_1970| since_1970.as_secs()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_constant_and_not_zero() {
        assert_ne!(boot_id().unwrap(), BootId([0; 16]));
        assert_eq!(boot_id(), boot_id());
    }
}
