//! The scheduler's record of a lane.

use super::super::class::{Class, PerClass};
use super::super::lane::{LaneKind, LaneSpec};
use super::super::model::{CostModel, Estimate};
use super::super::queue::SenderFilter;
use super::super::time::{Span, Time};

/// The scheduler's record of a lane.
pub(super) struct Slot {
    pub(super) spec: LaneSpec,
    pub(super) state: State,
    pub(super) estimates: PerClass<Option<Estimate>>,
    /// Consecutive batches of immediate jobs.
    pub(super) immediate_in_a_row: u32,
    /// Lane time of normal jobs, recorded while both known and unknown senders have waiting jobs.
    pub(super) shares: TimeShares,
    /// No refill starts before this time, since the latest refill made no masks.
    pub(super) refill_after: Time,
}

impl Slot {
    pub(super) fn new(spec: LaneSpec) -> Self {
        let estimates = PerClass::from_fn(|class| spec.costs.of(class).map(Estimate::new));
        Self {
            spec,
            state: State::Absent,
            estimates,
            immediate_in_a_row: 0,
            shares: TimeShares::default(),
            refill_after: Time::ZERO,
        }
    }

    /// Whether the lane is not lost. A lane that has not started yet counts as usable.
    pub(super) fn is_usable(&self) -> bool {
        !matches!(self.state, State::Lost { .. } | State::Probing { .. })
    }

    pub(super) fn is_accelerator(&self) -> bool {
        self.spec.kind == LaneKind::Accelerator
    }

    pub(super) fn cost_model(&self, class: Class) -> Option<CostModel> {
        self.estimates.of(class).as_ref().map(Estimate::cost_model)
    }

    pub(super) fn observe(&mut self, class: Class, work: f64, duration: Span) {
        if let Some(estimate) = self.estimates.of_mut(class) {
            estimate.observe(work, duration);
        }
    }
}

/// Division of a lane's time between known and unknown senders while normal jobs of both wait.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct TimeShares {
    known_s: f64,
    unknown_s: f64,
}

impl TimeShares {
    /// Time of known senders for each second of unknown senders.
    const KNOWN: f64 = 3.0;

    /// The senders served next.
    pub(super) fn next(self) -> SenderFilter {
        if self.unknown_s * Self::KNOWN < self.known_s {
            SenderFilter::Unknown
        } else {
            SenderFilter::Known
        }
    }

    /// Records lane time used for known or for unknown senders. Resets the record unless both kinds of senders
    /// have waiting jobs.
    pub(super) fn record(&mut self, senders: SenderFilter, seconds: f64, both_wait: bool) {
        if !both_wait {
            *self = Self::default();
        } else if senders == SenderFilter::Unknown {
            self.unknown_s += seconds;
        } else {
            self.known_s += seconds;
        }
    }
}

/// State of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Absent,
    Idle {
        wait: Option<Wait>,
    },
    Running {
        class: Class,
        jobs: usize,
        work: f64,
    },
    Refilling {
        class: Class,
        count: usize,
    },
    /// `delay`: time from the loss, or from the latest failed probe, to the next probe.
    Lost {
        probe_at: Time,
        delay: Span,
    },
    Probing {
        delay: Span,
    },
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Idle { .. } => "idle",
            Self::Running { .. } => "running",
            Self::Refilling { .. } => "refilling",
            Self::Lost { .. } => "lost",
            Self::Probing { .. } => "probing",
        }
    }
}

/// What ends the wait of an idle accelerator: a time, or a number of additional jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) until: Time,
    pub(super) additional_jobs: usize,
}
