//! An attacker's place on the link: he hears everything on the devices' side, and can send anything in both
//! directions.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use linewarden_protocol::frame;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::wire::{self, LAP_PORT, MESSAGE_BYTES, Message, message_type};

use super::AttackError;
use crate::address::{ATTACKERS_FROM, DEVICES_MAX, DeviceAddress, Family, GATEWAY};
use crate::fleet::answer_neighbour;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError, TxBatch};
use crate::topology::Lab;

/// How long an honest REQUEST is repeated before the gateway counts as silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one answer is waited for before its question is repeated.
const REPEAT: Duration = Duration::from_millis(50);

/// Ports of the probes.
const PROBE_PORTS: std::ops::Range<u16> = 50_100..50_108;

/// A UDP datagram that came in, with its frame's addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard<'a> {
    pub(super) from: Endpoint,
    pub(super) to: Endpoint,
    pub(super) payload: &'a [u8],
}

/// Sockets on both ends of the link between devices and gateway.
#[derive(Debug)]
pub struct Station {
    /// On the devices' end: sends towards the gateway, hears what comes from it.
    up: PacketSocket,
    /// On the gateway's end: sends towards the devices, past any XDP program.
    down: PacketSocket,
    up_batch: TxBatch,
    down_batch: TxBatch,
    probe_device: DeviceId,
    probes: u64,
}

impl Station {
    /// Takes a place on the link. `probe_device` is any enrolled device with rows left that nobody plays: with its
    /// REQUESTs, which change nothing, the station finds out when the gateway has seen all that was sent before.
    ///
    /// # Errors
    /// What the kernel says of the sockets.
    pub fn new(lab: &Lab, probe_device: DeviceId) -> Result<Self, PacketSocketError> {
        let options = Options {
            rx_frames: 16_384,
            ..Options::default()
        };
        let injecting = Options {
            rx_frames: 32,
            ..options
        };
        Ok(Self {
            up: PacketSocket::open(&lab.devices, &lab.devices_end, &options)?,
            down: PacketSocket::open(&lab.gateway, &lab.gateway_devices_end, &injecting)?,
            up_batch: TxBatch::new(64),
            down_batch: TxBatch::new(64),
            probe_device,
            probes: 0,
        })
    }

    /// Puts a whole frame on the link towards the gateway.
    pub(super) fn send_frame(&mut self, frame: &[u8]) -> Result<(), AttackError> {
        self.up_batch.push(frame);
        self.flush_if_full()
    }

    /// Puts a datagram on the link towards the gateway.
    pub(super) fn send(&mut self, from: &Endpoint, to: &Endpoint, payload: &[u8]) -> Result<(), AttackError> {
        self.up_batch
            .push_with(|buffer| write::udp(buffer, from, to, [0; 2], payload));
        self.flush_if_full()
    }

    /// Puts a datagram on the link towards the devices.
    pub(super) fn inject(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        payload: &[u8],
    ) -> Result<(), AttackError> {
        self.down_batch
            .push_with(|buffer| write::udp(buffer, from, to, [0; 2], payload));
        self.down.send(&mut self.down_batch)?;
        Ok(())
    }

