//! Gateways: records, status, evidence.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A gateway: record and status.
// There are more than 15 fields because the JSON object of a gateway is flat: clients, tables and the dashboard read it by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gateway {
    /// The gateway id.
    pub id: u32,
    /// The display name.
    pub name: String,
    /// connected, disconnected, never_connected or revoked
    pub state: Cow<'static, str>,
    /// The controller of the last message.
    pub controller: Option<String>,
    /// The newest fencing token: the number of the last registration.
    pub fencing_token: u64,
    /// Time of the last message.
    pub seen_at_s: Option<u64>,
    /// Age of the last message, seconds.
    pub age_s: Option<u64>,
    /// Age of the last status report, seconds. The report contains rate, latency, devices, slots, sessions and verdicts.
    pub report_age_s: Option<u64>,
    /// The kind of data plane: xdp, host or p4
    pub data_plane: Option<String>,
    /// The program version.
    pub version: Option<String>,
    /// Authentications per second.
    pub authentications_per_s: Option<f64>,
    /// Authentication latency, microseconds.
    pub latency_us: Option<Latency>,
    /// Number of devices that the gateway holds.
    pub devices: Option<u64>,
    /// Capacity: maximum number of devices.
    pub slots: Option<u64>,
    /// Number of devices with a session.
    pub sessions: Option<u64>,
    /// Frames since the gateway's start, by verdict; `other` counts verdicts of a newer gateway that the controller does
    /// not know.
    pub verdicts: Option<BTreeMap<String, u64>>,
    /// Frames that the gate has dropped since the gateway's start, by the name of their Ethernet type; `other` counts
    /// types without a name.
    pub dropped_types: Option<BTreeMap<String, u64>>,
    /// Packets that the kernel has dropped since the gateway's start because a receive buffer was full: `dataplane`
    /// (data plane `host` only) and `tickets`.
    pub kernel_drops: Option<BTreeMap<String, u64>>,
    /// Tickets since the gateway's start, by result: answered, unknown (not a ticket, or without a session of the device
    /// at the gateway), rate_limited, rejected (by the controller) or failed. Empty if the gateway relays no tickets.
    pub tickets: Option<BTreeMap<String, u64>>,
    /// trusted, untrusted, overdue (the next evidence is late) or unproven (the gateway's current controller has no
    /// evidence yet); null if the gateway need not be attested
    pub trust: Option<Cow<'static, str>>,
    /// The reason if the gateway is untrusted.
    pub trust_reason: Option<String>,
    /// The last evidence for any controller.
    pub evidence: Option<Evidence>,
    /// Time of the revocation.
    pub revoked_at_s: Option<u64>,
    /// The reason of the revocation.
    pub revoked_reason: Option<String>,
}

/// Duration of authentications in a gateway's data plane over the last minute, microseconds: from parsing an accepted
/// RESPONSE to writing its ACK. Times of the network and the device are not included.
#[derive(Clone, Deserialize, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// The last evidence of a gateway's data plane.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evidence {
    /// affirming: matches the reference values; contraindicated: differs
    pub verdict: Cow<'static, str>,
    /// Time of arrival.
    pub at_s: u64,
    /// Age of the evidence, seconds.
    pub age_s: u64,
    /// Validity, seconds: older evidence does not describe the current state.
    pub validity_s: u64,
    /// Boot count of the data plane.
    pub boot_count: u64,
    /// Sequence number of the data plane's state since that boot.
    pub sequence: u64,
}

/// Evidence of a gateway that must be attested.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GatewayEvidence {
    /// The gateway id.
    pub id: u32,
    /// trusted, untrusted, overdue or unproven, as in Gateway.
    pub trust: Cow<'static, str>,
    /// The reason if the gateway is untrusted.
    pub reason: Option<String>,
    /// Time of the last change of the trust state.
    pub since_s: u64,
    /// The controller that appraised the evidence.
    pub controller: String,
    /// Name of the reference values.
    pub reference: String,
    /// SHA-256 of the gateway's evidence key, hexadecimal.
    pub key: String,
    /// The last evidence.
    pub evidence: Option<Evidence>,
    /// Digest of the program in the evidence, hexadecimal.
    pub program: Option<String>,
    /// Digest of all tables.
    pub tables: Option<String>,
    /// Digest of all registers that are not volatile.
    pub registers: Option<String>,
}

/// A gateway to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewGateway {
    /// The gateway id.
    pub id: u32,
    /// The display name.
    pub name: String,
    /// The reason.
    pub reason: String,
}
