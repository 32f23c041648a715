//! Execution of batches in the engine.

use std::time::{Duration, Instant};

use super::super::class::{Class, PerClass};
use super::super::job::Outcome;
use super::super::lane::{LaneKind, LaneSpec};
use super::super::model::{CostModel, calibrate};
use super::super::time::Span;

/// A lane failed: its device is lost, or does not respond. Contains the reason.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("lane lost: {0}")]
pub struct LaneLost(pub String);

/// Executes batches, in a thread of its own.
pub trait Lane<J>: Send {
    /// Processes jobs of one class and appends an outcome for each, in order. May write results into the
    /// jobs.
    ///
    /// A lane waits for its device with a timeout: a device that never responds is a lost lane. After a loss, another
    /// lane repeats all jobs, and appended outcomes are ignored. A call must therefore change nothing but the jobs.
    ///
    /// # Errors
    /// The lane is lost. A panic and a wrong number of outcomes count as a loss, too.
    fn run(&mut self, class: Class, jobs: &mut [J], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost>;

    /// Makes up to `count` masks, adds these masks to the signer's pool, and returns their number. If the number is 0,
    /// the scheduler delays the next refill.
    ///
    /// # Errors
    /// The lane is lost.
    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        let _ = count;
        Ok(0)
    }

    /// Checks whether a lost lane works again.
    ///
    /// # Errors
    /// The lane is still lost.
    fn probe(&mut self) -> Result<(), LaneLost> {
        Ok(())
    }
}

/// Measures the cost of a class on a lane: see [`calibrate`]. `jobs` makes a batch of the given size.
///
/// # Errors
/// The lane is lost.
pub fn measure<J>(
    lane: &mut dyn Lane<J>,
    class: Class,
    sizes: &[usize],
    repeats: usize,
    mut jobs: impl FnMut(usize) -> Vec<J>,
) -> Result<CostModel, LaneLost> {
    let mut lost = None;
    let mut outcomes = Vec::new();
    let cost_model = calibrate(sizes, repeats, |size| {
        if lost.is_some() {
            return Span::ZERO;
        }
        let mut batch = jobs(size);
        outcomes.clear();
        let begin = Instant::now();
        lost = lane.run(class, &mut batch, &mut outcomes).err();
        begin.elapsed().into()
    });
    lost.map_or(Ok(cost_model), Err)
}

/// A CPU lane that is slowed down to an overhead and a rate, to emulate an accelerator where none is
/// available.
///
/// The lane does the work first and then waits for the remaining time, so it is never faster than the inner
/// lane. The CPU is free while the lane waits, as with a real accelerator.
pub struct ThrottledLane<L, W = fn(Duration)> {
    inner: L,
    cost_models: PerClass<Option<CostModel>>,
    wait: W,
}

impl ThrottledLane<(), ()> {
    /// Name in counters and reports.
    pub const NAME: &'static str = "throttled CPU lane emulating an accelerator";
}

impl<L> ThrottledLane<L> {
    /// A lane that takes at least as long as the cost model of each class states.
    pub fn new(inner: L, cost_models: PerClass<Option<CostModel>>) -> Self {
        Self::with_wait(inner, cost_models, std::thread::sleep)
    }
}

impl<L, W> ThrottledLane<L, W> {
    /// Like [`ThrottledLane::new`], with another wait function.
    pub fn with_wait(inner: L, cost_models: PerClass<Option<CostModel>>, wait: W) -> Self {
        Self {
            inner,
            cost_models,
            wait,
        }
    }

    /// The spec for the engine.
    pub fn spec(&self) -> LaneSpec {
        let spec = LaneSpec::new(ThrottledLane::NAME, LaneKind::Accelerator);
        LaneSpec {
            costs: self.cost_models.clone(),
            ..spec
        }
    }
}

impl<J, L: Lane<J>, W: FnMut(Duration) + Send> Lane<J> for ThrottledLane<L, W> {
    fn run(&mut self, class: Class, jobs: &mut [J], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        let begin = Instant::now();
        let result = self.inner.run(class, jobs, outcomes);
        if let Some(cost_model) = self.cost_models.of(class) {
            let remaining = Duration::from(cost_model.time(jobs.len())).saturating_sub(begin.elapsed());
            (self.wait)(remaining);
        }
        result
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        self.inner.refill(count)
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        self.inner.probe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoopLane;

    impl Lane<u8> for NoopLane {
        fn run(&mut self, _: Class, jobs: &mut [u8], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
            outcomes.extend(jobs.iter().map(|_| Outcome::Accepted));
            if jobs.contains(&9) {
                Err(LaneLost("nine".into()))
            } else {
                Ok(())
            }
        }
    }

    #[test]
    fn a_throttled_lane_is_named_and_delayed() {
        let cost_model = CostModel::new(Span::from_millis(60_000), 100.0);
        let cost_models = PerClass::from_fn(|class| (class == Class::RA_VERIFY).then_some(cost_model));
        let mut waits = Vec::new();
        let mut lane = ThrottledLane::with_wait(NoopLane, cost_models, |remaining| waits.push(remaining));
        assert!(lane.spec().name.contains("emulating") && lane.spec().kind == LaneKind::Accelerator);
        assert_eq!(*lane.spec().costs.of(Class::RA_VERIFY), Some(cost_model));
        let mut outcomes = Vec::new();
        lane.run(Class::RA_VERIFY, &mut [0; 100], &mut outcomes).unwrap();
        lane.run(Class::RSA_VERIFY, &mut [0; 100], &mut outcomes).unwrap();
        assert_eq!(outcomes.len(), 200);
        let [remaining] = waits[..] else {
            panic!("waits only for classes with a cost model")
        };
        assert!(remaining > Duration::from_secs(50) && remaining <= Duration::from_secs(61));
    }

    #[test]
    fn a_lane_is_measured_until_it_is_lost() {
        let mut sizes = Vec::new();
        let result = measure(&mut NoopLane, Class::RA_VERIFY, &[1, 64], 3, |size| {
            sizes.push(size);
            vec![0; size]
        });
        assert!(result.is_ok());
        assert_eq!(sizes, [1, 1, 1, 1, 64, 64, 64, 64]);
        let lost = measure(&mut NoopLane, Class::RA_VERIFY, &[1, 64], 3, |size| {
            vec![size as u8 / 7; size]
        });
        assert_eq!(lost, Err(LaneLost("nine".into())));
    }
}
