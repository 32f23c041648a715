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
    /// When the switch's clock was 0, on the boot-time clock: between these two, by this reading and those before it.
    possible: (i128, i128),
    /// What is told of it, which was the later of the two when it was chosen.
    zero_us: i128,
}

impl Reading {
    /// Sends a packet through the CPU port, which writes the clock, and waits until it has. Boot-time is read after that:
    /// fresh values end early by as long as this took, never late.
    ///
    /// Times that the switch tells are told on as by the `earlier` reading, unless the two cannot both be: the end of a lease
    /// is the same whenever somebody asks, however long either reading took. A quick reading does not contradict a slow one
    /// that knew less.
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
        // Both clocks are cut to whole microseconds, so that either end may be one off.
        let (from, to) = (zero_at(asked_us) - 1, zero_at(boot_us) + 1);
        let (possible, zero_us) = earlier
            .map(|earlier| {
                let (earliest, latest) = earlier.possible;
                ((from.max(earliest), to.min(latest)), earlier.zero_us)
            })
            .filter(|((from, to), _)| from <= to)
            .unwrap_or(((from, to), to));
        Self {
            switch_us,
            boot_us,
            possible,
            zero_us,
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
    fn a_slow_reading_moves_no_lease() {
        let first = Reading::between(990_000, 0, 1_000_000, None);
        assert_eq!(first.boot_us(500), 1_000_501);
        // Asked at 5 s of the same clock; the answer took 2 s to come, or to be asked for.
        for (asked_us, boot_us) in [(6_000_000, 8_000_000), (4_000_000, 6_000_000)] {
            let slow = Reading::between(asked_us, 5_000_000, boot_us, Some(&first));
            assert_eq!(slow.boot_us(500), first.boot_us(500));
            // What ends early may not end late.
            assert!(slow.switch_us(9_000_000) <= first.switch_us(9_000_000));
        }
    }

    #[test]
    fn quick_readings_after_a_slow_one_move_none_until_they_contradict_each_other() {
        let first = Reading::between(1_000_000, 0, 1_900_000, None);
        let quick = Reading::between(6_199_000, 5_000_000, 6_200_000, Some(&first));
        let quicker = Reading::between(7_199_900, 6_000_000, 7_200_000, Some(&quick));
        assert_eq!(quicker.boot_us(500), first.boot_us(500));
        let moved = Reading::between(8_700_000, 7_000_000, 8_700_100, Some(&quicker));
        assert_eq!(moved.boot_us(500), 1_700_601);
    }

    #[test]
    fn a_clock_that_keeps_time_never_contradicts_itself() {
        let zero_ns = 7_000_900;
        let readings = (1..1_000).map(|number| zero_ns + number * 999_983);
        readings.fold(None, |earlier: Option<Reading>, ns| {
            let us = ns / 1_000;
            let reading = Reading::between(us, (ns - zero_ns) / 1_000, us, earlier.as_ref());
            assert!(earlier.is_none_or(|earlier| earlier.zero_us == reading.zero_us));
            Some(reading)
        });
    }

    #[test]
    fn a_machine_that_slept_moves_them_all() {
        let first = Reading::between(990_000, 0, 1_000_000, None);
        // For a minute; the switch did not.
        let woken = Reading::between(65_000_000, 5_000_000, 65_000_100, Some(&first));
        assert_eq!(woken.boot_us(500), 60_000_601);
        assert_eq!(Reading::between(0, 10, 5, None).boot_us(3), 0);
    }
}
