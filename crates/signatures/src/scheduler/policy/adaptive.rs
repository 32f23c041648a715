use super::super::model::Line;
use super::super::time::{Span, Time};
use super::{Choice, Policy, View, wait_for};

/// Batches and the processors' share from the lanes' models, which every batch corrects. Four rules; the
/// simulator's tests compare them with the other policies:
///
/// * *Begin* when more jobs wait than the processors do within the overhead: the last of them is done sooner
///   by the accelerator. If more jobs come than the processors can do, the queue will grow in any case, and
///   to wait for so many would only make them older: then begin with what accumulates during an overhead.
/// * *Split* the jobs so that accelerator and processors end at the same time, where processors count with
///   what new arrivals leave them ([`split`]). If that ends hardly sooner than if the accelerator takes all,
///   it takes all, since what it leaves is in the way of what comes next. But while the processors can do
///   what comes, it takes no more than it does in the time in which they would do all that waits.
/// * *Of a long queue take a part* and come again: the prediction of the arrivals is poor, and a mistake made
///   with a part can be corrected with the rest. The part is large enough that the overhead is a fifth of the
///   batch's time at most, and less where the load needs it.
/// * *Without processors* close a batch by size, age, or the time that deadlines leave.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// Without processors: a job waits so long for others at most.
    pub age_max: Span,
    /// A batch takes so long at most, unless one job does: what comes meanwhile and is more urgent waits for
    /// it.
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

/// A batch's time in overheads, at least: the overhead is a fifth of it.
const OVERHEADS_MIN: f64 = 5.0;
/// The same at the most that efficiency asks for.
const OVERHEADS_MAX: f64 = 40.0;
/// The part of the accelerator's share of a long queue that it takes at once.
const PART: f64 = 0.2;
/// The part of the time until a deadline that is left for scatter.
const MARGIN: f64 = 0.125;
/// A split is worth its trouble if it ends sooner by this part of the time that the accelerator needs for
/// all.
const WORTHWHILE: f64 = 0.125;

/// Of n waiting jobs, the accelerator's share if it and processors with `cpu_rate` are to be done at the same
/// time: the n_a that minimises max(t_a(n_a), (n - n_a) / cpu_rate). Negative if the processors are done
/// within the overhead.
pub fn split(jobs: f64, accelerator: Line, cpu_rate: f64) -> f64 {
    (jobs - cpu_rate * accelerator.overhead_s) / (1.0 + cpu_rate * accelerator.per_job_s)
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn choose(&mut self, view: &View) -> Choice {
        let longest = self.longest(view);
        if view.cpu_rate <= 0.0 {
            return self.alone(view, longest);
        }
        let excess = view.arrivals - view.cpu_rate;
        let begin_at = view.line.overhead_s
            * if excess > 0.0 {
                excess.min(view.cpu_rate)
            } else {
                view.cpu_rate
            };
        if view.waiting as f64 <= begin_at {
            return wait_for(begin_at as usize + 1, view, Time::NEVER);
        }
        Choice::Take((beside_processors(view).max(1.0) as usize).min(longest))
    }
}

/// Jobs of a batch that efficiency asks for. An accelerator that must be busy for a part u of the time with
/// what processors leave over can spend 1 - u on overheads; batches aim at half of that.
fn efficient(view: &View) -> f64 {
    let needed = (view.arrivals - view.cpu_rate).max(0.0) * view.line.per_job_s;
    let overheads = 2.0 / (1.0 - needed).max(f64::EPSILON);
    (overheads.clamp(OVERHEADS_MIN, OVERHEADS_MAX) - 1.0) * view.line.overhead_s / view.line.per_job_s
}

fn beside_processors(view: &View) -> f64 {
    let all = view.waiting as f64;
    let mut share = split(all, view.line, view.cpu_spare);
    let saved_s = (all - share) * view.line.per_job_s;
    if saved_s < WORTHWHILE * view.line.seconds(all) {
        share = all;
    }
    if view.arrivals < view.cpu_rate {
        let without_s = (all / view.cpu_rate).max(view.line.overhead_s * (1.0 + WORTHWHILE));
        share = share.min((without_s - view.line.overhead_s) / view.line.per_job_s);
    }
    let efficient = efficient(view);
    if share <= efficient {
        share
    } else {
        (share * PART).max(efficient)
    }
}

impl Adaptive {
    /// Jobs of a batch at most: within its span, and before the deadline of what is next, unless that would
    /// make batches so small that everything becomes late.
    fn longest(&self, view: &View) -> usize {
        let slack = Span::from_secs_f64(view.deadline.since(view.now).as_secs_f64() * (1.0 - MARGIN));
        let in_time = view.line.jobs_within(slack);
        let overheads = view.line.overhead_s / view.line.per_job_s;
        let in_time = in_time.max(((OVERHEADS_MIN - 1.0) * overheads) as usize);
        view.line
            .jobs_within(self.batch_span_max)
            .min(in_time)
            .clamp(1, view.batch_max.max(1))
    }

