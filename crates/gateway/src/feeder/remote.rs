//! Controllers behind a network.

use std::collections::BTreeMap;
use std::time::Duration;

use linewarden_controller::trust::Scrutiny;
use linewarden_controller::{Chunk, SessionReport};
use linewarden_dataplane::Measurement;
use linewarden_evidence::statement::Nonce;
use linewarden_link::{Client, Remote, Told};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::LeasedPlace;

use super::figures::Figures;
use super::{About, Look, report_of};
use crate::desk::Counts as DeskCounts;
use crate::evidence_source::EvidenceSource;
use crate::exchange::{Answer, Ask, LinkError};
use crate::time::Clock;

/// From one word about how this gateway stands to the next.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Where the walk through what this gateway held stands, and of which registration.
#[derive(Default)]
pub(super) struct Course {
    resumed: Option<(u64, LeasedPlace)>,
}

/// Asks them, one at a time.
pub(super) struct Office {
    client: Client,
    about: About,
    /// Of this process; none before the first question.
    fence: tokio::sync::Mutex<Option<u64>>,
    source: Option<EvidenceSource>,
}

impl From<Remote> for LinkError {
    fn from(error: Remote) -> Self {
        match error {
            Remote::Failed(why) => Self::Failed(why),
            Remote::Untrusted(why) => Self::Untrusted(why),
            Remote::Replaced(why) => Self::Replaced(why),
            Remote::Restored(why) => Self::Restored(why),
        }
    }
}

impl Office {
    pub(super) fn new(client: Client, about: About, source: Option<EvidenceSource>) -> Self {
        Self {
            client,
            about,
            fence: tokio::sync::Mutex::default(),
            source,
        }
    }

    /// A registration of before the registry was put back is forgotten: the next question makes a new one.
    pub(super) async fn answer(&self, ask: Ask, course: &mut Course) -> Answer {
        // Without a registration no question can be asked.
        let fence = self.fence().await;
        let shown = fence.as_ref().ok().copied();
        let answer = self.answer_under(fence, ask, course).await;
        if matches!(answer.error(), Some(LinkError::Restored(_))) {
            self.fence.lock().await.take_if(|now| Some(*now) == shown);
        }
        answer
    }

    async fn answer_under(&self, fence: Result<u64, LinkError>, ask: Ask, course: &mut Course) -> Answer {
        match ask {
            Ask::Enter => Answer::Entered(fence),
            Ask::Resume => Answer::Chunk(async { self.resume(fence?, course).await }.await),
            Ask::Evidence { nonce, measurement } => {
                Answer::Judged(async { self.show(fence?, nonce, measurement).await }.await)
            }
            Ask::Lease(wants) => Answer::Rows(async { Ok(self.client.lease(fence?, &wants).await?) }.await),
            Ask::Receive { knocks, fresh } => {
                Answer::Receptions(async { Ok(self.client.receive(fence?, &knocks, fresh).await?) }.await)
            }
            Ask::Settle(settlements) => {
                Answer::Settled(async { Ok(self.client.settle(fence?, &settlements).await?) }.await)
            }
            Ask::Report(openings) => {
                let at_ns = Clock::now().boot_ns;
                let reports: Vec<SessionReport> =
                    openings.iter().map(|opening| report_of(opening, at_ns)).collect();
                let result = async { Ok(self.client.report(fence?, &reports).await?) }.await;
                Answer::Reported { result, at_ns }
            }
            Ask::Plan(wish) => Answer::Plan(async { Ok(self.client.plan(fence?, wish).await?) }.await),
            Ask::Provers { start, since } => {
                Answer::Provers(async { Ok(self.client.provers(fence?, start, since).await?) }.await)
            }
            Ask::Appraise(round) => {
                let age_ns = Clock::now().boot_ns.saturating_sub(round.ended_ns);
                Answer::Appraised(async { Ok(self.client.appraise(fence?, &round, age_ns).await?) }.await)
            }
            Ask::ProverIds { since } => {
                Answer::ProverIds(async { Ok(self.client.prover_ids(fence?, since).await?) }.await)
            }
            Ask::Changes { since } => {
                let at_ns = Clock::now().boot_ns;
                let found = async { Ok(self.client.changes(fence?, since).await?) }.await;
                let (result, scrutiny) = match found {
                    Ok((changes, scrutiny)) => (Ok(changes), scrutiny),
                    Err(error) => (Err(error), None),
                };
                let scrutiny = match scrutiny {
                    Some(scrutiny) => Some(self.conclude(scrutiny).await),
                    None => None,
                };
                Answer::Changes {
                    result,
                    at_ns,
                    scrutiny,
                }
            }
        }
    }

