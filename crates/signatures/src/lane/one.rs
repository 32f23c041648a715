//! One message at a time: aws-lc for the plain schemes, our own arithmetic for RA. What the other lanes are compared with.

use super::{Lost, Verifier};
use crate::key::Material;
use crate::receive::Checked;

/// One message at a time.
#[derive(Debug, Default)]
pub struct OneByOne {
    /// What is signed, in one piece.
    signed: Vec<u8>,
}

impl OneByOne {
    /// Whether the message is its signer's.
    #[must_use]
    pub fn holds(&mut self, message: &Checked) -> bool {
        let key = match message.key().material() {
            Material::Ra(ra) => {
                return message
                    .rapid()
                    .is_some_and(|(digits, name)| ra.verify(name, digits, message.signature()));
            }
            Material::Pss(_, key) | Material::EcdsaP256(_, key) | Material::Ed25519(_, key) => key,
        };
        self.signed.clear();
        for part in message.signed_bytes() {
            self.signed.extend_from_slice(part);
        }
        key.verify_sig(&self.signed, message.signature()).is_ok()
    }
}

impl Verifier for OneByOne {
    fn name(&self) -> &str {
        "cpu, one at a time"
    }

    fn verify(&mut self, messages: &[Checked], holds: &mut Vec<bool>) -> Result<(), Lost> {
        for message in messages {
            let verdict = self.holds(message);
            holds.push(verdict);
        }
        Ok(())
    }
}
