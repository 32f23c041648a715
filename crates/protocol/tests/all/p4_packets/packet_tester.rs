//! Runs the oracle beside a program: both must give the same result for each frame.

use std::cell::Cell;
use std::collections::BTreeMap;

use linewarden_protocol::classic::gateway::PublishedGateway;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::LAP_PORT;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::stf::Stf;

pub const GATEWAY: GatewayId = GatewayId(7);
/// The port of the devices.
pub const PORT: u16 = 1;
/// The port of the service.
pub const SERVICE_PORT: u16 = 2;
/// The port of the control plane, which gets messages of unknown devices.
pub const CPU_PORT: u16 = 510;
/// First header word of a frame from the control plane that the program must process like a frame from a device port.
const REPLAY: u16 = 0x8000;
/// The gateway's own IPv6 address, besides the address of [`gateway_end`].
pub const OWN_V6: [u16; 8] = [0xfd66, 0, 0, 0, 0, 0, 0, 0xfe];

/// The address of the gateway.
pub fn gateway_endpoint() -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0xff, 1],
        ip: [10, 66, 0, 254].into(),
        port: LAP_PORT,
    }
}

/// The service behind the gateway.
pub fn service_endpoint() -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0xff, 2],
        ip: [10, 77, 0, 1].into(),
        port: 9000,
    }
}

pub fn device_endpoint(number: u8) -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0, number],
        ip: [10, 66, 0, number].into(),
        port: 40_000,
    }
}

/// Returns the same endpoint with an IPv6 address.
pub fn v6(end: Endpoint) -> Endpoint {
    let number = u16::from(end.mac[5]);
    let ip = match end.port {
        LAP_PORT => OWN_V6,
        _ => [0xfd66, 0, 0, 0, 0, 0, 1, number],
    };
    Endpoint { ip: ip.into(), ..end }
}

thread_local! {
    static VARIANT: Cell<u64> = const { Cell::new(0) };
}

/// Sets how this thread alters frames; 0 gives the alterations in p4/tests.
pub fn vary(variant: u64) {
    VARIANT.set(variant);
}

/// Whether frames are altered differently than in p4/tests.
pub fn is_varied() -> bool {
    VARIANT.get() != 0
}

pub struct PacketTester {
    pub stf: Stf,
    pub gateway: PublishedGateway,
    pub now: Now,
    /// MAC addresses and their ports.
    pub bridged: BTreeMap<[u8; 6], u16>,
    /// Ports of frames to a group address.
    pub flooded: Vec<u16>,
    /// Whether altered frames from one device to another are sent; some programs exclude them.
    pub between_devices: bool,
    /// By verdict number: the number of frames.
    counts: BTreeMap<u8, u64>,
}

impl PacketTester {
    /// Creates a tester for a program whose ingress control has this name.
    pub fn new(control: &str, stf: Stf, gateway: impl Into<PublishedGateway>) -> Self {
        let mut tester = Self::empty(stf, gateway);
        tester
            .stf
            .comment("The gateway's own addresses, and the ports of passing frames.");
        for line in [
            "local4 hdr.net.ipv4.dst:0x0a4200fe is_local()".to_owned(),
            "local6 hdr.net.ipv6.dst:0xfd6600000000000000000000000000fe is_local()".to_owned(),
            format!("bridge hdr.net.ethernet.dst:0x02000000ff02 to_port(port:{SERVICE_PORT})"),
        ] {
            tester.stf.line(&format!("add {control}.{line}"));
        }
        tester
    }

    /// Creates a tester for a program that the caller sets up, with the service behind [`SERVICE_PORT`].
    pub fn empty(stf: Stf, gateway: impl Into<PublishedGateway>) -> Self {
        let now = Now {
            monotonic_ms: 50_000,
            boot_ms: 90_000,
        };
        Self {
            stf,
            gateway: gateway.into(),
            now,
            bridged: BTreeMap::from([(service_endpoint().mac, SERVICE_PORT)]),
            flooded: Vec::new(),
            between_devices: true,
            counts: BTreeMap::new(),
        }
    }

    pub fn comment(&mut self, reason: &str) -> &mut Self {
        self.stf.comment(reason);
        self
    }

    /// Sends a frame on [`PORT`].
    pub fn send(&mut self, frame: &[u8]) -> Verdict {
        self.send_on(PORT, frame).0
    }

    /// Sends a frame; returns the verdict and the output frame.
    pub fn send_on(&mut self, port: u16, frame: &[u8]) -> (Verdict, Vec<u8>) {
        self.stf.packet(port, frame);
        self.expect_oracle_output(port, frame)
    }

