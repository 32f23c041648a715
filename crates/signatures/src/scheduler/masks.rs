//! When masks of Rapid Authentication are made, and when a signer goes without.
//!
//! Only numbers are kept here. The masks themselves are secrets of the signer's pool, each used once at most:
//! one that was promised to a batch whose lane was lost counts as used.

use super::class::Class;
use super::time::Span;

/// When the pool is refilled, and by what.
#[derive(Clone, Copy, Debug)]
pub struct MaskLimits {
    /// Jobs that need a mask each.
    pub sign: Class,
    /// What is done with them when the pool is dry.
    pub plain: Class,
    /// Making one mask.
    pub refill: Class,
    /// Fewer masks than this: making begins.
    pub low: usize,
    /// So many: it ends.
    pub high: usize,
    /// Masks that the pool holds at the start.
    pub stock: usize,
    /// What an accelerator makes in one go, which nothing interrupts. Processors stay below their slice.
    pub slice: Span,
}

/// The pool's level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masks {
    pub(super) limits: MaskLimits,
    stock: usize,
    in_production: usize,
    filling: bool,
}

impl Masks {
    pub(super) fn new(limits: MaskLimits) -> Self {
        Self {
            limits,
            stock: limits.stock,
            in_production: 0,
            filling: true,
        }
    }

    pub(super) fn stock(&self) -> usize {
        self.stock
    }

    /// Masks to be made now, besides those in production.
    pub(super) fn wanted(&mut self) -> usize {
        let expected = self.stock + self.in_production;
        if expected < self.limits.low {
            self.filling = true;
        }
        if expected >= self.limits.high {
            self.filling = false;
        }
        if self.filling {
            self.limits.high - expected
        } else {
            0
        }
    }

    /// Whether masks are to be made, as of the last time that somebody asked.
    pub(super) fn is_short(&self) -> bool {
        self.filling && self.stock + self.in_production < self.limits.high
    }

    pub(super) fn begin(&mut self, count: usize) {
        self.in_production += count;
    }

    /// Of `asked`, so many were made.
    pub(super) fn end(&mut self, asked: usize, made: usize) {
        self.in_production = self.in_production.saturating_sub(asked);
        self.stock += made.min(asked);
    }

    /// Takes up to `count`, all or what is there.
    pub(super) fn use_up(&mut self, count: usize) {
        self.stock = self.stock.saturating_sub(count);
    }

    /// The pool's owner has counted.
    pub(super) fn set_stock(&mut self, stock: usize) {
        self.stock = stock;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fills_from_below_low_up_to_high() {
        let mut masks = Masks::new(MaskLimits {
            sign: Class::RA_SIGN,
            plain: Class::RSA_SIGN,
            refill: Class::MASK_REFILL,
            low: 10,
            high: 30,
            stock: 0,
            slice: Span::from_millis(1),
        });
        assert_eq!(masks.wanted(), 30);
        masks.begin(8);
        assert_eq!(masks.wanted(), 22, "what is being made is not wanted again");
        masks.end(8, 5);
        assert_eq!((masks.stock(), masks.wanted()), (5, 25));
        masks.begin(25);
        assert_eq!(masks.wanted(), 0);
        masks.end(25, 25);
        for (used, wanted) in [(15, 0), (5, 0), (1, 21)] {
            masks.use_up(used);
            assert_eq!(masks.wanted(), wanted);
        }
        masks.set_stock(29);
        assert_eq!(masks.wanted(), 1, "still filling: high was not reached");
        masks.set_stock(30);
        assert_eq!(masks.wanted(), 0);
        masks.use_up(99);
        assert_eq!(masks.stock(), 0);
    }
}
