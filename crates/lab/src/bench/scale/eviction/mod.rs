//! Who is evicted when every place is taken, policy by policy, in the real gateway.
//!
//! For each policy and trace a gateway starts with empty places over a registry in a file: the node, the store and the
//! verifier of the `host` data plane, a controller, and devices that speak LAP/1 (`gateway`). Only the network between
//! them and the clock are not real. A hit is an authentication that the packet path answered alone, by its verdicts.

mod gateway;
mod plane;
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

/// Of all devices one in so many has a place.
const PLACES_PART: u32 = 10;
/// Of all accesses the first one in so many fill the places and are not counted.
const WARM_PART: usize = 5;

/// Hit rates of every policy on every trace, and of the gateway's own over LRU's.
///
/// # Errors
/// The registry's, or a device that was not served.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io("starting a runtime"))?;
    let directory = tempfile::tempdir().map_err(io("making a directory"))?;
    let path = directory.path().join("fleet.registry");
    let key = MasterKey::from_bytes([0x42; 32]);
    let fleet = (0..size.eviction_devices).map(record);
    let registry = runtime.block_on(async {
        let registry = Registry::create(&path, &key).await?;
        registry.enrol_bulk(fleet, BulkOptions::default(), |_| {}).await?;
        Ok::<_, BenchError>(registry)
    })?;
    let places = size.eviction_devices / PLACES_PART;
    let mut total = Outcome::default();
    let mut gateways = 1..;
    for trace in Trace::ALL {
        let accesses = trace.accesses(size.eviction_devices, places, size.eviction_accesses);
        let mut rates = Vec::new();
        for (eviction, id) in Eviction::ALL.into_iter().zip(gateways.by_ref()) {
            let step = format!("eviction: {} on {}", eviction.name(), trace.name());
            let gateway = Gateway::start(&runtime, &registry, GatewayId(id), places, eviction)?;
            let outcome = play(gateway, &accesses, &mut |done| {
                progress(&step, Some((done, accesses.len() as u64)));
            })?;
            let rate = outcome.hits as f64 / outcome.accesses.max(1) as f64;
            let name = format!("eviction.hit_rate.{}.{}", trace.name(), eviction.name());
            rows.push(Row::higher(name, rate, "share", None));
            rates.push((eviction, rate));
            total.add(&outcome);
        }
        let rate_of = |wanted| rates.iter().find(|(eviction, _)| *eviction == wanted);
        if let (Some(bar), Some((_, own)), Some((_, lru))) =
            (trace.bar(), rate_of(Eviction::default()), rate_of(Eviction::Lru))
        {
            let name = format!("eviction.hit_rate_over_lru.{}", trace.name());
            rows.push(Row::higher(name, own / lru, "ratio", bar));
        }
    }
    let share = total.unanswered as f64 / total.accesses.max(1) as f64;
    rows.push(Row::fact("eviction.unanswered", share, "share"));
    Ok(())
}

/// The traces, as rows name them.
pub(super) fn trace_names() -> [&'static str; 4] {
    Trace::ALL.map(Trace::name)
}

/// What a trace did, its beginning left out.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    accesses: u64,
    hits: u64,
    /// Accesses whose device gave up, or began again first.
    unanswered: u64,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.hits += other.hits;
        self.unanswered += other.unanswered;
    }
}

fn play(
    mut gateway: Gateway<'_>,
    accesses: &[u32],
    progress: &mut dyn FnMut(u64),
) -> Result<Outcome, BenchError> {
    const TOLD_EVERY: usize = 1000;
    let warm = accesses.len() / WARM_PART;
    let mut before = Outcome::default();
    for (at, device) in accesses.iter().enumerate() {
        if at == warm {
            before = gateway.outcome;
        }
        if at % TOLD_EVERY == 0 {
            progress(at as u64);
        }
        gateway.access(*device)?;
    }
    let after = gateway.outcome;
    Ok(Outcome {
        accesses: after.accesses - before.accesses,
        hits: after.hits - before.hits,
        unanswered: after.unanswered - before.unanswered,
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
