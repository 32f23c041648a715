//! From the question that revokes a device to the last answer that it gets from any of three gateways.
//!
//! The gateways are processes with the `host` data plane and the product's settings; they know the controller by the network only.
//! Each device authenticates at all three before, so that each has rows and a line of it.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::wire::{self, Message, message_type};
use serde_json::json;
use zerocopy::IntoBytes as _;

use super::client::full;
use super::devices::row_key;
use super::import::{self, LARGE_ROWS};
use super::process::Process;
use super::{Fleet, Office, Size, contradiction, quantile, reads, runtime};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};

/// How many gateways.
const GATEWAYS: u16 = 3;
const BAR_MS: f64 = 1_000.0;
/// Rows of a device: each gateway leases 16.
const ROWS: u32 = 64;
/// Devices that fit into a gateway.
const SLOTS: u32 = 1_000;
/// Between two REQUESTs of a device to each gateway.
const EVERY: Duration = Duration::from_millis(2);
/// No answer for so long: it is shut out.
const SHUT: Duration = Duration::from_millis(100);
/// What a gateway says whose port somebody has, and how many more are tried then.
const IN_USE: &str = "in use";
const PORTS: u32 = 3;
/// What takes longer does not work at all.
const LIMIT: Duration = Duration::from_secs(20);

struct Gateway {
    _process: Process,
    address: SocketAddr,
}

impl Gateway {
    fn start(office: &Office, id: u16, slots: u32) -> Result<Self, BenchError> {
        office.program.run(&format!(
            "certificate gateway --ca pki --id {id} --out gateway-{id}"
        ))?;
        let mut tries = 0;
        loop {
            match Self::start_at_free_port(office, id, slots) {
                // Somebody else took it meanwhile.
                Err(error) if error.to_string().contains(IN_USE) && tries < PORTS => tries += 1,
                started => return started,
            }
        }
    }

