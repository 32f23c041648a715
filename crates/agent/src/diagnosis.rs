//! Messages in words, and why a handshake came to nothing: for the log and for reports. Nothing is done because of it.

use std::fmt;

use linewarden_protocol::device::{Failure, Ignored, NakSeen};
use linewarden_protocol::ids::{GatewayId, RowIndex};
use linewarden_protocol::wire::{self, Message, nak_reason};

/// A payload as people name it.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
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
            Ok(Message::Ack(ack)) => write!(f, "ACK of row {}, lease {} s", ack.idx, ack.lease_s),
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

/// Why the device machine took no notice of a message.
pub(crate) struct Why(pub(crate) Ignored);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Ignored::Malformed(verdict) => {
                return write!(f, "no LAP/1 message: {}", verdict.description().trim());
            }
            Ignored::Direction => "only devices send it",
            Ignored::Unserved => "it belongs to a tunnel or asks for a proof",
            Ignored::OtherDevice => "it is for another device or suite",
            Ignored::NotAwaited => "nothing of its type is awaited now",
            Ignored::NonceEcho => "it does not echo the REQUEST's nonce",
            Ignored::Gateway => "the gateway is not among those that the configuration names",
            Ignored::IndexSpent => "the row is spent",
            Ignored::ChallengeInKeyMode => "it offers a row, and this device is in key mode",
            Ignored::Duplicate => "it came before and is being looked at",
            Ignored::UnknownRow => "the helper data have no such row, or another challenge for it",
            Ignored::ChallengeTag => {
                "its tag does not verify with the row key that a reading of the PUF gave before"
            }
            Ignored::OtherResponse => "it is for another RESPONSE",
            Ignored::AckTag => "its tag is wrong",
        })
    }
}

/// A gateway's reason not to serve a device.
pub(crate) struct NakReason(pub(crate) u8);

impl fmt::Display for NakReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            nak_reason::NO_ROWS => f.write_str("it has no rows left for this device"),
            nak_reason::STOPPING => f.write_str("it is about to stop"),
            other => write!(f, "reason {other}"),
        }
    }
}

/// A row that is offered and was accepted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpentRow(pub(crate) RowIndex);

impl fmt::Display for SpentRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a CHALLENGE offers row {}, which this device has spent; the message is not authenticated: its sender forged it, or the \
             registry was restored to an earlier state without noticing it; if it continues, see \"Disaster recovery\" in \
             docs/operations.md",
            self.0.0
        )
    }
}

/// What the REQUESTs of one handshake brought that led nowhere.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    refused: Option<Refused>,
    /// CHALLENGEs whose tag does not fit.
    rejected: u32,
    failed_readings: u32,
}

/// Of a CHALLENGE that echoed the nonce.
#[derive(Debug)]
enum Refused {
    Spent(SpentRow),
    Gateway(GatewayId),
    OtherMode,
    UnknownRow(RowIndex),
}

impl Answers {
    /// Notes a message that changed nothing; the row if it offers one that is spent.
    pub(crate) fn note(&mut self, payload: &[u8], ignored: Ignored) -> Option<SpentRow> {
        let Ok(Message::Challenge(challenge)) = wire::parse(payload) else {
            return None;
        };
        if ignored == Ignored::ChallengeTag {
            self.note_rejected();
            return None;
        }
        let spent = SpentRow(RowIndex(challenge.idx.get()));
        self.refused = Some(match ignored {
            Ignored::IndexSpent => Refused::Spent(spent),
            Ignored::Gateway => Refused::Gateway(GatewayId(challenge.gateway_id.get())),
            Ignored::ChallengeInKeyMode => Refused::OtherMode,
            Ignored::UnknownRow => Refused::UnknownRow(spent.0),
            _ => return None,
        });
        (ignored == Ignored::IndexSpent).then_some(spent)
    }

    /// Notes that a CHALLENGE offers a row that an earlier process has spent.
    pub(crate) fn note_spent(&mut self, row: RowIndex) -> SpentRow {
        self.refused = Some(Refused::Spent(SpentRow(row)));
        SpentRow(row)
    }

    /// Whether a CHALLENGE's tag did not fit the PUF.
    pub(crate) fn has_rejected(&self) -> bool {
        self.rejected > 0
    }

    /// Notes that a CHALLENGE's tag does not fit the PUF.
    pub(crate) fn note_rejected(&mut self) {
        self.rejected += 1;
    }

    /// Notes that the PUF could not be read for a CHALLENGE.
    pub(crate) fn note_failed_reading(&mut self) {
        self.failed_readings += 1;
    }

