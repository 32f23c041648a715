//! The sealed gate: frames that pass in both directions, byte for byte, and frames that do not.

use alloc::vec;
use alloc::vec::Vec;

use super::support::{
    GatewayFixture, INGRESS, SESSION_LIFETIME_S, SUITE, TestDevice, gateway_endpoint, service_endpoint,
    session_of,
};
use crate::data::{self, Channel, Direction, Route, Sequence};
use crate::frame::builder::FrameBuilder;
use crate::frame::write::Endpoint;
use crate::frame::{ip_bytes, parse};
use crate::gateway::Gate;
use crate::ids::{Mode, SessionId};
use crate::keys::SessionKey;
use crate::verdict::Verdict;
use crate::wire::{self, DATA_HEADER_BYTES, LAP_PORT, Message};

const MTU: usize = 1500;
const PORT: u16 = 5683;

/// A sealed gate, a device with a session, and the values for sealing.
struct SealedGateFixture {
    fixture: GatewayFixture,
    device: TestDevice,
    session: SessionId,
    key: SessionKey,
}

impl SealedGateFixture {
    fn new(v6: bool) -> Self {
        let mut fixture = GatewayFixture::with(|config| config.gate = Gate::Sealed);
        let mut device = TestDevice::new(1, Mode::Pool);
        if v6 {
            device.endpoint.ip = [0xfd66, 0, 0, 0, 0, 0, 0, 1].into();
        }
        fixture.gateway.install(device.install(0, 4)).unwrap();
        let mut site = Self {
            session: SessionId::from_wire([1; 8]).unwrap(),
            key: SessionKey::from_bytes([0; 16]),
            fixture,
            device,
        };
        site.authenticate();
        site
    }

    fn authenticate(&mut self) {
        let response = self
            .device
            .response(self.fixture.idx(&self.device), self.fixture.fresh);
        let to = Endpoint {
            ip: if self.device.endpoint.ip.is_ipv6() {
                [0xfd66, 0, 0, 0, 0, 0, 0, 0xfe].into()
            } else {
                gateway_endpoint().ip
            },
            ..gateway_endpoint()
        };
        let mut frame = self.fixture.frame(&self.device, to, &response);
        assert_eq!(
            self.fixture.handle(self.device.ingress, &mut frame),
            Verdict::ReplyAck
        );
        (self.session, self.key) = session_of(&self.device, &response);
    }

    fn service(&self, port: u16) -> Endpoint {
        let ip = if self.device.endpoint.ip.is_ipv6() {
            [0xfd77, 0, 0, 0, 0, 0, 0, 1].into()
        } else {
            service_endpoint().ip
        };
        Endpoint {
            ip,
            port,
            ..service_endpoint()
        }
    }

    fn channel(&self) -> Channel<'_> {
        Channel {
            suite: SUITE,
            device: self.device.id,
            session: self.session,
            addr: ip_bytes(self.device.endpoint.ip),
            key: &self.key,
        }
    }

    /// Returns the sealed payload.
    fn message(&self, seq: u32, port: u16, payload: &[u8]) -> Vec<u8> {
        let route = Route {
            source: ip_bytes(self.device.endpoint.ip),
            destination: ip_bytes(self.service(port).ip),
        };
        let seq = Sequence::from_wire(u64::from(seq)).unwrap();
        let mut out = vec![0; DATA_HEADER_BYTES + payload.len()];
        data::seal(
            &self.channel(),
            Direction::Up,
            seq,
            port,
            &route,
            payload,
            &mut out,
        )
        .unwrap();
        out
    }

    fn builder(&self) -> FrameBuilder {
        FrameBuilder::new(self.device.endpoint, self.service(LAP_PORT))
    }

    fn up(&self, seq: u32, payload: &[u8]) -> Vec<u8> {
        self.builder().udp(&self.message(seq, PORT, payload))
    }

    fn verdict(&mut self, mut frame: Vec<u8>) -> Verdict {
        self.fixture
            .gateway
            .handle_frame(self.fixture.now, INGRESS, &mut frame)
    }

    /// Returns the verdict and the forwarded frame.
    fn handle(&mut self, mut frame: Vec<u8>) -> (Verdict, Vec<u8>) {
        let handled = self.fixture.gateway.handle(self.fixture.now, INGRESS, &mut frame);
        (handled.verdict, frame[handled.frame].to_vec())
    }

    fn service_builder(&self) -> FrameBuilder {
        FrameBuilder::new(self.service(PORT), self.device.endpoint)
    }

    fn seal(&mut self, frame: &mut Vec<u8>) -> Verdict {
        self.fixture
            .gateway
            .seal_frame(self.fixture.now, MTU, false, frame)
    }

    /// Opens a sealed frame as the device does: number, port field, payload.
    fn open(&self, frame: &[u8]) -> (u32, u16, Vec<u8>) {
        let (ip, udp) = parse(frame).unwrap().datagram().unwrap();
        let Ok(Message::DataDown(message, payload)) = wire::parse(&frame[udp.payload()]) else {
            panic!("no DATA_DOWN");
        };
        let direction = Direction::Down {
            source_port: udp.src_port,
        };
        let route = Route {
            source: ip_bytes(ip.src),
            destination: ip_bytes(ip.dst),
        };
        let opened = data::open(&self.channel(), direction, &route, message, payload).unwrap();
        (opened.seq().0.get(), opened.port(), payload.to_vec())
    }
}

