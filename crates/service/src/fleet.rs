//! State of all gateways. A gateway that is connected to this controller reports its state. For a gateway of another
//! controller, this controller reads the state that the other controller has recorded in the registry.

mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_controller::RequestObserver;
use linewarden_controller::trust::{TrustMemory, TrustReport};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{CLOCK_SKEW_MAX_MS, GatewayState, NewEvent, Registry, RegistryError, RoundRecord};
use linewarden_types::{RoundAppraisal, StatusReport};
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub(crate) use self::status::GatewayStatus;
use crate::api::round_from_record;
use crate::clock::now_ms;
use crate::link::GatewayObserver;
use crate::stream::{EventStream, StreamEvent};
use crate::trust::Trust;

/// A gateway counts as disconnected after this time without a message.
pub(crate) const DISCONNECTED_AFTER_MS: u64 = 10_000;
/// Interval between records of a gateway's state in the registry.
const RECORD_INTERVAL_MS: u64 = 2_000;

/// Maximum number of tasks that wait for the database; further tasks are dropped.
const QUEUED_TASKS_MAX: usize = 4_096;

/// The state of a gateway at its last message, with time and controller of this message.
#[derive(Clone, Debug)]
pub(crate) struct GatewaySnapshot {
    pub(crate) at_ms: u64,
    pub(crate) controller: String,
    pub(crate) status: GatewayStatus,
}

/// The time of a message; 0 if this time is after `now_ms` by more than the maximum clock skew. The clock of the recording
/// controller was then wrong.
pub(crate) fn seen_ms(now_ms: u64, at_ms: u64) -> u64 {
    match at_ms > now_ms.saturating_add(CLOCK_SKEW_MAX_MS) {
        true => 0,
        false => at_ms,
    }
}

/// The age of a message, ms.
pub(crate) fn age_ms(now_ms: u64, at_ms: u64) -> u64 {
    now_ms.saturating_sub(seen_ms(now_ms, at_ms))
}

/// A write for the registry: to the event log, or to a gateway's state.
enum Task {
    RecordEvent(NewEvent),
    RecordState(GatewayState),
}

/// State of all gateways.
pub(crate) struct Fleet {
    name: Arc<str>,
    /// Gateways that are or were connected to this controller.
    local: Mutex<HashMap<GatewayId, LocalGateway>>,
    /// The states that all controllers, including this controller, have recorded in the registry.
    remote: Mutex<HashMap<GatewayId, GatewaySnapshot>>,
    tasks: Sender<Task>,
    stream: Arc<EventStream>,
}

#[derive(Default)]
struct LocalGateway {
    /// Time of the last message.
    seen_ms: u64,
    /// Time of the last record in the registry.
    recorded_ms: u64,
    /// Whether the gateway has disconnected, and its current controller has reported or will report the disconnection.
    is_disconnection_handled: bool,
    /// The number of the last round that was appraised.
    last_round: Option<u32>,
    status: GatewayStatus,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even if a holder of the lock panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Creates an empty fleet. Appraised rounds are sent to `stream`.
    pub(crate) fn new(name: Arc<str>, stream: Arc<EventStream>) -> (Arc<Self>, FleetTasks) {
        let (tasks, inbox) = channel(QUEUED_TASKS_MAX);
        let fleet = Self {
            name,
            local: Mutex::default(),
            remote: Mutex::default(),
            tasks,
            stream,
        };
        (Arc::new(fleet), FleetTasks(inbox))
    }

    /// The latest known state of each gateway, from this or another controller.
    pub(crate) fn snapshots(&self) -> BTreeMap<GatewayId, GatewaySnapshot> {
        self.snapshots_at(now_ms())
    }

    fn snapshots_at(&self, now_ms: u64) -> BTreeMap<GatewayId, GatewaySnapshot> {
        let mut snapshots: BTreeMap<GatewayId, GatewaySnapshot> = lock(&self.remote)
            .iter()
            .map(|(gateway, snapshot)| (*gateway, snapshot.clone()))
            .collect();
        for (gateway, local) in lock(&self.local).iter() {
            let has_moved = snapshots
                .get(gateway)
                .is_some_and(|snapshot| seen_ms(now_ms, snapshot.at_ms) > seen_ms(now_ms, local.seen_ms));
            if !has_moved {
                snapshots.insert(
                    *gateway,
                    GatewaySnapshot {
                        at_ms: local.seen_ms,
                        controller: self.name.to_string(),
                        status: local.status.clone(),
                    },
                );
            }
        }
        snapshots
    }

