//! The status of the fleet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract;
use linewarden_api::Latency;
use linewarden_registry::{AttestationState, DeviceFilter};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::gateways;
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::Result;
use crate::extract::Json;
use crate::state::App;
use crate::stream::StreamEvent;

/// Age from which on device counts are computed again. Counting a million devices takes long.
const COUNTS_REFRESH_AGE: Duration = Duration::from_secs(5);
/// Maximum age of counts that are returned while new counts are computed. Requests wait if the counts are older.
const COUNTS_AGE_MAX: Duration = Duration::from_secs(10);

/// Device counts by state.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Devices {
    /// Time of these counts, except `authenticated`, which is from the gateways' reports.
    as_of_s: u64,
    total: u64,
    active: u64,
    revoked: u64,
    quarantined: u64,
    /// Devices that missed the last round, without devices in quarantine.
    missed: u64,
    /// Devices with at least one round but without a valid proof since their enrollment for attestation.
    unproven: u64,
    /// Devices without a round since their enrollment for attestation.
    awaiting_first_round: u64,
    /// Devices with a session at a connected gateway.
    authenticated: Option<u64>,
}

/// Gateway counts by state.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Gateways {
    connected: usize,
    disconnected: usize,
    total: usize,
}

/// The status.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    now_s: u64,
    /// Time of the oldest status report among the connected gateways; the current time without reports. Rate, latency,
    /// verdicts and `authenticated` are from these reports.
    as_of_s: u64,
    controller: String,
    version: &'static str,
    /// ok or unavailable
    database: &'static str,
    devices: Option<Devices>,
    /// Accepted RESPONSEs per second at all connected gateways; null without connected gateways, or if a connected
    /// gateway has not reported its rate.
    authentications_per_s: Option<f64>,
    /// Authentication latency in the data planes: the maximum of the connected gateways.
    latency_us: Option<Latency>,
    /// Frames by verdict, at the connected gateways since their starts; `other` as in Gateway.
    verdicts: BTreeMap<String, u64>,
    /// Null if the database is unavailable.
    gateways: Option<Gateways>,
}

/// Cached device counts.
#[derive(Clone, Copy)]
pub(crate) struct DeviceCounts {
    /// Start of counting, by the monotonic clock.
    started_at: Instant,
    /// Start of counting, seconds since 1970-01-01 UTC.
    at_s: u64,
    total: u64,
    revoked: u64,
    quarantined: u64,
    pub(crate) missed: u64,
    pub(crate) unproven: u64,
    pub(crate) awaiting_first_round: u64,
}

/// A cache of the device counts.
#[derive(Default)]
pub(crate) struct DeviceCountsCache {
    latest: StdMutex<Option<DeviceCounts>>,
    /// Locked by the task that is counting.
    counting_lock: Arc<Mutex<()>>,
}

impl DeviceCountsCache {
    /// The cached counts if they are younger than `age`.
    fn younger_than(&self, age: Duration) -> Option<DeviceCounts> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.filter(|device_counts| device_counts.started_at.elapsed() < age)
    }
}

/// The device counts. Cached counts between [`COUNTS_REFRESH_AGE`] and [`COUNTS_AGE_MAX`] are returned, and new counts are
/// computed in the background.
pub(crate) async fn counts(app: &App) -> Result<DeviceCounts> {
    if let Some(device_counts) = app.device_counts.younger_than(COUNTS_REFRESH_AGE) {
        return Ok(device_counts);
    }
    if let Some(device_counts) = app.device_counts.younger_than(COUNTS_AGE_MAX) {
        if let Ok(guard) = Arc::clone(&app.device_counts.counting_lock).try_lock_owned() {
            let app = app.clone();
            tokio::spawn(async move {
                let _guard = guard;
                if let Err(error) = count(&app).await {
                    tracing::debug!(error = error.message(), "counting devices failed");
                }
            });
        }
        return Ok(device_counts);
    }
    let _guard = app.device_counts.counting_lock.lock().await;
    match app.device_counts.younger_than(COUNTS_REFRESH_AGE) {
        // The task that held the lock before has computed new counts.
        Some(device_counts) => Ok(device_counts),
        None => count(app).await,
    }
}