    fn alone(&self, view: &View, longest: usize) -> Choice {
        let preferred = (efficient(view) as usize).clamp(1, longest);
        let slack = view.deadline.since(view.now).less(view.line.time(view.waiting));
        let until = (view.oldest + self.age_max).min(view.now + slack);
        if view.waiting >= preferred || until <= view.now {
            Choice::Take(longest)
        } else {
            wait_for(preferred, view, until)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::class::Class;
    use super::*;

    fn view(waiting: usize, arrivals: f64) -> View {
        View {
            now: Time::ZERO + Span::from_millis(100),
            class: Class::P256_VERIFY,
            waiting,
            oldest: Time::ZERO + Span::from_millis(100),
            deadline: Time::NEVER,
            line: Line::new(Span::from_millis(1), 500e3),
            batch_max: 10_000,
            cpu_rate: 100e3,
            cpu_spare: (100e3 - arrivals).max(0.0),
            arrivals,
        }
    }

    fn in_ms(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn choose(view: &View) -> Choice {
        Adaptive::default().choose(view)
    }

    #[test]
    fn a_split_ends_at_the_same_time() {
        let line = Line::new(Span::from_millis(1), 500e3);
        for jobs in [200.0, 5_000.0, 1e6] {
            let share = split(jobs, line, 100e3);
            let (accelerator, processors) = (line.seconds(share), (jobs - share) / 100e3);
            assert!((accelerator / processors - 1.0).abs() < 1e-9);
        }
        assert!(split(99.0, line, 100e3) < 0.0);
        assert_eq!(split(50.0, line, 0.0), 50.0);
    }

    #[test]
    fn it_begins_when_processors_would_be_later() {
        assert_eq!(
            choose(&view(100, 10e3)),
            Choice::Wait {
                until: Time::NEVER,
                more: 1
            }
        );
        assert_eq!(
            choose(&view(20, 10e3)),
            Choice::Wait {
                until: Time::NEVER,
                more: 81
            }
        );
        assert!(matches!(choose(&view(101, 10e3)), Choice::Take(_)));
        assert!(
            matches!(choose(&view(21, 120e3)), Choice::Take(21)),
            "they cannot do all that comes"
        );
        assert_eq!(
            choose(&view(20, 120e3)),
            Choice::Wait {
                until: Time::NEVER,
                more: 1
            }
        );
    }

    #[test]
    fn it_leaves_processors_what_they_have_time_for() {
        // Without arrivals, 1,900 jobs: 1,500 take 4 ms, in which the processors do 400.
        assert_eq!(choose(&view(1_900, 0.0)), Choice::Take(1_500));
        assert_eq!(
            choose(&view(1_900, 100e3)),
            Choice::Take(1_900),
            "no time is left"
        );
        // 12,000: a fifth of the share of 9,916, but 2,000 at least.
        assert_eq!(choose(&view(12_000, 0.0)), Choice::Take(2_000));
    }

    #[test]
    fn no_batch_is_too_long() {
        let take = |change: fn(&mut View)| {
            let mut view = view(60_000, 0.0);
            change(&mut view);
            choose(&view)
        };
        assert_eq!(take(|_| ()), Choice::Take(9_500), "20 ms");
        assert_eq!(take(|view| view.batch_max = 300), Choice::Take(300));
        assert_eq!(
            take(|view| view.deadline = in_ms(108)),
            Choice::Take(3_000),
            "none is late"
        );
        assert_eq!(
            take(|view| view.deadline = in_ms(102)),
            Choice::Take(2_000),
            "or few are"
        );
    }

    #[test]
    fn alone_it_closes_by_size_age_and_deadline() {
        let alone = View {
            cpu_rate: 0.0,
            cpu_spare: 0.0,
            ..view(10, 10e3)
        };
        assert_eq!(
            choose(&alone),
            Choice::Wait {
                until: in_ms(101),
                more: 1_990
            }
        );
        assert_eq!(
            choose(&View {
                waiting: 2_000,
                ..alone
            }),
            Choice::Take(9_500)
        );
        assert_eq!(
            choose(&View {
                oldest: in_ms(99),
                ..alone
            }),
            Choice::Take(9_500)
        );
        let deadline = in_ms(101) + alone.line.time(10).less(Span::from_micros(400));
        let until = in_ms(101).as_nanos() - 400_000;
        assert_eq!(
            choose(&View { deadline, ..alone }),
            Choice::Wait {
                until: Time::from_nanos(until),
                more: 1_990
            }
        );
        assert_eq!(
            choose(&View {
                deadline: in_ms(100),
                ..alone
            }),
            Choice::Take(2_000),
            "late in any case"
        );
    }
}
