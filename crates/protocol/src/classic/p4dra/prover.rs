//! The role of the prover: replies to every request, because requests are not authenticated.

use super::{Message, ProverId, Template, bytes_of, operation};
use crate::attest::{AttestationKey, ConfigurationHash};

/// A prover with one configuration.
#[derive(Clone, Debug)]
pub struct Prover {
    id: ProverId,
    template: Template,
}

/// Length of a reply after the Ethernet type, in bytes.
pub const REPLY_BYTES: usize = match bytes_of(operation::REPLY) {
    Some(bytes) => bytes,
    None => 0,
};

impl Prover {
    /// A prover with key k and configuration h.
    #[must_use]
    pub fn new(key: &AttestationKey, id: ProverId, h: &ConfigurationHash) -> Self {
        Self {
            id,
            template: Template::new(key, &id, h),
        }
    }

    /// The reply to a request, or `None` if the payload is not a request. Both start after the Ethernet type.
    #[must_use]
    pub fn reply(&self, payload: &[u8]) -> Option<[u8; REPLY_BYTES]> {
        let Message::Request(round) = Message::parse(payload)? else {
            return None;
        };
        let mut reply = [0; REPLY_BYTES];
        Message::Reply(round, self.id, self.template.proof(&round)).write(&mut reply)?;
        Some(reply)
    }
}
