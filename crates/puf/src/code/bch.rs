//! Narrow-sense primitive binary BCH codes of length 127 and 255.
//!
//! The codeword polynomial's coefficient of `x^p` is bit `p`. Encoding is systematic: bits `n-k … n-1` are the
//! message, and bits `0 … n-k-1` are the remainder of these message terms modulo the generator polynomial.

use std::sync::OnceLock;

use super::{decoder::DecoderTables, field::Field, word::Word};
use crate::bits::Bits;

/// The most errors a supported code corrects.
pub const ERRORS_MAX: usize = 31;

/// Error: the requested BCH code does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no BCH code over GF(2^{degree}) corrects {errors} errors; use degree 7 or 8 and at most 31 errors")]
pub struct CodeError {
    /// m of the field GF(2^m).
    pub degree: u32,
    /// The number of errors to correct.
    pub errors: usize,
}

/// A BCH code with its encoder and decoder tables (11 to 82 KiB, built once).
#[derive(Debug)]
pub struct BchCode {
    n: usize,
    k: usize,
    t: usize,
    generator: Word,
    /// For each message bit, the parity bits it contributes.
    parities: Vec<Word>,
    decoder: DecoderTables,
}

impl BchCode {
    /// The code of length `2^degree - 1` with designed distance `2 t + 1`.
    ///
    /// # Errors
    /// [`CodeError`] if there is no such code, or if the code has no message bits.
    pub fn new(degree: u32, t: usize) -> Result<Self, CodeError> {
        let error = CodeError { degree, errors: t };
        if !(1..=ERRORS_MAX).contains(&t) {
            return Err(error);
        }
        let field = Field::new(degree).ok_or(error)?;
        let n = field.order();
        let (generator, redundancy) = generator_polynomial(&field, t);
        let k = n.checked_sub(redundancy).filter(|&k| k > 0).ok_or(error)?;
        let parities = parity_rows(generator, redundancy, k);
        Ok(Self {
            n,
            k,
            t,
            generator,
            parities,
            decoder: DecoderTables::new(&field, t),
        })
    }

    /// The shared instance of a code; each is built at most once per process.
    ///
    /// # Errors
    /// As [`BchCode::new`].
    pub fn shared(degree: u32, t: usize) -> Result<&'static Self, CodeError> {
        type Slot = OnceLock<Result<BchCode, CodeError>>;
        static SLOTS: [[Slot; ERRORS_MAX + 1]; 2] = [const { [const { Slot::new() }; ERRORS_MAX + 1] }; 2];
        let row = match degree {
            7 => SLOTS.first(),
            8 => SLOTS.last(),
            _ => None,
        };
        let slot = row
            .and_then(|row| row.get(t))
            .ok_or(CodeError { degree, errors: t })?;
        slot.get_or_init(|| Self::new(degree, t))
            .as_ref()
            .map_err(|error| *error)
    }

    /// The code length in bits.
    pub fn n(&self) -> usize {
        self.n
    }

    /// The message length in bits.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The number of errors that are always corrected.
    pub fn t(&self) -> usize {
        self.t
    }

    /// The coefficients of the generator polynomial, the constant term first, `n - k + 1` of them.
    pub fn generator(&self) -> Bits {
        Bits::from_words(self.generator.to_vec(), self.n - self.k + 1)
    }

    /// The codeword of a message: bits `0 … k-1` of `message`, whose other bits are zero.
    ///
    /// Every row of the parity table is read and masked, so time and addresses do not depend on the message.
    pub(super) fn encode(&self, message: Word) -> Word {
        let mut codeword = shifted_up(message, self.n - self.k);
        for (i, row) in self.parities.iter().enumerate() {
            let bit = message.get(i / 64).map_or(0, |w| w >> (i % 64) & 1);
            let mask = 0_u64.wrapping_sub(std::hint::black_box(bit));
            for (word, parity) in codeword.iter_mut().zip(row) {
                *word ^= parity & mask;
            }
        }
        codeword
    }

    /// The message part of a codeword.
    pub(super) fn message(&self, codeword: Word) -> Word {
        shifted_down(codeword, self.n - self.k)
    }

    /// Corrects up to `t` errors in constant time.
    ///
    /// Returns the corrected word and a mask: all ones if the corrected word is a codeword, zero if `received` is not
    /// correctable. A word with more errors is nearly always not correctable. Rarely, another codeword is within
    /// distance `t` and is returned.
    pub(super) fn decode(&self, received: Word) -> (Word, u64) {
        self.decoder.decode(received)
    }
}

