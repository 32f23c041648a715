//! Lanes: executors of batches.

use super::class::{Class, PerClass};
use super::model::CostModel;

/// Index of a lane in the list with which the scheduler was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub usize);

/// Kind of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    /// A CPU lane that waits for immediate jobs. It takes other jobs only while no other lane supports
    /// them.
    Reserved,
    /// A CPU lane: takes immediate jobs first, then other jobs in slices of bounded time, so that an immediate job
    /// never waits long.
    Cpu,
    /// A lane with a high overhead and a high rate. It takes batches as the policy decides, and immediate jobs
    /// only while no CPU lane supports them.
    Accelerator,
}

/// The scheduler's description of a lane.
#[derive(Clone, Debug)]
pub struct LaneSpec {
    /// Name in counters.
    pub name: String,
    /// Kind of the lane.
    pub kind: LaneKind,
    /// The supported classes, with their calibrated costs.
    pub costs: PerClass<Option<CostModel>>,
    /// Maximum jobs in a batch.
    pub batch_max: usize,
    /// Number of jobs that the lane processes side by side; slices are multiples of this number.
    pub grain: usize,
    /// Whether the lane makes masks when idle; the lane must then support the class of refills.
    pub refills: bool,
}

impl LaneSpec {
    /// A lane that supports no class yet, with a grain of one and batches of any size.
    pub fn new(name: impl Into<String>, kind: LaneKind) -> Self {
        let cost_models = PerClass::default();
        Self {
            name: name.into(),
            kind,
            costs: cost_models,
            batch_max: usize::MAX,
            grain: 1,
            refills: false,
        }
    }

    /// Adds a supported class with its cost.
    #[must_use]
    pub fn with_class(mut self, class: Class, cost_model: CostModel) -> Self {
        *self.costs.of_mut(class) = Some(cost_model);
        self
    }

    /// Limits the jobs in a batch.
    #[must_use]
    pub fn with_batch_max(self, batch_max: usize) -> Self {
        Self {
            batch_max: batch_max.max(1),
            ..self
        }
    }

    /// Sets the number of jobs processed side by side.
    #[must_use]
    pub fn with_grain(self, grain: usize) -> Self {
        Self {
            grain: grain.max(1),
            ..self
        }
    }

    /// Lets the lane make masks when idle.
    #[must_use]
    pub fn with_refill(self) -> Self {
        Self {
            refills: true,
            ..self
        }
    }
}
