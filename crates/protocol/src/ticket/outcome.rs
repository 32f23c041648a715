//! The controller's decision about a ticket request.

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// The request was executed, or there was nothing to do.
    Done = 1,
    /// The number is not above the last number; nothing was changed.
    StaleNumber = 2,
    /// Epoch, mode or first row do not continue the stored values; nothing was changed.
    OutOfSequence = 3,
    /// Not allowed: a key of zeros, or more rows than the registry accepts; nothing was changed.
    Refused = 4,
}