/// The least common multiple of the minimal polynomials of α, α^3, … α^(2t-1), and its degree.
fn generator_polynomial(field: &Field, t: usize) -> (Word, usize) {
    let n = field.order();
    let mut is_root = vec![false; n];
    for exponent in (1..2 * t).step_by(2) {
        let mut conjugate = exponent % n;
        while let Some(root) = is_root.get_mut(conjugate).filter(|root| !**root) {
            *root = true;
            conjugate = 2 * conjugate % n;
        }
    }
    // Multiplies by (x + α^i) root by root. The roots are complete cyclotomic cosets, so the product is binary.
    let mut coefficients = vec![1_u8];
    for (i, _) in is_root.iter().enumerate().filter(|(_, root)| **root) {
        let scaled = coefficients.iter().map(|&c| product(field, c, field.power(i)));
        let mut next: Vec<u8> = scaled.chain([0]).collect();
        for (high, low) in next.iter_mut().skip(1).zip(&coefficients) {
            *high ^= low;
        }
        coefficients = next;
    }
    let mut generator = [0; 4];
    for (i, &coefficient) in coefficients.iter().enumerate() {
        if let Some(word) = generator.get_mut(i / 64) {
            *word |= u64::from(coefficient) << (i % 64);
        }
    }
    (generator, coefficients.len() - 1)
}

fn product(field: &Field, a: u8, b: u8) -> u8 {
    let (a, b) = ([u64::from(a)], [u64::from(b)]);
    let [product] = match field.degree() {
        7 => super::field::mul_lanes::<7, 1>(a, b),
        _ => super::field::mul_lanes::<8, 1>(a, b),
    };
    product.to_le_bytes()[0]
}

/// `x^(redundancy + i) mod generator` for each message bit `i`.
fn parity_rows(generator: Word, redundancy: usize, k: usize) -> Vec<Word> {
    let feedback = without_bit(generator, redundancy);
    let mut row = feedback;
    let mut rows = Vec::with_capacity(k);
    for _ in 0..k {
        rows.push(row);
        let overflow = redundancy == 0 || has_bit(row, redundancy - 1);
        row = without_bit(shifted_up(row, 1), redundancy);
        if overflow {
            for (word, f) in row.iter_mut().zip(feedback) {
                *word ^= f;
            }
        }
    }
    rows
}

fn has_bit(word: Word, index: usize) -> bool {
    word.get(index / 64).is_some_and(|w| w >> (index % 64) & 1 == 1)
}

fn without_bit(mut word: Word, index: usize) -> Word {
    if let Some(w) = word.get_mut(index / 64) {
        *w &= !(1 << (index % 64));
    }
    word
}

fn shifted_up(word: Word, shift: usize) -> Word {
    let (words, bits) = (shift / 64, shift % 64);
    std::array::from_fn(|i| {
        let part = |j: Option<usize>| j.and_then(|j| word.get(j)).copied().unwrap_or(0);
        let source = i.checked_sub(words);
        part(source) << bits | part(source.and_then(|s| s.checked_sub(1))) >> 1 >> (63 - bits)
    })
}

