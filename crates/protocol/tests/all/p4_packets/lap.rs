//! lap.p4: the fast path of the gateway, compared with the oracle.

use std::net::IpAddr;

use linewarden_protocol::data::{Channel, Direction, Route, Sequence, seal};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{Mac, ip_bytes};
use linewarden_protocol::gateway::{
    ControlProtocol, DeviceInstall, FreshValue, Gate, Gateway, GatewayConfig, Row,
};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, SessionKey};
use linewarden_protocol::sources::{DeviceSources, OwnAddress, Prefix};
use linewarden_protocol::tag;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{FLAG_BOUND, Header, LAP_PORT, Request, Response, message_type};
use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U32;

use super::packet_tester::{
    GATEWAY, OWN_V6, PORT, PacketTester, SERVICE_PORT, device_endpoint, gateway_endpoint, service_endpoint,
    v6,
};
use super::stf::Stf;
use super::{lap_gates, lap_handshakes, lap_limits, lap_lists};

pub const SUITE: Suite = Suite::SipHash128;
pub const SESSION_LIFETIME_S: u32 = 600;
pub const MTU: u16 = 1500;
pub const FRESH: u64 = 0x4e5f_0001_0203_0405;
pub const PREVIOUS_FRESH: u64 = 0x1e5f_a1a2_a3a4_a5a6;
/// Above all row numbers: all rows may be spent.
const NO_MARK: u64 = 1 << 32;
/// A time that no test reaches, µs of the switch's clock.
pub const LATER_US: u64 = 1 << 46;

/// A device: number, kind of credential, origin.
#[derive(Clone, Copy)]
pub struct Device {
    pub number: u8,
    pub mode: Mode,
    pub from: Endpoint,
    pub vlan: Option<u16>,
}

pub fn device(number: u8, mode: Mode) -> Device {
    Device {
        number,
        mode,
        from: device_endpoint(number),
        vlan: None,
    }
}

impl Device {
    pub fn id(&self) -> DeviceId {
        DeviceId(0x0101_0202_0303_0000 + u64::from(self.number))
    }

    pub fn row(&self, idx: u32) -> Row {
        let mut bytes: [u8; 16] =
            std::array::from_fn(|at| self.number.wrapping_mul(17) ^ u8::try_from(at).unwrap());
        let mut challenge = [0; 8];
        if self.mode == Mode::Pool {
            bytes[8..12].copy_from_slice(&idx.to_le_bytes());
            challenge = [0xc0, 1, 2, 3, 4, 5, 6, idx.to_le_bytes()[0]];
        }
        let auth_key = AuthKey::derive(
            &RowKey::from_bytes(bytes),
            SUITE,
            self.mode,
            RowIndex(idx),
            GATEWAY,
        );
        Row { challenge, auth_key }
    }

    pub fn frame(&self, to: Endpoint, payload: &[u8]) -> Vec<u8> {
        let to = if self.from.ip.is_ipv6() && to.ip.is_ipv4() {
            v6(to)
        } else {
            to
        };
        let builder = FrameBuilder::new(self.from, to);
        match self.vlan {
            Some(vid) => builder.vlan(vid).udp(payload),
            None => builder.udp(payload),
        }
    }

    pub fn request(&self, nonce: u8) -> Vec<u8> {
        let request = Request {
            header: Header::new(message_type::REQUEST, SUITE, 0, self.id()),
            nonce: std::array::from_fn(|at| nonce.wrapping_add(u8::try_from(at * 9).unwrap())),
            reserved: [0; 32],
        };
        self.frame(gateway_endpoint(), request.as_bytes())
    }

    pub fn message(&self, idx: u32, fresh: u64, bound: bool) -> Response {
        let flags = if bound { FLAG_BOUND } else { 0 };
        let mut response = Response {
            header: Header::new(message_type::RESPONSE, SUITE, flags, self.id()),
            nonce: [0x4e; 16],
            idx: U32::new(idx),
            gateway_id: U32::new(GATEWAY.0),
            fresh: fresh.to_be_bytes(),
            tag: [0; 16],
        };
        let loc = tag::location(bound.then_some(self.from.mac));
        response.tag = tag::response(&self.row(idx).auth_key, &response, &loc);
        response
    }

