//! Time from the request that revokes a device to the last reply from any of three gateways.
//!
//! The gateways are processes with the `host` data plane and the default settings; they reach the controller only over
//! the network. Each device first authenticates at all three gateways, so that each gateway has a line and rows of the
//! device.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::wire::{self, Message, message_type};
use serde_json::json;
use zerocopy::IntoBytes as _;

use super::client::full_body;
use super::devices::row_key;
use super::import::{self, LARGE_ROWS};
use super::process::Process;
use super::{Fleet, Size, TestController, invalid_measurement, quantile, reads, runtime};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};

/// Number of gateways.
const GATEWAYS: u16 = 3;
const TARGET_MS: f64 = 1_000.0;
/// Rows of a device; each gateway leases 16.
const ROWS: u32 = 64;
/// Device slots of a gateway.
const SLOTS: u32 = 1_000;
/// Interval between two REQUESTs of a device to each gateway.
const REQUEST_INTERVAL: Duration = Duration::from_millis(2);
/// Time without a reply after which the device counts as blocked.
const NO_REPLY_MIN: Duration = Duration::from_millis(100);
/// Error text of a gateway whose port is in use.
const PORT_IN_USE: &str = "in use";
/// Maximum number of retries with another port.
const PORT_RETRIES: u32 = 3;
/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Gateway {
    _process: Process,
    address: SocketAddr,
}

impl Gateway {
    fn start(controller: &TestController, id: u16, slots: u32) -> Result<Self, BenchError> {
        controller.programs.run(&format!(
            "linewarden certificate gateway --ca pki --id {id} --out gateway-{id}"
        ))?;
        let mut retries = 0;
        loop {
            match Self::start_at_free_port(controller, id, slots) {
                // Another process has taken the port.
                Err(error) if error.to_string().contains(PORT_IN_USE) && retries < PORT_RETRIES => {
                    retries += 1
                }
                result => return result,
            }
        }
    }

    fn start_at_free_port(controller: &TestController, id: u16, slots: u32) -> Result<Self, BenchError> {
        let programs = &controller.programs;
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = free.map_err(io("find a free UDP port"))?;
        let configuration = format!(
            "[gateway]\nid = {id}\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\nticket_port = 0\n\
             slots = {slots}\nthreads = 1\n\
             [controller]\naddresses = [\"{controller}\"]\nca = \"pki/ca.pem\"\nserver_name = \"{name}\"\n\
             cert = \"gateway-{id}.pem\"\nkey = \"gateway-{id}.key\"\n",
            port = address.port(),
            controller = controller.address,
            name = super::client::SERVER_NAME,
        );
        let file = format!("gateway-{id}.toml");
        std::fs::write(programs.directory.join(&file), configuration)
            .map_err(io("write a configuration file"))?;
        let process = programs.start(
            &format!("gateway-{id}"),
            &format!("linewarden-gateway run --config {file} --output json --status-interval 1"),
        )?;
        process.wait_for("gateway", |line| {
            line["event"] == "status" && line["loaded"] == true
        })?;
        Ok(Self {
            _process: process,
            address,
        })
    }
}

/// A socket on the device's own address, because two live sessions never share an address.
fn socket(number: u32, gateway: SocketAddr) -> Result<UdpSocket, BenchError> {
    let [_, high, middle, low] = (number + 1).to_be_bytes();
    let device_address = Ipv4Addr::new(127, high + 1, middle, low);
    let open = || {
        let socket = UdpSocket::bind((device_address, 0))?;
        socket.connect(gateway)?;
        Ok(socket)
    };
    open().map_err(io("open a device socket"))
}

