//! Enrolled devices: ids, addresses, and the keys that only their PUFs produce.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_protocol::frame::Mac;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};

pub const SUITE: Suite = Suite::SipHash128;

#[derive(Clone, Copy, Debug)]
pub struct Enrollment {
    pub device: DeviceId,
    pub mode: Mode,
    pub endpoint: Endpoint,
    pub bound: bool,
}

impl Enrollment {
    /// Creates device `number`; devices with an odd number use IPv6.
    pub fn new(number: u8, mode: Mode, bound: bool) -> Self {
        let ip = if number.is_multiple_of(2) {
            IpAddr::V4(Ipv4Addr::new(10, 66, 0, number))
        } else {
            IpAddr::V6(Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, u16::from(number)))
        };
        Self {
            device: DeviceId(0xD000 + u64::from(number)),
            mode,
            endpoint: Endpoint {
                mac: [2, 0, 0, 0, 0xD0, number],
                ip,
                port: 40_000 + u16::from(number),
            },
            bound,
        }
    }

    /// The MAC address to which RESPONSEs are bound, if any.
    pub fn bound_mac(&self) -> Option<Mac> {
        self.bound.then_some(self.endpoint.mac)
    }

    /// The key from this device's PUF.
    pub fn row_key(&self, idx: RowIndex) -> RowKey {
        let mut response = [0x5A; 32];
        response[..8].copy_from_slice(&self.device.0.to_be_bytes());
        match self.mode {
            Mode::Pool => RowKey::for_row(&response, &[7; 32], SUITE, self.device, idx),
            Mode::Key => RowKey::for_device(&response, &[7; 32], SUITE, self.device),
        }
    }

    /// The row as the gateway receives it.
    pub fn row(&self, gateway: GatewayId, idx: RowIndex) -> Row {
        Row {
            challenge: match self.mode {
                Mode::Pool => (0x0101_0101_0000_0000 | u64::from(idx.0)).to_be_bytes(),
                Mode::Key => [0; 8],
            },
            auth_key: AuthKey::derive(&self.row_key(idx), SUITE, self.mode, idx, gateway),
        }
    }
}
