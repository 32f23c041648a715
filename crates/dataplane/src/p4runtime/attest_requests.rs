//! Sends ATTEST_REQUESTs through the switch (LAP/1 3.2): frames built by this side, sent by packet-out to the port
//! from which the device's session was opened.
//!
//! A switch has no neighbor table and does not answer ARP. Only the device's messages reveal its location: the
//! RESPONSE of its session or, for a device that is not installed, its last message.

use std::net::{IpAddr, SocketAddr};

use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{self, Mac, ip_from_bytes};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{AttestRequest, LAP_PORT, MESSAGE_BYTES};
use zerocopy::IntoBytes as _;

use super::device::{DEVICES_PER_READ, Origin};
use super::{P4Runtime, SwitchError};
use crate::DataPlaneError;
use crate::miss::Miss;

/// Requests whose locations are read at once. A request without a location costs another call.
const REQUESTS_PER_CALL: usize = 16;
/// Locations of each kind that are kept per prover.
const LOCATIONS_MAX: usize = 4;
/// Ethernet with two tags, IPv6, UDP and a message.
const FRAME_BYTES_MAX: usize = 14 + 2 * 4 + 40 + 8 + MESSAGE_BYTES;

impl P4Runtime {
    pub(super) fn requests_in_sessions(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Result<Vec<Option<(IpAddr, AttestRequest)>>, SwitchError> {
        self.check_usable()?;
        let mut requests = Vec::with_capacity(devices.len());
        for some in devices.chunks(DEVICES_PER_READ) {
            let cells = || some.iter().filter_map(|device| self.active_cell(*device));
            let names = [
                "session_ids",
                "session_key0s",
                "session_key1s",
                "addresses",
                "session_ends",
            ];
            let all: Vec<_> = cells().flat_map(|cell| names.map(|name| (name, cell))).collect();
            let read = self.link.read_cells(&all)?;
            // A winner in between changes the session's id first.
            let again = self.link.read_column("session_ids", cells())?;
            let mut read = read.as_chunks().0.iter().zip(again);
            let request = |device: &DeviceId| {
                self.active_cell(*device)?;
                let (held, again) = read.next()?;
                self.request_from_registers(held, again, *device, round, now_s)
            };
            requests.extend(some.iter().map(request));
        }
        Ok(requests)
    }

    /// The cell of a device that is installed and not revoked.
    pub(super) fn active_cell(&self, device: DeviceId) -> Option<u32> {
        let held = self.table.devices.get(&device);
        held.filter(|held| !held.is_revoked).map(|held| held.cell)
    }

    fn request_from_registers(
        &self,
        &[id, key0, key1, address, until_us]: &[u128; 5],
        id_again: u128,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        let is_live = self.clock.boot_us(until_us as u64) > u64::from(now_s) * 1_000_000;
        if id == 0 || id != id_again || !is_live {
            return None;
        }
        let key = SessionKey::from_bytes((key0 << 64 | key1).to_be_bytes());
        Some((ip_from_bytes(address.to_be_bytes()), round.request(device, &key)))
    }

    /// Sends the first requests, as many as have a location.
    pub(super) fn send_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let is_known = |(_, request): &&(SocketAddr, AttestRequest)| {
            let device = request.header.device();
            self.table.devices.contains_key(&device) || self.provers.locations(device).is_some()
        };
        let some = requests
            .iter()
            .take(REQUESTS_PER_CALL)
            .take_while(is_known)
            .count();
        let some = requests.get(..some).unwrap_or_default();
        let places = self.locations_of(some);
        let places = self.record_failure(places)?;
        let mut sent = 0;
        for ((to, request), places) in some.iter().zip(places) {
            if places.is_empty() {
                break;
            }
            // A location of another address family is skipped.
            let frames = places.iter().filter_map(|place| {
                let frame = place.frame(*to, request)?;
                Some((place.origin.ingress, frame))
            });
            for (port, frame) in frames {
                self.record_failure(self.link.packet_out(port, 0, frame))?;
            }
            sent += 1;
        }
        match requests.get(sent) {
            Some((to, request)) if sent == 0 => Err(DataPlaneError::DeviceLocationUnknown {
                device: request.header.device(),
                address: to.ip(),
            }),
            _ => Ok(sent),
        }
    }

