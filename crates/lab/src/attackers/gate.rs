//! Senders that want through the open gate without being entitled to.

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::header::{ETHER_QINQ, ETHER_VLAN};
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::wire::LAP_PORT;

use super::flood::anywhere;
use super::station::own;
use super::{ATTACK_PORT, Arena, AttackError, Puppet, Tally};
use crate::address::{ATTACKERS_FROM, DeviceAddress, GATEWAY, SERVICE};
use crate::decoy::MARK;

/// The service as it is reached from the devices' side, on a port of it.
pub(super) fn service(arena: &Arena<'_>, port: Option<u16>) -> Result<Endpoint, AttackError> {
    let (_, ip, own_port) = arena.service.ok_or(AttackError::Lacking("a service"))?;
    Ok(Endpoint {
        mac: GATEWAY.mac.0,
        ip,
        port: port.unwrap_or(own_port),
    })
}

/// Datagrams from [`ATTACK_PORT`] that reached the service so far.
fn reached(arena: &Arena<'_>) -> u64 {
    arena.service.map_or(0, |(service, ..)| {
        service.reached().ports.get(&ATTACK_PORT).copied().unwrap_or(0)
    })
}

/// From MAC addresses that have no session: his own with his own IP address, his own with a victim's IP address, random
/// ones. Judged by what reaches the service.
///
/// # Errors
/// See [`AttackError`].
pub fn without_session(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let to = service(arena, None)?;
    let victim_ip = arena
        .victims
        .iter()
        .filter_map(|device| arena.captured.get(device)?.response.as_deref())
        .find_map(|frame| Some(super::station::datagram(frame)?.from.ip))
        .filter(std::net::IpAddr::is_ipv4);
    let before = reached(arena);
    let mut tally = Tally::default();
    for number in 0..arena.effort.min(1_000) {
        let mine = own(number, ATTACK_PORT);
        let disguised = Endpoint {
            ip: victim_ip.unwrap_or(mine.ip),
            ..mine
        };
        let random = Endpoint {
            port: ATTACK_PORT,
            ..anywhere(&mut arena.rng)
        };
        for from in [mine, disguised, random] {
            arena.station.send(&from, &to, b"let me through")?;
            tally.attempts += 1;
        }
        // LAP's own port is never forwarded either.
        arena
            .station
            .send(&mine, &Endpoint { port: LAP_PORT, ..to }, &[0; 64])?;
        tally.attempts += 1;
        if number % 64 == 63 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    tally.successes = reached_after_fence(arena)? - before;
    Ok(tally)
}

/// From MAC addresses that have no session, as what always passes: UDP with DHCP's ports to the service, and neighbor discovery with 1,400
/// bytes of anything, with the hop limit that routers leave and with that of the link. Judged by what reaches the service's sockets.
///
/// # Errors
/// See [`AttackError`].
pub fn in_disguise(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let to = service(arena, Some(67))?;
    // Messages of earlier attacks do not count.
    disguised(arena)?;
    let mut tally = Tally::default();
    let payload = [&MARK[..], &[0x5a; 1384]].concat();
    for number in 0..arena.effort.min(200) {
        let mine = own(number, 68);
        let to6 = Endpoint {
            ip: SERVICE.v6.into(),
            port: 547,
            ..to
        };
        let mine6 = Endpoint {
            ip: DeviceAddress::new(ATTACKERS_FROM + number).v6().into(),
            port: 546,
            ..mine
        };
        arena.station.send(&mine, &to, &payload)?;
        arena.station.send(&mine6, &to6, &payload)?;
        // Four reserved bytes and a target, then no options.
        let solicitation = [&[0u8; 4][..], &SERVICE.v6.octets(), MARK, &[0x5a; 1360]].concat();
        for hop_limit in [64, 255] {
            let builder = FrameBuilder::new(mine6, to6).ip_fields(0, 0, hop_limit);
            arena.station.send_frame(&builder.icmpv6(135, &solicitation))?;
        }
        tally.attempts += 4;
        if number % 32 == 31 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    reached_after_fence(arena)?;
    tally.successes = disguised(arena)?;
    Ok(tally)
}

/// From a MAC address that has a session, as a server: replies of DHCP servers, and router advertisements. First an ordinary datagram of
/// the same sender must get through. Judged by what reaches the service's sockets.
///
/// # Errors
/// See [`AttackError`].
pub fn as_server(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut puppet = arena.take_puppet()?;
    puppet.authenticate(&mut arena.station, &mut arena.rng)?;
    must_pass(arena, &puppet, "an entitled sender does not get through the gate")?;
    let to = service(arena, Some(68))?;
    let from = puppet.endpoint(67);
    let from6 = Endpoint {
        port: 547,
        ..puppet.endpoint6()
    };
    let to6 = Endpoint {
        ip: SERVICE.v6.into(),
        port: 546,
        ..to
    };
    // Messages of earlier attacks do not count.
    disguised(arena)?;
    let mut tally = Tally::default();
    let payload = [&MARK[..], &[0x5a; 284]].concat();
    // Of a router advertisement: hop limit, flags, lifetime and two timers; then the mark, where options would be.
    let advertisement = [&[64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0][..], MARK].concat();
    for _ in 0..arena.effort.min(100) {
        arena.station.send(&from, &to, &payload)?;
        arena.station.send(&from6, &to6, &payload)?;
        let builder = FrameBuilder::new(from6, to6).ip_fields(0, 0, 255);
        arena.station.send_frame(&builder.icmpv6(134, &advertisement))?;
        tally.attempts += 3;
    }
    arena.station.settle(|_| {})?;
    reached_after_fence(arena)?;
    tally.successes = disguised(arena)?;
    must_pass(arena, &puppet, "an entitled sender lost its way through the gate")?;
    Ok(tally)
}

/// Messages with [`MARK`] that have reached the service since the last call.
fn disguised(arena: &Arena<'_>) -> Result<u64, AttackError> {
    let (echo, ..) = arena.service.ok_or(AttackError::Lacking("a service"))?;
    let deaf = AttackError::Control("the service hears nothing at DHCP's port");
    echo.disguised().ok_or(deaf)
}

/// Whether an ordinary datagram of a device that has a session reaches the service, which echoes it.
fn must_pass(arena: &mut Arena<'_>, device: &Puppet, failure: &'static str) -> Result<(), AttackError> {
    let to = service(arena, None)?;
    let honest = device.endpoint(ATTACK_PORT - 1);
    let echoed = arena.station.ask(&honest, &to, b"an entitled sender", |heard| {
        heard.to == honest && heard.payload == b"an entitled sender"
    })?;
    echoed.then_some(()).ok_or(AttackError::Control(failure))
}

/// From a MAC address that has a session, but in VLANs where it has none. First the same sender without a tag must get
/// through.
///
/// # Errors
/// See [`AttackError`].
pub fn other_vlan(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut puppet = arena.take_puppet()?;
    let to = service(arena, None)?;
    puppet.authenticate(&mut arena.station, &mut arena.rng)?;
    must_pass(arena, &puppet, "an entitled sender does not get through the gate")?;
    let before = reached(arena);
    let mut tally = Tally::default();
    let from = puppet.endpoint(ATTACK_PORT);
    let customer = ETHER_VLAN;
    for vid in 1..64u16 {
        for tags in [
            &[(customer, vid)][..],
            &[(customer, vid), (customer, vid + 1)],
            &[(ETHER_QINQ, vid)],
            &[(customer, 0), (ETHER_QINQ, vid)],
            &[(0x9100, vid)],
            // A network stack takes all of these off.
            &[(customer, 0), (customer, 0), (customer, 0)],
        ] {
            let builder = FrameBuilder::new(from, to);
            let tagged = tags
                .iter()
                .fold(builder, |frame, (kind, tci)| frame.tag(*kind, *tci));
            arena.station.send_frame(&tagged.udp(b"let me through"))?;
            tally.attempts += 1;
        }
    }
    arena.station.settle(|_| {})?;
    tally.successes = reached_after_fence(arena)? - before;
    must_pass(arena, &puppet, "an entitled sender lost its way through the gate")?;
    Ok(tally)
}

/// What had reached the service when everything sent before has been counted there: the gateway has seen it all
/// ([`super::Station::settle`]), and what it forwarded lies at the service before a further datagram, which is sent to
/// it from behind the gate.
fn reached_after_fence(arena: &Arena<'_>) -> Result<u64, AttackError> {
    let (service, ..) = arena.service.ok_or(AttackError::Lacking("a service"))?;
    if !service.fence() {
        return Err(AttackError::Control(
            "the service does not answer from behind the gate",
        ));
    }
    Ok(reached(arena))
}
