//! Fuzzy extractor: from noisy PUF bits to a secret that is the same each time.
//!
//! Code-offset construction (Dodis, Ostrovsky, Reyzin, Smith: Fuzzy extractors, SIAM J. Comput. 38(1), 2008, Section
//! 4.2): enrollment draws a random message `R`, encodes it and publishes `helper = response xor codeword`; the device
//! decodes `reading xor helper` back to `R`. The response bits serve only as a mask and are never part of the secret,
//! so the published flaw of using the same bits as key and mask cannot occur. HKDF (LAP/1 1.1) extracts from `R`. `R`
//! is drawn at random, so it is uniform; [`crate::entropy`] computes the min-entropy of `R` given the helper data.
//!
//! Altered helper data fail closed. The digest of the helper data is the HKDF salt, so even if decoding succeeds, the
//! keys differ, and an attacker does not learn which bits were corrected.
//!
//! * Key mode (weak PUF): [`enroll()`] and [`reproduce`] with [`HelperData`].
//! * Pool mode (strong PUF): [`enroll_pool`] and [`PoolHelper::reproduce`].

mod copies;
mod enroll;
mod format;
mod helper;
mod pool;
mod secret;
mod select;

use rand::CryptoRng;

pub use enroll::{Enrolled, KeyEnrollment, enroll, enroll_puf, reproduce, reproduce_puf};
pub use format::{FileError, FormatError, Problem};
pub use helper::HelperData;
pub(crate) use pool::read_reference;
pub use pool::{EnrolledPool, EnrolledRow, PoolEnrollment, PoolHelper, PoolRow, enroll_pool};
pub use secret::Secret;
pub use select::CellSelection;

use crate::{
    bits::Bits,
    blocks::BadBlocks,
    code::{CodeError, Profile},
    health::HealthError,
    puf::PufError,
};

/// Creating or rebuilding a secret failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtractorError {
    /// The PUF gave no reading.
    #[error(transparent)]
    Puf(#[from] PufError),
    /// A reading failed its health test.
    #[error("health test failed: {0}")]
    Health(#[from] HealthError),
    /// The error-correction profile is not valid.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// More errors than the profile corrects.
    #[error(
        "the reading has more errors than the helper data can correct; read the PUF again, and enroll the device again if the error persists"
    )]
    Uncorrectable,
    /// Too little min-entropy is left (LAP/1 1.1).
    #[error(
        "too little entropy: the secret has {residual_bits:.1} bits of min-entropy, {needed_bits:.0} are required ({per_bit:.3} per response bit, \
         limited by {limited_by}); use a profile with more blocks, or a PUF with less bias"
    )]
    TooLittleEntropy {
        /// Min-entropy of the secret given the helper data.
        residual_bits: f64,
        /// The requirement of this enrollment.
        needed_bits: f64,
        /// Min-entropy per response bit.
        per_bit: f64,
        /// The estimator with the lowest estimate.
        limited_by: String,
    },
    /// Parts of the memory are not power-up state, or the readouts belong to different chips there.
    #[error(
        "{0}; read memory that no program has written since power-up, or exclude these addresses with `--range`"
    )]
    NotPowerUp(BadBlocks),
    /// Two readouts are identical.
    #[error(
        "readouts {first} and {second} are identical: one is a copy, not a new power-up; take new readouts"
    )]
    CopiedReadout {
        /// Position of the earlier readout, counted from 1.
        first: usize,
        /// Position of the later readout, counted from 1.
        second: usize,
    },
    /// Cells occur twice.
    #[error(
        "the 128 bits at bit {copy} equal those at bit {first}: the readout contains the same memory twice (a wrapping \
         address range) or a fill pattern; read each cell once"
    )]
    Copied {
        /// Bit position of the first occurrence.
        first: usize,
        /// Bit position of the copy.
        copy: usize,
    },
    /// A strong PUF gives the same response to different challenges.
    #[error(
        "the responses to two challenges differ only in {share:.3} of their bits, like two readings of one challenge; check that the PUF \
         receives the challenge"
    )]
    ChallengeIgnored {
        /// The share of differing bits.
        share: f64,
    },
    /// Enrollment got readouts of different lengths.
    #[error(
        "enrollment needs readouts of one length, but readout {index} has {bits} bits and the first {expected}"
    )]
    UnevenReadouts {
        /// Position of the readout that differs, counted from 0.
        index: usize,
        /// Bits of that readout.
        bits: usize,
        /// Bits of the first readout.
        expected: usize,
    },
    /// Fewer readouts than the enrollment needs.
    #[error("too few readouts: {given} given, {needed} needed to {purpose}; take more readouts")]
    TooFewReadouts {
        /// Readouts given.
        given: usize,
        /// Readouts needed.
        needed: usize,
        /// Why the readouts are needed.
        purpose: &'static str,
    },
    /// Fewer usable cells than the profile needs.
    #[error(
        "too few usable cells: {available} available, {needed} needed by the profile; read more cells or choose a smaller profile"
    )]
    TooFewCells {
        /// Cells that could be used.
        available: usize,
        /// Cells that the profile needs.
        needed: usize,
    },
    /// The reading does not have the length for which the helper data were made.
    #[error("the reading has {bits} bits, but the helper data need {expected}; check the PUF and the range")]
    WrongReadingLength {
        /// Bits of the reading.
        bits: usize,
        /// Bits expected.
        expected: usize,
    },
    /// The helper data have no such row.
    #[error(
        "row {idx} is not in the helper data, which have rows {first} to {last}; fetch a newer helper file"
    )]
    UnknownRow {
        /// The requested row.
        idx: u32,
        /// The first available row.
        first: u32,
        /// The last available row.
        last: u32,
    },
    /// The challenge differs from the challenge of the enrolled row.
    #[error(
        "the challenge of row {idx} differs from the enrolled one; the PUF is not evaluated on other challenges"
    )]
    ForeignChallenge {
        /// The row.
        idx: u32,
    },
    /// The parameters contain no rows, or an index above 2^32 - 2.
    #[error(
        "invalid row range: {rows} rows from index {first}; at least one row and indices below 4294967295 are required"
    )]
    BadRows {
        /// The first index.
        first: u32,
        /// The number of rows.
        rows: u32,
    },
    /// A worker thread of a simulation ended early.
    #[error("a worker thread ended before its work was complete")]
    Interrupted,
}

/// Draws a random secret; returns it and the public code offset between the secret's codeword and the response.
pub(crate) fn code_offset(
    profile: Profile,
    response: &Bits,
    rng: &mut dyn CryptoRng,
) -> Result<(Secret, Bits), ExtractorError> {
    let bits = profile.secret_bits()?;
    let message = Bits::from_words((0..bits.div_ceil(64)).map(|_| rng.next_u64()).collect(), bits);
    let offset = profile.encode(&message)?.xor(response);
    Ok((Secret::from_bits(&message), offset))
}

/// The secret behind a reading, if its errors can be corrected.
pub(crate) fn rebuild(profile: Profile, reading: &Bits, offset: &Bits) -> Result<Secret, ExtractorError> {
    let message = profile.decode(&offset.xor(reading))?;
    message
        .as_ref()
        .map(Secret::from_bits)
        .ok_or(ExtractorError::Uncorrectable)
}
