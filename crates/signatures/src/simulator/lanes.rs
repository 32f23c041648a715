//! Simulated lanes: actual costs, scatter, and outages.

use super::random::Random;
use crate::scheduler::engine::ThrottledLane;
use crate::scheduler::model::CostModel;
use crate::scheduler::{Class, LaneKind, LaneSpec, PerClass, Span, Time};

/// A lane of the simulator.
#[derive(Clone, Debug)]
pub struct SimLane {
    /// The spec for the scheduler.
    pub spec: LaneSpec,
    /// The actual costs.
    pub actual: PerClass<Option<CostModel>>,
    /// Maximum relative deviation of a batch from the actual cost (0.1: a tenth), uniformly distributed.
    pub scatter: f64,
    /// Time to wake the lane when it is idle.
    pub wake: Span,
    /// Outages, sorted and disjoint.
    pub outages: Vec<Outage>,
}

/// A period in which a lane is lost.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// Start: the batch in progress is lost.
    pub from: Time,
    /// End: from then on probes succeed.
    pub until: Time,
}

impl SimLane {
    /// A lane with the costs of its spec, a scatter of a twentieth, and no outages.
    pub fn new(spec: LaneSpec) -> Self {
        let actual_costs = spec.costs.clone();
        Self {
            spec,
            actual: actual_costs,
            scatter: 0.05,
            wake: Span::ZERO,
            outages: Vec::new(),
        }
    }

    /// Multiplies the actual costs by a factor, without informing the scheduler. Simulates lower clock rates, other
    /// load, or a wrong calibration.
    #[must_use]
    pub fn slowed_by(mut self, factor: f64) -> Self {
        for class in Class::all() {
            if let Some(cost_model) = self.actual.of_mut(class) {
                cost_model.overhead_s *= factor;
                cost_model.per_job_s *= factor;
            }
        }
        self
    }

    /// Adds an outage.
    #[must_use]
    pub fn with_outage(mut self, from: Time, until: Time) -> Self {
        self.outages.push(Outage { from, until });
        self
    }

    /// Time of a batch with this work, in ordinary jobs, that starts now. `None` if the lane does not support
    /// the class.
    pub(super) fn service_time(&self, class: Class, work: f64, random: &mut Random) -> Option<Span> {
        let cost_model = (*self.actual.of(class))?;
        let factor = 1.0 + self.scatter * (2.0 * random.unit() - 1.0);
        Some(Span::from_secs_f64(cost_model.seconds(work) * factor))
    }

    /// The start of an outage in this period, if there is one.
    pub(super) fn failure_time(&self, from: Time, until: Time) -> Option<Time> {
        self.outages
            .iter()
            .map(|outage| outage.from.max(from))
            .zip(&self.outages)
            .find_map(|(failed, outage)| (failed < until && failed < outage.until).then_some(failed))
    }

    pub(super) fn is_up(&self, now: Time) -> bool {
        self.failure_time(now, now + Span::from_nanos(1)).is_none()
    }
}

/// For each class: the rate of one CPU, and the rate and the overhead of an H200, with rates in jobs per second. The
/// CPU's rates were measured on a Sapphire Rapids VM with 2 CPUs, AVX-512 IFMA and Intel's multi-buffer library. The
/// H200's rates are derived from the instruction rate of its multipliers, and are the lower end of the derived range.
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
/// Cost of assigning a slice to a CPU lane.
const CPU_OVERHEAD: Span = Span::from_micros(2);
/// Messages that multi-buffer code processes side by side.
const BUFFERS: usize = 8;
/// Maximum batch size of an accelerator.
const BATCH_MAX: usize = 16_384;

/// One CPU lane.
pub fn cpu(name: &str, kind: LaneKind) -> SimLane {
    let spec = LaneSpec::new(name, kind).with_grain(BUFFERS);
    SimLane::new(RATES.iter().fold(spec, |spec, (class, rate, ..)| {
        spec.with_class(*class, CostModel::new(CPU_OVERHEAD, *rate))
    }))
}

/// An accelerator like an H200.
pub fn h200() -> SimLane {
    let spec = LaneSpec::new("H200 (derived rates)", LaneKind::Accelerator)
        .with_batch_max(BATCH_MAX)
        .with_refill();
    let with_class_rate = |spec: LaneSpec, (class, _, rate, overhead): &(Class, f64, f64, Span)| {
        spec.with_class(*class, CostModel::new(*overhead, *rate))
    };
    SimLane::new(RATES.iter().fold(spec, with_class_rate))
}

/// An emulated accelerator with a multiple of a CPU's rate and an overhead.
pub fn emulated_accelerator(overhead: Span, rate_factor: f64) -> SimLane {
    let spec = LaneSpec::new(ThrottledLane::NAME, LaneKind::Accelerator)
        .with_batch_max(BATCH_MAX)
        .with_refill();
    let with_class_rate = |spec: LaneSpec, (class, rate, ..): &(Class, f64, f64, Span)| {
        spec.with_class(*class, CostModel::new(overhead, rate * rate_factor))
    };
    SimLane::new(RATES.iter().fold(spec, with_class_rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_fails_in_its_outages() {
        let at = Time::from_nanos;
        let lane = h200().with_outage(at(100), at(200)).with_outage(at(500), at(600));
        assert_eq!(lane.failure_time(at(0), at(100)), None);
        assert_eq!(lane.failure_time(at(0), at(101)), Some(at(100)));
        assert_eq!(lane.failure_time(at(150), at(160)), Some(at(150)));
        assert_eq!(lane.failure_time(at(200), at(501)), Some(at(500)));
        assert!(lane.is_up(at(99)) && !lane.is_up(at(100)) && !lane.is_up(at(199)) && lane.is_up(at(200)));
    }

    #[test]
    fn service_times_scatter_around_the_actual_cost() {
        let (lane, mut random) = (h200().slowed_by(2.0), Random::new(1));
        let expected_s = h200()
            .spec
            .costs
            .of(Class::RSA_VERIFY)
            .unwrap()
            .time(1_000)
            .as_secs_f64()
            * 2.0;
        for _ in 0..100 {
            let service_s = lane
                .service_time(Class::RSA_VERIFY, 1_000.0, &mut random)
                .unwrap()
                .as_secs_f64();
            assert!((expected_s * 0.949..expected_s * 1.051).contains(&service_s));
        }
        assert_eq!(lane.service_time(Class::RSA3072_VERIFY, 1.0, &mut random), None);
    }
}
