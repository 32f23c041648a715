//! How everything stands, in one look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
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
/// How long they are shown while they are made anew; older ones are waited for.
const COUNTS_AT_MOST_FOR: Duration = Duration::from_secs(10);

/// Devices by how they stand.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Devices {
    /// Of when these counts are, but for `authenticated`, which is as old as what gateways tell: 10 s ago at most, and as long as it
    /// took to count.
    as_of_s: u64,
    total: u64,
    active: u64,
    revoked: u64,
    quarantined: u64,
    /// That were silent when they were asked last; without those that are in quarantine for it.
    silent: u64,
    /// That are to be attested and were asked since they were enrolled, and have proven nothing since.
    never_proved: u64,
    /// That are to be attested and were not asked since they were enrolled.
    never_asked: u64,
    /// With a session at a gateway that was heard lately.
    authenticated: Option<u64>,
}

/// Gateways by how they stand.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Gateways {
    connected: usize,
    silent: usize,
    total: usize,
}

/// Everything.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    now_s: u64,
    /// Of when what gateways tell is: rate, latency, verdicts and `authenticated` rest on nothing older. Now if none tells anything.
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
    /// Frames by verdict, of these gateways since their starts; `other` as a gateway's.
    verdicts: BTreeMap<String, u64>,
    /// Null where the database does not answer: it has those that were not heard.
    gateways: Option<Gateways>,
}

/// Counts that are good for a while.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    at: Instant,
    at_s: u64,
    total: u64,
    revoked: u64,
    quarantined: u64,
    pub(crate) silent: u64,
    pub(crate) never_proved: u64,
    pub(crate) never_asked: u64,
}

/// The counts of a moment ago.
#[derive(Default)]
pub(crate) struct LastCounted {
    last: StdMutex<Option<Counted>>,
    /// Held by whoever counts.
    counting: Arc<Mutex<()>>,
}

impl LastCounted {
    fn within(&self, age: Duration) -> Option<Counted> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|counted| counted.at.elapsed() < age)
    }
}

/// The counts of now, or of a moment ago: then they are made anew, and who asks does not wait for that.
pub(crate) async fn counts(app: &App) -> Result<Counted> {
    if let Some(counted) = app.counted.within(COUNTS_FOR) {
        return Ok(counted);
    }
    if let Some(counted) = app.counted.within(COUNTS_AT_MOST_FOR) {
        if let Ok(place) = Arc::clone(&app.counted.counting).try_lock_owned() {
            let app = app.clone();
            tokio::spawn(async move {
                let _place = place;
                if let Err(error) = count(&app).await {
                    tracing::debug!(error = error.message(), "devices were not counted");
                }
            });
        }
        return Ok(counted);
    }
    let _place = app.counted.counting.lock().await;
    match app.counted.within(COUNTS_FOR) {
        // Who had the place before has counted.
        Some(counted) => Ok(counted),
        None => count(app).await,
    }
}

async fn count(app: &App) -> Result<Counted> {
    let of = |active: Option<bool>, quarantined: bool| Filter {
        active,
        quarantined,
        ..Filter::default()
    };
    let (at, at_s) = (Instant::now(), now_s());
    let counted = Counted {
        at,
        at_s,
        total: app.registry.count(&of(None, false)).await?,
        revoked: app.registry.count(&of(Some(false), false)).await?,
        quarantined: app.registry.count(&of(None, true)).await?,
        silent: app.registry.count_standing(Some(State::Silent)).await?,
        never_proved: app.registry.count_standing(Some(State::Unproven)).await?,
        never_asked: app.registry.count_standing(None).await?,
    };
    *app.counted.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(counted);
    Ok(counted)
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
        gateways: None,
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
    let oldest_s = connected.iter().filter_map(|gateway| gateway.numbers_age_s).max();
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
        never_proved,
        never_asked,
        ..
    } = counted;
    Status {
        as_of_s: now_s.saturating_sub(oldest_s.unwrap_or_default()),
        database: "ok",
        devices: Some(Devices {
            as_of_s: at_s,
            total,
            active: total.saturating_sub(revoked).saturating_sub(quarantined),
            revoked,
            quarantined,
            silent,
            never_proved,
            never_asked,
            authenticated: sessions.filter(|_| !connected.is_empty()),
        }),
        authentications_per_s: rate.filter(|_| !connected.is_empty()),
        latency_us: Latency::worst(connected.iter().filter_map(|gateway| gateway.latency_us.clone())),
        gateways: Some(Gateways {
            connected: connected.len(),
            silent: gateways
                .iter()
                .filter(|gateway| gateway.state == "silent")
                .count(),
            total: gateways
                .iter()
                .filter(|gateway| gateway.state != "retired")
                .count(),
        }),
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
