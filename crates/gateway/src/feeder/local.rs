//! A controller in the same process.

use linewarden_controller::attest::Verifier;
use linewarden_controller::trust::{Scrutiny, Verdict};
use linewarden_controller::{Chunk, Controller, Denial, Leases, Link, Reported, SessionReport};
use linewarden_dataplane::{Measurement, Opening};
use linewarden_evidence::statement::Nonce;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{BootId, Moment, RegistryError};

use super::{ended_s, now_s, random_32, report_of, times};
use crate::evidence_source::EvidenceSource;
use crate::exchange::{Answer, Ask, LinkError};
use crate::gateway::random;
use crate::time::{Clock, boot_id};

/// What a line of questions goes on with, by the number of the registration that it is of.
#[derive(Default)]
pub(super) struct Course {
    leases: Option<(u64, Leases)>,
    verifier: Option<(u64, Verifier)>,
}

/// Asks it directly.
pub(super) struct Office {
    controller: Controller,
    gateway: GatewayId,
    boot: Option<BootId>,
    link: tokio::sync::Mutex<Option<Link>>,
    source: Option<EvidenceSource>,
}

impl Office {
    pub(super) fn new(controller: Controller, gateway: GatewayId, source: Option<EvidenceSource>) -> Self {
        Self {
            controller,
            gateway,
            boot: boot_id(),
            link: tokio::sync::Mutex::default(),
            source,
        }
    }

    /// A registration of before the registry was put back is forgotten: the next question makes a new one.
    pub(super) async fn answer(&self, ask: Ask, course: &mut Course) -> Answer {
        let shown = self.link.lock().await.as_ref().map(Link::number);
        let answer = self.answer_under(ask, course).await;
        if matches!(answer.error(), Some(LinkError::Restored(_))) {
            self.link.lock().await.take_if(|now| Some(now.number()) == shown);
        }
        answer
    }

    async fn answer_under(&self, ask: Ask, course: &mut Course) -> Answer {
        self.controller.pass_time(Clock::now().boot_ns);
        match ask {
            Ask::Enter => {
                let number = self.link().await.map(|link| link.number());
                Answer::Entered(number.map_err(|error| self.failed(error)))
            }
            Ask::Resume => {
                let chunk = self.resume(&mut course.leases).await;
                Answer::Chunk(chunk.map_err(|error| self.failed(error)))
            }
            Ask::Evidence { nonce, measurement } => Answer::Judged(self.show(nonce, measurement).await),
            Ask::Lease(wants) => Answer::Rows(
                async { self.link().await?.lease(&wants).await }
                    .await
                    .map_err(|error| self.failed(error)),
            ),
            Ask::Receive { knocks, fresh } => Answer::Receptions(
                async { self.link().await?.receive(&knocks, fresh).await }
                    .await
                    .map_err(|error| self.failed(error)),
            ),
            Ask::Settle(settlements) => Answer::Settled(
                async { self.link().await?.settle(&settlements).await }
                    .await
                    .map_err(|error| self.failed(error)),
            ),
            Ask::Report(openings) => {
                let at_ns = Clock::now().boot_ns;
                let result = self.report(&openings, at_ns).await;
                Answer::Reported {
                    result: result.map_err(|error| self.failed(error)),
                    at_ns,
                }
            }
            Ask::Plan(wish) => {
                let plan = async {
                    let verifier = self.verifier(&mut course.verifier).await?;
                    verifier.plan(wish, now_s(), &mut random).await
                };
                Answer::Plan(plan.await.map_err(|error| self.failed(error)))
            }
            Ask::Provers { start, since } => {
                let provers = async {
                    let verifier = self.verifier(&mut course.verifier).await.map_err(Denial::from)?;
                    verifier.provers(start, since).await
                };
                Answer::Provers(provers.await.map_err(|error| self.failed(error)))
            }
            Ask::Appraise(round) => {
                let appraised = async {
                    let verifier = self.verifier(&mut course.verifier).await?;
                    let now_s = now_s();
                    verifier.appraise(&round, ended_s(&round, now_s), now_s).await
                };
                Answer::Appraised(appraised.await.map_err(|error| self.failed(error)))
            }
            Ask::ProverIds { since } => Answer::ProverIds(
                async { self.link().await?.prover_ids(since).await }
                    .await
                    .map_err(|error| self.failed(error)),
            ),
            Ask::Changes { since } => {
                let at_ns = Clock::now().boot_ns;
                let now = self.moment(at_ns);
                // Before what may fail because of it.
                let scrutiny = self.look().await;
                let result = async { self.link().await?.changes(since, now).await }.await;
                Answer::Changes {
                    result: result.map_err(|error| self.failed(error)),
                    at_ns,
                    scrutiny,
                }
            }
        }
    }

