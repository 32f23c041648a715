//! Enrolled devices that speak from addresses of others, and stations whose address on the link is to be taken from them.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::wire::LAP_PORT;
use rand::Rng as _;

use super::station::{gateway, own, request};
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::{Family, GATEWAY, GATEWAY_SERVICE_SIDE, SERVICE};
use crate::fleet::DEVICE_PORT;

/// Addresses that no device of the lab has: the gateway's two, a service's, the whole subnet's, loopback, and elsewhere.
const NO_DEVICES: [Ipv4Addr; 7] = [
    GATEWAY.v4,
    GATEWAY_SERVICE_SIDE.v4,
    SERVICE.v4,
    Ipv4Addr::new(10, 66, 255, 255),
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(8, 8, 8, 8),
    Ipv4Addr::new(10, 67, 0, 1),
];

/// A hostile device that is enrolled, with a RESPONSE that would be good from its own address. No session must open at any of the
/// others, in whose name its packets would go on. Then its own address is good.
///
/// # Errors
/// See [`AttackError`].
pub fn others_addresses(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut device = arena.take_puppet()?;
    let response = device.withheld_response(&mut arena.station, &mut arena.rng)?;
    let before = Snapshot::of(arena.truth, [device.id()]);
    let mut tally = Tally::default();
    for address in NO_DEVICES {
        let from = Endpoint {
            ip: IpAddr::V4(address),
            ..device.lap_endpoint()
        };
        let mut nonce = [0u8; 16];
        arena.rng.fill_bytes(&mut nonce);
        for message in [request(device.id(), nonce), response] {
            arena.station.send(&from, &gateway(Family::V4), &message)?;
            tally.attempts += 1;
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    let ack = device.deliver(&mut arena.station, &response)?;
    if !device.receive(&ack).is_ok_and(|reaction| reaction.authenticated) {
        return Err(AttackError::Control(
            "the device's RESPONSE is not accepted from its own address",
        ));
    }
    Ok(tally)
}

/// REQUESTs for known devices to MAC addresses of silent stations. A reply from such an address would have switches send that
/// station's frames to the gateway.
///
/// # Errors
/// See [`AttackError`].
pub fn silent_stations(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let names: Vec<_> = arena.quiet_devices().collect();
    let mut tally = Tally::default();
    let mut stations = Vec::new();
    for number in 0..arena.effort.min(200) {
        let Some(device) = names.get(number as usize % names.len().max(1)) else {
            return Err(AttackError::Lacking("a quiet device"));
        };
        let mut mac = [0u8; 6];
        arena.rng.fill_bytes(&mut mac);
        mac[0] = 0x0a; // unicast, local, and of nobody in the lab
        let to = Endpoint {
            mac,
            ..GATEWAY.endpoint(Family::V4, LAP_PORT)
        };
        let mut nonce = [0u8; 16];
        arena.rng.fill_bytes(&mut nonce);
        arena
            .station
            .send(&own(number, DEVICE_PORT), &to, &request(*device, nonce))?;
        stations.push(mac);
        tally.attempts += 1;
    }
    let mut taken = 0;
    arena
        .station
        .settle(|heard| taken += u64::from(stations.contains(&heard.from.mac)))?;
    tally.successes = taken;
    Ok(tally)
}
