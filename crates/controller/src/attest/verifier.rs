//! The verifier of one gateway: histories, keys and rounds.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, RoundNumber};
use linewarden_registry::{
    Appraisal, AttestationState, DeviceError, DeviceFilter, Protection, ProverRecord, RegistryError,
};
use linewarden_types::{
    EnrollmentTime, GroupName, GroupPlan, GroupPolicy, Plan, PlanRequest, ProverProvision, Provers, Revision,
    RoundAppraisal,
};

use super::history::ProverHistory;
use super::keys::{PROVERS_PER_PAGE, ReferenceSet, log_revision_rollback, proof_keys};
use super::outage::{OutageTracker, RoundKind};
use super::plan::{ROUNDS_RESERVED, period_start, periods, rounds_floor};
use crate::denial::Denial;
use crate::link::Link;

/// Maximum number of devices in one read from the registry.
const DEVICES_PER_PAGE: u32 = 1_000;
/// Maximum number of appraisals in one read from the registry.
const APPRAISALS_PER_PAGE: u32 = 4_096;
/// Decided rounds that the verifier loads: more than a gateway keeps while it waits for a response.
const DECIDED_ROUNDS_MAX: u32 = 64;

/// State of a prover.
#[derive(Clone, Debug)]
pub(super) struct ProverEntry {
    /// `None` until the prover's record has been read.
    pub(super) group: Option<GroupName>,
    /// `None` until the prover's record has been read.
    pub(super) enrolled_at: Option<EnrollmentTime>,
    pub(super) protection: Protection,
    /// Whether the prover's most recent appraisal is of another gateway.
    pub(super) is_at_other_gateway: bool,
    pub(super) history: Option<ProverHistory>,
}

/// The verifier of one gateway, with the provers' histories in memory. Each registration of the gateway has its own
/// verifier.
#[derive(Debug)]
pub struct Verifier {
    pub(super) link: Link,
    references: ReferenceSet,
    pub(super) provers: HashMap<DeviceId, ProverEntry>,
    /// The revision of provers and groups before the histories were read.
    read_revision: u64,
    /// The newest authentic revision of a prover or group that was read.
    newest_revision: u64,
    pub(super) policies: HashMap<GroupName, GroupPolicy>,
    /// The devices that are quarantined at `quarantined_revision`. The value is the revision of the device's most recent
    /// change: the quarantine has this revision or an earlier one.
    pub(super) quarantined: HashMap<DeviceId, Revision>,
    /// The registry revision at which `quarantined` was read.
    pub(super) quarantined_revision: Option<Revision>,
    pub(super) outages: OutageTracker,
    /// The classification of the last round.
    pub(super) last_round_kind: Option<(RoundNumber, RoundKind)>,
    /// Rounds that were recorded before this verifier started; an earlier verifier has decided them.
    pub(super) decided_rounds: HashSet<u32>,
    /// The result of the last round, for a repeated request after a lost response.
    pub(super) last_result: Option<(RoundNumber, RoundAppraisal)>,
    /// Decisions that are durable but were not returned yet, because a later step failed.
    pub(super) pending_result: RoundAppraisal,
}

