//! Texts for messages and handshake failures, for logs and events. They do not influence the protocol.

use std::fmt;

use linewarden_protocol::device::{Failure, IgnoredReason, ReceivedNak};
use linewarden_protocol::ids::{GatewayId, RowIndex};
use linewarden_protocol::wire::{self, Message, nak_reason};

/// Describes a LAP message.
pub(crate) struct MessageSummary<'a>(pub(crate) &'a [u8]);

impl fmt::Display for MessageSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match wire::parse(self.0) {
            Ok(Message::Request(_)) => f.write_str("REQUEST"),
            Ok(Message::Challenge(challenge)) => write!(
                f,
                "CHALLENGE of gateway {} for row {}",
                challenge.gateway_id, challenge.idx
            ),
            Ok(Message::Response(response)) => write!(
                f,
                "RESPONSE to gateway {} with row {}",
                response.gateway_id, response.idx
            ),
            Ok(Message::Ack(ack)) => write!(
                f,
                "ACK of row {}, session lifetime {} s",
                ack.idx, ack.session_lifetime_s
            ),
            Ok(Message::Nak(nak)) => write!(f, "NAK at row {}: {}", nak.idx, NakReason(nak.reason)),
            Ok(Message::DataUp(_, payload) | Message::DataDown(_, payload)) => {
                write!(f, "DATA of {} B", payload.len())
            }
            Ok(Message::AttestRequest(request)) => write!(
                f,
                "ATTEST_REQUEST of gateway {}, round {}",
                request.gateway_id, request.round
            ),
            Ok(Message::Proof(proof)) => {
                write!(
                    f,
                    "PROOF to gateway {} in round {}",
                    proof.gateway_id, proof.round
                )
            }
            Err(_) => write!(f, "{} B", self.0.len()),
        }
    }
}

/// Why the device state machine ignored a message.
pub(crate) struct ReasonText(pub(crate) IgnoredReason);

impl fmt::Display for ReasonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            IgnoredReason::Malformed(verdict) => {
                return write!(f, "not a LAP/1 message: {}", verdict.description().trim());
            }
            IgnoredReason::Direction => "only devices send this message type",
            IgnoredReason::UnsupportedType => "message of a tunnel, or attestation request",
            IgnoredReason::OtherDevice => "for another device or suite",
            IgnoredReason::Unexpected => "message type not expected now",
            IgnoredReason::NonceEcho => "wrong nonce echo",
            IgnoredReason::Gateway => "gateway not accepted by the configuration",
            IgnoredReason::IndexSpent => "row already spent",
            IgnoredReason::ChallengeInKeyMode => "row offered, but this device is in key mode",
            IgnoredReason::Duplicate => "duplicate of a message that is being processed",
            IgnoredReason::UnknownRow => "row not in the helper data, or with another challenge",
            IgnoredReason::ChallengeTag => "tag does not match the row key of an earlier PUF readout",
            IgnoredReason::ResponseMismatch => "for another RESPONSE",
            IgnoredReason::AckTag => "wrong tag",
        })
    }
}

/// A gateway's reason for refusing a device.
pub(crate) struct NakReason(pub(crate) u8);

impl fmt::Display for NakReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            nak_reason::NO_ROWS => f.write_str("no rows left for this device"),
            nak_reason::STOPPING => f.write_str("gateway is stopping"),
            other => write!(f, "reason {other}"),
        }
    }
}

/// A row that a CHALLENGE offers, although the device has already spent the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpentRow(pub(crate) RowIndex);

impl fmt::Display for SpentRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CHALLENGE offers row {}, which this device has already spent; the message is not authenticated: either it is forged, or the \
             registry was restored to an earlier state; if it recurs, see docs/operations/disaster-recovery.md",
            self.0.0
        )
    }
}

/// Rejected replies to the REQUESTs of one handshake.
#[derive(Debug, Default)]
pub(crate) struct HandshakeDiagnosis {
    rejected_challenge: Option<RejectedChallenge>,
    /// Number of CHALLENGEs with a wrong tag.
    bad_tags: u32,
    failed_readings: u32,
}

