//! A lane's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::super::core::{Event, Start};
use super::super::job::{Batch, Outcome};
use super::super::lane::LaneId;
use super::super::time::Span;
use super::lane::{Lane, LaneLost};
use super::shared::{Done, Shared};
use super::stats::LaneUsage;

pub(super) struct Worker<J> {
    pub(super) shared: Arc<Shared<J>>,
    pub(super) id: LaneId,
    pub(super) lane: Box<dyn Lane<J>>,
    pub(super) outcomes: Vec<Outcome>,
}

impl<J> Worker<J> {
    /// Works until the end.
    pub(super) fn work(mut self) {
        let mut next = self.shared.next(self.id, Event::LaneIdle(self.id));
        while let Some(start) = next {
            next = match start {
                Start::Run(batch) => self.run(batch),
                Start::Refill(count) => self.refill(count),
                Start::Probe => self.probe(),
            };
        }
    }

    fn run(&mut self, mut batch: Batch<J>) -> Option<Start<J>> {
        self.outcomes.clear();
        let begin = Instant::now();
        let (lane, outcomes) = (&mut self.lane, &mut self.outcomes);
        let done = guarded(|| lane.run(batch.class, &mut batch.payloads, outcomes));
        let took: Span = begin.elapsed().into();
        let done = done.and_then(|()| match self.outcomes.len() {
            found if found == batch.len() => Ok(()),
            found => Err(LaneLost(format!("{found} outcomes of {} jobs", batch.len()))),
        });
        if let Err(why) = done {
            self.note_loss(why);
            return self.shared.next(
                self.id,
                Event::LaneLost {
                    lane: self.id,
                    batch: Some(batch),
                },
            );
        }
        let at = self.shared.now();
        if let Some(stats) = self.shared.stats.get(self.id.0) {
            stats
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .note(&batch.tickets, took, at);
        }
        let Batch {
            tickets, payloads, ..
        } = &mut batch;
        let done = Done {
            lane: self.id,
            at,
            tickets,
            payloads,
            outcomes: &mut self.outcomes,
        };
        self.shared.call_sink(|sink| sink.done(done));
        self.shared.next(
            self.id,
            Event::BatchDone {
                lane: self.id,
                batch,
                outcomes: &self.outcomes,
                // With the handing on, for which the lane is busy too: so long it is until it may begin another.
                took: begin.elapsed().into(),
            },
        )
    }

    fn refill(&mut self, count: usize) -> Option<Start<J>> {
        let begin = Instant::now();
        let lane = self.id;
        match guarded(|| self.lane.refill(count)) {
            Ok(made) => {
                let took = begin.elapsed().into();
                self.note(|usage| usage.masks += made as u64);
                self.shared.next(lane, Event::RefillDone { lane, made, took })
            }
            Err(why) => {
                self.note_loss(why);
                self.shared.next(lane, Event::LaneLost { lane, batch: None })
            }
        }
    }

    fn probe(&mut self) -> Option<Start<J>> {
        let result = guarded(|| self.lane.probe());
        let alive = result.is_ok();
        result.unwrap_or_else(|why| self.note_loss(why));
        self.shared.next(self.id, Event::Probed { lane: self.id, alive })
    }

    fn note_loss(&self, LaneLost(why): LaneLost) {
        self.note(|usage| usage.lost = Some(why));
    }

    fn note(&self, what: impl FnOnce(&mut LaneUsage)) {
        if let Some(stats) = self.shared.stats.get(self.id.0) {
            what(&mut stats.lock().unwrap_or_else(PoisonError::into_inner).usage);
        }
    }
}

/// A panic of a lane is its loss: its jobs are still here.
fn guarded<T>(call: impl FnOnce() -> Result<T, LaneLost>) -> Result<T, LaneLost> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(LaneLost(format!("panic: {}", text.unwrap_or("without a text"))))
    })
}
