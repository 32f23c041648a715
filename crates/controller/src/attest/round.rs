//! Appraisal of a round: attestation states, quarantine and release. All decisions are durable before they are
//! returned.

use std::collections::HashSet;

use linewarden_protocol::ids::{DeviceId, GatewayId, RoundNumber};
use linewarden_registry::{
    Appraisal, AttestationState, DeviceError, Protection, QuarantineRequest, QuarantineResult, RegistryError,
    RoundRecord,
};
use linewarden_types::{
    EnrollmentTime, GroupPolicy, ProofOutcome, ProverObservation, QuarantinedDevice, ReleaseMode,
    RoundAppraisal, RoundOutcome,
};

use super::history::{Decision, ProverHistory};
use super::outage::RoundKind;
use super::results::{DeviceResult, SUBMODULES_MAX};
use super::verifier::Verifier;

/// Returns the record of a round for the registry. `ended_s` is the end of the round, in seconds since 1970-01-01 UTC.
#[must_use]
pub fn round_record(round: &RoundOutcome, gateway: GatewayId, ended_s: u64) -> RoundRecord {
    let count = |is_counted: fn(&ProofOutcome) -> bool| {
        let matching = round
            .observations
            .iter()
            .filter(|observation| is_counted(&observation.outcome));
        u32::try_from(matching.count()).unwrap_or(u32::MAX)
    };
    RoundRecord {
        gateway,
        number: round.number.0,
        group: round.group.clone(),
        period: round.period,
        started_at_s: started_s(round, ended_s),
        ended_at_s: ended_s,
        requested: count(|_| true),
        ok: count(|outcome| matches!(outcome, ProofOutcome::Ok(_))),
        late: count(|outcome| matches!(outcome, ProofOutcome::Late(_))),
        missed: count(|outcome| *outcome == ProofOutcome::Missed),
        last_proof_ms: round.last_proof_ms,
    }
}

impl Verifier {
    /// Appraises all devices of a round, makes the decisions durable, and returns the result. After a failure, a
    /// repeated call makes the same decisions; the first call that succeeds also returns decisions that earlier calls
    /// made durable. After a success, a repeated call returns the same result. `ended_s` is the end of the round,
    /// `now_s` is the current time, in seconds since 1970-01-01 UTC.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the call can be retried.
    pub async fn appraise_round(
        &mut self,
        round: &RoundOutcome,
        ended_s: u64,
        now_s: u64,
    ) -> Result<RoundAppraisal, RegistryError> {
        if let Some(previous) = self.previous_result(round.number) {
            self.link
                .registry()
                .verify_fencing_token(self.link.fencing_token())
                .await?;
            return Ok(previous);
        }
        self.refresh_quarantine().await?;
        let policy = self.policies.get(&round.group).copied().unwrap_or(GroupPolicy {
            release_mode: ReleaseMode::Manual,
            ..GroupPolicy::default()
        });
        // An earlier call that failed may have changed the states, so the stored classification is used.
        let kind = match self.last_round_kind {
            Some((number, kind)) if number == round.number => kind,
            _ => self
                .outages
                .classify(&round.group, &policy, self.counted_observations(round)),
        };
        self.last_round_kind = Some((round.number, kind));
        let outage = match kind {
            RoundKind::Outage(outage) => Some(outage),
            RoundKind::Complete | RoundKind::Individual => None,
        };
        // In an outage, a device without a proof counts as not challenged.
        let is_counted = |observation: &&ProverObservation| {
            outage.is_none() || observation.outcome != ProofOutcome::Missed
        };
        let mut observations: Vec<&ProverObservation> =
            round.observations.iter().filter(is_counted).collect();
        let unchallenged = self.unchallenged_provers(round, &observations, ended_s).await?;
        observations.retain(|observation| self.matches_enrollment(observation));
        let unproven = self.unproven(&observations).await?;
        let mut decisions: Vec<ProverDecision> = observations
            .into_iter()
            .map(|observation| {
                let is_unproven = unproven.contains(&observation.device);
                self.decide(observation, is_unproven, &policy, round, ended_s)
            })
            .collect();
        decisions.extend(unchallenged);
        self.mark_reclaimed(&mut decisions).await?;
        self.link
            .registry()
            .verify_fencing_token(self.link.fencing_token())
            .await?;
        self.drop_superseded(&mut decisions).await?;
        // The quarantine is written first: if a later write fails, the round is decided again, and a repeated
        // quarantine has no effect.
        self.quarantine(&mut decisions, &policy, ended_s).await?;
        self.release(&mut decisions).await?;
        let changed = decisions.iter().filter(|entry| entry.is_changed);
        let changed: Vec<(Appraisal, EnrollmentTime)> = changed
            .map(|entry| (self.appraisal(entry), entry.enrolled_at))
            .collect();
        self.record_round(round, &changed, ended_s).await?;
        let mut appraised = std::mem::take(&mut self.pending_result);
        appraised.attestation_results = self.sign_results(round, &decisions, &policy, (ended_s, now_s));
        appraised.outage = outage;
        self.last_result = Some((round.number, appraised.clone()));
        self.outages.record(&round.group, kind);
        for ProverDecision {
            device,
            history: after,
            ..
        } in decisions
        {
            warn_unproven(device, &after, &policy);
            // A device that was removed meanwhile has no entry.
            if let Some(prover) = self.provers.get_mut(&device) {
                prover.history = Some(after);
                prover.is_at_other_gateway = false;
            }
        }
        Ok(appraised)
    }

