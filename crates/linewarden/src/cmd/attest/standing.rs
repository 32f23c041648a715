//! How devices stand, as it is shown: what a gateway has seen counts only while that gateway goes on looking.

use std::collections::{BTreeSet, HashMap};

use clap::ValueEnum;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    Appraisal, DeviceInfo, Filter, Group, GroupName, GroupPolicy, Home, Protection, ProverRecord, Registry,
    RegistryError, Reopen, RoundRecord, State,
};
use serde::Serialize;

use crate::cmd::device::date;
use crate::failure::Failure;

/// Records read at once.
const PAGE: u32 = 1000;

/// How a device stands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Shown {
    /// It proves what it is to run.
    Ok,
    /// It does, too late.
    Late,
    /// It proves nothing.
    Silent,
    /// It is shut out.
    Quarantined,
    /// Nobody has asked it since it was enrolled.
    NeverAsked,
    /// It was asked, and has proven nothing since it was enrolled.
    NeverProved,
    /// Nobody has looked for too long: what was seen before says nothing.
    Stale,
    /// It is shut out for good.
    Revoked,
}

impl Shown {
    /// All, in the order in which they are counted.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::Late,
        Self::Silent,
        Self::Quarantined,
        Self::NeverAsked,
        Self::NeverProved,
        Self::Stale,
        Self::Revoked,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Late => "late",
            Self::Silent => "silent",
            Self::Quarantined => "quarantined",
            Self::NeverAsked => "never asked",
            Self::NeverProved => "never proved",
            Self::Stale => "STALE",
            Self::Revoked => "revoked",
        }
    }
}

/// A device and how it stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Which.
    pub device: DeviceId,
    /// For people.
    pub name: String,
    /// Its group.
    pub group: GroupName,
    /// Where its key lies.
    pub protection: Protection,
    /// How it stands.
    pub shown: Shown,
    /// Since when, seconds since 1970-01-01 UTC.
    pub since_s: Option<u64>,
    /// How long ago its gateway has looked last, seconds; of what was asked.
    pub age_s: Option<u64>,
    /// Until when this may be said, if nobody looks again.
    pub good_until_s: Option<u64>,
    /// Why it is in quarantine.
    pub reason: Option<String>,
    /// What was seen last.
    pub appraisal: Option<Appraisal>,
    /// The newest round of its group at its gateway.
    pub last_round: Option<u32>,
    /// When that ended, seconds since 1970-01-01 UTC.
    pub looked_s: Option<u64>,
    /// The UDP port that it is asked at.
    pub port: u16,
    /// Where it is asked that was not asked yet.
    pub home: Option<Home>,
    /// When its key was enrolled, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// Whether it leaves quarantine by a command only.
    pub needs_reopen: bool,
}

impl Standing {
    /// Whether it has proven what it should after that time, seconds since 1970-01-01 UTC.
    pub fn has_proven_since(&self, at_s: u64) -> bool {
        matches!(self.shown, Shown::Ok | Shown::Late) && self.looked_s.is_some_and(|looked_s| looked_s > at_s)
    }

    /// What has to happen before it is well; nothing of a device that a gateway has seen since it was enrolled, and that is not shut
    /// out.
    pub fn waits_for(&self) -> Option<String> {
        let what = match self.shown {
            Shown::NeverAsked => "its first round",
            Shown::NeverProved | Shown::Quarantined => "a proof of what it should run",
            Shown::Ok | Shown::Late | Shown::Silent | Shown::Stale | Shown::Revoked => return None,
        };
        let asked = self.appraisal.as_ref().and_then(|appraisal| {
            Some(Home {
                gateway: appraisal.gateway,
                address: appraisal.address?,
            })
        });
        let device = self.device;
        let place = match asked.or(self.home) {
            Some(Home { gateway, address }) => {
                format!("gateway {gateway} asks it at {address}, UDP port {}", self.port)
            }
            None if self.shown == Shown::Quarantined => format!(
                "no gateway asks it, for none has seen it, and quarantine allows no session: `attest move {device} --gateway ID \
                 --address ADDRESS` names one"
            ),
            None => format!(
                "it is asked where it has its first session, or by `attest move {device} --gateway ID --address ADDRESS`"
            ),
        };
        let command = match self.needs_reopen && self.shown == Shown::Quarantined {
            true => format!("; then `attest reopen {device}` lets it in"),
            false => String::new(),
        };
        let enrolled = date(self.enrolled_at_s);
        Some(format!("{what} with the key of {enrolled}; {place}{command}"))
    }

