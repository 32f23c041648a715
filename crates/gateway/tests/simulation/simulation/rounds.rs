//! Records of attestation rounds for the invariants: challenges, proofs, and the arrival of proofs.

use std::collections::{BTreeMap, BTreeSet};

use linewarden_protocol::attest::Round;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::AttestationState;
use linewarden_types::{ProofOutcome, ProverObservation, ReleaseMode, RoundAppraisal, RoundOutcome};
use zerocopy::IntoBytes as _;

use super::fleet::PROOF_TIMEOUT_MS;
use super::{Mechanism, Simulation};
use crate::prover::{RecordedProof, SimulatedProver};

/// A datagram that arrives less than this time before the end of a round may be handled after the end, ms.
const SLACK_MS: u64 = 30;

/// A round that a process has opened.
struct ObservedRound {
    process: u64,
    round: Round,
    opened_ms: u64,
    /// The creation time of the round's plan.
    planned_ms: u64,
    requested: BTreeSet<DeviceId>,
    /// Devices whose valid proof has arrived in time.
    arrived: BTreeSet<DeviceId>,
    /// Device ids in arrived proofs that were not valid.
    forged: BTreeSet<DeviceId>,
}

#[derive(Default)]
pub(super) struct RoundRecords {
    rounds: BTreeMap<(GatewayId, u32), ObservedRound>,
    /// By device, gateway and round number.
    proofs: BTreeMap<(DeviceId, GatewayId, u32), Vec<RecordedProof>>,
    /// By round number: whether the device missed the round.
    missed: BTreeMap<(GatewayId, DeviceId), BTreeMap<u32, bool>>,
    /// Devices in quarantine as confirmed by the controller, and the time of the confirmation in ms.
    quarantined: BTreeMap<DeviceId, u64>,
}

impl RoundRecords {
    /// Records a proof of a device.
    pub(super) fn record_proof(&mut self, device: DeviceId, proof: RecordedProof) {
        let round = &proof.round;
        let proofs = self
            .proofs
            .entry((device, round.gateway, round.number.0))
            .or_default();
        if proofs.iter().all(|recorded| recorded.message != proof.message) {
            proofs.push(proof);
        }
    }

    /// Returns in how many rounds a device was challenged, and in how many its proof arrived in time.
    pub(super) fn summary(&self, device: DeviceId) -> String {
        let was_requested = |observed: &&ObservedRound| observed.requested.contains(&device);
        let arrived = |observed: &&ObservedRound| observed.arrived.contains(&device);
        let rounds = self.rounds.values();
        format!(
            "challenged in {} rounds, its proof arrived in {}",
            rounds.clone().filter(was_requested).count(),
            rounds.filter(arrived).count()
        )
    }

    /// Whether a proof of the device has arrived in time in a round that was opened at `from_ms` or later.
    pub(super) fn has_proven(&self, device: DeviceId, from_ms: u64) -> bool {
        let mut rounds = self.rounds.values();
        rounds.any(|observed| observed.opened_ms >= from_ms && observed.arrived.contains(&device))
    }

    /// Changes the outcome of each device that a wrong proof names to missed.
    pub(super) fn mark_missed(&self, gateway: GatewayId, round: &mut RoundOutcome) {
        let Some(observed) = self.rounds.get(&(gateway, round.number.0)) else {
            return;
        };
        let observations = round.observations.iter_mut();
        for observation in observations.filter(|observation| observed.forged.contains(&observation.device)) {
            observation.outcome = ProofOutcome::Missed;
        }
    }

    /// Records that the operator has released a device.
    pub(super) fn record_release(&mut self, device: DeviceId) {
        self.quarantined.remove(&device);
    }

    /// Forgets each quarantine that the controller may have ended. Its decisions about the round are unknown.
    pub(super) fn forget_uncertain(&mut self, round: &RoundOutcome) {
        for observation in &round.observations {
            if observation.outcome != ProofOutcome::Missed {
                self.quarantined.remove(&observation.device);
            }
        }
    }

    /// Devices in quarantine as confirmed by the controller.
    pub(super) fn quarantined(&self) -> impl Iterator<Item = DeviceId> {
        self.quarantined.keys().copied()
    }

    /// The proofs of a device in that round.
    fn of_round(&self, device: DeviceId, observed: &ObservedRound) -> Vec<&RecordedProof> {
        let round = observed.round;
        let proofs = self.proofs.get(&(device, round.gateway, round.number.0));
        proofs
            .into_iter()
            .flatten()
            .filter(|proof| proof.round == round)
            .collect()
    }
}