    /// Returns the result of a round that is submitted again because the response was lost; its missed proofs must not
    /// count twice. For a round that an earlier verifier has decided, the result is empty; the change feed contains
    /// the quarantines.
    fn previous_result(&self, number: RoundNumber) -> Option<RoundAppraisal> {
        match &self.last_result {
            Some((last, result)) if *last == number => Some(result.clone()),
            _ => self
                .decided_rounds
                .contains(&number.0)
                .then(RoundAppraisal::default),
        }
    }

    /// Returns the outcomes of devices that are not in quarantine, and whether they were compliant before. A missing
    /// proof of a device that has never proven anything is not counted.
    fn counted_observations<'a>(
        &'a self,
        round: &'a RoundOutcome,
    ) -> impl Iterator<Item = (ProofOutcome, bool)> + 'a {
        let observations = round.observations.iter();
        let observations = observations.filter(|observation| self.matches_enrollment(observation));
        let not_quarantined =
            observations.filter(|observation| !self.quarantined.contains_key(&observation.device));
        not_quarantined.filter_map(|observation| {
            let history = self.provers.get(&observation.device)?.history.as_ref();
            let is_known = history.is_some_and(|history| history.state != AttestationState::Unproven);
            let is_evidence = is_known || observation.outcome != ProofOutcome::Missed;
            is_evidence.then(|| (observation.outcome, history.is_some_and(is_compliant)))
        })
    }

    /// Whether the observation belongs to the enrollment that this verifier has read. [`Self::drop_superseded`] checks
    /// the enrollment in the registry.
    fn matches_enrollment(&self, observation: &ProverObservation) -> bool {
        let prover = self.provers.get(&observation.device);
        prover
            .and_then(|prover| prover.enrolled_at)
            .is_none_or(|enrolled_at| enrolled_at == observation.enrolled_at)
    }

    /// Drops decisions that would change a state, if the device's enrollment has changed or the device is no longer a
    /// prover.
    async fn drop_superseded(&self, decisions: &mut Vec<ProverDecision>) -> Result<(), RegistryError> {
        let changed = decisions.iter().filter(|entry| entry.is_changed);
        let changed: Vec<(DeviceId, EnrollmentTime)> =
            changed.map(|entry| (entry.device, entry.enrolled_at)).collect();
        let superseded = self.link.registry().superseded(&changed).await?;
        decisions.retain(|entry| !superseded.contains(&entry.device));
        Ok(())
    }

    /// Returns the devices without a proof in this round that have proven nothing since their enrollment, at any
    /// gateway. The registry is not queried for a device that has proven itself at this gateway.
    async fn unproven(
        &self,
        observations: &[&ProverObservation],
    ) -> Result<HashSet<DeviceId>, RegistryError> {
        let may_be_unproven = |device: &DeviceId| {
            let prover = self.provers.get(device);
            let history = prover.and_then(|prover| prover.history.as_ref());
            history.is_none_or(|history| history.state == AttestationState::Unproven)
        };
        let missed = observations
            .iter()
            .filter(|observation| observation.outcome == ProofOutcome::Missed);
        let missing: Vec<DeviceId> = missed
            .map(|observation| observation.device)
            .filter(may_be_unproven)
            .collect();
        self.link.registry().unproven(&missing).await
    }

    /// Marks the appraisal of each compliant prover for writing, even without a change, if another gateway has appraised
    /// the prover since. The prover has returned to this gateway; the write makes the other gateway stop challenging
    /// the prover.
    async fn mark_reclaimed(&self, decisions: &mut [ProverDecision]) -> Result<(), RegistryError> {
        let unchanged = decisions
            .iter()
            .filter(|entry| !entry.is_changed && is_compliant(&entry.history));
        let unchanged: Vec<DeviceId> = unchanged.map(|entry| entry.device).collect();
        let gateway = self.link.gateway();
        let reclaimed = self
            .link
            .registry()
            .appraised_elsewhere(gateway, &unchanged)
            .await?;
        for entry in decisions {
            entry.is_changed |= reclaimed.contains(&entry.device);
        }
        Ok(())
    }

    async fn quarantine(
        &mut self,
        decisions: &mut Vec<ProverDecision>,
        policy: &GroupPolicy,
        at_s: u64,
    ) -> Result<(), RegistryError> {
        let to_quarantine = decisions
            .iter()
            .filter(|entry| entry.decision == Some(Decision::Quarantine));
        let suspects: Vec<QuarantineRequest> = to_quarantine
            .map(|entry| QuarantineRequest {
                device: entry.device,
                enrolled_at: entry.enrolled_at,
                reason: quarantine_reason(&entry.history, policy),
            })
            .collect();
        if suspects.is_empty() {
            return Ok(());
        }
        // The revision of the change is unknown, so the list is read again.
        self.quarantined_revision = None;
        let QuarantineResult { revision, superseded } = self
            .link
            .registry()
            .quarantine(self.link.fencing_token(), &suspects, at_s)
            .await?;
        decisions.retain(|entry| !superseded.contains(&entry.device));
        let suspects = suspects.into_iter();
        let quarantined = suspects.filter(|suspect| !superseded.contains(&suspect.device));
        let unreported = quarantined.map(|QuarantineRequest { device, reason, .. }| QuarantinedDevice {
            device,
            reason,
            revision,
        });
        self.pending_result.quarantined.extend(unreported);
        Ok(())
    }

    async fn release(&mut self, decisions: &mut Vec<ProverDecision>) -> Result<(), RegistryError> {
        let mut superseded = HashSet::new();
        let to_release = decisions
            .iter_mut()
            .filter(|entry| entry.decision == Some(Decision::Release));
        for entry in to_release {
            let device = entry.device;
            let registry = self.link.registry();
            match registry
                .release_prover(self.link.fencing_token(), device, entry.enrolled_at)
                .await
            {
                Ok(Some(revision)) => {
                    self.pending_result.remediated.push((device, revision));
                    continue;
                }
                Ok(None) => {
                    superseded.insert(device);
                    continue;
                }
                // The device was revoked or removed meanwhile.
                Err(RegistryError::Device(
                    DeviceError::Revoked { .. } | DeviceError::UnknownDevice { .. },
                )) => {}
                // One damaged record must not block the decisions about other devices.
                Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                    tracing::error!(%error, device_id = %device, "release from quarantine failed: damaged record");
                }
                Err(error) => return Err(error),
            }
            let prover = self.provers.get(&device);
            entry.keep_quarantined(prover.and_then(|prover| prover.history.as_ref()));
        }
        decisions.retain(|entry| !superseded.contains(&entry.device));
        Ok(())
    }

    /// Returns decisions about provers of the group that were compliant at this gateway and were not challenged in this
    /// round, for example because no route exists. Their state becomes missed, but the round does not count toward a
    /// quarantine. A prover that another gateway has appraised since is skipped.
    async fn unchallenged_provers(
        &mut self,
        round: &RoundOutcome,
        observations: &[&ProverObservation],
        at_s: u64,
    ) -> Result<Vec<ProverDecision>, RegistryError> {
        let requested: HashSet<DeviceId> = observations
            .iter()
            .map(|observation| observation.device)
            .collect();
        let unchallenged = self.provers.iter().filter(|(device, prover)| {
            prover.group.as_ref() == Some(&round.group)
                && prover.history.as_ref().is_some_and(is_compliant)
                && !requested.contains(device)
        });
        let mut unchallenged: Vec<(DeviceId, EnrollmentTime)> = unchallenged
            .filter_map(|(device, prover)| Some((*device, prover.enrolled_at?)))
            .collect();
        unchallenged.sort_unstable();
        let mut decisions = Vec::new();
        for (device, enrolled_at) in unchallenged {
            let is_here = match self.link.registry().appraisal(device).await {
                Ok(newest) => newest.is_some_and(|newest| newest.gateway == self.link.gateway()),
                // A damaged appraisal does not name another gateway, and is written again.
                Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => true,
                Err(error) => return Err(error),
            };
            let Some(prover) = self.provers.get_mut(&device) else {
                continue;
            };
            match prover.history.take_if(|_| !is_here) {
                Some(_) => prover.is_at_other_gateway = true,
                None => decisions.extend(prover.history.as_ref().map(|history| ProverDecision {
                    device,
                    enrolled_at,
                    history: ProverHistory {
                        state: AttestationState::Missed,
                        since_s: at_s,
                        since_round: round.number.0,
                        ..history.clone()
                    },
                    decision: None,
                    is_changed: true,
                    is_state_changed: true,
                })),
            }
        }
        Ok(decisions)
    }

    fn decide(
        &self,
        observation: &ProverObservation,
        is_unproven: bool,
        policy: &GroupPolicy,
        round: &RoundOutcome,
        at_s: u64,
    ) -> ProverDecision {
        let device = observation.device;
        let prover = self.provers.get(&device);
        let recorded = prover.and_then(|prover| prover.history.as_ref());
        let before = recorded.cloned().unwrap_or_else(|| ProverHistory::new(at_s));
        let quarantined = self.quarantined.get(&device);
        let before = match (quarantined.is_some(), before.state) {
            (true, _) => ProverHistory {
                state: AttestationState::Quarantined,
                ..before
            },
            // The device was released by command.
            (false, AttestationState::Quarantined) => before.released(),
            (false, AttestationState::Unproven) if !is_unproven => ProverHistory {
                state: AttestationState::Missed,
                ..before
            },
            (false, _) => before,
        };
        let (mut after, mut decision) = before.after_round(policy, round.number.0, observation.outcome, at_s);
        let mut unreported = self.pending_result.quarantined.iter();
        if decision == Some(Decision::Quarantine) && unreported.any(|unreported| unreported.device == device)
        {
            // This round has quarantined the device before a failure, and the operator has released it since.
            after = after.released();
            decision = None;
        }
        if decision == Some(Decision::Release)
            && quarantined.is_some_and(|revision| round.feed_revision < *revision)
        {
            // The round was submitted late: the quarantine is newer than the round. Revisions are compared, because
            // wall clocks can be changed.
            after.state = AttestationState::Quarantined;
            decision = None;
        }
        // Without a proof, the earlier address is kept: an attacker who replays a RESPONSE determines the address of
        // the session.
        let earlier_address = before
            .address
            .filter(|_| observation.outcome == ProofOutcome::Missed);
        after.address = earlier_address.or(Some(observation.address));
        let is_state_changed = recorded.is_none_or(|recorded| after.state != recorded.state);
        if is_state_changed {
            // The registry may contain this state already, from another gateway or from a round that was not recorded.
            (after.since_s, after.since_round) = (at_s, round.number.0);
        }
        ProverDecision {
            device,
            enrolled_at: observation.enrolled_at,
            decision,
            is_changed: recorded.is_none_or(|recorded| after.differs(recorded)),
            is_state_changed,
            history: after,
        }
    }

    /// Returns signed results of all devices whose state has changed. The results are valid until
    /// [`GroupPolicy::validity_s`] after the end of the round.
    fn sign_results(
        &self,
        round: &RoundOutcome,
        decisions: &[ProverDecision],
        policy: &GroupPolicy,
        (ended_s, now_s): (u64, u64),
    ) -> Vec<String> {
        let Some(signer) = self.link.controller.signer() else {
            return Vec::new();
        };
        // The validity starts at the end of the round, so a round that is appraised late affirms nothing.
        let expires_s = ended_s.saturating_add(policy.validity_s());
        let changed = decisions.iter().filter(|entry| entry.is_state_changed);
        let outcomes: Vec<DeviceResult> = changed
            .map(|entry| DeviceResult {
                appraisal: self.appraisal(entry),
                protection: self
                    .provers
                    .get(&entry.device)
                    .map_or(Protection::Software, |prover| prover.protection),
                group: round.group.to_string(),
                is_stale: expires_s < now_s,
            })
            .collect();
        let sign = |outcomes: &[DeviceResult]| {
            let signed = signer.sign(outcomes, now_s, expires_s);
            signed
                .inspect_err(|error| tracing::error!(%error, "signing attestation results failed"))
                .ok()
        };
        outcomes.chunks(SUBMODULES_MAX).filter_map(sign).collect()
    }

    async fn record_round(
        &self,
        round: &RoundOutcome,
        changed: &[(Appraisal, EnrollmentTime)],
        ended_s: u64,
    ) -> Result<(), RegistryError> {
        let record = round_record(round, self.link.gateway(), ended_s);
        self.link
            .registry()
            .record_round(self.link.fencing_token(), &record, changed)
            .await
    }

    fn appraisal(
        &self,
        ProverDecision {
            device,
            history: after,
            ..
        }: &ProverDecision,
    ) -> Appraisal {
        Appraisal {
            device: *device,
            gateway: self.link.gateway(),
            address: after.address,
            state: after.state,
            since_s: after.since_s,
            since_round: after.since_round,
            configuration: after.configuration,
            missed_rounds: after.missed_rounds.clone(),
            rounds_total: after.rounds_total,
        }
    }
}