    /// Puts a datagram on the link towards a device and returns what arrives there, repeating it if it gets lost.
    pub(super) fn over_the_link(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        payload: &[u8; MESSAGE_BYTES],
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.inject(from, to, payload)?;
            let mut arrived = None;
            let sent = Instant::now();
            while arrived.is_none() && sent.elapsed() < REPEAT {
                self.listen(&mut |heard| {
                    if heard.from == *from && heard.to == *to && heard.payload == payload {
                        arrived = heard.payload.try_into().ok();
                    }
                    arrived.is_some()
                })?;
                if arrived.is_none() {
                    self.up.wait(REPEAT.saturating_sub(sent.elapsed()))?;
                }
            }
            if let Some(payload) = arrived {
                return Ok(payload);
            }
        }
        Err(AttackError::Control("nothing sent towards the devices arrives"))
    }

    /// Sends what waits, then hands over all that comes back until the gateway has answered probes sent after it, from
    /// several ports, so that each of its threads has come by.
    pub(super) fn settle(&mut self, mut hear: impl FnMut(&Heard<'_>)) -> Result<(), AttackError> {
        self.flush()?;
        for port in PROBE_PORTS {
            let from = DeviceAddress::new(DEVICES_MAX - 1).endpoint(Family::V4, port);
            self.probes += 1;
            let echo = self.probes.to_be_bytes();
            let mut nonce = *b"attackers' probe";
            nonce[..8].copy_from_slice(&echo);
            let request = request(self.probe_device, nonce);
            let answered = self.ask(&from, &gateway(Family::V4), &request, |heard| {
                let is_answer = heard.to == from
                    && matches!(wire::parse(heard.payload), Ok(Message::Challenge(c)) if c.nonce_echo == echo);
                if !is_answer {
                    hear(heard);
                }
                is_answer
            })?;
            if !answered {
                return Err(AttackError::Silent(self.probe_device));
            }
        }
        Ok(())
    }

    /// Sends a datagram again and again until `is_answer` says yes to something that came in; false after 10 s.
    pub(super) fn ask(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        payload: &[u8],
        mut is_answer: impl FnMut(&Heard<'_>) -> bool,
    ) -> Result<bool, AttackError> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.send(from, to, payload)?;
            self.flush()?;
            let asked = Instant::now();
            while asked.elapsed() < REPEAT {
                if self.listen(&mut is_answer)? {
                    return Ok(true);
                }
                self.up.wait(REPEAT.saturating_sub(asked.elapsed()))?;
            }
        }
        Ok(false)
    }

    /// Hands over what has arrived until `is_answer` says yes.
    pub(super) fn listen(
        &mut self,
        is_answer: &mut dyn FnMut(&Heard<'_>) -> bool,
    ) -> Result<bool, AttackError> {
        let mut found = false;
        let (up, batch) = (&mut self.up, &mut self.up_batch);
        while !found
            && up.receive(1, |received| {
                if let Some(heard) = datagram(received.frame) {
                    found = is_answer(&heard);
                } else {
                    // An ordinary network stack would answer too.
                    let ours = |device: DeviceAddress| (ATTACKERS_FROM..DEVICES_MAX).contains(&device.index);
                    batch.push_with(|buffer| answer_neighbour(received.frame, ours, buffer));
                }
            }) == 1
        {}
        self.flush()?;
        Ok(found)
    }

    /// Waits until something has arrived, at most for a while.
    pub(super) fn wait(&self, limit: Duration) -> Result<bool, AttackError> {
        Ok(self.up.wait(limit)?)
    }

    pub(super) fn flush(&mut self) -> Result<(), AttackError> {
        if !self.up_batch.is_empty() {
            self.up.send(&mut self.up_batch)?;
        }
        Ok(())
    }

    fn flush_if_full(&mut self) -> Result<(), AttackError> {
        if self.up_batch.is_full() {
            self.flush()
        } else {
            Ok(())
        }
    }
}

/// The gateway's port of LAP/1.
pub(super) fn gateway(family: Family) -> Endpoint {
    GATEWAY.endpoint(family, LAP_PORT)
}

/// A device's address from which attackers speak for themselves.
pub(super) fn own(number: u32, port: u16) -> Endpoint {
    DeviceAddress::new(ATTACKERS_FROM + number % 900).endpoint(Family::V4, port)
}

/// A REQUEST.
pub(super) fn request(device: DeviceId, nonce: [u8; 16]) -> [u8; MESSAGE_BYTES] {
    bytes(&wire::Request {
        header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, device),
        // With random bytes there, it would state rows beyond the pool.
        nonce: Statement::default().within(nonce),
        reserved: [0; 32],
    })
}

/// A message as it stands on the wire.
pub(super) fn bytes(message: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) -> [u8; MESSAGE_BYTES] {
    let mut out = [0; MESSAGE_BYTES];
    for (to, from) in out.iter_mut().zip(message.as_bytes()) {
        *to = *from;
    }
    out
}

/// The UDP datagram in a frame.
pub(super) fn datagram(bytes: &[u8]) -> Option<Heard<'_>> {
    let parsed = frame::parse(bytes).ok()?;
    let (ip, udp) = parsed.datagram()?;
    let end = |mac, ip: IpAddr, port| Endpoint { mac, ip, port };
    Some(Heard {
        from: end(parsed.src_mac, ip.src, udp.src_port),
        to: end(parsed.dst_mac, ip.dst, udp.dst_port),
        payload: bytes.get(udp.payload())?,
    })
}
