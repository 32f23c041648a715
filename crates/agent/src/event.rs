//! Events of an agent.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use linewarden_measurement::diff::Difference;
use linewarden_tpm::Protection;
use serde::Serialize;

/// Maximum number of lines of a difference in text output.
const CHANGES_MAX: usize = 8;

/// A change of an agent's state: a line of text, or a JSON object with its name in `event`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AgentEvent {
    /// A socket to the gateway was opened. Nothing was sent yet.
    LinkOpened {
        /// The gateway.
        gateway: SocketAddr,
        /// The device's address on the route to the gateway.
        address: IpAddr,
    },
    /// No route to the gateway.
    Unreachable {
        /// The operating system's error.
        error: String,
        /// Time to the next attempt, ms.
        retry_in_ms: u64,
    },
    /// A session was opened: an ACK verified, so both sides are authenticated.
    Authenticated {
        /// The device ID, 16 hexadecimal digits.
        device_id: String,
        /// The gateway ID.
        gateway_id: u32,
        /// The session ID, 16 hexadecimal digits.
        session_id: String,
        /// The row that was used; in key mode only a counter.
        row: u32,
        /// Session lifetime, seconds.
        session_lifetime_s: u32,
        /// Duration of the handshake, including reading the PUF, ms.
        elapsed_ms: u64,
        /// Time to the renewal of the session, ms.
        renew_in_ms: u64,
    },
    /// The session expired without a renewal.
    SessionExpired,
    /// The session's gateway has closed the session: the gateway sent an attestation request that only devices without
    /// a session receive. The agent authenticates again.
    SessionLost {
        /// The gateway ID.
        gateway_id: u32,
    },
    /// A handshake ended without a session.
    AuthenticationFailed {
        /// The failure and its cause.
        reason: String,
        /// Time to the next attempt, ms.
        retry_in_ms: u64,
    },
    /// Authentication is delayed: unplanned authentications spend rows and are rate-limited (LAP/1 1.5).
    AuthenticationPostponed {
        /// Time to the next attempt, ms.
        retry_in_ms: u64,
    },
    /// The gateway refuses to serve the device. The message is not authenticated, and is for information only.
    RequestRefused {
        /// The gateway's reason.
        reason: String,
        /// The gateway's next row.
        row: u32,
    },
    /// Reading the PUF gave no key for a row.
    PufFailed {
        /// The error.
        error: String,
    },
    /// The device's address changed. The session is closed, because it is bound to the old address.
    AddressChanged {
        /// The old address.
        from: IpAddr,
        /// The new address.
        to: IpAddr,
    },
    /// Rows were renewed.
    RowsRenewed {
        /// Number after the last row in the registry.
        rows_end: u32,
    },
    /// The key was renewed: the registry has the new key, and the new helper data have replaced the old helper data.
    KeyRenewed,
    /// The registry has a previous key, because it was restored to an earlier state. The agent delivers the newer key again.
    PreviousKeyInRegistry,
    /// Rows or key were not renewed; retried in a later session if still due.
    RenewalFailed {
        /// The cause.
        reason: String,
    },
    /// A peer is connected: both devices have proved that they hold the pair's key.
    PeerConnected {
        /// The peer, 16 hexadecimal digits.
        peer: String,
    },
    /// A peer is disconnected.
    PeerDisconnected {
        /// The peer, 16 hexadecimal digits.
        peer: String,
        /// The cause.
        reason: String,
    },
    /// The first proof of a period was sent to a gateway.
    Attested {
        /// The gateway ID.
        gateway_id: u32,
        /// The period.
        period: u64,
        /// h, 64 hexadecimal digits.
        configuration: String,
        /// Where the attestation key is.
        protection: Protection,
    },
    /// The measured configuration differs from the previous one.
    ConfigurationChanged {
        /// h, 64 hexadecimal digits.
        configuration: String,
        /// The changes; `None` if the agent has restarted since the previous measurement.
        #[serde(skip_serializing_if = "Option::is_none")]
        changes: Option<Box<Difference>>,
    },
    /// Attestation fails: the device sends no proof.
    AttestationFailed {
        /// The cause: error of the TPM, the event log or a file.
        reason: String,
        /// Time to the next attempt, ms; `None`: not in this period.
        retry_in_ms: Option<u64>,
    },
    /// The file of the attestation key was replaced; the new key is in use.
    AttestationKeyReplaced,
    /// Storing the state of attestation failed: after a restart the device may refuse requests without a
    /// session.
    AttestationStateNotSaved {
        /// The error.
        error: String,
    },
    /// Rejected attestation requests since the start; reported on increase, at most once a minute, and at the end.
    AttestationRequestsRejected {
        /// Number of requests, by reason.
        requests: BTreeMap<&'static str, u64>,
    },
    /// The controller has accepted evidence.
    EvidenceAccepted {
        /// The period of the measurement.
        period: u64,
        /// h, 64 hexadecimal digits.
        configuration: String,
        /// Size of the document, bytes.
        bytes: usize,
        /// Whether the document contains a quote.
        quote: bool,
    },
    /// The controller has not accepted evidence.
    EvidenceNotAccepted {
        /// The cause.
        reason: String,
        /// Time to the next attempt, ms; `None`: no further attempt.
        retry_in_ms: Option<u64>,
    },
    /// Counters of the tunnels, reported once at the end.
    TunnelStatistics(TunnelCounts),
    /// Lost datagrams since the start: reported on increase, at most once a minute, and at the end.
    DatagramsLost {
        /// Number of datagrams by reason, one of [`LOSS_COUNTERS`].
        datagrams: BTreeMap<&'static str, u64>,
    },
    /// The agent has stopped.
    Stopped,
}

