//! Attacks on the bound gate: senders that are not allowed to reach the service.

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::header::{ETHER_QINQ, ETHER_VLAN};
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::wire::LAP_PORT;

use super::attacker_link::attacker_endpoint;
use super::flood::random_endpoint;
use super::{ATTACK_PORT, AttackContext, AttackCounts, AttackError, ControlledDevice};
use crate::address::{DeviceAddress, FIRST_ATTACKER, GATEWAY, SERVICE};
use crate::exempt_traffic::ATTACK_PATTERN;

/// The service's endpoint as seen from the devices' side.
pub(super) fn service(context: &AttackContext<'_>, port: Option<u16>) -> Result<Endpoint, AttackError> {
    let (_, ip, own_port) = context
        .service
        .ok_or(AttackError::MissingInput("the service behind the gate"))?;
    Ok(Endpoint {
        mac: GATEWAY.mac.0,
        ip,
        port: port.unwrap_or(own_port),
    })
}

/// Number of datagrams from [`ATTACK_PORT`] that have reached the service.
fn count_delivered(context: &AttackContext<'_>) -> u64 {
    context.service.map_or(0, |(service, ..)| {
        service.traffic().ports.get(&ATTACK_PORT).copied().unwrap_or(0)
    })
}

/// Sends datagrams from MAC addresses without a session: the attacker's MAC with its own IP address, the attacker's MAC
/// with a victim's IP address, random addresses. Every datagram that reaches the service is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn without_session(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let to = service(context, None)?;
    let victim_ip = context
        .victims
        .iter()
        .filter_map(|device| context.captured_handshakes.get(device)?.response.as_deref())
        .find_map(|frame| Some(super::attacker_link::datagram(frame)?.from.ip))
        .filter(std::net::IpAddr::is_ipv4);
    let before = count_delivered(context);
    let mut counts = AttackCounts::default();
    for number in 0..context.messages_per_attack.min(1_000) {
        let own_endpoint = attacker_endpoint(number, ATTACK_PORT);
        let with_spoofed_address = Endpoint {
            ip: victim_ip.unwrap_or(own_endpoint.ip),
            ..own_endpoint
        };
        let random = Endpoint {
            port: ATTACK_PORT,
            ..random_endpoint(&mut context.rng)
        };
        for from in [own_endpoint, with_spoofed_address, random] {
            context.link.send(&from, &to, b"let me through")?;
            counts.attempts += 1;
        }
        // The gateway never forwards the LAP port either.
        context
            .link
            .send(&own_endpoint, &Endpoint { port: LAP_PORT, ..to }, &[0; 64])?;
        counts.attempts += 1;
        if number % 64 == 63 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.successes = drain_and_count_delivered(context)? - before;
    Ok(counts)
}

/// Sends traffic from MAC addresses without a session that imitates exempt traffic: UDP to the service with DHCP ports,
/// and neighbor solicitations, each with about 1,400 bytes; the solicitations with hop limits 64 and 255. Every message
/// that reaches the service's sockets is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn as_exempt_traffic(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let to = service(context, Some(67))?;
    // Discards the messages of earlier attacks.
    count_attack_messages(context)?;
    let mut counts = AttackCounts::default();
    let payload = [&ATTACK_PATTERN[..], &[0x5a; 1384]].concat();
    for number in 0..context.messages_per_attack.min(200) {
        let own_endpoint = attacker_endpoint(number, 68);
        let to6 = Endpoint {
            ip: SERVICE.v6.into(),
            port: 547,
            ..to
        };
        let own_endpoint6 = Endpoint {
            ip: DeviceAddress::new(FIRST_ATTACKER + number).v6().into(),
            port: 546,
            ..own_endpoint
        };
        context.link.send(&own_endpoint, &to, &payload)?;
        context.link.send(&own_endpoint6, &to6, &payload)?;
        // Four reserved bytes and a target; then the pattern and padding in place of options.
        let solicitation = [&[0u8; 4][..], &SERVICE.v6.octets(), ATTACK_PATTERN, &[0x5a; 1360]].concat();
        for hop_limit in [64, 255] {
            let builder = FrameBuilder::new(own_endpoint6, to6).ip_fields(0, 0, hop_limit);
            context.link.send_frame(&builder.icmpv6(135, &solicitation))?;
        }
        counts.attempts += 4;
        if number % 32 == 31 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    drain_and_count_delivered(context)?;
    counts.successes = count_attack_messages(context)?;
    Ok(counts)
}

