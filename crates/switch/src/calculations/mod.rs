//! Hash algorithms and checksums of v1model, bit for bit as BMv2 computes them.
//!
//! # What is hashed
//! An algorithm takes a byte string. BMv2 makes it of a calculation's inputs one after another, most
//! significant bit first and with no gap between them: a field takes its width in bits, a constant the width
//! that the program's JSON gives it, a header all of its fields. Fields of headers that are not valid, and such
//! headers, are left out. If the bits do not fill the last byte, zero bits follow **at the end**; so a 9-bit
//! field that holds 1 becomes `00 80`. The packet's payload, where the calculation asks for it, follows at the
//! next whole byte. Nothing at all to hash is the empty string, for which every algorithm has a value too.
//!
//! # What comes out
//! Every result is a 64-bit number; narrower algorithms leave the high bits zero. What a program does with it
//! (a field's width, base and modulus of `hash`) is not this module's business.
//!
//! # Sources
//! The algorithms registered in BMv2 1.15 by `calculations.cpp`, `crc_map.cpp` and simple_switch.

mod crc;
mod crc_names;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

pub use crc::{Crc, CrcParameters, CrcWidth};

static CRC16: Crc = Crc::new(CRC16_PARAMETERS);
static CRC32: Crc = Crc::new(CRC32_PARAMETERS);
static CRC_CCITT: Crc = Crc::new(CrcParameters::new(CrcWidth::W16, 0x1021, 0xffff, 0, false));

const CRC8_PARAMETERS: CrcParameters = CrcParameters::new(CrcWidth::W8, 0x07, 0, 0, false);
const CRC16_PARAMETERS: CrcParameters = CrcParameters::new(CrcWidth::W16, 0x8005, 0, 0, true);
const CRC32_PARAMETERS: CrcParameters =
    CrcParameters::new(CrcWidth::W32, 0x04c1_1db7, 0xffff_ffff, 0xffff_ffff, true);
const CRC64_PARAMETERS: CrcParameters = CrcParameters::new(CrcWidth::W64, 0x1b, 0, 0, true);

/// Inputs that `round_robin_consistent` remembers; BMv2 remembers all, so that a sender of ever new packets
/// fills its memory. Inputs beyond these get numbers of their own each time.
const CONSISTENT_INPUTS_MAX: usize = 1 << 20;

/// Which algorithm a program names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `crc16`: CRC-16/ARC.
    Crc16,
    /// `crc32`: CRC-32 of Ethernet (ISO-HDLC).
    Crc32,
    /// `crcCCITT`: CRC-16 of polynomial 0x1021 from 0xffff, not reflected.
    CrcCcitt,
    /// `cksum16` and `csum16`: the Internet checksum (RFC 1071), complemented.
    Checksum16,
    /// `xor16`: 16-bit words, big-endian, added without carry; a lone last byte is the high one.
    Xor16,
    /// `xor32`: the same of 32-bit words.
    Xor32,
    /// `identity`: the first eight bytes as a big-endian number; fewer bytes are a smaller number.
    Identity,
    /// `xxh64`, and simple_switch's `bmv2_hash`: xxHash of 64 bits with seed 0.
    Xxh64,
    /// simple_switch's `hash_ex`: FNV-1a whose bytes are signed, with a final mixing.
    HashEx,
    /// `toeplitz`: of 32 bits; the key is four zero bytes until [`Calculation::set_toeplitz_key`].
    Toeplitz,
    /// `round_robin`: 0, 1, 2.. at each call, whatever the input.
    RoundRobin,
    /// `round_robin_consistent`: the same, but an input keeps the number that it was given first.
    RoundRobinConsistent,
    /// A CRC with parameters of its own: `crc8_custom`, `crc16_custom`, `crc32_custom`, `crc64_custom` with
    /// their defaults, one of BMv2's named CRCs (`crc_16_dect`..), or `poly_0x1.._init_.._xout_.._not_rev`.
    CustomCrc(CrcParameters),
}

impl Algorithm {
    /// The algorithm that BMv2 runs under this name; `None` if it has none and refuses the program.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "crc16" => Self::Crc16,
            "crc32" => Self::Crc32,
            "crcCCITT" => Self::CrcCcitt,
            "cksum16" | "csum16" => Self::Checksum16,
            "xor16" => Self::Xor16,
            "xor32" => Self::Xor32,
            "identity" => Self::Identity,
            "xxh64" | "bmv2_hash" => Self::Xxh64,
            "hash_ex" => Self::HashEx,
            "toeplitz" => Self::Toeplitz,
            "round_robin" => Self::RoundRobin,
            "round_robin_consistent" => Self::RoundRobinConsistent,
            "crc8_custom" => Self::CustomCrc(CRC8_PARAMETERS),
            "crc16_custom" => Self::CustomCrc(CRC16_PARAMETERS),
            "crc32_custom" => Self::CustomCrc(CRC32_PARAMETERS),
            "crc64_custom" => Self::CustomCrc(CRC64_PARAMETERS),
            _ => Self::CustomCrc(crc_names::by_name(name)?),
        })
    }
}

