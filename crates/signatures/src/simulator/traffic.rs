//! Traffic: who sends what when.

use super::random::Random;
use super::trace::Record;
use crate::scheduler::{Class, ORDINARY_WORK, Priority, Source};

const MICROS: f64 = 1e6;

/// What generators have in common.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Length of the trace.
    pub seconds: f64,
    /// What is to be done with each message.
    pub class: Class,
    /// The first source's number; others follow. Traces that are merged keep theirs apart by it.
    pub first_source: u64,
    /// The same seed makes the same trace.
    pub seed: u64,
}

/// Vehicles at a crossroads: each sends a basic safety message ten times a second, at its own phase, with a
/// jitter of 5 ms.
#[derive(Clone, Copy, Debug)]
pub struct Crossroads {
    /// Vehicles in range.
    pub vehicles: u64,
    /// Part of the messages that are immediate (braking hard, crash); the others have priority 1.
    pub immediate: f64,
}

impl Crossroads {
    /// Messages of a vehicle per second (SAE J2945/1).
    pub const PER_S: f64 = 10.0;
    /// A signed message with a certificate's digest, bytes.
    pub const BYTES: u32 = 200;

    /// The trace.
    pub fn trace(self, stretch: Stretch) -> Vec<Record> {
        let mut random = Random::new(stretch.seed);
        let mut trace = Vec::new();
        for vehicle in 0..self.vehicles {
            let phase = random.unit() / Self::PER_S;
            for number in 0..(stretch.seconds * Self::PER_S) as u64 {
                let at = phase + number as f64 / Self::PER_S + random.unit() * 5e-3;
                let immediate = random.unit() < self.immediate;
                let priority = if immediate {
                    Priority::IMMEDIATE
                } else {
                    Priority::URGENT
                };
                trace.push(stretch.record(at, vehicle, priority, Self::BYTES));
            }
        }
        sorted(trace)
    }
}

/// Phasor measurement units of a grid: all sample at the same instants, which satellites give them, and their
/// frames come within a spread of the network's delays. 120 frames a second are one unit's, 2,000 messages a
/// second what a concentrator passes on (IEEE C37.118).
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Units, or concentrators.
    pub units: u64,
    /// Messages of each per second.
    pub per_s: f64,
    /// Delays of the network, seconds, from none to this.
    pub spread_s: f64,
}

impl Grid {
    /// A signed frame, bytes.
    pub const BYTES: u32 = 400;

    /// The trace. Messages have priority 1.
    pub fn trace(self, stretch: Stretch) -> Vec<Record> {
        let mut random = Random::new(stretch.seed);
        let mut trace = Vec::new();
        for instant in 0..(stretch.seconds * self.per_s) as u64 {
            for unit in 0..self.units {
                let at = instant as f64 / self.per_s + random.unit() * self.spread_s;
                trace.push(stretch.record(at, unit, Priority::URGENT, Self::BYTES));
            }
        }
        sorted(trace)
    }
}

/// A steady Poisson stream, and bursts on it: everybody has something to say at once.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// Sources that send by turns at random.
    pub sources: u64,
    /// Messages of the stream per second.
    pub per_s: f64,
    /// Messages of a burst.
    pub burst: u64,
    /// Bursts per second.
    pub bursts_per_s: f64,
    /// What a burst lasts, seconds.
    pub burst_s: f64,
    /// Of every message.
    pub priority: Priority,
}

impl Bursts {
    /// The trace.
    pub fn trace(self, stretch: Stretch) -> Vec<Record> {
        let mut random = Random::new(stretch.seed);
        let mut trace = stream(
            &mut random,
            stretch,
            self.sources,
            self.per_s,
            self.priority,
            true,
        );
        for burst in 0..(stretch.seconds * self.bursts_per_s) as u64 {
            let begin = burst as f64 / self.bursts_per_s;
            for _ in 0..self.burst {
                let at = begin + random.unit() * self.burst_s;
                let source = random.below(self.sources);
                trace.push(stretch.record(at, source, self.priority, Crossroads::BYTES));
            }
        }
        sorted(trace)
    }
}

/// A flood of messages with invalid signatures. Priority 0: false immediates.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Sources that it pretends to come from.
    pub sources: u64,
    /// Messages per second.
    pub per_s: f64,
    /// What they say.
    pub priority: Priority,
}

