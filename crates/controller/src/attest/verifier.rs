//! The verifier of one gateway: what it remembers, its keys and its rounds.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, RoundNumber};
use linewarden_registry::{
    Appraisal, EnrolledAt, Filter, GroupName, GroupPolicy, Protection, ProverRecord, RegistryError, Revision,
    State,
};

use super::appraise::Appraised;
use super::keys::{PAGE_PROVERS, ProverProvision, Provers, References, proof_keys, tell_put_back};
use super::plan::{GroupPlan, Plan, PlanWish, ROUNDS_RESERVED, periods, rounds_floor, start};
use super::standing::Standing;
use super::unanswered::{Sight, Spared};
use crate::link::Link;
use crate::message::Denial;

/// Devices read from the registry at once.
const PAGE_DEVICES: u32 = 1_000;
/// Appraisals read from the registry at once.
const PAGE_APPRAISALS: u32 = 4_096;
/// More rounds than a gateway keeps that wait for their answer.
const ROUNDS_DECIDED: u32 = 64;

/// What is known of a prover beside its standing.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Once its record has been read.
    pub(super) group: Option<GroupName>,
    pub(super) enrolled_at: Option<EnrolledAt>,
    pub(super) protection: Protection,
    /// It was appraised at another gateway last.
    pub(super) is_elsewhere: bool,
    pub(super) standing: Option<Standing>,
}

/// The verifier of one gateway. What it decides it remembers: one for each registration of the gateway.
#[derive(Debug)]
pub struct Verifier {
    pub(super) link: Link,
    references: References,
    pub(super) provers: HashMap<DeviceId, Known>,
    /// As of which revision of the provers it was read how they stood.
    read_at: u64,
    /// The newest revision of a prover or group that was read, and authenticates.
    newest: u64,
    pub(super) policies: HashMap<GroupName, GroupPolicy>,
    /// Who is in quarantine and by which change at the latest, as of that revision of the registry's devices.
    pub(super) quarantined: HashMap<DeviceId, Revision>,
    pub(super) revision: Option<Revision>,
    pub(super) spared: Spared,
    /// What the last round came to as a whole.
    pub(super) sighted: Option<(RoundNumber, Sight)>,
    /// The newest rounds that were on record when this verifier began, which the one before has decided about.
    pub(super) decided: HashSet<u32>,
    /// What came of the last round: the answer may be lost, and asked for again.
    pub(super) told: Option<(RoundNumber, Appraised)>,
    /// What is done and was not told yet, because what came after it failed.
    pub(super) untold: Appraised,
}

