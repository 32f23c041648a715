//! What follows from a round: who stands how, who is quarantined and who is let in again, durable before it is told.

use std::collections::HashSet;
use std::net::IpAddr;

use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RoundNumber};
use linewarden_registry::{
    Appraisal, EnrolledAt, GroupName, GroupPolicy, Protection, RegistryError, Reopen, Revision, RoundRecord,
    ShutOut, State, Suspect,
};

use super::results::{Outcome, SUBMODULES_MAX};
use super::standing::{Decision, Seen, Standing};
use super::unanswered::{Sight, Unanswered};
use super::verifier::Verifier;

/// What a gateway saw of one prover in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The prover.
    pub device: DeviceId,
    /// By which enrolment it was asked: of another one this says nothing.
    pub enrolled_at: EnrolledAt,
    /// What was seen.
    pub seen: Seen,
    /// Where it was asked.
    pub address: IpAddr,
}

/// A round that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundOutcome {
    /// Its number.
    pub number: RoundNumber,
    /// The group that was asked.
    pub group: GroupName,
    /// The period that was proven.
    pub period: Period,
    /// The newest change that its gateway had heard of when it began: of who is in quarantine by a later one it says nothing.
    pub heard: Revision,
    /// How long it was open, in milliseconds.
    pub lasted_ms: u64,
    /// When it ended, boot-time clock of the gateway, ns.
    pub ended_ns: u64,
    /// From its beginning to the last proof, in milliseconds.
    pub last_verdict_ms: u32,
    /// All that were asked.
    pub verdicts: Vec<Verdict>,
}

impl RoundOutcome {
    /// How it went, for the registry and for people. `ended_s` is when it ended, in seconds since 1970-01-01 UTC.
    #[must_use]
    pub fn record(&self, gateway: GatewayId, ended_s: u64) -> RoundRecord {
        let count = |wanted: fn(&Seen) -> bool| {
            let matching = self.verdicts.iter().filter(|verdict| wanted(&verdict.seen));
            u32::try_from(matching.count()).unwrap_or(u32::MAX)
        };
        RoundRecord {
            gateway,
            number: self.number.0,
            group: self.group.clone(),
            period: self.period,
            started_at_s: began_s(self, ended_s),
            ended_at_s: ended_s,
            asked: count(|_| true),
            ok: count(|seen| matches!(seen, Seen::Ok(_))),
            late: count(|seen| matches!(seen, Seen::Late(_))),
            silent: count(|seen| *seen == Seen::Silent),
            last_verdict_ms: self.last_verdict_ms,
        }
    }
}

/// What came of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appraised {
    /// Devices that are quarantined from now on.
    pub quarantined: Vec<Quarantined>,
    /// Devices that are let in again, and the change by which the feed tells it.
    pub readmitted: Vec<(DeviceId, Revision)>,
    /// Signed results of all that has changed (EARs as JWTs); none without a key to sign with.
    pub results: Vec<String>,
    /// Nobody answered, and it counts for no quarantine.
    pub unanswered: Option<Unanswered>,
}

/// A device that is quarantined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Which.
    pub device: DeviceId,
    /// By which rule.
    pub reason: String,
    /// By which change the feed tells it, at the latest. What the feed has told of a later one came after it.
    pub revision: Revision,
}

