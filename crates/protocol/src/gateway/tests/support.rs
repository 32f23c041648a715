//! Test fixture: a gateway, and devices whose messages are built by hand so that each byte can be altered.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::frame::builder::FrameBuilder;
use crate::frame::write::Endpoint;
use crate::frame::{Meta, parse};
use crate::gateway::{DeviceInstall, FreshValue, Gate, Gateway, GatewayConfig, Row};
use crate::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId, Suite};
use crate::keys::{AuthKey, RowKey, SessionKey};
use crate::sources::{DeviceSources, OwnAddress, Prefix};
use crate::tag;
use crate::time::Now;
use crate::verdict::{Disposition, Verdict};
use crate::wire::{Ack, Challenge, FLAG_BOUND, Header, LAP_PORT, Nak, Request, Response, message_type};

pub const GATEWAY: GatewayId = GatewayId(7);
pub const SUITE: Suite = Suite::SipHash128;
pub const INGRESS: u32 = 3;
pub const SESSION_LIFETIME_S: u32 = 600;

/// A device: its keys, and the origin of its messages.
#[derive(Clone)]
pub struct TestDevice {
    pub id: DeviceId,
    pub mode: Mode,
    pub endpoint: Endpoint,
    pub vlan: Option<u16>,
    pub ingress: u32,
}

impl TestDevice {
    pub fn new(n: u8, mode: Mode) -> Self {
        Self {
            id: DeviceId(0x1000 + u64::from(n)),
            mode,
            endpoint: Endpoint {
                mac: [2, 0, 0, 0, 0, n],
                ip: IpAddr::from([10, 66, 0, n]),
                port: 40_000,
            },
            vlan: None,
            ingress: INGRESS,
        }
    }

    pub fn auth_key(&self, idx: u32) -> AuthKey {
        let mut bytes = [0x11; 16];
        bytes[..8].copy_from_slice(&self.id.0.to_le_bytes());
        if self.mode == Mode::Pool {
            bytes[8..12].copy_from_slice(&idx.to_le_bytes());
        }
        AuthKey::derive(
            &RowKey::from_bytes(bytes),
            SUITE,
            self.mode,
            RowIndex(idx),
            GATEWAY,
        )
    }

    pub fn row(&self, idx: u32) -> Row {
        let challenge = match self.mode {
            Mode::Pool => [0xc0, 0, 0, 0, 0, 0, 0, idx.to_le_bytes()[0]],
            Mode::Key => [0; 8],
        };
        Row {
            challenge,
            auth_key: self.auth_key(idx),
        }
    }

    pub fn install(&self, next_idx: u32, rows: u32) -> DeviceInstall {
        let count = if self.mode == Mode::Key { 1 } else { rows };
        DeviceInstall {
            device: self.id,
            mode: self.mode,
            next_idx: RowIndex(next_idx),
            rows: (0..count).map(|offset| self.row(next_idx + offset)).collect(),
            mark: None,
        }
    }

    pub fn request(&self, nonce: u8) -> Vec<u8> {
        let request = Request {
            header: Header::new(message_type::REQUEST, SUITE, 0, self.id),
            nonce: [nonce; 16],
            reserved: [0; 32],
        };
        request.as_bytes().to_vec()
    }

    /// A RESPONSE that is correct for `idx` and `fresh`, BOUND to the own MAC address.
    pub fn response(&self, idx: u32, fresh: [u8; 8]) -> Vec<u8> {
        self.response_with(idx, fresh, 0x4e, Some(self.endpoint.mac))
    }

    pub fn response_with(&self, idx: u32, fresh: [u8; 8], nonce: u8, mac: Option<[u8; 6]>) -> Vec<u8> {
        let flags = if mac.is_some() { FLAG_BOUND } else { 0 };
        let mut response = Response {
            header: Header::new(message_type::RESPONSE, SUITE, flags, self.id),
            nonce: [nonce; 16],
            idx: U32::new(idx),
            gateway_id: U32::new(GATEWAY.0),
            fresh,
            tag: [0; 16],
        };
        response.tag = tag::response(&self.auth_key(idx), &response, &tag::location(mac));
        response.as_bytes().to_vec()
    }
}

