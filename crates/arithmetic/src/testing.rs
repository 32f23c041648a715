//! Numbers for tests: random numbers, and numbers that make carries propagate.

use num_bigint::BigUint;

/// SplitMix64 with a seed that a failing test prints, and that `LINEWARDEN_SEED` sets.
pub(crate) struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        let seed = match std::env::var("LINEWARDEN_SEED") {
            Ok(seed) => seed.parse().expect("LINEWARDEN_SEED"),
            Err(_) => getrandom::u64().expect("a seed"),
        };
        Self { seed, state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    /// A number below `2^bits`: random, or with one of several extreme patterns.
    pub(crate) fn number(&mut self, bits: usize) -> BigUint {
        let one = BigUint::from(1u32);
        let all_ones = (&one << bits) - &one;
        let power = &one << self.below(bits);
        match self.below(10) {
            0 => BigUint::ZERO,
            1 => one,
            2 => all_ones,
            3 => power,
            4 => &power - &one,
            5 => (&power + &one) & all_ones,
            6 => &all_ones - power,
            7 | 8 => self.runs(bits),
            _ => self.uniform(bits),
        }
    }

    /// A number below n, where n has `bits` bits: [`Random::number`] modulo n, or one of the three greatest numbers
    /// below n.
    pub(crate) fn residue(&mut self, n: &BigUint, bits: usize) -> BigUint {
        match self.below(6) {
            0 => n - (1 + self.below(3)),
            _ => self.number(bits) % n,
        }
    }

    /// A uniformly distributed number below `2^bits`.
    pub(crate) fn uniform(&mut self, bits: usize) -> BigUint {
        let digits: Vec<u32> = (0..bits.div_ceil(32))
            .map(|_| (self.next() >> 32) as u32)
            .collect();
        BigUint::from_slice(&digits) >> (bits.div_ceil(32) * 32 - bits)
    }

    /// A number with long runs of ones and zeros.
    fn runs(&mut self, bits: usize) -> BigUint {
        let (mut number, mut remaining) = (BigUint::ZERO, bits);
        while remaining > 0 {
            let run = 1 + self.below(remaining.min(150));
            number <<= run;
            if self.below(2) == 1 {
                number += (BigUint::from(1u32) << run) - BigUint::from(1u32);
            }
            remaining -= run;
        }
        number
    }

    /// An odd number of `bits` bits with its topmost bit set: random, or with long runs of ones or
    /// zeros.
    pub(crate) fn modulus(&mut self, bits: usize) -> BigUint {
        let one = BigUint::from(1u32);
        let small = BigUint::from(self.next() >> self.below(64)) | &one;
        match self.below(4) {
            0 => (&one << bits) - small,
            1 => (&one << (bits - 1)) + small,
            2 => self.runs(bits) | &one << (bits - 1) | one,
            _ => self.uniform(bits) | &one << (bits - 1) | one,
        }
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} reproduces this run", self.seed);
        }
    }
}

/// The limbs of a number, padded with zeros to `length` limbs; panics if the number has more limbs.
pub(crate) fn limbs(number: &BigUint, length: usize) -> Vec<u64> {
    let mut limbs: Vec<u64> = number.iter_u64_digits().collect();
    assert!(limbs.len() <= length);
    limbs.resize(length, 0);
    limbs
}

/// The number with these limbs.
pub(crate) fn from_limbs(limbs: &[u64]) -> BigUint {
    let halves = limbs.iter().flat_map(|limb| [*limb as u32, (limb >> 32) as u32]);
    BigUint::from_slice(&halves.collect::<Vec<_>>())
}

/// The big-endian bytes of a number, padded with zeros to `length` bytes; panics if the number has more bytes.
pub(crate) fn bytes(number: &BigUint, length: usize) -> Vec<u8> {
    let digits = number.to_bytes_be();
    let mut bytes = vec![0; length.checked_sub(digits.len()).unwrap()];
    bytes.extend(digits);
    if *number == BigUint::ZERO {
        bytes.truncate(length);
    }
    bytes
}