/// The verdicts upwards for [`super::coverage`].
pub fn reach_up(verdict: Verdict) -> Verdict {
    let mut site = SealedGateFixture::new(false);
    match verdict {
        Verdict::DropSession => site.session = SessionId::from_wire([9; 8]).unwrap(),
        Verdict::DropSource => site.device.endpoint.ip = [10, 66, 0, 200].into(),
        Verdict::DropSequence => {
            let frame = site.up(1, b"x");
            site.verdict(frame);
        }
        _ => {}
    }
    let frame = site.up(1, b"x");
    site.verdict(frame)
}

/// The verdicts downwards for [`super::coverage`].
pub fn reach_down(verdict: Verdict) -> Verdict {
    let mut site = SealedGateFixture::new(false);
    let mut frame = site.service_builder().udp(b"x");
    match verdict {
        Verdict::DropUnsealed => frame = site.service_builder().ip(6, &[0; 20]),
        Verdict::DropTooBig => frame = site.service_builder().udp(&[0; MTU - 83]),
        Verdict::DropSegments => {
            return site
                .fixture
                .gateway
                .seal_frame(site.fixture.now, MTU, true, &mut frame);
        }
        Verdict::DropExhausted => site
            .fixture
            .gateway
            .set_down_count(site.device.id, u64::from(u32::MAX)),
        _ => {}
    }
    site.seal(&mut frame)
}

#[test]
fn the_forwarded_frame_is_the_sealed_datagram() {
    for v6 in [false, true] {
        for bytes in 0..200 {
            let mut site = SealedGateFixture::new(v6);
            let payload: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x5a).collect();
            let sealed = site.message(1, PORT, &payload);
            let add_headers = |builder: FrameBuilder| match bytes % 3 {
                0 => builder.ip_fields(0xb8, 77, 3),
                1 => builder.vlan(7).padding(&[1, 2, 3]),
                _ => builder.tag(0x88a8, 0xe007).vlan(0),
            };
            let frame = add_headers(site.builder()).udp(&sealed);
            let plain = add_headers(FrameBuilder::new(site.device.endpoint, site.service(PORT)));
            // The bytes after the packet are removed.
            let expected = plain.padding(&[]).udp(&payload);
            assert_eq!(site.handle(frame), (Verdict::PassData, expected), "{bytes} B");
        }
    }
}

#[test]
fn datagrams_to_the_device_are_sealed_and_numbered() {
    for v6 in [false, true] {
        let mut site = SealedGateFixture::new(v6);
        for bytes in 0..200 {
            let payload: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0xa5).collect();
            let plain = site.service_builder().vlan(3).ip_fields(1, 2, 9);
            let mut frame = plain.clone().padding(&[9; 5]).udp(&payload);
            assert_eq!(site.seal(&mut frame), Verdict::PassSealed);
            let opened = site.open(&frame);
            assert_eq!(opened, (bytes as u32 + 1, site.device.endpoint.port, payload));
            // Lengths and checksums equal those of a frame built directly.
            let (_, udp) = parse(&frame).unwrap().datagram().unwrap();
            assert_eq!(frame, plain.udp(&frame[udp.payload()]));
        }
    }
}

