//! Hash algorithms and checksums of v1model, with bit-identical results to BMv2.
//!
//! # Input
//! The input of an algorithm is a byte string. BMv2 concatenates the inputs of a calculation, most significant
//! bit first and without gaps: a field with its width in bits, a constant with the width in the program's JSON,
//! a header with all of its fields. Invalid headers and their fields are skipped. If the bits do not fill the
//! last byte, zero bits are appended **at the end**: a 9-bit field with value 1 becomes `00 80`. The payload of
//! the packet, if the calculation includes it, starts at the next whole byte. The input may be empty: every
//! algorithm defines a result for the empty string.
//!
//! # Result
//! Every result is a 64-bit number; narrower algorithms leave the high bits zero. The caller applies the width
//! of the target field and the base and modulus of `hash`.
//!
//! # Sources
//! Algorithms registered in BMv2 1.15 by `calculations.cpp`, `crc_map.cpp` and simple_switch.

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

/// Maximum number of inputs that `round_robin_consistent` stores. BMv2 stores all inputs, so a sender of
/// distinct packets exhausts BMv2's memory. Further inputs get a new number at each call.
const CONSISTENT_INPUTS_MAX: usize = 1 << 20;

/// Algorithm of a calculation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `crc16`: CRC-16/ARC.
    Crc16,
    /// `crc32`: CRC-32 of Ethernet (ISO-HDLC).
    Crc32,
    /// `crcCCITT`: CRC-16 of polynomial 0x1021 with initial remainder 0xffff, not reflected.
    CrcCcitt,
    /// `cksum16` and `csum16`: the Internet checksum (RFC 1071), complemented.
    Checksum16,
    /// `xor16`: XOR of big-endian 16-bit words; a single last byte is the high byte of a word.
    Xor16,
    /// `xor32`: XOR of big-endian 32-bit words; an incomplete last word is padded with zeros at the end.
    Xor32,
    /// `identity`: the first eight bytes (or fewer) as a big-endian number.
    Identity,
    /// `xxh64`, and simple_switch's `bmv2_hash`: 64-bit xxHash with seed 0.
    Xxh64,
    /// simple_switch's `hash_ex`: FNV-1a with signed bytes and a final mixing step.
    HashEx,
    /// `toeplitz`: 32-bit Toeplitz hash; the key is four zero bytes until [`Calculation::set_toeplitz_key`].
    Toeplitz,
    /// `round_robin`: 0, 1, 2.. in successive calls, independent of the input.
    RoundRobin,
    /// `round_robin_consistent`: numbers as `round_robin`, but the same input always yields the same number.
    RoundRobinConsistent,
    /// CRC with configurable parameters: `crc8_custom`, `crc16_custom`, `crc32_custom`, `crc64_custom` with their
    /// defaults, one of BMv2's named CRCs (`crc_16_dect`..), or `poly_0x1.._init_.._xout_.._not_rev`.
    CustomCrc(CrcParameters),
}

impl Algorithm {
    /// Algorithm with this BMv2 name; `None` if BMv2 rejects the name.
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

/// Error of setting the parameters of a calculation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CalculationError {
    /// The algorithm of the calculation does not have these parameters.
    #[error("cannot set {requested}: the algorithm of the calculation is {algorithm:?}")]
    WrongAlgorithm {
        /// Parameter to set.
        requested: &'static str,
        /// Algorithm of the calculation.
        algorithm: Algorithm,
    },
    /// The width of the parameters differs from the width of the CRC.
    #[error(
        "cannot set CRC parameters: the CRC of the calculation has {expected_bits} bits, the parameters have \
         {actual_bits}; use the width of the program"
    )]
    WrongCrcWidth {
        /// Width of the calculation, bits.
        expected_bits: u32,
        /// Width of the parameters, bits.
        actual_bits: u32,
    },
    /// The Toeplitz key does not consist of whole 32-bit words.
    #[error("invalid Toeplitz key length of {bytes} bytes: the length must be a positive multiple of 4")]
    ToeplitzKeyLength {
        /// Length of the key.
        bytes: usize,
    },
}

/// Algorithm with its tables, parameters and counters: one for each calculation of a program, as in BMv2.
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
    RoundRobinConsistent(Mutex<InputNumbers>),
}

