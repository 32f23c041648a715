//! Time from the revocation command to the device's last packet that the gate forwards.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use linewarden_dataplane::Gate;
use linewarden_protocol::frame::write::{self, Endpoint};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::setup::{GatewaySetup, authenticate, invalid_measurement};
use crate::address::{DeviceAddress, Family, GATEWAY, SERVICE};
use crate::bench::scale::{Progress, Size};
use crate::bench::{BenchError, Row, io};
use crate::clock::real_ns;
use crate::fleet::{DATA_PORT, FleetSpec, device_id};
use crate::netns::NetNsError;
use crate::packet_socket::{Options, PacketSocket, TxBatch};

/// The service's port.
const PORT: u16 = 7007;
/// Interval between two datagrams of the device that is revoked.
const SEND_INTERVAL: Duration = Duration::from_micros(200);
/// Devices that also send and are not revoked.
const OTHER_DEVICES: u32 = 8;
/// Time without a datagram after which the device counts as blocked.
const BLOCKED_AFTER_NS: u64 = 100_000_000;
/// Time after which a device that is still forwarded fails the benchmark.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// Target of the 99th percentile, ms.
const TARGET_MS: f64 = 100.0;

/// Revokes one device after another at times independent of the gateway's polling, while the device and others send through
/// the bound gate.
///
/// # Errors
/// A device was not served, or was still forwarded after its revocation.
pub(super) fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let count = size.revocations;
    let spec = FleetSpec::new(count + OTHER_DEVICES, 13);
    let (setup, [members]) = GatewaySetup::start([&spec], Gate::Bound)?;
    let mut fleet = setup.fleet(members, 0)?;
    authenticate(&mut fleet, 16)?;
    let traffic = Traffic::start(&setup, count)?;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut blocked_ms, mut command_ms) = (Vec::new(), Vec::new());
    for device in 0..count {
        progress("revoking", Some((device.into(), count.into())));
        traffic.send_from(device)?;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..50_000)));
        let start_ns = real_ns();
        setup
            .runtime
            .block_on(setup.registry.revoke(device_id(device), "bench", 0))?;
        let committed_ns = real_ns();
        let last_ns = traffic.wait_until_blocked(device, committed_ns)?;
        blocked_ms.push(last_ns.saturating_sub(start_ns) as f64 / 1e6);
        command_ms.push((committed_ns - start_ns) as f64 / 1e6);
    }
    traffic.finish()?;
    rows.extend([
        Row::lower("revoke.p50_ms", quantile(&mut blocked_ms, 0.5), "ms", None),
        Row::lower(
            "revoke.p99_ms",
            quantile(&mut blocked_ms, 0.99),
            "ms",
            Some(TARGET_MS),
        ),
        Row::fact("revoke.command_ms.p50", quantile(&mut command_ms, 0.5), "ms"),
    ]);
    Ok(())
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() as f64 * quantile).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// State that sender and service share.
struct Shared {
    stop: AtomicBool,
    /// The device that is revoked next.
    device: AtomicU32,
    /// Arrival of each device's latest datagram, real-time clock, ns; 0: none.
    last_ns: Vec<AtomicU64>,
}

type Thread = std::thread::JoinHandle<Result<Result<(), BenchError>, NetNsError>>;

/// Datagrams of the device that is revoked next and of other devices.
struct Traffic {
    shared: Arc<Shared>,
    other_devices: std::ops::Range<u32>,
    threads: [Thread; 2],
}