/// The decision about one prover.
struct ProverDecision {
    device: DeviceId,
    enrolled_at: EnrollmentTime,
    history: ProverHistory,
    decision: Option<Decision>,
    /// Whether the history must be written.
    is_changed: bool,
    /// Whether the state has changed.
    is_state_changed: bool,
}

impl ProverDecision {
    /// Keeps the device in quarantine, although it has sent a valid proof.
    fn keep_quarantined(&mut self, recorded: Option<&ProverHistory>) {
        self.decision = None;
        self.history.state = AttestationState::Quarantined;
        if let Some(recorded) = recorded.filter(|recorded| recorded.state == AttestationState::Quarantined) {
            self.history.since_s = recorded.since_s;
            self.history.since_round = recorded.since_round;
        }
        self.is_changed = recorded.is_none_or(|recorded| self.history.differs(recorded));
        self.is_state_changed = recorded.is_none_or(|recorded| self.history.state != recorded.state);
    }
}

/// Returns the start of a round; start and end are in seconds since 1970-01-01 UTC.
fn started_s(round: &RoundOutcome, ended_s: u64) -> u64 {
    ended_s.saturating_sub(round.duration_ms / 1_000)
}

fn is_compliant(history: &ProverHistory) -> bool {
    matches!(history.state, AttestationState::Ok | AttestationState::Late)
}

fn quarantine_reason(history: &ProverHistory, policy: &GroupPolicy) -> String {
    format!(
        "no proof in {} of the last {} rounds",
        history.missed_rounds.len(),
        policy.window_rounds
    )
}

/// Logs one warning about a device that has proven nothing since its enrollment, after `window_rounds` rounds. Missing
/// proofs do not quarantine such a device.
fn warn_unproven(device: DeviceId, history: &ProverHistory, policy: &GroupPolicy) {
    if history.is_due_for_warning(policy) {
        tracing::warn!(
            device_id = %device,
            rounds = history.rounds_total,
            action = "read the log of its agent: the measurement fails, the key or the configuration differs, or no agent runs",
            "no proof received from a device since its enrollment"
        );
    }
}
