//! The switch's clock, microseconds since its start, against this machine's boot-time clock.

use std::time::{Duration, Instant};

use super::error::SwitchError;
use super::link::Link;
use crate::host;

/// Where a packet goes that is only to write the clock: simple_switch's drop port.
const NOWHERE: u16 = 511;
/// Between two looks at the clock's register.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// A packet that was lost is sent again.
const SEND_AGAIN: Duration = Duration::from_millis(200);
/// After that the switch has no CPU port, or no CPU.
const WAIT: Duration = Duration::from_secs(5);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    switch_us: u64,
    boot_us: u64,
    /// When the switch's clock was 0, on the boot-time clock: no earlier than that.
    zero_us: i128,
}

impl Reading {
    /// Sends a packet through the CPU port, which writes the clock, and waits until it has. Boot-time is read after that:
    /// fresh values end early by as long as this took, never late.
    ///
    /// Times that the switch tells are told on by the `earlier` reading, unless this one contradicts it: the end of a lease is
    /// the same whenever somebody asks, however long a reading took.
    pub fn take(link: &Link, earlier: Option<&Self>) -> Result<Self, SwitchError> {
        let (start, asked_us) = (Instant::now(), boot_us());
        let [before] = link.cells([("clock_us", 0)])?;
        let mut sent = None;
        loop {
            if sent.is_none_or(|sent: Instant| sent.elapsed() > SEND_AGAIN) {
                link.packet_out(NOWHERE, 0, Vec::new())?;
                sent = Some(Instant::now());
            }
            let [now] = link.cells([("clock_us", 0)])?;
            if now != before {
                let switch_us = u64::try_from(now).unwrap_or(u64::MAX);
                return Ok(Self::between(asked_us, switch_us, boot_us(), earlier));
            }
            // The first that is sent, by a port that the switch has not.
            let has_no_port = earlier.is_none() && link.has_refused();
            if has_no_port || start.elapsed() > WAIT {
                return Err(SwitchError::Clock);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// The switch read its clock between two moments of the boot-time clock.
    fn between(asked_us: u64, switch_us: u64, boot_us: u64, earlier: Option<&Self>) -> Self {
        let zero_at = |boot_us: u64| i128::from(boot_us) - i128::from(switch_us);
        let possible = zero_at(asked_us)..=zero_at(boot_us);
        let known = earlier
            .map(|earlier| earlier.zero_us)
            .filter(|zero_us| possible.contains(zero_us));
        Self {
            switch_us,
            boot_us,
            zero_us: known.unwrap_or(*possible.end()),
        }
    }

    /// The switch's clock at this moment of the boot-time clock.
    pub fn switch_us(&self, boot_us: u64) -> u64 {
        (self.switch_us + boot_us).saturating_sub(self.boot_us)
    }

    /// The boot-time clock at this moment of the switch's.
    pub fn boot_us(&self, switch_us: u64) -> u64 {
        u64::try_from(self.zero_us + i128::from(switch_us)).unwrap_or(0)
    }
}

fn boot_us() -> u64 {
    host::now().boot_ns / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reading_moves_no_lease_and_a_clock_that_went_on_does() {
        let first = Reading::between(990_000, 0, 1_000_000, None);
        assert_eq!(first.boot_us(500), 1_000_500);
        // Asked at 5 s of the same clock; the answer took 2 s to come, or to be asked for.
        for (asked_us, boot_us) in [(6_000_000, 8_000_000), (4_000_000, 6_000_000)] {
            let slow = Reading::between(asked_us, 5_000_000, boot_us, Some(&first));
            assert_eq!(slow.boot_us(500), first.boot_us(500));
            // What ends early may not end late.
            assert!(slow.switch_us(9_000_000) <= first.switch_us(9_000_000));
        }
        // The machine slept for a minute, the switch did not.
        let woken = Reading::between(65_000_000, 5_000_000, 65_000_100, Some(&first));
        assert_eq!(woken.boot_us(500), 60_000_600);
        assert_eq!(Reading::between(0, 10, 5, None).boot_us(3), 0);
    }
}
