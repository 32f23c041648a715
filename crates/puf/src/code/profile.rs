//! The concatenated code: repetition inside, BCH outside, several blocks side by side.
//!
//! With `B` blocks of BCH length `n` and `r` copies there are `N = B n` code bits and `r N` PUF bits. PUF bit
//! `c N + i` is copy `c` of code bit `i`, so the copies of a bit are `N` apart. Code bit `b n + p` is bit `p`
//! of block `b`.

use std::fmt;

use zeroize::Zeroize;

use super::{
    bch::{BchCode, CodeError},
    design::Failure,
    word::Word,
};
use crate::bits::Bits;

/// The most copies of the repetition code.
pub const REPETITION_MAX: u32 = 15;
/// The most blocks.
pub const BLOCKS_MAX: u32 = 16;

/// The parameters of an error-correction profile are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The repetition is even or too large.
    #[error("invalid repetition {0}; use an odd number up to 15")]
    Repetition(u32),
    /// No blocks or too many.
    #[error("invalid number of blocks {0}; use 1 to 16")]
    Blocks(u32),
    /// The outer code does not exist.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// No valid profile has this identifier.
    #[error("unknown profile {0:#010x}; a newer version wrote the data, or they are damaged")]
    Unknown(u32),
}

/// An error-correction profile: the parameters of the concatenated code.
///
/// The identifier contains the parameters: `degree << 24 | errors << 16 | repetition << 8 | blocks`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Profile {
    degree: u32,
    errors: u32,
    repetition: u32,
    blocks: u32,
}

impl Profile {
    /// Pool mode: 7 × BCH(255, 187, 9), 1,785 response bits, a secret of 187 bits.
    ///
    /// The result of [`choose`](super::choose) for [`Design::POOL`](super::Design::POOL).
    pub const POOL: Self = Self {
        degree: 8,
        errors: 9,
        repetition: 7,
        blocks: 1,
    };

    /// Key mode: two blocks of 9 × BCH(255, 147, 14), 4,590 cells, a secret of 294 bits.
    ///
    /// The result of [`choose`](super::choose) for [`Design::KEY`](super::Design::KEY).
    pub const KEY: Self = Self {
        degree: 8,
        errors: 14,
        repetition: 9,
        blocks: 2,
    };

