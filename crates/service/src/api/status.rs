//! How everything stands, in one look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::extract;
use linewarden_registry::{Filter, State};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::gateways::{self, Latency};
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::Result;
use crate::extract::Json;
use crate::state::App;
use crate::stream::Event;

/// How long counts of devices are good: to count a million takes a while.
const COUNTS_FOR: Duration = Duration::from_secs(5);

/// Devices by how they stand.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Devices {
    /// Of when these counts are, but for `authenticated`: a few seconds ago at most.
    as_of_s: u64,
    total: u64,
    active: u64,
    revoked: u64,
    quarantined: u64,
    /// That were silent when they were asked last; without those that are in quarantine for it.
    silent: u64,
    /// With a session at a gateway that was heard lately.
    authenticated: Option<u64>,
}

/// Gateways by how they stand.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Gateways {
    connected: usize,
    silent: usize,
    total: usize,
}

/// Everything.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    now_s: u64,
    /// Of when the numbers of gateways are.
    as_of_s: u64,
    controller: String,
    version: &'static str,
    /// ok or unavailable
    database: &'static str,
    devices: Option<Devices>,
    /// Accepted RESPONSEs a second at all gateways that were heard lately; null if there is none, or one that has not told it.
    authentications_per_s: Option<f64>,
    /// Of an authentication in the data planes; the worst of these gateways.
    latency_us: Option<Latency>,
    /// Frames by verdict, of these gateways since their starts.
    verdicts: BTreeMap<String, u64>,
    gateways: Gateways,
}

/// Counts that are good for a while.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    at: Instant,
    at_s: u64,
    total: u64,
    revoked: u64,
    quarantined: u64,
    silent: u64,
}

/// The counts of a moment ago; who asks meanwhile waits for whoever counts.
pub(crate) type LastCounted = Mutex<Option<Counted>>;

async fn counts(app: &App) -> Result<Counted> {
    let mut last = app.counted.lock().await;
    if let Some(counted) = last.as_ref()
        && counted.at.elapsed() < COUNTS_FOR
    {
        return Ok(*counted);
    }
    let of = |active: Option<bool>, quarantined: bool| Filter {
        active,
        quarantined,
        ..Filter::default()
    };
    let at_s = now_s();
    let total = app.registry.count(&of(None, false)).await?;
    let revoked = app.registry.count(&of(Some(false), false)).await?;
    let quarantined = app.registry.count(&of(None, true)).await?;
    let silent = app.registry.count_standing(State::Silent).await?;
    Ok(*last.insert(Counted {
        at: Instant::now(),
        at_s,
        total,
        revoked,
        quarantined,
        silent,
    }))
}

async fn look(app: &App) -> Status {
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
        gateways: Gateways::default(),
    };
    let (Ok(gateways), Ok(counted)) = (gateways::all(app).await, counts(app).await) else {
        return status;
    };
    let connected: Vec<_> = gateways
        .iter()
        .filter(|gateway| gateway.state == "connected")
        .collect();
    for gateway in &connected {
        for (verdict, count) in gateway.verdicts.iter().flatten() {
            let sum = status.verdicts.entry(verdict.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    // Of all of them, or nobody knows.
    let sessions: Option<u64> = connected.iter().map(|gateway| gateway.sessions).sum();
    let rate: Option<f64> = connected
        .iter()
        .map(|gateway| gateway.authentications_per_s)
        .sum();
    let Counted {
        at_s,
        total,
        revoked,
        quarantined,
        silent,
        ..
    } = counted;
    Status {
        database: "ok",
        devices: Some(Devices {
            as_of_s: at_s,
            total,
            active: total.saturating_sub(revoked).saturating_sub(quarantined),
            revoked,
            quarantined,
            silent,
            authenticated: sessions.filter(|_| !connected.is_empty()),
        }),
        authentications_per_s: rate.filter(|_| !connected.is_empty()),
        latency_us: Latency::worst(connected.iter().filter_map(|gateway| gateway.latency_us.clone())),
        gateways: Gateways {
            connected: connected.len(),
            silent: gateways
                .iter()
                .filter(|gateway| gateway.state == "silent")
                .count(),
            total: gateways
                .iter()
                .filter(|gateway| gateway.state != "retired")
                .count(),
        },
        ..status
    }
}

/// How everything stands.
#[utoipa::path(get, path = "/api/v1/status", responses((status = 200, body = Status)))]
pub(crate) async fn status(_: Viewer, extract::State(app): extract::State<App>) -> Json<Status> {
    Json(look(&app).await)
}

/// The same, for who listens.
pub(crate) async fn status_event(app: &App) -> Option<Event> {
    let data = serde_json::to_string(&look(app).await).ok()?;
    Some(Event {
        number: None,
        kind: "status".into(),
        data: data.into(),
    })
}
