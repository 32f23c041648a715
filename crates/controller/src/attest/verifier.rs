//! The verifier of one gateway: its keys and rounds, and what is decided after each.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_registry::{
    Appraisal, Filter, GroupName, GroupPolicy, Protection, ProverRecord, RegistryError, Reopen, Revision,
    RoundRecord, State,
};

use super::keys::{PAGE_PROVERS, ProverProvision, Provers, References, proof_keys};
use super::plan::{GroupPlan, Plan, PlanWish, ROUNDS_RESERVED, periods, rounds_floor, start};
use super::results::{Outcome, SUBMODULES_MAX};
use super::standing::{Decision, Seen, Standing};
use super::unanswered::{Sight, Spared, Unanswered};
use crate::link::Link;

/// Devices read from the registry at once.
const PAGE_DEVICES: u32 = 1_000;
/// Appraisals read from the registry at once.
const PAGE_APPRAISALS: u32 = 4_096;

/// What a gateway saw of one prover in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The prover.
    pub device: DeviceId,
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
    /// How long it was open, in milliseconds.
    pub lasted_ms: u64,
    /// When it ended, boot-time clock of the gateway, ns.
    pub ended_ns: u64,
    /// From its beginning to the last proof, in milliseconds.
    pub last_verdict_ms: u32,
    /// All that were asked.
    pub verdicts: Vec<Verdict>,
}

/// What came of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appraised {
    /// Devices that are quarantined from now on.
    pub quarantined: Vec<(DeviceId, String)>,
    /// Devices that are let in again.
    pub readmitted: Vec<DeviceId>,
    /// Signed results of all that has changed (EARs as JWTs); none without a key to sign with.
    pub results: Vec<String>,
    /// Nobody answered, and it counts for no quarantine.
    pub unanswered: Option<Unanswered>,
}

/// What is known of a prover beside its standing.
#[derive(Clone, Debug)]
struct Known {
    /// Once its record has been read.
    group: Option<GroupName>,
    enrolled_at_s: Option<u64>,
    protection: Protection,
    /// It was appraised at another gateway last.
    is_elsewhere: bool,
    standing: Option<Standing>,
}

/// The verifier of one gateway. What it decides it remembers: one for each registration of the gateway.
#[derive(Debug)]
pub struct Verifier {
    link: Link,
    references: References,
    provers: HashMap<DeviceId, Known>,
    policies: HashMap<GroupName, GroupPolicy>,
    /// Who is in quarantine and since when, as of that revision of the registry's devices.
    quarantined: HashMap<DeviceId, u64>,
    revision: Option<Revision>,
    spared: Spared,
    /// What is done and was not told yet, because what came after it failed.
    untold: Appraised,
}

