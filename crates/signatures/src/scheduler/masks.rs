//! Refilling of masks of Rapid Authentication, and signing without masks.
//!
//! This module only counts. The masks themselves are secrets in the signer's pool, each used at most once: a
//! mask assigned to a batch whose lane was lost counts as used.

use super::class::Class;
use super::time::Span;

/// When the pool is refilled, and the job classes that use masks, work without masks, or make masks.
#[derive(Clone, Copy, Debug)]
pub struct MaskLimits {
    /// The class of jobs that need one mask each.
    pub sign: Class,
    /// The class that is executed instead of `sign` when the pool is empty.
    pub plain: Class,
    /// The class of making one mask.
    pub refill: Class,
    /// Refilling starts below this number of masks.
    pub low: usize,
    /// Refilling ends at this number.
    pub high: usize,
    /// Masks in the pool at the start.
    pub stock: usize,
    /// Limit of the time of one refill on an accelerator, because a refill is not interrupted.
    /// [`Config::slice`](super::Config::slice) limits refills on CPU lanes.
    pub slice: Span,
}

/// State of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskStock {
    pub(super) limits: MaskLimits,
    stock: usize,
    in_production: usize,
    is_filling: bool,
}

impl MaskStock {
    pub(super) fn new(limits: MaskLimits) -> Self {
        Self {
            limits,
            stock: limits.stock,
            in_production: 0,
            is_filling: true,
        }
    }

    pub(super) fn stock(&self) -> usize {
        self.stock
    }

    /// Number of masks to make now, in addition to those in production.
    pub(super) fn required(&mut self) -> usize {
        let expected = self.stock + self.in_production;
        if expected < self.limits.low {
            self.is_filling = true;
        }
        if expected >= self.limits.high {
            self.is_filling = false;
        }
        if self.is_filling {
            self.limits.high - expected
        } else {
            0
        }
    }

    /// Whether masks are required with the present counts. A drop below `low` after the last call of
    /// [`MaskStock::required`] is not noticed.
    pub(super) fn is_short(&self) -> bool {
        self.is_filling && self.stock + self.in_production < self.limits.high
    }

    pub(super) fn start_refill(&mut self, count: usize) {
        self.in_production += count;
    }

    /// Records that `made` of the `requested` masks were made.
    pub(super) fn finish_refill(&mut self, requested: usize, made: usize) {
        self.in_production = self.in_production.saturating_sub(requested);
        self.stock += made.min(requested);
    }

    /// Removes up to `count` masks.
    pub(super) fn consume(&mut self, count: usize) {
        self.stock = self.stock.saturating_sub(count);
    }

    /// Sets the number of masks after a recount.
    pub(super) fn set_stock(&mut self, stock: usize) {
        self.stock = stock;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refill_starts_below_low_and_ends_at_high() {
        let mut masks = MaskStock::new(MaskLimits {
            sign: Class::RA_SIGN,
            plain: Class::RSA_SIGN,
            refill: Class::MASK_REFILL,
            low: 10,
            high: 30,
            stock: 0,
            slice: Span::from_millis(1),
        });
        assert_eq!(masks.required(), 30);
        masks.start_refill(8);
        assert_eq!(
            masks.required(),
            22,
            "masks in production are not requested again"
        );
        masks.finish_refill(8, 5);
        assert_eq!((masks.stock(), masks.required()), (5, 25));
        masks.start_refill(25);
        assert_eq!(masks.required(), 0);
        masks.finish_refill(25, 25);
        for (consumed, expected) in [(15, 0), (5, 0), (1, 21)] {
            masks.consume(consumed);
            assert_eq!(masks.required(), expected);
        }
        masks.set_stock(29);
        assert_eq!(masks.required(), 1, "still filling below `high`");
        masks.set_stock(30);
        assert_eq!(masks.required(), 0);
        masks.consume(99);
        assert_eq!(masks.stock(), 0);
    }
}
