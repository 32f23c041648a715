//! Fuzzy extractor: from noisy PUF bits to a secret that is the same each time.
//!
//! Code-offset construction (Dodis, Ostrovsky, Reyzin, Smith: Fuzzy extractors, SIAM J. Comput. 38(1), 2008,
//! Section 4.2): enrolment draws a random message `R`, encodes it and publishes `helper = response xor
//! codeword`; the device decodes `reading xor helper` back to `R`. The response bits serve as mask only and
//! are never part of the secret, so the published flaw of using the same bits as key and mask cannot occur.
//! `R` goes into HKDF (LAP/1 1.1), which extracts from it; as a random message it is uniform, but knowing the
//! helper data its min-entropy is what [`crate::entropy`] says.
//!
//! Altered helper data fail closed: their digest is the HKDF salt, so even where decoding still succeeds, the
//! keys are others, and an attacker does not learn which bits were corrected.
//!
//! * Key mode (weak PUF): [`enrol`] and [`reproduce`] with [`HelperData`].
//! * Pool mode (strong PUF): [`enrol_pool`] and [`PoolHelper::reproduce`].

mod copies;
mod enrol;
mod format;
mod helper;
mod pool;
mod secret;
mod select;

use rand::CryptoRng;

pub use enrol::{Enrolled, KeyEnrolment, enrol, enrol_puf, reproduce, reproduce_puf};
pub use format::{FileError, FormatError, Problem};
pub use helper::HelperData;
pub(crate) use pool::read_reference;
pub use pool::{EnrolledPool, EnrolledRow, PoolEnrolment, PoolHelper, PoolRow, enrol_pool};
pub use secret::Secret;
pub use select::CellSelection;

use crate::{
    bits::Bits,
    blocks::BadBlocks,
    code::{CodeError, Profile},
    health::HealthError,
    puf::PufError,
};

/// Why a secret was not made or not rebuilt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtractorError {
    /// The PUF gave no reading.
    #[error(transparent)]
    Puf(#[from] PufError),
    /// A reading failed its health test.
    #[error("the reading is refused: {0}")]
    Health(#[from] HealthError),
    /// The error-correction profile is not valid.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// More errors than the profile corrects.
    #[error(
        "the reading has more errors than the helper data can correct; read again, and re-enrol if this persists"
    )]
    Uncorrectable,
    /// Too little min-entropy is left (LAP/1 1.1).
    #[error(
        "the secret keeps {residual_bits:.1} bits of min-entropy, {needed_bits:.0} are needed ({per_bit:.3} per response bit, \
         limited by {limited_by}); use a profile with more blocks, or a PUF with less bias"
    )]
    TooLittleEntropy {
        /// Min-entropy of the secret given the helper data.
        residual_bits: f64,
        /// What this enrollment demands.
        needed_bits: f64,
        /// Min-entropy per response bit.
        per_bit: f64,
        /// The estimator that gave it.
        limited_by: String,
    },
    /// Parts of the memory are not power-up state, or readouts are not of one chip there.
    #[error(
        "{0}; read memory that no program has written since power-up, or leave these addresses out (`--range`)"
    )]
    NotPowerUp(BadBlocks),
    /// A readout is there twice.
    #[error(
        "readouts {first} and {second} are the same, bit by bit: a copy, not another power-up; take new readouts"
    )]
    CopiedReadout {
        /// The number of the earlier one, from 1.
        first: usize,
        /// The number of the later one.
        second: usize,
    },
    /// Cells are there twice.
    #[error(
        "128 bits from bit {at} on are those from bit {earlier} on: the same memory twice (does the address range wrap?) \
         or a fill pattern; read each cell once"
    )]
    Copied {
        /// Where the earlier ones begin.
        earlier: usize,
        /// Where they come again.
        at: usize,
    },
    /// A strong PUF answers different challenges alike.
    #[error(
        "the responses to two challenges differ in {share:.3} of their bits, as two readings of one might; does the PUF \
         get the challenge?"
    )]
    ChallengeIgnored {
        /// The share of differing bits.
        share: f64,
    },
    /// Enrolment got no readouts, or readouts of different lengths.
    #[error(
        "enrolment needs readouts of one length, but readout {index} has {bits} bits and the first {expected}"
    )]
    UnevenReadouts {
        /// The readout that differs, from 0.
        index: usize,
        /// Its length.
        bits: usize,
        /// The length of the first one.
        expected: usize,
    },
    /// Fewer readouts than the enrolment needs.
    #[error("{given} readouts were given, but {needed} are needed to {purpose}; take more readouts")]
    TooFewReadouts {
        /// Readouts given.
        given: usize,
        /// Readouts needed.
        needed: usize,
        /// What they are needed for.
        purpose: &'static str,
    },
    /// Fewer usable cells than the profile takes.
    #[error(
        "{available} usable cells, but the profile takes {needed}; read more cells or choose a smaller profile"
    )]
    TooFewCells {
        /// Cells that could be used.
        available: usize,
        /// Cells the profile takes.
        needed: usize,
    },
    /// The reading has another length than the helper data say.
    #[error(
        "the reading has {bits} bits, the helper data were made for {expected}; this is another PUF or range"
    )]
    WrongReadingLength {
        /// Bits of the reading.
        bits: usize,
        /// Bits expected.
        expected: usize,
    },
    /// The helper data hold no such row.
    #[error(
        "row {idx} is not in the helper data, which hold rows {first} to {last}; fetch the newer helper file"
    )]
    UnknownRow {
        /// The row asked for.
        idx: u32,
        /// The first row there is.
        first: u32,
        /// The last row there is.
        last: u32,
    },
    /// The challenge is not the one that the row was enrolled with.
    #[error(
        "the challenge of row {idx} is not the enrolled one; the PUF is not evaluated on foreign challenges"
    )]
    ForeignChallenge {
        /// The row.
        idx: u32,
    },
    /// The parameters ask for no rows, or indices beyond 32 bits.
    #[error(
        "{rows} rows from index {first}; at least one row is needed and indices must stay below 4294967295"
    )]
    BadRows {
        /// The first index.
        first: u32,
        /// The number of rows.
        rows: u32,
    },
    /// A worker thread of a simulation ended unexpectedly.
    #[error("a worker thread ended before its work was done")]
    Interrupted,
}

/// Draws a secret for a response and gives it with its public offset.
pub(crate) fn code_offset<R: CryptoRng + ?Sized>(
    profile: Profile,
    response: &Bits,
    rng: &mut R,
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
