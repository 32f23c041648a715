//! The device side of a classic exchange. No heap.

use super::{Block, Message, ResponseBits, hash, mask, message_type, xor};

/// The REQ of a device.
#[must_use]
pub fn request(identifier: u32) -> Message {
    Message::new(message_type::REQ, identifier)
}

/// The RESP to a CH, from the PUF responses to its challenges: `r2` is `Some` in the two-challenge profile.
///
/// The RESP repeats the challenges. It does not repeat the random number, because the verifier needs only the hash.
/// `None` if the message is not a CH.
#[must_use]
pub fn respond(challenge: &Message, bits: ResponseBits, r1: &Block, r2: Option<&Block>) -> Option<Message> {
    if challenge.kind != message_type::CH {
        return None;
    }
    let rn = xor(&challenge.rn, &mask(r1, r2));
    let mut response = Message::new(message_type::RESP, challenge.identifier);
    response.challenge1 = challenge.challenge1;
    response.challenge2 = challenge.challenge2;
    response.hash = hash(bits, r1, r2, &rn);
    Some(response)
}

/// Whether a message accepts this RESP. An ACK proves nothing, because it is not authenticated.
#[must_use]
pub fn is_accepted(ack: &Message, response: &Message) -> bool {
    ack.kind == message_type::ACK && ack.identifier == response.identifier && ack.hash == response.hash
}
