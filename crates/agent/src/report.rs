//! What an agent has to say.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use linewarden_measurement::diff::Difference;
use linewarden_tpm::Protection;
use serde::Serialize;

/// Lines of a difference that people are shown.
const CHANGES_MAX: usize = 8;

/// A change of an agent's state: one line for people, or one JSON object with its name in `event`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Report {
    /// A socket to the gateway is open. Nothing was sent yet.
    Linked {
        /// The gateway.
        gateway: SocketAddr,
        /// The device's own address towards it.
        local: IpAddr,
    },
    /// There is no way to the gateway now.
    Unreachable {
        /// Why.
        error: String,
        /// When it is tried again, ms from now.
        retry_in_ms: u64,
    },
    /// An ACK was verified: both sides have proved themselves.
    Authenticated {
        /// The device, 16 hexadecimal digits.
        device: String,
        /// The gateway's number.
        gateway_id: u32,
        /// The session, 16 hexadecimal digits.
        session: String,
        /// The row that was spent; in key mode it only counts.
        idx: u32,
        /// How long the session lasts, seconds.
        lease_s: u32,
        /// From the start of the handshake, reading the PUF included, ms.
        took_ms: u64,
        /// When the lease is renewed, ms from now.
        renew_in_ms: u64,
    },
    /// The lease is over and was not renewed.
    Expired,
    /// The session's gateway has asked what the device runs as one that has no such session: it has closed it. Another one is
    /// tried for.
    SessionLost {
        /// The gateway's number.
        gateway_id: u32,
    },
    /// A handshake ended without a session.
    Failed {
        /// Why.
        why: String,
        /// When it is tried again, ms from now.
        retry_in_ms: u64,
    },
    /// Unplanned re-authentications spend rows and are limited (LAP/1 1.5).
    Postponed {
        /// ms from now.
        for_ms: u64,
    },
    /// The gateway says that it cannot serve this device. Not authenticated, for display only.
    Refused {
        /// Why.
        reason: String,
        /// The row it is at.
        idx: u32,
    },
    /// The PUF gave no key for a row.
    PufFailed {
        /// Why.
        error: String,
    },
    /// The device's address changed; the session, which is bound to it, is given up.
    AddressChanged {
        /// Before.
        from: IpAddr,
        /// Now.
        to: IpAddr,
    },
    /// The registry has rows up to this number now.
    RowsRenewed {
        /// The number after the last row.
        rows_end: u32,
    },
    /// The registry has a new key of this device, whose helper data have taken the old ones' place.
    KeyRenewed,
    /// The registry has the key of before the last renewal: it was put back to an earlier state. The newer key is sent to it again.
    OlderKey,
    /// Rows or key were not renewed; it is tried again in a later session if it is due still.
    NotRenewed {
        /// Why.
        why: String,
    },
    /// A peer and this device have proved to each other that they hold the pair's key.
    PeerOpen {
        /// The peer, 16 hexadecimal digits.
        device: String,
    },
    /// Nothing is sent to a peer or taken from it any more.
    PeerClosed {
        /// The peer, 16 hexadecimal digits.
        device: String,
        /// Why.
        why: String,
    },
    /// The first proof of a period went to a gateway.
    Attested {
        /// The gateway's number.
        gateway_id: u32,
        /// The period.
        period: u64,
        /// h, 64 hexadecimal digits.
        configuration: String,
        /// Where the key lies.
        protection: Protection,
    },
    /// Another configuration was measured than the last time.
    ConfigurationChanged {
        /// h, 64 hexadecimal digits.
        configuration: String,
        /// What has changed; not known if the agent was started anew in between.
        #[serde(skip_serializing_if = "Option::is_none")]
        changes: Option<Box<Difference>>,
    },
    /// Nothing is proven now.
    NotAttesting {
        /// Why: the TPM's command, the log's entry, the file.
        why: String,
        /// When it is tried again, ms from now; not in this period if there is nothing.
        retry_in_ms: Option<u64>,
    },
    /// The attestation key's file was replaced: from now on the new key proves.
    AttestKeyReplaced,
    /// What is to be remembered of attestation cannot be written: after a restart the device may refuse requests that
    /// come without a session.
    AttestNotKept {
        /// Why.
        why: String,
    },
    /// Requests that got no proof, since the start, told when there are more, at most once a minute, and at the end.
    AttestRefused {
        /// How many, by why.
        requests: BTreeMap<&'static str, u64>,
    },
    /// The controller has taken evidence.
    EvidenceTaken {
        /// The period in which it was measured.
        period: u64,
        /// h, 64 hexadecimal digits.
        configuration: String,
        /// Length of the document.
        bytes: usize,
        /// Whether there was a quote in it.
        quote: bool,
    },
    /// The controller has not taken evidence.
    EvidenceNotTaken {
        /// Why.
        why: String,
        /// When it is tried again, ms from now, if it is.
        retry_in_ms: Option<u64>,
    },
    /// What the tunnels have carried, told once, at the end.
    Tunnelled(TunnelCounts),
    /// Datagrams that were lost since the start: reported when the counters have risen, at most once a minute, and at the end.
    DatagramsLost {
        /// How many, by where and why; the names are those of [`LOSSES`].
        datagrams: BTreeMap<&'static str, u64>,
    },
    /// The agent ends.
    Stopped,
}

