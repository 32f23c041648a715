//! Where a prover was seen: the route to the device through the switch.

use std::net::{IpAddr, SocketAddr};

use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{self, Mac, ip_from_bytes};
use linewarden_protocol::wire::{AttestRequest, LAP_PORT, MESSAGE_BYTES};
use zerocopy::IntoBytes as _;

/// Maximum number of locations of each kind per prover.
const LOCATIONS_MAX: usize = 4;

/// Size of an Ethernet frame with two tags, IPv6, UDP and a message.
const FRAME_BYTES_MAX: usize = 14 + 2 * 4 + 40 + 8 + MESSAGE_BYTES;

/// Where a prover was seen, newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct ProverLocations {
    /// Locations of sessions, each under another address. A device that proved itself at a location receives requests
    /// there, even if its session moves.
    sessions: Vec<DeviceLocation>,
    /// Origins of unauthenticated messages in the prover's name while the prover was not installed. These origins never
    /// replace the location of a session.
    unverified: Vec<DeviceLocation>,
}

impl ProverLocations {
    pub fn record_session(&mut self, location: DeviceLocation) {
        insert_newest(&mut self.sessions, location, |known| {
            known.address == location.address
        });
    }

    pub fn record_unverified(&mut self, location: DeviceLocation) {
        insert_newest(&mut self.unverified, location, |known| *known == location);
    }

    /// The possible locations of the device under that address.
    pub fn locations_at(&self, address: IpAddr) -> Vec<DeviceLocation> {
        let candidates = self.sessions.iter().chain(&self.unverified);
        let mut locations: Vec<DeviceLocation> = Vec::new();
        for location in candidates.filter(|location| location.address == address) {
            if !locations.iter().any(|known| known.has_same_route(location)) {
                locations.push(*location);
            }
        }
        if locations.is_empty() {
            locations.extend(self.sessions.first());
        }
        locations
    }
}

/// Inserts a location at the front. Removes the locations that `is_replaced` selects, and the oldest locations above
/// [`LOCATIONS_MAX`].
fn insert_newest(
    locations: &mut Vec<DeviceLocation>,
    location: DeviceLocation,
    is_replaced: impl Fn(&DeviceLocation) -> bool,
) {
    locations.retain(|known| !is_replaced(known));
    locations.insert(0, location);
    locations.truncate(LOCATIONS_MAX);
}

/// The location of a device, and the gateway's addresses that the device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceLocation {
    address: IpAddr,
    pub origin: Origin,
    gateway_mac: Mac,
    gateway_address: IpAddr,
}

impl DeviceLocation {
    /// The location in the registers of a session. `None`: the device has had no session.
    pub fn of_session(&[address, place, own_mac, own_address]: &[u128; 4]) -> Option<Self> {
        let [_, _, own_mac @ ..] = (own_mac as u64).to_be_bytes();
        (place != 0).then(|| Self {
            address: ip_from_bytes(address.to_be_bytes()),
            origin: Origin::unpack(place),
            gateway_mac: own_mac,
            gateway_address: ip_from_bytes(own_address.to_be_bytes()),
        })
    }

    /// The location of the sender of a frame that arrived on that port.
    pub fn of_frame(frame: &[u8], ingress: u16) -> Option<Self> {
        let parsed = frame::parse(frame).ok()?;
        let (ip, udp) = parsed.datagram()?;
        Some(Self {
            address: ip.src,
            origin: Origin {
                is_bound: false,
                port: udp.src_port,
                ingress,
                vlans: parsed.vlans,
                mac: parsed.src_mac,
            },
            gateway_mac: *frame.first_chunk()?,
            gateway_address: ip.dst,
        })
    }

    /// Whether frames to both locations take the same route.
    fn has_same_route(&self, other: &Self) -> bool {
        let route = |location: &Self| {
            (
                location.origin.ingress,
                location.origin.vlans,
                location.origin.mac,
            )
        };
        route(self) == route(other)
    }

