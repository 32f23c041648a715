//! Order of the additions that multiply points by factors, with precomputed multiples of the points.
//!
//! A comb has [`TEETH`] teeth: powers of two that are [`PERIOD`] bits apart. For each tooth, multiples of the point
//! times that power are precomputed. Windows of a factor at the same position within a period are then added without
//! doublings in between. Of 255 doublings, 15 remain. With a period of one window of the key's factor, no doubling
//! would remain, but a key would need four times as many multiples (Brickell, Gordon, McCurley and Wilson, *Fast
//! exponentiation with precomputation*, 1992; the interleaving is that of Bernstein, Duif, Lange, Schwabe and Yang,
//! *High-speed high-security signatures*, 2011).

/// Bits of a window of a public key's factor.
pub(crate) const KEY_WINDOW: usize = 5;
/// Bits of a window of the base point's factor, a multiple of [`KEY_WINDOW`].
pub(crate) const BASE_WINDOW: usize = 10;
/// Bits between two neighboring teeth.
pub(crate) const PERIOD: usize = 20;
/// Number of teeth, for factors of 256 bits.
pub(crate) const TEETH: usize = 13;

const KEY_WINDOWS: usize = PERIOD / KEY_WINDOW;
const BASE_WINDOWS: usize = PERIOD / BASE_WINDOW;
const ADDITIONS: usize = TEETH * (KEY_WINDOWS + BASE_WINDOWS);

/// A step: doublings of the sum, then the addition of one precomputed multiple.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CombStep {
    /// Number of doublings before the addition.
    pub(crate) doublings: usize,
    /// Index of the tooth.
    pub(crate) tooth: usize,
    /// Number of the window of the factor, from the lowest window.
    pub(crate) position: usize,
    /// Whether the added point is a multiple of the base point; otherwise it is a multiple of the key.
    pub(crate) is_base: bool,
}

/// All steps, in order.
pub(crate) const STEPS: [CombStep; ADDITIONS] = {
    let mut steps = [CombStep {
        doublings: 0,
        tooth: 0,
        position: 0,
        is_base: false,
    }; ADDITIONS];
    let mut step = 0;
    let mut window = KEY_WINDOWS;
    while window > 0 {
        window -= 1;
        let bit = window * KEY_WINDOW;
        let mut tooth = 0;
        while tooth < TEETH {
            let needs_doublings = tooth == 0 && window + 1 < KEY_WINDOWS;
            steps[step].doublings = if needs_doublings { KEY_WINDOW } else { 0 };
            steps[step].tooth = tooth;
            steps[step].position = tooth * KEY_WINDOWS + window;
            step += 1;
            tooth += 1;
        }
        tooth = 0;
        while tooth < TEETH && bit.is_multiple_of(BASE_WINDOW) {
            steps[step].tooth = tooth;
            steps[step].position = tooth * BASE_WINDOWS + bit / BASE_WINDOW;
            steps[step].is_base = true;
            step += 1;
            tooth += 1;
        }
    }
    assert!(step == ADDITIONS && TEETH * PERIOD >= 256);
    steps
};
