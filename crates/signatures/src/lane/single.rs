//! One message at a time: aws-lc for the plain schemes, this project's arithmetic for RA. This lane is the reference
//! for all other lanes.

use super::{Verifier, VerifierLost};
use crate::key::Material;
use crate::receive::Checked;

/// A lane that verifies one message at a time.
#[derive(Debug, Default)]
pub struct SingleLane {
    /// Buffer for the signed bytes in one piece.
    signed: Vec<u8>,
}

impl SingleLane {
    /// Whether the message's signature is valid.
    #[must_use]
    pub fn verify_one(&mut self, message: &Checked) -> bool {
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

impl Verifier for SingleLane {
    fn name(&self) -> &str {
        "cpu, one at a time"
    }

    fn verify(&mut self, messages: &[Checked], results: &mut Vec<bool>) -> Result<(), VerifierLost> {
        for message in messages {
            let is_valid = self.verify_one(message);
            results.push(is_valid);
        }
        Ok(())
    }
}
