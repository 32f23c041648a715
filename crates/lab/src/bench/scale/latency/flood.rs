//! Legitimate devices under a flood at the highest rate of one CPU, with a new forged address per frame (LAP/1 1.4.5).
//!
//! Half of the legitimate devices are in the data plane; the other half are new to the gateway and need the slow path. The
//! attacker has the ids of all devices and the current freshness value, which any station can request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linewarden_dataplane::Gate;
use linewarden_protocol::frame::write;
use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::wire::{self, LAP_PORT, message_type};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;
use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U32;

use super::setup::{CLIENT_CPU, GatewaySetup, TIMEOUT, authenticate, invalid_measurement, on_cpu};
use crate::address::{Family, GATEWAY};
use crate::attackers::flood::random_endpoint;
use crate::bench::scale::{Progress, Size};
use crate::bench::{BenchError, Row, io, keys};
use crate::fleet::{Fleet, FleetSpec, RunOptions, device_id};
use crate::napi::pin_task;
use crate::packet_socket::{Options, PacketSocket, TxBatch};

/// Frames per system call.
const BATCH: usize = 64;
/// Concurrent legitimate handshakes.
const WINDOW: usize = 16;

/// The kind of flood.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FloodKind {
    /// REQUESTs for devices that are in the data plane.
    Requests,
    /// RESPONSEs for the first rows of installed and new devices, with the accepted freshness value and random tags.
    Responses,
    /// REQUESTs for random device ids.
    UnknownIds,
    /// REQUESTs for enrolled devices that are not in the data plane: the slow path must query the controller for each device.
    AbsentIds,
}

impl FloodKind {
    const ALL: [Self; 4] = [Self::Requests, Self::Responses, Self::UnknownIds, Self::AbsentIds];

    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Responses => "responses",
            Self::UnknownIds => "unknown_ids",
            Self::AbsentIds => "absent_ids",
        }
    }

    /// Target share of successes. [`Self::AbsentIds`] has no target: the gateway cannot distinguish REQUESTs of new
    /// devices from forged REQUESTs (ADR 16).
    fn target(self) -> Option<f64> {
        (self != Self::AbsentIds).then_some(1.0)
    }
}

/// Runs each kind of flood while the legitimate devices authenticate.
///
/// # Errors
/// An error of the lab, the data plane or the registry.
pub(super) fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let group_size = size.flood_devices;
    let installed_spec = FleetSpec {
        mac_bound: false,
        rows: 40,
        ..FleetSpec::new(group_size, 17)
    };
    // A group for each kind.
    let newcomers: [FleetSpec; 4] = std::array::from_fn(|group| FleetSpec {
        first_index: group_size * (group as u32 + 1),
        ..installed_spec.clone()
    });
    let absent = FleetSpec {
        first_index: group_size * 5,
        rows: 2,
        ..FleetSpec::new(group_size * 10, 18)
    };
    let [one, two, three, four] = &newcomers;
    let (setup, members) = GatewaySetup::start([&installed_spec, one, two, three, four, &absent], Gate::Off)?;
    let [members, one, two, three, four, _] = members;
    let mut installed = setup.fleet(members, 0)?;
    authenticate(&mut installed, WINDOW)?;
    let groups = [one, two, three, four].into_iter().enumerate();
    let (mut spent, mut expected) = (0, 0);
    for ((group, members), kind) in groups.zip(FloodKind::ALL) {
        progress(
            &format!("legitimate devices under a flood of {}", kind.name()),
            None,
        );
        let first = group_size * (group as u32 + 1);
        let mut newcomer_fleet = setup.fleet(members, first)?;
        installed.power_cycle();
        let before = setup.next_rows(0..group_size * 5)?;
        let ranges = DeviceRanges {
            installed: 0..group_size,
            newcomers: first..first + group_size,
            absent: group_size * 5..group_size * 15,
        };
        let flood = Flood::start(&setup, kind, ranges)?;
        let shares = [
            measure_success(&mut installed, group_size)?,
            measure_success(&mut newcomer_fleet, group_size)?,
        ];
        let per_s = flood.finish()?;
        let [installed_share, newcomer_share] = shares.map(|(share, _)| share);
        expected += shares.iter().map(|(_, authenticated)| authenticated).sum::<u64>();
        setup.wait_for_rows()?;
        let after = setup.next_rows(0..group_size * 5)?;
        spent += after
            .iter()
            .zip(before)
            .map(|(after, before)| u64::from(after - before))
            .sum::<u64>();
        let share = (installed_share + newcomer_share) / 2.0;
        rows.extend([
            Row::higher(
                format!("flood.legitimate_success.{}", kind.name()),
                share,
                "share",
                kind.target(),
            ),
            Row::fact(
                format!("flood.newcomers.{}", kind.name()),
                newcomer_share,
                "share",
            ),
            Row::fact(format!("flood.frames_per_s.{}", kind.name()), per_s, "1/s"),
        ]);
    }
    let attacker_rows = spent as f64 - expected as f64;
    rows.push(Row::lower("flood.rows_spent", attacker_rows, "rows", Some(0.0)));
    Ok(())
}