    fn start_at_free_port(office: &Office, id: u16, slots: u32) -> Result<Self, BenchError> {
        let program = &office.program;
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = free.map_err(io("looking for a port"))?;
        let configuration = format!(
            "[gateway]\nid = {id}\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\ndesk_port = 0\n\
             slots = {slots}\nthreads = 1\n\
             [controller]\naddresses = [\"{controller}\"]\nca = \"pki/ca.pem\"\nserver_name = \"{name}\"\n\
             cert = \"gateway-{id}.pem\"\nkey = \"gateway-{id}.key\"\n",
            port = address.port(),
            controller = office.address,
            name = super::client::NAME,
        );
        let file = format!("gateway-{id}.toml");
        std::fs::write(program.directory.join(&file), configuration)
            .map_err(io("writing a configuration"))?;
        let process = program.start(
            &format!("gateway-{id}"),
            &format!("serve --config {file} --json --every 1"),
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

/// A device on an address of its own: no two live sessions share one.
fn socket(number: u32, gateway: SocketAddr) -> Result<UdpSocket, BenchError> {
    let [_, high, middle, low] = (number + 1).to_be_bytes();
    let from = Ipv4Addr::new(127, high + 1, middle, low);
    let connected = || {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect(gateway)?;
        Ok(socket)
    };
    connected().map_err(io("a device's socket"))
}

/// One handshake, by the protocol's own device; its clock is moved by hand, so that it never rests.
fn authenticate(fleet: &Fleet, number: u32, gateway: SocketAddr) -> Result<(), BenchError> {
    let (id, mode) = (fleet.id(number), Fleet::mode(number));
    let socket = socket(number, gateway)?;
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .map_err(io("a device's socket"))?;
    let local = match socket.local_addr().map_err(io("a device's socket"))? {
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
        .map_err(|error| contradiction(format_args!("{error:?}")))?;
    let (until, mut buffer) = (Instant::now() + LIMIT, [0; 2048]);
    while Instant::now() < until {
        output = match output {
            Output::Transmit(message) => {
                socket.send(&message).map_err(io("sending to a gateway"))?;
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
    Err(contradiction(format_args!(
        "device {id} does not authenticate at {gateway}"
    )))
}

fn nonce() -> Result<[u8; 16], BenchError> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(contradiction)?;
    Ok(nonce)
}

/// REQUESTs of a device to all gateways, and when one was answered last.
struct Probe {
    id: DeviceId,
    sockets: Vec<UdpSocket>,
    last: Option<Instant>,
    /// Gateways that have answered.
    answered: Vec<bool>,
}

impl Probe {
    fn new(fleet: &Fleet, number: u32, gateways: &[Gateway]) -> Result<Self, BenchError> {
        let sockets = gateways.iter().map(|gateway| {
            let socket = socket(number, gateway.address)?;
            socket.set_nonblocking(true).map_err(io("a device's socket"))?;
            Ok(socket)
        });
        Ok(Self {
            id: fleet.id(number),
            answered: vec![false; gateways.len()],
            sockets: sockets.collect::<Result<_, BenchError>>()?,
            last: None,
        })
    }

    fn ask(&mut self) -> Result<(), BenchError> {
        let request = wire::Request {
            header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, self.id),
            nonce: nonce()?,
            reserved: [0; 32],
        };
        for socket in &self.sockets {
            socket
                .send(request.as_bytes())
                .map_err(io("sending to a gateway"))?;
        }
        std::thread::sleep(EVERY);
        let mut answer = [0; 2048];
        for (socket, answered) in self.sockets.iter().zip(&mut self.answered) {
            while let Ok(length) = socket.recv(&mut answer) {
                let message = answer.get(..length).unwrap_or_default();
                if matches!(wire::parse(message), Ok(Message::Challenge(_))) {
                    *answered = true;
                    self.last = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Asks until all gateways have answered.
    fn hear_all(&mut self) -> Result<(), BenchError> {
        self.answered.fill(false);
        let until = Instant::now() + LIMIT;
        while !self.answered.iter().all(|answered| *answered) {
            if Instant::now() > until {
                let why = format!(
                    "device {} is not answered by all gateways: {:?}",
                    self.id, self.answered
                );
                return Err(contradiction(why));
            }
            self.ask()?;
        }
        Ok(())
    }

    /// Asks until nobody has answered for a while; when somebody did last.
    fn until_shut(&mut self) -> Result<Instant, BenchError> {
        let began = Instant::now();
        loop {
            self.ask()?;
            let last = self.last.unwrap_or(began);
            if last.elapsed() > SHUT {
                return Ok(last);
            }
            if began.elapsed() > LIMIT {
                return Err(contradiction(format_args!(
                    "revoked device {} is still answered",
                    self.id
                )));
            }
        }
    }
}

/// Revokes these devices one after another; how long each took to be shut out everywhere, ms.
fn revoke(
    office: &Office,
    fleet: &Fleet,
    gateways: &[Gateway],
    numbers: std::ops::Range<u32>,
    witness: u32,
    progress: Progress<'_>,
) -> Result<Vec<f64>, BenchError> {
    let runtime = runtime()?;
    let mut client = office.client(0);
    let mut witness = Probe::new(fleet, witness, gateways)?;
    let (mut shut_ms, all) = (Vec::new(), u64::from(numbers.end - numbers.start));
    for number in numbers {
        progress("revoking", Some((shut_ms.len() as u64, all)));
        let mut probe = Probe::new(fleet, number, gateways)?;
        probe.hear_all()?;
        // At a moment that knows nothing of the gateways' polling.
        let pause = u64::from(nonce()?[0]) * 200;
        std::thread::sleep(Duration::from_micros(pause));
        let path = format!("/api/v1/devices/{}/revoke", probe.id);
        let body = full(json!({"reason": "bench"}).to_string());
        // Its gateways are asked all the while.
        let (began, last) = std::thread::scope(|scope| {
            let asking = Arc::new(AtomicBool::new(true));
            let goes_on = Arc::clone(&asking);
            let probing = scope.spawn(move || -> Result<Instant, BenchError> {
                while goes_on.load(Relaxed) {
                    probe.ask()?;
                }
                probe.until_shut()
            });
            let began = Instant::now();
            let revoked = runtime.block_on(client.post(&path, body));
            asking.store(false, Relaxed);
            let last = probing.join().map_err(|_| contradiction("a thread panicked"))?;
            revoked?;
            Ok::<_, BenchError>((began, last?))
        })?;
        // It was the revocation, and not the network.
        witness.hear_all()?;
        shut_ms.push(last.saturating_duration_since(began).as_secs_f64() * 1e3);
    }
    Ok(shut_ms)
}

/// All rows of this part.
pub(super) fn rows(
    office: &Office,
    fleet: &Fleet,
    size: &Size,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let revocations = size.revocations;
    // Some are revoked while nobody asks, some while everybody does, and one stays.
    let (busy, witness) = (revocations..2 * revocations, 2 * revocations);
    // Of rows enough for three gateways; others of the fleet have not.
    let devices = fleet
        .beside(size.large_devices, LARGE_ROWS)
        .beside(witness + 1, ROWS);
    import::fleet(office, &devices, progress)?;
    progress("starting gateways", None);
    let gateways = (1..=GATEWAYS)
        .map(|id| Gateway::start(office, id, SLOTS))
        .collect::<Result<Vec<_>, _>>()?;
    for number in 0..=witness {
        progress("authenticating", Some((number.into(), witness.into())));
        for gateway in &gateways {
            authenticate(&devices, number, gateway.address)?;
        }
    }
    let mut quiet_ms = revoke(office, &devices, &gateways, 0..revocations, witness, progress)?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut busy_ms = std::thread::scope(|scope| {
        let until = Arc::clone(&stop);
        let load = scope.spawn(move || runtime()?.block_on(reads::load(office, fleet, 3, &until)));
        let busy_ms = revoke(office, &devices, &gateways, busy, witness, progress);
        stop.store(true, Relaxed);
        load.join().map_err(|_| contradiction("a thread panicked"))??;
        busy_ms
    })?;
    rows.extend([
        Row::lower("revoke_fleet.p50_ms", quantile(&mut quiet_ms, 0.5), "ms", None),
        Row::lower(
            "revoke_fleet.p99_ms",
            quantile(&mut quiet_ms, 0.99),
            "ms",
            Some(BAR_MS),
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
