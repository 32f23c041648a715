//! The keys of a gateway's provers, for one period.

use std::collections::BTreeMap;
use std::net::IpAddr;

use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodStart, RequestKey};
use linewarden_protocol::gateway::ProverKeys;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{EnrolledAt, Group, GroupName, ProverRecord, RegistryError};
use sha2::{Digest as _, Sha256};

use crate::link::Link;

/// Provers read from the registry at once.
pub(super) const PAGE_PROVERS: u32 = 500;
/// Provers read at once without their keys.
const PAGE_IDS: u32 = 4_096;

/// A prover as a gateway gets it.
#[derive(Clone, Debug)]
pub struct ProverProvision {
    /// The device.
    pub device: DeviceId,
    /// Its group.
    pub group: GroupName,
    /// Which enrolment this is: what was seen of another one is not its own.
    pub enrolled_at: EnrolledAt,
    /// The UDP port at which it is asked.
    pub port: u16,
    /// What it may prove; nothing while its group has no reference value.
    pub keys: Option<ProverKeys>,
    /// Under which it is asked without a session.
    pub request_key: RequestKey,
    /// Where it is asked without a session, if this gateway is the one to ask it.
    pub address: Option<IpAddr>,
    /// Whether it was not silent there when it was asked last.
    pub is_answering: bool,
}

/// A part of a gateway's provers, in the order of their changes.
#[derive(Debug)]
pub struct Provers {
    /// The period of the keys.
    pub start: PeriodStart,
    /// What they may prove, as in [`Plan::references`](super::Plan::references).
    pub references: u64,
    /// Those that are to be attested.
    pub provisions: Vec<ProverProvision>,
    /// Those that are no longer.
    pub removed: Vec<DeviceId>,
    /// Records that cannot be used, in words.
    pub damaged: Vec<String>,
    /// Ask from here next.
    pub upto: u64,
    /// Whether there is more to be had at once.
    pub more: bool,
}

/// Who is to be attested, as of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProverIds {
    /// Those that are.
    pub provers: Vec<DeviceId>,
    /// Those that no longer are.
    pub removed: Vec<DeviceId>,
    /// Ask from here next.
    pub upto: u64,
    /// Whether there is more to be had at once.
    pub more: bool,
}

impl Link {
    /// Who has become a prover since a revision, or is one no more: for a gateway that attests nobody.
    ///
    /// # Errors
    /// An old fence, or a failure of the database: ask again.
    pub async fn prover_ids(&self, since: u64) -> Result<ProverIds, RegistryError> {
        self.registry().verify_fence(self.fence()).await?;
        let count = self.registry().attest_revision().await?;
        let since = match count < since {
            true => {
                tell_put_back(self.gateway(), since, count);
                0
            }
            false => since,
        };
        let page = self.registry().prover_ids_since(since, PAGE_IDS).await?;
        for damaged in &page.damaged {
            tracing::error!(record = damaged, "left out");
        }
        Ok(ProverIds {
            provers: page.provers,
            removed: page.removed,
            upto: page.upto,
            more: page.more,
        })
    }
}

/// What comes now takes numbers that a gateway has passed already.
pub(super) fn tell_put_back(gateway: GatewayId, heard: u64, count: u64) {
    tracing::error!(
        %gateway, heard, count,
        "somebody has put back the registry's count of changes to provers and groups; all is told anew"
    );
}

/// What the groups' reference values come to, made once for each change of a group.
#[derive(Debug, Default)]
pub(super) struct References {
    /// With the revision of the group and whether its roll-out was valid when they were made.
    groups: BTreeMap<GroupName, (u64, bool, Reference)>,
    renewals: u64,
    number: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Reference {
    current: Option<Base>,
    alternate: Option<Base>,
}

#[derive(Debug, PartialEq, Eq)]
struct Base {
    configuration: Configuration,
    hash: ConfigurationHash,
}

impl Base {
    /// The registry authenticates what it holds: an encoding that cannot be read was stored by a newer program.
    fn read(encoding: &[u8]) -> Option<Self> {
        let configuration = Configuration::decode(encoding).ok()?;
        let hash = ConfigurationHash(configuration.hash().0);
        Some(Self { configuration, hash })
    }

    fn hash_under(&self, overlay: Option<&Configuration>) -> Option<ConfigurationHash> {
        match overlay {
            None => Some(self.hash),
            Some(overlay) => {
                let whole = self.configuration.overlaid(overlay).ok()?;
                Some(ConfigurationHash(whole.hash().0))
            }
        }
    }
}

/// What a prover may prove: h under its group's base, and under the one that is being rolled out.
pub(super) struct Hashes {
    pub(super) current: ConfigurationHash,
    pub(super) alternate: Option<ConfigurationHash>,
}

impl References {
    /// Takes notice of how the groups are now. A roll-out whose window has ended counts no more.
    pub(super) fn follow(&mut self, groups: &[Group], now_s: u64) {
        let before = self.groups.len();
        self.groups
            .retain(|name, _| groups.iter().any(|group| group.name == *name));
        let mut is_changed = self.groups.len() < before;
        for group in groups {
            let roll_out = group
                .roll_out
                .as_ref()
                .filter(|roll_out| now_s < roll_out.until_s);
            let (revision, is_rolled_out) = (group.revision, roll_out.is_some());
            let known = self.groups.get(&group.name);
            let is_same = |known: &(u64, bool, Reference)| (known.0, known.1) == (revision, is_rolled_out);
            if known.is_some_and(is_same) {
                continue;
            }
            let reference = Reference {
                current: group.reference.as_deref().and_then(Base::read),
                alternate: roll_out.and_then(|roll_out| Base::read(&roll_out.reference)),
            };
            // A round that was ordered, or another interval, changes no key.
            is_changed |= known.is_none_or(|(_, _, known)| *known != reference);
            let entry = (revision, is_rolled_out, reference);
            self.groups.insert(group.name.clone(), entry);
        }
        if is_changed {
            self.number = self.digest();
        }
    }

    /// All keys are to be made anew, though no group has changed.
    pub(super) fn renew(&mut self) {
        self.renewals += 1;
        self.number = self.digest();
    }

    /// Another number after each change, 0 before the first.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// What may be proven as a number: a verifier that has just begun and knows of other configurations than the one before must not
    /// give it the same.
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

    /// What a prover may prove now; `None` without a reference value.
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

/// What a gateway is given of a prover's key.
pub(super) fn proof_keys(
    key: &AttestationKey,
    device: DeviceId,
    start: &PeriodStart,
    hashes: &Hashes,
    gateway: GatewayId,
) -> ProverKeys {
    let make = |h: &ConfigurationHash| key.for_period(device, start, h).for_gateway(gateway);
    ProverKeys {
        current: make(&hashes.current),
        alternate: hashes.alternate.as_ref().map(make),
    }
}
