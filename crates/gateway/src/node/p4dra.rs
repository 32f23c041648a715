//! Rounds of `p4dra-classic` (LAP/1 3.1) at a fixed interval. These rounds are for comparison only and affect no device.

use linewarden_protocol::classic::p4dra::Round;

use super::Node;
use super::retry::RetryTimer;
use crate::audit::AuditEvent;
use crate::time::Clock;

/// Maximum number of provers without a proof that a log message lists.
const MISSED_IDS_MAX: usize = 16;

/// State of `p4dra-classic`.
#[derive(Debug, Default)]
pub(super) struct P4draRounds {
    running: Option<OpenP4draRound>,
    /// Retries after a failed draw of random bytes.
    random_retry: RetryTimer,
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

impl Node {
    /// Returns when the next round is due, monotonic clock.
    pub(super) fn p4dra_due_ns(&self) -> Option<u64> {
        let rounds = self.p4dra.as_ref()?;
        if self.stopping || self.status.replaced {
            return None;
        }
        let interval_ns = u64::from(self.settings.p4dra_round_s).saturating_mul(1_000_000_000);
        let planned_ns = rounds
            .running
            .as_ref()
            .map_or(0, |running| running.opened_ns.saturating_add(interval_ns));
        Some(rounds.random_retry.due_ns(planned_ns))
    }

    /// Opens a round if it is due, and reports the previous round.
    pub(super) fn advance_p4dra(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        let now_ns = clock.monotonic_ns;
        if self.p4dra_due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        let Some(mut rounds) = self.p4dra.take() else {
            return;
        };
        self.next_p4dra_round(&mut rounds, now_ns, random);
        self.p4dra = Some(rounds);
    }

    fn next_p4dra_round(
        &mut self,
        rounds: &mut P4draRounds,
        now_ns: u64,
        random: &mut dyn FnMut() -> Option<[u8; 8]>,
    ) {
        let (Some(r), Some(n)) = (random(), random()) else {
            self.status.draws_failed += 1;
            // There is no random number for a jitter, which only a shared resource would need.
            if rounds.random_retry.fail(now_ns, 0) {
                tracing::warn!(
                    action = "check the random number generator of the kernel (getrandom)",
                    "reading random bytes failed; no round of p4dra-classic starts until reading succeeds"
                );
            }
            return;
        };
        rounds.random_retry.succeed();
        if let Some(previous) = &rounds.running {
            self.report_p4dra_round(previous);
        }
        let round = Round { r, n };
        let opened = self
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
        let was_incomplete = rounds
            .running
            .as_ref()
            .is_some_and(|previous| previous.is_incomplete);
        rounds.running = Some(OpenP4draRound {
            round,
            opened_ns: now_ns,
            is_incomplete: !self.send_p4dra(&round, was_incomplete),
        });
    }

    /// Sends the REQUEST; returns whether it was sent on every interface.
    fn send_p4dra(&mut self, round: &Round, was_incomplete: bool) -> bool {
        let sent = self.data_plane.send_p4dra_requests(round);
        let is_sent = sent.is_ok();
        match sent {
            Ok(()) if was_incomplete => tracing::info!("sending requests of p4dra-classic succeeds again"),
            Ok(()) => {}
            Err(error) => {
                if let Some(status) = &mut self.status.p4dra {
                    status.incomplete += 1;
                }
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
    fn report_p4dra_round(&mut self, ended: &OpenP4draRound) {
        let (Some(p4dra), Some(status)) = (self.data_plane.p4dra(), &mut self.status.p4dra) else {
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
        status.rounds += 1;
        (status.verified, status.missed) = (verified, missed);
        tracing::info!(
            round = status.rounds,
            requested,
            verified,
            missed,
            is_incomplete = ended.is_incomplete,
            missed_ids = missed_ids.join(" "),
            "round of p4dra-classic ended"
        );
        self.audit.record(AuditEvent::P4draRound {
            round: status.rounds,
            requested,
            verified,
            missed,
            is_incomplete: ended.is_incomplete,
            missed_ids,
        });
    }
}
