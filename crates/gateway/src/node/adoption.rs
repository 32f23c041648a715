//! Continues with the memory that an earlier process of this gateway left in the kernel.
//!
//! The data plane has kept running. Rows below the earlier process's marks may be spent in any case. Rows from the marks on may be spent only
//! if no other process has been this gateway in between, because that process would have spent them. The fencing token shows this: it must
//! be the next one.

use linewarden_dataplane::{InheritedDevice, InheritedState};
use linewarden_protocol::ids::{Mode, RowIndex};

use super::Node;
use super::devices::{DeviceEntry, State, uses};
use super::freshness::Freshness;

/// An adoption that is not confirmed yet.
#[derive(Debug)]
pub(super) struct Adoption {
    /// The fencing token of the process that left the memory.
    owner: u64,
    /// Start of this process, boot-time clock.
    pub(super) since_ns: Option<u64>,
}

impl Node {
    /// Adopts the state of the data plane.
    pub(super) fn adopt(&mut self) {
        let Some(left) = self.data_plane.take_inherited_state() else {
            return;
        };
        let InheritedState {
            owner,
            devices,
            fresh,
            fresh_at_ns,
        } = left;
        if fresh != [0; 8] {
            self.freshness = Freshness::resumed(fresh_at_ns);
            self.fresh = Some(fresh);
        }
        // A process that was replaced has stopped the data plane.
        self.data_plane.set_stopping(false);
        for left in devices {
            self.adopt_device(left);
        }
        // Responses to the earlier process are lost, so all devices are checked.
        self.scan_devices();
        tracing::info!(
            count = self.status.devices,
            "continuing with the devices of the previous process"
        );
        self.inherited = Some(Adoption {
            owner,
            since_ns: None,
        });
    }

    fn adopt_device(&mut self, left: InheritedDevice) {
        let device = left.device;
        let mode = match left.line.commit.is_key_mode() {
            true => Mode::Key,
            false => Mode::Pool,
        };
        // The earlier process was killed before it had wiped the device or stored the epoch.
        let (false, Some(epoch)) = (left.line.commit.is_revoked(), left.epoch) else {
            if mode == Mode::Key {
                self.discard_fresh();
            }
            self.wipe_adopted(left);
            return;
        };
        let ticket = self.eviction.insert(device, uses(&left.line));
        let mark = left.mark.unwrap_or(RowIndex(u32::MAX));
        let entry = DeviceEntry::adopted(mode, epoch, mark, left.end, ticket, self.settings.mark_block);
        self.devices.insert(device, entry);
        self.status.devices += 1;
    }

    fn wipe_adopted(&mut self, left: InheritedDevice) {
        let _ = self.data_plane.revoke(left.device);
        if self.data_plane.wipe(left.device).is_err() {
            // The data plane is using the line; the wipe is retried, as for a device that leaves.
            self.devices.insert(
                left.device,
                DeviceEntry::blank(State::Leaving {
                    reports_unused_rows: false,
                }),
            );
            self.busy.push(left.device);
        }
    }

    /// Discards the fresh values: the counter that a device had reached is lost with its line.
    fn discard_fresh(&mut self) {
        self.freshness = Freshness::default();
        self.fresh = None;
    }

    /// Confirms the adoption with this process's fencing token.
    pub(super) fn confirm_registration(&mut self, number: u64) {
        if let Some(left) = self.inherited.take()
            && left.owner.checked_add(1) != Some(number)
        {
            tracing::warn!(
                fencing_token = number,
                previous_fencing_token = left.owner,
                "another process has registered with this gateway ID since the previous process; all sessions of this gateway end, and devices authenticate again"
            );
            self.discard_fresh();
            let devices: Vec<_> = self.devices.keys().copied().collect();
            devices
                .into_iter()
                .for_each(|device| self.remove_device(device, false));
        }
        self.data_plane.set_owner(number);
    }
}
