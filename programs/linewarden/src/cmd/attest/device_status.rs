//! Attestation states of devices, as commands show them. The report of a gateway is valid only while this gateway continues its
//! rounds.

use linewarden_cli::failure::Failure;
use std::collections::{BTreeSet, HashMap};

use clap::ValueEnum;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    Appraisal, AttestationError, AttestationState, DeviceFilter, DeviceInfo, Group, Protection,
    ProverLocation, ProverRecord, Registry, RegistryError, RoundRecord,
};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};
use serde::Serialize;

use crate::cmd::device::date;

/// Records per query.
const PAGE_RECORDS: u32 = 1000;

/// The attestation state of a device at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum DisplayState {
    /// The device proves its reference value.
    Ok,
    /// The device proves its reference value, but late.
    Late,
    /// No valid proof was received in the last round.
    Missed,
    /// The device is in quarantine.
    Quarantined,
    /// No gateway has attested the device since its enrollment.
    AwaitingFirstRound,
    /// Requests were sent, but no valid proof was received since the enrollment.
    Unproven,
    /// The gateway has completed no round for too long: its last report is no longer valid.
    Stale,
    /// The device is revoked.
    Revoked,
}

impl DisplayState {
    /// All states, in the order of the summary.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::Late,
        Self::Missed,
        Self::Quarantined,
        Self::AwaitingFirstRound,
        Self::Unproven,
        Self::Stale,
        Self::Revoked,
    ];

    /// The name of the state for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Late => "late",
            Self::Missed => "missed",
            Self::Quarantined => "quarantined",
            Self::AwaitingFirstRound => "awaiting first round",
            Self::Unproven => "unproven",
            Self::Stale => "stale",
            Self::Revoked => "revoked",
        }
    }
}

/// A device and its attestation state.
// There are more than 15 fields because each is a column of the output.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// The device ID.
    pub device: DeviceId,
    /// Display name of the device.
    pub name: String,
    /// Group of the device.
    pub group: GroupName,
    /// Where the attestation key of the device is.
    pub protection: Protection,
    /// Attestation state of the device.
    pub state: DisplayState,
    /// Start of the state, seconds since 1970-01-01 UTC.
    pub since_s: Option<u64>,
    /// Age of the newest round of the group at the device's gateway, seconds. If this round is no longer stored: time since
    /// the state changed.
    pub age_s: Option<u64>,
    /// Time at which the state becomes stale if no further round follows, seconds since 1970-01-01 UTC.
    pub valid_until_s: Option<u64>,
    /// Reason of the quarantine.
    pub reason: Option<String>,
    /// The last appraisal.
    pub appraisal: Option<Appraisal>,
    /// Number of the newest round of the group at the device's gateway.
    pub last_round: Option<u32>,
    /// End of the round `last_round`, seconds since 1970-01-01 UTC.
    pub last_round_ended_s: Option<u64>,
    /// UDP port at which the agent receives requests.
    pub port: u16,
    /// Gateway and address for a device without a session.
    pub location: Option<ProverLocation>,
    /// Enrollment of the device's attestation key, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// Whether only a command releases the device from quarantine.
    pub needs_release: bool,
}

impl DeviceStatus {
    /// Whether the device has proven its reference value after `at_s`, seconds since 1970-01-01 UTC.
    pub fn has_proven_since(&self, at_s: u64) -> bool {
        matches!(self.state, DisplayState::Ok | DisplayState::Late)
            && self.last_round_ended_s.is_some_and(|ended_s| ended_s > at_s)
    }

    /// What must happen before the device is ok, if the device awaits its first round, is unproven, or is in
    /// quarantine. `None` in all other states.
    pub fn pending_action(&self) -> Option<String> {
        let pending = match self.state {
            DisplayState::AwaitingFirstRound => "its first round",
            DisplayState::Unproven | DisplayState::Quarantined => "a proof of the reference value",
            DisplayState::Ok
            | DisplayState::Late
            | DisplayState::Missed
            | DisplayState::Stale
            | DisplayState::Revoked => return None,
        };
        let last_location = self.appraisal.as_ref().and_then(|appraisal| {
            Some(ProverLocation {
                gateway: appraisal.gateway,
                address: appraisal.address?,
            })
        });
        let device = self.device;
        let instruction = match last_location.or(self.location) {
            Some(ProverLocation { gateway, address }) => {
                format!(
                    "gateway {gateway} attests the device at {address}, UDP port {}",
                    self.port
                )
            }
            None if self.state == DisplayState::Quarantined => format!(
                "no gateway attests the device: no gateway knows its address, and quarantine prevents a session; set gateway and address with `attest move \
                 {device} --gateway ID --address ADDRESS`"
            ),
            None => format!(
                "attestation starts with its first session, or after `attest move {device} --gateway ID --address ADDRESS`"
            ),
        };
        let command = match self.needs_release && self.state == DisplayState::Quarantined {
            true => format!("; then release the device with `attest release {device}`"),
            false => String::new(),
        };
        let enrolled = date(self.enrolled_at_s);
        Some(format!(
            "{pending} with the key of {enrolled}; {instruction}{command}"
        ))
    }

