//! Continues with the memory that an earlier process of this gateway left in the kernel.
//!
//! The data plane has kept running. Rows below the marks of the earlier process may be spent in any case. Rows at or
//! above the marks may be spent only if no other process has registered with this gateway ID between the earlier process
//! and this process, because that other process may have spent the rows. The fencing tokens show this: without another
//! process, the new token is the earlier process's token plus 1.

use linewarden_dataplane::{InheritedDevice, InheritedState};
use linewarden_protocol::ids::Mode;

use super::context::Context;
use super::devices::DeviceCache;
use super::freshness::FreshValues;

/// An adoption that is not confirmed yet.
#[derive(Debug)]
pub(super) struct Adoption {
    /// The fencing token of the process that left the memory.
    owner: u64,
    /// First tick of this process, boot-time clock; `None` before.
    since_ns: Option<u64>,
}

impl Adoption {
    /// Adopts the state of the data plane; `None` if there is none.
    pub(super) fn begin(
        devices: &mut DeviceCache,
        fresh_values: &mut FreshValues,
        context: &mut Context,
    ) -> Option<Self> {
        let InheritedState {
            owner,
            devices: inherited,
            fresh,
            fresh_at_ns,
        } = context.data_plane.take_inherited_state()?;
        if fresh != [0; 8] {
            fresh_values.adopt(fresh, fresh_at_ns);
        }
        // An earlier process that was replaced has stopped the data plane.
        context.data_plane.set_stopping(false);
        for device in inherited {
            adopt_device(device, devices, fresh_values, context);
        }
        // Responses to the earlier process are lost, so all devices are checked.
        devices.scan(context);
        tracing::info!(
            count = devices.installed_count(),
            "continuing with the devices of the previous process"
        );
        Some(Self {
            owner,
            since_ns: None,
        })
    }

    /// Returns since when this process uses the memory, boot-time clock: the adopted state was valid when this process
    /// started.
    pub(super) fn since_ns(&mut self, boot_ns: u64) -> u64 {
        *self.since_ns.get_or_insert(boot_ns)
    }

    /// Confirms the adoption with this process's fencing token, or ends all adopted sessions.
    pub(super) fn confirm(
        self,
        fencing_token: u64,
        devices: &mut DeviceCache,
        fresh_values: &mut FreshValues,
        context: &mut Context,
    ) {
        if self.owner.checked_add(1) == Some(fencing_token) {
            return;
        }
        tracing::warn!(
            fencing_token,
            previous_fencing_token = self.owner,
            "before this process, another process registered with this gateway ID; all sessions of this gateway end, and devices authenticate again"
        );
        // The counters of key-mode devices are lost with their lines, as in `adopt_device`.
        fresh_values.discard();
        devices.remove_all(context);
    }
}

fn adopt_device(
    inherited: InheritedDevice,
    devices: &mut DeviceCache,
    fresh_values: &mut FreshValues,
    context: &mut Context,
) {
    let mode = match inherited.line.commit.is_key_mode() {
        true => Mode::Key,
        false => Mode::Pool,
    };
    match inherited.epoch.filter(|_| !inherited.line.commit.is_revoked()) {
        Some(epoch) => devices.adopt(inherited, epoch, mode, context),
        // The earlier process ended before it had wiped the device or stored the epoch.
        None => {
            if mode == Mode::Key {
                // The counter of a key-mode device is lost with its line; under a fresh value that is still accepted,
                // the device's last RESPONSE would open a session again.
                fresh_values.discard();
            }
            devices.wipe_inherited(inherited.device, context);
        }
    }
}