    /// Why the handshake ended without a session.
    pub(crate) fn why(&self, failure: Failure, nak: Option<NakSeen>) -> String {
        match failure {
            Failure::NoChallenge | Failure::ChallengesRejected => match (&self.refused, nak, self.rejected) {
                (Some(Refused::Spent(row)), _, _) => row.to_string(),
                (Some(Refused::Gateway(gateway)), _, _) => format!(
                    "gateway {} answered, which is not among the `ids` of the configuration",
                    gateway.0
                ),
                (Some(Refused::OtherMode), _, _) => "the gateway answers as to a device in pool mode, and the helper data \
                     here are of key mode; are they those of its last enrolment?"
                    .to_owned(),
                (Some(Refused::UnknownRow(row)), _, 0) => format!(
                    "the gateway offers row {}, which the helper data here do not have with that challenge; are they those of \
                     the last enrolment?",
                    row.0
                ),
                (Some(Refused::UnknownRow(_)), _, 1..) => CHALLENGES_REJECTED.to_owned(),
                (None, Some(nak), _) if nak.reason == nak_reason::NO_ROWS => format!(
                    "the gateway answered that {}; the message is not authenticated; if `linewarden device show` confirms it at \
                     the registry, enroll the device again (`linewarden device enroll --replace`)",
                    NakReason(nak.reason)
                ),
                (None, Some(nak), _) => format!("the gateway answered that {}", NakReason(nak.reason)),
                (None, None, 1..) => CHALLENGES_REJECTED.to_owned(),
                (None, None, 0) if self.failed_readings > 0 => "the PUF could not be read".to_owned(),
                (None, None, 0) => {
                    "no gateway answered; is the address right, the device enrolled there, and not revoked or in quarantine \
                     (`linewarden attest explain DEVICE` at the gateway)?"
                        .to_owned()
                }
            },
            Failure::NoAck => "the proof was not acknowledged within a minute".to_owned(),
            Failure::LeaseOver => "the acknowledgement came after the lease's end".to_owned(),
            Failure::AddressChanged => {
                "the gateway saw another address than this device's own: address translation, or somebody relays"
                    .to_owned()
            }
        }
    }
}

const CHALLENGES_REJECTED: &str =
    "no challenge fitted the PUF; are helper data and PUF those of this device? is somebody forging?";

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
    fn what_came_decides_what_is_said_of_a_handshake_without_a_challenge() {
        let challenge = challenge();
        let why = |answers: &Answers, nak| answers.why(Failure::NoChallenge, nak);
        let nak = Some(NakSeen {
            reason: nak_reason::NO_ROWS,
            idx: RowIndex(3),
        });
        let mut answers = Answers::default();
        let told = why(&answers, None);
        assert!(
            told.starts_with("no gateway answered")
                && told.contains("in quarantine (`linewarden attest explain"),
            "{told}"
        );
        let cause = why(&answers, nak);
        assert!(
            cause.contains("no rows left") && cause.contains("device enroll --replace"),
            "{cause}"
        );
        answers.note_failed_reading();
        assert_eq!(why(&answers, None), "the PUF could not be read");
        answers.note_rejected();
        assert!(why(&answers, None).contains("no challenge fitted the PUF"));
        // Anybody can send these two, whoever he is: they say nothing of a gateway.
        for ignored in [Ignored::NonceEcho, Ignored::NotAwaited] {
            assert_eq!(answers.note(challenge.as_bytes(), ignored), None);
            assert!(why(&answers, None).contains("no challenge fitted the PUF"));
        }
        for (ignored, told) in [
            (Ignored::ChallengeInKeyMode, "pool mode"),
            (Ignored::Gateway, "gateway 7 answered"),
            (Ignored::IndexSpent, "offers row 46, which this device has spent"),
            (Ignored::UnknownRow, "no challenge fitted the PUF"),
        ] {
            let spent = answers.note(challenge.as_bytes(), ignored);
            assert_eq!(spent.is_some(), ignored == Ignored::IndexSpent);
            assert!(why(&answers, nak).contains(told), "{}", why(&answers, nak));
        }
    }

    #[test]
    fn a_row_that_the_helper_data_lack_is_named_unless_a_challenge_was_judged() {
        let mut answers = Answers::default();
        let _ = answers.note(challenge().as_bytes(), Ignored::UnknownRow);
        let why = |answers: &Answers| answers.why(Failure::NoChallenge, None);
        assert!(why(&answers).contains("offers row 46, which the helper data here do not have"));
        let _ = answers.note(challenge().as_bytes(), Ignored::ChallengeTag);
        assert!(why(&answers).contains("no challenge fitted the PUF"));
    }

    #[test]
    fn messages_are_shown_by_what_they_are() {
        let challenge = challenge();
        let bytes = challenge.as_bytes();
        assert_eq!(Shown(bytes).to_string(), "CHALLENGE of gateway 7 for row 46");
        assert_eq!(Shown(&bytes[..20]).to_string(), "20 B");
        let Err(verdict) = wire::parse(&bytes[..20]) else {
            panic!("20 B are no message");
        };
        assert!(
            Why(Ignored::Malformed(verdict))
                .to_string()
                .starts_with("no LAP/1 message: ")
        );
    }
}