/// Runs one handshake with the protocol's device role. Each timeout advances the device's clock, so that the device
/// never pauses.
fn authenticate(fleet: &Fleet, number: u32, gateway: SocketAddr) -> Result<(), BenchError> {
    let (id, mode) = (fleet.id(number), Fleet::mode(number));
    let socket = socket(number, gateway)?;
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .map_err(io("open a device socket"))?;
    let local = match socket.local_addr().map_err(io("open a device socket"))? {
        SocketAddr::V4(address) => address.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(address) => address.ip().octets(),
    };
    let mut device = Device::new(DeviceConfig {
        device: id,
        suite: Suite::SipHash128,
        mode,
        gateways: GatewayPolicy::ANY,
        bound_mac: None,
    });
    let mut now_ms = 0;
    let mut output = device
        .start(nonce()?, now_ms)
        .map_err(|error| invalid_measurement(format_args!("{error:?}")))?;
    let (deadline, mut buffer) = (Instant::now() + TIMEOUT, [0; 2048]);
    while Instant::now() < deadline {
        output = match output {
            Output::Transmit(message) => {
                socket.send(&message).map_err(io("send to a gateway"))?;
                device.poll(now_ms)
            }
            Output::EvaluatePuf(query) => {
                let idx = if mode == Mode::Key { 0 } else { query.idx.0 };
                device.puf_result(Ok(row_key(id, idx)), now_ms)
            }
            Output::Authenticated(_) => return Ok(()),
            _ => match socket.recv(&mut buffer) {
                Ok(length) => {
                    let message = buffer.get(..length).unwrap_or_default();
                    device.handle(message, &local, now_ms).unwrap_or(Output::None)
                }
                Err(_) => {
                    now_ms += 50;
                    device.poll(now_ms)
                }
            },
        };
    }
    Err(invalid_measurement(format_args!(
        "device {id} could not authenticate at {gateway} within 20 s"
    )))
}

fn nonce() -> Result<[u8; 16], BenchError> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(invalid_measurement)?;
    Ok(nonce)
}

/// Sends a device's REQUESTs to all gateways and records the time of the last reply.
struct Probe {
    id: DeviceId,
    sockets: Vec<UdpSocket>,
    last_reply: Option<Instant>,
    /// Whether each gateway has replied.
    has_replied: Vec<bool>,
}

impl Probe {
    fn new(fleet: &Fleet, number: u32, gateways: &[Gateway]) -> Result<Self, BenchError> {
        let sockets = gateways.iter().map(|gateway| {
            let socket = socket(number, gateway.address)?;
            socket.set_nonblocking(true).map_err(io("open a device socket"))?;
            Ok(socket)
        });
        Ok(Self {
            id: fleet.id(number),
            has_replied: vec![false; gateways.len()],
            sockets: sockets.collect::<Result<_, BenchError>>()?,
            last_reply: None,
        })
    }