impl Simulation {
    fn record_problem(&mut self, problem: String) {
        self.ledger.problem.get_or_insert(problem);
    }

    /// Records a challenge that a gateway sends.
    pub(super) fn record_request(&mut self, process_index: usize, payload: &[u8; 64]) {
        let Ok(Message::AttestRequest(request)) = wire::parse(payload) else {
            return;
        };
        let (round, device) = (Round::from(request), request.header.device());
        let process = &self.processes[process_index];
        let observed = ObservedRound {
            process: process.number,
            round,
            opened_ms: self.now_ms,
            planned_ms: process.planned_ms[2],
            requested: BTreeSet::new(),
            arrived: BTreeSet::new(),
            forged: BTreeSet::new(),
        };
        let key = (round.gateway, round.number.0);
        let entry = self.fleet.rounds.rounds.entry(key).or_insert(observed);
        entry.requested.insert(device);
        if (entry.process, entry.round) != (process.number, round) {
            let problem = format!(
                "round {} of gateway {} is opened by process {} and by process {}",
                round.number, round.gateway, entry.process, process.number
            );
            self.record_problem(problem);
        }
        self.fleet.requests.push(*payload);
    }

    /// Checks a proof that arrives, and returns the message to deliver. Records a valid proof of an open round, which the
    /// gateway must count.
    pub(super) fn check_proof(&mut self, process: u64, mut payload: Box<[u8]>) -> Box<[u8]> {
        let Ok(Message::Proof(proof)) = wire::parse(&payload) else {
            return payload;
        };
        let (device, key) = (
            proof.header.device(),
            (GatewayId(proof.gateway_id.get()), proof.round.get()),
        );
        let (fleet, now_ms) = (&mut self.fleet, self.now_ms);
        let Some(observed) = fleet.rounds.rounds.get(&key) else {
            return payload;
        };
        let is_same = |recorded: &&RecordedProof| recorded.message[..] == payload[..];
        let Some(valid_proof) = fleet.rounds.of_round(device, observed).into_iter().find(is_same) else {
            self.fleet_tally.forged += 1;
            if self.without == Some(Mechanism::Proof) {
                // Every proof is replaced by a valid one.
                let k2 =
                    SimulatedProver::key(device).for_period(device, &observed.round.start, &fleet.base());
                let block = k2.for_gateway(observed.round.gateway).prove(&observed.round);
                payload.copy_from_slice(observed.round.proof_message(device, block).as_bytes());
            }
            if let Some(observed) = fleet.rounds.rounds.get_mut(&key) {
                observed.forged.insert(device);
            }
            return payload;
        };
        let is_accepted = fleet.must_accept(&valid_proof.h, observed.planned_ms);
        let is_open = now_ms + SLACK_MS <= observed.opened_ms + 2 * u64::from(PROOF_TIMEOUT_MS);
        let is_requested = observed.process == process && observed.requested.contains(&device);
        if is_accepted
            && is_open
            && is_requested
            && let Some(observed) = fleet.rounds.rounds.get_mut(&key)
        {
            observed.arrived.insert(device);
        }
        payload
    }

    /// Checks the outcomes of a round.
    pub(super) fn check_outcome(&mut self, process_index: usize, outcome: &RoundOutcome) {
        let gateway = self.processes[process_index].id();
        let number = outcome.number.0;
        for observation in &outcome.observations {
            if let Some(problem) = self.contradiction(gateway, number, observation) {
                self.record_problem(problem);
            }
            let is_missed = match observation.outcome {
                ProofOutcome::Ok(_) => false,
                ProofOutcome::Late(_) => self.fleet.policy.late_is_missed,
                ProofOutcome::Missed => true,
            };
            let tally = &mut self.fleet_tally;
            match observation.outcome {
                ProofOutcome::Ok(_) => tally.ok += 1,
                ProofOutcome::Late(_) => tally.late += 1,
                ProofOutcome::Missed => tally.missed += 1,
            }
            let rounds = &mut self.fleet.rounds;
            let missed = rounds.missed.entry((gateway, observation.device)).or_default();
            missed.insert(number, is_missed);
        }
    }

