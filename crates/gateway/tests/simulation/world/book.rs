//! What truly happened in rounds of attestation: who was asked, what devices have proven, and what of it came to whom.

use std::collections::{BTreeMap, BTreeSet};

use linewarden_controller::attest::{Appraised, RoundOutcome, Seen, Verdict};
use linewarden_protocol::attest::Round;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::{Reopen, State};
use zerocopy::IntoBytes as _;

use super::fleet::ANSWER_MS;
use super::{Rule, World};
use crate::prover::{Attester, Made};

/// Datagrams that arrive later than this before a round's end may be judged after it, ms.
const SLACK_MS: u64 = 30;

/// A round that a process has opened.
struct Opened {
    process: u64,
    round: Round,
    opened_ms: u64,
    /// When the controller made the plan that it was opened by.
    planned_ms: u64,
    asked: BTreeSet<DeviceId>,
    /// Whose right proof of an accepted configuration has come to the process in time.
    arrived: BTreeSet<DeviceId>,
    /// In whose names something else has come.
    forged: BTreeSet<DeviceId>,
}

#[derive(Default)]
pub(super) struct Book {
    rounds: BTreeMap<(GatewayId, u32), Opened>,
    made: BTreeMap<(DeviceId, GatewayId, u32), Vec<Made>>,
    /// Whether a device was silent, by the number of the round.
    silences: BTreeMap<(GatewayId, DeviceId), BTreeMap<u32, bool>>,
    /// Who is in quarantine as the controller has confirmed it, and since when.
    out: BTreeMap<DeviceId, u64>,
}

impl Book {
    /// A device has proven what it had measured.
    pub(super) fn made(&mut self, device: DeviceId, made: Made) {
        let round = &made.round;
        let proofs = self
            .made
            .entry((device, round.gateway, round.number.0))
            .or_default();
        if proofs.iter().all(|other| other.message != made.message) {
            proofs.push(made);
        }
    }

    /// In how many rounds a device was asked, and in how many its proof has come in time.
    pub(super) fn told(&self, device: DeviceId) -> String {
        let asked = |opened: &&Opened| opened.asked.contains(&device);
        let arrived = |opened: &&Opened| opened.arrived.contains(&device);
        let rounds = self.rounds.values();
        format!(
            "asked in {} rounds, its proof came in {}",
            rounds.clone().filter(asked).count(),
            rounds.filter(arrived).count()
        )
    }

    /// Whether a proof of the device has come in time in a round that was opened since then.
    pub(super) fn has_proven(&self, device: DeviceId, from_ms: u64) -> bool {
        let mut rounds = self.rounds.values();
        rounds.any(|opened| opened.opened_ms >= from_ms && opened.arrived.contains(&device))
    }

    /// Whoever was named by a wrong proof is taken for silent.
    pub(super) fn silence(&self, gateway: GatewayId, round: &mut RoundOutcome) {
        let Some(opened) = self.rounds.get(&(gateway, round.number.0)) else {
            return;
        };
        let verdicts = round.verdicts.iter_mut();
        for verdict in verdicts.filter(|verdict| opened.forged.contains(&verdict.device)) {
            verdict.seen = Seen::Silent;
        }
    }

    /// The operator is about to let a device in, or has.
    pub(super) fn let_in(&mut self, device: DeviceId) {
        self.out.remove(&device);
    }

    /// Nobody knows what became of decisions about a round.
    pub(super) fn unsure(&mut self, round: &RoundOutcome) {
        for verdict in &round.verdicts {
            if verdict.seen != Seen::Silent {
                self.out.remove(&verdict.device);
            }
        }
    }

    /// Who is in quarantine, as the controller has confirmed it.
    pub(super) fn out(&self) -> impl Iterator<Item = DeviceId> {
        self.out.keys().copied()
    }

    /// The proofs that a device has made in a round of that nonce.
    fn of_round(&self, device: DeviceId, opened: &Opened) -> Vec<&Made> {
        let round = opened.round;
        let made = self.made.get(&(device, round.gateway, round.number.0));
        made.into_iter()
            .flatten()
            .filter(|made| made.round == round)
            .collect()
    }
}

