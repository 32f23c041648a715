//! Counts of what has happened.

use super::job::Shed;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What the core has counted since it was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Jobs that left without having been worked on, by reason.
            pub shed: ShedCounts,
        }

        impl Counters {
            /// All of them with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let own = [$((stringify!($name), self.$name)),+];
                own.into_iter().chain(self.shed.iter().map(|(why, count)| (why.name(), count)))
            }
        }
    };
}

counters! {
    /// Jobs submitted.
    submitted,
    /// Jobs done: the signature holds, or was made.
    accepted,
    /// Jobs done: it does not, or could not be made.
    rejected,
    /// Jobs done: the signature holds, and the message was refused for another reason.
    refused,
    /// Jobs given back undone when the engine was shut down.
    given_back,
    /// Immediate jobs that were treated as less, since the quota of their source or of strangers was spent.
    demoted,
    /// Batches started.
    batches,
    /// Jobs that went back to the queue because their lane was lost.
    returned,
    /// Times that a lane was lost.
    lanes_lost,
    /// Times that a lost lane was tried again.
    probes,
    /// Masks made.
    masks_made,
    /// Jobs that wanted a mask and were signed plainly, since there was none.
    signed_plainly,
    /// Batches that an accelerator took because a job had waited as long as one may, whatever the policy
    /// said.
    waits_ended,
}

impl Counters {
    /// Jobs done.
    pub fn done(&self) -> u64 {
        self.accepted + self.rejected + self.refused
    }
}

/// A count for each reason of shedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShedCounts([u64; Shed::COUNT]);

impl ShedCounts {
    /// Jobs dropped for this reason.
    pub fn of(&self, why: Shed) -> u64 {
        self.0.get(why as usize).copied().unwrap_or(0)
    }

    /// All.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// By reason.
    pub fn iter(&self) -> impl Iterator<Item = (Shed, u64)> {
        Shed::ALL.iter().copied().zip(self.0)
    }

    pub(crate) fn count(&mut self, why: Shed) {
        self.add(why, 1);
    }

    pub(crate) fn add(&mut self, why: Shed, jobs: u64) {
        if let Some(count) = self.0.get_mut(why as usize) {
            *count += jobs;
        }
    }
}