fn shifted_down(word: Word, shift: usize) -> Word {
    let (words, bits) = (shift / 64, shift % 64);
    std::array::from_fn(|i| {
        let part = |j: usize| word.get(j).copied().unwrap_or(0);
        part(i + words) >> bits | part(i + words + 1) << 1 << (63 - bits)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// (m, k, t, generator in octal) from Lin and Costello, Error Control Coding, Appendix C.
    const PUBLISHED: [(u32, usize, usize, &str); 21] = [
        (7, 120, 1, "211"),
        (7, 113, 2, "41567"),
        (7, 106, 3, "11554743"),
        (7, 99, 4, "3447023271"),
        (7, 92, 5, "624730022327"),
        (7, 64, 10, "1206534025570773100045"),
        (8, 247, 1, "435"),
        (8, 239, 2, "267543"),
        (8, 231, 3, "156720665"),
        (8, 223, 4, "75626641375"),
        (8, 215, 5, "23157564726421"),
        (8, 207, 6, "16176560567636227"),
        (8, 199, 7, "7633031270420722341"),
        (8, 191, 8, "2663470176115333714567"),
        (8, 187, 9, "52755313540001322236351"),
        (8, 179, 10, "22624710717340432416300455"),
        (8, 171, 11, "15416214212342356077061630637"),
        (8, 163, 12, "7500415510075602551574724514601"),
        (8, 155, 13, "3757513005407665015722506464677633"),
        (8, 147, 14, "1642130173537165525304165305441011711"),
        (8, 131, 18, "215713331471510151261250277442142024165471"),
    ];

    #[test]
    fn generator_polynomials_are_the_published_ones() {
        for (degree, k, t, octal) in PUBLISHED {
            let code = BchCode::new(degree, t).unwrap();
            assert_eq!(code.k(), k, "BCH({}, {k}, {t})", code.n());
            let bits = octal
                .chars()
                .rev()
                .flat_map(|c| (0..3).map(move |i| c.to_digit(8).unwrap() >> i & 1 == 1));
            let mut published: Vec<bool> = bits.collect();
            published.truncate(code.n() - k + 1);
            assert_eq!(
                code.generator().iter().collect::<Vec<_>>(),
                published,
                "BCH({}, {k}, {t})",
                code.n()
            );
        }
    }

    fn random_message(code: &BchCode, rng: &mut ChaCha8Rng) -> Word {
        let bits = Bits::from_words((0..4).map(|_| rng.next_u64()).collect(), code.k());
        std::array::from_fn(|i| bits.word_at(64 * i))
    }

    fn with_errors(word: Word, n: usize, count: usize, rng: &mut ChaCha8Rng) -> Word {
        let mut damaged = word;
        let mut positions: Vec<usize> = (0..n).collect();
        for i in 0..count {
            let j = rng.random_range(i..n);
            positions.swap(i, j);
            damaged[positions[i] / 64] ^= 1 << (positions[i] % 64);
        }
        damaged
    }

    #[test]
    fn every_code_corrects_up_to_t_errors() {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        for degree in [7, 8] {
            for t in 1..=ERRORS_MAX {
                let Ok(code) = BchCode::new(degree, t) else {
                    assert!(
                        degree == 7 && t > 15,
                        "BCH over GF(2^{degree}) with t {t} is missing"
                    );
                    continue;
                };
                for count in (0..=t).chain([t, t, t]) {
                    let message = random_message(&code, &mut rng);
                    let codeword = code.encode(message);
                    let (corrected, valid) = code.decode(with_errors(codeword, code.n(), count, &mut rng));
                    assert_eq!(
                        (corrected, valid),
                        (codeword, u64::MAX),
                        "m {degree} t {t} errors {count}"
                    );
                    assert_eq!(code.message(corrected), message);
                }
            }
        }
    }

    #[test]
    fn single_errors_at_every_position_are_corrected() {
        let code = BchCode::new(8, 9).unwrap();
        let codeword = code.encode(random_message(&code, &mut ChaCha8Rng::seed_from_u64(12)));
        for position in 0..code.n() {
            let mut damaged = codeword;
            damaged[position / 64] ^= 1 << (position % 64);
            assert_eq!(code.decode(damaged), (codeword, u64::MAX), "position {position}");
        }
    }

    /// If `decode` accepts a word, the result is a codeword within distance `t` of the word.
    #[test]
    fn beyond_t_errors_the_result_is_refused_or_another_codeword_within_t() {
        let mut rng = ChaCha8Rng::seed_from_u64(13);
        let (mut refused, mut other) = (0, 0);
        for (degree, t) in [(8, 9), (8, 14), (7, 2), (8, 2), (7, 15)] {
            let code = BchCode::new(degree, t).unwrap();
            for round in 0..2000 {
                let codeword = code.encode(random_message(&code, &mut rng));
                let damaged = with_errors(codeword, code.n(), t + 1 + round % (code.n() - t), &mut rng);
                let (result, valid) = code.decode(damaged);
                if valid == 0 {
                    assert_eq!(result, damaged);
                    refused += 1;
                } else {
                    assert_eq!(
                        code.encode(code.message(result)),
                        result,
                        "m {degree} t {t}: not a codeword"
                    );
                    let moved: u32 = result
                        .iter()
                        .zip(&damaged)
                        .map(|(a, b)| (a ^ b).count_ones())
                        .sum();
                    assert!(moved as usize <= t);
                    assert_ne!(result, codeword);
                    other += 1;
                }
            }
        }
        assert!(
            refused > 5000 && other > 100,
            "{refused} refused, {other} other codewords"
        );
    }

    proptest! {
        #[test]
        fn encoding_is_linear(a in any::<Word>(), b in any::<Word>()) {
            let code = BchCode::shared(8, 14).unwrap();
            let cut = |w: Word| std::array::from_fn(|i| Bits::from_words(w.to_vec(), code.k()).word_at(64 * i));
            let (a, b): (Word, Word) = (cut(a), cut(b));
            let sum = std::array::from_fn(|i| a[i] ^ b[i]);
            let sum_of_words: Word = std::array::from_fn(|i| code.encode(a)[i] ^ code.encode(b)[i]);
            prop_assert_eq!(code.encode(sum), sum_of_words);
        }
    }

    #[test]
    fn impossible_codes_are_refused() {
        for (degree, t) in [(6, 3), (8, 0), (8, 32), (9, 1), (7, 32)] {
            assert_eq!(
                BchCode::new(degree, t).unwrap_err(),
                CodeError { degree, errors: t }
            );
        }
        assert!(BchCode::shared(8, 31).is_ok() && BchCode::shared(8, 32).is_err());
    }
}
