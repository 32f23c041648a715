//! Attacks on admission: an enrolled device that uses foreign IP addresses, and REQUESTs to foreign MAC addresses that would
//! redirect another station's frames.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::wire::LAP_PORT;
use rand::Rng as _;

use super::attacker_link::{attacker_endpoint, gateway_endpoint, request};
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::{Family, GATEWAY, GATEWAY_SERVICE_SIDE, SERVICE};
use crate::fleet::DEVICE_PORT;

/// Addresses that belong to no device: two of the gateway, one of the service, the broadcast address of the subnet, a
/// loopback address, and two outside the lab.
const NON_DEVICE_ADDRESSES: [Ipv4Addr; 7] = [
    GATEWAY.v4,
    GATEWAY_SERVICE_SIDE.v4,
    SERVICE.v4,
    Ipv4Addr::new(10, 66, 255, 255),
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(8, 8, 8, 8),
    Ipv4Addr::new(10, 67, 0, 1),
];

/// A hostile enrolled device sends a RESPONSE that is valid only from its own address. The gateway must open no session for any
/// foreign address. At the end the RESPONSE from the device's own address must be accepted.
///
/// # Errors
/// See [`AttackError`].
pub fn session_at_foreign_address(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let response = device.withheld_response(&mut context.link, &mut context.rng)?;
    let before = LineSnapshot::of(context.lines, [device.id()]);
    let mut counts = AttackCounts::default();
    for address in NON_DEVICE_ADDRESSES {
        let from = Endpoint {
            ip: IpAddr::V4(address),
            ..device.lap_endpoint()
        };
        let mut nonce = [0u8; 16];
        context.rng.fill_bytes(&mut nonce);
        for message in [request(device.id(), nonce), response] {
            context
                .link
                .send(&from, &gateway_endpoint(Family::V4), &message)?;
            counts.attempts += 1;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    let ack = device.deliver(&mut context.link, &response)?;
    if !device.receive(&ack).is_ok_and(|reaction| reaction.authenticated) {
        return Err(AttackError::ControlFailed(
            "the device's RESPONSE is not accepted from its own address",
        ));
    }
    Ok(counts)
}

/// Sends REQUESTs for known devices to MAC addresses of stations that send nothing. A reply with such a source
/// MAC address would make switches forward the station's frames to the gateway.
///
/// # Errors
/// See [`AttackError`].
pub fn request_to_foreign_mac(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let devices: Vec<_> = context.protected_devices().collect();
    let mut counts = AttackCounts::default();
    let mut stations = Vec::new();
    for number in 0..context.messages_per_attack.min(200) {
        let Some(device) = devices.get(number as usize % devices.len().max(1)) else {
            return Err(AttackError::MissingInput("a protected device"));
        };
        let mut mac = [0u8; 6];
        context.rng.fill_bytes(&mut mac);
        mac[0] = 0x0a; // unicast, locally administered, unused in the lab
        let to = Endpoint {
            mac,
            ..GATEWAY.endpoint(Family::V4, LAP_PORT)
        };
        let mut nonce = [0u8; 16];
        context.rng.fill_bytes(&mut nonce);
        context.link.send(
            &attacker_endpoint(number, DEVICE_PORT),
            &to,
            &request(*device, nonce),
        )?;
        stations.push(mac);
        counts.attempts += 1;
    }
    let mut replies = 0;
    context
        .link
        .wait_processed(|datagram| replies += u64::from(stations.contains(&datagram.from.mac)))?;
    counts.successes = replies;
    Ok(counts)
}