#[derive(Debug, Default)]
struct InputNumbers {
    next: u64,
    inputs: HashMap<Vec<u8>, u64>,
}

impl InputNumbers {
    fn number_of(&mut self, input: &[u8]) -> u64 {
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
    /// Creates a calculation with default parameters and zero counters.
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

    /// Algorithm, with the current parameters of a custom CRC.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Hashes a byte string that was assembled as described in the module documentation.
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
            // A panic cannot leave the map inconsistent: an insertion is one call.
            Engine::RoundRobinConsistent(numbers) => numbers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .number_of(input),
        }
    }

    /// Sets the parameters of a custom CRC; the width must not change (`set_crc16_parameters` in BMv2's CLI).
    ///
    /// # Errors
    /// [`CalculationError::WrongAlgorithm`], [`CalculationError::WrongCrcWidth`].
    pub fn set_crc(&mut self, parameters: CrcParameters) -> Result<(), CalculationError> {
        let Algorithm::CustomCrc(current) = self.algorithm else {
            return Err(CalculationError::WrongAlgorithm {
                requested: "CRC parameters",
                algorithm: self.algorithm,
            });
        };
        if current.width != parameters.width {
            return Err(CalculationError::WrongCrcWidth {
                expected_bits: current.width.bits(),
                actual_bits: parameters.width.bits(),
            });
        }
        *self = Self::new(Algorithm::CustomCrc(parameters));
        Ok(())
    }

    /// Sets the key of a Toeplitz hash.
    ///
    /// # Errors
    /// [`CalculationError::WrongAlgorithm`], [`CalculationError::ToeplitzKeyLength`].
    pub fn set_toeplitz_key(&mut self, key: &[u8]) -> Result<(), CalculationError> {
        let Engine::Toeplitz(words) = &mut self.engine else {
            return Err(CalculationError::WrongAlgorithm {
                requested: "Toeplitz key",
                algorithm: self.algorithm,
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

/// Internet checksum (RFC 1071) as stored in a header: the complement of the one's complement sum of the
/// big-endian 16-bit words; a single last byte is the high byte of a word. Empty and all-zero input give 0xffff.
pub fn checksum16(input: &[u8]) -> u16 {
    let mut sum = InternetSum::default();
    sum.add(input);
    sum.finish()
}

/// Incremental Internet checksum.
///
/// The sum uses little-endian words wider than 16 bits (RFC 1071, section 2 B and C); only the result is byte-swapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct InternetSum(u64);

impl InternetSum {
    /// Adds bytes. All parts except the last must have an even length.
    ///
    /// The 64-bit sum of 32-bit words needs no end-around carry: it has room for 2^32 words, far more than a packet.
    #[inline]
    pub fn add(&mut self, input: &[u8]) {
        let (words, mut rest) = input.as_chunks::<4>();
        for word in words {
            self.0 += u64::from(u32::from_le_bytes(*word));
        }
        if let Some((word, last)) = rest.split_first_chunk() {
            self.0 += u64::from(u16::from_le_bytes(*word));
            rest = last;
        }
        if let [last] = rest {
            self.0 += u64::from(*last);
        }
    }

    /// Checksum of all added bytes.
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
        (0..BYTES).fold(0, |number, index| {
            number << 8 | u64::from(bytes.get(index).copied().unwrap_or_default())
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
        // BMv2 uses `char`, which is signed on its platforms, so the sign is extended.
        (hash ^ i32::from(byte.cast_signed()).cast_unsigned()).wrapping_mul(0x0100_0193)
    });
    hash = hash.wrapping_add(hash << 13);
    hash ^= hash >> 7;
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 17;
    hash.wrapping_add(hash << 5)
}

/// Computes the Toeplitz hash. If the input is longer than the key, the window wraps around to the start of the key, as in
/// BMv2.
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

/// XORs the 32 bits of `window` that start at each set bit of `word`, counted from the most significant bit.
fn window_sum(mut word: u32, window: u64) -> u32 {
    let mut sum = 0;
    while word != 0 {
        sum ^= window << (31 - word.trailing_zeros());
        word &= word - 1;
    }
    (sum >> 32) as u32
}
