//! Expands the 8-byte challenge seed of a row to the challenges of a strong PUF.

/// The increment of SplitMix64's counter (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
/// 2014).
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Separates these streams from other uses of SplitMix64 on the same seed.
const DOMAIN: u64 = u64::from_be_bytes(*b"lap1 puf");

/// The endless sequence of 64-bit words of a challenge seed.
///
/// SplitMix64 with a counter that starts at `mix(seed xor "lap1 puf")`; the seed is big-endian. Challenges are public
/// (LAP/1 1.6), so the expansion needs no secrecy, only unrelated challenges for distinct seeds. A PUF with `n`
/// stages takes `ceil(n / 64)` words per challenge, stage `i` from bit `i % 64` of word `i / 64`, and leaves the
/// remaining bits of the last word unused.
#[derive(Clone, Debug)]
pub struct ChallengeStream {
    counter: u64,
}

impl ChallengeStream {
    /// The stream of one seed.
    pub fn new(seed: [u8; 8]) -> Self {
        Self {
            counter: mix(u64::from_be_bytes(seed) ^ DOMAIN),
        }
    }

    /// The next word.
    #[inline]
    pub fn next_word(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(GOLDEN_GAMMA);
        mix(self.counter)
    }
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_the_published_finalizer() {
        // First outputs of SplitMix64 from state 1234567, as in the reference implementation by Vigna.
        let mut stream = ChallengeStream { counter: 1_234_567 };
        assert_eq!(stream.next_word(), 6_457_827_717_110_365_317);
        assert_eq!(stream.next_word(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn neighboring_seeds_give_unrelated_words() {
        let mut differing = 0;
        for seed in 0_u64..256 {
            let mut a = ChallengeStream::new(seed.to_be_bytes());
            let mut b = ChallengeStream::new((seed + 1).to_be_bytes());
            differing += (a.next_word() ^ b.next_word()).count_ones();
        }
        // 256 * 64 fair coins: mean 8192, standard deviation 64.
        assert!(
            (differing as f64 - 8192.0).abs() < 6.0 * 64.0,
            "{differing} of 16384 bits differ"
        );
    }
}