impl Verifier {
    /// Reads how the provers stood.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn open(link: Link) -> Result<Self, RegistryError> {
        let mut verifier = Self {
            references: References::default(),
            provers: HashMap::new(),
            policies: HashMap::new(),
            quarantined: HashMap::new(),
            revision: None,
            spared: Spared::default(),
            untold: Appraised::default(),
            link,
        };
        let gateway = verifier.link.gateway();
        let mut after = None;
        loop {
            let page = verifier
                .link
                .registry()
                .appraisals(after, PAGE_APPRAISALS)
                .await?;
            for damaged in &page.damaged {
                tracing::error!(record = damaged, "left out");
            }
            for appraisal in page.appraisals {
                let device = appraisal.device;
                let is_here = appraisal.gateway == gateway;
                verifier.provers.insert(
                    device,
                    Known {
                        group: None,
                        enrolled_at_s: None,
                        protection: Protection::Software,
                        is_elsewhere: !is_here,
                        standing: is_here.then(|| standing(appraisal)),
                    },
                );
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(verifier)
    }

    /// Who is in quarantine is what the registry says: the process before this one may have ended between that and its round's
    /// record, another gateway may have seen the device last, and the operator may have let it in.
    async fn follow_quarantine(&mut self) -> Result<(), RegistryError> {
        let registry = self.link.registry();
        let revision = registry.revision().await?;
        if self.revision == Some(revision) {
            return Ok(());
        }
        let shut_out = Filter {
            quarantined: true,
            ..Filter::default()
        };
        let mut quarantined = HashMap::new();
        let mut after = None;
        loop {
            let page = registry.list(&shut_out, after, PAGE_DEVICES).await?;
            quarantined.extend(page.devices.iter().map(|info| {
                let at_s = info.quarantine.as_ref().map_or(0, |quarantine| quarantine.at_s);
                (info.device, at_s)
            }));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.keep_unreadable(&mut quarantined).await?;
        self.quarantined = quarantined;
        self.revision = Some(revision);
        Ok(())
    }

    /// Whom the operator has let in again has a record that says so. One whose record does not authenticate any more, or is
    /// gone, stays where it was: somebody has edited the file.
    async fn keep_unreadable(&self, quarantined: &mut HashMap<DeviceId, u64>) -> Result<(), RegistryError> {
        for (device, known) in &self.provers {
            let shut_out = known
                .standing
                .as_ref()
                .filter(|standing| standing.state == State::Quarantined && !quarantined.contains_key(device));
            let Some(standing) = shut_out else {
                continue;
            };
            match self.link.registry().get(*device).await {
                Ok(_) => {}
                Err(error @ (RegistryError::DamagedRecord { .. } | RegistryError::UnknownDevice { .. })) => {
                    tracing::error!(%error, %device, "it stays in quarantine");
                    quarantined.insert(*device, standing.since_s);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What the gateway is to attest; `None` if no salt could be drawn. `random` gives 8 random bytes.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn plan(
        &mut self,
        wish: PlanWish,
        now_s: u64,
        random: &mut (dyn FnMut() -> Option<[u8; 8]> + Send),
    ) -> Result<Option<Plan>, RegistryError> {
        let registry = self.link.registry();
        registry.verify_fence(self.link.fence()).await?;
        // Before the groups are read, so that nothing that comes in between is taken for known.
        let revision = registry.attest_revision().await?;
        let groups = registry.groups().await?;
        for damaged in &groups.damaged {
            tracing::error!(record = damaged, "its provers are not attested");
        }
        let groups = groups.groups;
        self.references.follow(&groups, now_s);
        let Some((running, next)) = periods(registry, &wish, now_s, random).await? else {
            return Ok(None);
        };
        let rounds = match wish.numbers {
            true => {
                let reserved = registry
                    .reserve_rounds(self.link.fence(), ROUNDS_RESERVED, rounds_floor(now_s))
                    .await?;
                if let Some(error) = reserved.damage {
                    tracing::error!(%error, from = reserved.numbers.start, "the count is begun anew");
                }
                reserved.numbers
            }
            false => 0..0,
        };
        let groups: Vec<GroupPlan> = groups
            .into_iter()
            .map(|group| GroupPlan {
                name: group.name,
                policy: group.policy,
                rounds_wanted: group.rounds_wanted,
            })
            .collect();
        // A group whose record is spoiled while its round runs is judged by what it was.
        let policies = groups.iter().map(|group| (group.name.clone(), group.policy));
        self.policies.extend(policies);
        Ok(Some(Plan {
            running: start(&running),
            age_s: running
                .begun_at_s
                .map_or(0, |begun_s| now_s.saturating_sub(begun_s)),
            next: start(&next),
            revision,
            references: self.references.changes(),
            groups,
            rounds,
        }))
    }

    /// The next part of the provers that have changed since a revision, with this gateway's keys of a period.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn provers(&mut self, start: PeriodStart, since: u64) -> Result<Provers, RegistryError> {
        let registry = self.link.registry().clone();
        registry.verify_fence(self.link.fence()).await?;
        let page = registry.provers_since(since, PAGE_PROVERS).await?;
        let mut found = Provers {
            start,
            provisions: Vec::new(),
            removed: Vec::new(),
            damaged: page.damaged,
            upto: page.upto,
            more: page.more,
        };
        for prover in page.provers {
            match self.provision(&prover, &start) {
                Some(provision) => found.provisions.push(provision),
                None => {
                    self.provers.remove(&prover.device);
                    found.removed.push(prover.device);
                }
            }
        }
        Ok(found)
    }

    fn provision(&mut self, prover: &ProverRecord, start: &PeriodStart) -> Option<ProverProvision> {
        if prover.removed {
            return None;
        }
        let gateway = self.link.gateway();
        let known = self.provers.entry(prover.device).or_insert(Known {
            group: None,
            enrolled_at_s: None,
            protection: prover.protection,
            is_elsewhere: false,
            standing: None,
        });
        known.protection = prover.protection;
        known.group = Some(prover.group.clone());
        let enrolled_before = known.enrolled_at_s.replace(prover.enrolled_at_s);
        if enrolled_before.is_some_and(|before_s| before_s != prover.enrolled_at_s) {
            // Enrolled anew: what was seen before is no longer its own.
            known.standing = None;
            known.is_elsewhere = false;
        }
        let last = known.standing.as_ref().and_then(|standing| standing.address);
        let home = prover.home.filter(|home| home.gateway == gateway);
        let address = last.or(home.map(|home| home.address));
        let device = prover.device;
        let hashes = self.references.hashes(prover);
        Some(ProverProvision {
            device,
            group: prover.group.clone(),
            enrolled_at_s: prover.enrolled_at_s,
            port: prover.port,
            keys: hashes
                .as_ref()
                .map(|hashes| proof_keys(&prover.key, device, start, hashes, gateway)),
            request_key: prover.key.for_requests(device, gateway, start.period),
            address: address.filter(|_| !known.is_elsewhere),
            is_answering: known.standing.as_ref().is_some_and(Standing::is_answering),
        })
    }

    /// Decides about all that a round has asked, and makes it durable. The same round again, after a failure, decides the
    /// same again; what had been done by then is told with the success. `ended_s` is when it ended, `now_s` now, in seconds since
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
        self.follow_quarantine().await?;
        let policy = self.policies.get(&round.group).copied().unwrap_or(GroupPolicy {
            reopen: Reopen::ByCommand,
            ..GroupPolicy::default()
        });
        let sight = self.spared.look(&round.group, &policy, self.shown(round));
        let (verdicts, unanswered) = match sight {
            // As far as it matters to a device, it was not asked.
            Sight::Unanswered(unanswered) => (&[] as &[Verdict], Some(unanswered)),
            Sight::Whole | Sight::Usual => (round.verdicts.as_slice(), None),
        };
        let mut judged: Vec<Judged> = verdicts
            .iter()
            // One that was removed meanwhile is nobody's to judge.
            .filter(|verdict| self.provers.contains_key(&verdict.device))
            .map(|verdict| self.judge(verdict, &policy, round, ended_s))
            .collect();
        judged.extend(self.left_out(round, verdicts, ended_s).await?);
        self.take_back(&mut judged).await?;
        self.link.registry().verify_fence(self.link.fence()).await?;
        // The quarantine first: if the rest fails, the round is decided once more, and a quarantine twice is one.
        self.shut_out(&judged, &policy, ended_s).await?;
        self.let_in(&mut judged).await?;
        let changed = judged.iter().filter(|judged| judged.is_changed);
        let changed: Vec<Appraisal> = changed.map(|judged| self.appraisal(judged)).collect();
        self.record(round, &changed, ended_s).await?;
        let mut appraised = std::mem::take(&mut self.untold);
        appraised.results = self.results(round, &judged, &policy, (ended_s, now_s));
        appraised.unanswered = unanswered;
        self.spared.keep(&round.group, sight);
        for Judged { device, after, .. } in judged {
            // One that was removed meanwhile is forgotten.
            if let Some(known) = self.provers.get_mut(&device) {
                known.standing = Some(after);
                known.is_elsewhere = false;
            }
        }
        Ok(appraised)
    }

    /// What a round shows of those that are not in quarantine, and whether they were well before.
    fn shown<'a>(&'a self, round: &'a RoundOutcome) -> impl Iterator<Item = (Seen, bool)> + 'a {
        let verdicts = round.verdicts.iter();
        let free = verdicts.filter(|verdict| !self.quarantined.contains_key(&verdict.device));
        free.filter_map(|verdict| {
            let known = self.provers.get(&verdict.device)?;
            Some((verdict.seen, known.standing.as_ref().is_some_and(is_well)))
        })
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
        judged: &[Judged],
        policy: &GroupPolicy,
        at_s: u64,
    ) -> Result<(), RegistryError> {
        let decided = judged
            .iter()
            .filter(|judged| judged.decision == Some(Decision::Quarantine));
        let quarantined: Vec<(DeviceId, String)> = decided
            .map(|judged| (judged.device, reason(&judged.after, policy)))
            .collect();
        if !quarantined.is_empty() {
            self.link.registry().quarantine(&quarantined, at_s).await?;
            self.untold.quarantined.extend(quarantined);
        }
        Ok(())
    }

    async fn let_in(&mut self, judged: &mut [Judged]) -> Result<(), RegistryError> {
        let decided = judged
            .iter_mut()
            .filter(|judged| judged.decision == Some(Decision::Readmit));
        for judged in decided {
            let device = judged.device;
            match self.link.registry().readmit(device).await {
                Ok(_) => {
                    self.untold.readmitted.push(device);
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
        Ok(())
    }

    /// Provers of the group that were well here and were not asked this time, as when there is no way to them any more: nobody
    /// knows how they are. It counts for no quarantine. What another gateway has seen since is its own.
    async fn left_out(
        &mut self,
        round: &RoundOutcome,
        verdicts: &[Verdict],
        at_s: u64,
    ) -> Result<Vec<Judged>, RegistryError> {
        let asked: HashSet<DeviceId> = verdicts.iter().map(|verdict| verdict.device).collect();
        let left_out = self.provers.iter().filter(|(device, known)| {
            known.group.as_ref() == Some(&round.group)
                && known.standing.as_ref().is_some_and(is_well)
                && !asked.contains(device)
        });
        let left_out: Vec<DeviceId> = left_out.map(|(device, _)| *device).collect();
        let mut judged = Vec::new();
        for device in left_out {
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

    fn judge(&self, verdict: &Verdict, policy: &GroupPolicy, round: &RoundOutcome, at_s: u64) -> Judged {
        let device = verdict.device;
        let known = self.provers.get(&device);
        let recorded = known.and_then(|known| known.standing.as_ref());
        let before = recorded.cloned().unwrap_or_else(|| Standing::new(at_s));
        let quarantined_s = self.quarantined.get(&device);
        let before = match (quarantined_s.is_some(), before.state) {
            (true, _) => Standing {
                state: State::Quarantined,
                ..before
            },
            // It was let in by command.
            (false, State::Quarantined) => before.let_in(),
            (false, _) => before,
        };
        let (mut after, mut decision) = before.after(policy, round.number.0, verdict.seen, at_s);
        let began_s = at_s.saturating_sub(round.lasted_ms / 1_000);
        if decision == Some(Decision::Readmit) && quarantined_s.is_some_and(|since_s| began_s < *since_s) {
            // An older round, which the controller was not there for: what led to the quarantine came after it.
            after.state = State::Quarantined;
            decision = None;
        }
        after.address = Some(verdict.address);
        let is_news = recorded.is_none_or(|recorded| after.state != recorded.state);
        if is_news {
            // Also where the registry knew before: another gateway, or a round that was not recorded, has brought it about.
            (after.since_s, after.since_round) = (at_s, round.number.0);
        }
        Judged {
            device,
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
        let Some(signer) = self.link.signer() else {
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
        changed: &[Appraisal],
        ended_s: u64,
    ) -> Result<(), RegistryError> {
        let count = |wanted: fn(&Seen) -> bool| {
            let matching = round.verdicts.iter().filter(|verdict| wanted(&verdict.seen));
            u32::try_from(matching.count()).unwrap_or(u32::MAX)
        };
        let record = RoundRecord {
            gateway: self.link.gateway(),
            number: round.number.0,
            group: round.group.clone(),
            period: round.period,
            started_at_s: ended_s.saturating_sub(round.lasted_ms / 1_000),
            ended_at_s: ended_s,
            asked: count(|_| true),
            ok: count(|seen| matches!(seen, Seen::Ok(_))),
            late: count(|seen| matches!(seen, Seen::Late(_))),
            silent: count(|seen| *seen == Seen::Silent),
            last_verdict_ms: round.last_verdict_ms,
        };
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

fn is_well(standing: &Standing) -> bool {
    matches!(standing.state, State::Ok | State::Late)
}

fn standing(appraisal: Appraisal) -> Standing {
    Standing {
        state: appraisal.state,
        since_s: appraisal.since_s,
        since_round: appraisal.since_round,
        configuration: appraisal.configuration,
        asked: appraisal.asked,
        silences: appraisal.silences,
        address: appraisal.address,
    }
}

fn reason(standing: &Standing, policy: &GroupPolicy) -> String {
    format!(
        "silent in {} of the last {} rounds",
        standing.silences.len(),
        policy.of
    )
}