impl Verifier {
    /// Decides about all that a round has asked, and makes it durable. The same round again, after a failure, decides the
    /// same again; what had been done by then is told with the success. After a success the same is told again. `ended_s` is when it ended, `now_s` now, in seconds since
    /// 1970-01-01 UTC.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn appraise(
        &mut self,
        round: &RoundOutcome,
        ended_s: u64,
        now_s: u64,
    ) -> Result<Appraised, RegistryError> {
        if let Some(told) = self.told_before(round.number) {
            self.link.registry().verify_fence(self.link.fence()).await?;
            return Ok(told);
        }
        self.follow_quarantine().await?;
        let policy = self.policies.get(&round.group).copied().unwrap_or(GroupPolicy {
            reopen: Reopen::ByCommand,
            ..GroupPolicy::default()
        });
        // What a failed attempt has done already would make it another one.
        let sight = match self.sighted {
            Some((number, sight)) if number == round.number => sight,
            _ => self.spared.look(&round.group, &policy, self.shown(round)),
        };
        self.sighted = Some((round.number, sight));
        let unanswered = match sight {
            Sight::Unanswered(unanswered) => Some(unanswered),
            Sight::Whole | Sight::Usual => None,
        };
        // As far as it matters to a device that is silent then, it was not asked.
        let counts = |verdict: &&Verdict| unanswered.is_none() || verdict.seen != Seen::Silent;
        let mut verdicts: Vec<&Verdict> = round.verdicts.iter().filter(counts).collect();
        let left_out = self.left_out(round, &verdicts, ended_s).await?;
        verdicts.retain(|verdict| self.is_of_its_enrolment(verdict));
        let unproven = self.unproven(&verdicts).await?;
        let mut judged: Vec<Judged> = verdicts
            .into_iter()
            .map(|verdict| {
                let is_unproven = unproven.contains(&verdict.device);
                self.judge(verdict, is_unproven, &policy, round, ended_s)
            })
            .collect();
        judged.extend(left_out);
        self.take_back(&mut judged).await?;
        self.link.registry().verify_fence(self.link.fence()).await?;
        self.pass_over(&mut judged).await?;
        // The quarantine first: if the rest fails, the round is decided once more, and a quarantine twice is one.
        self.shut_out(&mut judged, &policy, ended_s).await?;
        self.let_in(&mut judged).await?;
        let changed = judged.iter().filter(|judged| judged.is_changed);
        let changed: Vec<(Appraisal, EnrolledAt)> = changed
            .map(|judged| (self.appraisal(judged), judged.enrolled_at))
            .collect();
        self.record(round, &changed, ended_s).await?;
        let mut appraised = std::mem::take(&mut self.untold);
        appraised.results = self.results(round, &judged, &policy, (ended_s, now_s));
        appraised.unanswered = unanswered;
        self.told = Some((round.number, appraised.clone()));
        self.spared.keep(&round.group, sight);
        for Judged { device, after, .. } in judged {
            warn_unproven(device, &after, &policy);
            // One that was removed meanwhile is forgotten.
            if let Some(known) = self.provers.get_mut(&device) {
                known.standing = Some(after);
                known.is_elsewhere = false;
            }
        }
        Ok(appraised)
    }

    /// What came of a round that is told once more, because the answer was lost: its silences count once. Of one that the verifier
    /// before this one has decided about nobody knows; the feed tells who is in quarantine.
    fn told_before(&self, number: RoundNumber) -> Option<Appraised> {
        match &self.told {
            Some((last, told)) if *last == number => Some(told.clone()),
            _ => self.decided.contains(&number.0).then(Appraised::default),
        }
    }

    /// What a round shows of those that are not in quarantine, and whether they were well before. The silence of one that has
    /// proven nothing yet shows nothing.
    fn shown<'a>(&'a self, round: &'a RoundOutcome) -> impl Iterator<Item = (Seen, bool)> + 'a {
        let verdicts = round.verdicts.iter();
        let verdicts = verdicts.filter(|verdict| self.is_of_its_enrolment(verdict));
        let free = verdicts.filter(|verdict| !self.quarantined.contains_key(&verdict.device));
        free.filter_map(|verdict| {
            let standing = self.provers.get(&verdict.device)?.standing.as_ref();
            let is_known = standing.is_some_and(|standing| standing.state != State::Unproven);
            let says_something = is_known || verdict.seen != Seen::Silent;
            says_something.then(|| (verdict.seen, standing.is_some_and(is_well)))
        })
    }

    /// As far as this verifier has read the prover's record; [`Self::pass_over`] looks whether it is still so.
    fn is_of_its_enrolment(&self, verdict: &Verdict) -> bool {
        let known = self.provers.get(&verdict.device);
        known
            .and_then(|known| known.enrolled_at)
            .is_none_or(|enrolled_at| enrolled_at == verdict.enrolled_at)
    }

    /// Leaves out whom the registry has as another enrolment by now, or as no prover, where something would follow.
    async fn pass_over(&self, judged: &mut Vec<Judged>) -> Result<(), RegistryError> {
        let changed = judged.iter().filter(|judged| judged.is_changed);
        let changed: Vec<(DeviceId, EnrolledAt)> = changed
            .map(|judged| (judged.device, judged.enrolled_at))
            .collect();
        let overtaken = self.link.registry().overtaken(&changed).await?;
        judged.retain(|judged| !overtaken.contains(&judged.device));
        Ok(())
    }

    /// Who of the silent has proven nothing since it was enrolled, at any gateway. What this one has seen it knows.
    async fn unproven(&self, verdicts: &[&Verdict]) -> Result<HashSet<DeviceId>, RegistryError> {
        let may_be = |device: &DeviceId| {
            let known = self.provers.get(device);
            let standing = known.and_then(|known| known.standing.as_ref());
            standing.is_none_or(|standing| standing.state == State::Unproven)
        };
        let silent = verdicts.iter().filter(|verdict| verdict.seen == Seen::Silent);
        let asked_for: Vec<DeviceId> = silent.map(|verdict| verdict.device).filter(may_be).collect();
        self.link.registry().unproven(&asked_for).await
    }

    /// A prover that is well here is written anew also if it stands as before, where another gateway has appraised it since: it is
    /// back, and that one asks it no more.
    async fn take_back(&self, judged: &mut [Judged]) -> Result<(), RegistryError> {
        let unchanged = judged
            .iter()
            .filter(|judged| !judged.is_changed && is_well(&judged.after));
        let unchanged: Vec<DeviceId> = unchanged.map(|judged| judged.device).collect();
        let gateway = self.link.gateway();
        let taken = self
            .link
            .registry()
            .appraised_elsewhere(gateway, &unchanged)
            .await?;
        for judged in judged {
            judged.is_changed |= taken.contains(&judged.device);
        }
        Ok(())
    }

    async fn shut_out(
        &mut self,
        judged: &mut Vec<Judged>,
        policy: &GroupPolicy,
        at_s: u64,
    ) -> Result<(), RegistryError> {
        let decided = judged
            .iter()
            .filter(|judged| judged.decision == Some(Decision::Quarantine));
        let suspects: Vec<Suspect> = decided
            .map(|judged| Suspect {
                device: judged.device,
                enrolled_at: judged.enrolled_at,
                reason: reason(&judged.after, policy),
            })
            .collect();
        if suspects.is_empty() {
            return Ok(());
        }
        // Whatever number the change has: it is read again.
        self.revision = None;
        let ShutOut { revision, overtaken } = self.link.registry().quarantine(&suspects, at_s).await?;
        judged.retain(|judged| !overtaken.contains(&judged.device));
        let suspects = suspects.into_iter();
        let quarantined = suspects.filter(|suspect| !overtaken.contains(&suspect.device));
        let untold = quarantined.map(|Suspect { device, reason, .. }| Quarantined {
            device,
            reason,
            revision,
        });
        self.untold.quarantined.extend(untold);
        Ok(())
    }

    async fn let_in(&mut self, judged: &mut Vec<Judged>) -> Result<(), RegistryError> {
        let mut overtaken = HashSet::new();
        let decided = judged
            .iter_mut()
            .filter(|judged| judged.decision == Some(Decision::Readmit));
        for judged in decided {
            let device = judged.device;
            let registry = self.link.registry();
            match registry.readmit_prover(device, judged.enrolled_at).await {
                Ok(Some(revision)) => {
                    self.untold.readmitted.push((device, revision));
                    continue;
                }
                Ok(None) => {
                    overtaken.insert(device);
                    continue;
                }
                // It was revoked or removed meanwhile.
                Err(RegistryError::Revoked { .. } | RegistryError::UnknownDevice { .. }) => {}
                // One bad record must not keep all others from being decided about.
                Err(error @ RegistryError::DamagedRecord { .. }) => {
                    tracing::error!(%error, %device, "it stays in quarantine");
                }
                Err(error) => return Err(error),
            }
            let known = self.provers.get(&device);
            judged.stay_out(known.and_then(|known| known.standing.as_ref()));
        }
        judged.retain(|judged| !overtaken.contains(&judged.device));
        Ok(())
    }

    /// Provers of the group that were well here and were not asked this time, as when there is no way to them any more: nobody
    /// knows how they are. It counts for no quarantine. What another gateway has seen since is its own.
    async fn left_out(
        &mut self,
        round: &RoundOutcome,
        verdicts: &[&Verdict],
        at_s: u64,
    ) -> Result<Vec<Judged>, RegistryError> {
        let asked: HashSet<DeviceId> = verdicts.iter().map(|verdict| verdict.device).collect();
        let left_out = self.provers.iter().filter(|(device, known)| {
            known.group.as_ref() == Some(&round.group)
                && known.standing.as_ref().is_some_and(is_well)
                && !asked.contains(device)
        });
        let mut left_out: Vec<(DeviceId, EnrolledAt)> = left_out
            .filter_map(|(device, known)| Some((*device, known.enrolled_at?)))
            .collect();
        left_out.sort_unstable();
        let mut judged = Vec::new();
        for (device, enrolled_at) in left_out {
            let is_here = match self.link.registry().appraisal(device).await {
                Ok(newest) => newest.is_some_and(|newest| newest.gateway == self.link.gateway()),
                // What cannot be read says nothing of another gateway, and is written anew.
                Err(RegistryError::DamagedRecord { .. }) => true,
                Err(error) => return Err(error),
            };
            let Some(known) = self.provers.get_mut(&device) else {
                continue;
            };
            match known.standing.take_if(|_| !is_here) {
                Some(_) => known.is_elsewhere = true,
                None => judged.extend(known.standing.as_ref().map(|standing| Judged {
                    device,
                    enrolled_at,
                    after: Standing {
                        state: State::Silent,
                        since_s: at_s,
                        since_round: round.number.0,
                        ..standing.clone()
                    },
                    decision: None,
                    is_changed: true,
                    is_news: true,
                })),
            }
        }
        Ok(judged)
    }

    fn judge(
        &self,
        verdict: &Verdict,
        is_unproven: bool,
        policy: &GroupPolicy,
        round: &RoundOutcome,
        at_s: u64,
    ) -> Judged {
        let device = verdict.device;
        let known = self.provers.get(&device);
        let recorded = known.and_then(|known| known.standing.as_ref());
        let before = recorded.cloned().unwrap_or_else(|| Standing::new(at_s));
        let quarantined = self.quarantined.get(&device);
        let before = match (quarantined.is_some(), before.state) {
            (true, _) => Standing {
                state: State::Quarantined,
                ..before
            },
            // It was let in by command.
            (false, State::Quarantined) => before.let_in(),
            (false, State::Unproven) if !is_unproven => Standing {
                state: State::Silent,
                ..before
            },
            (false, _) => before,
        };
        let (mut after, mut decision) = before.after(policy, round.number.0, verdict.seen, at_s);
        let mut untold = self.untold.quarantined.iter();
        if decision == Some(Decision::Quarantine) && untold.any(|untold| untold.device == device) {
            // This very round has quarantined it before something failed, and the operator has let it in since.
            after = after.let_in();
            decision = None;
        }
        if decision == Some(Decision::Readmit) && quarantined.is_some_and(|by| round.heard < *by) {
            // An older round, which the controller was not there for: what led to the quarantine came after it. Clocks, which are
            // set, do not tell.
            after.state = State::Quarantined;
            decision = None;
        }
        // Where it was silent it may never have been: whoever has caught its RESPONSE chooses the address of its session.
        let proved = before.address.filter(|_| verdict.seen == Seen::Silent);
        after.address = proved.or(Some(verdict.address));
        let is_news = recorded.is_none_or(|recorded| after.state != recorded.state);
        if is_news {
            // Also where the registry knew before: another gateway, or a round that was not recorded, has brought it about.
            (after.since_s, after.since_round) = (at_s, round.number.0);
        }
        Judged {
            device,
            enrolled_at: verdict.enrolled_at,
            decision,
            is_changed: recorded.is_none_or(|recorded| after.differs(recorded)),
            is_news,
            after,
        }
    }

    /// Signed results of all whose state is another one now. Good for two intervals: who looks at an old one later learns
    /// nothing from it.
    fn results(
        &self,
        round: &RoundOutcome,
        judged: &[Judged],
        policy: &GroupPolicy,
        (ended_s, now_s): (u64, u64),
    ) -> Vec<String> {
        let Some(signer) = self.link.controller.signer() else {
            return Vec::new();
        };
        // What was seen long ago, while the controller was away, is not affirmed now.
        let expires_s = ended_s.saturating_add(policy.good_for_s());
        let news = judged.iter().filter(|judged| judged.is_news);
        let outcomes: Vec<Outcome> = news
            .map(|judged| Outcome {
                appraisal: self.appraisal(judged),
                protection: self
                    .provers
                    .get(&judged.device)
                    .map_or(Protection::Software, |known| known.protection),
                group: round.group.to_string(),
                is_stale: expires_s < now_s,
            })
            .collect();
        let sign = |outcomes: &[Outcome]| {
            let signed = signer.sign(outcomes, now_s, expires_s);
            signed
                .inspect_err(|error| tracing::error!(%error, "results are not signed"))
                .ok()
        };
        outcomes.chunks(SUBMODULES_MAX).filter_map(sign).collect()
    }

    async fn record(
        &self,
        round: &RoundOutcome,
        changed: &[(Appraisal, EnrolledAt)],
        ended_s: u64,
    ) -> Result<(), RegistryError> {
        let record = round.record(self.link.gateway(), ended_s);
        self.link
            .registry()
            .record_round(self.link.fence(), &record, changed)
            .await
    }

    fn appraisal(&self, Judged { device, after, .. }: &Judged) -> Appraisal {
        Appraisal {
            device: *device,
            gateway: self.link.gateway(),
            address: after.address,
            state: after.state,
            since_s: after.since_s,
            since_round: after.since_round,
            configuration: after.configuration,
            silences: after.silences.clone(),
            asked: after.asked,
        }
    }
}

