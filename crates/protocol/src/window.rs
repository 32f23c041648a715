//! The replay window of a session's DATA (LAP/1 1.4.7), one word: `gen u8 | top u32 | bitmap u24`.
//!
//! The generation is the low 8 bits of the commit word's generation. A CPU that read the window before the session
//! was replaced cannot mark a number in the new session's window, because its compare-and-swap fails.

use core::fmt;

/// Numbers that the window covers, down from the highest accepted number.
pub const WINDOW_SIZE: u32 = 24;

const BITMAP_MASK: u64 = 0xff_ffff;
const TOP_SHIFT: u32 = 24;
const GEN_SHIFT: u32 = 56;

/// A window word. Bit `i` of the bitmap represents number `top - i`; a new window has accepted nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Window(pub u64);

impl Window {
    /// An empty window of that generation.
    #[must_use]
    pub fn new(generation: u8) -> Self {
        Self(u64::from(generation) << GEN_SHIFT)
    }

    /// The generation.
    #[must_use]
    pub fn generation(self) -> u8 {
        let [generation, ..] = self.0.to_be_bytes();
        generation
    }

    /// The highest accepted sequence number; 0 if there is none.
    #[must_use]
    pub fn top(self) -> u32 {
        let [_, a, b, c, d, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// The window after accepting `seq`; `None` if `seq` is 0, was accepted before, or is below the window.
    #[must_use]
    pub fn accept(self, seq: u32) -> Option<Self> {
        if seq == 0 {
            return None;
        }
        let bitmap = self.0 & BITMAP_MASK;
        let top = self.top();
        if let Some(ahead @ 1..) = seq.checked_sub(top) {
            let shifted = if ahead < WINDOW_SIZE { bitmap << ahead } else { 0 };
            return Some(self.with_fields(seq, (shifted | 1) & BITMAP_MASK));
        }
        let bit = 1u64.checked_shl(top - seq).unwrap_or_default() & BITMAP_MASK;
        (bit != 0 && bitmap & bit == 0).then(|| self.with_fields(top, bitmap | bit))
    }

    fn with_fields(self, top: u32, bitmap: u64) -> Self {
        Self(u64::from(self.generation()) << GEN_SHIFT | u64::from(top) << TOP_SHIFT | bitmap)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generation, top, bitmap) = (self.generation(), self.top(), self.0 & BITMAP_MASK);
        write!(f, "Window(gen {generation}, top {top}, bitmap {bitmap:024b})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_gen_top_bitmap_from_the_top() {
        let window = Window::new(0xab).accept(0x0102_0304).unwrap();
        assert_eq!(window.0, 0xab01_0203_0400_0001);
        assert_eq!(window.accept(0x0102_0303).unwrap().0 & 0xff_ffff, 0b11);
    }

    #[test]
    fn the_edges_of_the_window_are_exact() {
        let window = Window::new(0).accept(100).unwrap();
        assert!(window.accept(77).is_some());
        assert!(window.accept(76).is_none());
        let far = window.accept(77).unwrap().accept(123).unwrap();
        assert!(far.accept(100).is_none(), "still remembered at distance 23");
        assert!(far.accept(101).is_some());
        let last = far.accept(u32::MAX).unwrap();
        assert!(last.accept(u32::MAX).is_none());
        assert!(last.accept(0).is_none());
    }

    /// The meaning of the window in one line: a number is accepted once, and only above `highest - 24`.
    fn accepts(seen: &BTreeSet<u32>, seq: u32) -> bool {
        let highest = seen.last().copied().unwrap_or_default();
        seq != 0 && !seen.contains(&seq) && u64::from(seq) + u64::from(WINDOW_SIZE) > u64::from(highest)
    }

    fn near_and_far() -> impl Strategy<Value = Vec<u32>> {
        let step = prop_oneof![8 => 0u32..40, 1 => 40u32..100_000, 1 => Just(u32::MAX)];
        prop::collection::vec((step, 0u32..40), 1..200).prop_map(|steps| {
            let mut at = 0u32;
            steps
                .into_iter()
                .map(|(forward, back)| {
                    at = at.saturating_add(forward);
                    at.saturating_sub(back)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_seen_numbers(generation: u8, numbers in near_and_far()) {
            let mut window = Window::new(generation);
            let mut seen = BTreeSet::new();
            for seq in numbers {
                prop_assert_eq!(window.accept(seq).is_some(), accepts(&seen, seq), "{:?} {}", window, seq);
                if let Some(next) = window.accept(seq) {
                    window = next;
                    seen.insert(seq);
                }
                prop_assert_eq!(window.generation(), generation);
            }
        }
    }
}
