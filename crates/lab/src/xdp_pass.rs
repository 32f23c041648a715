//! An XDP program that passes all frames, for the end of a veth into which the other end transmits by XDP.
//!
//! When a program on one end of a veth returns `XDP_TX`, the driver wakes the other end's receive work only if an XDP
//! program is attached there, too (`veth_xdp_flush` in drivers/net/veth.c checks `xdp_prog`). With GRO alone the frames
//! stay in the ring until another event wakes the receive work. (`XDP_REDIRECT` needs only NAPI.)

use std::mem::MaybeUninit;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::capability::{self, Capability, MissingCapabilities};
use crate::interface::Interface;
use crate::netns::{NetNs, NetNsError};
use crate::skeletons::pass::PassSkelBuilder;

/// Why the program could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum XdpPassError {
    /// A capability is missing.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// Loading or attaching failed; `Device or resource busy` means that another program is attached.
    #[error("XDP pass program could not be attached to interface {interface}: {source}")]
    Bpf {
        /// The interface.
        interface: String,
        /// The error of libbpf or the kernel.
        source: libbpf_rs::Error,
    },
}

/// The program, attached; detached when dropped or when the process ends.
#[derive(Debug)]
pub struct XdpPass {
    _link: Link,
}

impl XdpPass {
    /// Attaches to an interface that has no XDP program yet.
    ///
    /// # Errors
    /// A capability is missing, or the kernel refuses the program.
    pub fn attach(netns: &NetNs, interface: &Interface) -> Result<Self, XdpPassError> {
        capability::require(&[Capability::NetAdmin, Capability::Bpf])?;
        let attach = || {
            let mut storage = MaybeUninit::uninit();
            let loaded = PassSkelBuilder::default().open(&mut storage)?.load()?;
            loaded.progs.pass.attach_xdp(interface.index.cast_signed())
        };
        match netns.run(attach)? {
            Ok(link) => Ok(Self { _link: link }),
            Err(source) => Err(XdpPassError::Bpf {
                interface: interface.name.clone(),
                source,
            }),
        }
    }
}
