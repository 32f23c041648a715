//! One arbiter chain in the additive delay model, evaluated over batches of challenges.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::{bits::Bits, challenge::ChallengeStream};

/// The parity features of many challenges, packed.
///
/// With challenge bits `c_0 … c_{n-1}`, feature `i` is `φ_i = Π_{j ≥ i} (-1)^{c_j}` (Lim et al., Extracting
/// secret keys from integrated circuits, 2005). Its sign bit is the xor of `c_i … c_{n-1}`; only the sign bits are
/// stored, `ceil(n / 64)` words per challenge.
#[derive(Clone, Debug)]
pub struct ChallengeBatch {
    parities: Vec<u64>,
    words_per_challenge: usize,
}

impl ChallengeBatch {
    /// `count` challenges for `stages` stages from a challenge seed.
    pub fn from_seed(seed: [u8; 8], stages: usize, count: usize) -> Self {
        let words_per_challenge = stages.div_ceil(64).max(1);
        let mut stream = ChallengeStream::new(seed);
        let mut parities: Vec<u64> = (0..count * words_per_challenge)
            .map(|_| stream.next_word())
            .collect();
        let unused = words_per_challenge * 64 - stages;
        for challenge in parities.chunks_exact_mut(words_per_challenge) {
            if let Some(last) = challenge.last_mut() {
                *last = *last << unused >> unused;
            }
            to_parities(challenge);
        }
        Self {
            parities,
            words_per_challenge,
        }
    }

    /// The number of challenges.
    pub fn len(&self) -> usize {
        self.parities.len() / self.words_per_challenge
    }

    /// Whether there are no challenges.
    pub fn is_empty(&self) -> bool {
        self.parities.is_empty()
    }

    /// The batch for `stages + 1` stages in which `inserted` supplies the challenge bit of stage `position`.
    ///
    /// Works on parities: features at or before the new stage change sign with the inserted bit; later features only
    /// move up by one index.
    pub(super) fn interposed(&self, inserted: &Bits, stages: usize, position: usize) -> Self {
        let words_per_challenge = (stages + 1).div_ceil(64);
        let mut parities = Vec::with_capacity(self.len() * words_per_challenge);
        for (challenge, bit) in self
            .parities
            .chunks_exact(self.words_per_challenge)
            .zip(inserted.iter())
        {
            let flip = 0_u64.wrapping_sub(u64::from(bit));
            let parity_at = |i: usize| challenge.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1);
            let later_parity = u64::from(parity_at(position));
            for word in 0..words_per_challenge {
                let base = word * 64;
                let straight = challenge.get(word).copied().unwrap_or(0);
                let carry = word
                    .checked_sub(1)
                    .and_then(|w| challenge.get(w))
                    .map_or(0, |w| w >> 63);
                let shifted = straight << 1 | carry;
                let before_stage = ones_below(position.saturating_sub(base));
                let through_stage = ones_below((position + 1).saturating_sub(base));
                let inserted_parity =
                    (through_stage & !before_stage) & 0_u64.wrapping_sub(later_parity ^ u64::from(bit));
                parities.push((straight ^ flip) & before_stage | inserted_parity | shifted & !through_stage);
            }
        }
        Self {
            parities,
            words_per_challenge,
        }
    }
}

