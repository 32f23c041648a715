//! The time in which a message is accepted.

use crate::message::{Stamp, TimeMs};
use crate::refusal::Refusal;

/// Maximum difference between a stamp and the current time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Maximum age of a message.
    pub age_ms_max: u32,
    /// Maximum lead of the signer's clock.
    pub ahead_ms_max: u32,
}

impl Window {
    /// 5 s of age, 1 s of lead.
    pub const DEFAULT: Self = Self {
        age_ms_max: 5_000,
        ahead_ms_max: 1_000,
    };

    /// Time from the oldest to the newest accepted stamp, ms.
    #[must_use]
    pub fn length_ms(self) -> u64 {
        u64::from(self.age_ms_max) + u64::from(self.ahead_ms_max)
    }

    pub(super) fn oldest(self, now: TimeMs) -> TimeMs {
        TimeMs::since_2020(now.ms().saturating_sub(u64::from(self.age_ms_max)))
    }

    pub(super) fn check(self, stamp: Stamp, now: TimeMs) -> Result<(), Refusal> {
        if stamp.time < self.oldest(now) {
            return Err(Refusal::TooOld);
        }
        if stamp.time.ms() > now.ms() + u64::from(self.ahead_ms_max) {
            return Err(Refusal::TooNew);
        }
        Ok(())
    }
}
