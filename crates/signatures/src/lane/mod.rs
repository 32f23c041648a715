//! Lanes: where equations are computed. All give the same answer to each message; they differ in how many they take at once.

mod eight;
mod graphics;
mod one;

pub use eight::Eight;
pub use graphics::{Graphics, KeyMemory, MaskDelivery, Opener, Places};
pub use one::OneByOne;

use sha2::{Digest as _, Sha256};

use crate::receive::Checked;

/// Computes whether messages are their signers'.
pub trait Verifier: Send {
    /// What it is called in reports.
    fn name(&self) -> &str;

    /// Whether each message's equation holds, in their order, added to `holds`.
    ///
    /// # Errors
    /// What computed is gone; nothing was added.
    fn verify(&mut self, messages: &[Checked], holds: &mut Vec<bool>) -> Result<(), Lost>;
}

/// A lane that computes no more: a GPU that fell off its bus, as an example. Its work is to be done by another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{lane}: {reason}")]
pub struct Lost {
    /// Which lane.
    pub lane: String,
    /// What its library says.
    pub reason: String,
}

/// What a plain scheme signs.
fn digest(message: &Checked) -> [u8; 32] {
    let [prefix, signed] = message.signed_bytes();
    Sha256::new()
        .chain_update(prefix)
        .chain_update(signed)
        .finalize()
        .into()
}

/// A signature's two numbers of 32 bytes.
fn halves(message: &Checked) -> Option<(&[u8; 32], &[u8; 32])> {
    let (numbers, []) = message.signature().as_chunks::<32>() else {
        return None;
    };
    let [first, second] = numbers else {
        return None;
    };
    Some((first, second))
}
