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
            Ignored::Unserved => "it belongs to a tunnel",
            Ignored::OtherDevice => "it is for another device or suite",
            Ignored::NotAwaited => "nothing of its type is awaited now",
            Ignored::NonceEcho => "it does not echo the REQUEST's nonce",
            Ignored::Gateway => "the gateway is not among those that the configuration names",
            Ignored::IndexSpent => "the row is spent",
            Ignored::ChallengeInKeyMode => "it offers a row, and this device is in key mode",
            Ignored::Duplicate => "it came before and is being looked at",
            Ignored::QueueFull => "one is being looked at and one waits",
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
            "the gateway offers row {}, which this device has spent: was its registry restored from a backup? starting \
             the agent anew spends it once more",
            self.0.0
        )
    }
}

/// What the REQUESTs of one handshake brought that led nowhere.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    refused: Option<Refused>,
    readings: u32,
}

/// Of a CHALLENGE that echoed the nonce.
#[derive(Debug)]
enum Refused {
    Spent(SpentRow),
    Gateway(GatewayId),
    OtherMode,
}

impl Answers {
    /// Notes a message that changed nothing; the row if it offers one that is spent.
    pub(crate) fn note(&mut self, payload: &[u8], ignored: Ignored) -> Option<SpentRow> {
        let Ok(Message::Challenge(challenge)) = wire::parse(payload) else {
            return None;
        };
        let spent = SpentRow(RowIndex(challenge.idx.get()));
        self.refused = Some(match ignored {
            Ignored::IndexSpent => Refused::Spent(spent),
            Ignored::Gateway => Refused::Gateway(GatewayId(challenge.gateway_id.get())),
            Ignored::ChallengeInKeyMode => Refused::OtherMode,
            _ => return None,
        });
        (ignored == Ignored::IndexSpent).then_some(spent)
    }

    /// Notes that the PUF is read for a CHALLENGE.
    pub(crate) fn note_reading(&mut self) {
        self.readings += 1;
    }

    /// Why the handshake ended without a session.
    pub(crate) fn why(&self, failure: Failure, nak: Option<NakSeen>) -> String {
        match failure {
            Failure::NoChallenge => match (&self.refused, nak, self.readings) {
                (Some(Refused::Spent(row)), _, _) => row.to_string(),
                (Some(Refused::Gateway(gateway)), _, _) => format!(
                    "gateway {} answered, which is not among the `ids` of the configuration",
                    gateway.0
                ),
                (Some(Refused::OtherMode), _, _) => "the gateway answers as to a device in pool mode, and the helper data \
                     here are of key mode; are they those of its last enrolment?"
                    .to_owned(),
                (None, Some(nak), _) => format!("the gateway answered that {}", NakReason(nak.reason)),
                (None, None, 1..) => CHALLENGES_REJECTED.to_owned(),
                (None, None, 0) => {
                    "no gateway answered; is the address right, the device enrolled there and not revoked?".to_owned()
                }
            },
            Failure::ChallengesRejected => CHALLENGES_REJECTED.to_owned(),
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
