//! Captures legitimate handshakes on the link.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::{self, Message};

use super::AttackError;
use super::attacker_link::datagram;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError};
use crate::topology::Lab;

/// Longest wait for a frame between two checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The captured frames of one device's latest handshake.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CapturedHandshake {
    /// REQUEST.
    pub request: Option<Vec<u8>>,
    /// CHALLENGE.
    pub challenge: Option<Vec<u8>>,
    /// RESPONSE.
    pub response: Option<Vec<u8>>,
    /// ACK.
    pub ack: Option<Vec<u8>>,
}

/// Captured handshakes by device.
pub type CapturedHandshakes = HashMap<DeviceId, CapturedHandshake>;

/// A capture on the devices' end of the link; stops when dropped.
///
/// The capture sees only senders that do not bypass the queueing discipline, see
/// [`crate::fleet::FleetOptions::bypass_qdisc`].
#[derive(Debug)]
pub struct HandshakeCapture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<CapturedHandshakes, PacketSocketError>>>,
}

impl HandshakeCapture {
    /// Captures the first `devices_max` devices that send a LAP/1 message.
    ///
    /// # Errors
    /// The kernel refuses the packet socket.
    pub fn start(lab: &Lab, devices_max: usize) -> Result<Self, PacketSocketError> {
        let options = Options {
            rx_frames: 16_384,
            receive_outgoing: true,
            ..Options::default()
        };
        let mut socket = PacketSocket::open(&lab.devices, &lab.devices_end, &options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut captured = CapturedHandshakes::new();
            loop {
                // Frames that arrived before the stop are still recorded.
                let is_stopped = stopped.load(Ordering::Relaxed);
                socket.receive(usize::MAX, |received| {
                    record_frame(&mut captured, received.frame, devices_max);
                });
                if is_stopped {
                    return Ok(captured);
                }
                socket.wait(POLL_INTERVAL)?;
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Stops the capture and returns the handshakes.
    ///
    /// # Errors
    /// The socket failed.
    pub fn finish(mut self) -> Result<CapturedHandshakes, AttackError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(captured)) => Ok(captured?),
            _ => Err(AttackError::ControlFailed("the capture thread panicked")),
        }
    }
}

impl Drop for HandshakeCapture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn record_frame(captured: &mut CapturedHandshakes, frame: &[u8], devices_max: usize) {
    let Some(received) = datagram(frame) else {
        return;
    };
    let Ok(message) = wire::parse(received.payload) else {
        return;
    };
    let device = match message {
        Message::Request(m) => m.header.device(),
        Message::Challenge(m) => m.header.device(),
        Message::Response(m) => m.header.device(),
        Message::Ack(m) => m.header.device(),
        _ => return,
    };
    if captured.len() >= devices_max && !captured.contains_key(&device) {
        return;
    }
    let handshake = captured.entry(device).or_default();
    let captured_frame = match message {
        Message::Request(_) => &mut handshake.request,
        Message::Challenge(_) => &mut handshake.challenge,
        Message::Response(_) => &mut handshake.response,
        _ => &mut handshake.ack,
    };
    *captured_frame = Some(frame.to_vec());
}