    /// Reads the gateway states that all controllers have recorded.
    pub(crate) async fn read_remote(&self, registry: &Registry) -> Result<(), RegistryError> {
        *lock(&self.remote) = recorded_gateways(registry).await?.into_iter().collect();
        Ok(())
    }

    /// Records one event for each gateway of this controller that has disconnected since the last call.
    pub(crate) fn report_disconnected(&self) {
        self.report_disconnected_at(now_ms());
    }

    fn report_disconnected_at(&self, now_ms: u64) {
        let remote = lock(&self.remote);
        for (gateway, local) in lock(&self.local).iter_mut() {
            let is_disconnected = age_ms(now_ms, local.seen_ms) >= DISCONNECTED_AFTER_MS;
            if !is_disconnected || local.is_disconnection_handled {
                continue;
            }
            // If the gateway has moved to another controller, that controller reports a disconnection.
            let has_moved = remote
                .get(gateway)
                .is_some_and(|snapshot| seen_ms(now_ms, snapshot.at_ms) > seen_ms(now_ms, local.seen_ms));
            let detail = || format!("last seen by controller {}", self.name);
            // If the queue is full, the next call records the event.
            local.is_disconnection_handled =
                has_moved || self.record_event("gateway_disconnected", *gateway, detail());
        }
    }

    /// Queues an event about a gateway; returns whether the queue had room.
    fn record_event(&self, kind: &str, gateway: GatewayId, detail: String) -> bool {
        self.record_device_event(kind, gateway, None, detail)
    }

    fn record_device_event(
        &self,
        kind: &str,
        gateway: GatewayId,
        device: Option<DeviceId>,
        detail: String,
    ) -> bool {
        self.enqueue(Task::RecordEvent(NewEvent {
            kind: kind.to_owned(),
            gateway: Some(gateway),
            device,
            detail,
        }))
    }

    /// Queues a write of a gateway's state for other controllers.
    fn record_state(&self, gateway: GatewayId, local: &mut LocalGateway, now_ms: u64) {
        local.recorded_ms = now_ms;
        if let Ok(body) = serde_json::to_string(&local.status) {
            self.enqueue(Task::RecordState(GatewayState {
                gateway,
                at_ms: now_ms,
                controller: self.name.to_string(),
                body,
            }));
        }
    }

    fn enqueue(&self, task: Task) -> bool {
        let is_queued = self.tasks.try_send(task).is_ok();
        if !is_queued {
            tracing::warn!("task queue full; gateway state or event dropped");
        }
        is_queued
    }
}

/// Gateway states as recorded by all controllers.
pub(crate) async fn recorded_gateways(
    registry: &Registry,
) -> Result<Vec<(GatewayId, GatewaySnapshot)>, RegistryError> {
    let states = registry.gateway_states().await?;
    let snapshots = states
        .into_iter()
        .filter_map(|state| Some((state.gateway, snapshot_from_state(state)?)));
    Ok(snapshots.collect())
}

fn snapshot_from_state(state: GatewayState) -> Option<GatewaySnapshot> {
    let status: GatewayStatus = serde_json::from_str(&state.body).ok()?;
    Some(GatewaySnapshot {
        // A controller of another version may have recorded the status.
        status: status.with_known_names(),
        at_ms: state.at_ms,
        controller: state.controller,
    })
}

/// Receives notifications from [`Server`](crate::link::Server).
pub(crate) struct FleetSink {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) registry: Registry,
}

impl RequestObserver for FleetSink {
    fn status_reported(&self, gateway: GatewayId, report: StatusReport) {
        let now_ms = now_ms();
        // If the gateway registered with another controller, or before this controller started, only the registry has
        // the version and the fencing token of the gateway.
        let recorded_registration = lock(&self.fleet.remote)
            .get(&gateway)
            .map(|snapshot| (snapshot.status.fencing_token, snapshot.status.version.clone()));
        let mut local_gateways = lock(&self.fleet.local);
        let entry = local_gateways.entry(gateway).or_default();
        if let Some((fencing_token, version)) =
            recorded_registration.filter(|(fencing_token, _)| *fencing_token > entry.status.fencing_token)
        {
            entry.status.fencing_token = fencing_token;
            entry.status.version = version;
        }
        entry.seen_ms = now_ms;
        entry.status.apply_report(report, now_ms);
        // An absolute difference, because `recorded_ms` is in the future if the clock was ahead at the last record.
        if now_ms.abs_diff(entry.recorded_ms) < RECORD_INTERVAL_MS {
            return;
        }
        self.fleet.record_state(gateway, entry, now_ms);
    }