    /// The state for people, with the age of the report if the state is stale.
    pub fn text(&self) -> String {
        match (self.state, self.age_s) {
            (DisplayState::Stale, Some(age_s)) => format!("stale: last round {} ago", age_text(age_s)),
            (state, _) => state.name().to_owned(),
        }
    }

    /// Where the attestation key is, for people.
    pub const fn protection_name(&self) -> &'static str {
        protection_name(self.protection)
    }
}

/// Name of a protection of keys.
pub const fn protection_name(protection: Protection) -> &'static str {
    match protection {
        Protection::Tpm => "tpm",
        Protection::Software => "software",
    }
}

/// A duration: "40 s", "12 min", "3 h", "2 d".
pub fn age_text(age_s: u64) -> String {
    match age_s {
        0..120 => format!("{age_s} s"),
        120..7_200 => format!("{} min", age_s / 60),
        7_200..172_800 => format!("{} h", age_s / 3_600),
        _ => format!("{} d", age_s / 86_400),
    }
}

/// The attestation records of a registry.
pub struct Provers {
    /// The records, in order of their changes.
    pub provers: Vec<ProverRecord>,
    /// Errors of damaged records, which were skipped.
    pub damaged: Vec<String>,
}

/// Reads all attestation records.
///
/// # Errors
/// A database failure.
pub async fn read_provers(registry: &Registry) -> Result<Provers, RegistryError> {
    let (mut provers, mut damaged, mut since) = (Vec::new(), Vec::new(), 0);
    loop {
        let page = registry.provers_since(since, PAGE_RECORDS).await?;
        provers.extend(page.provers.into_iter().filter(|prover| !prover.removed));
        damaged.extend(page.damaged);
        since = page.up_to_revision;
        if !page.has_more {
            return Ok(Provers { provers, damaged });
        }
    }
}

/// The devices to show.
#[derive(Clone, Copy, Debug)]
pub enum DeviceSelection<'a> {
    /// These devices, which must be enrolled for attestation.
    Named(&'a [DeviceId]),
    /// All devices that are not revoked.
    All,
    /// All devices of these groups that are not revoked.
    Groups(&'a [GroupName]),
}

/// The attestation states of a registry's devices.
pub struct FleetStatus {
    /// The devices, sorted by ID.
    pub devices: Vec<DeviceStatus>,
    /// Gateways whose last round of a group did not include all devices.
    pub incomplete_rounds: Vec<IncompleteRound>,
    /// Errors of damaged records, which were skipped.
    pub damaged: Vec<String>,
}

/// A round that did not include all devices of a group at its gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IncompleteRound {
    /// The gateway.
    #[serde(serialize_with = "gateway_number")]
    pub gateway: GatewayId,
    /// The group.
    #[serde(serialize_with = "group_name")]
    pub group: GroupName,
    /// Number of devices in the round.
    pub requested: u32,
    /// Number of devices of the group whose last appraisal is by this gateway.
    pub expected: u32,
}

fn gateway_number<S: serde::Serializer>(gateway: &GatewayId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(gateway.0)
}

fn group_name<S: serde::Serializer>(group: &GroupName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(group.as_str())
}

