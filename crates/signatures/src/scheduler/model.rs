//! Cost model of a batch on a lane: t(n) = overhead + n · time per job, calibrated at the start and corrected
//! by every batch.

use super::time::Span;

/// Time of a batch of n jobs of one class on a lane.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostModel {
    /// Overhead of a batch, seconds; not negative.
    pub overhead_s: f64,
    /// Time per job, seconds; positive.
    pub per_job_s: f64,
}

/// Lower bound of the time per job, which keeps rates finite.
const PER_JOB_MIN_S: f64 = 1e-12;

impl CostModel {
    /// The model of a lane with this overhead and rate.
    pub fn new(overhead: Span, jobs_per_s: f64) -> Self {
        Self {
            overhead_s: overhead.as_secs_f64(),
            per_job_s: 1.0 / jobs_per_s,
        }
        .clamped()
    }

    /// The model with an overhead of at least 0 and a positive time per job.
    fn clamped(self) -> Self {
        Self {
            overhead_s: self.overhead_s.max(0.0),
            per_job_s: self.per_job_s.max(PER_JOB_MIN_S),
        }
    }

    /// Seconds for n jobs.
    pub fn seconds(self, jobs: f64) -> f64 {
        self.overhead_s + jobs * self.per_job_s
    }

    /// Time for n jobs.
    pub fn time(self, jobs: usize) -> Span {
        Span::from_secs_f64(self.seconds(jobs as f64))
    }

    /// Jobs per second in unlimited batches.
    pub fn rate(self) -> f64 {
        1.0 / self.per_job_s
    }

    /// The largest batch within `span`; 0 if not even one job fits.
    pub fn jobs_within(self, span: Span) -> usize {
        ((span.as_secs_f64() - self.overhead_s) / self.per_job_s).max(0.0) as usize
    }

    fn scaled(self, factor: f64) -> Self {
        Self {
            overhead_s: self.overhead_s * factor,
            per_job_s: self.per_job_s * factor,
        }
    }
}

/// tau*: the number of jobs from which on an accelerator finishes before CPU lanes with this total rate and no overhead. With the rates
/// R_cpu of the CPU lanes and R_acc of the accelerator: overhead / (1/R_cpu - 1/R_acc). `None` if the accelerator never finishes first.
pub fn crossover(cpu_rate: f64, accelerator: CostModel) -> Option<f64> {
    let gain = 1.0 / cpu_rate - accelerator.per_job_s;
    (gain > 0.0).then(|| accelerator.overhead_s / gain)
}

/// Factor by which each batch reduces the weight of older observations: about the latest 32 batches count.
const DECAY: f64 = 0.97;
/// The same factor for a batch that was clipped. If several batches in a row are clipped, the lane has changed, and
/// older observations are wrong.
const DECAY_CLIPPED: f64 = 0.8;
/// Maximum ratio between the observed and the predicted time. A stalled batch has little effect; a lane that
/// becomes ten times slower is recognized after some batches.
const DEVIATION_MAX: f64 = 2.0;
/// Weight of the present model: as many batches as this number, at each of two points, confirm the present model.
/// Without this damping, batches of about the same size would not determine the division of their time into overhead
/// and jobs, and a stalled batch would tilt the model.
const INERTIA: f64 = 4.0;
/// Weight of the calibrated model, scaled to the present speed. This weight keeps the division into overhead and jobs
/// from drifting.
const CALIBRATION_WEIGHT: f64 = 0.2;
/// The two batch sizes at which both weights apply.
const POINTS: [f64; 2] = [1.0, 1024.0];

/// The cost model of one lane and class, corrected by each batch.
///
/// Least squares with exponential forgetting over relative errors: batches are weighted by 1/t², since the scatter of a
/// time is proportional to the time. A batch of 8 jobs therefore counts as much as a batch of 8,000 jobs. Observations
/// are clipped to between half of the prediction and twice the prediction, which bounds the influence of each batch.
#[derive(Clone, Debug)]
pub struct Estimate {
    calibrated: CostModel,
    cost_model: CostModel,
    sums: Sums,
}

/// Weighted sums over batches: of 1, n, n², t and n·t.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    one: f64,
    n: f64,
    nn: f64,
    t: f64,
    nt: f64,
}

