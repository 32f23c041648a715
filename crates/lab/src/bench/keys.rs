//! Devices of the benchmarks: ids, addresses and keys are computed from an index, so that generator and verifier agree
//! without a registry. The benchmarks do not measure PUFs and enrollment.

use std::net::IpAddr;

use linewarden_dataplane::classic::{Classic, ClassicProfile};
use linewarden_dataplane::{Config, Gate, Geometry, Row};
use linewarden_protocol::frame::write;
use linewarden_protocol::ids::{GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::wire::{self, FLAG_BOUND, LAP_PORT, Request, Response, message_type};
use linewarden_protocol::{frame::write::Endpoint, tag};
use zerocopy::IntoBytes as _;

use crate::address::{self, DeviceAddress, Family, GATEWAY};
use crate::fleet::device_id;

/// The gateway of the benchmarks.
pub const GATEWAY_ID: GatewayId = GatewayId(7);
/// The fixed freshness value of the benchmarks.
pub const FRESH: [u8; 8] = *b"benchmrk";
/// UDP port of the devices.
pub const PORT: u16 = 40_000;

/// The key of a device's row at the gateway.
#[must_use]
pub fn auth_key(device: u32, mode: Mode, idx: RowIndex) -> AuthKey {
    let idx = if mode == Mode::Key { RowIndex(0) } else { idx };
    let mut bytes = *b"....____row of a";
    bytes[..4].copy_from_slice(&device.to_be_bytes());
    bytes[4..8].copy_from_slice(&idx.0.to_be_bytes());
    AuthKey::derive(
        &RowKey::from_bytes(bytes),
        Suite::SipHash128,
        mode,
        idx,
        GATEWAY_ID,
    )
}

/// A device's row in the form of the gateway's memory.
#[must_use]
pub fn row(device: u32, mode: Mode, idx: RowIndex) -> Row {
    let challenge = if mode == Mode::Key {
        [0; 8]
    } else {
        (u64::from(idx.0) + 1).to_be_bytes()
    };
    Row {
        challenge,
        auth_key: auth_key(device, mode, idx),
    }
}

/// `count` rows from `first` on (key mode: the single row).
#[must_use]
pub fn rows(device: u32, mode: Mode, first: RowIndex, count: u32) -> Vec<Row> {
    let count = if mode == Mode::Key { 1 } else { count };
    (0..count)
        .map(|offset| row(device, mode, RowIndex(first.0 + offset)))
        .collect()
}

fn nonce(device: u32) -> [u8; 16] {
    let mut nonce = *b"....nonceofbench";
    nonce[..4].copy_from_slice(&device.to_be_bytes());
    nonce
}

/// A device's REQUEST.
#[must_use]
pub fn request(device: u32) -> Request {
    Request {
        header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, device_id(device)),
        nonce: nonce(device),
        reserved: [0; 32],
    }
}

/// A device's RESPONSE for a row, with [`FRESH`].
#[must_use]
pub fn response(device: u32, mode: Mode, idx: RowIndex, bound: bool) -> Response {
    let flags = if bound { FLAG_BOUND } else { 0 };
    let mut response = Response {
        header: wire::Header::new(
            message_type::RESPONSE,
            Suite::SipHash128,
            flags,
            device_id(device),
        ),
        nonce: nonce(device),
        idx: idx.0.into(),
        gateway_id: GATEWAY_ID.0.into(),
        fresh: FRESH,
        tag: [0; 16],
    };
    let loc = tag::location(bound.then(|| DeviceAddress::new(device).mac().0));
    response.tag = tag::response(&auth_key(device, mode, idx), &response, &loc);
    response
}

/// A device's frame with `payload` to `port` of the gateway; empty if the frame would be longer than 160 bytes.
#[must_use]
pub fn frame(device: u32, port: u16, payload: &[u8]) -> Vec<u8> {
    let from: Endpoint = DeviceAddress::new(device).endpoint(Family::V4, PORT);
    let to = GATEWAY.endpoint(Family::V4, port);
    let mut out = vec![0u8; 160];
    let length = write::udp(&mut out, &from, &to, [0, 0], payload).unwrap_or(0);
    out.truncate(length);
    out
}

/// [`frame`] of a REQUEST.
#[must_use]
pub fn request_frame(device: u32) -> Vec<u8> {
    frame(device, LAP_PORT, request(device).as_bytes())
}

/// [`frame`] of a RESPONSE.
#[must_use]
pub fn response_frame(device: u32, mode: Mode, idx: RowIndex, bound: bool) -> Vec<u8> {
    frame(device, LAP_PORT, response(device, mode, idx, bound).as_bytes())
}

/// The configuration of a gateway for `slots` devices, each with `ring` rows in addition to the row in the line.
#[must_use]
pub fn config(slots: u32, ring: u32) -> Config {
    Config {
        gateway_id: GATEWAY_ID,
        session_lifetime_s: 3600,
        lap_port: LAP_PORT,
        local: vec![IpAddr::V4(GATEWAY.v4)],
        device_prefixes: address::fleet_prefixes(),
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Off,
        nak_per_s: 1000,
        alarm_per_s: 10,
        miss_per_s: 0,
        low_rows: 1,
        low_credit: 0,
        geometry: Geometry {
            slots,
            ring,
            hash_seed: [0x6c69_6e65, 0x7761_7264],
        },
        provers: 0,
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

/// The port of the classic profile.
pub const CLASSIC_PORT: u16 = linewarden_protocol::classic::CLASSIC_PORT;

/// The response of an identifier's row `row`, `bytes` bytes long.
#[must_use]
pub fn classic_response(identifier: u32, row: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(identifier) << 32 | u64::from(row);
    (0..bytes.div_ceil(8))
        .flat_map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()
        })
        .take(bytes)
        .collect()
}

/// `identifiers` devices with `rows` CRPs each; the challenge is the row's number plus one.
#[must_use]
pub fn classic(profile: ClassicProfile, response_bytes: usize, identifiers: u32, rows: u32) -> Classic {
    let crps = (1..=identifiers)
        .map(|id| {
            (0..rows)
                .map(|row| (row + 1, classic_response(id, row, response_bytes)))
                .collect()
        })
        .collect();
    Classic {
        profile,
        port: CLASSIC_PORT,
        response_bytes,
        crps,
        seed: 1,
    }
}
