//! A device and its PUF.

use linewarden_agent::SpentRows;
use linewarden_protocol::attest::ConfigurationHash;
use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::frame::Meta;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_registry::{Credentials, DeviceRecord, PoolRow};

use crate::prover::{RecordedProof, SimulatedProver};
use crate::simulation::Mechanism;

pub struct SimulatedDevice {
    pub id: DeviceId,
    pub mode: Mode,
    pub rows: u32,
    pub revoked: bool,
    pub prover: SimulatedProver,
    device: Device,
    /// Spent rows, on the device's disk.
    spent: SpentRows,
    without: Option<Mechanism>,
    nonces: u8,
    /// The gateway to which the device sends.
    pub gateway: usize,
    /// Number of sessions that the device has opened.
    pub sessions: u32,
}

impl SimulatedDevice {
    pub fn new(
        number: u8,
        mode: Mode,
        rows: u32,
        configuration: ConfigurationHash,
        without: Option<Mechanism>,
    ) -> Self {
        let id = DeviceId(0xd0 + u64::from(number));
        Self {
            id,
            mode,
            rows,
            revoked: false,
            prover: SimulatedProver::new(id, configuration),
            device: Self::booted(id, mode),
            spent: SpentRows::default(),
            without,
            nonces: 0,
            gateway: 0,
            sessions: 0,
        }
    }

    fn booted(id: DeviceId, mode: Mode) -> Device {
        Device::new(DeviceConfig {
            device: id,
            suite: Suite::SipHash128,
            mode,
            gateways: GatewayPolicy::ANY,
            bound_mac: None,
        })
    }

    pub fn record(&self) -> DeviceRecord {
        let credentials = match self.mode {
            Mode::Key => Credentials::Key(self.row_key(RowIndex(0))),
            Mode::Pool => Credentials::pool(
                (0..self.rows)
                    .map(|idx| PoolRow {
                        challenge: [7; 8],
                        row_key: self.row_key(RowIndex(idx)),
                    })
                    .collect(),
            ),
        };
        DeviceRecord {
            device: self.id,
            name: String::new(),
            suite: Suite::SipHash128,
            enrolled_at_s: 0,
            puf_profile: String::new(),
            credentials,
        }
    }

    fn row_key(&self, idx: RowIndex) -> RowKey {
        let idx = if self.mode == Mode::Key { 0 } else { idx.0 };
        let mut key = [0x5a; 16];
        key[..8].copy_from_slice(&self.id.0.to_be_bytes());
        key[8..12].copy_from_slice(&idx.to_be_bytes());
        RowKey::from_bytes(key)
    }

    /// The key of a row at a gateway.
    pub fn auth_key(&self, idx: u32, gateway: GatewayId) -> AuthKey {
        let idx = RowIndex(idx);
        AuthKey::derive(&self.row_key(idx), Suite::SipHash128, self.mode, idx, gateway)
    }

    pub fn address(&self) -> [u8; 16] {
        let [.., number] = self.id.0.to_be_bytes();
        let mut address = [0; 16];
        address[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, number]);
        address
    }

    pub fn meta(&self) -> Meta {
        Meta {
            src_ip: self.address(),
            src_port: 40_000,
            ..Meta::default()
        }
    }

    /// Starts a handshake at a gateway, and returns the messages to send. A device that must still wait before a handshake
    /// is restarted.
    pub fn begin(&mut self, gateway: usize, now_ms: u64) -> Vec<[u8; 64]> {
        self.gateway = gateway;
        self.nonces = self.nonces.wrapping_add(1).max(1);
        let nonce = [self.nonces; 16];
        self.device.abandon();
        let mut output = self.device.start(nonce, now_ms);
        if matches!(output, Ok(Output::Postponed { .. }) | Err(_)) {
            self.restart();
            output = self.device.start(nonce, now_ms);
        }
        self.handle_output(output.unwrap_or(Output::None), now_ms)
    }

    /// Restarts the device with the rows on its disk.
    fn restart(&mut self) {
        self.device = Self::booted(self.id, self.mode);
        match self.without {
            Some(Mechanism::Memory) => self.spent = SpentRows::default(),
            Some(Mechanism::Statement) => {}
            _ => self
                .device
                .raise_first_unanswered_row(self.spent.unanswered_from()),
        }
    }

    /// The lowest row above all rows that the device has used.
    pub fn unanswered_from(&self) -> u32 {
        self.spent.unanswered_from().0
    }

    pub fn poll(&mut self, now_ms: u64) -> Vec<[u8; 64]> {
        let output = self.device.poll(now_ms);
        self.handle_output(output, now_ms)
    }

    pub fn handle(&mut self, payload: &[u8; 64], now_ms: u64) -> Vec<[u8; 64]> {
        let address = self.address();
        let output = self.device.handle(payload, &address, now_ms);
        if let Some((_, row)) = self
            .device
            .last_accepted_row()
            .filter(|_| self.mode == Mode::Pool)
        {
            self.spent.mark_accepted(row);
        }
        match output {
            Ok(output) => self.handle_output(output, now_ms),
            Err(_) => Vec::new(),
        }
    }

    pub fn has_session(&self) -> bool {
        self.device.session().is_some()
    }

    /// Handles a datagram at the attestation port.
    pub fn prove(&mut self, payload: &[u8]) -> Option<RecordedProof> {
        self.prover.receive(payload, self.device.session())
    }

    fn handle_output(&mut self, mut output: Output, now_ms: u64) -> Vec<[u8; 64]> {
        let mut sent = Vec::new();
        loop {
            output = match output {
                Output::Transmit(message) => {
                    if let Some((_, row)) = self.device.responded_row() {
                        self.spent.mark_answered(row);
                    }
                    sent.push(message);
                    self.device.poll(now_ms)
                }
                Output::EvaluatePuf(query) => {
                    if self.mode == Mode::Pool && self.spent.is_accepted(query.idx) {
                        output = self.device.refuse_row(now_ms);
                        continue;
                    }
                    let key = self.row_key(query.idx);
                    self.device.puf_result(Ok(key), now_ms)
                }
                Output::Authenticated(_) => {
                    self.sessions += 1;
                    self.device.poll(now_ms)
                }
                Output::Failed { .. } | Output::SessionExpired | Output::Postponed { .. } => {
                    self.device.poll(now_ms)
                }
                Output::NeedNonce | Output::None => return sent,
            };
        }
    }
}