/// Why a CHALLENGE with the right nonce was rejected.
#[derive(Debug)]
enum RejectedChallenge {
    Spent(SpentRow),
    Gateway(GatewayId),
    WrongMode,
    UnknownRow(RowIndex),
}

impl HandshakeDiagnosis {
    /// Records an ignored message; returns the row of a CHALLENGE if the device has already spent the row.
    pub(crate) fn record_ignored(&mut self, payload: &[u8], ignored: IgnoredReason) -> Option<SpentRow> {
        let Ok(Message::Challenge(challenge)) = wire::parse(payload) else {
            return None;
        };
        if ignored == IgnoredReason::ChallengeTag {
            self.record_bad_tag();
            return None;
        }
        let spent = SpentRow(RowIndex(challenge.idx.get()));
        self.rejected_challenge = Some(match ignored {
            IgnoredReason::IndexSpent => RejectedChallenge::Spent(spent),
            IgnoredReason::Gateway => RejectedChallenge::Gateway(GatewayId(challenge.gateway_id.get())),
            IgnoredReason::ChallengeInKeyMode => RejectedChallenge::WrongMode,
            IgnoredReason::UnknownRow => RejectedChallenge::UnknownRow(spent.0),
            _ => return None,
        });
        (ignored == IgnoredReason::IndexSpent).then_some(spent)
    }

    /// Records that a CHALLENGE offers a row that an earlier process has spent.
    pub(crate) fn record_spent_row(&mut self, row: RowIndex) -> SpentRow {
        self.rejected_challenge = Some(RejectedChallenge::Spent(SpentRow(row)));
        SpentRow(row)
    }

    /// Whether a CHALLENGE had a wrong tag.
    pub(crate) fn has_bad_tag(&self) -> bool {
        self.bad_tags > 0
    }

    /// Records a CHALLENGE whose tag does not match the PUF.
    pub(crate) fn record_bad_tag(&mut self) {
        self.bad_tags += 1;
    }

    /// Records that the PUF could not be read for a CHALLENGE.
    pub(crate) fn record_failed_reading(&mut self) {
        self.failed_readings += 1;
    }

    /// Why the handshake ended without a session.
    pub(crate) fn failure_reason(&self, failure: Failure, nak: Option<ReceivedNak>) -> String {
        match failure {
            Failure::NoChallenge | Failure::ChallengesRejected => match (&self.rejected_challenge, nak, self.bad_tags) {
                (Some(RejectedChallenge::Spent(row)), _, _) => row.to_string(),
                (Some(RejectedChallenge::Gateway(gateway)), _, _) => format!(
                    "response of gateway {}, which is not among the `ids` of the configuration",
                    gateway.0
                ),
                (Some(RejectedChallenge::WrongMode), _, _) => "the gateway offers rows of pool mode, but the helper data are of key mode; use the \
                helper data of the last enrollment"
                    .to_owned(),
                (Some(RejectedChallenge::UnknownRow(row)), _, 0) => format!(
                    "the gateway offers row {}, which is not in the helper data with that challenge; use the helper data of the last \
                     enrollment",
                    row.0
                ),
                (Some(RejectedChallenge::UnknownRow(_)), _, 1..) => CHALLENGES_REJECTED.to_owned(),
                (None, Some(nak), _) if nak.reason == nak_reason::NO_ROWS => format!(
                    "the gateway replied: {}; the message is not authenticated; if `linewarden device show` confirms it at the registry, \
                     enroll the device again (`linewarden device enroll --replace`)",
                    NakReason(nak.reason)
                ),
                (None, Some(nak), _) => format!("the gateway replied: {}", NakReason(nak.reason)),
                (None, None, 1..) => CHALLENGES_REJECTED.to_owned(),
                (None, None, 0) if self.failed_readings > 0 => "reading the PUF failed".to_owned(),
                (None, None, 0) => {
                    "no reply from a gateway; check that the address is right, and that the device is enrolled there and neither revoked nor in \
                     quarantine (`linewarden attest show DEVICE` at the gateway)"
                        .to_owned()
                }
            },
            Failure::NoAck => "no acknowledgment within a minute".to_owned(),
            Failure::SessionExpired => "the acknowledgment arrived after the session had expired".to_owned(),
            Failure::AddressChanged => {
                "the gateway received another source address than the device's: address translation, or a relay attack"
                    .to_owned()
            }
        }
    }
}

