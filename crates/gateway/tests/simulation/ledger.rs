//! All accepted rows, and violations of the invariants.

use std::collections::BTreeMap;

use linewarden_protocol::ids::{DeviceId, Mode};

/// Every row that any process has accepted.
#[derive(Default)]
pub struct Ledger {
    /// By device and row: the process that accepted the row.
    spent: BTreeMap<(DeviceId, u32), u64>,
    /// In key mode, by device and tag: the process that accepted the RESPONSE.
    proven: BTreeMap<(DeviceId, [u8; 16]), u64>,
    pub problem: Option<String>,
}

impl Ledger {
    /// Records that a RESPONSE has opened a session.
    pub fn record_accepted(&mut self, device: DeviceId, mode: Mode, idx: u32, tag: [u8; 16], process: u64) {
        if mode == Mode::Key {
            if let Some(previous) = self.proven.insert((device, tag), process) {
                self.problem.get_or_insert(format!(
                    "a RESPONSE of device {device} opened a session at process {previous} and another at {process}"
                ));
            }
            return;
        }
        if let Some(previous) = self.spent.insert((device, idx), process) {
            self.problem.get_or_insert(format!(
                "row {idx} of device {device} was accepted by process {previous} and then by {process}"
            ));
        }
    }

    /// Returns the number of rows that the device has spent.
    pub fn spent_count(&self, device: DeviceId) -> u32 {
        self.spent
            .keys()
            .filter(|(row_device, _)| *row_device == device)
            .count() as u32
    }

    /// Returns the process that accepted the row; `None` if the row is unspent.
    pub fn spender(&self, device: DeviceId, idx: u32) -> Option<u64> {
        self.spent.get(&(device, idx)).copied()
    }
}
