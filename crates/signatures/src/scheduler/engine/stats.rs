//! What each lane has done, and the whole at one moment.

use hdrhistogram::CreationError;

use super::super::class::{Class, PerClass};
use super::super::counters::Counters;
use super::super::job::Ticket;
use super::super::lane::LaneKind;
use super::super::latency::LatencyBook;
use super::super::model::Line;
use super::super::time::{Span, Time};

/// What a lane has done. Only its own thread writes; the lock is free but for the moment of a snapshot.
pub(super) struct LaneStats {
    pub(super) book: LatencyBook,
    pub(super) usage: LaneUsage,
}

/// What a lane has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneUsage {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: LaneKind,
    /// Batches that it did.
    pub batches: u64,
    /// Jobs in them.
    pub jobs: u64,
    /// How long it worked on them.
    pub busy: Span,
    /// Masks that it made.
    pub masks: u64,
    /// Why it was lost the last time, if it was.
    pub lost: Option<String>,
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
            lost: None,
        };
        Ok(Self {
            book: LatencyBook::new()?,
            usage,
        })
    }

    pub(super) fn note(&mut self, tickets: &[Ticket], took: Span, now: Time) {
        self.usage.batches += 1;
        self.usage.jobs += tickets.len() as u64;
        self.usage.busy += took;
        for ticket in tickets {
            self.book.record(
                ticket.level,
                now.since(ticket.meta.arrived),
                ticket.meta.deadline < now,
            );
        }
    }
}

/// The engine at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The policy.
    pub policy: &'static str,
    /// The core's counts.
    pub counters: Counters,
    /// Immediate and other jobs that wait.
    pub waiting: (usize, usize),
    /// Jobs that are being worked on.
    pub in_batches: usize,
    /// Masks in the pool, as far as the core knows.
    pub mask_stock: usize,
    /// Latencies from arrival to result, by the level that jobs were let in at.
    pub latencies: LatencyBook,
    /// What the lanes have done.
    pub lanes: Vec<LaneUsage>,
    /// What the lanes are believed to take.
    pub lines: Vec<PerClass<Option<Line>>>,
    /// Panics of the sink.
    pub sink_panics: u64,
    /// Events that the core did not take; more than 0 is an error of the engine.
    pub errors: u64,
}

impl Snapshot {
    /// What a lane, by its place in the list, is believed to take for a class.
    pub fn line(&self, lane: usize, class: Class) -> Option<Line> {
        *self.lines.get(lane)?.of(class)
    }
}
