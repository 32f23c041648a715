//! Attestation: state of a device, results, rounds and groups.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The attestation state of a device.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attestation {
    /// The group.
    pub group: String,
    /// The protection of the attestation key: software or tpm
    pub protection: Cow<'static, str>,
    /// ok, late, missed, quarantined or unproven
    pub state: Cow<'static, str>,
    /// Time of the last state change; null before the first round.
    pub since_s: Option<u64>,
    /// The gateway of the last round.
    pub gateway: Option<u32>,
}

/// The attestation result of a device.
// There are more than 15 fields because the JSON object of a result is flat: tables and filters read it by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttestationResult {
    /// 16 hexadecimal digits.
    pub device: String,
    /// The display name.
    pub name: String,
    /// The group.
    pub group: String,
    /// The protection of the attestation key: software or tpm
    pub protection: Cow<'static, str>,
    /// ok, late, missed, quarantined, awaiting_first_round, unproven, stale (no round for two intervals) or revoked
    pub state: Cow<'static, str>,
    /// Start of the state; null before the first round.
    pub since_s: Option<u64>,
    /// Age of the newest round of the group at the device's gateway, seconds. If this round is no longer stored: time since
    /// the state changed.
    pub age_s: Option<u64>,
    /// Time at which the state becomes stale if no further round follows; null if the state has no validity.
    pub valid_until_s: Option<u64>,
    /// The gateway of the last round.
    pub gateway: Option<u32>,
    /// The round that changed the state.
    pub since_round: Option<u32>,
    /// Number of the newest round of the group at the gateway.
    pub last_round: Option<u32>,
    /// End of the round `last_round`.
    pub last_round_ended_s: Option<u64>,
    /// Number of devices in the round `last_round`.
    pub last_round_requested: Option<u32>,
    /// The reference value that the device proves: base or roll-out; null without a current proof.
    pub reference: Option<Cow<'static, str>>,
    /// Address of the device in the last round.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<IpAddr>,
    /// UDP port at which the agent receives requests.
    pub port: u16,
    /// Gateway and address for a device without a session.
    pub location: Option<Location>,
    /// Time of the enrollment of the attestation key.
    pub enrolled_at_s: u64,
    /// Whether only a command releases the device from quarantine.
    pub needs_release: bool,
    /// Reason of the quarantine.
    pub reason: Option<String>,
}

/// A gateway, and the address of a device at the gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Location {
    /// The gateway id.
    pub gateway: u32,
    /// The address of the device.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: IpAddr,
}

/// A query for attestation results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ResultQuery {
    /// Only these devices, separated by commas, at most 1000. Without this parameter, revoked devices are omitted.
    pub devices: Option<String>,
    /// Only devices of this group.
    pub group: Option<String>,
    /// Only devices in this state.
    pub state: Option<String>,
    /// Maximum number of devices that are read: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// Signed attestation results: an EAR (draft-ietf-rats-ear) as a JWT.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignedResults {
    /// The token.
    pub token: String,
    /// Number of devices in the token.
    pub devices: u64,
    /// End of the validity.
    pub expires_s: u64,
}

/// A completed round.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Round {
    /// The gateway.
    pub gateway: u32,
    /// The number of the round at that gateway.
    pub number: u32,
    /// The group.
    pub group: String,
    /// The key period.
    pub period: u64,
    /// Time of the start.
    pub started_at_s: u64,
    /// Time of the end.
    pub ended_at_s: u64,
    /// Number of devices in the round.
    pub requested: u32,
    /// Devices with a valid proof in time.
    pub ok: u32,
    /// Devices with a late proof.
    pub late: u32,
    /// Devices without a valid proof.
    pub missed: u32,
    /// Time from the start to the last proof, milliseconds.
    pub last_proof_ms: u32,
}

/// A query for rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct RoundQuery {
    /// Only rounds of this gateway.
    pub gateway: Option<String>,
    /// Only rounds of this group.
    pub group: Option<String>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// A group of attested devices: attestation policy and reference values.
// There are more than 15 fields because the JSON object of a group is flat: tables and the dashboard read it by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Group {
    /// The group name.
    pub name: String,
    /// Interval between rounds, seconds.
    pub every_s: u32,
    /// Maximum random deviation of the start of a round, seconds.
    pub jitter_s: u32,
    /// Time after which a proof is late, milliseconds.
    pub proof_timeout_ms: u32,
    /// Number of missed rounds, among the last `window_rounds` rounds of a device, that puts the device into quarantine.
    pub missed_limit: u32,
    /// Number of the last rounds of a device in which missed rounds are counted.
    pub window_rounds: u32,
    /// Whether a late proof counts as a missed round.
    pub late_is_missed: bool,
    /// How a device is released from quarantine: automatic or manual
    pub release_mode: Cow<'static, str>,
    /// Hash of the reference value; null: the devices of the group are not attested.
    pub reference: Option<String>,
    /// The roll-out of another reference value; null without a roll-out.
    pub roll_out: Option<RollOut>,
    /// Number of rounds that were requested manually.
    pub rounds_requested: u64,
    /// Number of devices that are enrolled for attestation; null after a change, and in a list without `devices=true`.
    pub devices: Option<u64>,
}

/// A roll-out, during which another reference value is also valid.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollOut {
    /// Hash of the other reference value.
    pub reference: String,
    /// End of the roll-out.
    pub until_s: u64,
}

/// A query for groups.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct GroupQuery {
    /// Whether to count the devices of each group; the controller then reads the attestation records of all devices.
    pub devices: Option<bool>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// Changes of a group. Omitted fields keep their value. In a new group, omitted fields have the defaults of
/// `linewarden attest group set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupChange {
    /// Interval between rounds, seconds.
    pub every_s: Option<u32>,
    /// Maximum random deviation of the start of a round, seconds.
    pub jitter_s: Option<u32>,
    /// Time after which a proof is late, milliseconds.
    pub proof_timeout_ms: Option<u32>,
    /// Number of missed rounds, among the last `window_rounds` rounds of a device, that puts the device into quarantine.
    pub missed_limit: Option<u32>,
    /// Number of the last rounds of a device in which missed rounds are counted.
    pub window_rounds: Option<u32>,
    /// Whether a late proof counts as a missed round.
    pub late_is_missed: Option<bool>,
    /// How a device is released from quarantine: automatic or manual
    pub release_mode: Option<String>,
    /// Reference value: a file of `linewarden-agent measure --out`, hexadecimal.
    pub reference: Option<String>,
    /// The reason.
    pub reason: String,
}

/// A group after a change.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedGroup {
    /// The group.
    #[serde(flatten)]
    pub group: Group,
    /// Whether the request has created the group.
    pub created: bool,
}

/// A roll-out to begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewRollOut {
    /// The other reference value: a file of `linewarden-agent measure --out`, hexadecimal.
    pub reference: String,
    /// Duration of the roll-out, seconds.
    pub for_s: u64,
    /// The reason.
    pub reason: String,
}