/// The share of devices whose first handshake, within its 8 REQUESTs (LAP/1 1.5), ended with a session, and the number of these
/// sessions. New devices in a flood of absent ids may never get a session, so only the first handshake counts.
fn measure_success(fleet: &mut Fleet, devices: u32) -> Result<(f64, u64), BenchError> {
    let stop = AtomicBool::new(false);
    let report = on_cpu(CLIENT_CPU, || {
        fleet.authenticate_once(&mut RunOptions {
            window: WINDOW,
            timeout: TIMEOUT,
            stop: &stop,
            progress: &mut |_| {},
        })
    })?
    .map_err(invalid_measurement)?;
    let share = report.authenticated as f64 / f64::from(devices);
    Ok((share, report.authenticated))
}

/// The devices whose ids the attacker uses, by index.
#[derive(Clone)]
struct DeviceRanges {
    installed: std::ops::Range<u32>,
    newcomers: std::ops::Range<u32>,
    absent: std::ops::Range<u32>,
}

struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    start: Instant,
    thread: std::thread::JoinHandle<Result<Result<(), BenchError>, crate::netns::NetNsError>>,
}

impl Flood {
    fn start(setup: &GatewaySetup, kind: FloodKind, ranges: DeviceRanges) -> Result<Self, BenchError> {
        let socket = PacketSocket::open(
            &setup.lab.devices,
            &setup.lab.devices_end,
            &Options {
                bypass_qdisc: true,
                ..Options::default()
            },
        )
        .map_err(invalid_measurement)?;
        let fresh = setup.fresh()?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop_flag, sent_count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = setup.lab.devices.spawn("flood", move || {
            pin_task(0, CLIENT_CPU).map_err(io("pin a thread"))?;
            send_flood(&socket, kind, &ranges, fresh, &stop_flag, &sent_count)
        })?;
        // The flood has its full rate before legitimate devices start.
        while sent.load(Ordering::Relaxed) < 10_000 && !thread.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self {
            stop,
            sent,
            start: Instant::now(),
            thread,
        })
    }

    /// Stops the flood and returns its rate, frames/s.
    fn finish(self) -> Result<f64, BenchError> {
        let sent = self.sent.load(Ordering::Relaxed);
        let per_s = sent as f64 / self.start.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| invalid_measurement("the flood thread panicked"))???;
        Ok(per_s)
    }
}

fn send_flood(
    socket: &PacketSocket,
    kind: FloodKind,
    ranges: &DeviceRanges,
    fresh: [u8; 8],
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> Result<(), BenchError> {
    let mut rng = ChaCha20Rng::seed_from_u64(kind as u64);
    let to = GATEWAY.endpoint(Family::V4, LAP_PORT);
    let mut batch = TxBatch::new(BATCH);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let from = random_endpoint(&mut rng);
            let message = forged_message(&mut rng, kind, ranges, fresh);
            batch.push_with(|out| write::udp(out, &from, &to, [0; 2], &message));
        }
        let sent_frames = socket.send(&mut batch).map_err(invalid_measurement)?;
        sent.fetch_add(sent_frames as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn forged_message(rng: &mut ChaCha20Rng, kind: FloodKind, ranges: &DeviceRanges, fresh: [u8; 8]) -> [u8; 64] {
    let mut message = [0; 64];
    let mut nonce = [0; 16];
    rng.fill_bytes(&mut nonce);
    let device = match kind {
        FloodKind::Requests => device_id(rng.random_range(ranges.installed.clone())),
        FloodKind::UnknownIds => DeviceId(rng.next_u64() | 1 << 63),
        FloodKind::AbsentIds => device_id(rng.random_range(ranges.absent.clone())),
        FloodKind::Responses if rng.random_bool(0.5) => device_id(rng.random_range(ranges.installed.clone())),
        FloodKind::Responses => device_id(rng.random_range(ranges.newcomers.clone())),
    };
    if kind != FloodKind::Responses {
        let request = wire::Request {
            header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, device),
            nonce,
            reserved: [0; 32],
        };
        message.copy_from_slice(request.as_bytes());
        return message;
    }
    let mut tag = [0; 16];
    rng.fill_bytes(&mut tag);
    let response = wire::Response {
        header: wire::Header::new(message_type::RESPONSE, Suite::SipHash128, 0, device),
        nonce,
        idx: U32::new(rng.random_range(0..3)),
        gateway_id: U32::new(keys::GATEWAY_ID.0),
        fresh,
        tag,
    };
    message.copy_from_slice(response.as_bytes());
    message
}