    /// The frame of a request to address and port `to`, from the gateway's address that the device uses.
    pub fn frame(&self, to: SocketAddr, request: &AttestRequest) -> Option<Vec<u8>> {
        let from = Endpoint {
            mac: self.gateway_mac,
            ip: self.gateway_address,
            port: LAP_PORT,
        };
        let to = Endpoint {
            mac: self.origin.mac,
            ip: to.ip(),
            port: to.port(),
        };
        let mut frame = vec![0; FRAME_BYTES_MAX];
        let bytes = write::udp(&mut frame, &from, &to, self.origin.vlans, request.as_bytes())?;
        frame.truncate(bytes);
        Some(frame)
    }
}

/// `place` of lap.p4: the origin of a session's RESPONSE, without the IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub is_bound: bool,
    /// UDP port.
    pub port: u16,
    /// Port of the switch, 9 bits.
    pub ingress: u16,
    /// Outer and inner tag, with `VLAN_TAGGED` set if present.
    pub vlans: [u16; 2],
    pub mac: Mac,
}

impl Origin {
    pub fn unpack(place: u128) -> Self {
        let [_, _, mac @ ..] = (place as u64 & 0xffff_ffff_ffff).to_be_bytes();
        Self {
            is_bound: place >> 105 & 1 == 1,
            port: (place >> 89) as u16,
            ingress: (place >> 80) as u16 & 0x1ff,
            vlans: [(place >> 64) as u16, (place >> 48) as u16],
            mac,
        }
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::frame::builder::FrameBuilder;
    use linewarden_protocol::frame::{VLAN_TAGGED, ip_bytes};

    use super::*;

    #[test]
    fn a_session_and_a_message_give_the_same_location() {
        let end = |number: u8, port| Endpoint {
            mac: [2, 0, 0, 0, 0, number],
            ip: IpAddr::from([192, 0, 2, number]),
            port,
        };
        let (device, gateway) = (end(9, 4000), end(1, LAP_PORT));
        let frame = FrameBuilder::new(device, gateway)
            .vlan(7)
            .udp(&[0; MESSAGE_BYTES]);
        let of_frame = DeviceLocation::of_frame(&frame, 3).unwrap();
        let number = |mac: Mac| mac.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
        let address = |ip: IpAddr| u128::from_be_bytes(ip_bytes(ip));
        let vlans = u128::from(VLAN_TAGGED | 7) << 64;
        let place = 4000 << 89 | 3 << 80 | vlans | number(device.mac);
        let registers = [
            address(device.ip),
            place,
            number(gateway.mac),
            address(gateway.ip),
        ];
        assert_eq!(DeviceLocation::of_session(&registers), Some(of_frame));
        assert_eq!(DeviceLocation::of_session(&[0; 4]), None);
        assert_eq!(DeviceLocation::of_frame(&frame[..40], 3), None);
    }

    fn location(address: u8, port: u16) -> DeviceLocation {
        DeviceLocation {
            address: IpAddr::from([192, 0, 2, address]),
            origin: Origin::unpack(u128::from(port) << 80),
            gateway_mac: [2, 0, 0, 0, 0, 1],
            gateway_address: IpAddr::from([192, 0, 2, 1]),
        }
    }

    #[test]
    fn a_forged_message_replaces_no_session_location() {
        let mut locations = ProverLocations::default();
        let (first, second) = (location(9, 3), location(8, 3));
        assert_eq!(locations.locations_at(first.address), []);
        locations.record_unverified(second);
        assert_eq!(
            locations.locations_at(first.address),
            [],
            "a message alone gives no location for other addresses"
        );
        locations.record_session(first);
        (10..20).for_each(|port| locations.record_unverified(location(9, port)));
        let at_first = locations.locations_at(first.address);
        assert_eq!((at_first[0], at_first.len()), (first, 1 + LOCATIONS_MAX));
        (20..40).for_each(|address| locations.record_unverified(location(address, 7)));
        assert_eq!(locations.locations_at(first.address), [first]);
        assert_eq!(locations.unverified.len(), LOCATIONS_MAX);
        // The session moved. Requests to the old address still go to the old location, so the device stays reachable.
        locations.record_session(second);
        assert_eq!(locations.locations_at(first.address), [first]);
        assert_eq!(locations.locations_at(location(77, 0).address), [second]);
    }
}
