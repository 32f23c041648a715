//! From the command that revokes a device to the last of its packets that gets through the gate.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use linewarden_dataplane::Gate;
use linewarden_protocol::frame::write::{self, Endpoint};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::site::{Site, authenticate, contradiction};
use crate::address::{DeviceAddress, Family, GATEWAY, SERVICE};
use crate::bench::scale::{Progress, Size};
use crate::bench::{BenchError, Row, io};
use crate::clock::real_ns;
use crate::fleet::{DATA_PORT, FleetSpec, device_id};
use crate::netns::NetNsError;
use crate::packet_socket::{Options, PacketSocket, TxBatch};

/// The service's port.
const PORT: u16 = 7007;
/// Between two datagrams of the device that is being revoked.
const EVERY: Duration = Duration::from_micros(200);
/// Devices that are never revoked and send as well.
const OTHERS: u32 = 8;
/// Nothing through for so long is shut.
const SHUT_NS: u64 = 100_000_000;
/// A device that still gets through after this is not shut out at all.
const LIMIT_NS: u64 = 10_000_000_000;
/// The bar, ms.
const BAR_MS: f64 = 100.0;

/// One device after another, at moments that know nothing of the gateway's polling, each while it and others send through
/// the open gate.
///
/// # Errors
/// A device that was not served, or that is not shut out.
pub(super) fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let count = size.revocations;
    let spec = FleetSpec::new(count + OTHERS, 13);
    let (site, [members]) = Site::start([&spec], Gate::Open)?;
    let mut fleet = site.fleet(members, 0)?;
    authenticate(&mut fleet, 16)?;
    let traffic = Traffic::start(&site, count)?;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut shut_ms, mut command_ms) = (Vec::new(), Vec::new());
    for device in 0..count {
        progress("revoking", Some((device.into(), count.into())));
        traffic.send_from(device)?;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..50_000)));
        let began_ns = real_ns();
        site.runtime
            .block_on(site.registry.revoke(device_id(device), "bench", 0))?;
        let told_ns = real_ns();
        let last_ns = traffic.last_of(device, told_ns)?;
        shut_ms.push(last_ns.saturating_sub(began_ns) as f64 / 1e6);
        command_ms.push((told_ns - began_ns) as f64 / 1e6);
    }
    traffic.finish()?;
    rows.extend([
        Row::lower("revoke.p50_ms", quantile(&mut shut_ms, 0.5), "ms", None),
        Row::lower("revoke.p99_ms", quantile(&mut shut_ms, 0.99), "ms", Some(BAR_MS)),
        Row::fact("revoke.command_ms.p50", quantile(&mut command_ms, 0.5), "ms"),
    ]);
    Ok(())
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() as f64 * quantile).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// What sender and service share.
struct Shared {
    stop: AtomicBool,
    /// The device whose turn it is.
    device: AtomicU32,
    /// Arrival of each device's last datagram, real-time clock, ns; 0: none.
    last_ns: Vec<AtomicU64>,
}

type Thread = std::thread::JoinHandle<Result<Result<(), BenchError>, NetNsError>>;

struct Traffic {
    shared: Arc<Shared>,
    others: std::ops::Range<u32>,
    threads: [Thread; 2],
}

impl Traffic {
    fn start(site: &Site, count: u32) -> Result<Self, BenchError> {
        let others = count..count + OTHERS;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            device: AtomicU32::new(0),
            last_ns: (0..others.end).map(|_| AtomicU64::new(0)).collect(),
        });
        let socket = PacketSocket::open(&site.lab.devices, &site.lab.devices_end, &Options::default())
            .map_err(contradiction)?;
        let (sent, heard, range) = (Arc::clone(&shared), Arc::clone(&shared), others.clone());
        let service = site.lab.service.spawn("service", move || listen(&heard))?;
        let sender = site
            .lab
            .devices
            .spawn("traffic", move || send(&socket, &sent, range))?;
        Ok(Self {
            shared,
            others,
            threads: [service, sender],
        })
    }

    /// Waits until the device's datagrams get through.
    fn send_from(&self, device: u32) -> Result<(), BenchError> {
        self.shared.device.store(device, Ordering::Relaxed);
        self.wait(real_ns(), "the gate lets nothing through", || {
            self.heard(device) > 0
        })
    }

    /// When the device's last datagram came, after nothing has come for a while since `told_ns`.
    fn last_of(&self, device: u32, told_ns: u64) -> Result<u64, BenchError> {
        self.wait(told_ns, "a revoked device gets through", || {
            let last_ns = self.heard(device).max(told_ns);
            real_ns().saturating_sub(last_ns) > SHUT_NS
        })?;
        // What still gets through shows that it was the gate and not the network.
        let others_ns = self.others.clone().map(|other| self.heard(other)).max();
        match others_ns.unwrap_or(0) > told_ns + SHUT_NS / 2 {
            true => Ok(self.heard(device)),
            false => Err(contradiction("nobody gets through any more")),
        }
    }

    fn heard(&self, device: u32) -> u64 {
        let cell = self.shared.last_ns.get(device as usize);
        cell.map_or(0, |last| last.load(Ordering::Relaxed))
    }

    fn wait(&self, since_ns: u64, or_else: &str, until: impl Fn() -> bool) -> Result<(), BenchError> {
        while !until() {
            if real_ns().saturating_sub(since_ns) > LIMIT_NS {
                return Err(contradiction(or_else));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn finish(self) -> Result<(), BenchError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let ended = thread.join().map_err(|_| contradiction("a thread panicked"))?;
            ended??;
        }
        Ok(())
    }
}

/// The device whose turn it is, and the others one by one.
fn send(socket: &PacketSocket, shared: &Shared, others: std::ops::Range<u32>) -> Result<(), BenchError> {
    let to = Endpoint {
        mac: GATEWAY.mac.0,
        ..SERVICE.endpoint(Family::V4, PORT)
    };
    let mut batch = TxBatch::new(2);
    for other in others.cycle() {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        for device in [shared.device.load(Ordering::Relaxed), other] {
            let from = DeviceAddress::new(device).endpoint(Family::V4, DATA_PORT);
            let payload = device.to_be_bytes();
            batch.push_with(|out| write::udp(out, &from, &to, [0; 2], &payload));
        }
        socket.send(&mut batch).map_err(contradiction)?;
        std::thread::sleep(EVERY);
    }
    Ok(())
}

fn listen(shared: &Shared) -> Result<(), BenchError> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).map_err(io("the service's socket"))?;
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .map_err(io("the service's socket"))?;
    let mut payload = [0u8; 4];
    while !shared.stop.load(Ordering::Relaxed) {
        // Nothing in time, or an error about nothing that was sent.
        if socket.recv(&mut payload).is_err() {
            continue;
        }
        if let Some(last) = shared.last_ns.get(u32::from_be_bytes(payload) as usize) {
            last.store(real_ns(), Ordering::Relaxed);
        }
    }
    Ok(())
}