    pub fn response(&self, idx: u32, fresh: u64, bound: bool) -> Vec<u8> {
        self.frame(gateway_endpoint(), self.message(idx, fresh, bound).as_bytes())
    }

    /// The id and the key of the session that the RESPONSE for this row opens.
    pub fn session(&self, idx: u32, bound: bool) -> (SessionId, SessionKey) {
        let response = self.message(idx, FRESH, bound);
        let key = SessionKey::derive(&self.row(idx).auth_key, SUITE, &response.tag);
        (
            SessionId::from_wire(response.tag[..8].try_into().unwrap()).unwrap(),
            key,
        )
    }

    pub fn data_up(&self, idx: u32, bound: bool, seq: u32, port: u16, payload: &[u8]) -> Vec<u8> {
        let (session, key) = self.session(idx, bound);
        let to = if self.from.ip.is_ipv6() {
            v6(service_endpoint())
        } else {
            service_endpoint()
        };
        let to = Endpoint { port: LAP_PORT, ..to };
        let route = Route {
            source: ip_bytes(self.from.ip),
            destination: ip_bytes(to.ip),
        };
        let channel = Channel {
            suite: SUITE,
            device: self.id(),
            session,
            addr: ip_bytes(self.from.ip),
            key: &key,
        };
        let mut message = vec![0; 56 + payload.len()];
        let seq = Sequence::from_wire(seq.into()).unwrap();
        seal(&channel, Direction::Up, seq, port, &route, payload, &mut message).unwrap();
        self.frame(to, &message)
    }
}

pub fn new_tester(what: &str, gate: Gate) -> PacketTester {
    new_tester_with(what, gate, |_| {})
}

/// The gateway's own MAC addresses; their entries in `bridge` have the service port.
pub const OWN_MACS: [Mac; 2] = [[2, 0, 0, 0, 0xff, 1], [2, 0, 0, 0, 0xff, 2]];
/// The device prefixes of `device_sources`: 10.66.0.0/16 and fd66::/16.
const PREFIXES: [([u16; 8], u8); 2] = [
    ([0, 0, 0, 0, 0, 0xffff, 0x0a42, 0], 112),
    ([0xfd66, 0, 0, 0, 0, 0, 0, 0], 16),
];

/// Entries of the tables of exempt control protocols and DHCP servers.
fn lists(config: &GatewayConfig) -> Vec<String> {
    let mut lines = Vec::new();
    for protocol in ControlProtocol::ALL {
        let action = match protocol {
            _ if config.always_pass.contains(protocol) => "pass_always",
            ControlProtocol::Stp | ControlProtocol::Cdp => "forbid",
            _ => continue,
        };
        for (mac, ether_type) in protocol.addresses() {
            let mac = hex::encode(mac);
            lines.push(format!(
                "control_protocols hdr.net.ethernet.dst:0x{mac} meta.frame.ether_type:{ether_type:#x} {action}()"
            ));
        }
    }
    lines.extend(config.dhcp_servers.iter().map(|server| {
        let value = hex::encode(ip_bytes(*server));
        format!("dhcp_servers meta.end:0x{value} pass_always()")
    }));
    lines
}

fn sources() -> DeviceSources {
    let prefixes = ["10.66.0.0/16", "fd66::/16"];
    let prefixes: Vec<Prefix> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
    let link = OwnAddress {
        address: gateway_endpoint().ip,
        subnet: prefixes[0],
    };
    DeviceSources::new(&prefixes, &[gateway_endpoint().ip, OWN_V6.into()], &[link])
}

/// Arbitrary odd numbers.
const BUCKET_KEYS: [u64; 5] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
];