/// Received checksums are not verified (ADR 3), but a wrong checksum must not become correct.
#[test]
fn a_wrong_checksum_stays_wrong_and_an_absent_one_stays_absent() {
    for (v6, at) in [(false, 14 + 20 + 6), (true, 14 + 40 + 6)] {
        for change in [1u16, 0x0100, 0xffff] {
            let mut site = SealedGateFixture::new(v6);
            let valid = site.up(1, b"reading");
            let mut wrong = valid.clone();
            let field = u16::from_be_bytes([wrong[at], wrong[at + 1]]) ^ change;
            wrong[at..at + 2].copy_from_slice(&field.to_be_bytes());
            let (_, valid) = site.handle(valid);
            let mut site = SealedGateFixture::new(v6);
            let (verdict, wrong) = site.handle(wrong);
            assert_eq!(verdict, Verdict::PassData);
            assert_ne!(valid[at..at + 2], wrong[at..at + 2]);
        }
    }
    let mut site = SealedGateFixture::new(false);
    let mut frame = site.up(1, b"reading");
    frame[40..42].fill(0);
    let (_, plain) = site.handle(frame);
    assert_eq!(plain[40..42], [0, 0]);
    let mut frame = site.service_builder().udp(b"x");
    frame[40..42].fill(0);
    assert_eq!(site.seal(&mut frame), Verdict::PassSealed);
    assert_eq!(frame[40..42], [0, 0]);
}

#[test]
fn a_number_passes_once_and_only_inside_the_window() {
    let mut site = SealedGateFixture::new(false);
    // The numbers are those of the window's tests; here the gate checks them.
    for (seq, verdict) in [
        (100, Verdict::PassData),
        (100, Verdict::DropSequence),
        (77, Verdict::PassData),
        (76, Verdict::DropSequence),
        (u32::MAX, Verdict::PassData),
        (u32::MAX, Verdict::DropSequence),
        (u32::MAX - 23, Verdict::PassData),
        (u32::MAX - 24, Verdict::DropSequence),
    ] {
        let frame = site.up(seq, b"x");
        assert_eq!(site.verdict(frame), verdict, "{seq}");
    }
    for seq in [0u64, 1 << 32, 1 << 63 | 5] {
        let mut frame = site.up(5, b"x");
        frame[42 + 24..42 + 32].copy_from_slice(&seq.to_be_bytes());
        assert_eq!(site.verdict(frame), Verdict::DropSequence, "{seq:#x}");
    }
    // A new session has a new window, and the old key opens no message.
    let old_frame = site.up(3, b"x");
    site.authenticate();
    assert_eq!(site.verdict(old_frame), Verdict::DropSession);
    let frame = site.up(1, b"x");
    assert_eq!(site.verdict(frame), Verdict::PassData);
}

#[test]
fn every_byte_that_the_tag_covers_counts() {
    for bytes in [0usize, 1, 7, 8, 9, 16] {
        let mut site = SealedGateFixture::new(false);
        let payload = vec![0x33; bytes];
        let frame = site.up(1, &payload);
        for at in 42..frame.len() {
            let mut flipped = frame.clone();
            flipped[at] ^= 0x40;
            let (verdict, _) = site.handle(flipped);
            assert_ne!(verdict, Verdict::PassData, "byte {at}");
        }
        for at in [30, 33] {
            let mut altered = frame.clone();
            altered[at] ^= 1;
            assert_eq!(site.verdict(altered), Verdict::DropTag, "another destination");
        }
        assert_eq!(site.verdict(frame), Verdict::PassData);
    }
}

/// A sealed message cannot reach LAP's port or port 0, and bytes after the datagram are not forwarded.
#[test]
fn forbidden_ports_and_trailing_bytes_do_not_pass_a_seal() {
    let mut site = SealedGateFixture::new(false);
    for port in [0, LAP_PORT] {
        let frame = site.builder().udp(&site.message(1, port, b"x"));
        assert_eq!(site.verdict(frame), Verdict::DropGatePort);
    }
    let mut longer = site.up(1, b"x");
    let total = u16::from_be_bytes([longer[16], longer[17]]) + 4;
    longer[16..18].copy_from_slice(&total.to_be_bytes());
    longer.extend_from_slice(b"more");
    assert_eq!(site.verdict(longer), Verdict::DropLength);
    let mut group = site.up(1, b"x");
    group[0] |= 1;
    assert_eq!(site.verdict(group), Verdict::DropUnanswerable);
}

/// An operation that ends a session, and the verdicts upwards and downwards.
type SessionEnd = (fn(&mut SealedGateFixture), Verdict, Verdict);

