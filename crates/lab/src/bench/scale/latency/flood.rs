//! Honest devices while an attacker sends as fast as one processor can, from ever new forged addresses (LAP/1 1.4.5).
//!
//! Half of the honest devices are in the data plane already, the other half are new to the gateway and need the slow path.
//! The attacker knows the ids of all of them, and the current fresh value, as anybody does who asks.

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

use super::site::{CLIENT_CPU, LIMIT, Site, authenticate, contradiction, on_cpu};
use crate::address::{Family, GATEWAY};
use crate::attackers::flood::anywhere;
use crate::bench::scale::{Progress, Size};
use crate::bench::{BenchError, Row, io, keys};
use crate::fleet::{Fleet, FleetSpec, Run, device_id};
use crate::napi::pin_task;
use crate::packet_socket::{Options, PacketSocket, TxBatch};

/// Frames handed to the kernel at once.
const BATCH: usize = 64;
/// Honest handshakes under way at once.
const WINDOW: usize = 16;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// REQUESTs in the names of devices that are in the data plane.
    Requests,
    /// RESPONSEs for the first rows of those and of the newcomers, with the accepted fresh value and random tags.
    Responses,
    /// REQUESTs in random names.
    UnknownIds,
    /// REQUESTs in the names of devices that are enrolled and nowhere: the slow path must ask about each.
    AbsentIds,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Requests, Self::Responses, Self::UnknownIds, Self::AbsentIds];

    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Responses => "responses",
            Self::UnknownIds => "unknown_ids",
            Self::AbsentIds => "absent_ids",
        }
    }

    /// The last kind has no bar: nothing tells an honest newcomer from a forged one then (ADR 16).
    fn bar(self) -> Option<f64> {
        (self != Self::AbsentIds).then_some(1.0)
    }
}

/// Each kind in turn, for as long as the honest devices take.
///
/// # Errors
/// Those of the lab, the data plane and the registry.
pub(super) fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let each = size.flood_devices;
    let held = FleetSpec {
        bound: false,
        rows: 40,
        ..FleetSpec::new(each, 17)
    };
    // A group for each kind.
    let newcomers: [FleetSpec; 4] = std::array::from_fn(|group| FleetSpec {
        first_index: each * (group as u32 + 1),
        ..held.clone()
    });
    let absent = FleetSpec {
        first_index: each * 5,
        rows: 2,
        ..FleetSpec::new(each * 10, 18)
    };
    let [one, two, three, four] = &newcomers;
    let (site, members) = Site::start([&held, one, two, three, four, &absent], Gate::Off)?;
    let [members, one, two, three, four, _] = members;
    let mut held = site.fleet(members, 0)?;
    authenticate(&mut held, WINDOW)?;
    let groups = [one, two, three, four].into_iter().enumerate();
    let (mut spent, mut expected) = (0, 0);
    for ((group, members), kind) in groups.zip(Kind::ALL) {
        progress(&format!("honest devices in a flood of {}", kind.name()), None);
        let first = each * (group as u32 + 1);
        let mut new = site.fleet(members, first)?;
        held.power_cycle();
        let before = site.next_rows(0..each * 5)?;
        let names = Names {
            held: 0..each,
            new: first..first + each,
            absent: each * 5..each * 15,
        };
        let flood = Flood::start(&site, kind, names)?;
        let shares = [honest(&mut held, each)?, honest(&mut new, each)?];
        let per_s = flood.finish()?;
        let [share_held, share_new] = shares.map(|(share, _)| share);
        expected += shares.iter().map(|(_, authenticated)| authenticated).sum::<u64>();
        site.settle_down()?;
        let after = site.next_rows(0..each * 5)?;
        spent += after
            .iter()
            .zip(before)
            .map(|(after, before)| u64::from(after - before))
            .sum::<u64>();
        let share = (share_held + share_new) / 2.0;
        rows.extend([
            Row::higher(
                format!("flood.honest_success.{}", kind.name()),
                share,
                "share",
                kind.bar(),
            ),
            Row::fact(format!("flood.newcomers.{}", kind.name()), share_new, "share"),
            Row::fact(format!("flood.frames_per_s.{}", kind.name()), per_s, "1/s"),
        ]);
    }
    let spent_by_others = spent as f64 - expected as f64;
    rows.push(Row::lower("flood.rows_spent", spent_by_others, "rows", Some(0.0)));
    Ok(())
}

