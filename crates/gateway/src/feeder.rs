//! The controller's side of the exchange: questions in, answers out, on a thread of its own.
//!
//! Five tasks serve them, so that a revocation does not wait behind a fleet that is being loaded, nor a device that
//! wants to authenticate behind either, nor anybody behind reports of sessions or attestation.

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_controller::attest::{RoundOutcome, Verifier};
use linewarden_controller::{Chunk, Controller, Leases, Link, Reported, SessionReport};
use linewarden_dataplane::Opening;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{BootId, Moment, RegistryError};
use tokio::sync::OnceCell;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::exchange::{Answer, Ask};
use crate::gateway::random;
use crate::time::{Clock, boot_id};

/// Where questions are handed in.
pub(crate) struct Desks {
    resume: UnboundedSender<Ask>,
    rows: UnboundedSender<Ask>,
    reports: UnboundedSender<Ask>,
    changes: UnboundedSender<Ask>,
    attestation: UnboundedSender<Ask>,
}

impl Desks {
    /// Without a thread behind them no answer comes; the node goes on with what it holds.
    pub(crate) fn hand_in(&self, ask: Ask) {
        let desk = match ask {
            Ask::Resume => &self.resume,
            // In one line: what is given back must be so before it is asked for again.
            Ask::Lease(_) | Ask::Receive { .. } | Ask::Settle(_) => &self.rows,
            Ask::Report(_) => &self.reports,
            Ask::Enter | Ask::Changes { .. } => &self.changes,
            // In one line: what is decided about a prover is what its next keys go by.
            Ask::Plan(_) | Ask::Provers { .. } | Ask::Appraise(_) | Ask::ProverIds { .. } => {
                &self.attestation
            }
        };
        drop(desk.send(ask));
    }
}

/// What serves the desks.
pub(crate) struct Feeder {
    office: Office,
    resume: UnboundedReceiver<Ask>,
    rows: UnboundedReceiver<Ask>,
    reports: UnboundedReceiver<Ask>,
    changes: UnboundedReceiver<Ask>,
    attestation: UnboundedReceiver<Ask>,
}

impl Feeder {
    pub(crate) fn new(controller: Controller, gateway: GatewayId) -> (Self, Desks) {
        let (resume, resume_inbox) = unbounded_channel();
        let (rows, rows_inbox) = unbounded_channel();
        let (reports, reports_inbox) = unbounded_channel();
        let (changes, changes_inbox) = unbounded_channel();
        let (attestation, attestation_inbox) = unbounded_channel();
        let feeder = Self {
            office: Office {
                controller,
                gateway,
                boot: boot_id(),
                link: OnceCell::new(),
            },
            resume: resume_inbox,
            rows: rows_inbox,
            reports: reports_inbox,
            changes: changes_inbox,
            attestation: attestation_inbox,
        };
        let desks = Desks {
            resume,
            rows,
            reports,
            changes,
            attestation,
        };
        (feeder, desks)
    }

    /// Answers until the desks are gone.
    pub(crate) async fn serve(self, answer: impl Fn(Answer)) {
        let Self {
            office,
            resume,
            rows,
            reports,
            changes,
            attestation,
        } = self;
        tokio::join!(
            office.serve(resume, &answer),
            office.serve(rows, &answer),
            office.serve(reports, &answer),
            office.serve(changes, &answer),
            office.serve(attestation, &answer),
        );
    }
}

/// What a line of questions goes on with.
#[derive(Default)]
struct Course {
    leases: Option<Leases>,
    verifier: Option<Verifier>,
}

fn now_s() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_secs())
}

/// When a round ended, in seconds since 1970-01-01 UTC.
fn ended_s(round: &RoundOutcome, now_s: u64) -> u64 {
    let age_ns = Clock::now().boot_ns.saturating_sub(round.ended_ns);
    now_s.saturating_sub(age_ns / 1_000_000_000)
}

struct Office {
    controller: Controller,
    gateway: GatewayId,
    boot: Option<BootId>,
    link: OnceCell<Link>,
}

