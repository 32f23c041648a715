//! SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): the generator of the
//! classic profiles. The generator is not cryptographic, because the published protocol requires no cryptographic
//! generator. The whole state is one word of 64 bits, so each CPU can have its own state.

/// The generator's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator in the given state.
    #[must_use]
    pub const fn from_state(state: u64) -> Self {
        Self(state)
    }

    /// The next 64 bits.
    #[must_use]
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vigna's reference code (splitmix64.c), from state 1234567.
    #[test]
    fn agrees_with_the_reference() {
        let mut rng = SplitMix64::from_state(1_234_567);
        let drawn: [u64; 5] = core::array::from_fn(|_| rng.draw());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(drawn, expected);
    }
}