/// A gateway, the time and the current freshness value.
pub struct GatewayFixture {
    pub gateway: Gateway,
    pub now: Now,
    pub fresh: [u8; 8],
    /// Number of freshness values drawn so far.
    drawn: u64,
}

/// Allowed sources: the prefixes of the fixture's two subnets, which are on the gateway's link, and of `extra`.
pub fn device_sources(extra: &[&str]) -> DeviceSources {
    let prefixes = ["10.66.0.0/16", "fd66::/64"].iter().chain(extra);
    let prefixes: Vec<Prefix> = prefixes.map(|text| text.parse().unwrap()).collect();
    let own_v6 = IpAddr::from([0xfd66, 0, 0, 0, 0, 0, 0, 0xfe]);
    let link = OwnAddress {
        address: gateway_endpoint().ip,
        subnet: prefixes[0],
    };
    DeviceSources::new(&prefixes, &[gateway_endpoint().ip, own_v6], &[link])
}

/// The address of the gateway.
pub fn gateway_endpoint() -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0xff, 1],
        ip: IpAddr::from([10, 66, 0, 254]),
        port: LAP_PORT,
    }
}

/// The service behind the gate.
pub fn service_endpoint() -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0xff, 2],
        ip: IpAddr::from([10, 77, 0, 1]),
        port: 9000,
    }
}

impl GatewayFixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(configure: impl FnOnce(&mut GatewayConfig)) -> Self {
        let own_v6 = IpAddr::from([0xfd66, 0, 0, 0, 0, 0, 0, 0xfe]);
        let mut config = GatewayConfig::new(GATEWAY, &[gateway_endpoint().ip, own_v6]);
        config.gate = Gate::Bound;
        config.session_lifetime_s = SESSION_LIFETIME_S;
        config.sources = Some(device_sources(&[]));
        config.own_macs = Some(vec![gateway_endpoint().mac]);
        configure(&mut config);
        let mut fixture = Self {
            gateway: Gateway::new(config),
            now: Now {
                monotonic_ms: 50_000,
                boot_ms: 90_000,
            },
            fresh: [0; 8],
            drawn: 0,
        };
        fixture.rotate_fresh_value();
        fixture
    }

    /// Sets the next freshness value.
    pub fn rotate_fresh_value(&mut self) {
        self.drawn += 1;
        self.fresh = (0xf4e5_0000_0000_0000 | self.drawn).to_be_bytes();
        let value = FreshValue::from_wire(self.fresh).unwrap();
        self.gateway.rotate_fresh_value(value, self.now);
    }

    /// Advances the time and keeps the freshness value current.
    pub fn pass_s(&mut self, seconds: u64) {
        self.now = self.now.plus_ms(seconds * 1000);
        self.rotate_fresh_value();
    }

    pub fn frame(&self, device: &TestDevice, to: Endpoint, payload: &[u8]) -> Vec<u8> {
        let builder = FrameBuilder::new(device.endpoint, to);
        match device.vlan {
            Some(vid) => builder.vlan(vid).udp(payload),
            None => builder.udp(payload),
        }
    }

    /// Handles a frame; a frame without a reply must be unchanged.
    pub fn handle(&mut self, ingress: u32, frame: &mut [u8]) -> Verdict {
        let before = frame.to_vec();
        let verdict = self.gateway.handle_frame(self.now, ingress, frame);
        if verdict.disposition() != Disposition::Reply {
            assert_eq!(frame, before, "{verdict} must leave the frame alone");
        }
        verdict
    }

    /// Sends a payload from a device to the gateway's LAP port; returns the verdict and the resulting payload.
    pub fn send(&mut self, device: &TestDevice, payload: &[u8]) -> (Verdict, Vec<u8>) {
        let mut frame = self.frame(device, gateway_endpoint(), payload);
        let verdict = self.handle(device.ingress, &mut frame);
        let (_, udp) = parse(&frame).unwrap().datagram().unwrap();
        (verdict, frame[udp.payload()].to_vec())
    }

    pub fn verdict(&mut self, device: &TestDevice, payload: &[u8]) -> Verdict {
        self.send(device, payload).0
    }

    /// Sends a datagram to the service through the gate.
    pub fn through_gate(&mut self, device: &TestDevice) -> Verdict {
        let mut frame = self.frame(device, service_endpoint(), b"reading");
        self.handle(device.ingress, &mut frame)
    }

    pub fn meta(&self, device: &TestDevice) -> Meta {
        let frame = self.frame(device, gateway_endpoint(), &[]);
        parse(&frame).unwrap().meta(device.ingress).unwrap()
    }

    pub fn idx(&self, device: &TestDevice) -> u32 {
        let line = self.gateway.line(device.id);
        line.map_or(0, |line| line.commit.idx().0)
    }

    /// Sends a correct RESPONSE for the current row; returns its bytes.
    pub fn authenticate(&mut self, device: &TestDevice) -> Vec<u8> {
        let response = device.response(self.idx(device), self.fresh);
        assert_eq!(self.verdict(device, &response), Verdict::ReplyAck);
        response
    }

    /// Checks and commits a RESPONSE, and stops before the winner's work.
    pub fn commit_only(&mut self, device: &TestDevice) -> crate::gateway::CommittedRow {
        let response = device.response(self.idx(device), self.fresh);
        let response = Response::read_from_bytes(&response).unwrap();
        let checked = self
            .gateway
            .check_response(self.now, &self.meta(device), &response)
            .unwrap();
        let crate::gateway::ResponseCheck::Current(verified) = checked else {
            panic!("a new RESPONSE");
        };
        self.gateway.commit(verified).unwrap()
    }
}

