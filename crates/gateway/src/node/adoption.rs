//! Continues with the memory that an earlier process of this gateway left in the kernel.
//!
//! The data plane has kept running. Rows below the marks of the earlier process may be spent in any case. Rows at or
//! above the marks may be spent only if no other process has registered with this gateway ID between the earlier process
//! and this process, because that other process may have spent the rows. The fencing tokens show this: without another
//! process, the new token is the earlier process's token plus 1.

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
    /// First tick of this process, boot-time clock; `None` before.
    pub(super) since_ns: Option<u64>,
}

impl Node {
    /// Adopts the state of the data plane.
    pub(super) fn adopt(&mut self) {
        let Some(inherited) = self.data_plane.take_inherited_state() else {
            return;
        };
        let InheritedState {
            owner,
            devices,
            fresh,
            fresh_at_ns,
        } = inherited;
        if fresh != [0; 8] {
            self.freshness = Freshness::resumed(fresh_at_ns);
            self.fresh = Some(fresh);
        }
        // An earlier process that was replaced has stopped the data plane.
        self.data_plane.set_stopping(false);
        for device in devices {
            self.adopt_device(device);
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

    fn adopt_device(&mut self, inherited: InheritedDevice) {
        let device = inherited.device;
        let mode = match inherited.line.commit.is_key_mode() {
            true => Mode::Key,
            false => Mode::Pool,
        };
        // The earlier process ended before it had wiped the device or stored the epoch.
        let (false, Some(epoch)) = (inherited.line.commit.is_revoked(), inherited.epoch) else {
            if mode == Mode::Key {
                self.discard_fresh();
            }
            self.wipe_adopted(inherited);
            return;
        };
        let eviction_handle = self.eviction.insert(device, uses(&inherited.line));
        let mark = inherited.mark.unwrap_or(RowIndex(u32::MAX));
        let entry = DeviceEntry::adopted(
            mode,
            epoch,
            mark,
            inherited.end,
            eviction_handle,
            self.settings.mark_block,
        );
        self.devices.insert(device, entry);
        self.status.devices += 1;
    }

    fn wipe_adopted(&mut self, inherited: InheritedDevice) {
        let _ = self.data_plane.revoke(inherited.device);
        if self.data_plane.wipe(inherited.device).is_err() {
            // The data plane is using the line; the wipe is retried, as for a device that leaves.
            self.devices.insert(
                inherited.device,
                DeviceEntry::blank(State::Leaving {
                    reports_unused_rows: false,
                }),
            );
            self.busy_devices.push(inherited.device);
        }
    }

    /// Discards the fresh values. The counter of a key-mode device is lost with its line; under a fresh value that is
    /// still accepted, the device's last RESPONSE would open a session again.
    fn discard_fresh(&mut self) {
        self.freshness = Freshness::default();
        self.fresh = None;
    }

    /// Confirms the adoption with this process's fencing token.
    pub(super) fn confirm_registration(&mut self, fencing_token: u64) {
        if let Some(adoption) = self.inherited.take()
            && adoption.owner.checked_add(1) != Some(fencing_token)
        {
            tracing::warn!(
                fencing_token,
                previous_fencing_token = adoption.owner,
                "before this process, another process registered with this gateway ID; all sessions of this gateway end, and devices authenticate again"
            );
            self.discard_fresh();
            let devices: Vec<_> = self.devices.keys().copied().collect();
            devices
                .into_iter()
                .for_each(|device| self.remove_device(device, false));
        }
        self.data_plane.set_owner(fencing_token);
    }
}