impl Office {
    async fn serve(&self, mut asks: UnboundedReceiver<Ask>, answer: &impl Fn(Answer)) {
        let mut course = Course::default();
        while let Some(ask) = asks.recv().await {
            answer(self.answer(ask, &mut course).await);
        }
    }

    async fn answer(&self, ask: Ask, course: &mut Course) -> Answer {
        match ask {
            Ask::Enter => Answer::Entered(self.link().await.map(Link::number).map_err(Into::into)),
            Ask::Resume => Answer::Chunk(self.resume(&mut course.leases).await.map_err(Into::into)),
            Ask::Lease(wants) => Answer::Rows(
                async { self.link().await?.lease(&wants).await }
                    .await
                    .map_err(Into::into),
            ),
            Ask::Receive { knocks, fresh } => Answer::Receptions(
                async { self.link().await?.receive(&knocks, fresh).await }
                    .await
                    .map_err(Into::into),
            ),
            Ask::Settle(settlements) => Answer::Settled(
                async { self.link().await?.settle(&settlements).await }
                    .await
                    .map_err(Into::into),
            ),
            Ask::Report(openings) => {
                let at_ns = Clock::now().boot_ns;
                let result = self.report(&openings, at_ns).await;
                Answer::Reported {
                    result: result.map_err(Into::into),
                    at_ns,
                }
            }
            Ask::Plan(wish) => {
                let plan = async {
                    let verifier = self.verifier(&mut course.verifier).await?;
                    verifier.plan(wish, now_s(), &mut random).await
                };
                Answer::Plan(plan.await.map_err(Into::into))
            }
            Ask::Provers { start, since } => {
                let provers = async {
                    let verifier = self.verifier(&mut course.verifier).await?;
                    verifier.provers(start, since).await
                };
                Answer::Provers(provers.await.map_err(Into::into))
            }
            Ask::Appraise(round) => {
                let appraised = async {
                    let verifier = self.verifier(&mut course.verifier).await?;
                    let now_s = now_s();
                    verifier.appraise(&round, ended_s(&round, now_s), now_s).await
                };
                Answer::Appraised(appraised.await.map_err(Into::into))
            }
            Ask::ProverIds { since } => Answer::ProverIds(
                async { self.link().await?.prover_ids(since).await }
                    .await
                    .map_err(Into::into),
            ),
            Ask::Changes { since } => {
                let at_ns = Clock::now().boot_ns;
                let now = self.moment(at_ns);
                let result = async { self.link().await?.changes(since, now).await }.await;
                Answer::Changes {
                    result: result.map_err(Into::into),
                    at_ns,
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
        let Some(now) = self.moment(now_ns) else {
            return Ok(vec![Reported::Newest; openings.len()]);
        };
        let reports: Vec<SessionReport> = openings
            .iter()
            .map(|opening| SessionReport {
                message: opening.response,
                loc: opening.loc,
                age_ns: now_ns.saturating_sub(opening.began_ns),
            })
            .collect();
        self.link().await?.report(&reports, now).await
    }

    async fn resume(&self, leases: &mut Option<Leases>) -> Result<Chunk, RegistryError> {
        let leases = match leases {
            Some(leases) => leases,
            None => leases.insert(self.link().await?.held()),
        };
        leases.next_chunk().await
    }

    /// Knows how the provers stood once the registry has told it.
    async fn verifier<'a>(&self, place: &'a mut Option<Verifier>) -> Result<&'a mut Verifier, RegistryError> {
        match place {
            Some(verifier) => Ok(verifier),
            None => Ok(place.insert(Verifier::open(self.link().await?.clone()).await?)),
        }
    }

    /// Registers this process with the first question, and never again: a second time would end the first.
    async fn link(&self) -> Result<&Link, RegistryError> {
        let connect = async || self.controller.connect(self.gateway, now_s()).await;
        self.link.get_or_try_init(connect).await
    }
}
