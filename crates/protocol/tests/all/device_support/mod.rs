//! The gateway's half of a handshake, computed with the device's keys, and a test device.

use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, SessionKey};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, Message, message_type};

pub const SUITE: Suite = Suite::SipHash128;
pub const DEVICE: DeviceId = DeviceId(0x1122_3344_5566_7788);
pub const GATEWAY: GatewayId = GatewayId(7);
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub const FRESH: [u8; 8] = [0xF5; 8];
pub const LOCAL_IP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 66, 0, 9];
pub const SESSION_LIFETIME_S: u32 = 3_600;

pub fn config(mode: Mode) -> DeviceConfig {
    DeviceConfig {
        device: DEVICE,
        suite: SUITE,
        mode,
        gateways: GatewayPolicy::pinned(&[GATEWAY, GatewayId(8)]).unwrap(),
        bound_mac: Some(MAC),
    }
}

/// The key that the device's PUF produces for a row.
pub fn row_key(mode: Mode, idx: u32) -> RowKey {
    match mode {
        Mode::Pool => RowKey::for_row(&[0x3C; 32], &[4; 32], SUITE, DEVICE, RowIndex(idx)),
        Mode::Key => RowKey::for_device(&[0x3C; 32], &[4; 32], SUITE, DEVICE),
    }
}

pub fn nonce(number: u64) -> [u8; 16] {
    let mut nonce = [0xA0; 16];
    nonce[..8].copy_from_slice(&number.to_be_bytes());
    // The row statement of a device that has sent no RESPONSE.
    RowStatement::default().write_into(nonce)
}

/// The nonce in the device's REQUEST, with the device's row statement.
pub fn nonce_with_statement(device: &Device, number: u64) -> [u8; 16] {
    match device.config().mode {
        Mode::Pool => device.row_statement().write_into(nonce(number)),
        Mode::Key => nonce(number),
    }
}

/// A row that a gateway offers in a CHALLENGE.
#[derive(Clone, Copy)]
pub struct TestChallenge {
    pub mode: Mode,
    pub device: DeviceId,
    pub gateway: GatewayId,
    pub idx: u32,
    pub fresh: [u8; 8],
}

impl TestChallenge {
    pub fn of(mode: Mode, idx: u32) -> Self {
        Self {
            mode,
            device: DEVICE,
            gateway: GATEWAY,
            idx,
            fresh: FRESH,
        }
    }

    fn auth_key(&self) -> AuthKey {
        AuthKey::derive(
            &row_key(self.mode, self.idx),
            SUITE,
            self.mode,
            RowIndex(self.idx),
            self.gateway,
        )
    }

    /// The CHALLENGE for a handshake with this nonce.
    pub fn challenge(&self, nonce: &[u8; 16]) -> [u8; 64] {
        let mut message = wire::Challenge {
            header: wire::Header::new(message_type::CHALLENGE, SUITE, 0, self.device),
            idx: self.idx.into(),
            gateway_id: self.gateway.0.into(),
            challenge: match self.mode {
                Mode::Pool => [0xC4; 8],
                Mode::Key => [0; 8],
            },
            fresh: self.fresh,
            nonce_echo: nonce[..8].try_into().unwrap(),
            tag: [0; 16],
        };
        message.tag = tag::challenge(&self.auth_key(), &message, nonce);
        bytes(&message)
    }

    /// Returns the ACK for this RESPONSE, after the checks of the gateway.
    pub fn ack(&self, response: &[u8; 64], lifetime_s: u32, seen_ip: [u8; 16]) -> [u8; 64] {
        let Ok(Message::Response(response)) = wire::parse(response) else {
            panic!("not a RESPONSE: {response:?}");
        };
        let expected = tag::response(&self.auth_key(), response, &tag::location(Some(MAC)));
        assert_eq!(expected, response.tag, "the RESPONSE must verify");
        let mut message = wire::Ack {
            header: wire::Header::new(message_type::ACK, SUITE, 0, self.device),
            idx: self.idx.into(),
            session_lifetime_s: lifetime_s.into(),
            session_id: response.tag[..8].try_into().unwrap(),
            tag: [0; 16],
            seen_ip,
        };
        let key = SessionKey::derive(&self.auth_key(), SUITE, &response.tag);
        message.tag = tag::ack(&key, &message);
        bytes(&message)
    }
}

pub fn bytes<T: zerocopy::IntoBytes + zerocopy::Immutable>(message: &T) -> [u8; 64] {
    message.as_bytes().try_into().unwrap()
}

/// The message that an output transmits.
pub fn sent(output: Output) -> [u8; 64] {
    match output {
        Output::Transmit(message) => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

/// Performs a complete handshake for row `idx`, all at `now_ms`.
pub fn authenticate(device: &mut Device, number: u64, idx: u32, now_ms: u64) {
    let mode = device.config().mode;
    let offer = TestChallenge::of(mode, idx);
    let request = device.start(nonce(number), now_ms).unwrap();
    assert!(matches!(request, Output::Transmit(_)), "{request:?}");
    let response = respond(device, &offer, number, now_ms);
    let ack = offer.ack(&response, SESSION_LIFETIME_S, LOCAL_IP);
    let output = device.handle(&ack, &LOCAL_IP, now_ms).unwrap();
    assert!(matches!(output, Output::Authenticated(_)), "{output:?}");
}

/// Takes the device from AwaitChallenge to AwaitAck with a CHALLENGE and a PUF reading; returns the RESPONSE.
pub fn respond(device: &mut Device, offer: &TestChallenge, number: u64, now_ms: u64) -> [u8; 64] {
    let challenge = offer.challenge(&nonce_with_statement(device, number));
    let query = device.handle(&challenge, &LOCAL_IP, now_ms).unwrap();
    assert!(matches!(query, Output::EvaluatePuf(_)), "{query:?}");
    sent(device.puf_result(Ok(row_key(offer.mode, offer.idx)), now_ms))
}
