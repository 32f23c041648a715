//! Interfaces through which opened datagrams may leave without passing the network stack (`bpf/lw_forward.h`).

use libbpf_rs::{MapCore as _, MapFlags};

use linewarden_protocol::frame::Mac;

use super::Xdp;
use crate::error::DataPlaneError;
use crate::layout::PORT_MACS;
use crate::{ethtool, links};

impl Xdp {
    /// Lets opened datagrams leave through this interface without passing the network stack and its filters, if the
    /// routes lead there and the neighbor is known. The interface must accept redirected frames: a veth does if its
    /// peer has an XDP program or NAPI. Only with a sealed gate.
    ///
    /// # Errors
    /// The kernel refused an operation, or the interface is on the devices' side.
    pub fn forward_to(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        if self.interfaces.device_ports.contains(&ifindex) {
            return Err(both_sides_error(ifindex));
        }
        let key = ifindex.to_ne_bytes();
        self.skeleton
            .maps
            .forward
            .update(&key, &key, MapFlags::ANY)
            .map_err(|error| DataPlaneError::kernel(format!("forwarding to interface {ifindex}"), error))?;
        self.interfaces.forwards.push(ifindex);
        self.update_forward_flag();
        Ok(())
    }

    /// Adds those of `interfaces` that are missing. If an error occurs, none is added.
    pub(super) fn add_forwards(&mut self, interfaces: &[u32]) -> Result<(), DataPlaneError> {
        let previous = self.interfaces.forwards.clone();
        for ifindex in interfaces {
            if self.interfaces.forwards.contains(ifindex) {
                continue;
            }
            if let Err(error) = self.forward_to(*ifindex) {
                self.retain_forwards(&previous);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Forwards only to these interfaces. Packets in flight still leave through other interfaces.
    pub(super) fn retain_forwards(&mut self, interfaces: &[u32]) {
        let forward = &self.skeleton.maps.forward;
        self.interfaces.forwards.retain(|ifindex| {
            if interfaces.contains(ifindex) {
                return true;
            }
            if let Err(error) = forward.delete(&ifindex.to_ne_bytes()) {
                // The kernel has already removed a deleted interface from the map.
                tracing::debug!(%error, interface = ifindex, "xdp: removing an interface from the forwarding map failed");
            }
            false
        });
        self.update_forward_flag();
    }

    /// Registers an interface on the devices' side, and the MAC addresses to which its frames can be addressed.
    pub(super) fn add_device_port(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        if self.interfaces.forwards.contains(&ifindex) {
            return Err(both_sides_error(ifindex));
        }
        let operation = || {
            format!(
                "registering the MAC addresses of interface {}",
                ethtool::display_name(ifindex)
            )
        };
        let links = links::links().map_err(|error| DataPlaneError::kernel(operation(), error))?;
        if !self.set_own_macs(ifindex, &links::macs_of(&links, ifindex)) {
            return Err(DataPlaneError::kernel(
                operation(),
                "at most 64 interfaces are supported",
            ));
        }
        self.interfaces.device_ports.push(ifindex);
        Ok(())
    }

    /// Sets the gateway's MAC addresses for frames that arrive on this interface; frames to other addresses are not
    /// answered. [`Xdp::attach`] determines these addresses; this function is for programs that run without being
    /// attached.
    /// Returns `false` if the table of interfaces is full.
    pub fn set_own_macs(&mut self, ifindex: u32, macs: &[Mac]) -> bool {
        let previous = self.interfaces.macs.insert(ifindex, macs.to_vec());
        if macs.len() > PORT_MACS && previous.is_none_or(|previous| previous.len() <= PORT_MACS) {
            tracing::warn!(
                interface = ethtool::display_name(ifindex),
                count = macs.len(),
                "xdp: the interface, its bridge or bond, VLANs and macvlans have more than {PORT_MACS} MAC addresses; messages to the \
                 others are not answered"
            );
        }
        self.store.set_port(ifindex, macs)
    }

    /// Reads MAC addresses that have changed. Call it in the network namespace of the interfaces.
    pub(super) fn refresh_macs(&mut self) {
        if self.interfaces.device_ports.is_empty() {
            return;
        }
        let links = match links::links() {
            Ok(links) => links,
            Err(error) => {
                tracing::warn!(%error, "xdp: listing the interfaces failed; changed MAC addresses are not applied");
                return;
            }
        };
        for ifindex in self.interfaces.device_ports.clone() {
            // A removed interface has no addresses.
            let macs = links::macs_of(&links, ifindex);
            if !macs.is_empty() {
                self.set_own_macs(ifindex, &macs);
            }
        }
        self.store.keep_ports(&self.interfaces.device_ports);
    }

    fn update_forward_flag(&mut self) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.lw_forwards = u32::from(!self.interfaces.forwards.is_empty());
        }
    }
}

/// The error for an interface on both sides: no filter sees redirected frames, so they would leave unsealed.
fn both_sides_error(ifindex: u32) -> DataPlaneError {
    DataPlaneError::kernel(
        format!("forwarding to interface {ifindex}"),
        "the interface is on the devices' side",
    )
}