/// The share of devices whose first handshake ended with a session, which is within its 8 REQUESTs (LAP/1 1.5); and how many
/// sessions that are. Further handshakes would change neither, and newcomers in a flood of absent ids may never get in.
fn honest(fleet: &mut Fleet, devices: u32) -> Result<(f64, u64), BenchError> {
    let stop = AtomicBool::new(false);
    let report = on_cpu(CLIENT_CPU, || {
        fleet.authenticate_once(&mut Run {
            window: WINDOW,
            limit: LIMIT,
            stop: &stop,
            progress: &mut |_| {},
        })
    })?
    .map_err(contradiction)?;
    let share = report.authenticated as f64 / f64::from(devices);
    Ok((share, report.authenticated))
}

/// Whose names the attacker uses, by index.
#[derive(Clone)]
struct Names {
    held: std::ops::Range<u32>,
    new: std::ops::Range<u32>,
    absent: std::ops::Range<u32>,
}

struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    began: Instant,
    thread: std::thread::JoinHandle<Result<Result<(), BenchError>, crate::netns::NetNsError>>,
}

impl Flood {
    fn start(site: &Site, kind: Kind, names: Names) -> Result<Self, BenchError> {
        let socket = PacketSocket::open(
            &site.lab.devices,
            &site.lab.devices_end,
            &Options {
                bypass_qdisc: true,
                ..Options::default()
            },
        )
        .map_err(contradiction)?;
        let fresh = site.fresh()?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = site.lab.devices.spawn("flood", move || {
            pin_task(0, CLIENT_CPU).map_err(io("pinning a thread"))?;
            pour(&socket, kind, &names, fresh, &until, &count)
        })?;
        // At full rate before anybody honest begins.
        while sent.load(Ordering::Relaxed) < 10_000 && !thread.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self {
            stop,
            sent,
            began: Instant::now(),
            thread,
        })
    }

    /// Frames a second.
    fn finish(self) -> Result<f64, BenchError> {
        let sent = self.sent.load(Ordering::Relaxed);
        let per_s = sent as f64 / self.began.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| contradiction("a thread panicked"))???;
        Ok(per_s)
    }
}

fn pour(
    socket: &PacketSocket,
    kind: Kind,
    names: &Names,
    fresh: [u8; 8],
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> Result<(), BenchError> {
    let mut rng = ChaCha20Rng::seed_from_u64(kind as u64);
    let to = GATEWAY.endpoint(Family::V4, LAP_PORT);
    let mut batch = TxBatch::new(BATCH);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let from = anywhere(&mut rng);
            let message = forged(&mut rng, kind, names, fresh);
            batch.push_with(|out| write::udp(out, &from, &to, [0; 2], &message));
        }
        let taken = socket.send(&mut batch).map_err(contradiction)?;
        sent.fetch_add(taken as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn forged(rng: &mut ChaCha20Rng, kind: Kind, names: &Names, fresh: [u8; 8]) -> [u8; 64] {
    let mut message = [0; 64];
    let mut nonce = [0; 16];
    rng.fill_bytes(&mut nonce);
    let device = match kind {
        Kind::Requests => device_id(rng.random_range(names.held.clone())),
        Kind::UnknownIds => DeviceId(rng.next_u64() | 1 << 63),
        Kind::AbsentIds => device_id(rng.random_range(names.absent.clone())),
        Kind::Responses if rng.random_bool(0.5) => device_id(rng.random_range(names.held.clone())),
        Kind::Responses => device_id(rng.random_range(names.new.clone())),
    };
    if kind != Kind::Responses {
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
