//! The frames of random runs: valid, invalid and mutated messages, and unrelated frames.

use std::net::IpAddr;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::parse;
use linewarden_protocol::frame::write::{Endpoint, TTL};
use linewarden_protocol::gateway::ControlProtocol;
use rand::RngExt as _;

use super::Run;
use crate::support::device::{Response, TestDevice, gateway_end, sealed_frame, service_end};
use crate::support::fixture::forward::{other_service, unreachable_service};

impl Run<'_> {
    /// The headers of a frame to the gateway, usually from the device's own address.
    pub(super) fn envelope(&mut self, device: TestDevice) -> FrameBuilder {
        let v6 = self.one_in(3);
        let mut end = device.end(v6);
        if self.one_in(12) {
            let other = self.device();
            end = Endpoint {
                ip: other.end(v6).ip,
                ..end
            };
        }
        if self.one_in(12) {
            let other = self.device();
            end.mac = other.mac();
        }
        if self.one_in(20) {
            end.port = self.rng.random();
        }
        if self.one_in(20) {
            let addresses = boundary_addresses();
            end.ip = self.pick(&addresses[usize::from(v6)]);
        }
        let mut target = gateway_end(v6);
        if self.one_in(40) {
            target.port = self.pick(&[20_551, 53, 0]);
        }
        if self.one_in(40) {
            target.ip = service_end(v6).ip;
        }
        if self.one_in(40) {
            target.mac[self.rng.random_range(0..6)] ^= 1 << self.rng.random_range(0..8);
        }
        let mut builder = FrameBuilder::new(end, target);
        if self.one_in(6) {
            builder = self.tagged(builder);
        }
        if self.one_in(60) {
            builder = builder.fragment(self.rng.random_range(0..3), self.rng.random());
        }
        if self.one_in(60) {
            builder = if v6 {
                builder.extension(60)
            } else {
                builder.options(&[1, 1, 1, 1])
            };
        }
        if self.one_in(10) {
            builder = builder.ip_fields(self.rng.random(), self.rng.random(), self.rng.random());
        }
        if self.one_in(10) {
            let padding = vec![self.rng.random(); self.rng.random_range(0..40)];
            builder = builder.padding(&padding);
        }
        builder
    }

    /// Adds one to three VLAN tags.
    fn tagged(&mut self, mut builder: FrameBuilder) -> FrameBuilder {
        for _ in 0..self.rng.random_range(1..=3) {
            let kind = self.pick(&[0x8100, 0x8100, 0x88a8, 0x88a8, 0x9100]);
            builder = builder.tag(kind, self.pick(&[0, 0xa000, 7, 0xe007, 0xffff]));
        }
        builder
    }

    pub(super) fn request(&mut self) -> Vec<u8> {
        let device = self.device();
        let mut message = self.fixture.request(device);
        message[16] = self.rng.random_range(0..4);
        self.envelope(device).udp(&message)
    }

    pub(super) fn response(&mut self) -> Vec<u8> {
        let device = self.device();
        let mut response: Response = self.fixture.response(device);
        if self.one_in(2) {
            let sender = if self.one_in(12) { self.device() } else { device };
            response = response.bound(sender.mac());
        }
        if self.one_in(8) {
            response.nonce = [self.rng.random_range(0..3); 16];
        }
        if self.one_in(10) {
            let step = self.pick(&[1, 2, u32::MAX, u32::MAX - 1]);
            response.idx = response.idx.wrapping_add(step);
        }
        if self.one_in(20) {
            response.gateway.0 ^= 1;
        }
        if self.one_in(8) {
            // A future fresh value, the current one, the previous one or an older one; or none.
            let [.., last] = &mut response.fresh;
            *last = last.wrapping_sub(self.rng.random_range(0..4)).wrapping_add(1);
            if self.one_in(4) {
                response.fresh = [0; 8];
            }
        }
        self.envelope(device).udp(&response.bytes(device))
    }

    /// A DATA_UP, usually valid and with the next sequence number.
    pub(super) fn sealed(&mut self) -> Vec<u8> {
        let device = self.device();
        let Some(session) = self.fixture.last_device_session(device) else {
            return self.request();
        };
        let sender = if self.one_in(20) { self.device() } else { device };
        let v6 = self.one_in(3);
        let mut to = if self.one_in(10) {
            gateway_end(v6)
        } else {
            service_end(v6)
        };
        if self.is_forwarding && self.one_in(3) {
            let [unknown, unrouted] = unreachable_service(v6);
            to = self.pick(&[other_service(v6), other_service(v6), unknown, unrouted]);
        }
        to.port = self.pick(&[8080, 53, 1, 65_535, 20_550, 0, 67, 68, 546, 547]);
        if !self.one_in(20) {
            to.port = 8080;
        }
        if self.one_in(12) {
            // A frame that another router must forward.
            to.mac[5] ^= 1;
        }
        let top = self.fixture.top(device);
        let seq = match self.rng.random_range(0..10) {
            0 => top.saturating_sub(self.rng.random_range(0..30)),
            1 => top.saturating_add(self.rng.random_range(0..30)),
            2 if self.one_in(10) => u32::MAX - self.rng.random_range(0..30),
            _ => top.saturating_add(1),
        };
        let mut payload = vec![0u8; self.pick(&[0, 1, 5, 8, 20, 64, 300, 1232, 1233, 1252, 1253])];
        self.rng.fill(&mut payload[..]);
        let mut builder = sealed_frame(sender, &to);
        if self.one_in(6) {
            for _ in 0..self.rng.random_range(1..=3) {
                builder = builder.tag(self.pick(&[0x8100, 0x88a8]), self.pick(&[0, 7, 0xffff]));
            }
        }
        if self.one_in(10) {
            builder = builder.padding(&vec![self.rng.random(); self.rng.random_range(0..40)]);
        }
        if self.one_in(10) {
            let ttls = [0, 1, 2, 255, self.rng.random()];
            builder = builder.ip_fields(self.rng.random(), self.rng.random(), self.pick(&ttls));
        } else if self.one_in(10) {
            builder = builder.ip_fields(0, id_with_carry(device, &to, payload.len()), TTL);
        }
        builder.udp(&session.seal(seq.max(1), &to, &payload))
    }

    /// Sends a random frame towards a device.
    pub(super) fn send_towards_device(&mut self) {
        let (device, v6) = (self.device(), self.one_in(3));
        let mut builder = FrameBuilder::new(service_end(v6), device.end(v6));
        if self.one_in(6) {
            builder = self.tagged(builder);
        }
        if self.one_in(10) {
            builder = builder.padding(&vec![self.rng.random(); self.rng.random_range(0..40)]);
        }
        let mut payload = vec![0u8; self.pick(&[0, 1, 5, 8, 20, 64, 300])];
        self.rng.fill(&mut payload[..]);
        let mut frame = match self.rng.random_range(0..12) {
            0 => builder.arp_request(),
            1 => builder.ip(self.rng.random(), &payload),
            2 => builder
                .fragment(self.rng.random_range(0..3), self.rng.random())
                .udp(&payload),
            3 => self.icmpv6(device, service_end(true)),
            4 => self.dhcp(device, v6),
            5 => self.not_ip(builder),
            _ => builder.udp(&payload),
        };
        // The kernel's test run requires whole IP headers.
        if self.one_in(8) {
            let index = self.rng.random_range(14..frame.len());
            frame[index] ^= 1 << self.rng.random_range(0..8);
        }
        let (verdict, _) = self.fixture.send_down(&frame);
        *self.verdicts.entry(verdict).or_default() += 1;
    }

    /// A frame from a device to another host, which the gate passes or drops.
    pub(super) fn other_traffic(&mut self) -> Vec<u8> {
        let device = self.device();
        let v6 = self.one_in(2);
        let mut to_service = FrameBuilder::new(device.end(v6), service_end(v6));
        if self.one_in(4) {
            to_service = self.tagged(to_service);
        }
        match self.rng.random_range(0..10) {
            0 => to_service.arp_request(),
            1 => self.dhcp(device, v6),
            2 => self.icmpv6(device, service_end(true)),
            3 => to_service.ip(self.rng.random(), &[0x11; 30]),
            4 => self.report(device, v6),
            5 => self.not_ip(to_service),
            _ => to_service.udp(b"a measurement"),
        }
    }

    /// A neighbor discovery message or a frame that resembles one, between a device and another host.
    fn icmpv6(&mut self, device: TestDevice, other: Endpoint) -> Vec<u8> {
        let addresses = [
            device.end(true).ip,
            other.ip,
            gateway_end(true).ip,
            // An address in none of the devices' prefixes, and an address in a second prefix of some settings.
            [0xfd67, 0, 0, 0, 0, 0, 0, 9].into(),
            [0xfd66, 0, 0, 1, 0, 0, 0, 9].into(),
            [0xfe80, 0, 0, 0, 0, 0, 0, 9].into(),
            [0; 8].into(),
            [0xff02, 0, 0, 0, 0, 0, 0, 1].into(),
            [0xff02, 0, 0, 0, 0, 0, 0, 2].into(),
            [0xff02, 0, 0, 0, 0, 1, 0xff00, 9].into(),
        ];
        let end = |ip, mac| Endpoint { ip, mac, port: 0 };
        let from = end(self.pick(&addresses), device.mac());
        let to = end(self.pick(&addresses), other.mac);
        let mut body = vec![0; self.pick(&[4, 12, 20, 20, 20])];
        for _ in 0..self.pick(&[0, 0, 1, 1, 2, 8, 9, 16, 17]) {
            let length_units: u8 = self.pick(&[1, 1, 1, 1, 1, 1, 1, 2, 0]);
            body.extend_from_slice(&[14, length_units, 0, 0, 0, 0, 0, 0]);
            body.resize(body.len() + usize::from(length_units.saturating_sub(1)) * 8, 0);
        }
        let kind = self.pick(&[130, 133, 134, 135, 135, 136, 136, 137, 143]);
        let mut builder = FrameBuilder::new(from, to).ip_fields(0, 0, self.pick(&[255, 255, 255, 64]));
        if self.one_in(5) {
            builder = self.tagged(builder);
        }
        if self.one_in(5) {
            builder = builder.padding(&vec![0; self.pick(&[1, 18, 19])]);
        }
        builder.icmpv6(kind, &body)
    }

    fn dhcp(&mut self, device: TestDevice, v6: bool) -> Vec<u8> {
        let addresses: [IpAddr; 4] = if v6 {
            [
                [0xff02, 0, 0, 0, 0, 0, 1, 2].into(),
                [0xff05, 0, 0, 0, 0, 0, 1, 3].into(),
                service_end(v6).ip,
                gateway_end(v6).ip,
            ]
        } else {
            [
                [255; 4].into(),
                [10, 66, 255, 255].into(),
                service_end(v6).ip,
                gateway_end(v6).ip,
            ]
        };
        let mut from = device.end(v6);
        if v6 && self.one_in(2) {
            from.ip = [0xfe80, 0, 0, 0, 0, 0, 0, 9].into();
        }
        let to = Endpoint {
            ip: self.pick(&addresses),
            ..service_end(v6)
        };
        if !self.one_in(4) {
            return FrameBuilder::new(from, to).dhcp();
        }
        let (client, server) = if v6 { (546, 547) } else { (68, 67) };
        let ports = [(server, client), (client + 1, server - 1), (server, server)];
        let (src, dst) = self.pick(&ports);
        FrameBuilder::new(Endpoint { port: src, ..from }, Endpoint { port: dst, ..to }).udp(b"x")
    }

    /// A report of multicast group membership.
    fn report(&mut self, device: TestDevice, v6: bool) -> Vec<u8> {
        let group: IpAddr = if v6 {
            [0xff02, 0, 0, 0, 0, 0, 0, 0x16].into()
        } else {
            [239, 1, 1, 1].into()
        };
        let mut from = device.end(v6);
        if v6 {
            from.ip = [0xfe80, 0, 0, 0, 0, 0, 0, 9].into();
        }
        let to = Endpoint {
            ip: group,
            ..service_end(v6)
        };
        let builder = FrameBuilder::new(from, to).ip_fields(0, 0, self.pick(&[1, 1, 1, 2]));
        let kind = self.pick(&[0x16, 0x22, 0x11, 0x13]);
        if !v6 {
            let mut message = [0; 8];
            message[0] = kind;
            return builder.options(&[0x94, 4, 0, 0]).ip(2, &message);
        }
        let mut message = [0; 32];
        message[..8].copy_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
        message[8] = self.pick(&[131, 132, 143, 130]);
        builder.ip(0, &message)
    }

    /// A frame of a control protocol or of another protocol than IP, to a group or a host.
    fn not_ip(&mut self, builder: FrameBuilder) -> Vec<u8> {
        let types = [0x88cc, 0x888e, 0x8892, 0x88b8, 0x88f7, 46, 0x0806, 0x9100];
        let mut frame = builder.ethernet(self.pick(&types), &[0x42; 46]);
        let protocol = self.pick(ControlProtocol::ALL);
        let (mac, _) = self.pick(protocol.addresses());
        if self.one_in(2) {
            frame[..6].copy_from_slice(&mac);
        }
        frame
    }

    /// A message of random bytes, often with the magic, version, suite and length field of a LAP message.
    pub(super) fn random_message(&mut self) -> Vec<u8> {
        let device = self.device();
        let mut message = vec![0u8; self.rng.random_range(0..140)];
        self.rng.fill(&mut message[..]);
        if self.one_in(2) && message.len() >= 16 {
            let length = u16::try_from(message.len()).unwrap();
            message[..6].copy_from_slice(&[0x4c, 0x57, 1, self.rng.random_range(0..20), 1, 0]);
            message[6..8].copy_from_slice(&length.to_be_bytes());
        }
        self.envelope(device).udp(&message)
    }

    /// Flips bits, usually in the message, or truncates or extends the frame.
    pub(super) fn mutate(&mut self, frame: &mut Vec<u8>) {
        let payload = parse(frame)
            .ok()
            .and_then(|parsed| Some(parsed.datagram()?.1.payload()));
        match self.rng.random_range(0..10) {
            0 => frame.truncate(self.rng.random_range(0..=frame.len())),
            1 => frame.extend_from_slice(&[0xa5; 7]),
            _ if frame.is_empty() => {}
            _ => {
                let range = match payload {
                    Some(payload) if !payload.is_empty() && !self.one_in(4) => payload,
                    _ => 0..frame.len(),
                };
                for _ in 0..self.rng.random_range(1..=2) {
                    let index = self.rng.random_range(range.clone());
                    frame[index] ^= 1 << self.rng.random_range(0..8);
                }
            }
        }
    }
}

