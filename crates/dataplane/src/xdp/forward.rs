//! Interfaces that opened datagrams may leave by past the network stack (`bpf/lw_forward.h`).

use libbpf_rs::{MapCore as _, MapFlags};

use linewarden_protocol::frame::Mac;

use super::Xdp;
use crate::layout::PORT_MACS;
use crate::{DataPlaneError, ethtool, links};

impl Xdp {
    /// Lets datagrams whose seal was taken off leave by this interface past the network stack, where its routes lead
    /// there and its neighbours are known: past its filters, too. The interface must take redirected frames: a veth
    /// does if its peer has an XDP program or NAPI. Of a sealed gate only.
    ///
    /// # Errors
    /// The kernel's; an interface on the devices' side.
    pub fn forward_to(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        if self.inside.contains(&ifindex) {
            return Err(on_both_sides(ifindex));
        }
        let key = ifindex.to_ne_bytes();
        self.skeleton
            .maps
            .forward
            .update(&key, &key, MapFlags::ANY)
            .map_err(|error| DataPlaneError::kernel(format!("forwarding to interface {ifindex}"), error))?;
        self.forwards.push(ifindex);
        self.tell_whether();
        Ok(())
    }

    /// Adds those of these interfaces that are not forwarded to yet; all or none.
    pub(super) fn forward_to_these(&mut self, wanted: &[u32]) -> Result<(), DataPlaneError> {
        let before = self.forwards.clone();
        for ifindex in wanted {
            if self.forwards.contains(ifindex) {
                continue;
            }
            if let Err(error) = self.forward_to(*ifindex) {
                self.forward_to_no_others(&before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Forwards to none but these. What is in flight still leaves.
    pub(super) fn forward_to_no_others(&mut self, kept: &[u32]) {
        let forward = &self.skeleton.maps.forward;
        self.forwards.retain(|ifindex| {
            if kept.contains(ifindex) {
                return true;
            }
            if let Err(error) = forward.delete(&ifindex.to_ne_bytes()) {
                // An interface that is gone has left the map by itself.
                tracing::debug!(%error, ifindex, "was not forwarded to any more");
            }
            false
        });
        self.tell_whether();
    }

    /// An interface on the devices' side: frames that are not for it are not ours to forward.
    pub(super) fn stand_inside(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        if self.forwards.contains(&ifindex) {
            return Err(on_both_sides(ifindex));
        }
        let what = || format!("the MAC addresses of interface {}", ethtool::told_of(ifindex));
        let links = links::links().map_err(|error| DataPlaneError::kernel(what(), error))?;
        if !self.set_own_macs(ifindex, &links::macs_of(&links, ifindex)) {
            return Err(DataPlaneError::kernel(what(), "there is room for 64 interfaces"));
        }
        self.inside.push(ifindex);
        Ok(())
    }

    /// Sets which MAC addresses frames that come in by this interface are the gateway's by; of others none is answered.
    /// [`Xdp::attach`] finds them out; this is for programs that are only run. `false`: there is no room for the interface.
    pub fn set_own_macs(&mut self, ifindex: u32, macs: &[Mac]) -> bool {
        let before = self.macs.insert(ifindex, macs.to_vec());
        if macs.len() > PORT_MACS && before.is_none_or(|before| before.len() <= PORT_MACS) {
            tracing::warn!(
                interface = ethtool::told_of(ifindex),
                mac_addresses = macs.len(),
                "the interface, its bridge or bond, VLANs and macvlans have more than {PORT_MACS} MAC addresses; messages to the \
                 others are not answered"
            );
        }
        self.store.set_port(ifindex, macs)
    }

    /// Looks for MAC addresses that have changed. In the network namespace of the interfaces.
    pub(super) fn follow_macs(&mut self) {
        if self.inside.is_empty() {
            return;
        }
        let links = match links::links() {
            Ok(links) => links,
            Err(error) => {
                tracing::warn!(%error, "listing the interfaces failed; MAC addresses that have changed are not known");
                return;
            }
        };
        for ifindex in self.inside.clone() {
            // Of an interface that is gone there is nothing to learn.
            let macs = links::macs_of(&links, ifindex);
            if !macs.is_empty() {
                self.set_own_macs(ifindex, &macs);
            }
        }
        self.store.keep_ports(&self.inside);
    }

    fn tell_whether(&mut self) {
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.lw_forwards = u32::from(!self.forwards.is_empty());
        }
    }
}

/// Redirected frames are seen by no filter, and so would leave unsealed.
fn on_both_sides(ifindex: u32) -> DataPlaneError {
    DataPlaneError::kernel(
        format!("forwarding to interface {ifindex}"),
        "it is on the devices' side itself",
    )
}