    fn round_appraised(&self, round: &RoundRecord, appraisal: &RoundAppraisal) {
        let mut local_gateways = lock(&self.fleet.local);
        let entry = local_gateways.entry(round.gateway).or_default();
        let previous_round = entry.last_round.replace(round.number);
        drop(local_gateways);
        // With an equal number, the gateway did not receive the response and has repeated its request.
        if previous_round == Some(round.number) {
            return;
        }
        self.fleet.stream.send(round_event(round));
        let round_name = format!("in round {} of group {}", round.number, round.group.as_str());
        for quarantined in &appraisal.quarantined {
            let detail = format!("{}, {round_name}", quarantined.reason);
            self.fleet
                .record_device_event("quarantined", round.gateway, Some(quarantined.device), detail);
        }
        for (device, _) in &appraisal.remediated {
            let detail = format!("passed attestation {round_name}");
            self.fleet
                .record_device_event("released", round.gateway, Some(*device), detail);
        }
    }

    fn trust_reported(&self, gateway: GatewayId, report: &TrustReport) {
        let now_ms = now_ms();
        let mut local_gateways = lock(&self.fleet.local);
        let entry = local_gateways.entry(gateway).or_default();
        entry.seen_ms = now_ms;
        let previous_trust = entry.status.trust.take();
        let trust = Trust::after_report(report, previous_trust.as_ref(), now_ms);
        let has_changed = trust.differs(previous_trust.as_ref());
        let previous_decision = previous_trust.and_then(|previous| previous.last_decision);
        let new_decision = trust
            .last_decision
            .filter(|decision| previous_decision != Some(*decision));
        let detail = match trust.reason.as_str() {
            "" => format!(
                "evidence matches the reference values, by controller {}",
                self.fleet.name
            ),
            reason => format!("{reason}, by controller {}", self.fleet.name),
        };
        entry.status.trust = Some(trust);
        if has_changed {
            self.fleet.record_state(gateway, entry, now_ms);
        }
        drop(local_gateways);
        if let Some(is_trusted) = new_decision {
            let kind = if is_trusted {
                "gateway_trusted"
            } else {
                "gateway_untrusted"
            };
            self.fleet.record_event(kind, gateway, detail);
        }
    }
}

#[tonic::async_trait]
impl GatewayObserver for FleetSink {
    fn gateway_registered(&self, gateway: GatewayId, fencing_token: u64, version: &str) {
        let mut local_gateways = lock(&self.fleet.local);
        let entry = local_gateways.entry(gateway).or_default();
        entry.seen_ms = now_ms();
        entry.is_disconnection_handled = false;
        entry.status.fencing_token = fencing_token;
        entry.status.version = version.chars().take(64).collect();
        drop(local_gateways);
        let detail = format!(
            "registered with controller {}, fencing token {fencing_token}",
            self.fleet.name
        );
        self.fleet.record_event("gateway_connected", gateway, detail);
    }

    fn gateway_seen(&self, gateway: GatewayId) {
        let mut local_gateways = lock(&self.fleet.local);
        let entry = local_gateways.entry(gateway).or_default();
        entry.seen_ms = now_ms();
        if std::mem::take(&mut entry.is_disconnection_handled) {
            drop(local_gateways);
            let detail = format!("reconnected to controller {}", self.fleet.name);
            self.fleet.record_event("gateway_connected", gateway, detail);
        }
    }

    async fn load_trust_memory(&self, gateway: GatewayId) -> Result<Option<TrustMemory>, RegistryError> {
        let recorded = self.registry.gateway_state(gateway).await?;
        let Some(snapshot) = recorded.and_then(snapshot_from_state) else {
            return Ok(None);
        };
        let Some(trust) = snapshot.status.trust else {
            return Ok(None);
        };
        let memory = trust.memory();
        let mut local_gateways = lock(&self.fleet.local);
        let entry = local_gateways.entry(gateway).or_default();
        // If this controller recorded the state itself, the trust state in memory is newer.
        if snapshot.controller != *self.fleet.name || entry.status.trust.is_none() {
            entry.status.trust = Some(trust.reset_for_new_controller(now_ms()));
        }
        Ok(memory)
    }
}

/// The event for an appraised round. Only current subscribers receive this event. The event is not stored in the event
/// log, because rounds would fill most of the log.
fn round_event(round: &RoundRecord) -> StreamEvent {
    let body = serde_json::json!({
        "id": null,
        "at_ms": now_ms(),
        "kind": "round",
        "gateway": round.gateway.0,
        "round": round_from_record(round.clone()),
    });
    StreamEvent {
        number: None,
        kind: "round".into(),
        data: body.to_string().into(),
    }
}