/// Why a calculation's parameters cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CalculationError {
    /// The program names another algorithm for this calculation.
    #[error("the calculation runs {runs:?}, which takes no {asked}; name one that does")]
    WrongAlgorithm {
        /// What was to be set.
        asked: &'static str,
        /// The calculation's algorithm.
        runs: Algorithm,
    },
    /// The CRC is of another width than the parameters.
    #[error(
        "the calculation's CRC is {width} bits wide and the parameters are for {given}; keep the width that \
         the program chose"
    )]
    WrongCrcWidth {
        /// Width of the calculation, bits.
        width: u32,
        /// Width of the parameters, bits.
        given: u32,
    },
    /// A Toeplitz key consists of whole 32-bit words.
    #[error("a Toeplitz key of {bytes} bytes; give a multiple of 4, at least 4")]
    ToeplitzKeyLength {
        /// Length that was given.
        bytes: usize,
    },
}

/// An algorithm with its tables, parameters and counters: one per calculation of a program, as in BMv2.
#[derive(Debug)]
pub struct Calculation {
    algorithm: Algorithm,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    FixedCrc(&'static Crc),
    CustomCrc(Box<Crc>),
    Checksum16,
    Xor16,
    Xor32,
    Identity,
    Xxh64,
    HashEx,
    Toeplitz(Vec<u32>),
    RoundRobin(AtomicU64),
    RoundRobinConsistent(Mutex<Numbered>),
}

#[derive(Debug, Default)]
struct Numbered {
    next: u64,
    inputs: HashMap<Vec<u8>, u64>,
}

impl Numbered {
    fn number(&mut self, input: &[u8]) -> u64 {
        if let Some(&number) = self.inputs.get(input) {
            return number;
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        if self.inputs.len() < CONSISTENT_INPUTS_MAX {
            self.inputs.insert(input.to_vec(), number);
        }
        number
    }
}

impl Calculation {
    /// A calculation with default parameters and counters at zero.
    pub fn new(algorithm: Algorithm) -> Self {
        let engine = match algorithm {
            Algorithm::Crc16 => Engine::FixedCrc(&CRC16),
            Algorithm::Crc32 => Engine::FixedCrc(&CRC32),
            Algorithm::CrcCcitt => Engine::FixedCrc(&CRC_CCITT),
            Algorithm::CustomCrc(parameters) => Engine::CustomCrc(Box::new(Crc::new(parameters))),
            Algorithm::Checksum16 => Engine::Checksum16,
            Algorithm::Xor16 => Engine::Xor16,
            Algorithm::Xor32 => Engine::Xor32,
            Algorithm::Identity => Engine::Identity,
            Algorithm::Xxh64 => Engine::Xxh64,
            Algorithm::HashEx => Engine::HashEx,
            Algorithm::Toeplitz => Engine::Toeplitz(vec![0]),
            Algorithm::RoundRobin => Engine::RoundRobin(AtomicU64::new(0)),
            Algorithm::RoundRobinConsistent => Engine::RoundRobinConsistent(Mutex::default()),
        };
        Self { algorithm, engine }
    }

    /// The algorithm, with the parameters that a custom CRC has now.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Hashes a byte string, assembled as the module's text says.
    pub fn compute(&self, input: &[u8]) -> u64 {
        match &self.engine {
            Engine::FixedCrc(crc) => crc.compute(input),
            Engine::CustomCrc(crc) => crc.compute(input),
            Engine::Checksum16 => u64::from(checksum16(input)),
            Engine::Xor16 => xor::<2>(input),
            Engine::Xor32 => xor::<4>(input),
            Engine::Identity => identity(input),
            Engine::Xxh64 => twox_hash::XxHash64::oneshot(0, input),
            Engine::HashEx => u64::from(hash_ex(input)),
            Engine::Toeplitz(key) => u64::from(toeplitz(key, input)),
            Engine::RoundRobin(next) => next.fetch_add(1, Ordering::Relaxed),
            // What a panicking thread may have left is still a table of numbers given out.
            Engine::RoundRobinConsistent(numbered) => numbered
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .number(input),
        }
    }

