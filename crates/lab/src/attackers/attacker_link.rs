//! The attackers' access to the link: they receive all frames that arrive on the devices' side, and can send any frame in
//! both directions.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use linewarden_protocol::frame;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::wire::{self, LAP_PORT, MESSAGE_BYTES, Message, message_type};

use super::AttackError;
use crate::address::{DEVICES_MAX, DeviceAddress, FIRST_ATTACKER, Family, GATEWAY};
use crate::fleet::neighbor_reply;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError, TxBatch};
use crate::topology::Lab;

/// How long a datagram is retried before the attack fails.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two retries of a datagram.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Ports of the probes.
const PROBE_PORTS: std::ops::Range<u16> = 50_100..50_108;

/// A received UDP datagram with the addresses of its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedDatagram<'a> {
    pub(super) from: Endpoint,
    pub(super) to: Endpoint,
    pub(super) payload: &'a [u8],
}

/// Sockets on both ends of the link between devices and gateway.
#[derive(Debug)]
pub struct AttackerLink {
    /// On the devices' end: sends towards the gateway and receives from it.
    to_gateway: PacketSocket,
    /// On the gateway's end: sends towards the devices, past any XDP program.
    to_devices: PacketSocket,
    to_gateway_batch: TxBatch,
    to_devices_batch: TxBatch,
    probe_device: DeviceId,
    probes: u64,
}

impl AttackerLink {
    /// Opens the sockets. `probe_device` is any enrolled device that has rows left and sends nothing itself. A REQUEST
    /// in the name of this device changes no state; the reply shows that the gateway has processed all earlier frames.
    ///
    /// # Errors
    /// The kernel refuses a packet socket.
    pub fn new(lab: &Lab, probe_device: DeviceId) -> Result<Self, PacketSocketError> {
        let options = Options {
            rx_frames: 16_384,
            ..Options::default()
        };
        let send_only = Options {
            rx_frames: 32,
            ..options
        };
        Ok(Self {
            to_gateway: PacketSocket::open(&lab.devices, &lab.devices_end, &options)?,
            to_devices: PacketSocket::open(&lab.gateway, &lab.gateway_devices_end, &send_only)?,
            to_gateway_batch: TxBatch::new(64),
            to_devices_batch: TxBatch::new(64),
            probe_device,
            probes: 0,
        })
    }

    /// Sends a complete frame to the gateway.
    pub(super) fn send_frame(&mut self, frame: &[u8]) -> Result<(), AttackError> {
        self.to_gateway_batch.push(frame);
        self.flush_if_full()
    }

    /// Sends a datagram towards the gateway.
    pub(super) fn send(&mut self, from: &Endpoint, to: &Endpoint, payload: &[u8]) -> Result<(), AttackError> {
        self.to_gateway_batch
            .push_with(|buffer| write::udp(buffer, from, to, [0; 2], payload));
        self.flush_if_full()
    }

    /// Sends a datagram towards the devices.
    pub(super) fn send_to_devices(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        payload: &[u8],
    ) -> Result<(), AttackError> {
        self.to_devices_batch
            .push_with(|buffer| write::udp(buffer, from, to, [0; 2], payload));
        self.to_devices.send(&mut self.to_devices_batch)?;
        Ok(())
    }

    /// Sends a datagram towards a device and returns the payload that arrives there; retries a lost datagram.
    pub(super) fn deliver_to_device(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        payload: &[u8; MESSAGE_BYTES],
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let start = Instant::now();
        while start.elapsed() < RETRY_TIMEOUT {
            self.send_to_devices(from, to, payload)?;
            let mut arrived = None;
            let send_time = Instant::now();
            while arrived.is_none() && send_time.elapsed() < RETRY_INTERVAL {
                self.receive(&mut |received| {
                    if received.from == *from && received.to == *to && received.payload == payload {
                        arrived = received.payload.try_into().ok();
                    }
                    arrived.is_some()
                })?;
                if arrived.is_none() {
                    self.to_gateway
                        .wait(RETRY_INTERVAL.saturating_sub(send_time.elapsed()))?;
                }
            }
            if let Some(payload) = arrived {
                return Ok(payload);
            }
        }
        Err(AttackError::ControlFailed(
            "a frame sent towards the devices does not arrive",
        ))
    }

