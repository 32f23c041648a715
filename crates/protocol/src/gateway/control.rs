//! Link control protocols that an operator can let pass a gate without a session, by destination address and Ethernet
//! type.

use crate::frame::header::ETHER_TYPE_MIN;
use crate::frame::{Frame, Mac, Network};

/// Represents frames with a length field in place of the Ethernet type (IEEE 802.3, LLC).
pub const LLC: u16 = 0;

/// A group address of a control protocol, and the Ethernet type of its frames, or [`LLC`].
pub type ControlAddress = (Mac, u16);

macro_rules! control_protocols {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, [$($address:expr),+];)+) => {
        /// A control protocol of a link.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum ControlProtocol { $($(#[doc = $doc])+ $variant),+ }

        impl ControlProtocol {
            /// All control protocols.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The protocol's name in configurations.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The destination addresses of the protocol's messages.
            #[must_use]
            pub fn addresses(self) -> &'static [ControlAddress] {
                match self { $(Self::$variant => const { &[$($address),+] }),+ }
            }
        }
    };
}

/// Group address of IEEE 802.1 that bridges do not forward (IEEE 802.1Q table 8-1).
const fn bridge_group(last: u8) -> Mac {
    [0x01, 0x80, 0xc2, 0, 0, last]
}

control_protocols! {
    /// Spanning tree: IEEE 802.1D, provider bridges, and per VLAN (PVST+).
    Stp = "stp", [(bridge_group(0x00), LLC), (bridge_group(0x08), LLC), ([0x01, 0, 0x0c, 0xcc, 0xcc, 0xcd], LLC)];
    /// CDP, VTP and DTP, which share one address.
    Cdp = "cdp", [([0x01, 0, 0x0c, 0xcc, 0xcc, 0xcc], LLC)];
    /// LLDP (IEEE 802.1AB): nearest bridge, nearest non-TPMR bridge, nearest customer bridge.
    Lldp = "lldp", [(bridge_group(0x0e), 0x88cc), (bridge_group(0x03), 0x88cc), (bridge_group(0x00), 0x88cc)];
    /// PTP over Ethernet (IEEE 1588 annex E): the address of most messages, and the address of peer delay messages.
    Ptp = "ptp", [([0x01, 0x1b, 0x19, 0, 0, 0], 0x88f7), (bridge_group(0x0e), 0x88f7)];
    /// EAPOL and MKA (IEEE 802.1X).
    Eapol = "eapol", [(bridge_group(0x03), 0x888e)];
    /// LACP and the other slow protocols (IEEE 802.3 annex 57A).
    Lacp = "lacp", [(bridge_group(0x02), 0x8809)];
    /// MRP (IEC 62439-2): test and control frames of a ring.
    Mrp = "mrp", [([0x01, 0x15, 0x4e, 0, 0x01, 0x01], 0x88e3), ([0x01, 0x15, 0x4e, 0, 0x01, 0x02], 0x88e3)];
    /// PROFINET DCP: Identify and Hello.
    ProfinetDcp = "profinet-dcp", [([0x01, 0x0e, 0xcf, 0, 0, 0], 0x8892), ([0x01, 0x0e, 0xcf, 0, 0, 0x01], 0x8892)];
}

impl ControlProtocol {
    /// The protocol with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|protocol| protocol.name() == name)
    }

    pub(super) fn is_message(self, parsed: &Frame) -> bool {
        let Network::Other(ether_type) = parsed.network else {
            return false;
        };
        self.addresses()
            .contains(&(parsed.dst_mac, protocol_type(ether_type)))
    }
}

/// An Ethernet type, or [`LLC`] for a length.
pub(super) fn protocol_type(ether_type: u16) -> u16 {
    match ether_type < ETHER_TYPE_MIN {
        true => LLC,
        false => ether_type,
    }
}

/// Whether only bridges send this frame. Such frames change the topology of the network.
pub(super) fn is_bridge_frame(parsed: &Frame) -> bool {
    [ControlProtocol::Stp, ControlProtocol::Cdp]
        .iter()
        .any(|protocol| protocol.is_message(parsed))
}
