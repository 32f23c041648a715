//! The clocks of the gateways' hosts, which are suspended, and the wall clock, which jumps.

use linewarden_dataplane::host::Timestamps;
use linewarden_gateway::Clock;
use rand::{Rng, RngExt as _};

use super::Simulation;

/// The clocks of one host.
#[derive(Clone, Copy)]
pub struct HostClock {
    /// CLOCK_MONOTONIC minus the simulation time, ms.
    ahead_ms: i64,
    pub suspended_ms: u64,
}

impl HostClock {
    /// Creates the clocks of a host that was started between a second and a month ago.
    pub(super) fn new(now_ms: u64, rng: &mut impl Rng) -> Self {
        let up_ms = match rng.random_ratio(1, 2) {
            true => 1_000,
            false => rng.random_range(1_000..2_600_000_000_i64),
        };
        Self {
            ahead_ms: up_ms - now_ms.cast_signed(),
            suspended_ms: 0,
        }
    }

    fn monotonic_ms(self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.ahead_ms)
    }

    pub(super) fn clock(self, now_ms: u64) -> Clock {
        Clock {
            monotonic_ns: self.monotonic_ms(now_ms) * 1_000_000,
            boot_ns: (self.monotonic_ms(now_ms) + self.suspended_ms) * 1_000_000,
        }
    }

    pub fn moment(self, now_ms: u64) -> Timestamps {
        let clock = self.clock(now_ms);
        Timestamps {
            monotonic_ns: clock.monotonic_ns,
            boot_ns: clock.boot_ns,
        }
    }

    /// Suspends the host: neither the simulation time nor CLOCK_MONOTONIC advances.
    pub(super) fn suspend(&mut self, rng: &mut impl Rng) {
        self.suspended_ms += match rng.random_range(0..4) {
            0 => rng.random_range(0..1_000),
            1 => rng.random_range(1_000..20_000),
            2 => rng.random_range(20_000..7_200_000),
            // Longer than a gateway continues without its controller.
            _ => rng.random_range(90_000_000..200_000_000),
        };
    }
}

impl Simulation {
    /// The wall clock of the controller's host, s since 1970.
    pub(super) fn wall_s(&self) -> u64 {
        (self.now_ms / 1_000).saturating_add_signed(self.wall_ahead_s)
    }

    /// Sets the wall clock to a random time: at most 10 s, 30 years or any duration before or after the simulation time.
    pub(super) fn set_wall_clock(&mut self) {
        self.tally.clock_jumps += 1;
        let reach_s = match self.rng.random_range(0..3) {
            0 => 10,
            1 => 1_000_000_000,
            _ => i64::MAX,
        };
        self.wall_ahead_s = self.rng.random_range(-reach_s..=reach_s);
    }
}
