//! wip

mod compare;
mod lanes;
mod ledger;
mod random;
mod report;
mod run;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod traffic;

pub use self::compare::{Contender, Demand, calibrated_tau, capacity, compare, rate_of_all};
pub use self::lanes::{Outage, SimLane, cpu, h200, stand_in};
pub use self::ledger::Fault;
pub use self::report::{LaneUse, Report, table};
pub use self::run::{Budget, Plan, Sabotage, SimError};
