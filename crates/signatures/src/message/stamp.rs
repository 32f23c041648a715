//! The time at which a message was signed, and the urgency that it claims.

use std::fmt;

/// Bits of a stamp: 41 of time, 3 of priority.
pub const STAMP_BITS: u32 = 44;
const TIME_BITS: u32 = 41;
const PRIORITY_BITS: u32 = STAMP_BITS - TIME_BITS;
/// The epoch of time stamps in milliseconds of the Unix epoch: 2020-01-01T00:00:00Z. 41 bits last until 2089.
pub const EPOCH_UNIX_MS: u64 = 1_577_836_800_000;

/// A time: milliseconds since 2020-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeMs(u64);

impl TimeMs {
    /// The latest time that can be represented.
    pub const MAX: Self = Self((1 << TIME_BITS) - 1);

    /// A time since 2020, at most [`TimeMs::MAX`].
    #[must_use]
    pub const fn since_2020(ms: u64) -> Self {
        if ms < Self::MAX.0 { Self(ms) } else { Self::MAX }
    }

    /// A time from milliseconds of the Unix epoch; times before 2020 become 2020.
    #[must_use]
    pub const fn from_unix_ms(ms: u64) -> Self {
        Self::since_2020(ms.saturating_sub(EPOCH_UNIX_MS))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.0 + EPOCH_UNIX_MS
    }

    /// Milliseconds since 2020.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }
}

/// Urgency of a message: 0 is immediate, 7 is the least urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

/// A number that is not a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid priority {0}; expected 0 (most urgent) to 7")]
pub struct InvalidPriority(pub u8);

impl Priority {
    /// Immediate: the message must not wait.
    pub const IMMEDIATE: Self = Self(0);
    /// The most urgent priority after immediate; an immediate message beyond the quota of its source gets this
    /// priority.
    pub const URGENT: Self = Self(1);
    /// The least urgent priority.
    pub const LEAST: Self = Self(Self::COUNT as u8 - 1);
    /// Number of priorities.
    pub const COUNT: usize = 1 << PRIORITY_BITS;

    /// The priority of this number; numbers above 7 become 7.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        if number > Self::LEAST.0 {
            Self::LEAST
        } else {
            Self(number)
        }
    }

    /// Whether the priority is 0.
    #[must_use]
    pub const fn is_immediate(self) -> bool {
        self.0 == 0
    }

    /// All priorities, most urgent first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..=Self::LEAST.0).map(Self)
    }

    /// The number, 0 to 7.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Index in an array of [`Priority::COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u8> for Priority {
    type Error = InvalidPriority;

    fn try_from(number: u8) -> Result<Self, InvalidPriority> {
        match usize::from(number) < Self::COUNT {
            true => Ok(Self(number)),
            false => Err(InvalidPriority(number)),
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Time and priority in 44 bits; every signature covers this part, with any payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// When the message was signed.
    pub time: TimeMs,
    /// Claimed urgency, unverified until the signature has been verified.
    pub priority: Priority,
}

impl Stamp {
    /// The bits: time above priority.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.time.0 << PRIORITY_BITS | self.priority.0 as u64
    }

    /// `None` for more than [`STAMP_BITS`] bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >> STAMP_BITS != 0 {
            return None;
        }
        Some(Self {
            time: TimeMs(bits >> PRIORITY_BITS),
            priority: Priority((bits & ((1 << PRIORITY_BITS) - 1)) as u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_44_bits_convert_to_each_other() {
        for bits in [0, 1, 7, 8, (1 << STAMP_BITS) - 1, 0x0123_4567_89ab] {
            assert_eq!(Stamp::from_bits(bits).unwrap().bits(), bits);
        }
        assert_eq!(Stamp::from_bits(1 << STAMP_BITS), None);
        assert_eq!(Stamp::from_bits(u64::MAX), None);
    }

    #[test]
    fn times_outside_the_range_are_clamped() {
        assert_eq!(TimeMs::from_unix_ms(0).ms(), 0);
        assert_eq!(TimeMs::from_unix_ms(u64::MAX), TimeMs::MAX);
        assert_eq!(
            TimeMs::from_unix_ms(EPOCH_UNIX_MS + 5).unix_ms(),
            EPOCH_UNIX_MS + 5
        );
    }
}
