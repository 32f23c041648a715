//! The switch's clock, in microseconds since the start of the switch, compared with this machine's boot-time clock.

use std::time::{Duration, Instant};

use super::error::SwitchError;
use super::switch_connection::SwitchConnection;
use crate::timestamps;

/// Destination of a packet that only has to update the clock: the drop port of simple_switch.
const DROP_PORT: u16 = 511;
/// Interval between two reads of the clock register.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// A packet that may have been lost is sent again after this time.
const RESEND_INTERVAL: Duration = Duration::from_millis(200);
/// After this time the switch is assumed to have no CPU port or no CPU.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The values of both clocks at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockReading {
    switch_us: u64,
    boot_us: u64,
    /// Earliest and latest boot-time, µs, at which the switch's clock can have been 0, from this and earlier readings.
    offset_bounds_us: (i128, i128),
    /// The boot-time, µs, that conversions assume for the time 0 of the switch: the upper bound of the reading that selected
    /// this value.
    offset_us: i128,
}

impl ClockReading {
    /// Sends packets through the CPU port, each of which makes the switch write its clock register, until the register
    /// contains a time that the switch read after the request ([`RegisterWatch`]). The boot-time clock is read after
    /// the switch's clock: fresh values expire early by the duration of the reading, never late.
    ///
    /// Conversions keep the offset of the `earlier` reading unless both readings contradict each other. The end of a
    /// session then always converts to the same time, however long a reading took. A quick reading does not contradict
    /// a slow one with wider bounds.
    pub fn take(connection: &SwitchConnection, earlier: Option<&Self>) -> Result<Self, SwitchError> {
        let (mut start, requested_us) = (Instant::now(), boot_us());
        let mut watch = RegisterWatch::after(clock_us(connection)?);
        let mut sent_at = None;
        loop {
            if sent_at.is_none_or(|sent_at: Instant| sent_at.elapsed() > RESEND_INTERVAL) {
                connection.packet_out(DROP_PORT, 0, Vec::new())?;
                sent_at = Some(Instant::now());
            }
            match watch.observe(clock_us(connection)?) {
                Observation::Unchanged => {}
                Observation::Ambiguous => {
                    // The port and the switch work; the second packet gets the full timeout, too.
                    (start, sent_at) = (Instant::now(), None);
                    continue;
                }
                Observation::AfterRequest(switch_us) => {
                    return Ok(Self::between(requested_us, switch_us, boot_us(), earlier));
                }
            }
            // The switch has rejected a packet before the first reading: the switch has no CPU port.
            let has_no_port = earlier.is_none() && connection.has_error();
            if has_no_port || start.elapsed() > TIMEOUT {
                return Err(SwitchError::ClockUnreadable);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// A reading of the switch's clock that was taken between two values of the boot-time clock.
    fn between(requested_us: u64, switch_us: u64, boot_us: u64, earlier: Option<&Self>) -> Self {
        let zero_at = |boot_us: u64| i128::from(boot_us) - i128::from(switch_us);
        // Both clocks are truncated to microseconds, so each bound may be off by one.
        let (from, to) = (zero_at(requested_us) - 1, zero_at(boot_us) + 1);
        let (bounds, zero_us) = earlier
            .map(|earlier| {
                let (earliest, latest) = earlier.offset_bounds_us;
                ((from.max(earliest), to.min(latest)), earlier.offset_us)
            })
            .filter(|((from, to), _)| from <= to)
            .unwrap_or(((from, to), to));
        Self {
            switch_us,
            boot_us,
            offset_bounds_us: bounds,
            offset_us: zero_us,
        }
    }

    /// The switch's clock at this time of the boot-time clock.
    pub fn switch_us(&self, boot_us: u64) -> u64 {
        (self.switch_us + boot_us).saturating_sub(self.boot_us)
    }

    /// The boot-time clock at this time of the switch's clock.
    pub fn boot_us(&self, switch_us: u64) -> u64 {
        u64::try_from(self.offset_us + i128::from(switch_us)).unwrap_or(0)
    }
}

fn boot_us() -> u64 {
    timestamps::now().boot_ns / 1000
}

/// The clock value that the latest packet through the CPU port wrote.
fn clock_us(connection: &SwitchConnection) -> Result<u64, SwitchError> {
    let [us] = connection.read_array([("clock_us", 0)])?;
    Ok(u64::try_from(us).unwrap_or(u64::MAX))
}

/// Watches the clock register after a request.
///
/// The first value that is written after the request may be a time before the request: the switch reads its clock, then
/// takes a burst, and assigns the time to all frames of the burst. A waiting frame of another sender may be in this
/// burst. The second value belongs to a later burst, which began after the first value was written and therefore after
/// the request. (simple_switch instead uses the arrival time of each frame: two frames that arrived before the request
/// and waited until after the request would cause an error as large as their wait.)
#[derive(Debug)]
struct RegisterWatch {
    last_us: u64,
    has_changed: bool,
}

/// The result of one read of the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observation {
    /// No packet has written the register since the previous read.
    Unchanged,
    /// Written after the request, but the time may precede the request: another packet is needed.
    Ambiguous,
    /// The switch read this time after the request.
    AfterRequest(u64),
}

impl RegisterWatch {
    /// Starts at the time of the request, when the register contains `register_us`.
    const fn after(register_us: u64) -> Self {
        Self {
            last_us: register_us,
            has_changed: false,
        }
    }

    fn observe(&mut self, now_us: u64) -> Observation {
        if now_us == self.last_us {
            return Observation::Unchanged;
        }
        self.last_us = now_us;
        if std::mem::replace(&mut self.has_changed, true) {
            Observation::AfterRequest(now_us)
        } else {
            Observation::Ambiguous
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn a_slow_reading_moves_no_session_end() {
        let first = ClockReading::between(990_000, 0, 1_000_000, None);
        assert_eq!(first.boot_us(500), 1_000_501);
        // The switch read its clock at 5 s. Then the reply took 2 s to arrive, or the request had taken 2 s.
        for (requested_us, boot_us) in [(6_000_000, 8_000_000), (4_000_000, 6_000_000)] {
            let slow = ClockReading::between(requested_us, 5_000_000, boot_us, Some(&first));
            assert_eq!(slow.boot_us(500), first.boot_us(500));
            // A value that expires early must not expire late.
            assert!(slow.switch_us(9_000_000) <= first.switch_us(9_000_000));
        }
    }

    #[test]
    fn quick_readings_after_a_slow_one_move_no_session_end_until_they_contradict() {
        let first = ClockReading::between(1_000_000, 0, 1_900_000, None);
        let quick = ClockReading::between(6_199_000, 5_000_000, 6_200_000, Some(&first));
        let quicker = ClockReading::between(7_199_900, 6_000_000, 7_200_000, Some(&quick));
        assert_eq!(quicker.boot_us(500), first.boot_us(500));
        let contradicting = ClockReading::between(8_700_000, 7_000_000, 8_700_100, Some(&quicker));
        assert_eq!(contradicting.boot_us(500), 1_700_601);
    }

    #[test]
    fn a_clock_that_keeps_time_never_contradicts_itself() {
        let zero_ns = 7_000_900;
        let readings = (1..1_000).map(|number| zero_ns + number * 999_983);
        readings.fold(None, |earlier: Option<ClockReading>, ns| {
            let us = ns / 1_000;
            let reading = ClockReading::between(us, (ns - zero_ns) / 1_000, us, earlier.as_ref());
            assert!(earlier.is_none_or(|earlier| earlier.offset_us == reading.offset_us));
            Some(reading)
        });
    }

    /// A simulated switch whose worker reads the clock, takes waiting frames and writes the register. The worker may
    /// lose its CPU before each step.
    struct Worker {
        rng: ChaCha8Rng,
        boot_us: u64,
        /// State of the burst: the clock value read, and whether frames were taken.
        burst: (u64, bool),
        /// Number of frames that wait for the worker.
        waiting: u32,
        register_us: u64,
    }

    const ZERO_US: u64 = 3_000;

    impl Worker {
        /// Executes the worker's next step. Advances the time by a short step or, if the worker loses its CPU, by a long step.
        fn step(&mut self) {
            let is_preempted = self.rng.random_ratio(1, 20);
            self.boot_us += self.rng.random_range(0..if is_preempted { 300_000 } else { 300 });
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

        /// Executes some steps, during which other senders occasionally send frames. Returns the clock register.
        fn run_steps(&mut self) -> u64 {
            for _ in 0..self.rng.random_range(0..4) {
                self.waiting += u32::from(self.rng.random_ratio(1, 10));
                self.step();
            }
            self.register_us
        }

        fn reading(&mut self, earlier: Option<&ClockReading>) -> ClockReading {
            // The worker may have read the clock and lost its CPU.
            if self.rng.random_ratio(1, 5) {
                self.boot_us += self.rng.random_range(0..300_000);
            }
            let requested_us = self.boot_us;
            let mut watch = RegisterWatch::after(self.run_steps());
            self.waiting += 1;
            for _ in 0..1_000_000 {
                match watch.observe(self.run_steps()) {
                    Observation::Unchanged => self.waiting += u32::from(self.rng.random_ratio(1, 50)),
                    Observation::Ambiguous => self.waiting += 1,
                    Observation::AfterRequest(us) => {
                        assert!(
                            us + ZERO_US >= requested_us,
                            "clock value from {} us before the request",
                            requested_us - us - ZERO_US
                        );
                        return ClockReading::between(requested_us, us, self.boot_us, earlier);
                    }
                }
            }
            panic!("no clock value after the request");
        }
    }

    #[test]
    fn a_busy_switch_and_frames_of_others_move_no_session_end() {
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
                assert_eq!(last.offset_us, first.offset_us, "seed {seed}, reading {number}");
            }
        }
    }

    #[test]
    fn a_suspended_machine_moves_all_session_ends() {
        let first = ClockReading::between(990_000, 0, 1_000_000, None);
        // The machine slept for a minute; the switch did not.
        let woken = ClockReading::between(65_000_000, 5_000_000, 65_000_100, Some(&first));
        assert_eq!(woken.boot_us(500), 60_000_601);
        assert_eq!(ClockReading::between(0, 10, 5, None).boot_us(3), 0);
    }
}
