//! Listening in on honest handshakes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::{self, Message};

use super::AttackError;
use super::station::datagram;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError};
use crate::topology::Lab;

/// How long the listener waits before it looks whether it shall stop.
const NAP: Duration = Duration::from_millis(20);

/// The frames of one device's last handshake, as far as they were heard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conversation {
    /// REQUEST.
    pub request: Option<Vec<u8>>,
    /// CHALLENGE.
    pub challenge: Option<Vec<u8>>,
    /// RESPONSE.
    pub response: Option<Vec<u8>>,
    /// ACK.
    pub ack: Option<Vec<u8>>,
}

/// Conversations by device.
pub type Captured = HashMap<DeviceId, Conversation>;

/// A listener on the devices' end of the link; ends when dropped.
///
/// It hears only senders that do not bypass the queueing discipline, see
/// [`crate::fleet::FleetOptions::bypass_qdisc`].
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Captured, PacketSocketError>>>,
}

impl Capture {
    /// Listens to the first `devices_max` devices that speak.
    ///
    /// # Errors
    /// What the kernel says of the socket.
    pub fn start(lab: &Lab, devices_max: usize) -> Result<Self, PacketSocketError> {
        let options = Options {
            rx_frames: 16_384,
            see_outgoing: true,
            ..Options::default()
        };
        let mut socket = PacketSocket::open(&lab.devices, &lab.devices_end, &options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut captured = Captured::new();
            loop {
                // What arrived before the stop is still taken.
                let last = stopped.load(Ordering::Relaxed);
                socket.receive(usize::MAX, |received| {
                    note(&mut captured, received.frame, devices_max);
                });
                if last {
                    return Ok(captured);
                }
                socket.wait(NAP)?;
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Stops listening.
    ///
    /// # Errors
    /// The socket failed.
    pub fn finish(mut self) -> Result<Captured, AttackError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(captured)) => Ok(captured?),
            _ => Err(AttackError::Control("the listener's thread panicked")),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn note(captured: &mut Captured, frame: &[u8], devices_max: usize) {
    let Some(heard) = datagram(frame) else {
        return;
    };
    let Ok(message) = wire::parse(heard.payload) else {
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
    let conversation = captured.entry(device).or_default();
    let place = match message {
        Message::Request(_) => &mut conversation.request,
        Message::Challenge(_) => &mut conversation.challenge,
        Message::Response(_) => &mut conversation.response,
        _ => &mut conversation.ack,
    };
    *place = Some(frame.to_vec());
}
