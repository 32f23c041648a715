//! Whom to evict when every place is taken: four policies behind one trait, of which the gateway was measured with each
//! (ADR 14, `linewarden bench scale`).
//!
//! The packet path answers without a word to user space, so a policy is told of nothing. It looks when somebody must go: a
//! line holds how often its device has authenticated and until when the last lease runs, and neither ever goes down. What
//! was noted earlier is therefore a lower bound, and an order by lower bounds is enough: whoever comes first is looked at, and
//! if its bound was too low it is filed anew. [`EventKind::Session`](linewarden_dataplane::EventKind::Session) would not
//! do: renewals raise none, and under a flood events are lost.
//!
//! | policy | order | a device | an eviction |
//! |---|---|---|---|
//! | [`Sieve`] | one queue with a hand (Zhang et al., NSDI 2024) | 24 B | O(1) amortised |
//! | [`S3Fifo`] | small and main queue, and a ghost queue (Yang et al., SOSP 2023) | 24 B, and 40 B a ghost | O(1) amortised |
//! | [`Ordered`] by last use: LRU | of the end of the last lease, to the second | 32 B | O(log n) |
//! | [`Ordered`] by uses: LFU | of authentications since it entered, without ageing | 32 B | O(log n) |

mod list;
mod ordered;
mod s3_fifo;
mod sieve;

use linewarden_protocol::ids::DeviceId;

use self::ordered::{By, Ordered};
use self::s3_fifo::S3Fifo;
use self::sieve::Sieve;

/// Entries that one look passes: a millisecond or so.
const STEPS_MAX: usize = 4096;

/// Who leaves when every place is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// SIEVE.
    Sieve,
    /// S3-FIFO.
    #[default]
    S3Fifo,
    /// Whoever authenticated longest ago.
    Lru,
    /// Whoever authenticated least often since it came.
    Lfu,
}

impl Eviction {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Sieve, Self::S3Fifo];

    /// Short and lower case.
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
            Self::Sieve => Box::new(Sieve::default()),
            Self::S3Fifo => Box::new(S3Fifo::default()),
            Self::Lru => Box::new(Ordered::new(By::LastUse)),
            Self::Lfu => Box::new(Ordered::new(By::Uses)),
        }
    }
}

/// Where a device stands in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

/// What a line tells of its device's authentications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uses {
    /// How many, modulo 2^24: the generation in the commit word.
    pub(super) count: u32,
    /// When the last lease ends, boot-time seconds; 0 before the first.
    pub(super) until_s: u32,
}

impl Uses {
    /// Of a device that has never authenticated.
    pub(super) const NONE: Self = Self { count: 0, until_s: 0 };

    /// The count after the authentication by which a device comes in: that one says nothing about the next.
    fn expected(self) -> u32 {
        self.count.wrapping_add(1) & COUNT_MASK
    }

    /// Authentications since the count was `seen`.
    fn since(self, seen: u32) -> u32 {
        match self.count.wrapping_sub(seen) & COUNT_MASK {
            // The one by which it comes in is still expected.
            COUNT_MASK => 0,
            uses => uses,
        }
    }
}

const COUNT_MASK: u32 = 0xff_ffff;

/// An order of the devices in the data plane.
pub(super) trait Policy: Send {
    /// A device has got a place.
    fn enter(&mut self, device: DeviceId, uses: Uses) -> Ticket;

    /// A device has left, for whatever reason.
    fn leave(&mut self, ticket: Ticket);

    /// The next device to evict, which the caller does. `uses_of` gives `None` for one that cannot leave now. `None` if
    /// nobody was found, or there was no time to: the next call goes on there.
    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId>;
}

#[cfg(test)]
mod tests;
