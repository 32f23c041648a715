//! The scheduler in virtual time: the same core and policies, lanes that take what was measured, traffic from
//! a seed or a file.
//!
//! A [`Plan`] has the scheduler's bounds and the lanes ([`SimLane`]: what it really takes, its scatter, its
//! outages); it runs a trace ([`trace`]: what arrives when, from a CSV file or made by [`traffic`]) under a
//! policy, and gives a [`Report`]. Seed, trace and plan determine everything: two runs have the same digest.
//! A ledger sees to it that each message leaves exactly once; [`Sabotage`] shows that it does.
//!
//! [`compare`](compare()) runs one trace under all policies, [`capacity`] finds how much of a growing demand
//! one bears.
//!
//! Not simulated: the costs of the scheduler itself, of waking threads (but for [`SimLane::wake`]) and of moving
//! messages; the receiver's own thread; memory; clocks that change within a run. A batch's time is a line in its size, without the steps of a kernel's waves.

mod compare;
#[cfg(test)]
mod floods;
mod lanes;
mod ledger;
mod random;
mod report;
mod run;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod traffic;

pub use self::compare::{Contender, Demand, calibrated_tau, capacity, compare};
pub use self::lanes::{Outage, SimLane, cpu, h200, stand_in};
pub use self::ledger::Fault;
pub use self::report::{LaneUse, Report, table};
pub use self::run::{Budget, Plan, Sabotage, SimError};
