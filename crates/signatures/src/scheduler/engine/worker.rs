//! The thread of a lane.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::super::core::{Event, LaneTask};
use super::super::job::{Batch, Outcome};
use super::super::lane::LaneId;
use super::super::time::Span;
use super::lane::{Lane, LaneLost};
use super::shared::{BatchResult, Shared};
use super::stats::LaneUsage;

pub(super) struct Worker<J> {
    pub(super) shared: Arc<Shared<J>>,
    pub(super) id: LaneId,
    pub(super) lane: Box<dyn Lane<J>>,
    pub(super) outcomes: Vec<Outcome>,
}

impl<J> Worker<J> {
    /// Processes tasks until the shutdown.
    pub(super) fn work(mut self) {
        let mut next = self.shared.next_task(self.id, Event::LaneIdle(self.id));
        while let Some(task) = next {
            next = match task {
                LaneTask::Run(batch) => self.run(batch),
                LaneTask::Refill(count) => self.refill(count),
                LaneTask::Probe => self.probe(),
            };
        }
    }

    fn run(&mut self, mut batch: Batch<J>) -> Option<LaneTask<J>> {
        self.outcomes.clear();
        let begin = Instant::now();
        let (lane, outcomes) = (&mut self.lane, &mut self.outcomes);
        let result = catch_panic(|| lane.run(batch.class, &mut batch.payloads, outcomes));
        let duration: Span = begin.elapsed().into();
        let result = result.and_then(|()| match self.outcomes.len() {
            count if count == batch.len() => Ok(()),
            count => Err(LaneLost(format!("{count} outcomes for {} jobs", batch.len()))),
        });
        if let Err(reason) = result {
            self.record_loss(reason);
            return self.shared.next_task(
                self.id,
                Event::LaneLost {
                    lane: self.id,
                    batch: Some(batch),
                },
            );
        }
        let ended_at = self.shared.now();
        if let Some(stats) = self.shared.stats.get(self.id.0) {
            stats
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .record(&batch.entries, duration, ended_at);
        }
        let Batch {
            entries, payloads, ..
        } = &mut batch;
        let result = BatchResult {
            lane: self.id,
            ended_at,
            entries,
            payloads,
            outcomes: &mut self.outcomes,
        };
        self.shared.call_sink(|sink| sink.done(result));
        self.shared.next_task(
            self.id,
            Event::BatchDone {
                lane: self.id,
                batch,
                outcomes: &self.outcomes,
                // Including the calls of the sink, during which the lane cannot start another batch.
                duration: begin.elapsed().into(),
            },
        )
    }

    fn refill(&mut self, count: usize) -> Option<LaneTask<J>> {
        let begin = Instant::now();
        let lane = self.id;
        match catch_panic(|| self.lane.refill(count)) {
            Ok(made) => {
                let duration = begin.elapsed().into();
                self.update_usage(|usage| usage.masks += made as u64);
                self.shared
                    .next_task(lane, Event::RefillDone { lane, made, duration })
            }
            Err(reason) => {
                self.record_loss(reason);
                self.shared.next_task(lane, Event::LaneLost { lane, batch: None })
            }
        }
    }

    fn probe(&mut self) -> Option<LaneTask<J>> {
        let result = catch_panic(|| self.lane.probe());
        let alive = result.is_ok();
        result.unwrap_or_else(|reason| self.record_loss(reason));
        self.shared
            .next_task(self.id, Event::Probed { lane: self.id, alive })
    }

    fn record_loss(&self, LaneLost(reason): LaneLost) {
        self.update_usage(|usage| usage.last_loss = Some(reason));
    }

    fn update_usage(&self, update: impl FnOnce(&mut LaneUsage)) {
        if let Some(stats) = self.shared.stats.get(self.id.0) {
            update(&mut stats.lock().unwrap_or_else(PoisonError::into_inner).usage);
        }
    }
}

/// Converts a panic of a lane to a loss of the lane. The jobs still exist and can be repeated.
fn catch_panic<T>(call: impl FnOnce() -> Result<T, LaneLost>) -> Result<T, LaneLost> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(LaneLost(format!("panic: {}", text.unwrap_or("no message"))))
    })
}
