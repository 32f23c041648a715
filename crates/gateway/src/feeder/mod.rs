//! The controller's side of the exchange: questions in, answers out, on a thread of its own.
//!
//! Six tasks serve them, so that a revocation does not wait behind a fleet that is being loaded, nor a device that
//! wants to authenticate behind either, nor anybody behind reports of sessions, attestation or a slow key.

mod figures;
mod local;
mod remote;

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_controller::attest::RoundOutcome;
use linewarden_controller::trust::Times;
use linewarden_controller::{Controller, SessionReport};
use linewarden_dataplane::{Counters, Handling, Opening};
use linewarden_link::Client;
use linewarden_protocol::ids::GatewayId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::evidence_source::EvidenceSource;
use crate::exchange::{Answer, Ask};
use crate::gateway::random;
use crate::node::Status;
use crate::time::Clock;

/// How a gateway reaches its controller.
#[derive(Clone, Debug)]
pub enum ControllerLink {
    /// It is in this process.
    InProcess(Controller),
    /// It is one of several behind a network.
    Remote(Client, About),
}

/// What a gateway says of itself that does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The kind of its data plane.
    pub dataplane: String,
    /// Devices that fit.
    pub slots: u64,
}

impl From<Controller> for ControllerLink {
    fn from(controller: Controller) -> Self {
        Self::InProcess(controller)
    }
}

impl From<Client> for ControllerLink {
    fn from(client: Client) -> Self {
        Self::Remote(client, About::default())
    }
}

/// Where questions are handed in.
pub(crate) struct Desks {
    resume: UnboundedSender<Ask>,
    rows: UnboundedSender<Ask>,
    reports: UnboundedSender<Ask>,
    changes: UnboundedSender<Ask>,
    evidence: UnboundedSender<Ask>,
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
            Ask::Evidence { .. } => &self.evidence,
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
    evidence: UnboundedReceiver<Ask>,
    attestation: UnboundedReceiver<Ask>,
}

impl Feeder {
    pub(crate) fn new(
        controller: ControllerLink,
        gateway: GatewayId,
        source: Option<EvidenceSource>,
    ) -> (Self, Desks) {
        let (resume, resume_inbox) = unbounded_channel();
        let (rows, rows_inbox) = unbounded_channel();
        let (reports, reports_inbox) = unbounded_channel();
        let (changes, changes_inbox) = unbounded_channel();
        let (evidence, evidence_inbox) = unbounded_channel();
        let (attestation, attestation_inbox) = unbounded_channel();
        let feeder = Self {
            office: match controller {
                ControllerLink::InProcess(controller) => {
                    Office::Local(local::Office::new(controller, gateway, source))
                }
                ControllerLink::Remote(client, about) => {
                    Office::Remote(remote::Office::new(client, about, source))
                }
            },
            resume: resume_inbox,
            rows: rows_inbox,
            reports: reports_inbox,
            changes: changes_inbox,
            evidence: evidence_inbox,
            attestation: attestation_inbox,
        };
        let desks = Desks {
            resume,
            rows,
            reports,
            changes,
            evidence,
            attestation,
        };
        (feeder, desks)
    }

    /// Answers until the desks are gone. `look` tells how the gateway stands.
    pub(crate) async fn serve(
        self,
        answer: impl Fn(Answer),
        look: impl Fn() -> Option<Look> + Clone + Send + 'static,
    ) {
        let Self {
            office,
            resume,
            rows,
            reports,
            changes,
            evidence,
            attestation,
        } = self;
        let answers = async {
            tokio::join!(
                office.serve(resume, &answer),
                office.serve(rows, &answer),
                office.serve(reports, &answer),
                office.serve(changes, &answer),
                office.serve(evidence, &answer),
                office.serve(attestation, &answer),
            )
        };
        tokio::select! {
            _ = answers => {}
            () = office.tell(look) => {}
        }
    }
}

/// Where questions are answered.
enum Office {
    Local(local::Office),
    Remote(remote::Office),
}

/// How a gateway stands now.
pub(crate) struct Look {
    /// When, boot-time clock, ns.
    pub(crate) at_ns: u64,
    pub(crate) status: Status,
    pub(crate) counters: Counters,
    /// `None`: the data plane does not measure it.
    pub(crate) handling: Option<Handling>,
    /// Sessions that live; `None`: the data plane does not count them.
    pub(crate) sessions: Option<u64>,
}

impl Office {
    /// Tells controllers elsewhere how the gateway stands, for as long as it lasts.
    async fn tell(&self, look: impl Fn() -> Option<Look> + Clone + Send + 'static) {
        match self {
            Self::Local(_) => std::future::pending().await,
            Self::Remote(office) => office.tell(look).await,
        }
    }

    /// A line of questions, one after the other.
    async fn serve(&self, mut asks: UnboundedReceiver<Ask>, answer: &impl Fn(Answer)) {
        match self {
            Self::Local(office) => {
                let mut course = local::Course::default();
                while let Some(ask) = asks.recv().await {
                    answer(office.answer(ask, &mut course).await);
                }
            }
            Self::Remote(office) => {
                let mut course = remote::Course::default();
                while let Some(ask) = asks.recv().await {
                    answer(office.answer(ask, &mut course).await);
                }
            }
        }
    }
}

/// What proves a session to the controller.
fn report_of(opening: &Opening, now_ns: u64) -> SessionReport {
    SessionReport {
        message: opening.response,
        loc: opening.loc,
        age_ns: now_ns.saturating_sub(opening.began_ns),
    }
}

fn random_32() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for eight in bytes.chunks_exact_mut(8) {
        eight.copy_from_slice(&random()?);
    }
    Some(bytes)
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

fn times() -> Times {
    Times {
        now_ns: Clock::now().boot_ns,
        now_s: now_s(),
    }
}
