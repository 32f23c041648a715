//! The switch's clock, microseconds since its start, against this machine's boot-time clock.

use std::time::{Duration, Instant};

use super::error::SwitchError;
use super::link::Link;
use crate::host;

/// Where a packet goes that is only to write the clock: simple_switch's drop port.
const NOWHERE: u16 = 511;
/// Between two looks at the clock's register.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// After that the switch has no CPU port, or no CPU.
const WAIT: Duration = Duration::from_secs(5);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    switch_us: u64,
    boot_us: u64,
}

impl Reading {
    /// Sends a packet through the CPU port, which writes the clock, and waits until it has. Boot-time is read after that:
    /// fresh values end early by as long as this took, never late.
    pub fn take(link: &Link) -> Result<Self, SwitchError> {
        let [before] = link.cells([("clock_us", 0)])?;
        let start = Instant::now();
        link.touch(NOWHERE)?;
        loop {
            let [now] = link.cells([("clock_us", 0)])?;
            if now != before {
                return Ok(Self {
                    switch_us: u64::try_from(now).unwrap_or(u64::MAX),
                    boot_us: host::now().boot_ns / 1000,
                });
            }
            if start.elapsed() > WAIT {
                return Err(SwitchError::Clock);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// The switch's clock at this moment of the boot-time clock.
    pub fn switch_us(&self, boot_us: u64) -> u64 {
        (self.switch_us + boot_us).saturating_sub(self.boot_us)
    }

    /// The boot-time clock at this moment of the switch's.
    pub fn boot_us(&self, switch_us: u64) -> u64 {
        (self.boot_us + switch_us).saturating_sub(self.switch_us)
    }
}
