//! Generators of traffic.

use super::random::Random;
use super::trace::Record;
use crate::scheduler::{Class, ORDINARY_WORK, Priority, Source};

const MICROS: f64 = 1e6;

/// Common parameters of generators.
#[derive(Clone, Copy, Debug)]
pub struct TrafficParameters {
    /// Length of the trace, seconds.
    pub duration_s: f64,
    /// The operation on each message.
    pub class: Class,
    /// Number of the first source; the other sources have the following numbers. Traces to be merged need disjoint
    /// numbers.
    pub first_source: u64,
    /// Seed of the random numbers: the same seed gives the same trace.
    pub seed: u64,
}

/// Vehicles at a crossroads: each sends a basic safety message ten times a second, at its own phase, with a
/// jitter of 5 ms.
#[derive(Clone, Copy, Debug)]
pub struct Crossroads {
    /// Number of vehicles in range.
    pub vehicles: u64,
    /// Fraction of immediate messages (hard braking, crash); the others have priority 1.
    pub immediate: f64,
}

impl Crossroads {
    /// Messages per vehicle and second (SAE J2945/1).
    pub const PER_S: f64 = 10.0;
    /// Bytes of a signed message with a certificate digest.
    pub const BYTES: u32 = 200;

    /// The trace.
    pub fn trace(self, parameters: TrafficParameters) -> Vec<Record> {
        let mut random = Random::new(parameters.seed);
        let mut trace = Vec::new();
        for vehicle in 0..self.vehicles {
            let phase = random.unit() / Self::PER_S;
            for number in 0..(parameters.duration_s * Self::PER_S) as u64 {
                let at_s = phase + number as f64 / Self::PER_S + random.unit() * 5e-3;
                let is_immediate = random.unit() < self.immediate;
                let priority = if is_immediate {
                    Priority::IMMEDIATE
                } else {
                    Priority::URGENT
                };
                trace.push(parameters.record(at_s, vehicle, priority, Self::BYTES));
            }
        }
        sorted(trace)
    }
}

/// Phasor measurement units of a power grid. Satellites synchronize the units, so all units sample at the same
/// instants. The frames of an instant arrive within `spread_s`, because network delays differ. One unit sends 120
/// frames a second, a concentrator forwards 2,000 messages a second (IEEE C37.118).
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Number of units, or concentrators.
    pub units: u64,
    /// Messages per unit and second.
    pub per_s: f64,
    /// Maximum network delay, seconds; delays are uniform from 0.
    pub spread_s: f64,
}

impl Grid {
    /// Bytes of a signed frame.
    pub const BYTES: u32 = 400;

    /// The trace. Messages have priority 1.
    pub fn trace(self, parameters: TrafficParameters) -> Vec<Record> {
        let mut random = Random::new(parameters.seed);
        let mut trace = Vec::new();
        for instant in 0..(parameters.duration_s * self.per_s) as u64 {
            for unit in 0..self.units {
                let at_s = instant as f64 / self.per_s + random.unit() * self.spread_s;
                trace.push(parameters.record(at_s, unit, Priority::URGENT, Self::BYTES));
            }
        }
        sorted(trace)
    }
}

/// A steady Poisson stream with bursts, as when many senders react to one event.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// Sources, chosen at random for each message.
    pub sources: u64,
    /// Messages of the stream per second.
    pub per_s: f64,
    /// Messages per burst.
    pub burst: u64,
    /// Bursts per second.
    pub bursts_per_s: f64,
    /// Duration of a burst, seconds.
    pub burst_s: f64,
    /// Priority of all messages.
    pub priority: Priority,
}

