//! Rounds of `p4dra-classic` (LAP/1 3.1) at a fixed interval. These rounds are for comparison only and affect no device.

use linewarden_protocol::classic::p4dra::Round;

use super::context::{Context, RandomSource};
use super::retry::RetryTimer;
use super::status::{P4draStatus, Status};
use crate::audit::AuditEvent;

/// Maximum number of provers without a proof that a log message lists.
const MISSED_IDS_MAX: usize = 16;

/// State of `p4dra-classic`.
#[derive(Debug)]
pub(super) struct P4draRounds {
    running: Option<OpenP4draRound>,
    /// Retries after a failed draw of random bytes.
    random_retry: RetryTimer,
    status: P4draStatus,
    draws_failed: u64,
}

/// The open round.
#[derive(Debug)]
struct OpenP4draRound {
    round: Round,
    /// Start of the round, monotonic clock.
    opened_ns: u64,
    /// Whether the REQUEST could not be sent on every interface.
    is_incomplete: bool,
}

impl P4draRounds {
    /// `None` if the data plane does not use `p4dra-classic`.
    pub(super) fn new(context: &mut Context) -> Option<Self> {
        let provers = context.data_plane.p4dra()?.provers() as u64;
        Some(Self {
            running: None,
            random_retry: RetryTimer::default(),
            status: P4draStatus {
                provers,
                ..P4draStatus::default()
            },
            draws_failed: 0,
        })
    }

    /// Returns when the next round is due, monotonic clock.
    pub(super) fn due_ns(&self, context: &Context) -> u64 {
        let interval_ns = u64::from(context.settings.p4dra_round_s).saturating_mul(1_000_000_000);
        let planned_ns = self
            .running
            .as_ref()
            .map_or(0, |running| running.opened_ns.saturating_add(interval_ns));
        self.random_retry.due_ns(planned_ns)
    }

    /// Opens a round if it is due, and reports the previous round.
    pub(super) fn advance(&mut self, context: &mut Context, random: RandomSource<'_>) {
        let now_ns = context.now_ns();
        if self.due_ns(context) > now_ns {
            return;
        }
        let (Some(r), Some(n)) = (random(), random()) else {
            self.draws_failed += 1;
            // There is no random number for a jitter, which only a shared resource would need.
            if self.random_retry.fail(now_ns, 0) {
                tracing::warn!(
                    action = "check the random number generator of the kernel (getrandom)",
                    "reading random bytes failed; no round of p4dra-classic starts until reading succeeds"
                );
            }
            return;
        };
        self.random_retry.succeed();
        let previous = self.running.take();
        if let Some(previous) = &previous {
            self.report_round(previous, context);
        }
        let round = Round { r, n };
        let opened = context
            .data_plane
            .p4dra()
            .is_some_and(|p4dra| p4dra.open_round(round));
        if !opened {
            // An earlier round has the same 128 random bits: the random source repeats its output.
            tracing::error!(
                action = "check the random number generator of the kernel (getrandom)",
                "opening a round of p4dra-classic failed: its random numbers are in use by an earlier round; the next round follows after round_s"
            );
        }
        let was_incomplete = previous.is_some_and(|previous| previous.is_incomplete);
        self.running = Some(OpenP4draRound {
            round,
            opened_ns: now_ns,
            is_incomplete: !self.send_requests(&round, was_incomplete, context),
        });
    }

    /// Sends the REQUEST; returns whether it was sent on every interface.
    fn send_requests(&mut self, round: &Round, was_incomplete: bool, context: &mut Context) -> bool {
        let sent = context.data_plane.send_p4dra_requests(round);
        let is_sent = sent.is_ok();
        match sent {
            Ok(()) if was_incomplete => tracing::info!("sending requests of p4dra-classic succeeds again"),
            Ok(()) => {}
            Err(error) => {
                self.status.incomplete += 1;
                if !was_incomplete {
                    tracing::warn!(
                        %error,
                        action = "check that the interfaces are up (`ip link`)",
                        "sending a request of p4dra-classic failed; the round is incomplete"
                    );
                }
            }
        }
        is_sent
    }

    /// Reports a round at its end.
    fn report_round(&mut self, ended: &OpenP4draRound, context: &mut Context) {
        let Some(p4dra) = context.data_plane.p4dra() else {
            return;
        };
        let mut unproved = p4dra.unproved(&ended.round);
        let missed_ids: Vec<String> = unproved
            .by_ref()
            .take(MISSED_IDS_MAX)
            .map(ToString::to_string)
            .collect();
        let (requested, missed) = (
            p4dra.provers() as u64,
            (missed_ids.len() + unproved.count()) as u64,
        );
        let verified = requested.saturating_sub(missed);
        self.status.rounds += 1;
        (self.status.verified, self.status.missed) = (verified, missed);
        let round = self.status.rounds;
        tracing::info!(
            round,
            requested,
            verified,
            missed,
            is_incomplete = ended.is_incomplete,
            missed_ids = missed_ids.join(" "),
            "round of p4dra-classic ended"
        );
        context.audit.record(AuditEvent::P4draRound {
            round,
            requested,
            verified,
            missed,
            is_incomplete: ended.is_incomplete,
            missed_ids,
        });
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.p4dra = Some(self.status.clone());
        status.draws_failed += self.draws_failed;
    }
}