/// A device with a session acts as a server: it sends DHCP server replies and router advertisements. First an ordinary
/// datagram of the same device must be forwarded. Every reply or advertisement that reaches the service's sockets is a
/// success.
///
/// # Errors
/// See [`AttackError`].
pub fn as_server(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    device.authenticate(&mut context.link, &mut context.rng)?;
    check_forwarded(
        context,
        &device,
        "the gate does not forward an authenticated device",
    )?;
    let to = service(context, Some(68))?;
    let from = device.endpoint(67);
    let from6 = Endpoint {
        port: 547,
        ..device.endpoint6()
    };
    let to6 = Endpoint {
        ip: SERVICE.v6.into(),
        port: 546,
        ..to
    };
    // Discards the messages of earlier attacks.
    count_attack_messages(context)?;
    let mut counts = AttackCounts::default();
    let payload = [&ATTACK_PATTERN[..], &[0x5a; 284]].concat();
    // A router advertisement: hop limit, flags, lifetime and two timers; then the pattern in place of options.
    let advertisement = [&[64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0][..], ATTACK_PATTERN].concat();
    for _ in 0..context.messages_per_attack.min(100) {
        context.link.send(&from, &to, &payload)?;
        context.link.send(&from6, &to6, &payload)?;
        let builder = FrameBuilder::new(from6, to6).ip_fields(0, 0, 255);
        context.link.send_frame(&builder.icmpv6(134, &advertisement))?;
        counts.attempts += 3;
    }
    context.link.wait_processed(|_| {})?;
    drain_and_count_delivered(context)?;
    counts.successes = count_attack_messages(context)?;
    check_forwarded(
        context,
        &device,
        "the gate stops forwarding an authenticated device",
    )?;
    Ok(counts)
}

/// Messages with [`ATTACK_PATTERN`] that have reached the service since the last call.
fn count_attack_messages(context: &AttackContext<'_>) -> Result<u64, AttackError> {
    let (echo, ..) = context
        .service
        .ok_or(AttackError::MissingInput("the service behind the gate"))?;
    let unavailable = AttackError::ControlFailed("the service receives no datagram on the DHCP port");
    echo.count_attack_messages().ok_or(unavailable)
}

/// Checks that an ordinary datagram of a device with a session reaches the service and is echoed.
fn check_forwarded(
    context: &mut AttackContext<'_>,
    device: &ControlledDevice,
    failure: &'static str,
) -> Result<(), AttackError> {
    let to = service(context, None)?;
    let sender = device.endpoint(ATTACK_PORT - 1);
    let echoed = context
        .link
        .exchange(&sender, &to, b"legitimate sender", |received| {
            received.to == sender && received.payload == b"legitimate sender"
        })?;
    echoed.then_some(()).ok_or(AttackError::ControlFailed(failure))
}

/// Sends datagrams from a MAC address with a session, in VLANs without a session. First an untagged datagram of the
/// same device must be forwarded.
///
/// # Errors
/// See [`AttackError`].
pub fn other_vlan(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let to = service(context, None)?;
    device.authenticate(&mut context.link, &mut context.rng)?;
    check_forwarded(
        context,
        &device,
        "the gate does not forward an authenticated device",
    )?;
    let before = count_delivered(context);
    let mut counts = AttackCounts::default();
    let from = device.endpoint(ATTACK_PORT);
    let customer = ETHER_VLAN;
    for vid in 1..64u16 {
        for tags in [
            &[(customer, vid)][..],
            &[(customer, vid), (customer, vid + 1)],
            &[(ETHER_QINQ, vid)],
            &[(customer, 0), (ETHER_QINQ, vid)],
            &[(0x9100, vid)],
            // A network stack removes all of these tags.
            &[(customer, 0), (customer, 0), (customer, 0)],
        ] {
            let builder = FrameBuilder::new(from, to);
            let tagged = tags
                .iter()
                .fold(builder, |frame, (kind, tci)| frame.tag(*kind, *tci));
            context.link.send_frame(&tagged.udp(b"let me through"))?;
            counts.attempts += 1;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.successes = drain_and_count_delivered(context)? - before;
    check_forwarded(
        context,
        &device,
        "the gate stops forwarding an authenticated device",
    )?;
    Ok(counts)
}

/// Number of datagrams from [`ATTACK_PORT`] after the service has emptied its queue. The caller has waited until the
/// gateway has processed all earlier frames ([`super::AttackerLink::wait_processed`]).
fn drain_and_count_delivered(context: &AttackContext<'_>) -> Result<u64, AttackError> {
    let (service, ..) = context
        .service
        .ok_or(AttackError::MissingInput("the service behind the gate"))?;
    if !service.drain_queue() {
        return Err(AttackError::ControlFailed(
            "no echo from the service behind the gate",
        ));
    }
    Ok(count_delivered(context))
}
