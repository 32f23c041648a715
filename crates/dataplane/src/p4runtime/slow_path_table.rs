//! The gateway's record of the slow path on the switch.

use std::collections::{HashSet, VecDeque};

use linewarden_protocol::ids::DeviceId;

/// Device and nonce, as words.
pub(super) type ExpectedKey = [u128; 3];

/// The devices and RESPONSEs that the slow path of the switch accepts.
#[derive(Debug, Default)]
pub(super) struct SlowPathTable {
    /// Enrolled devices, including those in `pending`.
    pub enrolled: HashSet<DeviceId>,
    /// Devices that are not yet written to the switch.
    pub pending: Vec<DeviceId>,
    /// Expected RESPONSEs, oldest first, and their slots.
    pub expected: VecDeque<(ExpectedKey, u32)>,
}
