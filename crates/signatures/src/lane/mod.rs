//! Lanes: where equations are computed. All give the same answer to each message; they differ in how many they take at once.

mod eight;
mod one;

pub use eight::Eight;
pub use one::OneByOne;

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