impl FleetStatus {
    /// Reads the attestation states.
    ///
    /// # Errors
    /// A named device is not enrolled for attestation, or a database failure.
    pub async fn read(
        registry: &Registry,
        selection: DeviceSelection<'_>,
        now_s: u64,
    ) -> Result<Self, Failure> {
        let mut damaged = Vec::new();
        let groups = registry.groups().await?;
        damaged.extend(groups.damaged);
        let groups: HashMap<GroupName, Group> = groups
            .groups
            .into_iter()
            .map(|group| (group.name.clone(), group))
            .collect();
        let mut records = match selection {
            DeviceSelection::Named(devices) => read_named(registry, devices).await?,
            DeviceSelection::All | DeviceSelection::Groups(_) => {
                read_all(registry, selection, &mut damaged).await?
            }
        };
        records.sort_by_key(|(prover, ..)| prover.device);
        let rounds = newest_rounds(
            registry,
            records.iter().filter_map(|(.., appraisal)| appraisal.as_ref()),
        )
        .await?;
        let incomplete_rounds = match selection {
            DeviceSelection::Named(_) => Vec::new(),
            DeviceSelection::All | DeviceSelection::Groups(_) => find_incomplete_rounds(&records, &rounds),
        };
        let devices = records
            .into_iter()
            .map(|(prover, info, appraisal)| {
                let policy = groups.get(&prover.group).map(|group| &group.policy);
                let round = appraisal
                    .as_ref()
                    .and_then(|appraisal| rounds.get(&(appraisal.gateway, prover.group.clone())));
                device_status(prover, info, appraisal, policy, round, now_s)
            })
            .collect();
        Ok(Self {
            devices,
            incomplete_rounds,
            damaged,
        })
    }

    /// Number of devices in a state.
    pub fn count(&self, state: DisplayState) -> u64 {
        self.devices.iter().filter(|device| device.state == state).count() as u64
    }
}

type DeviceRecords = (ProverRecord, DeviceInfo, Option<Appraisal>);

async fn read_named(registry: &Registry, devices: &[DeviceId]) -> Result<Vec<DeviceRecords>, Failure> {
    let devices: BTreeSet<DeviceId> = devices.iter().copied().collect();
    let mut records = Vec::with_capacity(devices.len());
    for device in devices {
        let info = registry.get(device).await?;
        let prover = registry.prover(device).await?;
        let prover = prover.ok_or(RegistryError::Attestation(AttestationError::NotAProver {
            device,
        }))?;
        records.push((prover, info, registry.appraisal(device).await?));
    }
    Ok(records)
}

