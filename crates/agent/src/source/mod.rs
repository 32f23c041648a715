//! Where a device's PUF bits come from.

mod command;
mod simulated;

pub use command::CommandPuf;
pub use simulated::{FleetSeed, Model, SeedError, SimulatedPuf};
