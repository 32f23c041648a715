//! Frames that pass with the gate off and bound.

use alloc::vec::Vec;

use super::support::{GatewayFixture, INGRESS, TestDevice, gateway_endpoint, one_device, service_endpoint};
use crate::frame::builder::FrameBuilder;
use crate::frame::write::Endpoint;
use crate::gateway::Gate;
use crate::ids::Mode;
use crate::verdict::Verdict;
use crate::wire::LAP_PORT;

fn unknown_device(v6: bool) -> Endpoint {
    let mut end = TestDevice::new(0x55, Mode::Pool).endpoint;
    if v6 {
        end.ip = [0xfd66, 0, 0, 0, 0, 0, 0, 0x55].into();
    }
    end
}

fn local(v6: bool) -> Endpoint {
    let mut end = gateway_endpoint();
    if v6 {
        end.ip = [0xfd66, 0, 0, 0, 0, 0, 0, 0xfe].into();
    }
    end
}

fn remote(v6: bool) -> Endpoint {
    let mut end = service_endpoint();
    if v6 {
        end.ip = [0xfd77, 0, 0, 0, 0, 0, 0, 1].into();
    }
    end
}

/// A name, a frame, and its verdicts with the gate off and bound.
type Case = (&'static str, Vec<u8>, Verdict, Verdict);

fn cases(v6: bool) -> Vec<Case> {
    use Verdict::{
        DropGate, DropGateExtension, DropGateFragment, DropGatePort, DropGateRole, DropGateType,
        DropGateVlan, DropLength, DropTruncated, PassAlways, PassForeign, PassUnparsed,
    };
    let to_service = || FrameBuilder::new(unknown_device(v6), remote(v6));
    let to_gateway = || FrameBuilder::new(unknown_device(v6), local(v6));
    let extended = |builder: FrameBuilder| {
        if v6 {
            builder.extension(0)
        } else {
            builder.options(&[1])
        }
    };
    let to_port = |to: Endpoint, port| FrameBuilder::new(unknown_device(v6), Endpoint { port, ..to });
    let udp_length_at = if v6 { 14 + 44 } else { 14 + 24 };
    let with_udp_length = |mut frame: Vec<u8>, length: u16| {
        frame[udp_length_at..udp_length_at + 2].copy_from_slice(&length.to_be_bytes());
        frame
    };
    let cut = |frame: Vec<u8>, bytes: usize| frame[..bytes].to_vec();
    let mut cases = alloc::vec![
        (
            "udp to the service",
            to_service().udp(b"x"),
            PassForeign,
            DropGate
        ),
        (
            "tcp to the service",
            to_service().ip(6, &[0; 20]),
            PassForeign,
            DropGate
        ),
        (
            "udp to another port of the gateway",
            to_port(local(v6), 53).udp(b"\x00"),
            PassForeign,
            DropGate
        ),
        (
            "udp to port 53 of the service, beginning with 2",
            to_port(remote(v6), 53).udp(b"\x02"),
            PassForeign,
            DropGate
        ),
        (
            "lap port of another host",
            to_port(remote(v6), LAP_PORT).udp(b"x"),
            PassForeign,
            DropGatePort
        ),
        (
            "lap port of the gateway, empty",
            to_gateway().udp(b""),
            DropLength,
            DropLength
        ),
        (
            "fragment to the service",
            to_service().fragment(0, true).udp(b"x"),
            PassForeign,
            DropGateFragment
        ),
        (
            "later fragment to the gateway",
            to_gateway().fragment(9, false).udp(b"x"),
            PassUnparsed,
            DropGateFragment
        ),
        (
            "options or extension to the service",
            extended(to_service()).udp(b"x"),
            PassForeign,
            DropGateExtension
        ),
        (
            "options or extension to the gateway",
            extended(to_gateway()).udp(b"x"),
            PassUnparsed,
            DropGateExtension
        ),
        (
            "udp length short, to the gateway",
            with_udp_length(to_gateway().udp(b"x"), 7),
            DropTruncated,
            DropTruncated
        ),
        (
            "udp length beyond the packet, to the gateway",
            with_udp_length(to_gateway().udp(b"x"), 10),
            DropTruncated,
            DropTruncated
        ),
        (
            "udp length short, to the service",
            with_udp_length(to_service().udp(b"x"), 7),
            PassForeign,
            DropTruncated
        ),
        (
            "cut in the ethernet header",
            cut(to_gateway().udp(b"x"), 13),
            PassForeign,
            DropTruncated
        ),
        (
            "cut in the ip header",
            cut(to_gateway().udp(b"x"), 20),
            PassForeign,
            DropTruncated
        ),
        (
            "cut in the vlan tag",
            cut(to_gateway().vlan(1).udp(b"x"), 16),
            PassForeign,
            DropTruncated
        ),
        (
            "neither ip nor arp",
            to_service().ethernet(0x88cc, &[0; 46]),
            PassForeign,
            DropGateType
        ),
        (
            "three tags to the lap port",
            to_gateway().vlan(1).vlan(2).vlan(3).udp(b""),
            PassForeign,
            DropGateVlan
        ),
        ("arp", to_gateway().arp_request(), PassForeign, PassAlways),
        (
            "arp with a tag",
            to_gateway().vlan(4).arp_request(),
            PassForeign,
            PassAlways
        ),
        ("dhcp", to_dhcp_servers(v6).dhcp(), PassForeign, PassAlways),
        (
            "dhcp with a tag",
            to_dhcp_servers(v6).vlan(4).dhcp(),
            PassForeign,
            PassAlways
        ),
        ("dhcp to a service", to_service().dhcp(), PassForeign, DropGate),
        ("dhcp of the other family", other_dhcp(v6), PassForeign, DropGate),
        (
            "a reply of a dhcp server",
            dhcp_server(v6),
            PassForeign,
            DropGateRole
        ),
    ];
    if v6 {
        for (kind, near, far) in [
            (133, PassAlways, DropGate),
            (135, PassAlways, DropGate),
            (136, PassAlways, DropGate),
            (134, DropGateRole, DropGateRole),
            (137, DropGateRole, DropGateRole),
            (128, DropGate, DropGate),
            (0, DropGate, DropGate),
        ] {
            let body = &[0; 20][..if kind == 133 { 4 } else { 20 }];
            let exact = to_gateway().ip_fields(0, 0, 255).icmpv6(kind, body);
            cases.push(("icmpv6 to the gateway", exact, PassForeign, near));
            let routed = to_service().ip_fields(0, 0, 255).icmpv6(kind, body);
            cases.push(("icmpv6 to a service", routed, PassForeign, far));
        }
        let frame = to_service().extension(0).icmpv6(135, &[0; 20]);
        cases.push((
            "discovery behind an extension header",
            frame,
            PassForeign,
            DropGateExtension,
        ));
    } else {
        cases.push((
            "protocol 58 on ipv4",
            to_service().ip(58, &[135, 0, 0, 0]),
            PassForeign,
            DropGate,
        ));
    }
    cases
}

/// A builder of frames to the destination of DHCP client messages.
fn to_dhcp_servers(v6: bool) -> FrameBuilder {
    let (from, to) = match v6 {
        true => (
            [0xfe80, 0, 0, 0, 0, 0, 0, 0x55].into(),
            [0xff02, 0, 0, 0, 0, 0, 1, 2].into(),
        ),
        false => (unknown_device(v6).ip, [255; 4].into()),
    };
    let from = Endpoint {
        ip: from,
        ..unknown_device(v6)
    };
    FrameBuilder::new(from, Endpoint { ip: to, ..remote(v6) })
}

/// Returns a frame with the ports of the other family's DHCP.
fn other_dhcp(v6: bool) -> Vec<u8> {
    let (src, dst) = if v6 { (68, 67) } else { (546, 547) };
    dhcp_like(v6, src, dst)
}

fn dhcp_server(v6: bool) -> Vec<u8> {
    let (src, dst) = if v6 { (547, 546) } else { (67, 68) };
    dhcp_like(v6, src, dst)
}

fn dhcp_like(v6: bool, src: u16, dst: u16) -> Vec<u8> {
    let from = Endpoint {
        port: src,
        ..unknown_device(v6)
    };
    let to = Endpoint {
        port: dst,
        ..remote(v6)
    };
    FrameBuilder::new(from, to).udp(b"x")
}

#[test]
fn unknown_senders_get_the_listed_verdicts() {
    for v6 in [false, true] {
        for (name, frame, off, bound) in cases(v6) {
            for (gate, expected) in [(Gate::Off, off), (Gate::Bound, bound)] {
                let mut fixture = GatewayFixture::with(|config| config.gate = gate);
                let verdict = fixture.handle(INGRESS, &mut frame.clone());
                assert_eq!(verdict, expected, "{name}, v6: {v6}, gate {gate:?}");
            }
        }
    }
}

#[test]
fn a_session_opens_the_gate_for_its_port_vlans_and_mac_address_only() {
    let (mut fixture, device) = one_device(3);
    assert_eq!(fixture.through_gate(&device), Verdict::DropGate);
    fixture.authenticate(&device);
    assert_eq!(fixture.through_gate(&device), Verdict::PassSession);
    let changes: [fn(&mut TestDevice); 3] = [
        |device| device.ingress += 1,
        |device| device.vlan = Some(7),
        |device| device.endpoint.mac[0] ^= 4,
    ];
    for change in changes {
        let mut other = device.clone();
        change(&mut other);
        assert_eq!(fixture.through_gate(&other), Verdict::DropGate);
    }
    let mut priority_tagged = device.clone();
    priority_tagged.vlan = Some(0);
    assert_eq!(fixture.through_gate(&priority_tagged), Verdict::PassSession);
    let mut other_address = device.clone();
    other_address.endpoint.ip = [10, 66, 0, 77].into();
    assert_eq!(
        fixture.through_gate(&other_address),
        Verdict::PassSession,
        "the bound gate trusts MAC addresses, as stated in the threat model"
    );
}

/// Not even a live session makes these frames pass towards the service (LAP/1 1.4.9).
#[test]
fn a_session_does_not_open_the_gate_for_frames_that_never_pass() {
    let (mut fixture, device) = one_device(3);
    fixture.authenticate(&device);
    let builder = || FrameBuilder::new(device.endpoint, service_endpoint());
    let lap = Endpoint {
        port: LAP_PORT,
        ..service_endpoint()
    };
    let cases = [
        (
            FrameBuilder::new(device.endpoint, lap).udp(b"x"),
            Verdict::DropGatePort,
        ),
        (builder().fragment(0, true).udp(b"x"), Verdict::DropGateFragment),
        (builder().options(&[1]).udp(b"x"), Verdict::DropGateExtension),
        (builder().udp(b"x")[..40].to_vec(), Verdict::DropTruncated),
    ];
    for (mut frame, expected) in cases {
        assert_eq!(fixture.handle(device.ingress, &mut frame), expected);
    }
    let mut other_protocol = builder().ethernet(0x88cc, &[0; 46]);
    assert_eq!(
        fixture.handle(device.ingress, &mut other_protocol),
        Verdict::PassSession
    );
}

/// An operation that ends a session, and the resulting verdict of the gate.
type SessionEnd = (fn(&mut GatewayFixture, &TestDevice), Verdict);

#[test]
fn a_session_ends_at_the_gate_by_expiry_revocation_or_replacement() {
    let ends: [SessionEnd; 4] = [
        (
            |fixture, _| fixture.pass_s(u64::from(super::support::SESSION_LIFETIME_S)),
            Verdict::DropSessionExpired,
        ),
        (
            |fixture, device| fixture.gateway.revoke(device.id).unwrap(),
            Verdict::DropGate,
        ),
        (
            |fixture, device| fixture.gateway.wipe(device.id).unwrap(),
            Verdict::DropGate,
        ),
        (
            |fixture, device| {
                let mut moved = device.clone();
                moved.endpoint.mac[5] = 0xcc;
                fixture.authenticate(&moved);
                assert_eq!(fixture.through_gate(&moved), Verdict::PassSession);
            },
            Verdict::DropGate,
        ),
    ];
    for (end, expected) in ends {
        let (mut fixture, device) = one_device(3);
        fixture.authenticate(&device);
        end(&mut fixture, &device);
        assert_eq!(fixture.through_gate(&device), expected);
    }
}

/// An IPv6 packet to ::ffff:a.b.c.d is not IPv4 to a.b.c.d.
#[test]
fn mapped_addresses_on_the_wire_are_not_the_gateways() {
    let mapped = |end: Endpoint| match end.ip {
        core::net::IpAddr::V4(v4) => Endpoint {
            ip: v4.to_ipv6_mapped().into(),
            ..end
        },
        core::net::IpAddr::V6(_) => end,
    };
    let (mut fixture, device) = one_device(1);
    let mut frame =
        FrameBuilder::new(mapped(device.endpoint), mapped(gateway_endpoint())).udp(&device.request(1));
    assert_eq!(fixture.handle(INGRESS, &mut frame), Verdict::DropGatePort);
}

/// The gate decides last: LAP to the gateway itself is served with every gate setting.
#[test]
fn authentication_works_with_the_gate_off() {
    let mut fixture = GatewayFixture::with(|config| config.gate = Gate::Off);
    let device = TestDevice::new(1, Mode::Pool);
    fixture.gateway.install(device.install(0, 1)).unwrap();
    assert_eq!(fixture.through_gate(&device), Verdict::PassForeign);
    fixture.authenticate(&device);
    assert_eq!(fixture.through_gate(&device), Verdict::PassForeign);
}