impl Sums {
    fn add(&mut self, weight: f64, n: f64, t: f64) {
        self.one += weight;
        self.n += weight * n;
        self.nn += weight * n * n;
        self.t += weight * t;
        self.nt += weight * n * t;
    }

    fn fade(&mut self, factor: f64) {
        for sum in [
            &mut self.one,
            &mut self.n,
            &mut self.nn,
            &mut self.t,
            &mut self.nt,
        ] {
            *sum *= factor;
        }
    }

    /// The least squares fit without a negative overhead. `None` if all batches had the same size.
    fn fit(&self) -> Option<CostModel> {
        let spread = self.one * self.nn - self.n * self.n;
        if spread <= self.one * self.nn * 1e-12 {
            return None;
        }
        let per_job_s = (self.one * self.nt - self.n * self.t) / spread;
        let overhead_s = (self.nn * self.t - self.n * self.nt) / spread;
        if overhead_s < 0.0 {
            return Some(CostModel {
                overhead_s: 0.0,
                per_job_s: self.nt / self.nn,
            });
        }
        if per_job_s <= 0.0 {
            return Some(CostModel {
                overhead_s: self.t / self.one,
                per_job_s: PER_JOB_MIN_S,
            });
        }
        Some(CostModel {
            overhead_s,
            per_job_s,
        })
    }
}

impl Estimate {
    /// The calibrated model, before any observation.
    pub fn new(calibrated: CostModel) -> Self {
        let calibrated = calibrated.clamped();
        Self {
            calibrated,
            cost_model: calibrated,
            sums: Sums::default(),
        }
    }

    /// The present estimate.
    pub fn cost_model(&self) -> CostModel {
        self.cost_model
    }

    /// Records the time of a batch with the work of n ordinary jobs.
    pub fn observe(&mut self, n: f64, duration: Span) {
        if n <= 0.0 {
            return;
        }
        let predicted = self.cost_model.seconds(n);
        let t = duration
            .as_secs_f64()
            .clamp(predicted / DEVIATION_MAX, predicted * DEVIATION_MAX);
        let is_clipped = t != duration.as_secs_f64();
        self.sums.fade(if is_clipped { DECAY_CLIPPED } else { DECAY });
        self.sums.add(1.0 / (predicted * predicted), n, t);
        let mut sums = self.sums;
        let middle = sums.n / sums.one;
        let calibrated = self
            .calibrated
            .scaled(self.cost_model.seconds(middle) / self.calibrated.seconds(middle));
        for (cost_model, weight) in [(self.cost_model, INERTIA), (calibrated, CALIBRATION_WEIGHT)] {
            for point in POINTS {
                let seconds = cost_model.seconds(point);
                sums.add(weight / (seconds * seconds), point, seconds);
            }
        }
        if let Some(cost_model) = sums.fit() {
            self.cost_model = cost_model.clamped();
        }
    }
}