/// Receives events.
pub(crate) type EventSink<'a> = &'a mut dyn FnMut(&AgentEvent);

/// Datagrams of all tunnels since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TunnelCounts {
    /// Sealed and sent.
    pub up: u64,
    /// Opened and delivered to a local program.
    pub down: u64,
    /// From local programs, dropped without a session.
    pub dropped_no_session: u64,
    /// From local programs, longer than the path to the gateway permits after sealing.
    pub dropped_too_long: u64,
    /// From local programs, refused by the kernel for another reason.
    pub dropped_unsent: u64,
    /// From the network: not a valid DATA_DOWN of this session, or from another sender than the service, or for another
    /// port, or not accepted by the local program's socket.
    pub dropped_unopened: u64,
    /// Dropped by the kernel in both directions: receive buffer full.
    pub kernel_drops: u64,
}

/// Lost datagrams between local programs and peers since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerCounts {
    /// From local programs, dropped without a connection to the peer.
    pub(crate) dropped_no_session: u64,
    /// From local programs, too long after sealing.
    pub(crate) dropped_too_long: u64,
    /// Refused by the kernel on the path to the peer.
    pub(crate) dropped_unsent: u64,
    /// From a peer, without a local program to deliver to.
    pub(crate) dropped_undelivered: u64,
    /// From the network, of no known pair.
    pub(crate) dropped_unopened: u64,
    /// Dropped by the kernel in both directions: receive buffer full.
    pub(crate) kernel_drops: u64,
}

/// Reasons of lost datagrams: between local programs and a sealed gate (`tunnel_`), between local programs and a peer
/// (`peer_`), and to the agent itself. `_kernel`: the socket's receive buffer was full.
pub const LOSS_COUNTERS: [&str; 14] = [
    "tunnel_no_session",
    "tunnel_too_long",
    "tunnel_unsent",
    "tunnel_unopened",
    "tunnel_kernel",
    "peer_no_session",
    "peer_too_long",
    "peer_unsent",
    "peer_undelivered",
    "peer_unopened",
    "peer_kernel",
    "lap_kernel",
    "ticket_kernel",
    "attest_kernel",
];

