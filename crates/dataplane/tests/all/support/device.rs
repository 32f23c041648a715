//! The devices of the tests: addresses, keys, messages. They do not keep the rules for devices in LAP/1 1.5, but send
//! whatever a test needs.

use std::net::IpAddr;

use linewarden_protocol::data::{Channel, Direction, Route, Sequence, seal};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{Mac, ip_bytes};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId, Suite};
use linewarden_protocol::keys::{AuthKey, SessionKey};
use linewarden_protocol::prf;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, DATA_HEADER_BYTES, FLAG_BOUND, Header, LAP_PORT, message_type};
use zerocopy::IntoBytes as _;

/// The gateway of all tests.
pub const GATEWAY: GatewayId = GatewayId(77);

/// One of the gateway's addresses.
pub fn gateway_end(v6: bool) -> Endpoint {
    let ip = if v6 {
        IpAddr::from([0xfd66, 0, 0, 0, 0, 0, 0, 0xfe])
    } else {
        IpAddr::from([10, 66, 0, 254])
    };
    Endpoint {
        mac: [2, 0, 0, 0, 0xff, 0xfe],
        ip,
        port: LAP_PORT,
    }
}

/// A host behind the gateway.
pub fn service_end(v6: bool) -> Endpoint {
    let ip = if v6 {
        IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 9])
    } else {
        IpAddr::from([10, 77, 0, 9])
    };
    Endpoint {
        ip,
        port: 8080,
        ..gateway_end(v6)
    }
}

/// A device by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TestDevice(pub u16);

pub const A: TestDevice = TestDevice(1);
pub const B: TestDevice = TestDevice(2);
/// A device that is never installed.
pub const UNKNOWN: TestDevice = TestDevice(999);

impl TestDevice {
    /// Ids are large and far apart, so that no id equals a slot number.
    pub fn id(self) -> DeviceId {
        DeviceId(0x1000_0000_0000_0000 | (u64::from(self.0) * 0x0101_0101))
    }

    pub fn mac(self) -> Mac {
        let [high, low] = self.0.to_be_bytes();
        [2, 1, 0, 0, high, low]
    }

    pub fn end(self, v6: bool) -> Endpoint {
        let [high, low] = self.0.to_be_bytes();
        let ip = if v6 {
            IpAddr::from([0xfd66, 0, 0, 0, 0, 0, 1, self.0])
        } else {
            IpAddr::from([10, 66, 128 + high, low])
        };
        Endpoint {
            mac: self.mac(),
            ip,
            port: 40_000 + self.0,
        }
    }

    /// A frame to the gateway.
    pub fn frame(self, v6: bool) -> FrameBuilder {
        FrameBuilder::new(self.end(v6), gateway_end(v6))
    }

    /// The key of a row at this gateway, or the only key of a key-mode device.
    pub fn auth_key(self, mode: Mode, idx: RowIndex) -> AuthKey {
        let number = match mode {
            Mode::Pool => u64::from(idx.0),
            Mode::Key => u64::MAX,
        };
        AuthKey::from_bytes(prf::f(
            b"keys of the test",
            &[self.id().0.to_be_bytes(), number.to_be_bytes()],
        ))
    }

    /// The challenge of a row; all zeros in key mode.
    pub fn challenge(self, mode: Mode, idx: RowIndex) -> [u8; 8] {
        match mode {
            Mode::Pool => (self.id().0 ^ u64::from(idx.0) << 7).to_be_bytes(),
            Mode::Key => [0; 8],
        }
    }

    pub fn request(self, nonce: [u8; 16]) -> wire::Request {
        wire::Request {
            header: Header::new(message_type::REQUEST, Suite::SipHash128, 0, self.id()),
            nonce,
            reserved: [0; 32],
        }
    }

    /// A RESPONSE with these fields and a valid tag.
    pub fn response(self, fields: &Response) -> wire::Response {
        let flags = if fields.bound.is_some() { FLAG_BOUND } else { 0 };
        let mut message = wire::Response {
            header: Header::new(message_type::RESPONSE, Suite::SipHash128, flags, self.id()),
            nonce: fields.nonce,
            idx: fields.idx.into(),
            gateway_id: fields.gateway.0.into(),
            fresh: fields.fresh,
            tag: [0; 16],
        };
        let key = self.auth_key(fields.mode, RowIndex(fields.idx));
        message.tag = tag::response(&key, &message, &tag::location(fields.bound));
        message
    }
}

/// A session as the device knows it.
#[derive(Clone)]
pub struct DeviceSession {
    pub device: TestDevice,
    pub id: SessionId,
    pub key: SessionKey,
}

impl DeviceSession {
    /// The session that the gateway opens for `response`.
    pub fn of(device: TestDevice, mode: Mode, response: &wire::Response) -> Self {
        let auth_key = device.auth_key(mode, RowIndex(response.idx.get()));
        Self {
            device,
            id: SessionId::from_wire(response.tag[..8].try_into().unwrap()).unwrap(),
            key: SessionKey::derive(&auth_key, Suite::SipHash128, &response.tag),
        }
    }

    pub fn channel(&self, v6: bool) -> Channel<'_> {
        Channel {
            suite: Suite::SipHash128,
            device: self.device.id(),
            session: self.id,
            addr: ip_bytes(self.device.end(v6).ip),
            key: &self.key,
        }
    }

    /// A DATA_UP to the address of `to`, whose payload the gateway forwards to port `to.port`.
    pub fn seal(&self, seq: u32, to: &Endpoint, payload: &[u8]) -> Vec<u8> {
        let v6 = to.ip.is_ipv6();
        let route = Route {
            source: ip_bytes(self.device.end(v6).ip),
            destination: ip_bytes(to.ip),
        };
        let seq = Sequence(seq.try_into().unwrap());
        let mut out = vec![0; DATA_HEADER_BYTES + payload.len()];
        seal(
            &self.channel(v6),
            Direction::Up,
            seq,
            to.port,
            &route,
            payload,
            &mut out,
        )
        .unwrap();
        out
    }
}

/// A frame builder for a sealed message from the device: to the LAP port at the address of `to`.
pub fn sealed_frame(device: TestDevice, to: &Endpoint) -> FrameBuilder {
    let to = Endpoint {
        port: LAP_PORT,
        ..*to
    };
    FrameBuilder::new(device.end(to.ip.is_ipv6()), to)
}

/// The fields of a RESPONSE.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    pub mode: Mode,
    pub idx: u32,
    pub gateway: GatewayId,
    pub fresh: [u8; 8],
    pub bound: Option<Mac>,
    pub nonce: [u8; 16],
}

impl Response {
    pub fn bytes(&self, device: TestDevice) -> Vec<u8> {
        device.response(self).as_bytes().to_vec()
    }

    pub fn bound(self, mac: Mac) -> Self {
        Self {
            bound: Some(mac),
            ..self
        }
    }

    pub fn idx(self, idx: u32) -> Self {
        Self { idx, ..self }
    }

    pub fn fresh(self, fresh: [u8; 8]) -> Self {
        Self { fresh, ..self }
    }

    pub fn gateway(self, gateway: u32) -> Self {
        Self {
            gateway: GatewayId(gateway),
            ..self
        }
    }

    pub fn nonce(self, byte: u8) -> Self {
        Self {
            nonce: [byte; 16],
            ..self
        }
    }
}
