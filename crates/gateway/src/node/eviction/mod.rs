//! Selects the device to evict when every slot is taken. A gateway uses S3-FIFO; the lab compares four policies
//! (feature `lab`; ADR 14, `linewarden-lab bench scale`).
//!
//! The data plane authenticates devices without user space, so a policy gets no notification. It reads a device's line
//! during a scan: the line contains the count of authentications and the expiry of the last session, and neither
//! decreases. An earlier value is therefore a lower bound, and an order by lower bounds is sufficient: the first device
//! is read again, and if its bound was too low, the device is moved.
//! [`EventKind::Session`](linewarden_dataplane::EventKind::Session) would not be sufficient: a renewal causes no event,
//! and events are lost in a flood.
//!
//! | policy | order | memory per device | cost of an eviction |
//! |---|---|---|---|
//! | [`Sieve`] | one queue with a hand (Zhang et al., NSDI 2024) | 24 B | O(1) amortized |
//! | [`S3Fifo`] | small and main queue, and a ghost queue (Yang et al., SOSP 2023) | 24 B; per ghost 40 B | O(1) amortized |
//! | [`Ordered`] by last use: LRU | by expiry of the last session, to the second | 32 B | O(log n) |
//! | [`Ordered`] by uses: LFU | by authentications since insertion, without aging | 32 B | O(log n) |

mod list;
#[cfg(any(test, feature = "lab"))]
mod ordered;
mod s3_fifo;
#[cfg(any(test, feature = "lab"))]
mod sieve;

use linewarden_protocol::ids::DeviceId;

#[cfg(any(test, feature = "lab"))]
use self::ordered::{Ordered, SortKey};
use self::s3_fifo::S3Fifo;
#[cfg(any(test, feature = "lab"))]
use self::sieve::Sieve;

/// Maximum number of entries in a scan, which takes about a millisecond.
const SCAN_STEPS_MAX: usize = 4096;

/// The eviction policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// SIEVE.
    #[cfg(any(test, feature = "lab"))]
    Sieve,
    /// S3-FIFO.
    #[default]
    S3Fifo,
    /// The device that authenticated longest ago.
    #[cfg(any(test, feature = "lab"))]
    Lru,
    /// The device that authenticated least often since its insertion.
    #[cfg(any(test, feature = "lab"))]
    Lfu,
}

impl Eviction {
    /// All policies.
    #[cfg(any(test, feature = "lab"))]
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Sieve, Self::S3Fifo];

    /// The policy's name, in lower case.
    #[cfg(any(test, feature = "lab"))]
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3_fifo",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
        }
    }

    pub(super) fn policy(self) -> Box<dyn Policy> {
        match self {
            #[cfg(any(test, feature = "lab"))]
            Self::Sieve => Box::new(Sieve::default()),
            Self::S3Fifo => Box::new(S3Fifo::default()),
            #[cfg(any(test, feature = "lab"))]
            Self::Lru => Box::new(Ordered::new(SortKey::LastUse)),
            #[cfg(any(test, feature = "lab"))]
            Self::Lfu => Box::new(Ordered::new(SortKey::Uses)),
        }
    }
}

/// Identifies the entry of a device in its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EvictionHandle(u32);

/// Authentications of a device, from its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uses {
    /// Count of authentications, modulo 2^24: the generation in the commit word.
    pub(super) count: u32,
    /// When the last session expires, boot-time seconds; 0 before the first session.
    pub(super) until_s: u32,
}

impl Uses {
    /// A device that has never authenticated.
    pub(super) const NONE: Self = Self { count: 0, until_s: 0 };

    /// Returns the count after the authentication that causes the insertion. This authentication does not count as a
    /// use.
    fn count_after_admission(self) -> u32 {
        self.count.wrapping_add(1) & COUNT_MASK
    }

    /// Returns the number of authentications since the count was `earlier_count`.
    fn since(self, earlier_count: u32) -> u32 {
        match self.count.wrapping_sub(earlier_count) & COUNT_MASK {
            // The authentication that causes the insertion is still expected.
            COUNT_MASK => 0,
            uses => uses,
        }
    }
}

const COUNT_MASK: u32 = 0xff_ffff;

/// An eviction policy, with its order of the devices in the data plane.
pub(super) trait Policy: Send {
    /// Adds a device.
    fn insert(&mut self, device: DeviceId, uses: Uses) -> EvictionHandle;

    /// Removes a device.
    fn remove(&mut self, handle: EvictionHandle);

    /// Returns the next device to evict; the caller then removes it. `uses_of` returns `None` for a device that must stay.
    /// The result is `None` if no device may be evicted or the scan was too long: the next call continues the scan.
    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId>;
}

#[cfg(test)]
mod tests;
