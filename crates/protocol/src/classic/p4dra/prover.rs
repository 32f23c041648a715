//! The prover's role: answers every request, for nothing in it tells who has asked.

use super::{Message, ProverId, Template, bytes_of, operation};
use crate::attest::{AttestationKey, ConfigurationHash};

/// A prover that runs one configuration.
#[derive(Clone, Debug)]
pub struct Prover {
    id: ProverId,
    template: Template,
}

/// Bytes of a reply behind the Ethernet type.
pub const REPLY_BYTES: usize = match bytes_of(operation::REPLY) {
    Some(bytes) => bytes,
    None => 0,
};

impl Prover {
    /// With key k and what it runs.
    #[must_use]
    pub fn new(key: &AttestationKey, id: ProverId, h: &ConfigurationHash) -> Self {
        Self {
            id,
            template: Template::new(key, &id, h),
        }
    }

    /// The reply to a request; `None`: it is none. Both are what stands behind the Ethernet type.
    #[must_use]
    pub fn answer(&self, payload: &[u8]) -> Option<[u8; REPLY_BYTES]> {
        let Message::Request(round) = Message::parse(payload)? else {
            return None;
        };
        let mut reply = [0; REPLY_BYTES];
        Message::Reply(round, self.id, self.template.proof(&round)).write(&mut reply)?;
        Some(reply)
    }
}
