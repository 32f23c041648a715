//! What executes batches in the real engine.

use std::time::{Duration, Instant};

use super::super::class::{Class, PerClass};
use super::super::job::Outcome;
use super::super::lane::{LaneKind, LaneSpec};
use super::super::model::{Line, calibrate};
use super::super::time::Span;

/// A lane cannot go on: its device is gone, or does not answer. Says why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("lane lost: {0}")]
pub struct LaneLost(pub String);

/// What executes batches. It has a thread to itself.
pub trait Lane<J>: Send {
    /// Does jobs of one class and pushes an outcome for each, in order. It may write results into the jobs.
    ///
    /// A lane waits for its device no longer than it must: a device that never answers is a lost lane. After
    /// a loss, all jobs are done again elsewhere, whatever outcomes were pushed; nothing but the jobs
    /// themselves may have changed by then.
    ///
    /// # Errors
    /// The lane is lost. A panic, and outcomes too many or too few, count as that too.
    fn run(&mut self, class: Class, jobs: &mut [J], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost>;

    /// Makes up to so many masks and puts them into the signer's pool; how many. None for some time if it is
    /// 0.
    ///
    /// # Errors
    /// The lane is lost.
    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        let _ = count;
        Ok(0)
    }

    /// Tries whether a lost lane works again.
    ///
    /// # Errors
    /// It does not.
    fn probe(&mut self) -> Result<(), LaneLost> {
        Ok(())
    }
}

/// Measures what a lane takes for a class: see [`calibrate`]. `jobs` makes a batch of so many.
///
/// # Errors
/// The lane is lost.
pub fn measure<J>(
    lane: &mut dyn Lane<J>,
    class: Class,
    sizes: &[usize],
    repeats: usize,
    mut jobs: impl FnMut(usize) -> Vec<J>,
) -> Result<Line, LaneLost> {
    let mut lost = None;
    let mut outcomes = Vec::new();
    let line = calibrate(sizes, repeats, |size| {
        if lost.is_some() {
            return Span::ZERO;
        }
        let mut batch = jobs(size);
        outcomes.clear();
        let begin = Instant::now();
        lost = lane.run(class, &mut batch, &mut outcomes).err();
        begin.elapsed().into()
    });
    lost.map_or(Ok(line), Err)
}

/// A processor's lane that is slowed down to an overhead and a rate: it stands in for an accelerator where
/// there is none.
///
/// It does the work first and then waits for the rest of the time, so it is never faster than the lane in it.
/// The processor is free while it waits, as it is while an accelerator works.
pub struct Throttled<L, W = fn(Duration)> {
    inner: L,
    lines: PerClass<Option<Line>>,
    wait: W,
}

impl Throttled<(), ()> {
    /// As counters and reports name it.
    pub const NAME: &'static str = "throttled processor standing in for an accelerator";
}

impl<L> Throttled<L> {
    /// Takes at least as long as `lines` say for their classes.
    pub fn new(inner: L, lines: PerClass<Option<Line>>) -> Self {
        Self::with_wait(inner, lines, std::thread::sleep)
    }
}

impl<L, W> Throttled<L, W> {
    /// The same with another way of waiting.
    pub fn with_wait(inner: L, lines: PerClass<Option<Line>>, wait: W) -> Self {
        Self { inner, lines, wait }
    }

    /// What the engine is told of it.
    pub fn spec(&self) -> LaneSpec {
        let spec = LaneSpec::new(Throttled::NAME, LaneKind::Accelerator);
        LaneSpec {
            lines: self.lines.clone(),
            ..spec
        }
    }
}

impl<J, L: Lane<J>, W: FnMut(Duration) + Send> Lane<J> for Throttled<L, W> {
    fn run(&mut self, class: Class, jobs: &mut [J], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        let begin = Instant::now();
        let result = self.inner.run(class, jobs, outcomes);
        if let Some(line) = self.lines.of(class) {
            let rest = Duration::from(line.time(jobs.len())).saturating_sub(begin.elapsed());
            (self.wait)(rest);
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

    struct Nothing;

    impl Lane<u8> for Nothing {
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
    fn a_throttled_lane_says_what_it_is_and_takes_its_time() {
        let line = Line::new(Span::from_millis(60_000), 100.0);
        let lines = PerClass::from_fn(|class| (class == Class::RA_VERIFY).then_some(line));
        let mut waits = Vec::new();
        let mut lane = Throttled::with_wait(Nothing, lines, |rest| waits.push(rest));
        assert!(lane.spec().name.contains("standing in") && lane.spec().kind == LaneKind::Accelerator);
        assert_eq!(*lane.spec().lines.of(Class::RA_VERIFY), Some(line));
        let mut outcomes = Vec::new();
        lane.run(Class::RA_VERIFY, &mut [0; 100], &mut outcomes).unwrap();
        lane.run(Class::RSA_VERIFY, &mut [0; 100], &mut outcomes).unwrap();
        assert_eq!(outcomes.len(), 200);
        let [rest] = waits[..] else {
            panic!("it waits only for classes with a line")
        };
        assert!(rest > Duration::from_secs(50) && rest <= Duration::from_secs(61));
    }

    #[test]
    fn a_lane_is_measured_until_it_is_lost() {
        let mut sizes = Vec::new();
        let made = measure(&mut Nothing, Class::RA_VERIFY, &[1, 64], 3, |size| {
            sizes.push(size);
            vec![0; size]
        });
        assert!(made.is_ok());
        assert_eq!(sizes, [1, 1, 1, 1, 64, 64, 64, 64]);
        let lost = measure(&mut Nothing, Class::RA_VERIFY, &[1, 64], 3, |size| {
            vec![size as u8 / 7; size]
        });
        assert_eq!(lost, Err(LaneLost("nine".into())));
    }
}