    /// Lets the oracle handle a frame, and expects the oracle's output from the program.
    fn expect_oracle_output(&mut self, port: u16, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut bytes = frame.to_vec();
        let handled = self.gateway.handle(self.now, port.into(), &mut bytes);
        self.record(handled.verdict);
        let mut out = bytes[handled.frame.clone()].to_vec();
        out.extend_from_slice(handled.trailer.as_ref().map_or(&[][..], |trailer| &trailer[..]));
        match handled.verdict.disposition() {
            Disposition::Reply => {
                self.stf.expect(port, &out);
            }
            Disposition::Pass => {
                for output in self
                    .output_ports(&out)
                    .into_iter()
                    .filter(|output| *output != port)
                {
                    self.stf.expect(output, &out);
                }
            }
            Disposition::Drop if handled.verdict == Verdict::SlowPath => {
                self.stf
                    .expect(CPU_PORT, &[&port.to_be_bytes()[..], frame].concat());
            }
            Disposition::Drop => {}
        }
        (handled.verdict, out)
    }

    /// Passes a frame of [`PORT`] to the program from the control plane.
    pub fn through(&mut self, frame: &[u8], verdict: Verdict) {
        let header = [REPLAY.to_be_bytes(), PORT.to_be_bytes()].concat();
        self.stf.packet(CPU_PORT, &[&header, frame].concat());
        assert_eq!(self.expect_oracle_output(PORT, frame).0, verdict);
    }

    /// Returns the ports to which a passing frame is sent; the input port may be one of them.
    fn output_ports(&self, frame: &[u8]) -> Vec<u16> {
        match frame.first_chunk::<6>() {
            Some([first, ..]) if first & 1 == 1 && !self.flooded.is_empty() => self.flooded.clone(),
            Some(mac) => self.bridged.get(mac).copied().into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// Counts a verdict.
    pub fn record(&mut self, verdict: Verdict) {
        *self.counts.entry(verdict.number()).or_default() += 1;
    }

    /// Sends a frame that the program drops by limits or tables that the oracle does not have.
    pub fn dropped(&mut self, verdict: Verdict, frame: &[u8]) {
        assert_eq!(verdict.disposition(), Disposition::Drop);
        self.stf.packet(PORT, frame);
        self.record(verdict);
    }

    /// Sends a frame that must have this verdict.
    pub fn expect(&mut self, verdict: Verdict, frame: &[u8]) {
        assert_eq!(self.send(frame), verdict);
    }

    /// Sends frames with one or two changed bytes, truncated or extended; the oracle gives the expected result.
    pub fn send_altered(&mut self, seed: u64, times: u32, frames: &[Vec<u8>]) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ VARIANT.get() << 32);
        let mut below = |end: usize| usize::try_from(rng.next_u64() % u64::try_from(end).unwrap()).unwrap();
        for _ in 0..times {
            let mut frame = frames[below(frames.len())].clone();
            for _ in 0..=below(2) {
                match below(8) {
                    0 => frame.truncate(14.max(below(frame.len() + 1))),
                    1 => frame.resize(frame.len() + 1 + below(20), 0),
                    _ => {
                        // Headers are altered more often than payloads.
                        let end = [64, frame.len()][below(2)].min(frame.len());
                        let at = below(end);
                        let bit = 1u8 << below(8);
                        frame[at] = [frame[at] ^ bit, 0, 0xff, bit][below(4)];
                    }
                }
            }
            let to = frame.first_chunk::<6>().and_then(|mac| self.bridged.get(mac));
            if self.between_devices || to != Some(&PORT) {
                self.send(&frame);
            }
        }
    }

    /// Adds the count of each verdict, and returns the complete test.
    pub fn finish(mut self) -> Stf {
        self.comment("Every frame has exactly one verdict.");
        for verdict in Verdict::ALL {
            let number = verdict.number();
            let count = self.counts.get(&number).copied().unwrap_or_default();
            self.stf
                .line(&format!("check_counter verdicts({number}) packets == {count}"));
        }
        self.stf
    }

    /// A UDP datagram to the gateway's LAP port.
    pub fn to_lap(from: Endpoint, payload: &[u8]) -> Vec<u8> {
        let to = match from.ip.is_ipv6() {
            true => v6(gateway_endpoint()),
            false => gateway_endpoint(),
        };
        FrameBuilder::new(from, to).udp(payload)
    }
}
