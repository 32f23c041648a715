//! Rounds of `p4dra-classic` (LAP/1 3.1): one each so many seconds, and what the one before has shown. They are for comparison
//! only: nobody is shut out by them.

use linewarden_protocol::classic::p4dra::Round;

use super::Node;
use super::backoff::Backoff;
use crate::audit::Happening;
use crate::time::Clock;

/// So many of the silent are named.
const SILENT_NAMED_MAX: usize = 16;

/// What the node knows of `p4dra-classic`.
#[derive(Debug, Default)]
pub(super) struct P4draRounds {
    running: Option<Running>,
    /// Of random bytes.
    draws: Backoff,
}

/// The round that runs.
#[derive(Debug)]
struct Running {
    round: Round,
    /// When it was opened, monotonic clock.
    opened_ns: u64,
    /// Its REQUEST could not be sent out of every interface.
    is_unsent: bool,
}

impl Node {
    /// When the next round is opened, monotonic clock.
    pub(super) fn p4dra_due_ns(&self) -> Option<u64> {
        let rounds = self.p4dra.as_ref()?;
        if self.stopping || self.status.replaced {
            return None;
        }
        let interval_ns = u64::from(self.settings.p4dra_round_s).saturating_mul(1_000_000_000);
        let wanted_ns = rounds
            .running
            .as_ref()
            .map_or(0, |running| running.opened_ns.saturating_add(interval_ns));
        Some(rounds.draws.due_ns(wanted_ns))
    }

    /// Opens a round when it is time, and tells what the one before has shown.
    pub(super) fn follow_p4dra(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
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
            if rounds.draws.fail(now_ns) {
                tracing::warn!(
                    "no random bytes are to be had: no round of p4dra-classic begins until there are"
                );
            }
            return;
        };
        rounds.draws.succeed();
        if let Some(before) = &rounds.running {
            self.tell_p4dra(before);
        }
        let round = Round { r, n };
        let opened = self.plane.p4dra().is_some_and(|p4dra| p4dra.open_round(round));
        if !opened {
            // Values that are open already, of 128 random bits: the source of randomness repeats itself.
            tracing::error!("a round of p4dra-classic could not be opened");
        }
        let was_unsent = rounds.running.as_ref().is_some_and(|before| before.is_unsent);
        rounds.running = Some(Running {
            round,
            opened_ns: now_ns,
            is_unsent: !self.send_p4dra(&round, was_unsent),
        });
    }

    /// Whether it was sent out of every interface.
    fn send_p4dra(&mut self, round: &Round, was_unsent: bool) -> bool {
        let sent = self.plane.ask_p4dra(round);
        let is_sent = sent.is_ok();
        match sent {
            Ok(()) if was_unsent => tracing::info!("provers of p4dra-classic can be asked again"),
            Ok(()) => {}
            Err(error) => {
                if let Some(status) = &mut self.status.p4dra {
                    status.unsent += 1;
                }
                if !was_unsent {
                    tracing::warn!(%error, "provers of p4dra-classic cannot be asked: is an interface down?");
                }
            }
        }
        is_sent
    }

    /// What a round has shown until now, when it ends.
    fn tell_p4dra(&mut self, ended: &Running) {
        let (Some(p4dra), Some(status)) = (self.plane.p4dra(), &mut self.status.p4dra) else {
            return;
        };
        let mut all = p4dra.silent(&ended.round);
        let named: Vec<String> = all
            .by_ref()
            .take(SILENT_NAMED_MAX)
            .map(ToString::to_string)
            .collect();
        let (asked, silent) = (p4dra.provers() as u64, (named.len() + all.count()) as u64);
        let verified = asked.saturating_sub(silent);
        status.rounds += 1;
        (status.verified, status.silent) = (verified, silent);
        tracing::info!(
            round = status.rounds,
            asked,
            verified,
            silent,
            unsent = ended.is_unsent,
            silent_ids = named.join(" "),
            "a round of p4dra-classic has ended"
        );
        self.trail.note(Happening::P4draRound {
            round: status.rounds,
            asked,
            verified,
            silent,
            unsent: ended.is_unsent,
            silent_ids: named,
        });
    }
}
