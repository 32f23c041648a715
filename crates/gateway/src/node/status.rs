//! The status of a node.

use std::collections::BTreeMap;

use serde::Serialize;

/// The state of the link to the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LinkState {
    /// The last request succeeded.
    #[default]
    Reachable,
    /// The last request failed. The node continues with its leases, and retries.
    Lost {
        /// The error.
        error: String,
    },
}

/// The trust state of this gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum TrustState {
    /// No evidence has been submitted; the gateway gets no rows.
    Unproven,
    /// The evidence matches the reference values.
    Trusted,
    /// The evidence does not match or is missing; the gateway gets no rows.
    Untrusted {
        /// The differences, or the error.
        reason: String,
    },
}

/// The status of attestation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AttestStatus {
    /// Provers whose keys are in the data plane.
    pub provers: u64,
    /// Provers for which the data plane has no room.
    pub provers_refused: u64,
    /// Groups of provers.
    pub groups: u64,
    /// Number of the running period.
    pub period: u64,
    /// Number of the last round that ended.
    pub round: u32,
    /// Rounds that were appraised.
    pub rounds: u64,
    /// Rounds that were dropped because the controller did not respond.
    pub rounds_lost: u64,
    /// Challenges sent.
    pub requests: u64,
    /// Devices that could not be challenged in the last round of their group, because nothing can be sent to them.
    pub unreachable: u64,
    /// Devices quarantined.
    pub quarantined: u64,
    /// Devices released after a proof.
    pub remediated: u64,
    /// Devices released without a proof at this gateway.
    pub released: u64,
    /// Devices at this gateway that must be attested, if the data plane does not attest.
    pub not_attested: u64,
}

/// Packets that have passed the gate, by their evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketEvidenceStatus {
    /// Packets with evidence.
    pub stamped: u64,
    /// Packets without evidence: not IPv6.
    pub not_ipv6: u64,
    /// Packets without evidence: no recent measurement.
    pub stale: u64,
    /// Packets without evidence: too long for the path with evidence, or malformed.
    pub unsuitable: u64,
}

/// Tickets by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TicketCounts {
    /// Tickets with a response.
    pub answered: u64,
    /// Datagrams that are not tickets, or tickets not made with the key of a session in this data plane.
    pub unknown: u64,
    /// Valid tickets above a rate limit, or older than a previous ticket.
    pub rate_limited: u64,
    /// Relayed tickets without a response from the controller.
    pub rejected: u64,
    /// Tickets without a response because the controller failed or was unreachable.
    pub failed: u64,
    /// Tickets that the kernel dropped because a receive buffer was full.
    pub kernel_drops: u64,
}

/// The status of a node: counts and states. Each component of the node reports its own fields.
// There are more than 15 fields because the status is published as one flat JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Whether all leases of the previous process have been resumed.
    pub loaded: bool,
    /// Progress of resuming: the registry revision reached, and the revision at which resuming ends.
    pub resumed: (u64, u64),
    /// Whether the node is stopping.
    pub stopping: bool,
    /// Devices in the data plane that may authenticate.
    pub devices: u64,
    /// Devices that wait for rows.
    pub waiting_for_rows: u64,
    /// Devices that wait for a slot in the data plane.
    pub waiting_for_slot: u64,
    /// Devices revoked since the node started.
    pub revoked: u64,
    /// Devices admitted by the slow path.
    pub admitted: u64,
    /// Messages of unknown devices that were dropped because the queue to the controller was full.
    pub admissions_dropped: u64,
    /// Messages that the data plane could not handle again after the device was admitted; the device retries them.
    pub replays_failed: u64,
    /// Evicted devices.
    pub evicted: u64,
    /// Rows that were returned to their pools.
    pub rows_returned: u64,
    /// Whether the registration is no longer valid: another process has registered as this gateway, or the gateway was
    /// revoked.
    pub replaced: bool,
    /// Whether the gateway sends no replies, because it was replaced or the controller has not responded for too long.
    pub offline_limit_reached: bool,
    /// Devices for which the registry has no more rows; they spend the last rows in the data plane.
    pub exhausted: u64,
    /// REQUESTs of devices outside the data plane that got a NAK: the registry has no row left, or the REQUEST states
    /// that the device has used all remaining rows.
    pub unserved: u64,
    /// Damaged records of the registry.
    pub damaged: u64,
    /// Sessions opened, except sessions whose events were lost.
    pub sessions_opened: u64,
    /// Sessions closed because the device has a newer session at another gateway.
    pub sessions_closed: u64,
    /// Session reports that were dropped because the controller did not respond.
    pub reports_dropped: u64,
    /// Session reports that the controller rejected.
    pub reports_refused: u64,
    /// Reported wrong tags (rate-limited; the counters of the data plane contain all wrong tags).
    pub wrong_tags: u64,
    /// Reported wrong proofs (rate-limited; the counters of the data plane contain all wrong proofs).
    pub wrong_proofs: u64,
    /// Rows installed in the data plane.
    pub rows_installed: u64,
    /// Failed draws of a freshness value.
    pub draws_failed: u64,
    /// Configurations that were applied while the gateway ran.
    pub reloads: u64,
    /// Configurations that were rejected while the gateway ran.
    pub reloads_refused: u64,
    /// Audit records that could not be written.
    pub audit_lost: u64,
    /// Whether writing the gateway audit log fails now.
    pub audit_failing: bool,
    /// Whether reading events of the data plane fails now.
    pub events_failing: bool,
    /// The reason why the data plane no longer handles packets, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_plane_failure: Option<String>,
    /// Attestation; all zero without provers.
    pub attest: AttestStatus,
    /// The trust state of this gateway; `None` if the controller requires no evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustState>,
    /// Evidence requests for which the measurement failed.
    pub measurements_failed: u64,
    /// Evidence in packets; `None` if disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_evidence: Option<PacketEvidenceStatus>,
    /// Frames other than IP that the gate has dropped, by name or number of their Ethernet type. Types without a
    /// counter are `other`. Empty without a gate, or if the data plane does not count these frames.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped_types: BTreeMap<String, u64>,
    /// Tickets by result; `None` if the relay is disabled or has received no ticket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tickets: Option<TicketCounts>,
    /// The link to the controller.
    pub link: LinkState,
}