const CHALLENGES_REJECTED: &str = "no challenge matched the PUF; check that helper data and PUF are those of this device; the challenges may be forged";

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::wire::{Challenge, Header, message_type};
    use zerocopy::IntoBytes as _;
    use zerocopy::byteorder::big_endian::U32;

    use super::*;

    fn challenge() -> Challenge {
        Challenge {
            header: Header::new(message_type::CHALLENGE, Suite::SipHash128, 0, DeviceId(1)),
            idx: U32::new(46),
            gateway_id: U32::new(7),
            challenge: [0; 8],
            fresh: [1; 8],
            nonce_echo: [2; 8],
            tag: [3; 16],
        }
    }

    #[test]
    fn rejected_messages_determine_the_failure_reason() {
        let challenge = challenge();
        let failure_reason =
            |diagnosis: &HandshakeDiagnosis, nak| diagnosis.failure_reason(Failure::NoChallenge, nak);
        let nak = Some(ReceivedNak {
            reason: nak_reason::NO_ROWS,
            idx: RowIndex(3),
        });
        let mut diagnosis = HandshakeDiagnosis::default();
        let reason = failure_reason(&diagnosis, None);
        assert!(
            reason.starts_with("no reply from a gateway") && reason.contains("`linewarden attest show"),
            "{reason}"
        );
        let cause = failure_reason(&diagnosis, nak);
        assert!(
            cause.contains("no rows left") && cause.contains("device enroll --replace"),
            "{cause}"
        );
        diagnosis.record_failed_reading();
        assert_eq!(failure_reason(&diagnosis, None), "reading the PUF failed");
        diagnosis.record_bad_tag();
        assert!(failure_reason(&diagnosis, None).contains("no challenge matched the PUF"));
        // Messages with one of these reasons are not authenticated, so they are no evidence of a gateway.
        for ignored in [IgnoredReason::NonceEcho, IgnoredReason::Unexpected] {
            assert_eq!(diagnosis.record_ignored(challenge.as_bytes(), ignored), None);
            assert!(failure_reason(&diagnosis, None).contains("no challenge matched the PUF"));
        }
        for (ignored, expected) in [
            (IgnoredReason::ChallengeInKeyMode, "pool mode"),
            (IgnoredReason::Gateway, "response of gateway 7"),
            (
                IgnoredReason::IndexSpent,
                "offers row 46, which this device has already spent",
            ),
            (IgnoredReason::UnknownRow, "no challenge matched the PUF"),
        ] {
            let spent = diagnosis.record_ignored(challenge.as_bytes(), ignored);
            assert_eq!(spent.is_some(), ignored == IgnoredReason::IndexSpent);
            assert!(
                failure_reason(&diagnosis, nak).contains(expected),
                "{}",
                failure_reason(&diagnosis, nak)
            );
        }
    }

    #[test]
    fn an_unknown_row_is_named_unless_a_tag_was_wrong() {
        let mut diagnosis = HandshakeDiagnosis::default();
        let _ = diagnosis.record_ignored(challenge().as_bytes(), IgnoredReason::UnknownRow);
        let failure_reason =
            |diagnosis: &HandshakeDiagnosis| diagnosis.failure_reason(Failure::NoChallenge, None);
        assert!(failure_reason(&diagnosis).contains("offers row 46, which is not in the helper data"));
        let _ = diagnosis.record_ignored(challenge().as_bytes(), IgnoredReason::ChallengeTag);
        assert!(failure_reason(&diagnosis).contains("no challenge matched the PUF"));
    }

    #[test]
    fn messages_are_described_by_type() {
        let challenge = challenge();
        let bytes = challenge.as_bytes();
        assert_eq!(
            MessageSummary(bytes).to_string(),
            "CHALLENGE of gateway 7 for row 46"
        );
        assert_eq!(MessageSummary(&bytes[..20]).to_string(), "20 B");
        let Err(verdict) = wire::parse(&bytes[..20]) else {
            panic!("20 B are not a message");
        };
        assert!(
            ReasonText(IgnoredReason::Malformed(verdict))
                .to_string()
                .starts_with("not a LAP/1 message: ")
        );
    }
}