/// Datagrams of all tunnels since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TunnelCounts {
    /// Sealed and sent.
    pub up: u64,
    /// Opened and handed to a local program.
    pub down: u64,
    /// Of local programs, while there was no session.
    pub dropped_no_session: u64,
    /// Of local programs, longer than the way to the gateway takes once sealed.
    pub dropped_too_long: u64,
    /// Of local programs, refused by the kernel for another reason.
    pub dropped_unsent: u64,
    /// From the network, and not a right DATA_DOWN of the session, from the service, for the port that it came to.
    pub dropped_unopened: u64,
    /// Dropped by the kernel, both ways, for want of room in a receive buffer.
    pub kernel_drops: u64,
}

/// Datagrams between local programs and peers that were lost since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerCounts {
    /// Of local programs, while the peer was not connected.
    pub(crate) dropped_no_session: u64,
    /// Of local programs, longer than fits once sealed.
    pub(crate) dropped_too_long: u64,
    /// Refused by the kernel on their way to the peer.
    pub(crate) dropped_unsent: u64,
    /// Of a peer, with no local program to take them.
    pub(crate) dropped_undelivered: u64,
    /// From the network, and of no pair that is known.
    pub(crate) dropped_unopened: u64,
    /// Dropped by the kernel, both ways, for want of room in a receive buffer.
    pub(crate) kernel_drops: u64,
}

