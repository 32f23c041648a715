//! Devices in the test process: the device role of the protocol crate, with computed keys and without stored state.

use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::{Credentials, DeviceRecord, PoolRow};

/// A device that restarts for each handshake. The device stores no state, and responds to a CHALLENGE for any row.
pub struct StatelessDevice {
    pub id: DeviceId,
    pub mode: Mode,
    rows: u32,
    device: Device,
    /// Whether no handshake is in progress.
    pub is_idle: bool,
    /// Sent RESPONSEs, oldest first.
    pub sent: Vec<[u8; 64]>,
    /// Number of successful handshakes.
    pub sessions: u32,
}

impl StatelessDevice {
    pub fn new(id: DeviceId, mode: Mode, rows: u32) -> Self {
        Self {
            id,
            mode,
            rows,
            device: new_device(id, mode),
            is_idle: true,
            sent: Vec::new(),
            sessions: 0,
        }
    }

    fn row_key(&self, idx: u32) -> RowKey {
        let mut key = [0x5a; 16];
        key[..8].copy_from_slice(&self.id.0.to_be_bytes());
        key[8..12].copy_from_slice(&idx.to_be_bytes());
        RowKey::from_bytes(key)
    }

    /// The device's record for enrollment.
    pub fn record(&self) -> DeviceRecord {
        let row = |idx| PoolRow {
            challenge: [7; 8],
            row_key: self.row_key(idx),
        };
        DeviceRecord {
            device: self.id,
            name: String::new(),
            suite: Suite::SipHash128,
            enrolled_at_s: 0,
            puf_profile: String::new(),
            credentials: match self.mode {
                Mode::Key => Credentials::Key(self.row_key(0)),
                Mode::Pool => Credentials::pool((0..self.rows).map(row).collect()),
            },
        }
    }

    /// Restarts the device and begins a handshake.
    pub fn begin(&mut self, nonce: [u8; 16], now_ms: u64, send: impl FnMut(&[u8; 64])) {
        self.device = new_device(self.id, self.mode);
        self.is_idle = false;
        let output = self.device.start(nonce, now_ms).unwrap();
        self.process_output(output, now_ms, send);
    }

    /// Processes a message received at `local`.
    pub fn receive(&mut self, payload: &[u8], local: &[u8; 16], now_ms: u64, send: impl FnMut(&[u8; 64])) {
        if let Ok(output) = self.device.handle(payload, local, now_ms) {
            self.process_output(output, now_ms, send);
        }
    }

    /// Processes due timers.
    pub fn poll(&mut self, now_ms: u64, send: impl FnMut(&[u8; 64])) {
        let output = self.device.poll(now_ms);
        self.process_output(output, now_ms, send);
    }

    /// Carries out the outputs of the device role until the device waits for a message or a timer.
    fn process_output(&mut self, mut output: Output, now_ms: u64, mut send: impl FnMut(&[u8; 64])) {
        loop {
            output = match output {
                Output::Transmit(message) => {
                    if matches!(wire::parse(&message), Ok(Message::Response(_))) {
                        self.sent.push(message);
                    }
                    send(&message);
                    self.device.poll(now_ms)
                }
                Output::EvaluatePuf(query) => {
                    let idx = if self.mode == Mode::Key { 0 } else { query.idx.0 };
                    let key = self.row_key(idx);
                    self.device.puf_result(Ok(key), now_ms)
                }
                Output::Authenticated(_) => {
                    self.sessions += 1;
                    self.is_idle = true;
                    return;
                }
                Output::Failed { .. } | Output::NeedNonce | Output::SessionExpired => {
                    self.is_idle = true;
                    return;
                }
                Output::Postponed { .. } | Output::None => return,
            };
        }
    }
}

fn new_device(device: DeviceId, mode: Mode) -> Device {
    Device::new(DeviceConfig {
        device,
        suite: Suite::SipHash128,
        mode,
        gateways: GatewayPolicy::ANY,
        bound_mac: None,
    })
}
