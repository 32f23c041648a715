use super::super::model::CostModel;
use super::super::time::{Span, Time};
use super::{Policy, PolicyDecision, PolicyInput, wait_for};

/// Determines batches and the share of the CPU lanes from the cost models of the lanes, which every batch corrects. The
/// simulator's tests compare this policy with the other policies. The policy has four rules:
///
/// * *Begin*: the accelerator begins when more jobs wait than the CPU lanes can process within the overhead,
///   since the accelerator then finishes the last job sooner. If more jobs arrive than the CPU lanes can process,
///   the queue grows in any case, and a longer wait would only delay jobs. The accelerator then begins with the jobs
///   that accumulate during an overhead.
/// * *Split*: accelerator and CPU lanes share the jobs so that they finish at the same time. The rate of the
///   CPU lanes counts without the part that new arrivals need ([`split`]). If a split is hardly faster than a batch of all
///   jobs, the accelerator takes all jobs, since remaining jobs delay later jobs. But while the CPU lanes can
///   process all arriving jobs, a batch takes no longer than the CPU lanes would need for all waiting jobs.
/// * *Take a part of a long queue*: the prediction of the arrivals is inaccurate, and the next batch can
///   correct an error. The part is large enough that the overhead is at most a fifth of the batch's time. Under
///   load, the overhead must be an even smaller fraction.
/// * *Without CPU lanes*: a batch begins when enough jobs wait, when a job has waited for the maximum time, or when a
///   deadline requires it.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// Without CPU lanes: maximum time that a job waits for other jobs.
    pub age_max: Span,
    /// Maximum time of a batch, since more urgent arrivals wait for the batch. A single job may take longer.
    pub batch_span_max: Span,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            age_max: Span::from_millis(1),
            batch_span_max: Span::from_millis(20),
        }
    }
}

/// Minimum time of a batch, as a multiple of the overhead: the overhead is then a fifth of the time.
const OVERHEADS_MIN: f64 = 5.0;
/// Upper limit of the minimum time of a batch under load, as a multiple of the overhead.
const OVERHEADS_MAX: f64 = 40.0;
/// The fraction of the accelerator's share of a long queue for one batch.
const BATCH_FRACTION: f64 = 0.2;
/// The fraction of the time until a deadline that is reserved for variations of the batch time.
const MARGIN: f64 = 0.125;
/// A split is worthwhile if it ends sooner by this fraction of the time that the accelerator needs for all
/// jobs.
const SPLIT_GAIN_MIN: f64 = 0.125;

/// The accelerator's share of n = `jobs` waiting jobs with which the accelerator and CPU lanes with `cpu_rate` finish
/// at the same time: the n_a that minimizes max(t_a(n_a), (n - n_a) / cpu_rate). Negative if the CPU lanes finish
/// within the overhead.
pub fn split(jobs: f64, accelerator: CostModel, cpu_rate: f64) -> f64 {
    (jobs - cpu_rate * accelerator.overhead_s) / (1.0 + cpu_rate * accelerator.per_job_s)
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn choose(&mut self, input: &PolicyInput) -> PolicyDecision {
        let longest_batch = self.longest_batch(input);
        if input.cpu_rate <= 0.0 {
            return self.choose_without_cpu_lanes(input, longest_batch);
        }
        let excess = input.arrivals - input.cpu_rate;
        let begin_at = input.cost.overhead_s
            * if excess > 0.0 {
                excess.min(input.cpu_rate)
            } else {
                input.cpu_rate
            };
        if input.waiting as f64 <= begin_at {
            return wait_for(begin_at as usize + 1, input, Time::NEVER);
        }
        PolicyDecision::Take((share_with_cpu_lanes(input).max(1.0) as usize).min(longest_batch))
    }
}

/// The smallest batch size that is efficient. If the jobs that CPU lanes leave need a fraction u of the accelerator's time,
/// overheads may take the fraction 1 - u. The batch size is chosen so that overheads take half of that fraction.
fn efficient_batch(input: &PolicyInput) -> f64 {
    let needed = (input.arrivals - input.cpu_rate).max(0.0) * input.cost.per_job_s;
    let overheads = 2.0 / (1.0 - needed).max(f64::EPSILON);
    (overheads.clamp(OVERHEADS_MIN, OVERHEADS_MAX) - 1.0) * input.cost.overhead_s / input.cost.per_job_s
}

/// The accelerator's share of the waiting jobs if there are CPU lanes.
fn share_with_cpu_lanes(input: &PolicyInput) -> f64 {
    let waiting = input.waiting as f64;
    let mut share = split(waiting, input.cost, input.cpu_spare);
    let saved_s = (waiting - share) * input.cost.per_job_s;
    if saved_s < SPLIT_GAIN_MIN * input.cost.seconds(waiting) {
        share = waiting;
    }
    if input.arrivals < input.cpu_rate {
        let without_s = (waiting / input.cpu_rate).max(input.cost.overhead_s * (1.0 + SPLIT_GAIN_MIN));
        share = share.min((without_s - input.cost.overhead_s) / input.cost.per_job_s);
    }
    let efficient_batch = efficient_batch(input);
    if share <= efficient_batch {
        share
    } else {
        (share * BATCH_FRACTION).max(efficient_batch)
    }
}

impl Adaptive {
    /// Maximum batch size: within the maximum time, and before the deadline of the next job, unless that
    /// would make batches so small that every job becomes late.
    fn longest_batch(&self, input: &PolicyInput) -> usize {
        let slack =
            Span::from_secs_f64(input.deadline.saturating_since(input.now).as_secs_f64() * (1.0 - MARGIN));
        let in_time = input.cost.jobs_within(slack);
        let overheads = input.cost.overhead_s / input.cost.per_job_s;
        let in_time = in_time.max(((OVERHEADS_MIN - 1.0) * overheads) as usize);
        input
            .cost
            .jobs_within(self.batch_span_max)
            .min(in_time)
            .clamp(1, input.batch_max.max(1))
    }