pub fn challenge(payload: &[u8]) -> Challenge {
    Challenge::read_from_bytes(payload).unwrap()
}

pub fn nak(payload: &[u8]) -> Nak {
    Nak::read_from_bytes(payload).unwrap()
}

/// Returns the ACK, which must verify under the session key that the device derives from its RESPONSE.
pub fn verified_ack(device: &TestDevice, response: &[u8], payload: &[u8]) -> Ack {
    let response = Response::read_from_bytes(response).unwrap();
    let ack = Ack::read_from_bytes(payload).unwrap();
    let key = SessionKey::derive(&device.auth_key(response.idx.get()), SUITE, &response.tag);
    assert_eq!(ack.header.kind, message_type::ACK);
    assert_eq!(ack.tag, tag::ack(&key, &ack), "ACK.tag");
    assert_eq!(ack.session_id, response.tag[..8]);
    assert_eq!(ack.idx, response.idx);
    ack
}

/// The session that a gateway opens for `response`: its id and its key.
pub fn session_of(device: &TestDevice, response: &[u8]) -> (SessionId, SessionKey) {
    let response = Response::read_from_bytes(response).unwrap();
    let key = SessionKey::derive(&device.auth_key(response.idx.get()), SUITE, &response.tag);
    let [id, _] = crate::keys::halves(&response.tag);
    (SessionId::from_wire(id).unwrap(), key)
}

/// A fixture with one pool device of `rows` rows.
pub fn one_device(rows: u32) -> (GatewayFixture, TestDevice) {
    let mut fixture = GatewayFixture::new();
    let device = TestDevice::new(1, Mode::Pool);
    fixture.gateway.install(device.install(0, rows)).unwrap();
    (fixture, device)
}

pub fn altered(payload: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut altered = payload.to_vec();
    altered[at..at + bytes.len()].copy_from_slice(bytes);
    altered
}

pub fn data_up(device: &TestDevice) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    let header = Header::with_length(message_type::DATA_UP, SUITE, 0, device.id, 60);
    bytes[..16].copy_from_slice(header.as_bytes());
    bytes
}
