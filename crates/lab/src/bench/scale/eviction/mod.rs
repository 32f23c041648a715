//! The eviction policies of the gateway when its memory is full.
//!
//! For each policy and trace an empty gateway starts with a registry in a file: the gateway process, the store and the
//! verifier of the `host` data plane, a controller, and LAP/1 devices (`gateway`). Only the clock and
//! the network between devices and gateway are simulated. A hit is an authentication that, by its verdicts, the fast path
//! handled alone.

mod data_plane;
mod gateway;
mod trace;

use linewarden_gateway::Eviction;
use linewarden_protocol::ids::{DeviceId, GatewayId, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{BulkOptions, Credentials, DeviceRecord, MasterKey, Registry};

use self::gateway::Gateway;
use self::trace::Trace;
use super::{Progress, Size};
use crate::bench::{BenchError, Row, io};
use crate::fleet::device_id;

/// Devices per slot of the gateway.
const DEVICES_PER_SLOT: u32 = 10;
/// The first fifth of the accesses warms up the gateway and is not counted.
const WARM_UP_DIVISOR: usize = 5;

/// Measures the hit rate of every policy on every trace, and the ratio of the gateway's default policy to LRU.
///
/// # Errors
/// An error of the registry or the gateway.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io("start the async runtime"))?;
    let directory = tempfile::tempdir().map_err(io("create a directory"))?;
    let path = directory.path().join("fleet.registry");
    let key = MasterKey::from_bytes([0x42; 32]);
    let fleet = (0..size.eviction_devices).map(record);
    let registry = runtime.block_on(async {
        let registry = Registry::create(&path, &key).await?;
        registry
            .enroll_bulk(fleet, BulkOptions::default(), |_| {})
            .await?;
        Ok::<_, BenchError>(registry)
    })?;
    let slots = size.eviction_devices / DEVICES_PER_SLOT;
    let mut total = AccessCounts::default();
    let mut gateways = 1..;
    for trace in Trace::ALL {
        let accesses = trace.accesses(size.eviction_devices, slots, size.eviction_accesses);
        let mut rates = Vec::new();
        for (eviction, id) in Eviction::ALL.into_iter().zip(gateways.by_ref()) {
            let step = format!("eviction: {} on {}", eviction.name(), trace.name());
            let gateway = Gateway::start(&runtime, &registry, GatewayId(id), slots, eviction)?;
            let outcome = replay_trace(gateway, &accesses, &mut |done| {
                progress(&step, Some((done, accesses.len() as u64)));
            })?;
            let rate = outcome.hits as f64 / outcome.accesses.max(1) as f64;
            let name = format!("eviction.hit_rate.{}.{}", trace.name(), eviction.name());
            rows.push(Row::higher(name, rate, "share", None));
            rates.push((eviction, rate));
            total.add(&outcome);
        }
        let rate_of = |policy| rates.iter().find(|(eviction, _)| *eviction == policy);
        if let (Some(target), Some((_, default_rate)), Some((_, lru))) = (
            trace.target(),
            rate_of(Eviction::default()),
            rate_of(Eviction::Lru),
        ) {
            let name = format!("eviction.hit_rate_over_lru.{}", trace.name());
            rows.push(Row::higher(name, default_rate / lru, "ratio", target));
        }
    }
    let share = total.failed as f64 / total.accesses.max(1) as f64;
    rows.push(Row::fact("eviction.failed", share, "share"));
    Ok(())
}

/// The names of the traces in rows.
pub(super) fn trace_names() -> [&'static str; 4] {
    Trace::ALL.map(Trace::name)
}

/// Access counts of a trace without its warm-up.
#[derive(Clone, Copy, Debug, Default)]
struct AccessCounts {
    accesses: u64,
    hits: u64,
    /// Accesses without a session: the handshake failed, or the device started another handshake before the end of
    /// this handshake.
    failed: u64,
}

impl AccessCounts {
    fn add(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.hits += other.hits;
        self.failed += other.failed;
    }
}

fn replay_trace(
    mut gateway: Gateway<'_>,
    accesses: &[u32],
    progress: &mut dyn FnMut(u64),
) -> Result<AccessCounts, BenchError> {
    const PROGRESS_INTERVAL: usize = 1000;
    let warm_up_len = accesses.len() / WARM_UP_DIVISOR;
    let mut before = AccessCounts::default();
    for (position, device) in accesses.iter().enumerate() {
        if position == warm_up_len {
            before = gateway.counts;
        }
        if position % PROGRESS_INTERVAL == 0 {
            progress(position as u64);
        }
        gateway.access(*device)?;
    }
    let after = gateway.counts;
    Ok(AccessCounts {
        accesses: after.accesses - before.accesses,
        hits: after.hits - before.hits,
        failed: after.failed - before.failed,
    })
}

fn row_key(device: DeviceId) -> RowKey {
    let mut key = *b"........of a key";
    key[..8].copy_from_slice(&device.0.to_be_bytes());
    RowKey::from_bytes(key)
}

/// Key mode: no device runs out of rows.
fn record(device: u32) -> DeviceRecord {
    let device = device_id(device);
    DeviceRecord {
        device,
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: "seeded generator".to_owned(),
        credentials: Credentials::Key(row_key(device)),
    }
}
