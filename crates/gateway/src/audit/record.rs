//! Audit events and their JSON format (the table is in docs/operations/audit-log.md).

use std::collections::BTreeMap;
use std::net::IpAddr;

use chrono::{DateTime, SecondsFormat, Utc};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId};
use linewarden_types::{ProofOutcome, RoundOutcome};
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Version of the format; increased when a field changes its meaning or is removed.
const VERSION: u32 = 1;

/// An event with its time on the boot-time clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Time since boot, ns.
    pub boot_ns: u64,
    /// The event.
    pub event: AuditEvent,
}

/// The reason why a session was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum CloseReason {
    /// The device has opened a newer session at another gateway.
    NewerSession {
        /// The gateway of the newer session.
        #[serde(serialize_with = "gateway_number")]
        newer_gateway: GatewayId,
    },
    /// The gateway's machine has the session's address now.
    OwnAddress {
        /// The address.
        own_address: IpAddr,
    },
}

/// An audit event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AuditEvent {
    /// The gateway has started.
    Started {
        /// The program's version.
        program: &'static str,
        /// "xdp", "host" or "p4".
        dataplane: String,
        /// The gate mode.
        gate: String,
        /// Names and indexes of the interfaces on the devices' side.
        interfaces: BTreeMap<String, u32>,
    },
    /// The gateway was stopped.
    Stopped {
        /// Whether the controller has recorded the unused rows.
        unused_rows_reported: bool,
    },
    /// Another process has registered as this gateway: this process sends no replies.
    Replaced,
    /// The registry was restored to an earlier state: the gateway registers again, and all devices authenticate
    /// again.
    RegistryRestored,
    /// No response of the controller for `offline_limit_s`: the gateway sends no replies until the controller
    /// responds.
    OfflineLimitReached,
    /// The controller responds again.
    Resumed,
    /// The gateway is trusted: its evidence matches the reference values.
    Trusted,
    /// The gateway is untrusted, and its leases were revoked.
    Untrusted {
        /// The differences, or the error.
        reason: String,
    },
    /// A new configuration was applied.
    Reloaded,
    /// A new configuration was rejected; the previous configuration stays.
    ReloadRefused {
        /// The errors, with file, line and field.
        errors: Vec<String>,
    },
    /// A session was opened, or has moved to another address; renewals are only counted.
    Session {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// "pool" or "key".
        #[serde(serialize_with = "mode_name")]
        mode: Mode,
        /// The row with which the session was opened.
        #[serde(serialize_with = "row_number")]
        row: RowIndex,
        /// The session's name: the first 8 bytes of the SHA-256 of its id.
        session: String,
        /// The device's address.
        address: IpAddr,
        /// Index of the receiving interface.
        ingress: u32,
        /// The binding, unless the session has changed after the event.
        #[serde(flatten, skip_serializing_if = "Option::is_none")]
        binding: Option<Binding>,
    },
    /// A session was closed.
    SessionClosed {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The session's name, as in the record of its start.
        session: String,
        /// The reason.
        #[serde(flatten)]
        reason: CloseReason,
    },
    /// A tag that does not verify.
    WrongTag {
        /// The claimed device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The current row.
        #[serde(serialize_with = "row_number")]
        row: RowIndex,
        /// The sender.
        address: IpAddr,
        /// Index of the receiving interface.
        ingress: u32,
    },
    /// A proof that does not verify. It has no effect, because any host may have sent it.
    WrongProof {
        /// The claimed device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The round.
        round: u32,
        /// The sender.
        address: IpAddr,
        /// Index of the receiving interface.
        ingress: u32,
    },
    /// A device authenticated at this gateway for the first time, and has rows at this gateway now.
    Admitted {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The first row.
        #[serde(serialize_with = "row_number")]
        row: RowIndex,
        /// Number of rows.
        rows: u64,
        /// The sender of its message.
        address: IpAddr,
    },
    /// A device was evicted, because another device needs its slot.
    Evicted {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// The registry has no more rows for a device.
    Exhausted {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A device was revoked or quarantined, or its record is damaged.
    Blocked {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// Whether the device was in the data plane.
        was_installed: bool,
    },
    /// A device's credentials were replaced: its session has ended.
    CredentialsReplaced {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The epoch of the new credentials.
        epoch: u32,
    },
    /// A device missed too many proofs and was quarantined.
    Quarantined {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The reason.
        reason: String,
    },
    /// A quarantined device has proved a valid configuration, and is released.
    Remediated {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A quarantined device is released, and this gateway has not received a proof: the operator or another gateway
    /// has released the device, or its damaged record was repaired.
    Released {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A device that must be attested is at this gateway, which does not attest.
    NotAttested {
        /// The device.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A round of attestation has ended.
    Round {
        /// The round number of this gateway.
        round: u32,
        /// The group.
        group: String,
        /// The period of the proofs.
        period: u64,
        /// Number of challenged devices.
        requested: u64,
        /// Devices that proved a valid configuration in time.
        ok: u64,
        /// Devices that proved a valid configuration, but after the response time of their group.
        late: u64,
        /// Devices without a proof.
        missed: u64,
        /// Time from the start of the round to the last proof, ms.
        last_proof_ms: u32,
    },
    /// Devices could not be challenged in a round, because nothing can be sent to them. Recorded the first time, and
    /// hourly.
    DevicesUnreachable {
        /// The round number of this gateway.
        round: u32,
        /// The group.
        group: String,
        /// Number of devices.
        devices: u64,
        /// The last error of the kernel.
        error: String,
    },
    /// No device of a group sent a proof, and the devices were compliant before: the round does not count towards
    /// quarantine.
    GroupOutage {
        /// The round number of this gateway.
        round: u32,
        /// The group.
        group: String,
        /// Number of challenged devices.
        requested: u32,
        /// Number of outage rounds since the last complete round, including this round.
        excused: u32,
        /// Maximum number of outage rounds that count for no quarantine.
        excused_max: u32,
    },
    /// A signed attestation result.
    AttestationResult {
        /// An EAR as a JWT.
        token: String,
    },
    /// Number of frames by verdict, since the previous record of this kind.
    Verdicts {
        /// The counts that are not 0.
        counts: BTreeMap<&'static str, u64>,
    },
    /// Events of a kind were not recorded, because the kind had reached its maximum number of records a second.
    Suppressed {
        /// The kind.
        of: &'static str,
        /// Number of events without a record.
        count: u64,
    },
    /// The data plane has lost events.
    EventsLost {
        /// Number of lost reports of sessions, wrong tags and other events. On a P4 switch: number of messages with one
        /// or more reports.
        count: u64,
    },
    /// Records could not be written.
    RecordsLost {
        /// Number of records.
        count: u64,
    },
}

/// The binding of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// UDP port of the device.
    pub port: u16,
    /// VLAN ids, outermost first.
    pub vlans: Vec<u16>,
    /// MAC address, of a BOUND session.
    pub mac: Option<String>,
}

/// Number of kinds with a rate limit of their own, so that a flood of one kind does not suppress other kinds.
pub(super) const KIND_COUNT: usize = 13;

impl AuditEvent {
    /// Returns the event for a round that has ended.
    pub(crate) fn from_round(outcome: &RoundOutcome) -> Self {
        let count = |is_counted: fn(&ProofOutcome) -> bool| {
            let observations = outcome.observations.iter();
            observations
                .filter(|observation| is_counted(&observation.outcome))
                .count() as u64
        };
        Self::Round {
            round: outcome.number.0,
            group: outcome.group.to_string(),
            period: outcome.period.0,
            requested: outcome.observations.len() as u64,
            ok: count(|observed| matches!(observed, ProofOutcome::Ok(_))),
            late: count(|observed| matches!(observed, ProofOutcome::Late(_))),
            missed: count(|observed| *observed == ProofOutcome::Missed),
            last_proof_ms: outcome.last_proof_ms,
        }
    }

    /// Index and name of the kind, for kinds with a rate limit; `None` for all other kinds.
    pub(super) fn kind(&self) -> Option<(usize, &'static str)> {
        Some(match self {
            Self::Session { .. } => (0, "session"),
            Self::WrongTag { .. } => (1, "wrong_tag"),
            Self::Admitted { .. } => (2, "admitted"),
            Self::Evicted { .. } => (3, "evicted"),
            Self::Exhausted { .. } => (4, "exhausted"),
            Self::Blocked { .. } => (5, "blocked"),
            Self::CredentialsReplaced { .. } => (6, "credentials_replaced"),
            Self::ReloadRefused { .. } => (7, "reload_refused"),
            Self::OfflineLimitReached => (8, "offline_limit_reached"),
            Self::Resumed => (9, "resumed"),
            Self::SessionClosed { .. } => (10, "session_closed"),
            Self::WrongProof { .. } => (11, "wrong_proof"),
            Self::NotAttested { .. } => (12, "not_attested"),
            // These kinds have no limit, because a missing result would mislead readers. At most one event of a kind
            // occurs for each device and round, for each device and command, or in a second.
            Self::Quarantined { .. }
            | Self::Remediated { .. }
            | Self::Released { .. }
            | Self::Round { .. }
            | Self::DevicesUnreachable { .. }
            | Self::GroupOutage { .. }
            | Self::AttestationResult { .. }
            | Self::Started { .. }
            | Self::Stopped { .. }
            | Self::Replaced
            | Self::RegistryRestored
            | Self::Trusted
            | Self::Untrusted { .. }
            | Self::Reloaded
            | Self::Verdicts { .. }
            | Self::Suppressed { .. }
            | Self::EventsLost { .. }
            | Self::RecordsLost { .. } => return None,
        })
    }

    /// Whether packets cannot cause the event, or cause the event only rarely: the file has reserved room for records
    /// of these events.
    pub(super) fn is_rare(&self) -> bool {
        match self {
            Self::Started { .. }
            | Self::Stopped { .. }
            | Self::Replaced
            | Self::RegistryRestored
            | Self::OfflineLimitReached
            | Self::Resumed
            | Self::Trusted
            | Self::Untrusted { .. }
            | Self::Reloaded
            | Self::ReloadRefused { .. }
            | Self::Quarantined { .. }
            | Self::Remediated { .. }
            | Self::Released { .. }
            | Self::Blocked { .. } => true,
            Self::Session { .. }
            | Self::SessionClosed { .. }
            | Self::WrongTag { .. }
            | Self::WrongProof { .. }
            | Self::Admitted { .. }
            | Self::Evicted { .. }
            | Self::Exhausted { .. }
            | Self::CredentialsReplaced { .. }
            | Self::NotAttested { .. }
            | Self::Round { .. }
            | Self::DevicesUnreachable { .. }
            | Self::GroupOutage { .. }
            | Self::AttestationResult { .. }
            | Self::Verdicts { .. }
            | Self::Suppressed { .. }
            | Self::EventsLost { .. }
            | Self::RecordsLost { .. } => false,
        }
    }
}

/// Returns a session's name for records. The session id is the start of a tag, which records must not contain.
pub(crate) fn session_name(id: SessionId) -> String {
    let digest = Sha256::new()
        .chain_update(b"linewarden audit session v1")
        .chain_update(id.to_wire())
        .finalize();
    hex::encode(digest.get(..8).unwrap_or_default())
}

/// A record as a line of the gateway audit log.
#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    time: String,
    boot_ns: u64,
    gateway: u32,
    #[serde(flatten)]
    event: &'a AuditEvent,
}

impl AuditRecord {
    /// Returns the record as a line; `time` is the wall clock of the event.
    #[must_use]
    pub fn line(&self, gateway: GatewayId, time: DateTime<Utc>) -> Vec<u8> {
        let line = Line {
            v: VERSION,
            time: time.to_rfc3339_opts(SecondsFormat::Micros, true),
            boot_ns: self.boot_ns,
            gateway: gateway.0,
            event: &self.event,
        };
        // Strings, numbers and maps with string keys can always be encoded.
        let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

fn as_text<S: Serializer>(value: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn mode_name<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match mode {
        Mode::Pool => "pool",
        Mode::Key => "key",
    })
}

fn gateway_number<S: Serializer>(gateway: &GatewayId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(gateway.0)
}

fn row_number<S: Serializer>(row: &RowIndex, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_object_with_version_time_and_gateway() {
        let record = AuditRecord {
            boot_ns: 5,
            event: AuditEvent::Session {
                device: DeviceId(0xd1),
                mode: Mode::Pool,
                row: RowIndex(7),
                session: session_name(SessionId::from_wire([1; 8]).unwrap()),
                address: "10.0.0.1".parse().unwrap(),
                ingress: 3,
                binding: Some(Binding {
                    port: 4000,
                    vlans: vec![66],
                    mac: Some("02:00:00:00:00:01".to_owned()),
                }),
            },
        };
        let line = record.line(
            GatewayId(9),
            DateTime::from_timestamp(1_798_761_599, 1000).unwrap(),
        );
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "v": 1, "time": "2026-12-31T23:59:59.000001Z", "boot_ns": 5, "gateway": 9, "event": "session",
                "device": "00000000000000d1", "mode": "pool", "row": 7, "session": "7d9b3ae1",
                "address": "10.0.0.1", "ingress": 3, "port": 4000, "vlans": [66], "mac": "02:00:00:00:00:01",
            })
            .as_object()
            .map(|object| {
                let mut object = object.clone();
                object["session"] = value["session"].clone();
                serde_json::Value::Object(object)
            })
            .unwrap()
        );
        assert_ne!(
            value["session"], "0101010101010101",
            "the id itself is part of a tag"
        );
    }
}
