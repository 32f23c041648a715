//! The gateway role of the protocol crate behind a packet socket: slow, and the reference for correct behavior.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_lab::address::{self, GATEWAY};
use linewarden_lab::attackers::LineState;
use linewarden_lab::clock::boot_ms;
use linewarden_lab::fleet::SimulatedDevice;
use linewarden_lab::packet_socket::{Options, PacketSocket, TxBatch};
use linewarden_lab::topology::Lab;
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame;
use linewarden_protocol::gateway::{DeviceInstall, FreshValue, Gateway, GatewayConfig, Row};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Disposition;
use linewarden_protocol::wire::{self, LAP_PORT, Message};

pub const GATEWAY_ID: GatewayId = GatewayId(7);

/// The rows of a device for this gateway.
pub fn rows(device: &SimulatedDevice) -> Vec<Row> {
    let mode = device.member.config.mode;
    let row = |key: &linewarden_lab::fleet::EnrolledKey| Row {
        challenge: key.challenge,
        auth_key: AuthKey::derive(&key.row_key, Suite::SipHash128, mode, key.idx, GATEWAY_ID),
    };
    device.keys.iter().map(row).collect()
}

/// A gateway that runs in a thread until it is dropped.
pub struct OracleGateway {
    stop: Arc<AtomicBool>,
    response_counts: Arc<Mutex<HashMap<DeviceId, u32>>>,
    thread: Option<JoinHandle<Gateway>>,
}

impl OracleGateway {
    pub fn start(lab: &Lab, fleet: &[SimulatedDevice], configure: impl FnOnce(&mut GatewayConfig)) -> Self {
        let local_addresses = [GATEWAY.v4.into(), GATEWAY.v6.into()];
        let mut config = GatewayConfig {
            sources: Some(DeviceSources::new(
                &address::link_prefixes(),
                &local_addresses,
                &address::gateway_addresses(),
            )),
            own_macs: Some(vec![GATEWAY.mac.0]),
            ..GatewayConfig::new(GATEWAY_ID, &local_addresses)
        };
        configure(&mut config);
        let mut gateway = Gateway::new(config);
        gateway.rotate_fresh_value(FreshValue::from_wire(*b"freshly!").unwrap(), now());
        for device in fleet {
            gateway
                .install(DeviceInstall {
                    device: device.member.config.device,
                    mode: device.member.config.mode,
                    next_idx: RowIndex(0),
                    rows: rows(device),
                    mark: None,
                })
                .unwrap();
        }
        let options = Options {
            rx_frames: 8192,
            ..Options::default()
        };
        let mut socket = PacketSocket::open(&lab.gateway, &lab.gateway_devices_end, &options).unwrap();
        // Prevents the kernel from sending "port unreachable"; the socket is never read.
        let lap_socket = lab
            .gateway
            .run(|| UdpSocket::bind(("::", LAP_PORT)))
            .unwrap()
            .unwrap();
        let ingress = lab.gateway_devices_end.index;
        let stop = Arc::new(AtomicBool::new(false));
        let response_counts = Arc::new(Mutex::new(HashMap::new()));
        let (stop_flag, thread_counts) = (stop.clone(), response_counts.clone());
        let thread = std::thread::spawn(move || {
            let mut batch = TxBatch::new(1);
            let mut buffer = [0u8; 2048];
            while !stop_flag.load(Ordering::Relaxed) {
                let mut reply = None;
                let received_count = socket.receive(1, |received| {
                    let frame = &mut buffer[..received.frame.len()];
                    frame.copy_from_slice(received.frame);
                    if let Some(device) = response_sender(frame) {
                        *thread_counts.lock().unwrap().entry(device).or_default() += 1;
                    }
                    let verdict = gateway.handle_frame(now(), ingress, frame);
                    reply = (verdict.disposition() == Disposition::Reply).then_some(frame.len());
                });
                if let Some(length) = reply {
                    assert!(batch.push(&buffer[..length]));
                    socket.send(&mut batch).unwrap();
                }
                if received_count == 0 {
                    socket.wait(Duration::from_millis(20)).unwrap();
                }
            }
            drop(lap_socket);
            gateway
        });
        Self {
            stop,
            response_counts,
            thread: Some(thread),
        }
    }

    /// The line that a gateway would have if that gateway accepted every RESPONSE: each RESPONSE of the device, valid or
    /// invalid, spends a row and opens a session.
    pub fn response_count_line(&self, device: DeviceId) -> LineState {
        let response_count = self.response_counts.lock().unwrap().get(&device).copied();
        LineState {
            commit: CommitWord(u64::from(response_count.unwrap_or(0)) << 32),
            has_session: response_count.is_some(),
            session_until_s: 0,
        }
    }

    /// Stops the thread and returns the gateway with its state.
    pub fn finish(mut self) -> Gateway {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for OracleGateway {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The device of a RESPONSE; `None` for any other frame.
fn response_sender(frame: &[u8]) -> Option<DeviceId> {
    let (_, udp) = frame::parse(frame).ok()?.datagram()?;
    match wire::parse(&frame[udp.payload()]) {
        Ok(Message::Response(response)) => Some(response.header.device()),
        _ => None,
    }
}

/// Both clocks are the boot-time clock, because the machine is not suspended during a test.
pub fn now() -> Now {
    Now {
        monotonic_ms: boot_ms(),
        boot_ms: boot_ms(),
    }
}
