//! The dynamic scheduler decides which lane works on which messages, and when.
//!
//! A *job* is one message to verify or to sign, of an operation *class*. A *lane* executes batches; all jobs of a batch
//! have the same class: a CPU lane starts jobs immediately, an accelerator has an overhead and a high rate. Immediate
//! jobs (priority 0) go to a CPU lane at once. Other jobs wait in a queue by priority, and go to CPU lanes in slices
//! and to accelerators in batches.
//!
//! | part | purpose |
//! |---|---|
//! | [`Core`] | the decisions, without I/O: an event and the time go in, batches and dropped jobs come out |
//! | [`QueueLimits`], [`Config`] | the bounded queue: order, aging, shares, the order of shedding; all other bounds |
//! | [`QuotaLimits`] | rate limits of immediate messages: a priority is unauthenticated until the signature is verified |
//! | [`FingerprintKey`] | recognition of copies, which are dropped |
//! | [`model`] | time of a batch on a lane, calibrated and corrected by each batch |
//! | [`policy`] | size of a batch, and when an accelerator starts the batch: fixed tau (a number of waiting jobs), fixed batch, delay bounded, adaptive |
//! | [`MaskLimits`] | masks of Rapid Authentication, made by idle lanes; without a mask, a signer makes an RSA signature |
//! | [`engine`] | [`Core`] with a thread for each lane; producers have their own threads |
//!
//! The module `simulator` drives [`Core`] in virtual time.
//!
//! The scheduler is based on a thesis ("Hardware accelerated authentication", 3.4). In addition, a timer bounds every
//! wait; the number of waiting jobs that starts a batch follows the lanes and the load; CPU lanes keep working while
//! the accelerator processes a batch; quotas, shares and expiry bound the work that attackers can cause; the loss of an
//! accelerator costs time but no message.

mod class;
mod config;
mod core;
mod counters;
mod dedup;
pub mod engine;
mod generations;
mod hashing;
mod job;
mod lane;
mod latency;
mod masks;
mod meter;
pub mod model;
pub mod policy;
mod queue;
mod quota;
mod rank;
#[cfg(test)]
pub(crate) mod testing;
mod time;

pub use self::class::{Class, PerClass};
pub use self::config::Config;
pub use self::core::{Core, CoreError, Decisions, Event, LaneTask, WakeConditions};
pub use self::counters::{Counters, ShedCounts};
pub use self::dedup::FingerprintKey;
pub use self::job::{
    Batch, Dropped, Fingerprint, Job, JobEntry, Meta, ORDINARY_WORK, Outcome, PerPriority, Priority,
    ShedReason, Source,
};
pub use self::lane::{LaneId, LaneKind, LaneSpec};
pub use self::latency::LatencyHistograms;
pub use self::masks::MaskLimits;
pub use self::queue::{CAPACITY_MAX, QueueLimits};
pub use self::quota::{QuotaLimits, Rate};
pub use self::time::{Span, Time};