/// IPv4 and IPv6 addresses at the boundaries of the devices' initial or later prefixes, and in none of them.
fn boundary_addresses() -> [[IpAddr; 8]; 2] {
    let v4 = |a, b, c, d| IpAddr::from([a, b, c, d]);
    let v6 = |a, d, h| IpAddr::from([a, 0, 0, d, 0, 0, 0, h]);
    [
        [
            gateway_end(false).ip,
            service_end(false).ip,
            v4(10, 66, 255, 255),
            v4(10, 66, 255, 254),
            v4(10, 67, 0, 0),
            v4(127, 0, 0, 1),
            v4(8, 8, 8, 8),
            v4(10, 66, 0, 0),
        ],
        [
            gateway_end(true).ip,
            service_end(true).ip,
            v6(0, 0, 1),
            v6(0xfe80, 0, 1),
            v6(0xfd66, 0, 0xffff),
            v6(0xfd66, 1, 0),
            v6(0xff02, 0, 1),
            v6(0x2001, 0, 1),
        ],
    ]
}

/// The IPv4 identification with which the decrement of the TTL causes a carry in the checksum of the opened datagram.
/// A random identification has this effect in only one of about 65,536 datagrams.
fn id_with_carry(device: TestDevice, to: &Endpoint, payload_bytes: usize) -> u16 {
    let opened = FrameBuilder::new(device.end(to.ip.is_ipv6()), *to).udp(&vec![0; payload_bytes]);
    let sum = u16::from_be_bytes([opened[24], opened[25]]);
    let (id, carry) = sum.overflowing_add(0x0100);
    id + u16::from(carry)
}
