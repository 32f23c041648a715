//! The interface of all PUFs: a challenge in, noisy bits out.

use crate::bits::Bits;

/// A challenge to a PUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Challenge {
    /// A strong PUF (pool mode): the 8-byte seed of a row, which the device expands to as many challenges of its PUF
    /// as response bits are needed (LAP/1 1.1); see [`crate::challenge::ChallengeStream`].
    Pool([u8; 8]),
    /// A weak PUF (key mode): its power-up state from the first cell on.
    PowerUp,
}

/// A physical unclonable function: real hardware, stored readouts or a model.
///
/// A reading is noisy; two readings of one challenge differ in a few per cent of their bits. Enrollment and
/// the device role both use this trait, so the same code runs on every kind of PUF.
pub trait Puf: Send {
    /// Reads `bits` response bits. Each call is a new, noisy evaluation.
    ///
    /// # Errors
    /// [`PufError`] if this PUF cannot serve this type of challenge, has fewer than `bits` bits, or the hardware failed.
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError>;
}

impl<P: Puf + ?Sized> Puf for Box<P> {
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        (**self).read(challenge, bits)
    }
}

/// A reading failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PufError {
    /// A weak PUF received a pool challenge, or a strong PUF received a request for its power-up state.
    #[error("wrong challenge type: this PUF {has}; enroll the device in {enroll_in} mode")]
    WrongMode {
        /// Property of the PUF, as a verb phrase.
        has: &'static str,
        /// The mode for this PUF.
        enroll_in: &'static str,
    },
    /// The PUF has fewer bits than requested.
    #[error(
        "too few PUF bits: {requested} requested, {available} available; use a larger PUF or a smaller profile"
    )]
    TooFewBits {
        /// Bits requested.
        requested: usize,
        /// Bits available.
        available: usize,
    },
    /// A parameter of a model is out of range.
    #[error("invalid {name} {value}; allowed is {allowed}")]
    BadParameter {
        /// The parameter's name.
        name: &'static str,
        /// The value of the parameter.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The source behind the PUF (a file, a command, a device) failed.
    #[error("reading the PUF failed: {0}")]
    Source(String),
}