    fn send_requests(&mut self) -> Result<(), BenchError> {
        let request = wire::Request {
            header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, self.id),
            nonce: nonce()?,
            reserved: [0; 32],
        };
        for socket in &self.sockets {
            socket.send(request.as_bytes()).map_err(io("send to a gateway"))?;
        }
        std::thread::sleep(REQUEST_INTERVAL);
        let mut reply = [0; 2048];
        for (socket, has_replied) in self.sockets.iter().zip(&mut self.has_replied) {
            while let Ok(length) = socket.recv(&mut reply) {
                let message = reply.get(..length).unwrap_or_default();
                if matches!(wire::parse(message), Ok(Message::Challenge(_))) {
                    *has_replied = true;
                    self.last_reply = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Sends REQUESTs until all gateways have replied.
    fn wait_for_all_gateways(&mut self) -> Result<(), BenchError> {
        self.has_replied.fill(false);
        let deadline = Instant::now() + TIMEOUT;
        while !self.has_replied.iter().all(|has_replied| *has_replied) {
            if Instant::now() > deadline {
                let error = format!(
                    "not all gateways reply to device {}: {:?}",
                    self.id, self.has_replied
                );
                return Err(invalid_measurement(error));
            }
            self.send_requests()?;
        }
        Ok(())
    }

    /// Sends REQUESTs until no gateway has replied for [`NO_REPLY_MIN`]; returns the time of the last reply.
    fn wait_until_no_reply(&mut self) -> Result<Instant, BenchError> {
        let start_time = Instant::now();
        loop {
            self.send_requests()?;
            let last = self.last_reply.unwrap_or(start_time);
            if last.elapsed() > NO_REPLY_MIN {
                return Ok(last);
            }
            if start_time.elapsed() > TIMEOUT {
                return Err(invalid_measurement(format_args!(
                    "gateways still reply to the revoked device {}",
                    self.id
                )));
            }
        }
    }
}

/// Revokes these devices in sequence; returns for each device the time until no gateway replies, ms.
fn revoke(
    controller: &TestController,
    fleet: &Fleet,
    gateways: &[Gateway],
    numbers: std::ops::Range<u32>,
    control_device: u32,
    progress: Progress<'_>,
) -> Result<Vec<f64>, BenchError> {
    let runtime = runtime()?;
    let mut client = controller.client(0);
    let mut control_probe = Probe::new(fleet, control_device, gateways)?;
    let (mut blocked_ms, total) = (Vec::new(), u64::from(numbers.end - numbers.start));
    for number in numbers {
        progress("revoking", Some((blocked_ms.len() as u64, total)));
        let mut probe = Probe::new(fleet, number, gateways)?;
        probe.wait_for_all_gateways()?;
        // A random pause, independent of the gateways' polling.
        let pause = u64::from(nonce()?[0]) * 200;
        std::thread::sleep(Duration::from_micros(pause));
        let path = format!("/api/v1/devices/{}/revoke", probe.id);
        let body = full_body(json!({"reason": "bench"}).to_string());
        // The gateways receive REQUESTs during the revocation.
        let (start_time, last) = std::thread::scope(|scope| {
            let probing_enabled = Arc::new(AtomicBool::new(true));
            let continue_probing = Arc::clone(&probing_enabled);
            let probing = scope.spawn(move || -> Result<Instant, BenchError> {
                while continue_probing.load(Relaxed) {
                    probe.send_requests()?;
                }
                probe.wait_until_no_reply()
            });
            let start_time = Instant::now();
            let response = runtime.block_on(client.post(&path, body));
            probing_enabled.store(false, Relaxed);
            let last = probing
                .join()
                .map_err(|_| invalid_measurement("a probe thread panicked"))?;
            response?;
            Ok::<_, BenchError>((start_time, last?))
        })?;
        // Replies to another device show that the revocation, not the network, blocked the device.
        control_probe.wait_for_all_gateways()?;
        blocked_ms.push(last.saturating_duration_since(start_time).as_secs_f64() * 1e3);
    }
    Ok(blocked_ms)
}

/// Adds the rows of this part.
pub(super) fn rows(
    controller: &TestController,
    fleet: &Fleet,
    size: &Size,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let revocations = size.revocations;
    // Some devices are revoked without load, some under read load, and one is not revoked.
    let (busy, control_device) = (revocations..2 * revocations, 2 * revocations);
    // These devices have enough rows for three gateways; the other devices of the fleet do not.
    let devices = fleet
        .additional(size.large_devices, LARGE_ROWS)
        .additional(control_device + 1, ROWS);
    import::fleet(controller, &devices, progress)?;
    progress("starting gateways", None);
    let gateways = (1..=GATEWAYS)
        .map(|id| Gateway::start(controller, id, SLOTS))
        .collect::<Result<Vec<_>, _>>()?;
    for number in 0..=control_device {
        progress("authenticating", Some((number.into(), control_device.into())));
        for gateway in &gateways {
            authenticate(&devices, number, gateway.address)?;
        }
    }
    let mut idle_ms = revoke(
        controller,
        &devices,
        &gateways,
        0..revocations,
        control_device,
        progress,
    )?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut busy_ms = std::thread::scope(|scope| {
        let stop_flag = Arc::clone(&stop);
        let load =
            scope.spawn(move || runtime()?.block_on(reads::run_load(controller, fleet, 3, &stop_flag)));
        let busy_ms = revoke(controller, &devices, &gateways, busy, control_device, progress);
        stop.store(true, Relaxed);
        load.join()
            .map_err(|_| invalid_measurement("the read load thread panicked"))??;
        busy_ms
    })?;
    rows.extend([
        Row::lower("revoke_fleet.p50_ms", quantile(&mut idle_ms, 0.5), "ms", None),
        Row::lower(
            "revoke_fleet.p99_ms",
            quantile(&mut idle_ms, 0.99),
            "ms",
            Some(TARGET_MS),
        ),
        Row::lower(
            "revoke_fleet.busy_p50_ms",
            quantile(&mut busy_ms, 0.5),
            "ms",
            None,
        ),
        Row::lower(
            "revoke_fleet.busy_p99_ms",
            quantile(&mut busy_ms, 0.99),
            "ms",
            None,
        ),
    ]);
    Ok(())
}