    /// Returns how an outcome contradicts the recorded proofs; `None` without a contradiction.
    fn contradiction(
        &self,
        gateway: GatewayId,
        number: u32,
        observation: &ProverObservation,
    ) -> Option<String> {
        let ProverObservation { device, outcome, .. } = *observation;
        let Some(observed) = self.fleet.rounds.rounds.get(&(gateway, number)) else {
            return Some(format!(
                "device {device} is {outcome:?} in round {number} of gateway {gateway}, in which it was not challenged"
            ));
        };
        if outcome == ProofOutcome::Missed {
            return observed.arrived.contains(&device).then(|| {
                format!(
                    "device {device} is missed in round {number} of gateway {gateway}, where its proof arrived in time"
                )
            });
        }
        let mut proofs = self.fleet.rounds.of_round(device, observed).into_iter();
        let is_proven = proofs.any(|proof| self.fleet.may_accept(&proof.h, observed.planned_ms));
        (!is_proven).then(|| {
            format!(
                "device {device} is {outcome:?} in round {number} of gateway {gateway}, which was opened at {} ms by a plan of \
                 {} ms, and has not proven an allowed configuration",
                observed.opened_ms, observed.planned_ms
            )
        })
    }

    /// Checks the decisions of the controller.
    pub(super) fn check_decisions(
        &mut self,
        process_index: usize,
        round: &RoundOutcome,
        appraisal: &RoundAppraisal,
    ) {
        let gateway = self.processes[process_index].id();
        let policy = self.fleet.policy;
        let (number, now_ms) = (round.number.0, self.now_ms);
        for quarantined in &appraisal.quarantined {
            let device = quarantined.device;
            self.fleet_tally.quarantined += 1;
            let missed = self.fleet.rounds.missed.get(&(gateway, device));
            let rounds = missed.into_iter().flat_map(|rounds| rounds.range(..=number));
            // Outages may be between the rounds that count, so this many rounds are checked.
            let rounds_checked = (policy.window_rounds + policy.missed_limit) as usize;
            let missed_rounds = rounds
                .rev()
                .take(rounds_checked)
                .filter(|(_, is_missed)| **is_missed);
            if missed_rounds.count() < policy.missed_limit as usize {
                self.record_problem(format!(
                    "device {device} was quarantined by round {number} of gateway {gateway} without enough missed proofs"
                ));
            }
            self.fleet.rounds.quarantined.insert(device, now_ms);
        }
        for (device, _) in &appraisal.remediated {
            self.fleet_tally.released += 1;
            let observation = round
                .observations
                .iter()
                .find(|observation| observation.device == *device);
            let has_proven =
                observation.is_some_and(|observation| observation.outcome != ProofOutcome::Missed);
            let observed = self.fleet.rounds.rounds.get(&(gateway, number));
            let opened_ms = observed.map_or(0, |observed| observed.opened_ms);
            // The registry's times have a resolution of 1 s.
            let is_after = self
                .fleet
                .rounds
                .quarantined
                .get(device)
                .is_none_or(|quarantined_ms| quarantined_ms - 1_000 <= opened_ms);
            if !has_proven || !is_after || policy.release_mode == ReleaseMode::Manual {
                self.record_problem(format!(
                    "device {device} was released by round {number} of gateway {gateway}: proven {has_proven}, after its \
                     quarantine {is_after}, {:?}",
                    policy.release_mode
                ));
            }
            self.fleet.rounds.quarantined.remove(device);
        }
    }

    /// Checks the registry's state of each device.
    pub(super) fn check_registry_states(&self) -> Result<(), String> {
        let registry = self.controller_host.registry();
        for simulated in self.devices.iter() {
            let device = simulated.id;
            let (Ok(info), Ok(appraisal)) = (
                self.runtime.block_on(registry.get(device)),
                self.runtime.block_on(registry.appraisal(device)),
            ) else {
                continue;
            };
            let is_quarantined = self.fleet.rounds.quarantined.contains_key(&device);
            if is_quarantined && info.status.is_active() && info.quarantine.is_none() {
                return Err(format!("device {device} is no longer in quarantine"));
            }
            let Some(appraisal) = appraisal
                .filter(|appraisal| matches!(appraisal.state, AttestationState::Ok | AttestationState::Late))
            else {
                continue;
            };
            let key = (appraisal.gateway, appraisal.since_round);
            let observed = self.fleet.rounds.rounds.get(&key);
            let mut proofs = observed.into_iter().flat_map(|observed| {
                let proofs = self.fleet.rounds.of_round(device, observed);
                proofs.into_iter().map(|proof| (proof, observed.planned_ms))
            });
            if !proofs.any(|(proof, planned_ms)| self.fleet.may_accept(&proof.h, planned_ms)) {
                return Err(format!(
                    "device {device} is {:?} since round {} of gateway {}, in which it has not proven an allowed configuration",
                    appraisal.state, appraisal.since_round, appraisal.gateway
                ));
            }
        }
        Ok(())
    }
}
