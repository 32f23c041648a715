//! Freshness values (LAP/1 1.4.1): a RESPONSE must carry one of the last two values. The value is checked before any
//! hashing.

use core::num::NonZeroU64;

use crate::time::{Monotonic, Now};

/// Age of the current value at which the fast path stops replying, ms.
pub const FRESH_MAX_AGE_MS: u64 = 16_000;

/// Eight random bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreshValue(NonZeroU64);

impl FreshValue {
    /// The value in wire order; `None` if it is zero: draw another value.
    #[must_use]
    pub fn from_wire(bytes: [u8; 8]) -> Option<Self> {
        NonZeroU64::new(u64::from_be_bytes(bytes)).map(Self)
    }

    /// The eight bytes on the wire.
    #[must_use]
    pub fn to_wire(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

/// Proof that a message carries an accepted freshness value; created only in this module.
#[derive(Debug)]
pub struct FreshVerified(());

/// The accepted values.
#[derive(Debug, Default)]
pub(super) struct AcceptedFreshValues {
    current: Option<FreshValue>,
    previous: Option<FreshValue>,
    drawn_at: Monotonic,
}

impl AcceptedFreshValues {
    pub(super) fn rotate(&mut self, value: FreshValue, now: Now) {
        self.previous = self.current;
        self.current = Some(value);
        self.drawn_at = now.monotonic();
    }

    /// The current value; `None` if there is none yet or it is too old.
    pub(super) fn current(&self, now: Now) -> Option<FreshValue> {
        let age_ms = now.monotonic().since_ms(self.drawn_at);
        self.current.filter(|_| age_ms <= FRESH_MAX_AGE_MS)
    }

    pub(super) fn accept(&self, wire: [u8; 8]) -> Option<FreshVerified> {
        let value = FreshValue::from_wire(wire)?;
        (self.current == Some(value) || self.previous == Some(value)).then_some(FreshVerified(()))
    }
}