    /// Sends all queued frames and then probes from several ports. Passes received datagrams to `on_datagram` until the
    /// gateway has replied to all probes. By then, each gateway thread has processed its queue.
    pub(super) fn wait_processed(
        &mut self,
        mut on_datagram: impl FnMut(&ReceivedDatagram<'_>),
    ) -> Result<(), AttackError> {
        self.flush()?;
        for port in PROBE_PORTS {
            let from = DeviceAddress::new(DEVICES_MAX - 1).endpoint(Family::V4, port);
            self.probes += 1;
            let echo = self.probes.to_be_bytes();
            let mut nonce = *b"attackers' probe";
            nonce[..8].copy_from_slice(&echo);
            let request = request(self.probe_device, nonce);
            let processed = self.exchange(&from, &gateway_endpoint(Family::V4), &request, |received| {
                let is_response = received.to == from
                    && matches!(wire::parse(received.payload), Ok(Message::Challenge(c)) if c.nonce_echo == echo);
                if !is_response {
                    on_datagram(received);
                }
                is_response
            })?;
            if !processed {
                return Err(AttackError::NoChallenge(self.probe_device));
            }
        }
        Ok(())
    }

    /// Retries a datagram until `is_response` accepts a received datagram; returns false after 10 s.
    pub(super) fn exchange(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        payload: &[u8],
        mut is_response: impl FnMut(&ReceivedDatagram<'_>) -> bool,
    ) -> Result<bool, AttackError> {
        let start = Instant::now();
        while start.elapsed() < RETRY_TIMEOUT {
            self.send(from, to, payload)?;
            self.flush()?;
            let send_time = Instant::now();
            while send_time.elapsed() < RETRY_INTERVAL {
                if self.receive(&mut is_response)? {
                    return Ok(true);
                }
                self.to_gateway
                    .wait(RETRY_INTERVAL.saturating_sub(send_time.elapsed()))?;
            }
        }
        Ok(false)
    }

    /// Passes the received datagrams to `is_response` until `is_response` returns true. Returns false if `is_response`
    /// accepted no datagram.
    pub(super) fn receive(
        &mut self,
        is_response: &mut dyn FnMut(&ReceivedDatagram<'_>) -> bool,
    ) -> Result<bool, AttackError> {
        let mut is_accepted = false;
        let (socket, batch) = (&mut self.to_gateway, &mut self.to_gateway_batch);
        while !is_accepted
            && socket.receive(1, |received| {
                if let Some(received) = datagram(received.frame) {
                    is_accepted = is_response(&received);
                } else {
                    // Replies to ARP and neighbor discovery as an ordinary network stack does.
                    let is_attacker =
                        |device: DeviceAddress| (FIRST_ATTACKER..DEVICES_MAX).contains(&device.index);
                    batch.push_with(|buffer| neighbor_reply(received.frame, is_attacker, buffer));
                }
            }) == 1
        {}
        self.flush()?;
        Ok(is_accepted)
    }

    /// Waits for a frame, at most for `limit`; returns whether one has arrived.
    pub(super) fn wait(&self, limit: Duration) -> Result<bool, AttackError> {
        Ok(self.to_gateway.wait(limit)?)
    }

    pub(super) fn flush(&mut self) -> Result<(), AttackError> {
        if !self.to_gateway_batch.is_empty() {
            self.to_gateway.send(&mut self.to_gateway_batch)?;
        }
        Ok(())
    }

    fn flush_if_full(&mut self) -> Result<(), AttackError> {
        if self.to_gateway_batch.is_full() {
            self.flush()
        } else {
            Ok(())
        }
    }
}

/// The gateway's LAP/1 endpoint.
pub(super) fn gateway_endpoint(family: Family) -> Endpoint {
    GATEWAY.endpoint(family, LAP_PORT)
}

/// One of the addresses that attackers use as their own.
pub(super) fn attacker_endpoint(number: u32, port: u16) -> Endpoint {
    DeviceAddress::new(FIRST_ATTACKER + number % 900).endpoint(Family::V4, port)
}

/// A REQUEST.
pub(super) fn request(device: DeviceId, nonce: [u8; 16]) -> [u8; MESSAGE_BYTES] {
    bytes(&wire::Request {
        header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, device),
        // The nonce contains the row statement; random bytes would state rows beyond the pool.
        nonce: RowStatement::default().write_into(nonce),
        reserved: [0; 32],
    })
}

/// The wire format of a message.
pub(super) fn bytes(message: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) -> [u8; MESSAGE_BYTES] {
    let mut out = [0; MESSAGE_BYTES];
    for (to, from) in out.iter_mut().zip(message.as_bytes()) {
        *to = *from;
    }
    out
}

/// The UDP datagram in a frame.
pub(super) fn datagram(bytes: &[u8]) -> Option<ReceivedDatagram<'_>> {
    let parsed = frame::parse(bytes).ok()?;
    let (ip, udp) = parsed.datagram()?;
    let endpoint = |mac, ip: IpAddr, port| Endpoint { mac, ip, port };
    Some(ReceivedDatagram {
        from: endpoint(parsed.src_mac, ip.src, udp.src_port),
        to: endpoint(parsed.dst_mac, ip.dst, udp.dst_port),
        payload: bytes.get(udp.payload())?,
    })
}
