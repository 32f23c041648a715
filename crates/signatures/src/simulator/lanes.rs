//! Lanes in virtual time: what they really take, how it scatters, and when they fail.

use super::random::Random;
use crate::scheduler::engine::Throttled;
use crate::scheduler::model::Line;
use crate::scheduler::{Class, LaneKind, LaneSpec, PerClass, Span, Time};

/// A lane of the simulator.
#[derive(Clone, Debug)]
pub struct SimLane {
    /// What the scheduler is told of it.
    pub spec: LaneSpec,
    /// What it really takes.
    pub truth: PerClass<Option<Line>>,
    /// A batch takes up to so much more or less than the truth (0.1: a tenth), evenly distributed.
    pub scatter: f64,
    /// What waking it takes when it is idle.
    pub wake: Span,
    /// When it is lost, sorted and apart.
    pub outages: Vec<Outage>,
}

/// A time in which a lane is lost.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// What it works on then is lost.
    pub from: Time,
    /// From then on it answers probes.
    pub until: Time,
}

impl SimLane {
    /// A lane that takes what the scheduler is told, give or take a twentieth, and never fails.
    pub fn new(spec: LaneSpec) -> Self {
        let truth = spec.lines.clone();
        Self {
            spec,
            truth,
            scatter: 0.05,
            wake: Span::ZERO,
            outages: Vec::new(),
        }
    }

    /// Really takes so much longer for everything than the scheduler is told: clocks, neighbours, a wrong
    /// calibration.
    #[must_use]
    pub fn slower(mut self, factor: f64) -> Self {
        for class in Class::all() {
            if let Some(line) = self.truth.of_mut(class) {
                line.overhead_s *= factor;
                line.per_job_s *= factor;
            }
        }
        self
    }

    /// Fails for a while.
    #[must_use]
    pub fn lost(mut self, from: Time, until: Time) -> Self {
        self.outages.push(Outage { from, until });
        self
    }

    /// What a batch of the work of so many ordinary jobs takes that begins now. None: it cannot do that.
    pub(super) fn takes(&self, class: Class, work: f64, random: &mut Random) -> Option<Span> {
        let line = (*self.truth.of(class))?;
        let factor = 1.0 + self.scatter * (2.0 * random.unit() - 1.0);
        Some(Span::from_secs_f64(line.seconds(work) * factor))
    }

    /// When work of this time fails, if it does.
    pub(super) fn fails(&self, from: Time, until: Time) -> Option<Time> {
        self.outages
            .iter()
            .map(|outage| outage.from.max(from))
            .zip(&self.outages)
            .find_map(|(at, outage)| (at < until && at < outage.until).then_some(at))
    }

    pub(super) fn answers(&self, now: Time) -> bool {
        self.fails(now, now + Span::from_nanos(1)).is_none()
    }
}

/// Rates of one processor with AVX-512 IFMA and Intel's multi-buffer library, jobs per second, and of an H200
/// at the lower end of what its multiplier allows, with its overhead. The processor's were measured on a
/// Sapphire Rapids VM of 2 processors; the accelerator's are derived from its instruction rate.
const RATES: [(Class, f64, f64, Span); 9] = [
    (Class::RSA_VERIFY, 320e3, 40e6, Span::from_micros(300)),
    (Class::RSA_SIGN, 14e3, 1.1e6, Span::from_micros(5_000)),
    (Class::RA_VERIFY, 115e3, 12e6, Span::from_micros(300)),
    (Class::RA_SIGN, 175e3, 17e6, Span::from_micros(300)),
    (Class::P256_VERIFY, 68e3, 11e6, Span::from_micros(1_000)),
    (Class::P256_SIGN, 190e3, 20e6, Span::from_micros(1_000)),
    (Class::ED25519_VERIFY, 100e3, 22e6, Span::from_micros(1_000)),
    (Class::ED25519_SIGN, 300e3, 30e6, Span::from_micros(1_000)),
    (Class::MASK_REFILL, 14e3, 1.1e6, Span::from_micros(5_000)),
];
/// What handing a processor a slice costs.
const CPU_OVERHEAD: Span = Span::from_micros(2);
/// Messages that multi-buffer code works on side by side.
const BUFFERS: usize = 8;
/// The largest batch of an accelerator.
const BATCH_MAX: usize = 16_384;

/// One processor.
pub fn cpu(name: &str, kind: LaneKind) -> SimLane {
    let spec = LaneSpec::new(name, kind).with_grain(BUFFERS);
    SimLane::new(RATES.iter().fold(spec, |spec, (class, rate, ..)| {
        spec.with(*class, Line::new(CPU_OVERHEAD, *rate))
    }))
}

/// An accelerator of the H200's kind.
pub fn h200() -> SimLane {
    let spec = LaneSpec::new("H200 (derived rates)", LaneKind::Accelerator)
        .with_batch_max(BATCH_MAX)
        .refilling();
    let with = |spec: LaneSpec, (class, _, rate, overhead): &(Class, f64, f64, Span)| {
        spec.with(*class, Line::new(*overhead, *rate))
    };
    SimLane::new(RATES.iter().fold(spec, with))
}

/// A processor with so many times the rate of one and an overhead, which stands in for an accelerator.
pub fn stand_in(overhead: Span, times: f64) -> SimLane {
    let spec = LaneSpec::new(Throttled::NAME, LaneKind::Accelerator)
        .with_batch_max(BATCH_MAX)
        .refilling();
    let with = |spec: LaneSpec, (class, rate, ..): &(Class, f64, f64, Span)| {
        spec.with(*class, Line::new(overhead, rate * times))
    };
    SimLane::new(RATES.iter().fold(spec, with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_fails_in_its_outages() {
        let at = Time::from_nanos;
        let lane = h200().lost(at(100), at(200)).lost(at(500), at(600));
        assert_eq!(lane.fails(at(0), at(100)), None);
        assert_eq!(lane.fails(at(0), at(101)), Some(at(100)));
        assert_eq!(lane.fails(at(150), at(160)), Some(at(150)));
        assert_eq!(lane.fails(at(200), at(501)), Some(at(500)));
        assert!(
            lane.answers(at(99)) && !lane.answers(at(100)) && !lane.answers(at(199)) && lane.answers(at(200))
        );
    }

    #[test]
    fn what_it_takes_scatters_about_the_truth() {
        let (lane, mut random) = (h200().slower(2.0), Random::new(1));
        let truth = h200()
            .spec
            .lines
            .of(Class::RSA_VERIFY)
            .unwrap()
            .time(1_000)
            .as_secs_f64()
            * 2.0;
        for _ in 0..100 {
            let took = lane
                .takes(Class::RSA_VERIFY, 1_000.0, &mut random)
                .unwrap()
                .as_secs_f64();
            assert!((truth * 0.949..truth * 1.051).contains(&took));
        }
        assert_eq!(lane.takes(Class::RSA3072_VERIFY, 1.0, &mut random), None);
    }
}
