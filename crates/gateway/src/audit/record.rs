//! What is recorded, and how a line of it looks (docs/operations.md has the table).

use std::collections::BTreeMap;
use std::net::IpAddr;

use chrono::{DateTime, SecondsFormat, Utc};
use linewarden_controller::attest::{RoundOutcome, Seen};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId};
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Version of the lines; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// Something that happened, at a moment of the boot-time clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, ns since boot.
    pub boot_ns: u64,
    /// What.
    pub what: Happening,
}

/// Why a session was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum CloseReason {
    /// Its device has opened a newer one at another gateway.
    Elsewhere {
        /// Where the newer one is.
        #[serde(serialize_with = "gateway_number")]
        newer_at: GatewayId,
    },
    /// The gateway's machine has its address now.
    OwnAddress {
        /// The address.
        own_address: IpAddr,
    },
}

/// What is worth a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happening {
    /// The gateway answers from now on.
    Started {
        /// Of the program.
        program: &'static str,
        /// "xdp", "host" or "p4".
        dataplane: String,
        /// The gate.
        gate: String,
        /// Names and numbers of the interfaces on the devices' side.
        interfaces: BTreeMap<String, u32>,
    },
    /// It was told to stop, and has.
    Stopped {
        /// Whether the controller knows where it stood.
        settled: bool,
    },
    /// Another process has registered as this gateway: nothing is answered any more.
    Replaced,
    /// The registry was put back to an earlier state: the gateway registers anew, and all devices authenticate anew.
    RegistryRestored,
    /// The controller was away for too long: nothing is answered until it is back.
    Lapsed,
    /// The controller is back.
    Resumed,
    /// The controller trusts this gateway: its data plane is measured to run what it should.
    Trusted,
    /// It does not, and takes the leases away.
    Distrusted {
        /// What differs, or what was wrong.
        why: String,
    },
    /// Another configuration is in force.
    Reloaded,
    /// Another configuration was refused: the old one stays.
    ReloadRefused {
        /// Why, with file, line and field.
        errors: Vec<String>,
    },
    /// A session was opened, or has moved to another address; renewals are only counted.
    Session {
        /// Whose.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// "pool" or "key".
        #[serde(serialize_with = "mode_name")]
        mode: Mode,
        /// The row it was opened with.
        #[serde(serialize_with = "row_number")]
        row: RowIndex,
        /// Its name: the first 8 bytes of the SHA-256 of its id.
        session: String,
        /// Where the device is.
        address: IpAddr,
        /// Number of the interface it came in by.
        ingress: u32,
        /// What it is bound to, unless the session has changed since.
        #[serde(flatten, skip_serializing_if = "Option::is_none")]
        binding: Option<Binding>,
    },
    /// A session was closed.
    SessionClosed {
        /// Whose.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// Its name, as in the record of its beginning.
        session: String,
        /// Why.
        #[serde(flatten)]
        reason: CloseReason,
    },
    /// A tag that does not verify.
    WrongTag {
        /// Whom it claimed to be of.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The row that was due.
        #[serde(serialize_with = "row_number")]
        row: RowIndex,
        /// Where it came from.
        address: IpAddr,
        /// Number of the interface it came in by.
        ingress: u32,
    },
    /// A proof that does not verify; anybody may have sent it, so it decides nothing.
    WrongProof {
        /// Whose it claimed to be.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The round.
        round: u32,
        /// Where it came from.
        address: IpAddr,
        /// Number of the interface it came in by.
        ingress: u32,
    },
    /// A device proved itself here for the first time, and has rows here now.
    Admitted {
        /// Who.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// The first of its rows.
        #[serde(serialize_with = "row_number")]
        row: RowIndex,
        /// How many.
        rows: u64,
        /// Where its message came from.
        address: IpAddr,
    },
    /// A device had to leave for others.
    Evicted {
        /// Who.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// The registry has no more rows for a device.
    Exhausted {
        /// Which.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A device is revoked.
    Revoked {
        /// Which.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// Whether it was in the data plane, and was shut out of it.
        shut_out: bool,
    },
    /// A device's credentials were replaced: its session is over.
    CredentialsReplaced {
        /// Whose.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// How often they were.
        epoch: u32,
    },
    /// A device was silent too often when it was to prove what it runs: the gate is closed.
    Quarantined {
        /// Which.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
        /// By which rule.
        reason: String,
    },
    /// A device that was quarantined proves itself again.
    Readmitted {
        /// Which.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A device that was shut out may come again, and this gateway has not seen it prove itself: the operator has let it in, or
    /// another gateway, or its record was damaged and is mended.
    Reopened {
        /// Which.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A device that is to be attested is here, and this gateway attests nobody.
    NotAttested {
        /// Which.
        #[serde(serialize_with = "as_text")]
        device: DeviceId,
    },
    /// A round of attestation has ended.
    Round {
        /// Its number at this gateway.
        round: u32,
        /// The group that was asked.
        group: String,
        /// The period that was proven.
        period: u64,
        /// How many were asked.
        asked: u64,
        /// How many have proven a valid configuration in time.
        ok: u64,
        /// How many later than that.
        late: u64,
        /// How many have proven nothing.
        silent: u64,
        /// From its beginning to the last proof, ms.
        last_verdict_ms: u32,
    },
    /// Devices could not be asked in a round: nothing can be sent to them from here. When it begins, and now and then.
    Unreached {
        /// Its number at this gateway.
        round: u32,
        /// The group that was to be asked.
        group: String,
        /// How many.
        devices: u64,
        /// What the kernel said of the last of them.
        error: String,
    },
    /// Nobody in a group answered a round, though its devices did before: this counts for no quarantine.
    Unanswered {
        /// Its number at this gateway.
        round: u32,
        /// The group that was asked.
        group: String,
        /// How many were asked.
        asked: u32,
        /// How many such rounds there were since all answered.
        spared: u32,
        /// How many of them count for no quarantine.
        of: u32,
    },
    /// A round of `p4dra-classic` has ended.
    P4draRound {
        /// Its number since the gateway started.
        round: u64,
        /// How many were asked.
        asked: u64,
        /// How many have proven themselves.
        verified: u64,
        /// How many have not.
        silent: u64,
        /// The REQUEST could not be sent out of every interface: some of the silent were never asked.
        unsent: bool,
        /// Some of these, by d, in the configuration's order.
        silent_ids: Vec<String>,
    },
    /// A signed result of attestation.
    AttestationResult {
        /// An EAR as a JWT.
        token: String,
    },
    /// Verdicts since the last such record, by name; those that were given.
    Verdicts {
        /// How many of each.
        counts: BTreeMap<&'static str, u64>,
    },
    /// There were more of a kind than are recorded in a second.
    Suppressed {
        /// Of which kind.
        of: &'static str,
        /// How many are left out.
        count: u64,
    },
    /// The data plane could not report everything.
    EventsLost {
        /// How many sessions and wrong tags at most have no record.
        count: u64,
    },
    /// Records could not be written.
    RecordsLost {
        /// How many.
        count: u64,
    },
}

/// What a session is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// UDP port of the device.
    pub port: u16,
    /// VLAN ids, outermost first.
    pub vlans: Vec<u16>,
    /// MAC address, of a BOUND session.
    pub mac: Option<String>,
}

/// A kind of record has its own allowance, so that a flood of one hides no other.
pub(super) const KINDS: usize = 13;

impl Happening {
    /// That a round has ended.
    pub(crate) fn round(outcome: &RoundOutcome) -> Self {
        let count = |wanted: fn(&Seen) -> bool| {
            let all = outcome.verdicts.iter();
            all.filter(|verdict| wanted(&verdict.seen)).count() as u64
        };
        Self::Round {
            round: outcome.number.0,
            group: outcome.group.to_string(),
            period: outcome.period.0,
            asked: outcome.verdicts.len() as u64,
            ok: count(|seen| matches!(seen, Seen::Ok(_))),
            late: count(|seen| matches!(seen, Seen::Late(_))),
            silent: count(|seen| *seen == Seen::Silent),
            last_verdict_ms: outcome.last_verdict_ms,
        }
    }

    /// Number and name of its kind, of those that a device can cause; the others are few.
    pub(super) fn kind(&self) -> Option<(usize, &'static str)> {
        Some(match self {
            Self::Session { .. } => (0, "session"),
            Self::WrongTag { .. } => (1, "wrong_tag"),
            Self::Admitted { .. } => (2, "admitted"),
            Self::Evicted { .. } => (3, "evicted"),
            Self::Exhausted { .. } => (4, "exhausted"),
            Self::Revoked { .. } => (5, "revoked"),
            Self::CredentialsReplaced { .. } => (6, "credentials_replaced"),
            Self::ReloadRefused { .. } => (7, "reload_refused"),
            Self::Lapsed => (8, "lapsed"),
            Self::Resumed => (9, "resumed"),
            Self::SessionClosed { .. } => (10, "session_closed"),
            Self::WrongProof { .. } => (11, "wrong_proof"),
            Self::NotAttested { .. } => (12, "not_attested"),
            // At most one for each device and round or command, or a second, and a result that is left out is missed by whoever goes by it.
            Self::Quarantined { .. }
            | Self::Readmitted { .. }
            | Self::Reopened { .. }
            | Self::Round { .. }
            | Self::Unreached { .. }
            | Self::Unanswered { .. }
            | Self::P4draRound { .. }
            | Self::AttestationResult { .. }
            | Self::Started { .. }
            | Self::Stopped { .. }
            | Self::Replaced
            | Self::RegistryRestored
            | Self::Trusted
            | Self::Distrusted { .. }
            | Self::Reloaded
            | Self::Verdicts { .. }
            | Self::Suppressed { .. }
            | Self::EventsLost { .. }
            | Self::RecordsLost { .. } => return None,
        })
    }

    /// Whether no packet can cause it, nor that there are many of it: it has room of its own in the file.
    pub(super) fn is_rare(&self) -> bool {
        match self {
            Self::Started { .. }
            | Self::Stopped { .. }
            | Self::Replaced
            | Self::RegistryRestored
            | Self::Lapsed
            | Self::Resumed
            | Self::Trusted
            | Self::Distrusted { .. }
            | Self::Reloaded
            | Self::ReloadRefused { .. }
            | Self::Quarantined { .. }
            | Self::Readmitted { .. }
            | Self::Reopened { .. }
            | Self::Revoked { .. } => true,
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
            | Self::Unreached { .. }
            | Self::Unanswered { .. }
            | Self::P4draRound { .. }
            | Self::AttestationResult { .. }
            | Self::Verdicts { .. }
            | Self::Suppressed { .. }
            | Self::EventsLost { .. }
            | Self::RecordsLost { .. } => false,
        }
    }
}

/// A session's name in records. Its id is the beginning of a tag, which has no place in them.
pub(crate) fn session_name(id: SessionId) -> String {
    let digest = Sha256::new()
        .chain_update(b"linewarden audit session v1")
        .chain_update(id.to_wire())
        .finalize();
    hex::encode(digest.get(..8).unwrap_or_default())
}

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    time: String,
    boot_ns: u64,
    gateway: u32,
    #[serde(flatten)]
    what: &'a Happening,
}

impl Record {
    /// The record as a line with its end; `time` is when it happened.
    #[must_use]
    pub fn line(&self, gateway: GatewayId, time: DateTime<Utc>) -> Vec<u8> {
        let line = Line {
            v: VERSION,
            time: time.to_rfc3339_opts(SecondsFormat::Micros, true),
            boot_ns: self.boot_ns,
            gateway: gateway.0,
            what: &self.what,
        };
        // Of strings, numbers and maps with text as keys: it cannot fail.
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
        let record = Record {
            boot_ns: 5,
            what: Happening::Session {
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
