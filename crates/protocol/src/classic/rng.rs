//! xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021): what the classic
//! profiles draw from. It is no cryptographic generator; the papers' protocol asks for none.

/// The generator's state; not all zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xoshiro256PlusPlus([u64; 4]);

impl Xoshiro256PlusPlus {
    /// A generator in that state; `None` when it is all zero, which would yield zeros for ever.
    #[must_use]
    pub fn from_state(state: [u64; 4]) -> Option<Self> {
        (state != [0; 4]).then_some(Self(state))
    }

    /// The next 64 bits.
    #[must_use]
    pub fn draw(&mut self) -> u64 {
        let [mut a, mut b, mut c, mut d] = self.0;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        c ^= a;
        d ^= b;
        b ^= c;
        a ^= d;
        c ^= shifted;
        d = d.rotate_left(45);
        self.0 = [a, b, c, d];
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The authors' reference code, from state 1, 2, 3, 4.
    #[test]
    fn agrees_with_the_reference() {
        let mut rng = Xoshiro256PlusPlus::from_state([1, 2, 3, 4]).unwrap();
        let drawn: [u64; 5] = core::array::from_fn(|_| rng.draw());
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
        ];
        assert_eq!(drawn, expected);
        assert_eq!(Xoshiro256PlusPlus::from_state([0; 4]), None);
    }
}