impl Verifier {
    /// Reads the histories of the provers.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn open(link: Link) -> Result<Self, RegistryError> {
        // The revision is read first, so an enrollment during the load is recognized as newer.
        let read_revision = link.registry().attest_revision().await?;
        let mut verifier = Self {
            read_revision,
            newest_revision: 0,
            references: ReferenceSet::default(),
            provers: HashMap::new(),
            policies: HashMap::new(),
            quarantined: HashMap::new(),
            quarantined_revision: None,
            outages: OutageTracker::default(),
            last_round_kind: None,
            decided_rounds: HashSet::new(),
            last_result: None,
            pending_result: RoundAppraisal::default(),
            link,
        };
        let gateway = verifier.link.gateway();
        let rounds = verifier.link.registry().rounds(Some(gateway), DECIDED_ROUNDS_MAX);
        verifier.decided_rounds = rounds.await?.into_iter().map(|round| round.number).collect();
        let mut after = None;
        loop {
            let page = verifier
                .link
                .registry()
                .appraisals(after, APPRAISALS_PER_PAGE)
                .await?;
            for damaged in &page.damaged {
                tracing::error!(error = damaged, "damaged appraisal skipped");
            }
            for appraisal in page.appraisals {
                verifier.store_appraisal(appraisal);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(verifier)
    }

    /// Sets the link of the current request. Its registration must be the one that opened the verifier.
    pub fn set_link(&mut self, link: Link) {
        self.link = link;
    }

    fn store_appraisal(&mut self, appraisal: Appraisal) {
        let device = appraisal.device;
        let is_here = appraisal.gateway == self.link.gateway();
        let prover = ProverEntry {
            group: None,
            enrolled_at: None,
            protection: Protection::Software,
            is_at_other_gateway: !is_here,
            history: is_here.then(|| history_of(appraisal)),
        };
        self.provers.insert(device, prover);
    }

    /// Reads the history of a prover again: the prover was enrolled after this verifier had read the histories.
    async fn reload_prover(&mut self, device: DeviceId) -> Result<(), RegistryError> {
        self.provers.remove(&device);
        match self.link.registry().appraisal(device).await {
            Ok(appraisal) => appraisal
                .into_iter()
                .for_each(|appraisal| self.store_appraisal(appraisal)),
            Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                tracing::error!(%error, device_id = %device, "damaged appraisal skipped")
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads the quarantined devices from the registry. The histories do not suffice: an earlier process may have ended
    /// before it recorded the round, another gateway may have appraised the device last, or the operator may have
    /// released the device.
    pub(super) async fn refresh_quarantine(&mut self) -> Result<(), RegistryError> {
        let registry = self.link.registry();
        let revision = registry.revision().await?;
        if self.quarantined_revision == Some(revision) {
            return Ok(());
        }
        let quarantine_filter = DeviceFilter {
            quarantined: true,
            ..DeviceFilter::default()
        };
        let mut quarantined = HashMap::new();
        let mut after = None;
        loop {
            let page = registry.list(&quarantine_filter, after, DEVICES_PER_PAGE).await?;
            quarantined.extend(page.devices.iter().map(|info| (info.device, info.revision)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // If the registry's counter was restored, a device can have a revision above the registry's newest revision. A
        // round may never reach that feed revision, so the revision is limited to the newest one.
        let newest = registry.revision().await?;
        quarantined
            .values_mut()
            .for_each(|revision| *revision = newest.min(*revision));
        self.keep_unreadable_quarantined(&mut quarantined).await?;
        self.quarantined = quarantined;
        self.quarantined_revision = Some(revision);
        Ok(())
    }

    /// Keeps a device in quarantine if its record is missing or does not authenticate: the registry was edited. A
    /// released device has a valid record.
    async fn keep_unreadable_quarantined(
        &self,
        quarantined: &mut HashMap<DeviceId, Revision>,
    ) -> Result<(), RegistryError> {
        let is_quarantined = |prover: &ProverEntry| {
            let history = prover.history.as_ref();
            history.is_some_and(|history| history.state == AttestationState::Quarantined)
        };
        let candidates = self.provers.iter().filter(|(_, prover)| is_quarantined(prover));
        let mut devices: Vec<DeviceId> = candidates.map(|(device, _)| *device).collect();
        devices.retain(|device| !quarantined.contains_key(device));
        devices.sort_unstable();
        for device in devices {
            match self.link.registry().get(device).await {
                Ok(_) => {}
                Err(
                    error @ RegistryError::Device(
                        DeviceError::DamagedRecord { .. } | DeviceError::UnknownDevice { .. },
                    ),
                ) => {
                    tracing::error!(%error, device_id = %device, "device stays in quarantine: its record is missing or damaged");
                    quarantined.insert(device, Revision::ZERO);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes newly reserved round numbers from the decided rounds: these numbers belong to future rounds.
    fn forget_decided(&mut self, numbers: &Range<u32>) {
        let before = self.decided_rounds.len();
        self.decided_rounds.retain(|number| !numbers.contains(number));
        if self.decided_rounds.len() < before {
            let gateway = self.link.gateway();
            tracing::error!(gateway_id = %gateway, round_numbers = ?numbers, "round counter was restored; round numbers repeat");
        }
    }

    /// Returns the attestation plan; `None` if no salt could be drawn. `random` returns 8 random bytes.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn plan(
        &mut self,
        plan_request: PlanRequest,
        now_s: u64,
        random: &mut (dyn FnMut() -> Option<[u8; 8]> + Send),
    ) -> Result<Option<Plan>, RegistryError> {
        let registry = self.link.registry();
        registry.verify_fencing_token(self.link.fencing_token()).await?;
        // The revision is read before the groups, so a group that changes between the two reads is read again.
        let mut revision = registry.attest_revision().await?;
        if revision < self.newest_revision {
            log_revision_rollback(self.link.gateway(), self.newest_revision, revision);
            revision = registry.repair_attest_revision(self.link.fencing_token()).await?;
            // If the whole registry was restored, the repaired revision is still lower.
            self.newest_revision = revision;
            // Changes since the restore may have revisions that the gateway has read already.
            self.references.invalidate();
        }
        let groups = registry.groups().await?;
        for damaged in &groups.damaged {
            tracing::error!(
                error = damaged,
                "damaged group record; its provers are not attested"
            );
        }
        let groups = groups.groups;
        let revisions = groups.iter().map(|group| group.revision);
        self.newest_revision = revisions.fold(self.newest_revision, u64::max);
        self.references.update(&groups, now_s);
        let Some((running, next)) = periods(registry, &plan_request, now_s, random).await? else {
            return Ok(None);
        };
        let rounds = match plan_request.needs_round_numbers {
            true => {
                let reserved = registry
                    .reserve_rounds(self.link.fencing_token(), ROUNDS_RESERVED, rounds_floor(now_s))
                    .await?;
                if let Some(error) = reserved.damage {
                    tracing::error!(%error, round = reserved.numbers.start, "damaged round counter; it continues at a higher number");
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
                rounds_requested: group.rounds_requested,
            })
            .collect();
        // A group whose record is damaged during a round is appraised by its previous policy.
        let policies = groups.iter().map(|group| (group.name.clone(), group.policy));
        self.policies.extend(policies);
        Ok(Some(Plan {
            running: period_start(&running),
            age_s: running
                .started_at_s
                .map_or(0, |started_at_s| now_s.saturating_sub(started_at_s)),
            next: period_start(&next),
            revision,
            reference_digest: self.references.current_digest(),
            groups,
            rounds,
        }))
    }

    /// Returns the next part of the provers that have changed since a revision, with this gateway's keys of a period.
    ///
    /// # Errors
    /// A stale fencing token, a failure of the database, or an untrusted gateway; the request can be retried.
    pub async fn provers(&mut self, start: PeriodStart, since: u64) -> Result<Provers, Denial> {
        self.link.check_trust()?;
        let registry = self.link.registry().clone();
        registry.verify_fencing_token(self.link.fencing_token()).await?;
        let page = registry.provers_since(since, PROVERS_PER_PAGE).await?;
        let mut changed = Provers {
            start,
            reference_digest: self.references.current_digest(),
            provisions: Vec::new(),
            removed: Vec::new(),
            damaged: page.damaged,
            up_to_revision: page.up_to_revision,
            has_more: page.has_more,
        };
        for prover in page.provers {
            self.newest_revision = self.newest_revision.max(prover.revision);
            let entry = self.provers.get(&prover.device);
            if prover.revision > self.read_revision && entry.is_some_and(|entry| entry.enrolled_at.is_none())
            {
                self.reload_prover(prover.device).await?;
            }
            match self.provision(&prover, &start) {
                Some(provision) => changed.provisions.push(provision),
                None => {
                    self.provers.remove(&prover.device);
                    changed.removed.push(prover.device);
                }
            }
        }
        Ok(changed)
    }

    fn provision(&mut self, prover: &ProverRecord, start: &PeriodStart) -> Option<ProverProvision> {
        if prover.removed {
            return None;
        }
        let gateway = self.link.gateway();
        let entry = self.provers.entry(prover.device).or_insert(ProverEntry {
            group: None,
            enrolled_at: None,
            protection: prover.protection,
            is_at_other_gateway: false,
            history: None,
        });
        entry.protection = prover.protection;
        entry.group = Some(prover.group.clone());
        let enrolled_at = prover.enrolled_at();
        let enrolled_before = entry.enrolled_at.replace(enrolled_at);
        if enrolled_before.is_some_and(|before| before != enrolled_at) {
            // The prover was enrolled again: the history belongs to the earlier enrollment.
            entry.history = None;
            entry.is_at_other_gateway = false;
        }
        let last_address = entry.history.as_ref().and_then(|history| history.address);
        let location = prover.location.filter(|location| location.gateway == gateway);
        let address = last_address.or(location.map(|location| location.address));
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
            address: address.filter(|_| !entry.is_at_other_gateway),
            is_responsive: entry.history.as_ref().is_some_and(ProverHistory::is_responsive),
        })
    }
}

fn history_of(appraisal: Appraisal) -> ProverHistory {
    ProverHistory {
        state: appraisal.state,
        since_s: appraisal.since_s,
        since_round: appraisal.since_round,
        configuration: appraisal.configuration,
        rounds_total: appraisal.rounds_total,
        missed_rounds: appraisal.missed_rounds,
        address: appraisal.address,
    }
}