impl Verifier {
    /// Reads how the provers stood.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn open(link: Link) -> Result<Self, RegistryError> {
        // Before that is read, so that no enrolment that comes in between is taken for one of before.
        let read_at = link.registry().attest_revision().await?;
        let mut verifier = Self {
            read_at,
            newest: 0,
            references: References::default(),
            provers: HashMap::new(),
            policies: HashMap::new(),
            quarantined: HashMap::new(),
            revision: None,
            spared: Spared::default(),
            sighted: None,
            decided: HashSet::new(),
            told: None,
            untold: Appraised::default(),
            link,
        };
        let gateway = verifier.link.gateway();
        let rounds = verifier.link.registry().rounds(Some(gateway), ROUNDS_DECIDED);
        verifier.decided = rounds.await?.into_iter().map(|round| round.number).collect();
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
                verifier.remember(appraisal);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(verifier)
    }

    fn remember(&mut self, appraisal: Appraisal) {
        let device = appraisal.device;
        let is_here = appraisal.gateway == self.link.gateway();
        let known = Known {
            group: None,
            enrolled_at: None,
            protection: Protection::Software,
            is_elsewhere: !is_here,
            standing: is_here.then(|| standing(appraisal)),
        };
        self.provers.insert(device, known);
    }

    /// How a prover stands that was enrolled after that was read of all.
    async fn read_again(&mut self, device: DeviceId) -> Result<(), RegistryError> {
        self.provers.remove(&device);
        match self.link.registry().appraisal(device).await {
            Ok(appraisal) => appraisal
                .into_iter()
                .for_each(|appraisal| self.remember(appraisal)),
            Err(error @ RegistryError::DamagedRecord { .. }) => tracing::error!(%error, "left out"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Who is in quarantine is what the registry says: the process before this one may have ended between that and its round's
    /// record, another gateway may have seen the device last, and the operator may have let it in.
    pub(super) async fn follow_quarantine(&mut self) -> Result<(), RegistryError> {
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
            quarantined.extend(page.devices.iter().map(|info| (info.device, info.revision)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // None of them is beyond it, unless somebody has put the count back: then no round would ever have heard of it.
        let newest = registry.revision().await?;
        quarantined.values_mut().for_each(|by| *by = newest.min(*by));
        self.keep_unreadable(&mut quarantined).await?;
        self.quarantined = quarantined;
        self.revision = Some(revision);
        Ok(())
    }

    /// Whom the operator has let in again has a record that says so. One whose record does not authenticate any more, or is
    /// gone, stays where it was: somebody has edited the file.
    async fn keep_unreadable(
        &self,
        quarantined: &mut HashMap<DeviceId, Revision>,
    ) -> Result<(), RegistryError> {
        let is_out = |known: &Known| {
            let standing = known.standing.as_ref();
            standing.is_some_and(|standing| standing.state == State::Quarantined)
        };
        let known = self.provers.iter().filter(|(_, known)| is_out(known));
        let mut known: Vec<DeviceId> = known.map(|(device, _)| *device).collect();
        known.retain(|device| !quarantined.contains_key(device));
        known.sort_unstable();
        for device in known {
            match self.link.registry().get(device).await {
                Ok(_) => {}
                Err(error @ (RegistryError::DamagedRecord { .. } | RegistryError::UnknownDevice { .. })) => {
                    tracing::error!(%error, %device, "it stays in quarantine");
                    quarantined.insert(device, Revision::ZERO);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Numbers that are given out are those of rounds that are yet to come.
    fn forget_decided(&mut self, numbers: &Range<u32>) {
        let before = self.decided.len();
        self.decided.retain(|number| !numbers.contains(number));
        if self.decided.len() < before {
            let gateway = self.link.gateway();
            tracing::error!(%gateway, ?numbers, "somebody has put back the count of rounds: numbers come again");
        }
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
        let mut revision = registry.attest_revision().await?;
        if revision < self.newest {
            tell_put_back(self.link.gateway(), self.newest, revision);
            revision = registry.mend_attest_revision(self.link.fence()).await?;
            // Lower still where an older copy of the whole file was put back.
            self.newest = revision;
            // What has come in between has a number that was passed already.
            self.references.renew();
        }
        let groups = registry.groups().await?;
        for damaged in &groups.damaged {
            tracing::error!(record = damaged, "its provers are not attested");
        }
        let groups = groups.groups;
        let revisions = groups.iter().map(|group| group.revision);
        self.newest = revisions.fold(self.newest, u64::max);
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
                self.forget_decided(&reserved.numbers);
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
            references: self.references.number(),
            groups,
            rounds,
        }))
    }

    /// The next part of the provers that have changed since a revision, with this gateway's keys of a period.
    ///
    /// # Errors
    /// An old fence, a failure of the database, or a gateway that is not trusted: ask again.
    pub async fn provers(&mut self, start: PeriodStart, since: u64) -> Result<Provers, Denial> {
        self.link.check_trust()?;
        let registry = self.link.registry().clone();
        registry.verify_fence(self.link.fence()).await?;
        let page = registry.provers_since(since, PAGE_PROVERS).await?;
        let mut found = Provers {
            start,
            references: self.references.number(),
            provisions: Vec::new(),
            removed: Vec::new(),
            damaged: page.damaged,
            upto: page.upto,
            more: page.more,
        };
        for prover in page.provers {
            self.newest = self.newest.max(prover.revision);
            let known = self.provers.get(&prover.device);
            if prover.revision > self.read_at && known.is_some_and(|known| known.enrolled_at.is_none()) {
                self.read_again(prover.device).await?;
            }
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
            enrolled_at: None,
            protection: prover.protection,
            is_elsewhere: false,
            standing: None,
        });
        known.protection = prover.protection;
        known.group = Some(prover.group.clone());
        let enrolled_at = prover.enrolled_at();
        let enrolled_before = known.enrolled_at.replace(enrolled_at);
        if enrolled_before.is_some_and(|before| before != enrolled_at) {
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
            enrolled_at,
            port: prover.port,
            keys: hashes
                .as_ref()
                .map(|hashes| proof_keys(&prover.key, device, start, hashes, gateway)),
            request_key: prover.key.for_requests(device, gateway, start.period),
            address: address.filter(|_| !known.is_elsewhere),
            is_answering: known.standing.as_ref().is_some_and(Standing::is_answering),
        })
    }
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
