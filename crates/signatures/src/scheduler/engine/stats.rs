//! Statistics of lanes, and snapshots of the engine.

use hdrhistogram::CreationError;

use super::super::class::{Class, PerClass};
use super::super::counters::Counters;
use super::super::job::JobEntry;
use super::super::lane::LaneKind;
use super::super::latency::LatencyHistograms;
use super::super::model::CostModel;
use super::super::time::{Span, Time};

/// Statistics of a lane. Only the lane's thread writes; the lock is contended only during a snapshot.
pub(super) struct LaneStats {
    pub(super) latency_histograms: LatencyHistograms,
    pub(super) usage: LaneUsage,
}

/// Usage of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneUsage {
    /// Name of the lane.
    pub name: String,
    /// Kind of the lane.
    pub kind: LaneKind,
    /// Completed batches.
    pub batches: u64,
    /// Completed jobs.
    pub jobs: u64,
    /// Time spent on batches.
    pub busy: Span,
    /// Masks made.
    pub masks: u64,
    /// Reason of the latest loss, if there was a loss.
    pub last_loss: Option<String>,
}

impl LaneStats {
    pub(super) fn new(name: String, kind: LaneKind) -> Result<Self, CreationError> {
        let usage = LaneUsage {
            name,
            kind,
            batches: 0,
            jobs: 0,
            busy: Span::ZERO,
            masks: 0,
            last_loss: None,
        };
        Ok(Self {
            latency_histograms: LatencyHistograms::new()?,
            usage,
        })
    }

    pub(super) fn record(&mut self, entries: &[JobEntry], duration: Span, now: Time) {
        self.usage.batches += 1;
        self.usage.jobs += entries.len() as u64;
        self.usage.busy += duration;
        for entry in entries {
            self.latency_histograms.record(
                entry.level,
                now.saturating_since(entry.meta.arrived),
                entry.meta.deadline < now,
            );
        }
    }
}

/// State of the engine at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Name of the policy.
    pub policy: &'static str,
    /// Counters of the scheduler.
    pub counters: Counters,
    /// Numbers of waiting immediate jobs and of other waiting jobs.
    pub waiting: (usize, usize),
    /// Jobs in batches.
    pub in_batches: usize,
    /// Number of masks in the pool, as counted by the scheduler.
    pub mask_stock: usize,
    /// Latencies from arrival to result, by the level at admission.
    pub latencies: LatencyHistograms,
    /// Usage of the lanes.
    pub lanes: Vec<LaneUsage>,
    /// Estimated costs on the lanes.
    pub estimates: Vec<PerClass<Option<CostModel>>>,
    /// Panics of the sink.
    pub sink_panics: u64,
    /// Events that the scheduler's [`Core`](super::super::Core) rejected; any number above 0 is an error of the engine.
    pub errors: u64,
}

impl Snapshot {
    /// The estimated cost of a class on the lane with this index.
    pub fn cost_model(&self, lane: usize, class: Class) -> Option<CostModel> {
        *self.estimates.get(lane)?.of(class)
    }
}