impl World {
    fn problem(&mut self, problem: String) {
        self.ledger.problem.get_or_insert(problem);
    }

    /// Something is sent by a gateway; if it is a question, a round is open.
    pub(super) fn note_question(&mut self, at: usize, payload: &[u8; 64]) {
        let Ok(Message::AttestRequest(request)) = wire::parse(payload) else {
            return;
        };
        let (round, device) = (Round::from(request), request.header.device());
        let process = &self.processes[at];
        let opened = Opened {
            process: process.number,
            round,
            opened_ms: self.now_ms,
            planned_ms: process.planned_ms[2],
            asked: BTreeSet::new(),
            arrived: BTreeSet::new(),
            forged: BTreeSet::new(),
        };
        let key = (round.gateway, round.number.0);
        let known = self.fleet.book.rounds.entry(key).or_insert(opened);
        known.asked.insert(device);
        if (known.process, known.round) != (process.number, round) {
            let problem = format!(
                "round {} of gateway {} is opened by process {} and by process {}",
                round.number, round.gateway, known.process, process.number
            );
            self.problem(problem);
        }
        self.fleet.questions.push(*payload);
    }

    /// Something comes to a process; if it is the right proof of a round of its own, it must be seen.
    pub(super) fn look_at_proof(&mut self, process: u64, mut payload: Box<[u8]>) -> Box<[u8]> {
        let Ok(Message::Proof(proof)) = wire::parse(&payload) else {
            return payload;
        };
        let (device, key) = (
            proof.header.device(),
            (GatewayId(proof.gateway_id.get()), proof.round.get()),
        );
        let (fleet, now_ms) = (&mut self.fleet, self.now_ms);
        let Some(opened) = fleet.book.rounds.get(&key) else {
            return payload;
        };
        let is_it = |made: &&Made| made.message[..] == payload[..];
        let Some(right) = fleet.book.of_round(device, opened).into_iter().find(is_it) else {
            self.tally_of_fleet.forged += 1;
            if self.without == Some(Rule::Proof) {
                // Whatever comes is taken for right: as if it were.
                let k2 = Attester::key(device).for_period(device, &opened.round.start, &fleet.base());
                let block = k2.for_gateway(opened.round.gateway).prove(&opened.round);
                payload.copy_from_slice(opened.round.answer(device, block).as_bytes());
            }
            if let Some(opened) = fleet.book.rounds.get_mut(&key) {
                opened.forged.insert(device);
            }
            return payload;
        };
        let is_accepted = fleet.must_accept(&right.h, opened.planned_ms);
        let is_open = now_ms + SLACK_MS <= opened.opened_ms + 2 * u64::from(ANSWER_MS);
        let is_asked = opened.process == process && opened.asked.contains(&device);
        if is_accepted
            && is_open
            && is_asked
            && let Some(opened) = fleet.book.rounds.get_mut(&key)
        {
            opened.arrived.insert(device);
        }
        payload
    }

    /// A node tells what it has seen in a round.
    pub(super) fn look_at_outcome(&mut self, at: usize, outcome: &RoundOutcome) {
        let gateway = self.processes[at].id();
        let number = outcome.number.0;
        for verdict in &outcome.verdicts {
            if let Some(problem) = self.wrong(gateway, number, verdict) {
                self.problem(problem);
            }
            let is_silent = match verdict.seen {
                Seen::Ok(_) => false,
                Seen::Late(_) => self.fleet.policy.late_is_silent,
                Seen::Silent => true,
            };
            let tally = &mut self.tally_of_fleet;
            match verdict.seen {
                Seen::Ok(_) => tally.ok += 1,
                Seen::Late(_) => tally.late += 1,
                Seen::Silent => tally.silent += 1,
            }
            let book = &mut self.fleet.book;
            let silences = book.silences.entry((gateway, verdict.device)).or_default();
            silences.insert(number, is_silent);
        }
    }

