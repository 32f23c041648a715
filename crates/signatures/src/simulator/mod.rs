//! The scheduler in virtual time: the same [`Core`](crate::scheduler::Core) and policies, lanes with measured costs,
//! traffic from a seed or a file.
//!
//! A [`Simulation`] has the scheduler's configuration and the lanes ([`SimLane`]: actual costs, scatter, outages). It runs a trace ([`trace`]:
//! arrivals, from a CSV file or made by [`traffic`]) under a policy, and returns a [`Report`]. Seed, trace and simulation determine everything:
//! two runs have the same digest. A ledger checks that each message leaves exactly once; [`InjectedFault`] injects faults to test the ledger.
//!
//! [`compare`](compare()) runs one trace under all policies, [`capacity`] determines the largest traffic that a policy can process.
//!
//! Not simulated: the costs of the scheduler itself, of waking threads (except [`SimLane::wake`]) and of moving messages; the receiver's
//! thread; memory; clocks that change within a run. A batch's time is linear in its size, without the steps of a kernel's waves.

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

pub use self::compare::{PolicyKind, ScaledTraffic, calibrated_tau, capacity, compare};
pub use self::lanes::{Outage, SimLane, cpu, emulated_accelerator, h200};
pub use self::ledger::LedgerError;
pub use self::report::{LaneUse, Report, table};
pub use self::run::{Budget, InjectedFault, SimError, Simulation};
