//! Sources of a device's PUF bits.

mod command;
mod simulated;

pub use command::CommandPuf;
pub use simulated::{FleetSeed, Model, SeedError, SimulatedPuf};
