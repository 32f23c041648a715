//! An interface of a lab's network.

use crate::address::Mac;

/// One end of a veth pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Name of the interface, unique on the machine.
    pub name: String,
    /// The interface index in its namespace.
    pub index: u32,
    /// Ethernet address of the interface.
    pub mac: Mac,
}
