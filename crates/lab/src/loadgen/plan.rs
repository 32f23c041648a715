//! The plan of the load generator.

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, FLAG_BOUND, LAP_PORT, message_type};
use zerocopy::byteorder::big_endian::U32;

use super::error::LoadError;
use crate::address::{DeviceAddress, GATEWAY};
use crate::skeletons::loadgen::types;

/// Maximum number of concurrent handshakes.
pub const WINDOW_MAX: u32 = 192;

/// The devices and messages of a load. The verifier must hold rows `first_idx..first_idx + rows` of each device (in
/// key mode, the device's next `idx` must be `first_idx`), and the verifier's `fresh` must not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Number of devices, with indices from 0 on, which take turns.
    pub devices: u32,
    /// Concurrent handshakes; at most `devices` and [`WINDOW_MAX`].
    pub window: u32,
    /// RESPONSEs prepared per device, 16 bytes of memory each.
    pub rows: u32,
    /// The row of each device's first RESPONSE.
    pub first_idx: RowIndex,
    /// The gateway for which the tags are computed.
    pub gateway: GatewayId,
    /// The gateway's freshness value.
    pub fresh: [u8; 8],
    /// The devices' suite.
    pub suite: Suite,
    /// Binds sessions to the devices' MAC addresses.
    pub bound: bool,
    /// UDP port of all devices.
    pub source_port: u16,
    /// How the generator sends messages.
    pub transmit: Transmit,
}

/// How the generator sends messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transmit {
    /// `XDP_TX`, which reaches only an end with an XDP program: the `xdp` data plane or the [`super::Reflector`].
    Tx,
    /// `XDP_REDIRECT` to the same interface, which reaches an end with NAPI (GRO) too: the `host` data plane. Each
    /// message takes the generator a few nanoseconds more.
    Redirect,
}

/// The constant part of a nonce after the device's index, as in `loadgen.bpf.c`.
const NONCE_REST: &[u8; 12] = b"loadgenerate";

impl Plan {
    /// The nonce of a device. The nonce is constant; a verifier cannot detect the repetition.
    pub(super) fn nonce(index: u32) -> [u8; 16] {
        let mut nonce = [0; 16];
        nonce[..4].copy_from_slice(&index.to_be_bytes());
        nonce[4..].copy_from_slice(NONCE_REST);
        nonce
    }

    pub(super) fn request(&self, index: u32, device: DeviceId) -> wire::Request {
        wire::Request {
            header: wire::Header::new(message_type::REQUEST, self.suite, 0, device),
            nonce: Self::nonce(index),
            reserved: [0; 32],
        }
    }

    pub(super) fn response_tag(
        &self,
        index: u32,
        device: DeviceId,
        idx: RowIndex,
        key: &AuthKey,
    ) -> [u8; 16] {
        let mut loc = [0; 8];
        if self.bound {
            loc[..6].copy_from_slice(&DeviceAddress::new(index).mac().0);
        }
        let response = wire::Response {
            header: wire::Header::new(message_type::RESPONSE, self.suite, self.response_flags(), device),
            nonce: Self::nonce(index),
            idx: U32::new(idx.0),
            gateway_id: U32::new(self.gateway.0),
            fresh: self.fresh,
            tag: [0; 16],
        };
        tag::response(key, &response, &loc)
    }

    fn response_flags(&self) -> u8 {
        if self.bound { FLAG_BOUND } else { 0 }
    }

    pub(super) fn check(&self) -> Result<(), LoadError> {
        if self.devices == 0 || self.window == 0 || self.rows == 0 {
            return Err(LoadError::InvalidPlan(
                "devices, window and rows must be greater than 0",
            ));
        }
        if self.window > WINDOW_MAX.min(self.devices) {
            return Err(LoadError::InvalidPlan(
                "the window must not exceed 192 or the number of devices",
            ));
        }
        let tags = u64::from(self.devices) * u64::from(self.rows);
        if u32::try_from(tags).is_err() || self.first_idx.0.checked_add(self.rows).is_none() {
            return Err(LoadError::InvalidPlan(
                "too many rows: devices × rows must stay below 2^32",
            ));
        }
        if self.fresh == [0; 8] {
            return Err(LoadError::InvalidPlan("fresh must not be zero"));
        }
        Ok(())
    }

    pub(super) fn config(&self) -> types::loadgen_config {
        types::loadgen_config {
            devices: self.devices,
            window: self.window,
            rows: self.rows,
            first_idx: self.first_idx.0,
            fresh_be: u64::from_ne_bytes(self.fresh),
            gateway_ip_be: u32::from_ne_bytes(GATEWAY.v4.octets()),
            device_ip_base: DeviceAddress::new(0).v4().to_bits(),
            source_port_be: self.source_port.to_be(),
            lap_port_be: LAP_PORT.to_be(),
            gateway_mac: GATEWAY.mac.0,
            response_flags: self.response_flags(),
            suite: self.suite.number(),
            redirect: u8::from(self.transmit == Transmit::Redirect),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            devices: 10,
            window: 10,
            rows: 1,
            first_idx: RowIndex(0),
            gateway: GatewayId(1),
            fresh: [1; 8],
            suite: Suite::SipHash128,
            bound: false,
            source_port: 40_000,
            transmit: Transmit::Tx,
        }
    }

    #[test]
    fn invalid_plans_are_refused() {
        assert!(plan().check().is_ok());
        for broken in [
            Plan { devices: 0, ..plan() },
            Plan { window: 11, ..plan() },
            Plan {
                window: 193,
                devices: 1000,
                ..plan()
            },
            Plan {
                rows: u32::MAX,
                ..plan()
            },
            Plan {
                fresh: [0; 8],
                ..plan()
            },
        ] {
            assert!(broken.check().is_err(), "{broken:?}");
        }
    }
}
