//! What every PUF offers: a challenge in, noisy bits out.

use crate::bits::Bits;

/// What a PUF is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Challenge {
    /// A strong PUF (pool mode): the 8-byte seed of a row, which the device expands to as many challenges of
    /// its PUF as response bits are wanted (LAP/1 1.1); see [`crate::challenge::ChallengeStream`].
    Pool([u8; 8]),
    /// A weak PUF (key mode): its power-up state from the first cell on.
    Whole,
}

/// A physical unclonable function: real hardware, stored readouts or a model.
///
/// A reading is noisy; two readings of one challenge differ in a few per cent of their bits. Enrolment and
/// the device role both use this trait, so the same code runs on every kind of PUF.
pub trait Puf: Send {
    /// Reads `bits` response bits. Each call is a fresh, noisy evaluation.
    ///
    /// # Errors
    /// [`PufError`] if this PUF cannot serve such a challenge, has fewer bits, or the hardware failed.
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError>;
}

impl<P: Puf + ?Sized> Puf for Box<P> {
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        (**self).read(challenge, bits)
    }
}

/// Why a reading failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PufError {
    /// A weak PUF got a pool challenge, or a strong PUF was asked for all its cells.
    #[error("this PUF {has}; enrol the device in {enrol_in} mode")]
    WrongMode {
        /// What the PUF is.
        has: &'static str,
        /// The mode that fits.
        enrol_in: &'static str,
    },
    /// More bits were asked for than the PUF has.
    #[error("{wanted} bits were asked of a PUF that has {available}; use a larger PUF or a smaller profile")]
    TooFewBits {
        /// Bits asked for.
        wanted: usize,
        /// Bits there are.
        available: usize,
    },
    /// A parameter of a model is out of range.
    #[error("{name} is {value}, but must be {allowed}")]
    BadParameter {
        /// The parameter's name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The source behind the PUF (a file, a command, a device) failed.
    #[error("the PUF could not be read: {0}")]
    Source(String),
}