/// Registry writes queued by the fleet.
pub(crate) struct FleetTasks(Receiver<Task>);

impl FleetTasks {
    /// Performs the writes until the fleet is dropped.
    pub(crate) async fn run(mut self, registry: Registry) {
        while let Some(task) = self.0.recv().await {
            let result = match task {
                Task::RecordEvent(event) => registry.record_events(&[event], now_ms()).await,
                Task::RecordState(state) => registry.record_gateway_state(&state, now_ms()).await,
            };
            if let Err(error) = result {
                tracing::warn!(%error, "failed to write to the registry; gateway state or event dropped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::status::{DEVICES_MAX, OTHER};
    use super::*;

    const GATEWAY: GatewayId = GatewayId(7);

    async fn sink(fleet: &Arc<Fleet>) -> FleetSink {
        let key = linewarden_registry::MasterKey::from_bytes([7; 32]);
        FleetSink {
            fleet: Arc::clone(fleet),
            registry: Registry::in_memory(&key).await.unwrap(),
        }
    }

    fn next(tasks: &mut FleetTasks) -> Option<Task> {
        tasks.0.try_recv().ok()
    }

    #[tokio::test]
    async fn implausible_values_of_a_report_are_not_stored() {
        let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
        sink(&fleet).await.status_reported(
            GATEWAY,
            StatusReport {
                authentications_per_s: Some(f64::NAN),
                sessions: Some(u64::MAX),
                devices: u64::MAX,
                latency_us_p50: Some(f64::INFINITY),
                latency_us_p99: Some(7.5),
                verdicts: [
                    ("reply_ack".to_owned(), 3),
                    ("x".repeat(1 << 20), 1),
                    ("a\n".to_owned(), 1),
                    ("drop_tag".to_owned(), u64::MAX),
                    (String::new(), 1),
                ]
                .into(),
                ..StatusReport::default()
            },
        );
        let Some(Task::RecordState(state)) = next(&mut tasks) else {
            panic!("no task is queued")
        };
        let stored: GatewayStatus = serde_json::from_str(&state.body).unwrap();
        assert_eq!((stored.latency_us_p50, stored.latency_us_p99), (None, Some(7.5)));
        assert_eq!((stored.authentications_per_s, stored.sessions), (None, None));
        assert_eq!(stored.devices, DEVICES_MAX);
        let counted = [("other".to_owned(), 3), ("reply_ack".to_owned(), 3)];
        assert_eq!(stored.verdicts, counted.into());
    }

    /// The registry supplies fencing token and version if the gateway registered before this controller started.
    #[tokio::test]
    async fn the_registry_supplies_an_earlier_registration() {
        let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
        let snapshot = GatewaySnapshot {
            at_ms: 1,
            controller: "a".to_owned(),
            status: GatewayStatus {
                fencing_token: 5,
                version: "0.1.0".to_owned(),
                ..GatewayStatus::default()
            },
        };
        lock(&fleet.remote).insert(GATEWAY, snapshot);
        sink(&fleet)
            .await
            .status_reported(GATEWAY, StatusReport::default());
        let Some(Task::RecordState(state)) = next(&mut tasks) else {
            panic!("no task is queued")
        };
        let stored: GatewayStatus = serde_json::from_str(&state.body).unwrap();
        assert_eq!((stored.fencing_token, &*stored.version), (5, "0.1.0"));
    }

    /// Unknown names are merged, in reports and in recorded states.
    #[tokio::test]
    async fn unknown_names_are_merged() {
        let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
        let sink = sink(&fleet).await;
        let mut stored_names = BTreeSet::new();
        for round in 0..300 {
            let counts = |known: &str| -> BTreeMap<String, u64> {
                let new = (0..300).map(|name| (format!("drop_{round}_{name}"), 2));
                new.chain([(known.to_owned(), 5)]).collect()
            };
            sink.status_reported(
                GATEWAY,
                StatusReport {
                    verdicts: counts("drop_tag"),
                    dropped_types: counts("profinet"),
                    kernel_drops: counts("tickets"),
                    tickets: counts("rate_limited"),
                    ..StatusReport::default()
                },
            );
            let status = fleet.snapshots().remove(&GATEWAY).unwrap().status;
            for counts in [
                status.verdicts,
                status.dropped_types,
                status.kernel_drops,
                status.tickets,
            ] {
                assert_eq!(counts["other"], 600);
                stored_names.extend(counts.into_keys());
            }
        }
        let Some(Task::RecordState(mut state)) = next(&mut tasks) else {
            panic!("no task is queued")
        };
        let recorded = GatewayStatus {
            verdicts: [("drop_new".to_owned(), 1), ("other".to_owned(), 2)].into(),
            ..GatewayStatus::default()
        };
        state.body = serde_json::to_string(&recorded).unwrap();
        stored_names.extend(snapshot_from_state(state).unwrap().status.verdicts.into_keys());
        let names = ["drop_tag", "profinet", "tickets", "rate_limited", OTHER];
        assert_eq!(stored_names, names.map(str::to_owned).into());
    }

    #[test]
    fn a_gateway_at_another_controller_is_not_disconnected() {
        for (is_at_other_controller, events) in [(false, 1), (true, 0)] {
            let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
            lock(&fleet.local).insert(GATEWAY, LocalGateway::default());
            if is_at_other_controller {
                let snapshot = GatewaySnapshot {
                    at_ms: now_ms(),
                    controller: "b".to_owned(),
                    status: GatewayStatus::default(),
                };
                lock(&fleet.remote).insert(GATEWAY, snapshot);
            }
            fleet.report_disconnected();
            fleet.report_disconnected();
            let recorded = std::iter::from_fn(|| next(&mut tasks)).count();
            assert_eq!(recorded, events);
        }
    }

    /// The clock of this or the other controller was temporarily ahead by an hour.
    #[test]
    fn records_ahead_of_now_are_ignored() {
        const NOW_MS: u64 = 1_800_000_000_000;
        const HOUR_MS: u64 = 3_600_000;
        for (local_ms, recorded_ms, newest_valid_ms, events) in [
            (
                NOW_MS - DISCONNECTED_AFTER_MS,
                NOW_MS + HOUR_MS,
                NOW_MS - DISCONNECTED_AFTER_MS,
                1,
            ),
            (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 1),
            (NOW_MS + HOUR_MS, NOW_MS, NOW_MS, 0),
            (NOW_MS, NOW_MS + HOUR_MS, NOW_MS, 0),
            // Allowed clock skew.
            (
                NOW_MS - DISCONNECTED_AFTER_MS,
                NOW_MS + CLOCK_SKEW_MAX_MS,
                NOW_MS + CLOCK_SKEW_MAX_MS,
                0,
            ),
        ] {
            let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
            let local = LocalGateway {
                seen_ms: local_ms,
                ..LocalGateway::default()
            };
            lock(&fleet.local).insert(GATEWAY, local);
            let snapshot = GatewaySnapshot {
                at_ms: recorded_ms,
                controller: "b".to_owned(),
                status: GatewayStatus::default(),
            };
            lock(&fleet.remote).insert(GATEWAY, snapshot);
            assert_eq!(
                fleet.snapshots_at(NOW_MS)[&GATEWAY].at_ms,
                newest_valid_ms,
                "{local_ms} {recorded_ms}"
            );
            fleet.report_disconnected_at(NOW_MS);
            fleet.report_disconnected_at(NOW_MS);
            let recorded = std::iter::from_fn(|| next(&mut tasks)).count();
            assert_eq!(recorded, events, "{local_ms} {recorded_ms}");
        }
        assert_eq!(age_ms(NOW_MS, NOW_MS + HOUR_MS), NOW_MS);
        assert_eq!(age_ms(NOW_MS, NOW_MS + CLOCK_SKEW_MAX_MS), 0);
    }

    /// A disconnection that did not fit into the queue is recorded later.
    #[test]
    fn a_dropped_disconnection_event_is_retried() {
        let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
        lock(&fleet.local).insert(GATEWAY, LocalGateway::default());
        while fleet.record_event("other", GATEWAY, String::new()) {}
        fleet.report_disconnected();
        while next(&mut tasks).is_some() {}
        fleet.report_disconnected();
        let task = next(&mut tasks);
        assert!(matches!(task, Some(Task::RecordEvent(event)) if event.kind == "gateway_disconnected"));
        fleet.report_disconnected();
        assert!(next(&mut tasks).is_none(), "once");
    }

    #[test]
    fn the_task_queue_is_bounded() {
        let (fleet, mut tasks) = Fleet::new("a".into(), EventStream::new());
        for _ in 0..2 * QUEUED_TASKS_MAX {
            fleet.record_event("gateway_disconnected", GATEWAY, String::new());
        }
        assert_eq!(std::iter::from_fn(|| next(&mut tasks)).count(), QUEUED_TASKS_MAX);
    }
}
