//! Attestation of devices: the plan of a gateway, the provers with their keys, and the outcome of rounds (LAP/1 3.2).

use std::net::IpAddr;
use std::ops::Range;

use linewarden_protocol::attest::{PeriodStart, RequestKey};
use linewarden_protocol::gateway::{Configuration, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};

use crate::change::Revision;
use crate::group::{GroupName, GroupPolicy};

/// Identifies an enrollment of a prover: results of one enrollment do not apply to another. The value is the time of
/// the enrollment in seconds since 1970-01-01 UTC, or the previous value plus 1 if the clock has not advanced. No two
/// enrollments of one device have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnrollmentTime(pub u64);

/// A gateway's request for the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanRequest {
    /// The period that the gateway starts now: the running period has lasted long enough, and the keys of the new period
    /// are installed.
    pub start_period: Option<Period>,
    /// The duration of a period at the gateway, seconds.
    pub period_s: u32,
    /// Whether the gateway needs more round numbers.
    pub needs_round_numbers: bool,
}

/// The attestation plan of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The running period.
    pub running: PeriodStart,
    /// How long the period has been running, in seconds of the controller's clock.
    pub age_s: u64,
    /// The next period. The salt of the period must stay secret until the period starts.
    pub next: PeriodStart,
    /// The newest revision of provers and groups.
    pub revision: u64,
    /// Digest of the reference values of all groups. When it changes, all keys are derived again.
    pub reference_digest: u64,
    /// The groups.
    pub groups: Vec<GroupPlan>,
    /// Round numbers for this gateway alone; empty unless requested.
    pub rounds: Range<u32>,
}

/// A group in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub name: GroupName,
    /// The group's policy.
    pub policy: GroupPolicy,
    /// Number of rounds that were requested by command.
    pub rounds_requested: u64,
}

/// A prover, with this gateway's keys.
#[derive(Clone, Debug)]
pub struct ProverProvision {
    /// The device.
    pub device: DeviceId,
    /// The device's group.
    pub group: GroupName,
    /// Identifies the enrollment. Round outcomes of another enrollment of the device are ignored.
    pub enrolled_at: EnrollmentTime,
    /// The UDP port to which challenges are sent.
    pub port: u16,
    /// The keys that verify proofs; `None` while the group has no reference value.
    pub keys: Option<ProverKeys>,
    /// The key of challenges without a session.
    pub request_key: RequestKey,
    /// The address of challenges without a session, if this gateway challenges the prover.
    pub address: Option<IpAddr>,
    /// Whether the prover is not in quarantine, and its last round does not count as missed.
    pub is_responsive: bool,
}

/// A part of a gateway's provers, in the order of their changes.
#[derive(Debug)]
pub struct Provers {
    /// The period of the keys.
    pub start: PeriodStart,
    /// As [`Plan::reference_digest`].
    pub reference_digest: u64,
    /// Current provers.
    pub provisions: Vec<ProverProvision>,
    /// Devices that are no longer provers.
    pub removed: Vec<DeviceId>,
    /// Descriptions of records that cannot be used.
    pub damaged: Vec<String>,
    /// Continue from this revision.
    pub up_to_revision: u64,
    /// Whether more provers are available now.
    pub has_more: bool,
}

/// Changes of the set of provers since a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProverIds {
    /// Current provers.
    pub provers: Vec<DeviceId>,
    /// Devices that are no longer provers.
    pub removed: Vec<DeviceId>,
    /// Continue from this revision.
    pub up_to_revision: u64,
    /// Whether more ids are available now.
    pub has_more: bool,
}

/// The outcome of a round for one prover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofOutcome {
    /// The prover proved this configuration in time.
    Ok(Configuration),
    /// The prover proved this configuration, but later than its group allows.
    Late(Configuration),
    /// No valid proof was received. A wrong proof counts as no proof, because any sender can send one.
    Missed,
}

/// The outcome of a round for one prover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProverObservation {
    /// The prover.
    pub device: DeviceId,
    /// The enrollment under which the prover was challenged. The outcome does not apply to another enrollment.
    pub enrolled_at: EnrollmentTime,
    /// The outcome.
    pub outcome: ProofOutcome,
    /// The address to which the challenge was sent.
    pub address: IpAddr,
}

/// A round that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundOutcome {
    /// The round number.
    pub number: RoundNumber,
    /// The group.
    pub group: GroupName,
    /// The period of the proofs.
    pub period: Period,
    /// The newest revision that the gateway had read when the round started. A proof of this round does not release a
    /// device that a later change has quarantined.
    pub feed_revision: Revision,
    /// Duration of the round, ms.
    pub duration_ms: u64,
    /// Time from the start of the round to the last proof, ms.
    pub last_proof_ms: u32,
    /// The outcomes for all challenged provers.
    pub observations: Vec<ProverObservation>,
}

/// The result of appraising a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundAppraisal {
    /// Devices that this round has quarantined.
    pub quarantined: Vec<QuarantinedDevice>,
    /// Devices that this round has released, each with the revision of the release in the change feed.
    pub remediated: Vec<(DeviceId, Revision)>,
    /// Signed attestation results (EARs as JWTs) of all devices whose state changed; none without a signer.
    pub attestation_results: Vec<String>,
    /// The outage, if no device sent a proof and the round does not count toward a quarantine.
    pub outage: Option<GroupOutage>,
}

/// A device that was quarantined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedDevice {
    /// The device.
    pub device: DeviceId,
    /// The reason.
    pub reason: String,
    /// Upper bound (inclusive) of the revision of the quarantine in the change feed. A change of the device with a higher
    /// revision happened after the quarantine.
    pub revision: Revision,
}

/// A round in which no device of a group has sent a proof, although the devices were compliant before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOutage {
    /// Number of challenged devices.
    pub requested: u32,
    /// Number of outage rounds since the last complete round, including this round.
    pub excused: u32,
    /// Maximum number of outage rounds that do not count toward a quarantine.
    pub excused_max: u32,
}