    fn choose_without_cpu_lanes(&self, input: &PolicyInput, longest_batch: usize) -> PolicyDecision {
        let preferred = (efficient_batch(input) as usize).clamp(1, longest_batch);
        let slack = input
            .deadline
            .saturating_since(input.now)
            .saturating_sub(input.cost.time(input.waiting));
        let until = (input.oldest + self.age_max).min(input.now + slack);
        if input.waiting >= preferred || until <= input.now {
            PolicyDecision::Take(longest_batch)
        } else {
            wait_for(preferred, input, until)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::class::Class;
    use super::*;

    fn input(waiting: usize, arrivals: f64) -> PolicyInput {
        PolicyInput {
            now: Time::ZERO + Span::from_millis(100),
            class: Class::P256_VERIFY,
            waiting,
            oldest: Time::ZERO + Span::from_millis(100),
            deadline: Time::NEVER,
            cost: CostModel::new(Span::from_millis(1), 500e3),
            batch_max: 10_000,
            cpu_rate: 100e3,
            cpu_spare: (100e3 - arrivals).max(0.0),
            arrivals,
        }
    }

    fn in_ms(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn choose(input: &PolicyInput) -> PolicyDecision {
        Adaptive::default().choose(input)
    }

    #[test]
    fn a_split_ends_at_the_same_time() {
        let cost_model = CostModel::new(Span::from_millis(1), 500e3);
        for jobs in [200.0, 5_000.0, 1e6] {
            let share = split(jobs, cost_model, 100e3);
            let (accelerator, processors) = (cost_model.seconds(share), (jobs - share) / 100e3);
            assert!((accelerator / processors - 1.0).abs() < 1e-9);
        }
        assert!(split(99.0, cost_model, 100e3) < 0.0);
        assert_eq!(split(50.0, cost_model, 0.0), 50.0);
    }

    #[test]
    fn a_batch_begins_when_cpu_lanes_would_finish_later() {
        assert_eq!(
            choose(&input(100, 10e3)),
            PolicyDecision::Wait {
                until: Time::NEVER,
                additional_jobs: 1
            }
        );
        assert_eq!(
            choose(&input(20, 10e3)),
            PolicyDecision::Wait {
                until: Time::NEVER,
                additional_jobs: 81
            }
        );
        assert!(matches!(choose(&input(101, 10e3)), PolicyDecision::Take(_)));
        assert!(
            matches!(choose(&input(21, 120e3)), PolicyDecision::Take(21)),
            "more jobs arrive than the CPU lanes can do"
        );
        assert_eq!(
            choose(&input(20, 120e3)),
            PolicyDecision::Wait {
                until: Time::NEVER,
                additional_jobs: 1
            }
        );
    }

    #[test]
    fn cpu_lanes_keep_the_jobs_that_they_have_time_for() {
        // Without arrivals, 1,900 jobs: 1,500 take 4 ms, in which the CPU lanes do 400.
        assert_eq!(choose(&input(1_900, 0.0)), PolicyDecision::Take(1_500));
        assert_eq!(
            choose(&input(1_900, 100e3)),
            PolicyDecision::Take(1_900),
            "no time is left"
        );
        // 12,000: a fifth of the share of 9,916, but 2,000 at least.
        assert_eq!(choose(&input(12_000, 0.0)), PolicyDecision::Take(2_000));
    }

    #[test]
    fn no_batch_is_too_long() {
        let take = |change: fn(&mut PolicyInput)| {
            let mut input = input(60_000, 0.0);
            change(&mut input);
            choose(&input)
        };
        assert_eq!(take(|_| ()), PolicyDecision::Take(9_500), "20 ms");
        assert_eq!(take(|input| input.batch_max = 300), PolicyDecision::Take(300));
        assert_eq!(
            take(|input| input.deadline = in_ms(108)),
            PolicyDecision::Take(3_000),
            "no job is late"
        );
        assert_eq!(
            take(|input| input.deadline = in_ms(102)),
            PolicyDecision::Take(2_000),
            "or few jobs are late"
        );
    }

    #[test]
    fn without_cpu_lanes_batches_close_by_size_age_and_deadline() {
        let alone = PolicyInput {
            cpu_rate: 0.0,
            cpu_spare: 0.0,
            ..input(10, 10e3)
        };
        assert_eq!(
            choose(&alone),
            PolicyDecision::Wait {
                until: in_ms(101),
                additional_jobs: 1_990
            }
        );
        assert_eq!(
            choose(&PolicyInput {
                waiting: 2_000,
                ..alone
            }),
            PolicyDecision::Take(9_500)
        );
        assert_eq!(
            choose(&PolicyInput {
                oldest: in_ms(99),
                ..alone
            }),
            PolicyDecision::Take(9_500)
        );
        let deadline = in_ms(101) + alone.cost.time(10).saturating_sub(Span::from_micros(400));
        let until = in_ms(101).as_nanos() - 400_000;
        assert_eq!(
            choose(&PolicyInput { deadline, ..alone }),
            PolicyDecision::Wait {
                until: Time::from_nanos(until),
                additional_jobs: 1_990
            }
        );
        assert_eq!(
            choose(&PolicyInput {
                deadline: in_ms(100),
                ..alone
            }),
            PolicyDecision::Take(2_000),
            "late in any case"
        );
    }
}