    /// Gives a custom CRC other parameters of the same width (`set_crc16_parameters` of BMv2's CLI).
    ///
    /// # Errors
    /// [`CalculationError::WrongAlgorithm`], [`CalculationError::WrongCrcWidth`].
    pub fn set_crc(&mut self, parameters: CrcParameters) -> Result<(), CalculationError> {
        let Algorithm::CustomCrc(now) = self.algorithm else {
            return Err(CalculationError::WrongAlgorithm {
                asked: "CRC parameters",
                runs: self.algorithm,
            });
        };
        if now.width != parameters.width {
            return Err(CalculationError::WrongCrcWidth {
                width: now.width.bits(),
                given: parameters.width.bits(),
            });
        }
        *self = Self::new(Algorithm::CustomCrc(parameters));
        Ok(())
    }

    /// Gives a Toeplitz hash its key.
    ///
    /// # Errors
    /// [`CalculationError::WrongAlgorithm`], [`CalculationError::ToeplitzKeyLength`].
    pub fn set_toeplitz_key(&mut self, key: &[u8]) -> Result<(), CalculationError> {
        let Engine::Toeplitz(words) = &mut self.engine else {
            return Err(CalculationError::WrongAlgorithm {
                asked: "Toeplitz key",
                runs: self.algorithm,
            });
        };
        match key.as_chunks::<4>() {
            ([], _) | (_, [_, ..]) => Err(CalculationError::ToeplitzKeyLength { bytes: key.len() }),
            (chunks, []) => {
                *words = chunks.iter().map(|word| u32::from_be_bytes(*word)).collect();
                Ok(())
            }
        }
    }
}

/// The Internet checksum (RFC 1071), as it is put into a header: the complement of the one's complement sum of
/// the big-endian 16-bit words; a lone last byte is a word's high byte. Of nothing, and of zeros, 0xffff.
pub fn checksum16(input: &[u8]) -> u16 {
    let mut sum = InternetSum::default();
    sum.add(input);
    sum.finish()
}

/// The Internet checksum, part by part.
///
/// The sum may be taken in the machine's byte order and in words as wide as wanted (RFC 1071, section 2 B and C); only the
/// result is turned round.
#[derive(Clone, Copy, Debug, Default)]
pub struct InternetSum(u64);

impl InternetSum {
    /// Adds bytes. All parts but the last must have an even number of them.
    ///
    /// Words of 32 bits need no carry taken round: 2^32 of them fit, far more than a packet has.
    #[inline]
    pub fn add(&mut self, input: &[u8]) {
        let (words, mut rest) = input.as_chunks::<4>();
        for word in words {
            self.0 += u64::from(u32::from_le_bytes(*word));
        }
        if let Some((two, behind)) = rest.split_first_chunk() {
            self.0 += u64::from(u16::from_le_bytes(*two));
            rest = behind;
        }
        if let [last] = rest {
            self.0 += u64::from(*last);
        }
    }

    /// The checksum of all that was added.
    #[inline]
    pub fn finish(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let [low, high, ..] = sum.to_le_bytes();
        !u16::from_be_bytes([low, high])
    }
}

fn xor<const BYTES: usize>(input: &[u8]) -> u64 {
    let number = |bytes: &[u8]| {
        (0..BYTES).fold(0, |number, place| {
            number << 8 | u64::from(bytes.get(place).copied().unwrap_or_default())
        })
    };
    input.chunks(BYTES).fold(0, |sum, word| sum ^ number(word))
}

fn identity(input: &[u8]) -> u64 {
    input
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn hash_ex(input: &[u8]) -> u32 {
    let mut hash = input.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        // BMv2's bytes are signed where it runs, and widened with their sign.
        (hash ^ i32::from(byte.cast_signed()).cast_unsigned()).wrapping_mul(0x0100_0193)
    });
    hash = hash.wrapping_add(hash << 13);
    hash ^= hash >> 7;
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 17;
    hash.wrapping_add(hash << 5)
}

/// The key is used again from its start when the input is longer; BMv2 lets the window run round its end.
fn toeplitz(key: &[u32], input: &[u8]) -> u32 {
    let left = key.iter().cycle();
    let right = key.iter().cycle().skip(1);
    input
        .chunks(4)
        .zip(left.zip(right))
        .fold(0, |sum, (chunk, (left, right))| {
            let mut word = [0; 4];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            let window = u64::from(*left) << 32 | u64::from(*right);
            sum ^ window_sum(u32::from_be_bytes(word), window)
        })
}

/// Adds up the 32 bits of `window` that start at each bit set in `word`, counted from the most significant.
fn window_sum(mut word: u32, window: u64) -> u32 {
    let mut sum = 0;
    while word != 0 {
        sum ^= window << (31 - word.trailing_zeros());
        word &= word - 1;
    }
    (sum >> 32) as u32
}