    /// "STALE for 310 s".
    pub fn text(&self) -> String {
        match (self.shown, self.age_s) {
            (Shown::Stale, Some(age_s)) => format!("STALE: last looked {} ago", ago(age_s)),
            (shown, _) => shown.name().to_owned(),
        }
    }

    /// The word for where its key lies.
    pub const fn key(&self) -> &'static str {
        key_name(self.protection)
    }
}

/// The word for where a key lies.
pub const fn key_name(protection: Protection) -> &'static str {
    match protection {
        Protection::Tpm => "tpm",
        Protection::Software => "software",
    }
}

/// "40 s", "12 min", "3 h", "2 d".
pub fn ago(age_s: u64) -> String {
    match age_s {
        0..120 => format!("{age_s} s"),
        120..7_200 => format!("{} min", age_s / 60),
        7_200..172_800 => format!("{} h", age_s / 3_600),
        _ => format!("{} d", age_s / 86_400),
    }
}

/// All provers of a registry.
pub struct Provers {
    /// In the order of their changes.
    pub provers: Vec<ProverRecord>,
    /// What is wrong with those that were left out.
    pub damaged: Vec<String>,
}

/// Reads all that are to be attested.
///
/// # Errors
/// A failure of the database.
pub async fn provers(registry: &Registry) -> Result<Provers, RegistryError> {
    let (mut found, mut damaged, mut since) = (Vec::new(), Vec::new(), 0);
    loop {
        let page = registry.provers_since(since, PAGE).await?;
        found.extend(page.provers.into_iter().filter(|prover| !prover.removed));
        damaged.extend(page.damaged);
        since = page.upto;
        if !page.more {
            return Ok(Provers {
                provers: found,
                damaged,
            });
        }
    }
}

/// Which devices are meant.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// These, each of which must be attested.
    Named(&'a [DeviceId]),
    /// All but revoked ones.
    All,
    /// All of these groups but revoked ones.
    Of(&'a [GroupName]),
}

/// How the devices of a registry stand at a time.
pub struct Fleet {
    /// By their ids.
    pub standings: Vec<Standing>,
    /// Gateways whose last round of a group left somebody out.
    pub incomplete: Vec<Incomplete>,
    /// What is wrong with records that were left out.
    pub damaged: Vec<String>,
}

/// A round that did not ask all whom that gateway should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Incomplete {
    /// Which gateway.
    #[serde(serialize_with = "gateway_number")]
    pub gateway: GatewayId,
    /// Whose round.
    #[serde(serialize_with = "group_name")]
    pub group: GroupName,
    /// Whom it asked.
    pub asked: u32,
    /// Who was appraised there last.
    pub expected: u32,
}

fn gateway_number<S: serde::Serializer>(gateway: &GatewayId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(gateway.0)
}

fn group_name<S: serde::Serializer>(group: &GroupName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(group.as_str())
}

impl Fleet {
    /// Reads how devices stand.
    ///
    /// # Errors
    /// A device that is named and not attested, or a failure of the database.
    pub async fn read(registry: &Registry, which: Which<'_>, now_s: u64) -> Result<Self, Failure> {
        let mut damaged = Vec::new();
        let groups = registry.groups().await?;
        damaged.extend(groups.damaged);
        let groups: HashMap<GroupName, Group> = groups
            .groups
            .into_iter()
            .map(|group| (group.name.clone(), group))
            .collect();
        let mut read = match which {
            Which::Named(devices) => read_named(registry, devices).await?,
            Which::All | Which::Of(_) => read_all(registry, which, &mut damaged).await?,
        };
        read.sort_by_key(|(prover, ..)| prover.device);
        let rounds = newest_rounds(
            registry,
            read.iter().filter_map(|(.., appraisal)| appraisal.as_ref()),
        )
        .await?;
        let incomplete = match which {
            Which::Named(_) => Vec::new(),
            Which::All | Which::Of(_) => incomplete(&read, &rounds),
        };
        let standings = read
            .into_iter()
            .map(|(prover, info, appraisal)| {
                let policy = groups.get(&prover.group).map(|group| &group.policy);
                let round = appraisal
                    .as_ref()
                    .and_then(|appraisal| rounds.get(&(appraisal.gateway, prover.group.clone())));
                standing(prover, info, appraisal, policy, round, now_s)
            })
            .collect();
        Ok(Self {
            standings,
            incomplete,
            damaged,
        })
    }

