//! Attestation: state of a device, results, rounds and policies.

use std::borrow::Cow;

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

/// The attestation state of a device.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttestationResult {
    /// 16 hexadecimal digits.
    pub device: String,
    /// ok, late, missed, quarantined or unproven
    pub state: Cow<'static, str>,
    /// Time of the last state change.
    pub since_s: u64,
    /// The gateway of the last round.
    pub gateway: u32,
    /// The round that changed the state.
    pub since_round: u32,
}

/// A query for attestation states.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ResultQuery {
    /// ok, late, missed, quarantined or unproven
    pub state: Option<String>,
    /// Maximum number of devices that are read: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
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

/// The attestation policy of a group.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
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
    /// Whether the group has a reference value.
    pub has_reference: bool,
    /// End of the roll-out, during which an alternate reference value is valid; null without a roll-out.
    pub roll_out_until_s: Option<u64>,
    /// Number of rounds that were requested manually.
    pub rounds_requested: u64,
}

/// Changes of a policy. Omitted fields keep their value. In a new group, omitted fields have the defaults of
/// `linewarden attest group`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
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
    /// The reason.
    pub reason: String,
}
