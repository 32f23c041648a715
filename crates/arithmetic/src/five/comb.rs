//! Factors of points whose multiples were computed ahead: which multiple is added when.
//!
//! For each of [`TEETH`] powers of two that are [`PERIOD`] bits apart there are the multiples of the point times that power, so that a factor's
//! windows which begin at the same place of a period are additions without doublings between them: 15 doublings are left of 255. With a period
//! of one window there would be none, and four times the multiples (Brickell, Gordon, McCurley and Wilson, *Fast exponentiation with
//! precomputation*, 1992; the interleaving is that of Bernstein, Duif, Lange, Schwabe and Yang, *High-speed high-security signatures*, 2011).

/// Bits of a window of a public key's factor.
pub(crate) const KEY_WINDOW: usize = 5;
/// Bits of a window of the base point's factor, a multiple of the other.
pub(crate) const BASE_WINDOW: usize = 10;
/// Bits between two powers.
pub(crate) const PERIOD: usize = 20;
/// How many powers there are, for factors of 256 bits.
pub(crate) const TEETH: usize = 13;

const KEY_WINDOWS: usize = PERIOD / KEY_WINDOW;
const BASE_WINDOWS: usize = PERIOD / BASE_WINDOW;
const ADDITIONS: usize = TEETH * (KEY_WINDOWS + BASE_WINDOWS);

/// An addition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Doublings before it.
    pub(crate) doublings: usize,
    /// Which power's multiples.
    pub(crate) tooth: usize,
    /// Which digit of the factor.
    pub(crate) place: usize,
    /// Whether of the base point, or else of the key.
    pub(crate) is_base: bool,
}

/// All additions, in order.
pub(crate) const STEPS: [Step; ADDITIONS] = {
    let mut steps = [Step {
        doublings: 0,
        tooth: 0,
        place: 0,
        is_base: false,
    }; ADDITIONS];
    let mut at = 0;
    let mut window = KEY_WINDOWS;
    while window > 0 {
        window -= 1;
        let bit = window * KEY_WINDOW;
        let mut tooth = 0;
        while tooth < TEETH {
            let is_first = tooth == 0 && window + 1 < KEY_WINDOWS;
            steps[at].doublings = if is_first { KEY_WINDOW } else { 0 };
            steps[at].tooth = tooth;
            steps[at].place = tooth * KEY_WINDOWS + window;
            at += 1;
            tooth += 1;
        }
        tooth = 0;
        while tooth < TEETH && bit.is_multiple_of(BASE_WINDOW) {
            steps[at].tooth = tooth;
            steps[at].place = tooth * BASE_WINDOWS + bit / BASE_WINDOW;
            steps[at].is_base = true;
            at += 1;
            tooth += 1;
        }
    }
    assert!(at == ADDITIONS && TEETH * PERIOD >= 256);
    steps
};
