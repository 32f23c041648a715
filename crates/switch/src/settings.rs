//! Settings of a switch that are not part of the forwarding state.

use crate::program::ids::{MeterId, TableId};
use crate::tables::EntryHandle;

/// Default drop port.
pub const DROP_PORT: u32 = 511;

/// Item configured outside of the forwarding state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfiguredItem {
    /// Rates of an indirect meter: array, and index of the cell.
    Meter(MeterId, u64),
    /// Direct meter or idle timeout of an entry.
    Entry(TableId, EntryHandle),
}

/// Settings of a switch, independent of the program.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Drop port.
    pub drop_port: u32,
    /// Number of priority queues of a port.
    pub priority_queues: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            drop_port: DROP_PORT,
            priority_queues: 1,
        }
    }
}