impl fmt::Display for AgentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkOpened { gateway, address } => write!(f, "gateway {gateway}, from {address}"),
            Self::Unreachable { error, retry_in_ms } => {
                write!(
                    f,
                    "no route to the gateway: {error}; retry in {}",
                    DurationText(*retry_in_ms)
                )
            }
            Self::Authenticated {
                gateway_id,
                session_id,
                row,
                session_lifetime_s,
                elapsed_ms,
                renew_in_ms,
                ..
            } => write!(
                f,
                "authenticated to gateway {gateway_id} with row {row} in {elapsed_ms} ms: session {session_id}, lifetime {session_lifetime_s} \
                 s, renewal in {}",
                DurationText(*renew_in_ms)
            ),
            Self::SessionExpired => f.write_str("session expired"),
            Self::SessionLost { gateway_id } => write!(
                f,
                "gateway {gateway_id} closed the session, after a quarantine, a release or a restart; authenticating \
                 again"
            ),
            Self::AuthenticationFailed { reason, retry_in_ms } => {
                write!(
                    f,
                    "authentication failed: {reason}; retry in {}",
                    DurationText(*retry_in_ms)
                )
            }
            Self::AuthenticationPostponed { retry_in_ms } => write!(
                f,
                "authentication delayed by {}: unplanned authentications are limited to one in 10 minutes",
                DurationText(*retry_in_ms)
            ),
            Self::RequestRefused { reason, row } => {
                write!(f, "gateway refuses service: {reason} (row {row})")
            }
            Self::PufFailed { error } => write!(f, "reading the PUF failed: {error}"),
            Self::AddressChanged { from, to } => write!(f, "device address changed from {from} to {to}"),
            Self::RowsRenewed { rows_end } => write!(f, "rows renewed up to {rows_end}"),
            Self::KeyRenewed => f.write_str("key renewed"),
            Self::PreviousKeyInRegistry => {
                f.write_str("the registry has a previous key of this device; delivering the newer key again")
            }
            Self::RenewalFailed { reason } => write!(f, "renewal failed: {reason}"),
            Self::PeerConnected { peer } => write!(f, "peer {peer} connected"),
            Self::PeerDisconnected { peer, reason } => write!(f, "peer {peer} disconnected: {reason}"),
            Self::Attested {
                gateway_id,
                period,
                configuration,
                protection,
            } => {
                let protection = match protection {
                    Protection::Tpm => "a TPM",
                    Protection::Software => "software",
                };
                write!(
                    f,
                    "attested to gateway {gateway_id} in period {period}: configuration {configuration}, key in {protection}"
                )
            }
            Self::ConfigurationChanged {
                configuration,
                changes,
            } => {
                write!(f, "configuration changed to {configuration}")?;
                changes
                    .as_ref()
                    .map_or(Ok(()), |changes| ChangeSummary(changes).fmt(f))
            }
            Self::AttestationFailed { reason, retry_in_ms } => {
                write!(f, "attestation failed: {reason}")?;
                write_retry(f, *retry_in_ms)
            }
            Self::AttestationKeyReplaced => f.write_str("attestation key replaced; the new key is in use"),
            Self::AttestationStateNotSaved { error } => {
                write!(f, "storing the attestation state failed: {error}")
            }
            Self::AttestationRequestsRejected { requests } => {
                let counts: Vec<String> = requests
                    .iter()
                    .map(|(reason, count)| format!("{reason} {count}"))
                    .collect();
                write!(f, "attestation requests rejected: {}", counts.join(", "))
            }
            Self::EvidenceAccepted {
                period,
                configuration,
                bytes,
                quote,
            } => {
                let quote = if *quote { " with a quote" } else { "" };
                write!(
                    f,
                    "evidence of period {period}{quote} accepted, {bytes} B: configuration {configuration}"
                )
            }
            Self::EvidenceNotAccepted { reason, retry_in_ms } => {
                write!(f, "evidence not accepted: {reason}")?;
                write_retry(f, *retry_in_ms)
            }
            Self::TunnelStatistics(counts) => write!(
                f,
                "tunnels: {} datagrams up, {} down; dropped: {} without a session, {} too long, {} refused by the kernel, {} not \
                 authentic, {} receive buffer full",
                counts.up,
                counts.down,
                counts.dropped_no_session,
                counts.dropped_too_long,
                counts.dropped_unsent,
                counts.dropped_unopened,
                counts.kernel_drops
            ),
            Self::DatagramsLost { datagrams } => {
                let lost_counts = datagrams.iter().filter(|(_, count)| **count > 0);
                let lost_counts: Vec<String> = lost_counts
                    .map(|(reason, count)| format!("{reason} {count}"))
                    .collect();
                write!(f, "datagrams lost: {}", lost_counts.join(", "))
            }
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

fn write_retry(f: &mut fmt::Formatter<'_>, retry_in_ms: Option<u64>) -> fmt::Result {
    match retry_in_ms {
        Some(ms) => write!(f, "; retry in {}", DurationText(ms)),
        None => Ok(()),
    }
}

/// The first changes, in one line.
struct ChangeSummary<'a>(&'a Difference);

impl fmt::Display for ChangeSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let mut lines = text.lines().map(str::trim);
        for line in lines.by_ref().take(CHANGES_MAX) {
            write!(f, "; {line}")?;
        }
        match lines.count() {
            0 => Ok(()),
            omitted => write!(f, "; and {omitted} more lines (all with --output json)"),
        }
    }
}

/// A duration in text output.
struct DurationText(u64);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms @ 0..10_000 => write!(f, "{ms} ms"),
            ms @ 10_000..120_000 => write!(f, "{} s", ms / 1000),
            ms => write!(f, "{} min", ms / 60_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_json_object_with_its_name() {
        let event = AgentEvent::AuthenticationFailed {
            reason: "no answer".to_owned(),
            retry_in_ms: 5000,
        };
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"event":"authentication_failed","reason":"no answer","retry_in_ms":5000}"#
        );
        assert_eq!(
            serde_json::to_string(&AgentEvent::Stopped).unwrap(),
            r#"{"event":"stopped"}"#
        );
    }

    #[test]
    fn durations_have_a_suitable_unit() {
        let texts: Vec<String> = [20, 9_999, 10_000, 119_999, 600_000]
            .iter()
            .map(|ms| DurationText(*ms).to_string())
            .collect();
        assert_eq!(texts, ["20 ms", "9999 ms", "10 s", "119 s", "10 min"]);
    }
}