    /// The possible locations of each device with a requested address: all locations where it was seen under that
    /// address, because another sender may have used its name; otherwise the location of its last session. A device
    /// that ever had a session always has a location: a device that moves between addresses counts as not answering,
    /// not as unreachable.
    fn locations_of(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<Vec<Vec<DeviceLocation>>, SwitchError> {
        let devices = requests.iter().map(|(_, request)| request.header.device());
        let cells = devices.filter_map(|device| Some(self.table.devices.get(&device)?.cell));
        let mut read = self.read_locations(cells)?.into_iter();
        let mut places = Vec::with_capacity(requests.len());
        for (to, request) in requests {
            let device = request.header.device();
            if self.table.devices.contains_key(&device)
                && let Some(place) = read.next().flatten()
            {
                self.provers.record_session(device, place);
            }
            let seen = self.provers.locations(device);
            places.push(seen.map(|seen| seen.locations_at(to.ip())).unwrap_or_default());
        }
        Ok(places)
    }

    /// The location of each device according to the registers.
    fn read_locations(
        &self,
        cells: impl Iterator<Item = u32>,
    ) -> Result<Vec<Option<DeviceLocation>>, SwitchError> {
        self.check_usable()?;
        let names = ["addresses", "places", "gateway_macs", "gateway_addresses"];
        let cells: Vec<_> = cells.flat_map(|cell| names.map(|name| (name, cell))).collect();
        let read = self.link.read_cells(&cells)?;
        let read = read.as_chunks().0.iter();
        Ok(read.map(DeviceLocation::of_session).collect())
    }

    /// Saves the location of the session before the switch forgets it, so that a revoked device can still receive
    /// requests and prove its configuration.
    pub(super) fn save_location(&mut self, device: DeviceId) -> Result<(), SwitchError> {
        let held = self.table.devices.get(&device);
        if let Some(held) = held.filter(|_| self.provers.has(device))
            && let Some(place) = self.read_locations(std::iter::once(held.cell))?.pop().flatten()
        {
            self.provers.record_session(device, place);
        }
        Ok(())
    }

    /// Records where a message of a prover that is not installed came from. The sender may be another device.
    pub(super) fn record_unverified_location(&mut self, miss: &Miss, frame: &[u8], ingress: u16) {
        let device = miss.device();
        if self.provers.has(device)
            && !self.table.devices.contains_key(&device)
            && let Some(place) = DeviceLocation::of_frame(frame, ingress)
        {
            self.provers.record_unverified(device, place);
        }
    }
}

/// Where a prover was seen, newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct ProverLocations {
    /// Locations of sessions, each under another address. A device that proved itself at a location receives requests
    /// there, even if its session moves.
    sessions: Vec<DeviceLocation>,
    /// Origins of unauthenticated messages in its name while it was not installed. They never replace the location of
    /// a session.
    unverified: Vec<DeviceLocation>,
}

impl ProverLocations {
    pub fn record_session(&mut self, place: DeviceLocation) {
        insert_newest(&mut self.sessions, place, |known| known.address == place.address);
    }

    pub fn record_unverified(&mut self, place: DeviceLocation) {
        insert_newest(&mut self.unverified, place, |known| *known == place);
    }

    /// The possible locations of the device under that address.
    fn locations_at(&self, address: IpAddr) -> Vec<DeviceLocation> {
        let all = self.sessions.iter().chain(&self.unverified);
        let mut places: Vec<DeviceLocation> = Vec::new();
        for place in all.filter(|place| place.address == address) {
            if !places.iter().any(|known| known.has_same_route(place)) {
                places.push(*place);
            }
        }
        if places.is_empty() {
            places.extend(self.sessions.first());
        }
        places
    }
}

/// Inserts a location at the front, and removes those that `is_old` matches and the oldest beyond the limit.
fn insert_newest(
    places: &mut Vec<DeviceLocation>,
    place: DeviceLocation,
    is_old: impl Fn(&DeviceLocation) -> bool,
) {
    places.retain(|known| !is_old(known));
    places.insert(0, place);
    places.truncate(LOCATIONS_MAX);
}

/// The location of a device, and the gateway's addresses that the device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceLocation {
    address: IpAddr,
    origin: Origin,
    gateway_mac: Mac,
    gateway_address: IpAddr,
}

impl DeviceLocation {
    /// From the registers of a session. `None`: the device has had no session.
    fn of_session(&[address, place, own_mac, own_address]: &[u128; 4]) -> Option<Self> {
        let [_, _, own_mac @ ..] = (own_mac as u64).to_be_bytes();
        (place != 0).then(|| Self {
            address: ip_from_bytes(address.to_be_bytes()),
            origin: Origin::unpack(place),
            gateway_mac: own_mac,
            gateway_address: ip_from_bytes(own_address.to_be_bytes()),
        })
    }

    /// From a frame that arrived on that port.
    fn of_frame(frame: &[u8], ingress: u16) -> Option<Self> {
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

    /// Whether frames to both take the same route.
    fn has_same_route(&self, other: &Self) -> bool {
        let route = |place: &Self| (place.origin.ingress, place.origin.vlans, place.origin.mac);
        route(self) == route(other)
    }

    /// A request to UDP port `to`, from the gateway's address that the device uses.
    fn frame(&self, to: SocketAddr, request: &AttestRequest) -> Option<Vec<u8>> {
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

    fn place(address: u8, port: u16) -> DeviceLocation {
        DeviceLocation {
            address: IpAddr::from([192, 0, 2, address]),
            origin: Origin::unpack(u128::from(port) << 80),
            gateway_mac: [2, 0, 0, 0, 0, 1],
            gateway_address: IpAddr::from([192, 0, 2, 1]),
        }
    }

    #[test]
    fn a_forged_message_replaces_no_session_location() {
        let mut seen = ProverLocations::default();
        let (home, other) = (place(9, 3), place(8, 3));
        assert_eq!(seen.locations_at(home.address), []);
        seen.record_unverified(other);
        assert_eq!(
            seen.locations_at(home.address),
            [],
            "a message alone gives no location for other addresses"
        );
        seen.record_session(home);
        (10..20).for_each(|port| seen.record_unverified(place(9, port)));
        let at_home = seen.locations_at(home.address);
        assert_eq!((at_home[0], at_home.len()), (home, 1 + LOCATIONS_MAX));
        (20..40).for_each(|address| seen.record_unverified(place(address, 7)));
        assert_eq!(seen.locations_at(home.address), [home]);
        assert_eq!(seen.unverified.len(), LOCATIONS_MAX);
        // The session moved. Requests to the old address still go to the old location, and the device stays
        // reachable.
        seen.record_session(other);
        assert_eq!(seen.locations_at(home.address), [home]);
        assert_eq!(seen.locations_at(place(77, 0).address), [other]);
    }
}
