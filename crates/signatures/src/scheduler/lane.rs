//! Lanes: what executes batches.

use super::class::{Class, PerClass};
use super::model::Line;

/// Which lane: its place in the list that the core was made with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub usize);

/// What a lane is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    /// A processor that waits for immediate jobs. It helps out with others only while no other lane can do
    /// them.
    Reserved,
    /// A processor: immediate jobs first, then others in slices bounded in time, so that an immediate one
    /// never waits long.
    Cpu,
    /// High overhead, high rate: batches as the policy says. Immediate jobs only while no processor can do
    /// them.
    Accelerator,
}

/// What the core is told of a lane.
#[derive(Clone, Debug)]
pub struct LaneSpec {
    /// As counters name it.
    pub name: String,
    /// What it is for.
    pub kind: LaneKind,
    /// The classes that it can do, and what it takes for them as calibrated.
    pub lines: PerClass<Option<Line>>,
    /// Jobs of one batch at most.
    pub batch_max: usize,
    /// Jobs that it does side by side: slices are multiples of it.
    pub grain: usize,
    /// Whether it makes masks when it is idle; it must know the class.
    pub refills: bool,
}

impl LaneSpec {
    /// A lane that can do nothing yet, job by job, in batches of any size.
    pub fn new(name: impl Into<String>, kind: LaneKind) -> Self {
        let lines = PerClass::default();
        Self {
            name: name.into(),
            kind,
            lines,
            batch_max: usize::MAX,
            grain: 1,
            refills: false,
        }
    }

    /// It also does this class, and takes so long.
    #[must_use]
    pub fn with(mut self, class: Class, line: Line) -> Self {
        *self.lines.of_mut(class) = Some(line);
        self
    }

    /// With batches of so many jobs at most.
    #[must_use]
    pub fn with_batch_max(self, batch_max: usize) -> Self {
        Self {
            batch_max: batch_max.max(1),
            ..self
        }
    }

    /// Does so many jobs side by side.
    #[must_use]
    pub fn with_grain(self, grain: usize) -> Self {
        Self {
            grain: grain.max(1),
            ..self
        }
    }

    /// Makes masks when it is idle.
    #[must_use]
    pub fn refilling(self) -> Self {
        Self {
            refills: true,
            ..self
        }
    }
}
