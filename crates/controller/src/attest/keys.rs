//! The keys of a gateway's provers, for one period.

use std::collections::BTreeMap;

use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodStart};
use linewarden_protocol::gateway::ProverKeys;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{Group, ProverRecord, RegistryError};
use linewarden_types::{GroupName, ProverIds};
use sha2::{Digest as _, Sha256};

use crate::link::Link;

/// Maximum number of provers in one query.
pub(super) const PROVERS_PER_PAGE: u32 = 500;
/// Maximum number of prover ids in one query.
const IDS_PER_PAGE: u32 = 4_096;

impl Link {
    /// Returns the devices that have become provers, or are no longer provers, since a revision. A gateway that does not
    /// attest uses this list.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn prover_ids(&self, since: u64) -> Result<ProverIds, RegistryError> {
        self.registry().verify_fencing_token(self.fencing_token()).await?;
        let revision = self.registry().attest_revision().await?;
        let since = match revision < since {
            true => {
                log_revision_rollback(self.gateway(), since, revision);
                0
            }
            false => since,
        };
        let page = self.registry().prover_ids_since(since, IDS_PER_PAGE).await?;
        for damaged in &page.damaged {
            tracing::error!(error = damaged, "damaged prover record skipped");
        }
        Ok(ProverIds {
            provers: page.provers,
            removed: page.removed,
            up_to_revision: page.up_to_revision,
            has_more: page.has_more,
        })
    }
}

/// Logs that the registry was restored: new changes get revisions that a gateway has read already.
pub(super) fn log_revision_rollback(gateway: GatewayId, read_revision: u64, revision: u64) {
    tracing::error!(
        gateway_id = %gateway, read_revision, revision,
        "revision of provers and groups is lower than the revision that the gateway has read; sending all again"
    );
}

/// The hashes of all groups' reference values, computed once for each change of a group.
#[derive(Debug, Default)]
pub(super) struct ReferenceSet {
    /// For each group: its revision, whether its roll-out was active, and its reference values.
    groups: BTreeMap<GroupName, (u64, bool, GroupReference)>,
    /// Number of calls of [`Self::invalidate`].
    renewals: u64,
    current_digest: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct GroupReference {
    current: Option<BaseConfiguration>,
    alternate: Option<BaseConfiguration>,
}

#[derive(Debug, PartialEq, Eq)]
struct BaseConfiguration {
    configuration: Configuration,
    hash: ConfigurationHash,
}

impl BaseConfiguration {
    /// Decodes a reference value. The registry authenticates the encoding; an encoding that cannot be decoded was
    /// stored by a newer version.
    fn decode(encoding: &[u8]) -> Option<Self> {
        let configuration = Configuration::decode(encoding).ok()?;
        let hash = ConfigurationHash(configuration.hash().0);
        Some(Self { configuration, hash })
    }

    fn hash_under(&self, overlay: Option<&Configuration>) -> Option<ConfigurationHash> {
        match overlay {
            None => Some(self.hash),
            Some(overlay) => {
                let with_overlay = self.configuration.with_overlay(overlay).ok()?;
                Some(ConfigurationHash(with_overlay.hash().0))
            }
        }
    }
}

/// The configuration hashes that a prover may prove: for its group's reference value, and for the reference value that
/// is being rolled out.
pub(super) struct Hashes {
    pub(super) current: ConfigurationHash,
    pub(super) alternate: Option<ConfigurationHash>,
}

impl ReferenceSet {
    /// Updates the hashes after changes of the groups. A roll-out whose window has ended is ignored.
    pub(super) fn update(&mut self, groups: &[Group], now_s: u64) {
        let groups_before = self.groups.len();
        self.groups
            .retain(|name, _| groups.iter().any(|group| group.name == *name));
        let mut is_changed = self.groups.len() < groups_before;
        for group in groups {
            let roll_out = group
                .roll_out
                .as_ref()
                .filter(|roll_out| now_s < roll_out.until_s);
            let (revision, is_roll_out_active) = (group.revision, roll_out.is_some());
            let current = self.groups.get(&group.name);
            let is_same = |current: &(u64, bool, GroupReference)| {
                (current.0, current.1) == (revision, is_roll_out_active)
            };
            if current.is_some_and(is_same) {
                continue;
            }
            let reference = GroupReference {
                current: group.reference.as_deref().and_then(BaseConfiguration::decode),
                alternate: roll_out.and_then(|roll_out| BaseConfiguration::decode(&roll_out.reference)),
            };
            // A requested round or a new interval changes the group's revision, but no key.
            is_changed |= current.is_none_or(|(_, _, current)| *current != reference);
            let entry = (revision, is_roll_out_active, reference);
            self.groups.insert(group.name.clone(), entry);
        }
        if is_changed {
            self.current_digest = self.digest();
        }
    }

    /// Changes the digest, so all keys are derived and sent again although no group has changed.
    pub(super) fn invalidate(&mut self) {
        self.renewals += 1;
        self.current_digest = self.digest();
    }

    /// The digest of the reference values; 0 before the first update.
    pub(super) fn current_digest(&self) -> u64 {
        self.current_digest
    }

    /// Computes the digest. Verifiers with different reference values must not have the same digest.
    fn digest(&self) -> u64 {
        let mut digest = Sha256::new();
        digest.update(self.renewals.to_be_bytes());
        for (name, (_, _, reference)) in &self.groups {
            digest.update((name.as_str().len() as u64).to_be_bytes());
            digest.update(name.as_str());
            for base in [&reference.current, &reference.alternate] {
                digest.update([u8::from(base.is_some())]);
                digest.update(base.as_ref().map_or([0; 32], |base| base.hash.0));
            }
        }
        let [first, ..] = *digest.finalize().as_chunks().0 else {
            return 0;
        };
        u64::from_be_bytes(first)
    }

    /// Returns the hashes that a prover may prove now; `None` without a reference value.
    pub(super) fn hashes(&self, prover: &ProverRecord) -> Option<Hashes> {
        let (_, _, reference) = self.groups.get(&prover.group)?;
        let overlay = match &prover.overlay {
            None => None,
            Some(encoding) => Some(Configuration::decode(encoding).ok()?),
        };
        Some(Hashes {
            current: reference.current.as_ref()?.hash_under(overlay.as_ref())?,
            alternate: reference
                .alternate
                .as_ref()
                .and_then(|base| base.hash_under(overlay.as_ref())),
        })
    }
}

/// Returns this gateway's keys, derived from a prover's key.
pub(super) fn proof_keys(
    key: &AttestationKey,
    device: DeviceId,
    start: &PeriodStart,
    hashes: &Hashes,
    gateway: GatewayId,
) -> ProverKeys {
    let gateway_key = |h: &ConfigurationHash| key.for_period(device, start, h).for_gateway(gateway);
    ProverKeys {
        current: gateway_key(&hashes.current),
        alternate: hashes.alternate.as_ref().map(gateway_key),
    }
}
