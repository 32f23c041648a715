//! The dynamic scheduler: which lane works on which messages, and when.
//!
//! A *job* is one message to verify or to sign, of an operation *class*. A *lane* executes batches of jobs of
//! one class: a processor starts them at once, an accelerator has an overhead and a high rate. Immediate jobs
//! (priority 0) go to a processor at once; others wait in a queue by priority, and go to processors in slices
//! and to accelerators in batches.
//!
//! | part | what |
//! |---|---|
//! | [`Core`] | the decisions, without I/O: an event and the time go in, batches and dropped jobs come out |
//! | [`QueueLimits`], [`Config`] | the bounded queue: order, aging, shares, the order of shedding; all other bounds |
//! | [`QuotaLimits`] | who may have messages treated as immediate: a priority is not authenticated before the signature is |
//! | [`FingerprintKey`] | copies are recognised and dropped |
//! | [`model`] | what a lane takes for a batch, calibrated and corrected by each |
//! | [`policy`] | when an accelerator takes how many: fixed tau, fixed batch, delay bounded, adaptive |
//! | [`MaskLimits`] | masks of Rapid Authentication, made by idle lanes; without one, a signer signs plainly |
//! | [`engine`] | the core with a thread for each lane, and producers on their own |
//!
//! The [simulator](crate::simulator) drives the same core in virtual time.
//!
//! What it goes beyond in the thesis that it comes from ("Hardware accelerated authentication", 3.4): a timer
//! bounds every wait; the threshold follows the lanes and the load; processors keep working while the
//! accelerator has a batch; quotas, shares and expiry bound what others can make it do; a lost accelerator
//! costs time and no message.

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
pub use self::core::{Attention, Core, CoreError, Decisions, Event, Start};
pub use self::counters::{Counters, ShedCounts};
pub use self::dedup::FingerprintKey;
pub use self::job::{
    Batch, Dropped, Fingerprint, Job, Meta, ORDINARY_WORK, Outcome, PerPriority, Priority, Shed, Source,
    Ticket,
};
pub use self::lane::{LaneId, LaneKind, LaneSpec};
pub use self::latency::LatencyBook;
pub use self::masks::MaskLimits;
pub use self::queue::{CAPACITY_MAX, QueueLimits};
pub use self::quota::{QuotaLimits, Rate};
pub use self::time::{Span, Time};