impl Flood {
    /// The trace.
    pub fn trace(self, stretch: Stretch) -> Vec<Record> {
        let mut random = Random::new(stretch.seed);
        sorted(stream(
            &mut random,
            stretch,
            self.sources,
            self.per_s,
            self.priority,
            false,
        ))
    }
}

/// Several traces as one.
pub fn merge(traces: impl IntoIterator<Item = Vec<Record>>) -> Vec<Record> {
    sorted(traces.into_iter().flatten().collect())
}

fn stream(
    random: &mut Random,
    stretch: Stretch,
    sources: u64,
    per_s: f64,
    priority: Priority,
    valid: bool,
) -> Vec<Record> {
    let mut trace = Vec::new();
    let mut at = random.pause() / per_s;
    while at < stretch.seconds {
        let source = random.below(sources);
        trace.push(Record {
            valid,
            ..stretch.record(at, source, priority, Crossroads::BYTES)
        });
        at += random.pause() / per_s;
    }
    trace
}

impl Stretch {
    fn record(&self, at_s: f64, source: u64, priority: Priority, bytes: u32) -> Record {
        let arrival_us = (at_s * MICROS) as u64;
        let source = self.first_source + source;
        Record {
            arrival_us,
            signer: source,
            source: Source(source),
            priority,
            class: self.class,
            valid: true,
            bytes,
            work: ORDINARY_WORK,
        }
    }
}

/// By arrival; what arrives in the same microsecond stays in its order.
fn sorted(mut trace: Vec<Record>) -> Vec<Record> {
    trace.sort_by_key(|record| record.arrival_us);
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(seed: u64) -> Stretch {
        Stretch {
            seconds: 2.0,
            class: Class::P256_VERIFY,
            first_source: 1_000,
            seed,
        }
    }

    fn rate(trace: &[Record]) -> f64 {
        trace.len() as f64 / 2.0
    }

    #[test]
    fn a_crossroads_has_ten_messages_of_each_vehicle_a_second() {
        let trace = Crossroads {
            vehicles: 300,
            immediate: 0.01,
        }
        .trace(stretch(1));
        assert_eq!(trace.len(), 6_000);
        let of_one = trace
            .iter()
            .filter(|record| record.source == Source(1_007))
            .count();
        assert_eq!(of_one, 20);
        let immediate = trace
            .iter()
            .filter(|record| record.priority.is_immediate())
            .count();
        assert!((30..100).contains(&immediate), "{immediate}");
    }

    #[test]
    fn a_grids_frames_come_together() {
        let grid = Grid {
            units: 50,
            per_s: 120.0,
            spread_s: 1e-3,
        };
        let trace = grid.trace(stretch(1));
        assert_eq!(trace.len(), 12_000);
        let since_instant = |record: &Record| (record.arrival_us as f64 + 1.0) * 120.0 / 1e6;
        assert!(trace.iter().all(|record| since_instant(record).fract() < 0.1202));
    }

    #[test]
    fn streams_bursts_and_floods_have_their_rates() {
        let bursts = Bursts {
            sources: 10,
            per_s: 5_000.0,
            burst: 1_000,
            bursts_per_s: 5.0,
            burst_s: 0.01,
            priority: Priority::new(2),
        };
        let trace = bursts.trace(stretch(1));
        assert!((9_700.0..10_300.0).contains(&rate(&trace)));
        let first_ms = trace.iter().filter(|record| record.arrival_us < 10_000).count();
        assert!(first_ms > 1_000);
        let flood = Flood {
            sources: 3,
            per_s: 20_000.0,
            priority: Priority::IMMEDIATE,
        }
        .trace(stretch(2));
        assert!((19_500.0..20_500.0).contains(&rate(&flood)));
        assert!(
            flood
                .iter()
                .all(|record| !record.valid && record.source.0 < 1_003)
        );
        let both = merge([trace.clone(), flood.clone()]);
        assert_eq!(both.len(), trace.len() + flood.len());
        assert!(both.is_sorted_by_key(|record| record.arrival_us));
    }

    #[test]
    fn a_seed_makes_one_trace() {
        let crossroads = Crossroads {
            vehicles: 20,
            immediate: 0.1,
        };
        assert_eq!(crossroads.trace(stretch(5)), crossroads.trace(stretch(5)));
        assert_ne!(crossroads.trace(stretch(5)), crossroads.trace(stretch(6)));
    }
}