/// A mask of the `count` lowest bits.
fn ones_below(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Replaces each challenge bit by the xor of the bit with all later bits.
fn to_parities(challenge: &mut [u64]) {
    let mut later = 0_u64;
    for word in challenge.iter_mut().rev() {
        for shift in [1, 2, 4, 8, 16, 32] {
            *word ^= *word >> shift;
        }
        *word ^= 0_u64.wrapping_sub(later);
        later = *word & 1;
    }
}

/// The weights of one arbiter chain: delay difference `Δ = Σ w_i φ_i + w_n`, response 1 if `Δ < 0`.
///
/// Weights are independent standard normal variables: one for each stage, and a constant term.
#[derive(Clone, Debug)]
pub struct ArbiterChain {
    weights: Vec<f32>,
    constant: f32,
}

/// The contribution of one byte of parities to the delay, for each value of the byte.
type ByteTable = [f32; 256];

/// The table for each byte of a word of parities.
type WordTables = [ByteTable; 8];

impl ArbiterChain {
    /// Draws the weights of a chain.
    pub fn random<R: Rng + ?Sized>(stages: usize, rng: &mut R) -> Self {
        let mut draw = || StandardNormal.sample(rng);
        Self {
            weights: (0..stages).map(|_| draw()).collect(),
            constant: draw(),
        }
    }

    /// Xors the chain's responses into `responses`, with Gaussian noise of standard deviation `sigma`.
    pub(super) fn respond(
        &self,
        batch: &ChallengeBatch,
        sigma: f32,
        noise: &mut ChaCha8Rng,
        responses: &mut Bits,
    ) {
        // Noise of more than 8 standard deviations has probability 1e-15. A delay that only such noise could change
        // gets no noise.
        let noise_max = 8.0 * sigma;
        self.xor_into(batch, responses, |delay| {
            if delay.abs() > noise_max {
                return delay;
            }
            let error: f32 = StandardNormal.sample(noise);
            delay + sigma * error
        });
    }

    /// Xors the chain's noise-free responses into `responses`.
    pub(super) fn nominal(&self, batch: &ChallengeBatch, responses: &mut Bits) {
        self.xor_into(batch, responses, |delay| delay);
    }

    fn xor_into(&self, batch: &ChallengeBatch, responses: &mut Bits, mut observe: impl FnMut(f32) -> f32) {
        let tables: Vec<WordTables> = self.weights.chunks(64).map(word_tables).collect();
        let mut groups = batch.parities.chunks(64 * batch.words_per_challenge);
        responses.change_words(|words| {
            for (word, challenges) in words.iter_mut().zip(&mut groups) {
                // Look-ups first, then noise: the unpredictable branches of the noise would stall the look-ups.
                let delays = self.delays(&tables, challenges, batch.words_per_challenge);
                let count = challenges.len() / batch.words_per_challenge;
                let mut ones = 0;
                for (bit, delay) in delays.iter().take(count).enumerate() {
                    ones |= u64::from(observe(*delay) < 0.0) << bit;
                }
                *word ^= ones;
            }
        });
    }

    /// Delays of up to 64 challenges. Eight table look-ups per 64 stages replace 64 multiplications. The tables (8
    /// KiB, in L1) cost as much as some 30 evaluations and exist only for one batch, so an idle device stores only
    /// its weights. The function is not generic, so it is compiled once, and not for each source of noise.
    fn delays(&self, tables: &[WordTables], challenges: &[u64], words_per_challenge: usize) -> [f32; 64] {
        let mut delays = [self.constant; 64];
        for (delay, challenge) in delays
            .iter_mut()
            .zip(challenges.chunks_exact(words_per_challenge))
        {
            *delay += challenge
                .iter()
                .zip(tables)
                .map(|(w, t)| word_delay(*w, t))
                .sum::<f32>();
        }
        delays
    }
}

/// The contribution of 64 stages to the delay. Added in pairs, so that the additions do not wait for each other.
#[inline(always)]
fn word_delay(parities: u64, tables: &WordTables) -> f32 {
    let bytes = parities.to_le_bytes();
    let mut shares = [0.0_f32; 8];
    for ((share, table), byte) in shares.iter_mut().zip(tables).zip(bytes) {
        *share = table.get(usize::from(byte)).copied().unwrap_or_default();
    }
    let [a, b, c, d, e, f, g, h] = shares;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// The tables of up to 64 stages; missing stages have weight zero.
fn word_tables(weights: &[f32]) -> WordTables {
    let mut tables = [[0.0; 256]; 8];
    for (table, weights) in tables.iter_mut().zip(weights.chunks(8)) {
        *table = byte_table(weights);
    }
    tables
}

fn byte_table(weights: &[f32]) -> ByteTable {
    let mut table = [0.0; 256];
    if let Some(first) = table.first_mut() {
        *first = weights.iter().sum();
    }
    for i in 0..8 {
        let change = 2.0 * weights.get(i).copied().unwrap_or(0.0);
        let (computed, remaining) = table.split_at_mut(1 << i);
        for (new, old) in remaining.iter_mut().zip(computed) {
            *new = *old - change;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// The textbook definition, bit by bit.
    fn delay_by_definition(challenge: &[bool], chain: &ArbiterChain) -> f32 {
        let feature = |i: usize| {
            challenge[i..]
                .iter()
                .fold(1.0_f32, |sign, &c| if c { -sign } else { sign })
        };
        chain
            .weights
            .iter()
            .enumerate()
            .map(|(i, w)| w * feature(i))
            .sum::<f32>()
            + chain.constant
    }

    fn challenge_bits(seed: [u8; 8], stages: usize, count: usize) -> Vec<Vec<bool>> {
        let mut stream = ChallengeStream::new(seed);
        (0..count)
            .map(|_| {
                let words: Vec<u64> = (0..stages.div_ceil(64)).map(|_| stream.next_word()).collect();
                (0..stages).map(|i| words[i / 64] >> (i % 64) & 1 == 1).collect()
            })
            .collect()
    }

    #[test]
    fn batches_agree_with_the_definition_for_any_stage_count() {
        for stages in [8, 33, 64, 65, 100, 128, 130] {
            let chain = ArbiterChain::random(stages, &mut ChaCha8Rng::seed_from_u64(stages as u64));
            let seed = *b"row seed";
            let batch = ChallengeBatch::from_seed(seed, stages, 200);
            let mut responses = Bits::zeros(200);
            chain.nominal(&batch, &mut responses);
            for (i, challenge) in challenge_bits(seed, stages, 200).iter().enumerate() {
                let delay = delay_by_definition(challenge, &chain);
                if delay.abs() > 1e-3 {
                    assert_eq!(responses.get(i), delay < 0.0, "{stages} stages, challenge {i}");
                }
            }
        }
    }

    #[test]
    fn an_interposed_bit_acts_as_a_challenge_bit() {
        for (stages, position) in [(64, 32), (64, 0), (64, 64), (63, 31), (128, 64), (100, 99)] {
            let seed = *b"anything";
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let chain = ArbiterChain::random(stages + 1, &mut rng);
            let inserted = Bits::from_bools((0..100).map(|i| i % 3 == 0));
            let batch = ChallengeBatch::from_seed(seed, stages, 100).interposed(&inserted, stages, position);
            let mut responses = Bits::zeros(100);
            chain.nominal(&batch, &mut responses);
            for (i, mut challenge) in challenge_bits(seed, stages, 100).into_iter().enumerate() {
                challenge.insert(position, inserted.get(i));
                let delay = delay_by_definition(&challenge, &chain);
                if delay.abs() > 1e-3 {
                    assert_eq!(
                        responses.get(i),
                        delay < 0.0,
                        "{stages} stages, position {position}, {i}"
                    );
                }
            }
        }
    }
}