    /// A profile of `blocks` blocks of a BCH code over GF(2^degree) that corrects `errors` errors, each code
    /// bit repeated `repetition` times.
    ///
    /// # Errors
    /// [`ProfileError`] if a parameter is out of range.
    pub fn new(degree: u32, errors: u32, repetition: u32, blocks: u32) -> Result<Self, ProfileError> {
        if repetition.is_multiple_of(2) || repetition > REPETITION_MAX {
            return Err(ProfileError::Repetition(repetition));
        }
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(ProfileError::Blocks(blocks));
        }
        BchCode::shared(degree, errors as usize)?;
        Ok(Self {
            degree,
            errors,
            repetition,
            blocks,
        })
    }

    /// The profile with this identifier.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] if no valid profile has the identifier.
    pub fn from_id(id: u32) -> Result<Self, ProfileError> {
        let [degree, errors, repetition, blocks] = id.to_be_bytes().map(u32::from);
        Self::new(degree, errors, repetition, blocks).map_err(|_| ProfileError::Unknown(id))
    }

    /// The identifier, as helper data carry it.
    pub fn id(self) -> u32 {
        self.degree << 24 | self.errors << 16 | self.repetition << 8 | self.blocks
    }

    /// The outer code.
    ///
    /// # Errors
    /// Never for a profile from [`Profile::new`] or [`Profile::from_id`].
    pub fn code(self) -> Result<&'static BchCode, CodeError> {
        BchCode::shared(self.degree, self.errors as usize)
    }

    /// The copies of each code bit, `r`.
    pub fn repetition(self) -> usize {
        self.repetition as usize
    }

    /// The number of blocks, `B`.
    pub fn blocks(self) -> usize {
        self.blocks as usize
    }

    /// The length of one block in code bits, `n`.
    pub fn block_bits(self) -> usize {
        (1 << self.degree) - 1
    }

    /// The number of PUF bits of a response, `r B n`.
    pub fn response_bits(self) -> usize {
        self.repetition() * self.blocks() * self.block_bits()
    }

    /// The number of secret bits, `B k`.
    ///
    /// # Errors
    /// As [`Profile::code`].
    pub fn secret_bits(self) -> Result<usize, CodeError> {
        Ok(self.blocks() * self.code()?.k())
    }

    /// The probability that a rebuild fails when each PUF bit is wrong independently with `bit_error_rate`.
    pub fn failure(self, bit_error_rate: f64) -> Failure {
        Failure::of(self, bit_error_rate)
    }

    /// Encodes `B k` message bits to `r B n` bits, in constant time.
    pub(crate) fn encode(self, message: &Bits) -> Result<Bits, CodeError> {
        let code = self.code()?;
        let mut code_bits = vec![0_u64; (self.blocks() * code.n()).div_ceil(64)];
        for block in 0..self.blocks() {
            let mut part = word_of(message, block * code.k(), code.k());
            let mut codeword = code.encode(part);
            put_bits(&mut code_bits, block * code.n(), &codeword);
            part.zeroize();
            codeword.zeroize();
        }
        let mut encoded = vec![0_u64; self.response_bits().div_ceil(64)];
        for copy in 0..self.repetition() {
            put_bits(&mut encoded, copy * self.blocks() * code.n(), &code_bits);
        }
        code_bits.zeroize();
        Ok(Bits::from_words(encoded, self.response_bits()))
    }

    /// Decodes `r B n` noisy bits to the `B k` message bits in constant time; `None` if a block is not
    /// correctable.
    pub(crate) fn decode(self, noisy: &Bits) -> Result<Option<Bits>, CodeError> {
        let code = self.code()?;
        let voted = self.vote(noisy);
        let mut message = vec![0_u64; (self.blocks() * code.k()).div_ceil(64)];
        let mut all_valid = u64::MAX;
        for block in 0..self.blocks() {
            let (mut codeword, valid) = code.decode(word_of(&voted, block * code.n(), code.n()));
            all_valid &= valid;
            let mut part = code.message(codeword);
            put_bits(&mut message, block * code.k(), &part);
            codeword.zeroize();
            part.zeroize();
        }
        let message = Bits::from_words(message, self.blocks() * code.k());
        // A failed rebuild is visible on the wire anyway, so this branch reveals nothing new.
        Ok((all_valid == u64::MAX).then_some(message))
    }

    /// The majority of the copies of each code bit, 64 at a time by counters held as bit planes.
    fn vote(self, noisy: &Bits) -> Bits {
        let code_bits = self.blocks() * self.block_bits();
        // A counter that starts at 15 - (r - 1) / 2 reaches 16 exactly if the majority of the copies is one.
        let start = 15 - (self.repetition() - 1) / 2;
        let words = (0..code_bits.div_ceil(64)).map(|i| {
            let mut planes: [u64; 5] = std::array::from_fn(|b| 0_u64.wrapping_sub((start >> b & 1) as u64));
            for copy in 0..self.repetition() {
                let mut carry = noisy.word_at(copy * code_bits + 64 * i);
                for plane in &mut planes {
                    (*plane, carry) = (*plane ^ carry, *plane & carry);
                }
            }
            planes[4]
        });
        Bits::from_words(words.collect(), code_bits)
    }
}

/// The `len` bits from `offset`; `len` is at most 256.
fn word_of(bits: &Bits, offset: usize, len: usize) -> Word {
    std::array::from_fn(|i| {
        let bits_used = len.saturating_sub(64 * i).min(64);
        let mask = if bits_used == 64 {
            u64::MAX
        } else {
            (1 << bits_used) - 1
        };
        bits.word_at(offset + 64 * i) & mask
    })
}

/// Ors `source` into `target` from bit `offset` on.
fn put_bits(target: &mut [u64], offset: usize, source: &[u64]) {
    let (first, shift) = (offset / 64, offset % 64);
    for (i, &word) in source.iter().enumerate() {
        if let Some(low) = target.get_mut(first + i) {
            *low |= word << shift;
        }
        if let Some(high) = target.get_mut(first + i + 1) {
            *high |= word >> 1 >> (63 - shift);
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let k = self.code().map_or(0, BchCode::k);
        let Self {
            errors,
            repetition,
            blocks,
            ..
        } = self;
        write!(
            f,
            "{blocks} x {repetition} x BCH({}, {k}, {errors})",
            self.block_bits()
        )
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile({self})")
    }
}