async fn read_all(
    registry: &Registry,
    selection: DeviceSelection<'_>,
    damaged: &mut Vec<String>,
) -> Result<Vec<DeviceRecords>, RegistryError> {
    let mut attested = read_provers(registry).await?;
    damaged.append(&mut attested.damaged);
    let mut infos = HashMap::new();
    let mut after = None;
    loop {
        let page = registry
            .list(&DeviceFilter::default(), after, PAGE_RECORDS)
            .await?;
        damaged.extend(page.damaged.iter().map(ToString::to_string));
        infos.extend(page.devices.into_iter().map(|info| (info.device, info)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut appraisals = HashMap::new();
    loop {
        let page = registry.appraisals(after, PAGE_RECORDS).await?;
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
    let is_selected = |prover: &ProverRecord| match selection {
        DeviceSelection::Groups(groups) => groups.contains(&prover.group),
        DeviceSelection::All | DeviceSelection::Named(_) => true,
    };
    let records = attested
        .provers
        .into_iter()
        .filter(is_selected)
        .filter_map(|prover| {
            let info = infos.remove(&prover.device)?;
            let appraisal = appraisals.remove(&prover.device);
            info.status.is_active().then_some((prover, info, appraisal))
        });
    Ok(records.collect())
}

type Rounds = HashMap<(GatewayId, GroupName), RoundRecord>;

/// The newest round of each group at each gateway with appraisals.
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

fn find_incomplete_rounds(records: &[DeviceRecords], rounds: &Rounds) -> Vec<IncompleteRound> {
    let mut expected: HashMap<(GatewayId, &GroupName), u32> = HashMap::new();
    for (prover, _, appraisal) in records {
        if let Some(appraisal) = appraisal {
            *expected.entry((appraisal.gateway, &prover.group)).or_default() += 1;
        }
    }
    let mut incomplete_rounds: Vec<IncompleteRound> = expected
        .into_iter()
        .filter_map(|((gateway, group), expected)| {
            let requested = rounds.get(&(gateway, group.clone()))?.requested;
            (requested < expected).then(|| IncompleteRound {
                gateway,
                group: group.clone(),
                requested,
                expected,
            })
        })
        .collect();
    incomplete_rounds.sort_by(|a, b| (a.gateway.0, &a.group).cmp(&(b.gateway.0, &b.group)));
    incomplete_rounds
}

fn device_status(
    prover: ProverRecord,
    info: DeviceInfo,
    appraisal: Option<Appraisal>,
    policy: Option<&GroupPolicy>,
    round: Option<&RoundRecord>,
    now_s: u64,
) -> DeviceStatus {
    let age_s = round.map(|round| now_s.abs_diff(round.ended_at_s));
    let validity_s = policy.map(GroupPolicy::validity_s);
    let is_fresh = age_s
        .zip(validity_s)
        .is_some_and(|(age_s, validity_s)| age_s <= validity_s);
    let state = display_state(
        info.status.is_active(),
        info.quarantine.is_some(),
        appraisal.as_ref().map(|appraisal| appraisal.state),
        is_fresh,
    );
    let since_s = match (state, &info.quarantine) {
        (DisplayState::Quarantined, Some(quarantine)) => Some(quarantine.at_s),
        _ => appraisal.as_ref().map(|appraisal| appraisal.since_s),
    };
    let state_age_s = appraisal
        .as_ref()
        .map(|appraisal| now_s.abs_diff(appraisal.since_s));
    DeviceStatus {
        device: prover.device,
        name: info.name,
        group: prover.group,
        protection: prover.protection,
        state,
        since_s,
        // If the round is no longer stored, the age of the state is used.
        age_s: age_s.or(state_age_s),
        valid_until_s: round
            .zip(validity_s)
            .filter(|_| is_fresh)
            .map(|(round, validity_s)| round.ended_at_s.saturating_add(validity_s)),
        reason: info.quarantine.map(|quarantine| quarantine.reason),
        appraisal,
        last_round: round.map(|round| round.number),
        last_round_ended_s: round.map(|round| round.ended_at_s),
        port: prover.port,
        location: prover.location,
        enrolled_at_s: prover.enrolled_at_s,
        needs_release: policy.is_some_and(|policy| policy.release_mode == ReleaseMode::Manual),
    }
}

/// Computes the state. `is_fresh`: the newest round of the group at the gateway ended less than the validity of a result before
/// now (or after now, if clocks differ).
fn display_state(
    is_active: bool,
    is_quarantined: bool,
    state: Option<AttestationState>,
    is_fresh: bool,
) -> DisplayState {
    match state {
        _ if !is_active => DisplayState::Revoked,
        _ if is_quarantined => DisplayState::Quarantined,
        None => DisplayState::AwaitingFirstRound,
        // A state without a proof cannot become stale.
        Some(AttestationState::Unproven) => DisplayState::Unproven,
        Some(_) if !is_fresh => DisplayState::Stale,
        Some(AttestationState::Ok) => DisplayState::Ok,
        Some(AttestationState::Late) => DisplayState::Late,
        // A device that was released by a command has not proven itself yet.
        Some(AttestationState::Missed | AttestationState::Quarantined) => DisplayState::Missed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Option<AttestationState>; 6] = [
        None,
        Some(AttestationState::Unproven),
        Some(AttestationState::Ok),
        Some(AttestationState::Late),
        Some(AttestationState::Missed),
        Some(AttestationState::Quarantined),
    ];

    #[test]
    fn only_a_proof_of_a_recent_round_is_ok() {
        for is_active in [true, false] {
            for is_quarantined in [true, false] {
                for is_fresh in [true, false] {
                    for state in STATES {
                        let is_ok =
                            display_state(is_active, is_quarantined, state, is_fresh) == DisplayState::Ok;
                        let expected =
                            is_active && !is_quarantined && is_fresh && state == Some(AttestationState::Ok);
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
    fn without_recent_rounds_a_state_with_proofs_is_stale() {
        for state in STATES.into_iter().flatten() {
            let expected = match state {
                AttestationState::Unproven => DisplayState::Unproven,
                _ => DisplayState::Stale,
            };
            assert_eq!(display_state(true, false, Some(state), false), expected);
            assert_eq!(
                display_state(true, true, Some(state), false),
                DisplayState::Quarantined
            );
        }
        assert_eq!(
            display_state(true, false, None, false),
            DisplayState::AwaitingFirstRound
        );
        assert_eq!(
            display_state(true, false, Some(AttestationState::Quarantined), true),
            DisplayState::Missed
        );
    }

    #[test]
    fn ages_have_a_suitable_unit() {
        let ages: Vec<String> = [0, 119, 120, 7_199, 7_200, 172_800].map(age_text).into();
        assert_eq!(ages, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }
}