    /// Gateway and controller are one process and go by one clock: an age is exact. `None` where nobody tells which start of
    /// the machine it counts from: then no session can be compared with another gateway's.
    fn moment(&self, boot_ns: u64) -> Option<Moment> {
        Some(Moment {
            boot: self.boot?,
            ns: i64::try_from(boot_ns).unwrap_or(i64::MAX),
        })
    }

    async fn report(&self, openings: &[Opening], now_ns: u64) -> Result<Vec<Reported>, RegistryError> {
        let Some(now) = self.controller.moment(self.moment(now_ns)).await? else {
            return Ok(vec![Reported::Newest; openings.len()]);
        };
        let reports: Vec<SessionReport> = openings
            .iter()
            .map(|opening| report_of(opening, now_ns))
            .collect();
        self.link().await?.report(&reports, now).await
    }

    async fn resume(&self, place: &mut Option<(u64, Leases)>) -> Result<Chunk, Denial> {
        let link = self.link().await?;
        let number = link.number();
        let (_, leases) = match place {
            Some(leases) if leases.0 == number => leases,
            _ => place.insert((number, link.held())),
        };
        leases.next_chunk().await
    }

    /// Knows how the provers stood once the registry has told it.
    async fn verifier<'a>(
        &self,
        place: &'a mut Option<(u64, Verifier)>,
    ) -> Result<&'a mut Verifier, RegistryError> {
        let link = self.link().await?;
        let number = link.number();
        if place.as_ref().is_none_or(|(of, _)| *of != number) {
            *place = None;
        }
        let (_, verifier) = match place {
            Some(verifier) => verifier,
            None => place.insert((number, Verifier::open(link).await?)),
        };
        Ok(verifier)
    }

    /// Registers this process with the first question, and never again: a second time would end the first.
    async fn link(&self) -> Result<Link, RegistryError> {
        let mut link = self.link.lock().await;
        match &*link {
            Some(link) => Ok(link.clone()),
            None => {
                let connected = self.controller.connect(self.gateway, now_s()).await?;
                Ok(link.insert(connected).clone())
            }
        }
    }

    /// What the controller wants to see, and how this gateway stands.
    async fn look(&self) -> Option<Scrutiny> {
        let looked = async { self.link().await?.look(times(), &mut random_32).await }.await;
        match looked {
            Ok(verdict) => Some(self.conclude(verdict?).await),
            Err(error) => {
                tracing::debug!(%error, "whether this gateway is trusted was not found out; asked again");
                None
            }
        }
    }

    /// Has a measurement signed, or the engine asked, and the statement judged.
    async fn show(&self, nonce: Nonce, measurement: Option<Box<Measurement>>) -> Result<Scrutiny, LinkError> {
        let failed = |error: &dyn std::fmt::Display| LinkError::Failed(error.to_string());
        let source = self.source.as_ref();
        let source = source.ok_or_else(|| failed(&"this gateway has no key to sign evidence with"))?;
        let shown = source.show(nonce, measurement).await;
        let shown = shown.map_err(|error| LinkError::NotShown(error.to_string()))?;
        let link = self.link().await.map_err(|error| self.failed(error))?;
        let judged = link
            .judge(shown.statement, Some(shown.inventory), times())
            .await
            .map_err(|error| self.failed(error))?;
        match judged {
            Ok(verdict) => Ok(self.conclude(verdict).await),
            Err(error) => Err(LinkError::Untrusted(error.to_string())),
        }
    }

    async fn conclude(&self, Verdict { scrutiny, link }: Verdict) -> Scrutiny {
        if let Some(link) = link {
            *self.link.lock().await = Some(link);
        }
        scrutiny
    }

    /// An old fence tells of another process, unless this one has lost its leases.
    fn failed(&self, error: impl Into<Denial>) -> LinkError {
        let denial = error.into();
        match &denial {
            Denial::Registry(error) if self.controller.has_distrusted(error) => {
                LinkError::Untrusted(error.to_string())
            }
            _ => denial.into(),
        }
    }
}