pub fn new_tester_with(what: &str, gate: Gate, configure: impl FnOnce(&mut GatewayConfig)) -> PacketTester {
    let mut config = GatewayConfig::new(GATEWAY, &[gateway_endpoint().ip, OWN_V6.into()]);
    config.gate = gate;
    config.sources = Some(sources());
    config.own_macs = Some(OWN_MACS.to_vec());
    configure(&mut config);
    config.session_lifetime_s = SESSION_LIFETIME_S;
    let lists = lists(&config);
    let mut tester = PacketTester::empty(Stf::new("lap", what), Gateway::new(config));
    tester.comment("The gateway's own addresses, the ports of passing frames, and the devices.");
    for own in [gateway_endpoint().ip, OWN_V6.into()] {
        let value = hex::encode(ip_bytes(own));
        tester
            .stf
            .line(&format!("add LapIngress.local meta.end:0x{value} is_own()"));
    }
    for number in 1..16u8 {
        tester.bridged.insert(device_endpoint(number).mac, PORT);
        tester.stf.line(&format!(
            "add LapIngress.bridge hdr.net.ethernet.dst:0x0200000000{number:02x} to_port(port:{PORT}, devices:1)"
        ));
    }
    tester.bridged.insert(gateway_endpoint().mac, SERVICE_PORT);
    for line in [
        format!("bridge hdr.net.ethernet.dst:0x02000000ff01 to_port(port:{SERVICE_PORT}, devices:0)"),
        format!("bridge hdr.net.ethernet.dst:0x02000000ff02 to_port(port:{SERVICE_PORT}, devices:0)"),
        format!("ports meta.ingress:{SERVICE_PORT} services()"),
    ] {
        tester.stf.line(&format!("add LapIngress.{line}"));
    }
    tester.comment("Device prefixes, except for the gateway's own addresses and the broadcast address.");
    let admitted = PREFIXES.map(|(address, bits)| (IpAddr::from(address), bits, "admit"));
    let excluded = sources().excluded().to_vec();
    let excluded = excluded.into_iter().map(|address| (address, 128, "NoAction"));
    for (address, bits, action) in admitted.into_iter().chain(excluded) {
        let value = hex::encode(ip_bytes(address));
        tester.stf.line(&format!(
            "add LapIngress.device_sources meta.frame.src:0x{value}/{bits} {action}()"
        ));
    }
    for (table, key, action) in [
        ("device_end_prefixes", "device_end", "device_end_inside"),
        ("end_prefixes", "end", "end_inside"),
    ] {
        tester.stf.line(&format!(
            "add LapIngress.{table} meta.{key}:0xfd66{}/16 {action}()",
            "0".repeat(28)
        ));
    }
    tester.comment("Configured exempt frames, and frames that no device may send.");
    for line in lists {
        tester.stf.line(&format!("add LapIngress.{line}"));
    }
    tester.flooded = vec![PORT, SERVICE_PORT];
    for line in [
        "mc_mgrp_create 1".to_owned(),
        format!("mc_node_create 1 {PORT} {SERVICE_PORT}"),
        "mc_node_associate 1 0".to_owned(),
    ] {
        tester.stf.line(&line);
    }
    spread(&mut tester, BUCKET_KEYS);
    tester
}

pub fn set_gate(tester: &mut PacketTester, gate: Gate) {
    set_gate_and_slow_path(tester, gate, false);
}

/// Sets the gate, with or without a slow path.
pub fn set_gate_and_slow_path(tester: &mut PacketTester, gate: Gate, slow: bool) {
    configure(tester, gate, slow, false);
}

/// Configures the gateway; with `attests`, PROOFs are verified.
pub fn configure(tester: &mut PacketTester, gate: Gate, slow: bool, attests: bool) {
    let gate = match gate {
        Gate::Sealed => 0,
        Gate::Bound => 1,
        Gate::Off => 2,
    };
    let dhcp4_is_named = tester.gateway.config().dhcp_servers.iter().any(IpAddr::is_ipv4);
    tester.stf.line(&format!(
        "setdefault LapIngress.gateway set_gateway(gateway_id:{}, session_lifetime_s:{SESSION_LIFETIME_S}, gate:{gate}, mtu:{MTU}, slow:{}, \
         attests:{}, dhcp4_is_named:{})",
        GATEWAY.0,
        u8::from(slow),
        u8::from(attests),
        u8::from(dhcp4_is_named)
    ));
}

/// Sets the factors of the hash that distributes addresses over buckets. With zeros, all addresses have the same bucket.
pub fn spread(tester: &mut PacketTester, keys: [u64; 5]) {
    for (index, key) in keys.into_iter().enumerate() {
        tester
            .stf
            .line(&format!("register_write LapIngress.bucket_keys {index} {key}"));
    }
}