#[test]
fn a_session_that_is_not_live_forwards_nothing_in_either_direction() {
    let ends: [SessionEnd; 4] = [
        (
            |site| site.fixture.gateway.revoke(site.device.id).unwrap(),
            Verdict::DropRevoked,
            Verdict::DropSession,
        ),
        (
            |site| site.fixture.pass_s(u64::from(SESSION_LIFETIME_S)),
            Verdict::DropSessionExpired,
            Verdict::DropSessionExpired,
        ),
        (
            |site| drop(site.fixture.commit_only(&site.device.clone())),
            Verdict::DropBusy,
            Verdict::DropSession,
        ),
        (
            |site| site.fixture.gateway.wipe(site.device.id).unwrap(),
            Verdict::DropUnknownDevice,
            Verdict::DropSession,
        ),
    ];
    for (end, up, down) in ends {
        let mut site = SealedGateFixture::new(false);
        end(&mut site);
        let frame = site.up(1, b"x");
        assert_eq!(site.verdict(frame), up);
        let mut frame = site.service_builder().udp(b"x");
        assert_eq!(site.seal(&mut frame), down);
    }
}

#[test]
fn no_other_frame_passes_the_sealed_gate_in_either_direction() {
    let mut site = SealedGateFixture::new(false);
    let builder = FrameBuilder::new(site.device.endpoint, site.service(80));
    for (frame, verdict) in [
        (builder.udp(b"x"), Verdict::DropGate),
        (builder.ip(6, &[0; 20]), Verdict::DropGate),
        (builder.ethernet(0x88cc, &[0; 46]), Verdict::DropGateType),
        (
            builder.clone().fragment(0, true).udp(b"x"),
            Verdict::DropGateFragment,
        ),
        (
            builder.clone().options(&[1]).udp(b"x"),
            Verdict::DropGateExtension,
        ),
        (builder.udp(b"x")[..30].to_vec(), Verdict::DropTruncated),
        (site.builder().udp(b"x"), Verdict::DropGatePort),
        (site.builder().udp(&[0; 64]), Verdict::DropGatePort),
        (site.builder().udp(&site.device.request(1)), Verdict::DropGatePort),
        (builder.arp_request(), Verdict::PassAlways),
        (builder.dhcp(), Verdict::DropGate),
    ] {
        assert_eq!(site.verdict(frame), verdict);
    }
    let to_device = site.service_builder();
    let other = FrameBuilder::new(site.service(PORT), TestDevice::new(9, Mode::Pool).endpoint);
    let server = |port| {
        FrameBuilder::new(
            site.service(67),
            Endpoint {
                port,
                ..site.device.endpoint
            },
        )
    };
    for (mut frame, verdict) in [
        (to_device.ip(6, &[0; 20]), Verdict::DropUnsealed),
        (to_device.ip(1, &[3, 4, 0, 0]), Verdict::DropUnsealed),
        (to_device.ethernet(0x88cc, &[0; 46]), Verdict::DropUnsealed),
        (
            to_device.clone().fragment(0, true).udp(b"x"),
            Verdict::DropGateFragment,
        ),
        (
            to_device.clone().options(&[1]).udp(b"x"),
            Verdict::DropGateExtension,
        ),
        (to_device.udp(b"x")[..30].to_vec(), Verdict::DropTruncated),
        (other.udp(b"x"), Verdict::DropSession),
        (to_device.arp_request(), Verdict::PassAlways),
        (server(68).udp(b"x"), Verdict::PassAlways),
        (server(67).udp(b"x"), Verdict::PassSealed),
    ] {
        assert_eq!(site.seal(&mut frame), verdict);
    }
}

#[test]
fn the_largest_datagram_fills_the_link() {
    for (v6, overhead) in [(false, 84), (true, 104)] {
        let mut site = SealedGateFixture::new(v6);
        let mut frame = site.service_builder().udp(&vec![7; MTU - overhead]);
        assert_eq!(site.seal(&mut frame), Verdict::PassSealed);
        assert_eq!(frame.len(), 14 + MTU);
        let mut frame = site.service_builder().udp(&vec![7; MTU - overhead + 1]);
        assert_eq!(site.seal(&mut frame), Verdict::DropTooBig);
    }
}

#[test]
fn numbers_towards_the_device_are_never_repeated_under_one_key() {
    let mut site = SealedGateFixture::new(false);
    let mut frame = site.service_builder().udp(b"x");
    site.fixture
        .gateway
        .set_down_count(site.device.id, u64::from(u32::MAX) - 1);
    assert_eq!(site.seal(&mut frame.clone()), Verdict::PassSealed);
    for _ in 0..3 {
        assert_eq!(site.seal(&mut frame.clone()), Verdict::DropExhausted);
    }
    site.authenticate();
    assert_eq!(site.seal(&mut frame), Verdict::PassSealed);
    assert_eq!(site.open(&frame).0, 1);
}
