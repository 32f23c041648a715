//! Which lane works on which messages, and when.
//!
//! The [core](Core) takes an event and the time, and returns decisions: no thread, no clock, no lane in it. The [engine] drives it with
//! threads, the [simulator](crate::simulator) in virtual time. [Policies](policy) say how much of what waits an accelerator gets.

mod class;
mod config;
mod core;
mod counters;
mod dedup;
pub mod engine;
mod generations;
mod job;
mod lane;
mod latency;
mod masks;
mod meter;
pub mod model;
pub mod policy;
pub mod queue;
mod quota;
#[cfg(test)]
pub(crate) mod testing;
mod time;

pub use self::class::{Class, PerClass};
pub use self::config::Config;
pub use self::core::{Attention, Core, CoreError, Decisions, Event, Start};
pub use self::counters::{Counters, ShedCounts};
pub use self::dedup::FingerprintKey;
pub use self::job::*;
pub use self::lane::{LaneId, LaneKind, LaneSpec};
pub use self::latency::LatencyBook;
pub use self::masks::MaskLimits;
pub use self::quota::{QuotaLimits, Rate};
pub use self::time::{Span, Time};
