//! Sends ATTEST_REQUESTs through the switch (LAP/1 3.2). The gateway builds the frames and sends them by packet-out to the
//! port from which the device's session was opened.
//!
//! A switch has no neighbor table and does not answer ARP. Only the device's messages reveal the location of the device:
//! the RESPONSE of its session or, for a device that is not installed, its latest messages.

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

/// Maximum number of requests per call of [`P4Runtime::send_requests`]. The locations for a call are read from the switch
/// together. A call ends at a request without a location.
const REQUESTS_PER_CALL: usize = 16;
/// Maximum number of locations of each kind per prover.
const LOCATIONS_MAX: usize = 4;
/// Size of an Ethernet frame with two tags, IPv6, UDP and a message.
const FRAME_BYTES_MAX: usize = 14 + 2 * 4 + 40 + 8 + MESSAGE_BYTES;

impl P4Runtime {
    /// See [`crate::DataPlane::session_requests`].
    pub(super) fn requests_in_sessions(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Result<Vec<Option<(IpAddr, AttestRequest)>>, SwitchError> {
        self.check_usable()?;
        let mut requests = Vec::with_capacity(devices.len());
        for batch in devices.chunks(DEVICES_PER_READ) {
            let cells = || batch.iter().filter_map(|device| self.active_cell(*device));
            let names = [
                "session_ids",
                "session_key0s",
                "session_key1s",
                "addresses",
                "session_ends",
            ];
            let register_cells: Vec<_> = cells().flat_map(|cell| names.map(|name| (name, cell))).collect();
            let values = self.connection.read_cells(&register_cells)?;
            // Another authentication may complete between the two reads. Each authentication changes the session id first,
            // so a changed id marks the values of the first read as invalid.
            let ids_after = self.connection.read_column("session_ids", cells())?;
            let mut values = values.as_chunks().0.iter().zip(ids_after);
            let request = |device: &DeviceId| {
                self.active_cell(*device)?;
                let (registers, id_after) = values.next()?;
                self.request_from_registers(registers, id_after, *device, round, now_s)
            };
            requests.extend(batch.iter().map(request));
        }
        Ok(requests)
    }

    /// The cell of a device that is installed and not revoked.
    pub(super) fn active_cell(&self, device: DeviceId) -> Option<u32> {
        let entry = self.table.devices.get(&device);
        entry.filter(|entry| !entry.is_revoked).map(|entry| entry.cell)
    }

    fn request_from_registers(
        &self,
        &[id, key0, key1, address, until_us]: &[u128; 5],
        id_after: u128,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        let is_live = self.clock.boot_us(until_us as u64) > u64::from(now_s) * 1_000_000;
        if id == 0 || id != id_after || !is_live {
            return None;
        }
        let key = SessionKey::from_bytes((key0 << 64 | key1).to_be_bytes());
        Some((ip_from_bytes(address.to_be_bytes()), round.request(device, &key)))
    }

    /// Sends at most [`REQUESTS_PER_CALL`] requests in order, until a request has no location. Returns the number of sent
    /// requests.
    pub(super) fn send_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let is_known = |(_, request): &&(SocketAddr, AttestRequest)| {
            let device = request.header.device();
            self.table.devices.contains_key(&device) || self.provers.locations(device).is_some()
        };
        let count = requests
            .iter()
            .take(REQUESTS_PER_CALL)
            .take_while(is_known)
            .count();
        let batch = requests.get(..count).unwrap_or_default();
        let locations = self.locations_of(batch);
        let locations = self.record_failure(locations)?;
        let mut sent = 0;
        for ((to, request), locations) in batch.iter().zip(locations) {
            if locations.is_empty() {
                break;
            }
            // A location of another address family is skipped.
            let frames = locations.iter().filter_map(|location| {
                let frame = location.frame(*to, request)?;
                Some((location.origin.ingress, frame))
            });
            for (port, frame) in frames {
                self.record_failure(self.connection.packet_out(port, 0, frame))?;
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

    /// The possible locations of the device of each request: all locations where the device was seen under the
    /// requested address, because another sender may have used the device's id; otherwise the location of the device's
    /// latest session. A device that ever had a session therefore always has a location: if the device has moved to
    /// another address, the round counts the device as missed, not as unreachable.
    fn locations_of(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<Vec<Vec<DeviceLocation>>, SwitchError> {
        let devices = requests.iter().map(|(_, request)| request.header.device());
        let cells = devices.filter_map(|device| Some(self.table.devices.get(&device)?.cell));
        let mut session_locations = self.read_locations(cells)?.into_iter();
        let mut locations = Vec::with_capacity(requests.len());
        for (to, request) in requests {
            let device = request.header.device();
            if self.table.devices.contains_key(&device)
                && let Some(location) = session_locations.next().flatten()
            {
                self.provers.record_session(device, location);
            }
            let prover_locations = self.provers.locations(device);
            locations.push(
                prover_locations
                    .map(|known| known.locations_at(to.ip()))
                    .unwrap_or_default(),
            );
        }
        Ok(locations)
    }

    /// The location of each device according to the registers.
    fn read_locations(
        &self,
        cells: impl Iterator<Item = u32>,
    ) -> Result<Vec<Option<DeviceLocation>>, SwitchError> {
        self.check_usable()?;
        let names = ["addresses", "places", "gateway_macs", "gateway_addresses"];
        let cells: Vec<_> = cells.flat_map(|cell| names.map(|name| (name, cell))).collect();
        let values = self.connection.read_cells(&cells)?;
        let values = values.as_chunks().0.iter();
        Ok(values.map(DeviceLocation::of_session).collect())
    }

    /// Saves the location of the session before the session is removed from the switch, so that a revoked device can still
    /// receive requests and prove its configuration.
    pub(super) fn save_location(&mut self, device: DeviceId) -> Result<(), SwitchError> {
        let entry = self.table.devices.get(&device);
        if let Some(entry) = entry.filter(|_| self.provers.has(device))
            && let Some(location) = self.read_locations(std::iter::once(entry.cell))?.pop().flatten()
        {
            self.provers.record_session(device, location);
        }
        Ok(())
    }

    /// Records where a message of a prover that is not installed came from. The sender may be another device.
    pub(super) fn record_unverified_location(&mut self, miss: &Miss, frame: &[u8], ingress: u16) {
        let device = miss.device();
        if self.provers.has(device)
            && !self.table.devices.contains_key(&device)
            && let Some(location) = DeviceLocation::of_frame(frame, ingress)
        {
            self.provers.record_unverified(device, location);
        }
    }
}

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
    fn locations_at(&self, address: IpAddr) -> Vec<DeviceLocation> {
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
    origin: Origin,
    gateway_mac: Mac,
    gateway_address: IpAddr,
}

impl DeviceLocation {
    /// The location in the registers of a session. `None`: the device has had no session.
    fn of_session(&[address, place, own_mac, own_address]: &[u128; 4]) -> Option<Self> {
        let [_, _, own_mac @ ..] = (own_mac as u64).to_be_bytes();
        (place != 0).then(|| Self {
            address: ip_from_bytes(address.to_be_bytes()),
            origin: Origin::unpack(place),
            gateway_mac: own_mac,
            gateway_address: ip_from_bytes(own_address.to_be_bytes()),
        })
    }

    /// The location of the sender of a frame that arrived on that port.
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