async fn count(app: &App) -> Result<DeviceCounts> {
    let filter = |active: Option<bool>, quarantined: bool| DeviceFilter {
        active,
        quarantined,
        ..DeviceFilter::default()
    };
    let (started_at, at_s) = (Instant::now(), now_s());
    let device_counts = DeviceCounts {
        started_at,
        at_s,
        total: app.registry.count(&filter(None, false)).await?,
        revoked: app.registry.count(&filter(Some(false), false)).await?,
        quarantined: app.registry.count(&filter(None, true)).await?,
        missed: app
            .registry
            .count_by_state(Some(AttestationState::Missed))
            .await?,
        unproven: app
            .registry
            .count_by_state(Some(AttestationState::Unproven))
            .await?,
        awaiting_first_round: app.registry.count_by_state(None).await?,
    };
    *app.device_counts
        .latest
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(device_counts);
    Ok(device_counts)
}

async fn current_status(app: &App) -> Status {
    let now_s = now_s();
    let mut status = Status {
        now_s,
        as_of_s: now_s,
        controller: app.name.to_string(),
        version: env!("CARGO_PKG_VERSION"),
        database: "unavailable",
        devices: None,
        authentications_per_s: None,
        latency_us: None,
        verdicts: BTreeMap::new(),
        gateways: None,
    };
    let (Ok(gateways), Ok(device_counts)) = (gateways::list_all(app).await, counts(app).await) else {
        return status;
    };
    let gateways = gateways.items;
    let connected_gateways: Vec<_> = gateways
        .iter()
        .filter(|gateway| gateway.state == "connected")
        .collect();
    for gateway in &connected_gateways {
        for (verdict, count) in gateway.verdicts.iter().flatten() {
            let sum = status.verdicts.entry(verdict.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    let oldest_s = connected_gateways
        .iter()
        .filter_map(|gateway| gateway.report_age_s)
        .max();
    // A sum is `None` if a connected gateway has not reported the value.
    let sessions: Option<u64> = connected_gateways.iter().map(|gateway| gateway.sessions).sum();
    let rate: Option<f64> = connected_gateways
        .iter()
        .map(|gateway| gateway.authentications_per_s)
        .sum();
    let DeviceCounts {
        at_s,
        total,
        revoked,
        quarantined,
        missed,
        unproven,
        awaiting_first_round,
        ..
    } = device_counts;
    Status {
        as_of_s: now_s.saturating_sub(oldest_s.unwrap_or_default()),
        database: "ok",
        devices: Some(Devices {
            as_of_s: at_s,
            total,
            active: total.saturating_sub(revoked).saturating_sub(quarantined),
            revoked,
            quarantined,
            missed,
            unproven,
            awaiting_first_round,
            authenticated: sessions.filter(|_| !connected_gateways.is_empty()),
        }),
        authentications_per_s: rate.filter(|_| !connected_gateways.is_empty()),
        latency_us: gateways::worst_latency(
            connected_gateways
                .iter()
                .filter_map(|gateway| gateway.latency_us.clone()),
        ),
        gateways: Some(Gateways {
            connected: connected_gateways.len(),
            disconnected: gateways
                .iter()
                .filter(|gateway| gateway.state == "disconnected")
                .count(),
            total: gateways
                .iter()
                .filter(|gateway| gateway.state != "revoked")
                .count(),
        }),
        ..status
    }
}

/// Returns the status of the fleet.
#[utoipa::path(get, path = "/api/v1/status", responses((status = 200, body = Status)))]
pub(crate) async fn status(_: Viewer, extract::State(app): extract::State<App>) -> Json<Status> {
    Json(current_status(&app).await)
}

/// The status as an event of the event stream.
pub(crate) async fn status_event(app: &App) -> Option<StreamEvent> {
    let data = serde_json::to_string(&current_status(app).await).ok()?;
    Some(StreamEvent {
        number: None,
        kind: "status".into(),
        data: data.into(),
    })
}