/// Measures a lane: `run(n)` processes a batch of n jobs and returns its time. Each size is run `repeats` times after
/// one warm-up run. The model uses the median, so that a stall has no effect. With fewer than two sizes, the model has
/// no overhead: the whole time counts as time per job.
pub fn calibrate(sizes: &[usize], repeats: usize, mut run: impl FnMut(usize) -> Span) -> CostModel {
    let mut sums = Sums::default();
    for &size in sizes.iter().filter(|size| **size > 0) {
        run(size);
        let mut times: Vec<Span> = (0..repeats.max(1)).map(|_| run(size)).collect();
        times.sort_unstable();
        let median = times
            .get(times.len() / 2)
            .map_or(0.0, |span| span.as_secs_f64())
            .max(PER_JOB_MIN_S);
        sums.add(1.0 / (median * median), size as f64, median);
    }
    let all_per_job = || CostModel {
        overhead_s: 0.0,
        per_job_s: if sums.nn > 0.0 { sums.nt / sums.nn } else { 0.0 },
    };
    sums.fit().unwrap_or_else(all_per_job).clamped()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{RandomChoices, seeds};
    use super::*;

    fn gpu() -> CostModel {
        CostModel::new(Span::from_micros(300), 10e6)
    }

    fn is_close(actual: CostModel, expected: CostModel, tolerance: f64) -> bool {
        [1.0, 64.0, 4096.0].iter().all(|n| {
            let ratio = actual.seconds(*n) / expected.seconds(*n);
            ratio < 1.0 + tolerance && ratio > 1.0 / (1.0 + tolerance)
        })
    }

    fn noisy_time(choices: &mut RandomChoices, cost_model: CostModel, jobs: usize) -> Span {
        let factor = 0.95 + choices.below(1_000) as f64 / 10_000.0;
        Span::from_secs_f64(cost_model.seconds(jobs as f64) * factor)
    }

    #[test]
    fn times_and_sizes_are_inverse() {
        for jobs in [1, 100, 10_000] {
            let time = gpu().time(jobs);
            assert!(gpu().jobs_within(time).abs_diff(jobs) <= 1);
        }
        assert_eq!(gpu().jobs_within(Span::from_micros(299)), 0);
        assert!(CostModel::new(Span::ZERO, f64::INFINITY).rate().is_finite());
    }

    #[test]
    fn the_crossover_of_the_measured_lanes() {
        // RSA-2048 verification: 2 CPUs with 320 k/s each; an accelerator with an overhead of 0.3 ms and 40 M/s.
        let tau = crossover(640e3, CostModel::new(Span::from_micros(300), 40e6)).unwrap();
        assert!((195.0..196.0).contains(&tau), "{tau}");
        assert_eq!(
            crossover(640e3, CostModel::new(Span::from_micros(300), 500e3)),
            None
        );
    }

    #[test]
    fn calibration_ignores_stalls() {
        let mut runs = 0;
        let cost_model = calibrate(&[1, 8, 64, 512, 4096], 5, |jobs| {
            runs += 1;
            gpu().time(jobs).times(if runs % 3 == 0 { 20 } else { 1 })
        });
        assert!(is_close(cost_model, gpu(), 0.01), "{cost_model:?}");
        assert_eq!(runs, 30);
        let one_size = calibrate(&[100], 3, |_| Span::from_micros(100));
        assert!((one_size.per_job_s - 1e-6).abs() < 1e-12 && one_size.overhead_s == 0.0);
        assert!(calibrate(&[], 3, |_| Span::ZERO).rate().is_finite());
    }

    #[test]
    fn a_wrong_calibration_is_corrected() {
        seeds(20, |_, choices| {
            let mut estimate = Estimate::new(CostModel::new(Span::from_millis(3), 500e3));
            for _ in 0..300 {
                let jobs = 1 + choices.below(5_000) as usize;
                estimate.observe(jobs as f64, noisy_time(choices, gpu(), jobs));
            }
            assert!(is_close(estimate.cost_model(), gpu(), 0.2), "{estimate:?}");
        });
    }

    #[test]
    fn a_slower_lane_is_recognized() {
        let mut estimate = Estimate::new(gpu());
        let slow = gpu().scaled(10.0);
        for turn in 0..200 {
            let jobs = 100 + (turn * 97) % 4_000;
            estimate.observe(jobs as f64, slow.time(jobs));
        }
        assert!(is_close(estimate.cost_model(), slow, 0.05), "{estimate:?}");
    }

    #[test]
    fn one_stall_has_little_effect() {
        let mut estimate = Estimate::new(gpu());
        (0..50).for_each(|turn| estimate.observe((500 + turn) as f64, gpu().time(500 + turn)));
        estimate.observe(500.0, gpu().time(500).times(1_000));
        assert!(is_close(estimate.cost_model(), gpu(), 0.06), "{estimate:?}");
    }

    #[test]
    fn batches_of_one_size_keep_the_calibrated_shape() {
        let mut estimate = Estimate::new(gpu());
        let slow = gpu().scaled(3.0);
        (0..200).for_each(|_| estimate.observe(1_000.0, slow.time(1_000)));
        assert!(is_close(estimate.cost_model(), slow, 0.02), "{estimate:?}");
    }

    #[test]
    fn the_model_stays_valid_for_any_observation() {
        seeds(50, |_, choices| {
            let mut estimate = Estimate::new(CostModel {
                overhead_s: -1.0,
                per_job_s: 0.0,
            });
            for _ in 0..200 {
                let magnitude = choices.below(50);
                let duration = Span::from_nanos(choices.below(1 << magnitude));
                estimate.observe(choices.below(100_000) as f64, duration);
                let CostModel {
                    overhead_s,
                    per_job_s,
                } = estimate.cost_model();
                assert!(overhead_s >= 0.0 && per_job_s > 0.0 && (overhead_s + per_job_s).is_finite());
            }
        });
    }
}