impl Bursts {
    /// The trace.
    pub fn trace(self, parameters: TrafficParameters) -> Vec<Record> {
        let mut random = Random::new(parameters.seed);
        let mut trace = stream(
            &mut random,
            parameters,
            self.sources,
            self.per_s,
            self.priority,
            true,
        );
        for burst in 0..(parameters.duration_s * self.bursts_per_s) as u64 {
            let begin_s = burst as f64 / self.bursts_per_s;
            for _ in 0..self.burst {
                let at_s = begin_s + random.unit() * self.burst_s;
                let source = random.below(self.sources);
                trace.push(parameters.record(at_s, source, self.priority, Crossroads::BYTES));
            }
        }
        sorted(trace)
    }
}

/// A flood of messages with invalid signatures. Priority 0 means false immediate messages.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Number of claimed sources.
    pub sources: u64,
    /// Messages per second.
    pub per_s: f64,
    /// The claimed priority.
    pub priority: Priority,
}

impl Flood {
    /// The trace.
    pub fn trace(self, parameters: TrafficParameters) -> Vec<Record> {
        let mut random = Random::new(parameters.seed);
        sorted(stream(
            &mut random,
            parameters,
            self.sources,
            self.per_s,
            self.priority,
            false,
        ))
    }
}

/// Merges several traces.
pub fn merge(traces: impl IntoIterator<Item = Vec<Record>>) -> Vec<Record> {
    sorted(traces.into_iter().flatten().collect())
}

fn stream(
    random: &mut Random,
    parameters: TrafficParameters,
    sources: u64,
    per_s: f64,
    priority: Priority,
    valid: bool,
) -> Vec<Record> {
    let mut trace = Vec::new();
    let mut at_s = random.pause() / per_s;
    while at_s < parameters.duration_s {
        let source = random.below(sources);
        trace.push(Record {
            valid,
            ..parameters.record(at_s, source, priority, Crossroads::BYTES)
        });
        at_s += random.pause() / per_s;
    }
    trace
}

impl TrafficParameters {
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

/// Sorts by arrival; records of the same microsecond keep their order.
fn sorted(mut trace: Vec<Record>) -> Vec<Record> {
    trace.sort_by_key(|record| record.arrival_us);
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(seed: u64) -> TrafficParameters {
        TrafficParameters {
            duration_s: 2.0,
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
        .trace(parameters(1));
        assert_eq!(trace.len(), 6_000);
        let messages_of_one_vehicle = trace
            .iter()
            .filter(|record| record.source == Source(1_007))
            .count();
        assert_eq!(messages_of_one_vehicle, 20);
        let immediate = trace
            .iter()
            .filter(|record| record.priority.is_immediate())
            .count();
        assert!((30..100).contains(&immediate), "{immediate}");
    }

    #[test]
    fn frames_of_a_grid_arrive_together() {
        let grid = Grid {
            units: 50,
            per_s: 120.0,
            spread_s: 1e-3,
        };
        let trace = grid.trace(parameters(1));
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
        let trace = bursts.trace(parameters(1));
        assert!((9_700.0..10_300.0).contains(&rate(&trace)));
        let first_ms = trace.iter().filter(|record| record.arrival_us < 10_000).count();
        assert!(first_ms > 1_000);
        let flood = Flood {
            sources: 3,
            per_s: 20_000.0,
            priority: Priority::IMMEDIATE,
        }
        .trace(parameters(2));
        assert!((19_500.0..20_500.0).contains(&rate(&flood)));
        assert!(
            flood
                .iter()
                .all(|record| !record.valid && record.source.0 < 1_003)
        );
        let merged = merge([trace.clone(), flood.clone()]);
        assert_eq!(merged.len(), trace.len() + flood.len());
        assert!(merged.is_sorted_by_key(|record| record.arrival_us));
    }

    #[test]
    fn a_seed_makes_one_trace() {
        let crossroads = Crossroads {
            vehicles: 20,
            immediate: 0.1,
        };
        assert_eq!(crossroads.trace(parameters(5)), crossroads.trace(parameters(5)));
        assert_ne!(crossroads.trace(parameters(5)), crossroads.trace(parameters(6)));
    }
}
