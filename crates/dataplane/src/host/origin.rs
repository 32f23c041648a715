//! The origin of a datagram.

use linewarden_protocol::frame::Meta;

use crate::store::wire_word;
use crate::timestamps::Timestamps;

/// The origin of a datagram, in the format of lines and sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) ingress: u32,
    pub(super) vlans: [u16; 2],
    /// UDP port, in wire order.
    pub(super) port: u16,
    pub(super) addr: [u64; 2],
}

impl Origin {
    pub(super) fn of(meta: &Meta) -> Self {
        Self {
            ingress: meta.ingress,
            vlans: meta.vlans,
            port: meta.src_port.to_be(),
            addr: linewarden_protocol::keys::halves(&meta.src_ip).map(wire_word),
        }
    }
}

/// Source of the sender's MAC address; words in the format of [`mac_word`]. Queried only for messages that passed all
/// cheaper checks.
pub(super) trait MacSource {
    /// MAC address of the sender of a BOUND RESPONSE; `None` if unknown.
    fn sender_mac(&mut self, origin: &Origin, now: Timestamps) -> Option<u64>;
    /// Queries the source again, because `stale` did not match. `None` if there is no other result.
    fn refreshed_mac(&mut self, origin: &Origin, now: Timestamps, stale: u64) -> Option<u64>;
    /// The MAC address that is stored in a session without BOUND and compared with it.
    fn unbound_mac(&mut self) -> u64;
}