impl Traffic {
    fn start(setup: &GatewaySetup, count: u32) -> Result<Self, BenchError> {
        let other_devices = count..count + OTHER_DEVICES;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            device: AtomicU32::new(0),
            last_ns: (0..other_devices.end).map(|_| AtomicU64::new(0)).collect(),
        });
        let socket = PacketSocket::open(&setup.lab.devices, &setup.lab.devices_end, &Options::default())
            .map_err(invalid_measurement)?;
        let (sender_state, service_state, range) =
            (Arc::clone(&shared), Arc::clone(&shared), other_devices.clone());
        let service = setup
            .lab
            .service
            .spawn("service", move || receive(&service_state))?;
        let sender = setup
            .lab
            .devices
            .spawn("traffic", move || send(&socket, &sender_state, range))?;
        Ok(Self {
            shared,
            other_devices,
            threads: [service, sender],
        })
    }

    /// Waits until the gate forwards the device's datagrams.
    fn send_from(&self, device: u32) -> Result<(), BenchError> {
        self.shared.device.store(device, Ordering::Relaxed);
        self.wait(
            real_ns(),
            "the gate forwards no datagram of an authenticated device",
            || self.last_arrival_ns(device) > 0,
        )
    }

    /// Waits until no more datagrams of the device arrive; returns the arrival time of the last datagram.
    fn wait_until_blocked(&self, device: u32, committed_ns: u64) -> Result<u64, BenchError> {
        self.wait(
            committed_ns,
            "the gate still forwards datagrams of a revoked device",
            || {
                let last_ns = self.last_arrival_ns(device).max(committed_ns);
                real_ns().saturating_sub(last_ns) > BLOCKED_AFTER_NS
            },
        )?;
        // Datagrams of other devices show that the gate, not the network, blocked the device.
        let others_ns = self
            .other_devices
            .clone()
            .map(|other| self.last_arrival_ns(other))
            .max();
        match others_ns.unwrap_or(0) > committed_ns + BLOCKED_AFTER_NS / 2 {
            true => Ok(self.last_arrival_ns(device)),
            false => Err(invalid_measurement("the gate no longer forwards any device")),
        }
    }

    fn last_arrival_ns(&self, device: u32) -> u64 {
        let cell = self.shared.last_ns.get(device as usize);
        cell.map_or(0, |last| last.load(Ordering::Relaxed))
    }

    fn wait(&self, since_ns: u64, failure: &str, is_reached: impl Fn() -> bool) -> Result<(), BenchError> {
        while !is_reached() {
            if real_ns().saturating_sub(since_ns) > TIMEOUT_NS {
                return Err(invalid_measurement(failure));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn finish(self) -> Result<(), BenchError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let result = thread
                .join()
                .map_err(|_| invalid_measurement("a traffic thread panicked"))?;
            result??;
        }
        Ok(())
    }
}

/// Sends datagrams of the device that is revoked next and of the other devices in turn.
fn send(
    socket: &PacketSocket,
    shared: &Shared,
    other_devices: std::ops::Range<u32>,
) -> Result<(), BenchError> {
    let to = Endpoint {
        mac: GATEWAY.mac.0,
        ..SERVICE.endpoint(Family::V4, PORT)
    };
    let mut batch = TxBatch::new(2);
    for other in other_devices.cycle() {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        for device in [shared.device.load(Ordering::Relaxed), other] {
            let from = DeviceAddress::new(device).endpoint(Family::V4, DATA_PORT);
            let payload = device.to_be_bytes();
            batch.push_with(|out| write::udp(out, &from, &to, [0; 2], &payload));
        }
        socket.send(&mut batch).map_err(invalid_measurement)?;
        std::thread::sleep(SEND_INTERVAL);
    }
    Ok(())
}

fn receive(shared: &Shared) -> Result<(), BenchError> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).map_err(io("open the service socket"))?;
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .map_err(io("open the service socket"))?;
    let mut payload = [0u8; 4];
    while !shared.stop.load(Ordering::Relaxed) {
        // The receive timed out, or an ICMP error arrived.
        if socket.recv(&mut payload).is_err() {
            continue;
        }
        if let Some(last) = shared.last_ns.get(u32::from_be_bytes(payload) as usize) {
            last.store(real_ns(), Ordering::Relaxed);
        }
    }
    Ok(())
}
