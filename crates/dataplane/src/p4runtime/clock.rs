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
    /// Sends packets through the CPU port, which write the clock, until the switch has read it after the question ([`Watch`]). Boot-time is
    /// read after that: fresh values end early by as long as this took, never late.
    ///
    /// Times that the switch tells are told on as by the `earlier` reading, unless the two cannot both be: the end of a lease
    /// is the same whenever somebody asks, however long either reading took. A quick reading does not contradict a slow one
    /// that knew less.
    pub fn take(link: &Link, earlier: Option<&Self>) -> Result<Self, SwitchError> {
        let (mut start, asked_us) = (Instant::now(), boot_us());
        let mut watch = Watch::after(clock_us(link)?);
        let mut sent = None;
        loop {
            if sent.is_none_or(|sent: Instant| sent.elapsed() > SEND_AGAIN) {
                link.packet_out(NOWHERE, 0, Vec::new())?;
                sent = Some(Instant::now());
            }
            match watch.see(clock_us(link)?) {
                Seen::Nothing => {}
                Seen::Unknown => {
                    // It has a port and a processor, and does not have to be quick with both packets together.
                    (start, sent) = (Instant::now(), None);
                    continue;
                }
                Seen::AfterQuestion(switch_us) => {
                    return Ok(Self::between(asked_us, switch_us, boot_us(), earlier));
                }
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

/// What its last packet through the CPU port wrote.
fn clock_us(link: &Link) -> Result<u64, SwitchError> {
    let [us] = link.cells([("clock_us", 0)])?;
    Ok(u64::try_from(us).unwrap_or(u64::MAX))
}

/// The clock's register, read again and again after a question.
///
/// The first time that is written after it may be from before it: the switch gives one time to all frames of a burst and reads the clock
/// before it takes them, and a frame of somebody else's may have waited. Another time is that of a later burst, which began after the
/// first was written, so after the question. (simple_switch has each frame's own arrival instead: two that came before the question, and
/// waited until after it, would still deceive, by as long as they waited.)
#[derive(Debug)]
struct Watch {
    held_us: u64,
    changed: bool,
}

/// What a look at the register tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Nobody has written since.
    Nothing,
    /// Written after the question, with a time that may be from before it: another packet is wanted.
    Unknown,
    /// The switch read this time after the question.
    AfterQuestion(u64),
}

impl Watch {
    /// From when the question was asked, and the register held this.
    const fn after(held_us: u64) -> Self {
        Self {
            held_us,
            changed: false,
        }
    }

    fn see(&mut self, now_us: u64) -> Seen {
        if now_us == self.held_us {
            return Seen::Nothing;
        }
        self.held_us = now_us;
        if std::mem::replace(&mut self.changed, true) {
            Seen::AfterQuestion(now_us)
        } else {
            Seen::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

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

    /// A switch whose worker reads the clock, takes what has come and writes, and may lose its processor before each of these.
    struct Worker {
        rng: ChaCha8Rng,
        boot_us: u64,
        /// One of these is under way: read, with this time; taken, if there was any frame.
        burst: (u64, bool),
        waiting: u32,
        register_us: u64,
    }

    const ZERO_US: u64 = 3_000;

    impl Worker {
        /// The worker's next step, and the time that it takes: mostly little.
        fn step(&mut self) {
            let busy = self.rng.random_ratio(1, 20);
            self.boot_us += self.rng.random_range(0..if busy { 300_000 } else { 300 });
            match self.burst {
                (read_us, true) => {
                    self.register_us = read_us;
                    self.burst = (self.boot_us - ZERO_US, false);
                }
                (read_us, false) if self.waiting > 0 => {
                    self.waiting = 0;
                    self.burst = (read_us, true);
                }
                _ => self.burst = (self.boot_us - ZERO_US, false),
            }
        }

        /// Some steps, among which somebody else sends now and then.
        fn go_on(&mut self) -> u64 {
            for _ in 0..self.rng.random_range(0..4) {
                self.waiting += u32::from(self.rng.random_ratio(1, 10));
                self.step();
            }
            self.register_us
        }

        fn reading(&mut self, earlier: Option<&Reading>) -> Reading {
            // It may just have read the clock, and have lost its processor.
            if self.rng.random_ratio(1, 5) {
                self.boot_us += self.rng.random_range(0..300_000);
            }
            let asked_us = self.boot_us;
            let mut watch = Watch::after(self.go_on());
            self.waiting += 1;
            for _ in 0..1_000_000 {
                match watch.see(self.go_on()) {
                    Seen::Nothing => self.waiting += u32::from(self.rng.random_ratio(1, 50)),
                    Seen::Unknown => self.waiting += 1,
                    Seen::AfterQuestion(us) => {
                        assert!(
                            us + ZERO_US >= asked_us,
                            "from {} us before the question",
                            asked_us - us - ZERO_US
                        );
                        return Reading::between(asked_us, us, self.boot_us, earlier);
                    }
                }
            }
            panic!("no time was seen");
        }
    }

    #[test]
    fn a_busy_switch_and_frames_of_others_move_no_lease() {
        for seed in 0..200 {
            let mut worker = Worker {
                rng: ChaCha8Rng::seed_from_u64(seed),
                boot_us: 1_000_000,
                burst: (0, false),
                waiting: 0,
                register_us: 0,
            };
            let first = worker.reading(None);
            let mut last = first;
            for number in 0..100 {
                last = worker.reading(Some(&last));
                assert_eq!(last.zero_us, first.zero_us, "seed {seed}, reading {number}");
            }
        }
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