/// Where and why datagrams are lost: between local programs and a sealed gate (`tunnel_`), and a peer (`peer_`), and on their way to the
/// agent itself. `_kernel`: the kernel had no room in the socket's receive buffer.
pub const LOSSES: [&str; 14] = [
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linked { gateway, local } => write!(f, "gateway {gateway}, from {local}"),
            Self::Unreachable { error, retry_in_ms } => {
                write!(
                    f,
                    "no way to the gateway: {error}; trying again in {}",
                    Span(*retry_in_ms)
                )
            }
            Self::Authenticated {
                gateway_id,
                session,
                idx,
                lease_s,
                took_ms,
                renew_in_ms,
                ..
            } => write!(
                f,
                "authenticated to gateway {gateway_id} with row {idx} in {took_ms} ms: session {session}, lease {lease_s} \
                 s, renewal in {}",
                Span(*renew_in_ms)
            ),
            Self::Expired => f.write_str("the lease is over"),
            Self::SessionLost { gateway_id } => write!(
                f,
                "gateway {gateway_id} has closed the session: shut out, let in again, or the gateway was started anew; \
                 authenticating again"
            ),
            Self::Failed { why, retry_in_ms } => {
                write!(
                    f,
                    "not authenticated: {why}; trying again in {}",
                    Span(*retry_in_ms)
                )
            }
            Self::Postponed { for_ms } => write!(
                f,
                "waiting {}: unplanned authentications spend rows and are limited to one in 10 minutes",
                Span(*for_ms)
            ),
            Self::Refused { reason, idx } => write!(f, "the gateway answers: {reason} (row {idx})"),
            Self::PufFailed { error } => write!(f, "PUF: {error}"),
            Self::AddressChanged { from, to } => write!(f, "address changed from {from} to {to}"),
            Self::RowsRenewed { rows_end } => write!(f, "renewed: rows up to {rows_end}"),
            Self::KeyRenewed => f.write_str("renewed: a new key"),
            Self::OlderKey => f.write_str(
                "the registry has the key of before the last renewal; the newer one is sent to it again",
            ),
            Self::NotRenewed { why } => write!(f, "not renewed: {why}"),
            Self::PeerOpen { device } => write!(f, "peer {device}: open"),
            Self::PeerClosed { device, why } => write!(f, "peer {device}: closed, {why}"),
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
                write!(f, "configuration changed, now {configuration}")?;
                changes.as_ref().map_or(Ok(()), |changes| Changes(changes).fmt(f))
            }
            Self::NotAttesting { why, retry_in_ms } => {
                write!(f, "not attesting: {why}")?;
                again(f, *retry_in_ms)
            }
            Self::AttestKeyReplaced => f.write_str("the attestation key was replaced: the new one is in use"),
            Self::AttestNotKept { why } => write!(f, "cannot keep the state of attestation: {why}"),
            Self::AttestRefused { requests } => {
                let counts: Vec<String> = requests
                    .iter()
                    .map(|(why, count)| format!("{why} {count}"))
                    .collect();
                write!(f, "requests to attest that were refused: {}", counts.join(", "))
            }
            Self::EvidenceTaken {
                period,
                configuration,
                bytes,
                quote,
            } => {
                let quote = if *quote { " with a quote" } else { "" };
                write!(
                    f,
                    "evidence of period {period}{quote} taken, {bytes} B: configuration {configuration}"
                )
            }
            Self::EvidenceNotTaken { why, retry_in_ms } => {
                write!(f, "evidence not taken: {why}")?;
                again(f, *retry_in_ms)
            }
            Self::Tunnelled(counts) => write!(
                f,
                "tunnels: {} datagrams up, {} down; dropped {} without a session, {} too long, {} unsent, {} not \
                 genuine, {} by the kernel",
                counts.up,
                counts.down,
                counts.dropped_no_session,
                counts.dropped_too_long,
                counts.dropped_unsent,
                counts.dropped_unopened,
                counts.kernel_drops
            ),
            Self::DatagramsLost { datagrams } => {
                let lost = datagrams.iter().filter(|(_, count)| **count > 0);
                let lost: Vec<String> = lost.map(|(why, count)| format!("{why} {count}")).collect();
                write!(f, "datagrams lost: {}", lost.join(", "))
            }
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

fn again(f: &mut fmt::Formatter<'_>, retry_in_ms: Option<u64>) -> fmt::Result {
    match retry_in_ms {
        Some(ms) => write!(f, "; trying again in {}", Span(ms)),
        None => Ok(()),
    }
}

/// The first changes, in one line.
struct Changes<'a>(&'a Difference);

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.to_string();
        let mut lines = all.lines().map(str::trim);
        for line in lines.by_ref().take(CHANGES_MAX) {
            write!(f, "; {line}")?;
        }
        match lines.count() {
            0 => Ok(()),
            more => write!(f, "; and {more} more lines, with --json all"),
        }
    }
}

/// Milliseconds for people.
struct Span(u64);

impl fmt::Display for Span {
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
    fn machines_get_one_object_with_its_name() {
        let report = Report::Failed {
            why: "no answer".to_owned(),
            retry_in_ms: 5000,
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"event":"failed","why":"no answer","retry_in_ms":5000}"#
        );
        assert_eq!(
            serde_json::to_string(&Report::Stopped).unwrap(),
            r#"{"event":"stopped"}"#
        );
    }

    #[test]
    fn people_get_spans_that_they_can_read() {
        let spans: Vec<String> = [20, 9_999, 10_000, 119_999, 600_000]
            .iter()
            .map(|ms| Span(*ms).to_string())
            .collect();
        assert_eq!(spans, ["20 ms", "9999 ms", "10 s", "119 s", "10 min"]);
    }
}