    /// What is not true of a verdict.
    fn wrong(&self, gateway: GatewayId, number: u32, verdict: &Verdict) -> Option<String> {
        let Verdict { device, seen, .. } = *verdict;
        let Some(opened) = self.fleet.book.rounds.get(&(gateway, number)) else {
            return Some(format!(
                "device {device} is {seen:?} in round {number} of gateway {gateway}, in which nobody was asked"
            ));
        };
        if seen == Seen::Silent {
            return opened.arrived.contains(&device).then(|| {
                format!(
                    "device {device} is silent in round {number} of gateway {gateway}, where its proof came in time"
                )
            });
        }
        let mut made = self.fleet.book.of_round(device, opened).into_iter();
        let is_proven = made.any(|made| self.fleet.may_accept(&made.h, opened.planned_ms));
        (!is_proven).then(|| {
            format!(
                "device {device} is {seen:?} in round {number} of gateway {gateway}, which was opened at {} ms by a plan of \
                 {} ms, and has not proven what it may run",
                opened.opened_ms, opened.planned_ms
            )
        })
    }

    /// The controller has decided about a round.
    pub(super) fn look_at_decisions(&mut self, at: usize, round: &RoundOutcome, appraised: &Appraised) {
        let gateway = self.processes[at].id();
        let policy = self.fleet.policy;
        let (number, now_ms) = (round.number.0, self.now_ms);
        for quarantined in &appraised.quarantined {
            let device = quarantined.device;
            self.tally_of_fleet.quarantined += 1;
            let silences = self.fleet.book.silences.get(&(gateway, device));
            let rounds = silences.into_iter().flat_map(|rounds| rounds.range(..=number));
            // Rounds that nobody answered lie between those that count: so many at most.
            let looked_at = (policy.of + policy.silent) as usize;
            let silent = rounds.rev().take(looked_at).filter(|(_, silent)| **silent);
            if silent.count() < policy.silent as usize {
                self.problem(format!(
                    "device {device} was quarantined by round {number} of gateway {gateway} without so many silences"
                ));
            }
            self.fleet.book.out.insert(device, now_ms);
        }
        for (device, _) in &appraised.readmitted {
            self.tally_of_fleet.readmitted += 1;
            let verdict = round.verdicts.iter().find(|verdict| verdict.device == *device);
            let has_proven = verdict.is_some_and(|verdict| verdict.seen != Seen::Silent);
            let opened = self.fleet.book.rounds.get(&(gateway, number));
            let opened_ms = opened.map_or(0, |opened| opened.opened_ms);
            // Times are kept in seconds.
            let is_after = self
                .fleet
                .book
                .out
                .get(device)
                .is_none_or(|out_ms| out_ms - 1_000 <= opened_ms);
            if !has_proven || !is_after || policy.reopen == Reopen::ByCommand {
                self.problem(format!(
                    "device {device} was let in by round {number} of gateway {gateway}: proven {has_proven}, after its \
                     quarantine {is_after}, {:?}",
                    policy.reopen
                ));
            }
            self.fleet.book.out.remove(device);
        }
    }

    /// What the registry says of each device is true.
    pub(super) fn look_at_registry(&self) -> Result<(), String> {
        let registry = self.office.registry();
        for station in self.stations.iter() {
            let device = station.id;
            let (Ok(info), Ok(appraisal)) = (
                self.runtime.block_on(registry.get(device)),
                self.runtime.block_on(registry.appraisal(device)),
            ) else {
                continue;
            };
            let is_out = self.fleet.book.out.contains_key(&device);
            if is_out && info.status.is_active() && info.quarantine.is_none() {
                return Err(format!("device {device} is no longer in quarantine"));
            }
            let Some(appraisal) =
                appraisal.filter(|appraisal| matches!(appraisal.state, State::Ok | State::Late))
            else {
                continue;
            };
            let key = (appraisal.gateway, appraisal.since_round);
            let opened = self.fleet.book.rounds.get(&key);
            let mut made = opened.into_iter().flat_map(|opened| {
                let made = self.fleet.book.of_round(device, opened);
                made.into_iter().map(|made| (made, opened.planned_ms))
            });
            if !made.any(|(made, planned_ms)| self.fleet.may_accept(&made.h, planned_ms)) {
                return Err(format!(
                    "device {device} is {:?} since round {} of gateway {}, in which it has not proven what it may run",
                    appraisal.state, appraisal.since_round, appraisal.gateway
                ));
            }
        }
        Ok(())
    }
}
