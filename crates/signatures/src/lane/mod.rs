//! Lanes: implementations that verify signatures. All lanes return the same result for each message; they differ in
//! batch size.

mod batch;
mod gpu;
mod single;

pub use batch::BatchLane;
pub use gpu::{GpuLane, KeyMemory, KeyPlacement, MaskDelivery, Opener};
pub use single::SingleLane;

use sha2::{Digest as _, Sha256};

use crate::receive::Checked;

/// Verifies the signatures of messages.
pub trait Verifier: Send {
    /// Name of the lane in reports.
    fn name(&self) -> &str;

    /// Appends to `results` whether each message's signature is valid, in order.
    ///
    /// # Errors
    /// The device is lost; nothing was appended.
    fn verify(&mut self, messages: &[Checked], results: &mut Vec<bool>) -> Result<(), VerifierLost>;
}

/// A lane that has stopped computing, for example a failed GPU. Another lane must do the work of this lane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{lane}: {reason}")]
pub struct VerifierLost {
    /// Name of the lane.
    pub lane: String,
    /// Why the lane is lost.
    pub reason: String,
}

/// The digest that a plain scheme signs.
fn digest(message: &Checked) -> [u8; 32] {
    let [prefix, signed] = message.signed_bytes();
    Sha256::new()
        .chain_update(prefix)
        .chain_update(signed)
        .finalize()
        .into()
}

/// The two numbers of 32 bytes of a signature.
fn signature_numbers(message: &Checked) -> Option<(&[u8; 32], &[u8; 32])> {
    let (numbers, []) = message.signature().as_chunks::<32>() else {
        return None;
    };
    let [first, second] = numbers else {
        return None;
    };
    Some((first, second))
}
