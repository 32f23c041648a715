//! Counters of the scheduler's [`Core`](super::Core).

use super::job::ShedReason;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of the scheduler's [`Core`](super::Core) since its creation.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Dropped jobs, by reason.
            pub shed: ShedCounts,
        }

        impl Counters {
            /// All counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let own = [$((stringify!($name), self.$name)),+];
                own.into_iter().chain(self.shed.iter().map(|(reason, count)| (reason.name(), count)))
            }
        }
    };
}

counters! {
    /// Jobs submitted.
    submitted,
    /// Jobs done: the signature is valid, or was made.
    accepted,
    /// Jobs done: the signature is invalid, or could not be made.
    rejected,
    /// Jobs done: the signature is valid, but the message was refused for another reason.
    discarded,
    /// Jobs returned unfinished when the engine was shut down.
    unfinished,
    /// Immediate jobs that were demoted to the priority urgent, because the quota of their sender or source, or the
    /// shared quota of unknown senders, was used up.
    demoted,
    /// Batches started.
    batches,
    /// Jobs that returned to the queue because their lane was lost.
    returned,
    /// Losses of lanes.
    lanes_lost,
    /// Probes of lost lanes.
    probes,
    /// Masks made.
    masks_made,
    /// Jobs that required a mask and were signed without a mask, since the pool was empty.
    signed_unmasked,
    /// Batches that an accelerator started because a job had waited for the maximum time, although the policy
    /// would have waited.
    waits_timed_out,
}

impl Counters {
    /// Jobs done.
    pub fn done(&self) -> u64 {
        self.accepted + self.rejected + self.discarded
    }
}

/// A counter for each reason of dropping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShedCounts([u64; ShedReason::COUNT]);

impl ShedCounts {
    /// Jobs dropped for this reason.
    pub fn of(&self, reason: ShedReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// The total.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of dropped jobs for each reason.
    pub fn iter(&self) -> impl Iterator<Item = (ShedReason, u64)> {
        ShedReason::ALL.iter().copied().zip(self.0)
    }

    pub(crate) fn count(&mut self, reason: ShedReason) {
        self.add(reason, 1);
    }

    pub(crate) fn add(&mut self, reason: ShedReason, jobs: u64) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count += jobs;
        }
    }
}
