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

/// Requests whose places are read at once: each that has none costs another call.
const ASKED_AT_ONCE: usize = 16;
/// Places of each kind that are kept of a prover.
const PLACES_MAX: usize = 4;
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
    pub(super) fn live_cell(&self, device: DeviceId) -> Option<u32> {
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
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let is_known = |(_, request): &&(SocketAddr, AttestRequest)| {
            let device = request.header.device();
            self.book.devices.contains_key(&device) || self.provers.seen(device).is_some()
        };
        let some = requests.iter().take(ASKED_AT_ONCE).take_while(is_known).count();
        let some = requests.get(..some).unwrap_or_default();
        let places = self.places_of(some);
        let places = self.note(places)?;
        let mut sent = 0;
        for ((to, request), places) in some.iter().zip(places) {
            if places.is_empty() {
                break;
            }
            // One of another family than the address is no way there.
            let frames = places.iter().filter_map(|place| {
                let frame = place.frame(*to, request)?;
                Some((place.origin.ingress, frame))
            });
            for (port, frame) in frames {
                self.note(self.link.packet_out(port, 0, frame))?;
            }
            sent += 1;
        }
        match requests.get(sent) {
            Some((to, request)) if sent == 0 => Err(DataPlaneError::Unplaced {
                device: request.header.device(),
                address: to.ip(),
            }),
            _ => Ok(sent),
        }
    }

    /// Where each of them may be that is to be asked at an address: all places that it was seen at under that address, for somebody else may have
    /// knocked in its name; else where its last session was. Whoever has had one is never without a place: a device that moves from
    /// address to address is silent, and not out of reach.
    fn places_of(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<Vec<Vec<Whereabouts>>, SwitchError> {
        let devices = requests.iter().map(|(_, request)| request.header.device());
        let cells = devices.filter_map(|device| Some(self.book.devices.get(&device)?.cell));
        let mut read = self.whereabouts(cells)?.into_iter();
        let mut places = Vec::with_capacity(requests.len());
        for (to, request) in requests {
            let device = request.header.device();
            if self.book.devices.contains_key(&device)
                && let Some(place) = read.next().flatten()
            {
                self.provers.note_session(device, place);
            }
            let seen = self.provers.seen(device);
            places.push(seen.map(|seen| seen.at(to.ip())).unwrap_or_default());
        }
        Ok(places)
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
        let held = self.book.devices.get(&device);
        if let Some(held) = held.filter(|_| self.provers.has(device))
            && let Some(place) = self.whereabouts(std::iter::once(held.cell))?.pop().flatten()
        {
            self.provers.note_session(device, place);
        }
        Ok(())
    }

    /// A prover knocks that is not here; or somebody in its name.
    pub(super) fn note_knock(&mut self, miss: &Miss, frame: &[u8], ingress: u16) {
        let device = miss.device();
        if self.provers.has(device)
            && !self.book.devices.contains_key(&device)
            && let Some(place) = Whereabouts::of_frame(frame, ingress)
        {
            self.provers.note_knock(device, place);
        }
    }
}

/// Where a prover was seen, each time the newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// In sessions, each under another address: where it has proven something it is asked again, whoever moves its session.
    sessions: Vec<Whereabouts>,
    /// Where messages in its name came from while it was not here. They take the place of no session's.
    knocks: Vec<Whereabouts>,
}

impl Seen {
    pub fn note_session(&mut self, place: Whereabouts) {
        keep(&mut self.sessions, place, |known| known.address == place.address);
    }

    pub fn note_knock(&mut self, place: Whereabouts) {
        keep(&mut self.knocks, place, |known| *known == place);
    }

    /// Where it may be that is to be asked at that address.
    fn at(&self, address: IpAddr) -> Vec<Whereabouts> {
        let all = self.sessions.iter().chain(&self.knocks);
        let mut places: Vec<Whereabouts> = Vec::new();
        for place in all.filter(|place| place.address == address) {
            if !places.iter().any(|known| known.is_same_way(place)) {
                places.push(*place);
            }
        }
        if places.is_empty() {
            places.extend(self.sessions.first());
        }
        places
    }
}

/// Puts a place in front, in the place of what `is_old`, or of the oldest of too many.
fn keep(places: &mut Vec<Whereabouts>, place: Whereabouts, is_old: impl Fn(&Whereabouts) -> bool) {
    places.retain(|known| !is_old(known));
    places.insert(0, place);
    places.truncate(PLACES_MAX);
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

    /// Whether frames to both take the same way.
    fn is_same_way(&self, other: &Self) -> bool {
        let way = |place: &Self| (place.origin.ingress, place.origin.vlans, place.origin.mac);
        way(self) == way(other)
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

    fn place(address: u8, port: u16) -> Whereabouts {
        Whereabouts {
            address: IpAddr::from([192, 0, 2, address]),
            origin: Origin::unpack(u128::from(port) << 80),
            own_mac: [2, 0, 0, 0, 0, 1],
            own_address: IpAddr::from([192, 0, 2, 1]),
        }
    }

    #[test]
    fn who_knocks_in_another_name_takes_no_place_away() {
        let mut seen = Seen::default();
        let (home, elsewhere) = (place(9, 3), place(8, 3));
        assert_eq!(seen.at(home.address), []);
        seen.note_knock(elsewhere);
        assert_eq!(
            seen.at(home.address),
            [],
            "a knock alone says nothing of other addresses"
        );
        seen.note_session(home);
        (10..20).for_each(|port| seen.note_knock(place(9, port)));
        let asked = seen.at(home.address);
        assert_eq!((asked[0], asked.len()), (home, 1 + PLACES_MAX));
        (20..40).for_each(|address| seen.note_knock(place(address, 7)));
        assert_eq!(seen.at(home.address), [home]);
        assert_eq!(seen.knocks.len(), PLACES_MAX);
        // Its session was moved: at home it is still asked at home, and nowhere is it out of reach.
        seen.note_session(elsewhere);
        assert_eq!(seen.at(home.address), [home]);
        assert_eq!(seen.at(place(77, 0).address), [elsewhere]);
    }
}