    /// How many stand so.
    pub fn count(&self, shown: Shown) -> u64 {
        self.standings
            .iter()
            .filter(|standing| standing.shown == shown)
            .count() as u64
    }
}

type Read = (ProverRecord, DeviceInfo, Option<Appraisal>);

async fn read_named(registry: &Registry, devices: &[DeviceId]) -> Result<Vec<Read>, Failure> {
    let devices: BTreeSet<DeviceId> = devices.iter().copied().collect();
    let mut read = Vec::with_capacity(devices.len());
    for device in devices {
        let info = registry.get(device).await?;
        let prover = registry.prover(device).await?;
        let prover = prover.ok_or(RegistryError::NotAProver { device })?;
        read.push((prover, info, registry.appraisal(device).await?));
    }
    Ok(read)
}

async fn read_all(
    registry: &Registry,
    which: Which<'_>,
    damaged: &mut Vec<String>,
) -> Result<Vec<Read>, RegistryError> {
    let mut found = provers(registry).await?;
    damaged.append(&mut found.damaged);
    let mut infos = HashMap::new();
    let mut after = None;
    loop {
        let page = registry.list(&Filter::default(), after, PAGE).await?;
        damaged.extend(page.damaged.iter().map(ToString::to_string));
        infos.extend(page.devices.into_iter().map(|info| (info.device, info)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut appraisals = HashMap::new();
    loop {
        let page = registry.appraisals(after, PAGE).await?;
        damaged.extend(page.damaged);
        appraisals.extend(
            page.appraisals
                .into_iter()
                .map(|appraisal| (appraisal.device, appraisal)),
        );
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let is_meant = |prover: &ProverRecord| match which {
        Which::Of(groups) => groups.contains(&prover.group),
        Which::All | Which::Named(_) => true,
    };
    let read = found.provers.into_iter().filter(is_meant).filter_map(|prover| {
        let info = infos.remove(&prover.device)?;
        let appraisal = appraisals.remove(&prover.device);
        info.status.is_active().then_some((prover, info, appraisal))
    });
    Ok(read.collect())
}

type Rounds = HashMap<(GatewayId, GroupName), RoundRecord>;

/// The newest round of each group at each gateway that has appraised somebody.
async fn newest_rounds(
    registry: &Registry,
    appraisals: impl Iterator<Item = &Appraisal>,
) -> Result<Rounds, RegistryError> {
    let gateways: BTreeSet<u32> = appraisals.map(|appraisal| appraisal.gateway.0).collect();
    let mut newest = Rounds::new();
    for gateway in gateways.into_iter().map(GatewayId) {
        for round in registry.rounds(Some(gateway), u32::MAX).await? {
            newest.entry((gateway, round.group.clone())).or_insert(round);
        }
    }
    Ok(newest)
}

fn incomplete(read: &[Read], rounds: &Rounds) -> Vec<Incomplete> {
    let mut expected: HashMap<(GatewayId, &GroupName), u32> = HashMap::new();
    for (prover, _, appraisal) in read {
        if let Some(appraisal) = appraisal {
            *expected.entry((appraisal.gateway, &prover.group)).or_default() += 1;
        }
    }
    let mut found: Vec<Incomplete> = expected
        .into_iter()
        .filter_map(|((gateway, group), expected)| {
            let asked = rounds.get(&(gateway, group.clone()))?.asked;
            (asked < expected).then(|| Incomplete {
                gateway,
                group: group.clone(),
                asked,
                expected,
            })
        })
        .collect();
    found.sort_by(|one, other| (one.gateway.0, &one.group).cmp(&(other.gateway.0, &other.group)));
    found
}

fn standing(
    prover: ProverRecord,
    info: DeviceInfo,
    appraisal: Option<Appraisal>,
    policy: Option<&GroupPolicy>,
    round: Option<&RoundRecord>,
    now_s: u64,
) -> Standing {
    let age_s = round.map(|round| now_s.abs_diff(round.ended_at_s));
    let good_for_s = policy.map(GroupPolicy::good_for_s);
    let is_fresh = age_s
        .zip(good_for_s)
        .is_some_and(|(age_s, good_for_s)| age_s <= good_for_s);
    let shown = shown(
        info.status.is_active(),
        info.quarantine.is_some(),
        appraisal.as_ref().map(|appraisal| appraisal.state),
        is_fresh,
    );
    let since_s = match (shown, &info.quarantine) {
        (Shown::Quarantined, Some(quarantine)) => Some(quarantine.at_s),
        _ => appraisal.as_ref().map(|appraisal| appraisal.since_s),
    };
    let seen_s = appraisal
        .as_ref()
        .map(|appraisal| now_s.abs_diff(appraisal.since_s));
    Standing {
        device: prover.device,
        name: info.name,
        group: prover.group,
        protection: prover.protection,
        shown,
        since_s,
        // Its round may be gone from the record.
        age_s: age_s.or(seen_s),
        good_until_s: round
            .zip(good_for_s)
            .filter(|_| is_fresh)
            .map(|(round, good_for_s)| round.ended_at_s.saturating_add(good_for_s)),
        reason: info.quarantine.map(|quarantine| quarantine.reason),
        appraisal,
        last_round: round.map(|round| round.number),
        looked_s: round.map(|round| round.ended_at_s),
        port: prover.port,
        home: prover.home,
        enrolled_at_s: prover.enrolled_at_s,
        needs_reopen: policy.is_some_and(|policy| policy.reopen == Reopen::ByCommand),
    }
}

/// What is shown of a device in this state. `is_fresh`: its gateway has ended a round of its group within the time for which
/// a verdict is good, before this moment or, with clocks that differ, after it.
fn shown(is_active: bool, is_quarantined: bool, state: Option<State>, is_fresh: bool) -> Shown {
    match state {
        _ if !is_active => Shown::Revoked,
        _ if is_quarantined => Shown::Quarantined,
        None => Shown::NeverAsked,
        // There is nothing that could have become stale.
        Some(State::Unproven) => Shown::NeverProved,
        Some(_) if !is_fresh => Shown::Stale,
        Some(State::Ok) => Shown::Ok,
        Some(State::Late) => Shown::Late,
        // One that was let in again by command has yet to prove itself.
        Some(State::Silent | State::Quarantined) => Shown::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Option<State>; 6] = [
        None,
        Some(State::Unproven),
        Some(State::Ok),
        Some(State::Late),
        Some(State::Silent),
        Some(State::Quarantined),
    ];

    #[test]
    fn ok_is_only_a_proof_that_somebody_still_looks_at() {
        for is_active in [true, false] {
            for is_quarantined in [true, false] {
                for is_fresh in [true, false] {
                    for state in STATES {
                        let is_ok = shown(is_active, is_quarantined, state, is_fresh) == Shown::Ok;
                        let expected = is_active && !is_quarantined && is_fresh && state == Some(State::Ok);
                        assert_eq!(
                            is_ok, expected,
                            "{is_active} {is_quarantined} {is_fresh} {state:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_dead_verifier_makes_all_but_quarantine_stale() {
        for state in STATES.into_iter().flatten() {
            let expected = match state {
                State::Unproven => Shown::NeverProved,
                _ => Shown::Stale,
            };
            assert_eq!(shown(true, false, Some(state), false), expected);
            assert_eq!(shown(true, true, Some(state), false), Shown::Quarantined);
        }
        assert_eq!(shown(true, false, None, false), Shown::NeverAsked);
        assert_eq!(shown(true, false, Some(State::Quarantined), true), Shown::Silent);
    }

    #[test]
    fn ages_are_told_in_the_unit_that_fits() {
        let told: Vec<String> = [0, 119, 120, 7_199, 7_200, 172_800].map(ago).into();
        assert_eq!(told, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }
}