    /// Says how the gateway stands, once a second.
    pub(super) async fn tell(&self, look: impl Fn() -> Option<Look> + Clone + Send + 'static) {
        let mut clock = tokio::time::interval(TELL_EVERY);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut figures = Figures::default();
        loop {
            clock.tick().await;
            // Nobody is registered for the sake of this.
            let Some(fence) = *self.fence.lock().await else {
                continue;
            };
            // The control thread answers, which others may keep waiting.
            let looked = tokio::task::spawn_blocking(look.clone()).await;
            let Ok(Some(look)) = looked else {
                continue;
            };
            let live = figures.take(&look);
            let told = Told {
                dataplane: self.about.dataplane.clone(),
                devices: look.status.devices,
                slots: self.about.slots,
                sessions: look.sessions,
                authentications_per_s: live.authentications_per_s,
                latency_us_p50: live.latency_us_p50,
                latency_us_p99: live.latency_us_p99,
                verdicts: Verdict::ALL
                    .iter()
                    .map(|verdict| (verdict.name().to_owned(), look.counters.get(*verdict)))
                    .filter(|(_, count)| *count > 0)
                    .collect(),
                dropped_types: look.status.dropped_types.clone(),
                kernel_drops: kernel_drops(&look),
                tickets: look.status.tickets.as_ref().map(tickets).unwrap_or_default(),
            };
            match self.client.tell(fence, &told).await {
                Ok(()) => {}
                // Another process tells.
                Err(Remote::Replaced(_)) => std::future::pending().await,
                // It is told again in a second.
                Err(error) => tracing::debug!(%error, "the controller was not told how this gateway stands"),
            }
        }
    }

    /// Registers this process with the first question, and never again: a second time would end the first.
    async fn fence(&self) -> Result<u64, LinkError> {
        let mut fence = self.fence.lock().await;
        match *fence {
            Some(fence) => Ok(fence),
            None => Ok(*fence.insert(self.client.enter().await?)),
        }
    }

    async fn resume(&self, fence: u64, course: &mut Course) -> Result<Chunk, LinkError> {
        let place = course.resumed.filter(|(of, _)| *of == fence);
        let place = place.map_or_else(LeasedPlace::default, |(_, place)| place);
        let (chunk, place) = self.client.resume(fence, place).await?;
        course.resumed = Some((fence, place));
        Ok(chunk)
    }

    /// Has a measurement signed, or the engine asked, and the statement judged.
    async fn show(
        &self,
        fence: u64,
        nonce: Nonce,
        measurement: Option<Box<Measurement>>,
    ) -> Result<Scrutiny, LinkError> {
        let source = self.source.as_ref();
        let source = source
            .ok_or_else(|| LinkError::Failed("this gateway has no key to sign evidence with".to_owned()))?;
        let shown = source.show(nonce, measurement).await;
        let shown = shown.map_err(|error| LinkError::NotShown(error.to_string()))?;
        let judged = self
            .client
            .show(fence, &shown.statement, &shown.inventory)
            .await?;
        Ok(self.conclude(judged).await)
    }

    /// The fence was raised where the controller has taken this gateway's leases away.
    async fn conclude(&self, (scrutiny, raised): (Scrutiny, Option<u64>)) -> Scrutiny {
        if let Some(raised) = raised {
            *self.fence.lock().await = Some(raised);
            self.client.raised(raised);
        }
        scrutiny
    }
}

fn kernel_drops(look: &Look) -> BTreeMap<String, u64> {
    let tickets = look.status.tickets.map_or(0, |tickets| tickets.kernel_drops);
    by_name(Told::KERNEL_DROPS, [look.counters.kernel_drops, tickets])
}

fn tickets(counts: &DeskCounts) -> BTreeMap<String, u64> {
    let DeskCounts {
        answered,
        strange,
        limited,
        silent,
        failed,
        kernel_drops: _,
    } = *counts;
    by_name(Told::TICKETS, [answered, strange, limited, silent, failed])
}

fn by_name<const N: usize>(names: [&str; N], counts: [u64; N]) -> BTreeMap<String, u64> {
    names.map(str::to_owned).into_iter().zip(counts).collect()
}