pub fn set_stopping(tester: &mut PacketTester, stopping: bool) {
    tester.gateway.set_stopping(stopping);
    let value = u8::from(stopping);
    tester
        .stf
        .line(&format!("register_write LapIngress.stopping 0 {value}"));
}

/// Sets both freshness values.
pub fn refresh(tester: &mut PacketTester) {
    for (index, value) in [(1, PREVIOUS_FRESH), (0, FRESH)] {
        tester
            .stf
            .line(&format!("register_write LapIngress.fresh {index} {value}"));
        let value = FreshValue::from_wire(value.to_be_bytes()).unwrap();
        tester.gateway.rotate_fresh_value(value, tester.now);
    }
    tester
        .stf
        .line(&format!("register_write LapIngress.fresh_until_us 0 {LATER_US}"));
}

pub fn install(tester: &mut PacketTester, device: &Device, first: u32, rows: u32, mark: Option<u32>) {
    let number = device.number;
    let key_mode = device.mode == Mode::Key;
    tester.stf.line(&format!(
        "add LapIngress.devices hdr.lap.device_id:{:#x} set_device(device:{number}, key_mode:{})",
        device.id().0,
        u8::from(key_mode)
    ));
    let rows: Vec<Row> = (0..rows).map(|offset| device.row(first + offset)).collect();
    for (offset, row) in (0..).zip(&rows) {
        let idx = first + offset;
        let [key0, key1] = [0..8, 8..16].map(|half| hex::encode(&row.auth_key.as_bytes()[half]));
        let keys = format!("key0:0x{key0}, key1:0x{key1}");
        if key_mode {
            tester.stf.line(&format!(
                "add LapIngress.keys meta.device:{number} set_key({keys})"
            ));
        } else {
            tester.stf.line(&format!(
                "add LapIngress.rows meta.device:{number} meta.next:{idx} set_row(challenge:0x{}, {keys})",
                hex::encode(row.challenge)
            ));
        }
    }
    tester
        .stf
        .line(&format!("register_write LapIngress.next_idx {number} {first}"));
    tester.stf.line(&format!(
        "register_write LapIngress.marks {number} {}",
        mark.map_or(NO_MARK, u64::from)
    ));
    tester
        .gateway
        .install(DeviceInstall {
            device: device.id(),
            mode: device.mode,
            next_idx: RowIndex(first),
            rows,
            mark: mark.map(RowIndex),
        })
        .unwrap();
}

pub fn altered(frame: &[u8], at: usize) -> Vec<u8> {
    let mut altered_frame = frame.to_vec();
    altered_frame[at] ^= 0x10;
    altered_frame
}

/// Offset of the payload of an untagged IPv4 datagram.
pub const PAYLOAD: usize = 42;

impl PacketTester {
    /// Sends a frame from the service side.
    pub fn send_down(&mut self, frame: &[u8]) -> Verdict {
        self.stf.packet(SERVICE_PORT, frame);
        let mut out = frame.to_vec();
        let verdict = self.gateway.seal_frame(self.now, MTU.into(), false, &mut out);
        self.record(verdict);
        if verdict.disposition() == Disposition::Pass {
            self.stf.expect(PORT, &out);
        }
        verdict
    }

    pub fn expect_down(&mut self, verdict: Verdict, frame: &[u8]) {
        assert_eq!(self.send_down(frame), verdict);
    }
}

/// Builds a frame from the service to a device.
pub fn down(to: Endpoint) -> FrameBuilder {
    let from = if to.ip.is_ipv6() {
        v6(service_endpoint())
    } else {
        service_endpoint()
    };
    FrameBuilder::new(from, to)
}

pub fn tests() -> Vec<Stf> {
    let mut tests = vec![
        lap_handshakes::handshakes(),
        lap_handshakes::owners(),
        lap_handshakes::device_origins(),
        lap_limits::limits(),
        lap_handshakes::unknown_devices(),
        lap_gates::sealed(),
    ];
    tests.extend(lap_gates::gates());
    tests.extend(lap_lists::lists());
    tests
}