/// What a round comes to for one prover.
struct Judged {
    device: DeviceId,
    enrolled_at: EnrolledAt,
    after: Standing,
    decision: Option<Decision>,
    /// It has to be written down.
    is_changed: bool,
    /// Its state is another one.
    is_news: bool,
}

impl Judged {
    /// It has proven what it is to run, and is not let in all the same.
    fn stay_out(&mut self, recorded: Option<&Standing>) {
        self.decision = None;
        self.after.state = State::Quarantined;
        if let Some(recorded) = recorded.filter(|recorded| recorded.state == State::Quarantined) {
            self.after.since_s = recorded.since_s;
            self.after.since_round = recorded.since_round;
        }
        self.is_changed = recorded.is_none_or(|recorded| self.after.differs(recorded));
        self.is_news = recorded.is_none_or(|recorded| self.after.state != recorded.state);
    }
}

/// When a round began that ended then, seconds.
fn began_s(round: &RoundOutcome, ended_s: u64) -> u64 {
    ended_s.saturating_sub(round.lasted_ms / 1_000)
}

fn is_well(standing: &Standing) -> bool {
    matches!(standing.state, State::Ok | State::Late)
}

fn reason(standing: &Standing, policy: &GroupPolicy) -> String {
    format!(
        "silent in {} of the last {} rounds",
        standing.silences.len(),
        policy.of
    )
}

/// Silence shuts out no device that has proved nothing since its enrollment, so only this says that something is wrong with it. Once,
/// after as many rounds as would shut another device out.
fn warn_unproven(device: DeviceId, standing: &Standing, policy: &GroupPolicy) {
    if standing.is_due_for_warning(policy) {
        tracing::warn!(
            %device,
            rounds = standing.asked,
            action = "read the log of its agent: the measurement fails, the key or the configuration differs, or no agent runs",
            "device has proved nothing since its enrollment"
        );
    }
}
