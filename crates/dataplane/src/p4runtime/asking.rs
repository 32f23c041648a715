//! Asking devices through the switch (LAP/1 3.2): frames of this side's own, sent by packet-out to where the session of each came from.
//!
//! A switch has no neighbours' table and answers no ARP. What messages of a device came with is all that tells where it is: the
//! RESPONSE of its session, and of who is not here what it last knocked with.

use std::net::{IpAddr, SocketAddr};

use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{self, Mac, ip_from_bytes};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{AttestRequest, LAP_PORT, MESSAGE_BYTES};
use zerocopy::IntoBytes as _;

use super::device::{DEVICES_AT_ONCE, Origin};
use super::{P4Runtime, SwitchError};
use crate::DataPlaneError;
use crate::miss::Miss;

/// Requests whose places are read at once.
const ASKED_AT_ONCE: usize = 64;
/// Ethernet with two tags, IPv6, UDP and a message.
const FRAME_BYTES_MAX: usize = 14 + 2 * 4 + 40 + 8 + MESSAGE_BYTES;

impl P4Runtime {
    pub(super) fn requests_in_sessions(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Result<Vec<Option<(IpAddr, AttestRequest)>>, SwitchError> {
        self.check()?;
        let mut requests = Vec::with_capacity(devices.len());
        for some in devices.chunks(DEVICES_AT_ONCE) {
            let cells = || some.iter().filter_map(|device| self.live_cell(*device));
            let names = [
                "session_ids",
                "session_key0s",
                "session_key1s",
                "addresses",
                "lease_untils",
            ];
            let all: Vec<_> = cells().flat_map(|cell| names.map(|name| (name, cell))).collect();
            let read = self.link.read_cells(&all)?;
            // A winner that came in between has changed the session's id first of all.
            let again = self.link.column("session_ids", cells())?;
            let mut read = read.as_chunks().0.iter().zip(again);
            let request = |device: &DeviceId| {
                self.live_cell(*device)?;
                let (held, again) = read.next()?;
                self.request_in(held, again, *device, round, now_s)
            };
            requests.extend(some.iter().map(request));
        }
        Ok(requests)
    }

    /// The cell of a device that is here and not shut out.
    fn live_cell(&self, device: DeviceId) -> Option<u32> {
        let held = self.book.devices.get(&device);
        held.filter(|held| !held.is_revoked).map(|held| held.cell)
    }

    fn request_in(
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

    /// Sends the first of them, as many as have a place.
    pub(super) fn ask_devices(
        &self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let some = requests
            .get(..requests.len().min(ASKED_AT_ONCE))
            .unwrap_or(requests);
        let places = self.note(self.places_of(some))?;
        let mut sent = 0;
        for ((to, request), place) in some.iter().zip(places) {
            let frame = place.and_then(|place| Some((place.origin.ingress, place.frame(*to, request)?)));
            let Some((port, frame)) = frame else {
                if sent > 0 {
                    break;
                }
                return Err(DataPlaneError::Unplaced {
                    device: request.header.device(),
                    address: to.ip(),
                });
            };
            self.note(self.link.packet_out(port, 0, frame))?;
            sent += 1;
        }
        Ok(sent)
    }

    /// Where each of them was at that address: by its last session here, else as it was noted.
    fn places_of(
        &self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<Vec<Option<Whereabouts>>, SwitchError> {
        let devices = requests.iter().map(|(_, request)| request.header.device());
        let cells = devices.filter_map(|device| Some(self.book.devices.get(&device)?.cell));
        let mut read = self.whereabouts(cells)?.into_iter();
        let place = |(to, request): &(SocketAddr, AttestRequest)| {
            let device = request.header.device();
            let is_here = self.book.devices.contains_key(&device);
            let of_session = is_here.then(|| read.next()).flatten().flatten();
            let noted = || self.provers.whereabouts(device);
            let is_there = |place: &Whereabouts| place.address == to.ip();
            of_session.filter(is_there).or_else(|| noted().filter(is_there))
        };
        Ok(requests.iter().map(place).collect())
    }

    /// What the registers say of them, each.
    fn whereabouts(&self, cells: impl Iterator<Item = u32>) -> Result<Vec<Option<Whereabouts>>, SwitchError> {
        self.check()?;
        let names = ["addresses", "places", "own_macs", "own_addresses"];
        let cells: Vec<_> = cells.flat_map(|cell| names.map(|name| (name, cell))).collect();
        let read = self.link.read_cells(&cells)?;
        let read = read.as_chunks().0.iter();
        Ok(read.map(Whereabouts::of_session).collect())
    }

    /// A prover is asked where its session was also when the switch has forgotten that: one that is shut out may prove itself again.
    pub(super) fn note_whereabouts(&mut self, device: DeviceId) -> Result<(), SwitchError> {
        let Some(held) = self.book.devices.get(&device) else {
            return Ok(());
        };
        if !self.provers.has(device) {
            return Ok(());
        }
        let place = self.whereabouts(std::iter::once(held.cell))?.pop().flatten();
        self.provers.note_whereabouts(device, place);
        Ok(())
    }

    /// A prover knocks that is not here. Anybody may have said so in its name: it counts until it has a session.
    pub(super) fn note_knock(&mut self, miss: &Miss, frame: &[u8], ingress: u16) {
        let device = miss.device();
        if self.provers.has(device) && !self.book.devices.contains_key(&device) {
            self.provers
                .note_whereabouts(device, Whereabouts::of_frame(frame, ingress));
        }
    }
}

/// Where a device is, and as whom it knows the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whereabouts {
    address: IpAddr,
    origin: Origin,
    own_mac: Mac,
    own_address: IpAddr,
}

impl Whereabouts {
    /// From the registers that a session leaves; `None`: it has left none.
    fn of_session(&[address, place, own_mac, own_address]: &[u128; 4]) -> Option<Self> {
        let [_, _, own_mac @ ..] = (own_mac as u64).to_be_bytes();
        (place != 0).then(|| Self {
            address: ip_from_bytes(address.to_be_bytes()),
            origin: Origin::unpack(place),
            own_mac,
            own_address: ip_from_bytes(own_address.to_be_bytes()),
        })
    }

    /// From a frame that came in by that port.
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
            own_mac: *frame.first_chunk()?,
            own_address: ip.dst,
        })
    }

    /// A request to its port `to`, from where it knows the gateway.
    fn frame(&self, to: SocketAddr, request: &AttestRequest) -> Option<Vec<u8>> {
        let from = Endpoint {
            mac: self.own_mac,
            ip: self.own_address,
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
    fn what_a_session_and_a_knock_tell_is_the_same() {
        let end = |number: u8, port| Endpoint {
            mac: [2, 0, 0, 0, 0, number],
            ip: IpAddr::from([192, 0, 2, number]),
            port,
        };
        let (device, gateway) = (end(9, 4000), end(1, LAP_PORT));
        let knock = FrameBuilder::new(device, gateway)
            .vlan(7)
            .udp(&[0; MESSAGE_BYTES]);
        let of_frame = Whereabouts::of_frame(&knock, 3).unwrap();
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
        assert_eq!(Whereabouts::of_session(&registers), Some(of_frame));
        assert_eq!(Whereabouts::of_session(&[0; 4]), None);
        assert_eq!(Whereabouts::of_frame(&knock[..40], 3), None);
    }
}
