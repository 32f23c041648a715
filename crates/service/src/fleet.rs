//! How gateways stand, as they say themselves: here at once, and by the registry from other controllers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_controller::attest::Appraised;
use linewarden_controller::trust::{Memory, Report};
use linewarden_link::{TellSink, Told};
use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{GatewayState, NOTED_AHEAD_MS, Note, Registry, RegistryError, RoundRecord};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::api::Round;
use crate::clock::now_ms;
use crate::stream::{Event, Stream};
use crate::trust::Trust;

/// A gateway that has said nothing for so long is silent.
pub(crate) const SILENT_MS: u64 = 10_000;
/// From one time to note how gateways stand to the next.
const NOTE_EVERY_MS: u64 = 2_000;

/// What waits for the database, at most: what is beyond, while it does not answer, is lost.
const TASKS_MAX: usize = 4_096;
/// A gateway holds no more devices, and has no more sessions.
const DEVICES_MAX: u64 = u32::MAX as u64;
/// And accepts no more a second: an 800 Gbit/s line is full of smaller frames by then.
const RATE_MAX: f64 = 1e9;
/// Longer than a histogram's last bucket: no time that anybody has measured, µs.
const LATENCY_US_MAX: f64 = 1e7;
/// Of one verdict: the largest integer that a browser counts exactly, and a thousand years of a full line.
const COUNT_MAX: u64 = 1 << 53;
/// What is counted under a name that this controller does not know: a newer gateway's verdict, or an Ethernet type without a name.
pub(crate) const OTHER: &str = "other";

/// What is kept of a gateway for other controllers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub(crate) version: String,
    pub(crate) fence: u64,
    pub(crate) dataplane: String,
    pub(crate) devices: u64,
    pub(crate) slots: u64,
    pub(crate) sessions: Option<u64>,
    pub(crate) authentications_per_s: Option<f64>,
    pub(crate) latency_us_p50: Option<f64>,
    pub(crate) latency_us_p99: Option<f64>,
    pub(crate) verdicts: BTreeMap<String, u64>,
    /// By names that there are, as `verdicts`; so are the next two.
    #[serde(default)]
    pub(crate) dropped_types: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) kernel_drops: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) tickets: BTreeMap<String, u64>,
    /// When it told these numbers; nothing before it has told any.
    #[serde(default)]
    pub(crate) told_ms: Option<u64>,
    /// Nothing where it has to show nothing.
    #[serde(default)]
    pub(crate) trust: Option<Trust>,
}

/// A gateway, when it was heard and by whom.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) at_ms: u64,
    pub(crate) controller: String,
    pub(crate) standing: Standing,
}

/// When something was heard; 0 where that is ahead of now by more than clocks differ: nobody knows when that was.
pub(crate) fn heard_ms(now_ms: u64, at_ms: u64) -> u64 {
    match at_ms > now_ms.saturating_add(NOTED_AHEAD_MS) {
        true => 0,
        false => at_ms,
    }
}

/// How long ago that was.
pub(crate) fn age_ms(now_ms: u64, at_ms: u64) -> u64 {
    now_ms.saturating_sub(heard_ms(now_ms, at_ms))
}

/// What the journal is to hold, and what is to be noted for others.
enum Task {
    Note(Note),
    State(GatewayState),
}

/// All gateways.
pub(crate) struct Fleet {
    name: Arc<str>,
    /// Those that this controller hears.
    own: Mutex<HashMap<GatewayId, Own>>,
    /// What others have noted.
    others: Mutex<HashMap<GatewayId, Heard>>,
    tasks: Sender<Task>,
    stream: Arc<Stream>,
}

#[derive(Default)]
struct Own {
    heard_ms: u64,
    noted_ms: u64,
    is_lost: bool,
    /// The last round that ended.
    round: Option<u32>,
    standing: Standing,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole at every moment, whoever panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Rounds that end are told to who listens to `stream`.
    pub(crate) fn new(name: Arc<str>, stream: Arc<Stream>) -> (Arc<Self>, FleetTasks) {
        let (tasks, inbox) = channel(TASKS_MAX);
        let fleet = Self {
            name,
            own: Mutex::default(),
            others: Mutex::default(),
            tasks,
            stream,
        };
        (Arc::new(fleet), FleetTasks(inbox))
    }

    /// Each gateway as whoever has heard it last has heard it.
    pub(crate) fn all(&self) -> BTreeMap<GatewayId, Heard> {
        self.all_at(now_ms())
    }

    fn all_at(&self, now_ms: u64) -> BTreeMap<GatewayId, Heard> {
        let mut all: BTreeMap<GatewayId, Heard> = lock(&self.others)
            .iter()
            .map(|(gateway, heard)| (*gateway, heard.clone()))
            .collect();
        for (gateway, own) in lock(&self.own).iter() {
            let is_elsewhere = all
                .get(gateway)
                .is_some_and(|heard| heard_ms(now_ms, heard.at_ms) > heard_ms(now_ms, own.heard_ms));
            if !is_elsewhere {
                all.insert(
                    *gateway,
                    Heard {
                        at_ms: own.heard_ms,
                        controller: self.name.to_string(),
                        standing: own.standing.clone(),
                    },
                );
            }
        }
        all
    }

    /// Reads what other controllers have noted.
    pub(crate) async fn read(&self, registry: &Registry) -> Result<(), RegistryError> {
        *lock(&self.others) = noted(registry).await?.into_iter().collect();
        Ok(())
    }

    /// Those of ours that have gone silent are told once.
    pub(crate) fn watch(&self) {
        self.watch_at(now_ms());
    }

    fn watch_at(&self, now_ms: u64) {
        let others = lock(&self.others);
        for (gateway, own) in lock(&self.own).iter_mut() {
            let is_silent = age_ms(now_ms, own.heard_ms) >= SILENT_MS;
            if !is_silent || own.is_lost {
                continue;
            }
            // It may have gone to another controller, which hears it, and tells when it does so no more.
            let is_elsewhere = others
                .get(gateway)
                .is_some_and(|heard| heard_ms(now_ms, heard.at_ms) > heard_ms(now_ms, own.heard_ms));
            let told = || format!("last heard by controller {}", self.name);
            // Not told, as too much waits already, it is told the next time.
            own.is_lost = is_elsewhere || self.note("gateway_lost", *gateway, told());
        }
    }

    /// Whether there was room for it.
    fn note(&self, kind: &str, gateway: GatewayId, detail: String) -> bool {
        self.note_of(kind, gateway, None, detail)
    }

    fn note_of(&self, kind: &str, gateway: GatewayId, device: Option<DeviceId>, detail: String) -> bool {
        self.leave(Task::Note(Note {
            kind: kind.to_owned(),
            gateway: Some(gateway),
            device,
            detail,
        }))
    }

    /// Has it noted for others how a gateway stands.
    fn tell(&self, gateway: GatewayId, own: &mut Own, now_ms: u64) {
        own.noted_ms = now_ms;
        if let Ok(body) = serde_json::to_string(&own.standing) {
            self.leave(Task::State(GatewayState {
                gateway,
                at_ms: now_ms,
                controller: self.name.to_string(),
                body,
            }));
        }
    }

    fn leave(&self, task: Task) -> bool {
        let is_left = self.tasks.try_send(task).is_ok();
        if !is_left {
            tracing::warn!("what a gateway said was not noted: the registry does not keep up");
        }
        is_left
    }
}

/// How gateways stand, as controllers have noted it.
pub(crate) async fn noted(registry: &Registry) -> Result<Vec<(GatewayId, Heard)>, RegistryError> {
    let states = registry.gateway_states().await?;
    let heard = states
        .into_iter()
        .filter_map(|state| Some((state.gateway, heard(state)?)));
    Ok(heard.collect())
}

fn heard(state: GatewayState) -> Option<Heard> {
    let standing: Standing = serde_json::from_str(&state.body).ok()?;
    Some(Heard {
        // Another version's controller may have noted it.
        standing: standing.with_known_names(),
        at_ms: state.at_ms,
        controller: state.controller,
    })
}

/// What can be true: JSON has no other numbers, and no gateway is faster, or slower, than any.
fn within(number: Option<f64>, most: f64) -> Option<f64> {
    number.filter(|number| (0.0..=most).contains(number))
}

/// Counts under names that there are, and the sum of all others: whatever a gateway calls what it counts, today and tomorrow, nobody
/// who keeps the counts meets more names than there are, and one.
fn by_known_name(
    told: impl IntoIterator<Item = (String, u64)>,
    is_known: impl Fn(&str) -> bool,
) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (name, count) in told.into_iter().filter(|(_, count)| *count <= COUNT_MAX) {
        let name = match is_known(&name) {
            true => name,
            false => OTHER.to_owned(),
        };
        let sum: &mut u64 = counts.entry(name).or_default();
        *sum = sum.saturating_add(count).min(COUNT_MAX);
    }
    counts
}

fn is_verdict(name: &str) -> bool {
    Verdict::ALL.iter().any(|verdict| verdict.name() == name)
}

impl Standing {
    /// Without names that there are not.
    fn with_known_names(self) -> Self {
        Self {
            verdicts: by_known_name(self.verdicts, is_verdict),
            dropped_types: by_known_name(self.dropped_types, DroppedTypes::is_name),
            kernel_drops: by_known_name(self.kernel_drops, |name| Told::KERNEL_DROPS.contains(&name)),
            tickets: by_known_name(self.tickets, |name| Told::TICKETS.contains(&name)),
            ..self
        }
    }
}

/// A sink for [`linewarden_link::Server`].
pub(crate) struct Sink {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) registry: Registry,
}

#[tonic::async_trait]
impl TellSink for Sink {
    fn entered(&self, gateway: GatewayId, fence: u64, version: &str) {
        let mut own = lock(&self.fleet.own);
        let entry = own.entry(gateway).or_default();
        entry.heard_ms = now_ms();
        entry.is_lost = false;
        entry.standing.fence = fence;
        entry.standing.version = version.chars().take(64).collect();
        drop(own);
        let detail = format!("registered with fence {fence} at controller {}", self.fleet.name);
        self.fleet.note("gateway_connected", gateway, detail);
    }

    fn heard(&self, gateway: GatewayId) {
        let mut own = lock(&self.fleet.own);
        let entry = own.entry(gateway).or_default();
        entry.heard_ms = now_ms();
        if std::mem::take(&mut entry.is_lost) {
            drop(own);
            let detail = format!("heard again by controller {}", self.fleet.name);
            self.fleet.note("gateway_connected", gateway, detail);
        }
    }

    fn told(&self, gateway: GatewayId, told: Told) {
        let now_ms = now_ms();
        // One that has registered before this controller began, or at another, has said there which it is.
        let noted = lock(&self.fleet.others)
            .get(&gateway)
            .map(|heard| (heard.standing.fence, heard.standing.version.clone()));
        let mut own = lock(&self.fleet.own);
        let entry = own.entry(gateway).or_default();
        if let Some((fence, version)) = noted.filter(|(fence, _)| *fence > entry.standing.fence) {
            entry.standing.fence = fence;
            entry.standing.version = version;
        }
        entry.heard_ms = now_ms;
        entry.standing = Standing {
            version: std::mem::take(&mut entry.standing.version),
            fence: entry.standing.fence,
            dataplane: told.dataplane.chars().take(64).collect(),
            // Of thousands of gateways the sum is a number still.
            devices: told.devices.min(DEVICES_MAX),
            slots: told.slots.min(DEVICES_MAX),
            sessions: told.sessions.filter(|sessions| *sessions <= DEVICES_MAX),
            authentications_per_s: within(told.authentications_per_s, RATE_MAX),
            latency_us_p50: within(told.latency_us_p50, LATENCY_US_MAX),
            latency_us_p99: within(told.latency_us_p99, LATENCY_US_MAX),
            verdicts: told.verdicts,
            dropped_types: told.dropped_types,
            kernel_drops: told.kernel_drops,
            tickets: told.tickets,
            told_ms: Some(now_ms),
            trust: entry.standing.trust.take(),
        }
        .with_known_names();
        // The clock may have been ahead when it was.
        if now_ms.abs_diff(entry.noted_ms) < NOTE_EVERY_MS {
            return;
        }
        self.fleet.tell(gateway, entry, now_ms);
    }

    fn appraised(&self, round: &RoundRecord, appraised: &Appraised) {
        let mut own = lock(&self.fleet.own);
        let before = own.entry(round.gateway).or_default().round.replace(round.number);
        drop(own);
        // The gateway did not hear the answer, and has asked again.
        if before == Some(round.number) {
            return;
        }
        self.fleet.stream.send(round_event(round));
        let rounds = format!("in round {} of group {}", round.number, round.group.as_str());
        for shut_out in &appraised.quarantined {
            let detail = format!("{}, {rounds}", shut_out.reason);
            self.fleet
                .note_of("quarantined", round.gateway, Some(shut_out.device), detail);
        }
        for (device, _) in &appraised.readmitted {
            let detail = format!("proved itself {rounds}");
            self.fleet
                .note_of("released", round.gateway, Some(*device), detail);
        }
    }

    fn stands(&self, gateway: GatewayId, report: &Report) {
        let now_ms = now_ms();
        let mut own = lock(&self.fleet.own);
        let entry = own.entry(gateway).or_default();
        entry.heard_ms = now_ms;
        let before = entry.standing.trust.take();
        let trust = Trust::of(report, before.as_ref(), now_ms);
        let is_news = trust.differs(before.as_ref());
        let judged = trust
            .was_trusted
            .filter(|judged| before.and_then(|before| before.was_trusted) != Some(*judged));
        let detail = match trust.why.as_str() {
            "" => format!(
                "it has shown controller {} that it runs what it should",
                self.fleet.name
            ),
            why => format!("by controller {}: {why}", self.fleet.name),
        };
        entry.standing.trust = Some(trust);
        if is_news {
            self.fleet.tell(gateway, entry, now_ms);
        }
        drop(own);
        if let Some(is_trusted) = judged {
            let kind = if is_trusted {
                "gateway_trusted"
            } else {
                "gateway_distrusted"
            };
            self.fleet.note(kind, gateway, detail);
        }
    }

    async fn recall(&self, gateway: GatewayId) -> Result<Option<Memory>, RegistryError> {
        let noted = self.registry.gateway_state(gateway).await?;
        let Some(heard) = noted.and_then(heard) else {
            return Ok(None);
        };
        let Some(trust) = heard.standing.trust else {
            return Ok(None);
        };
        let memory = trust.memory();
        let mut own = lock(&self.fleet.own);
        let entry = own.entry(gateway).or_default();
        // What this controller has noted itself it knows better.
        if heard.controller != *self.fleet.name || entry.standing.trust.is_none() {
            entry.standing.trust = Some(trust.left(now_ms()));
        }
        Ok(memory)
    }
}

/// A round that has ended, for who listens now: no entry of the journal, which would hold little else.
fn round_event(round: &RoundRecord) -> Event {
    let body = serde_json::json!({
        "id": null,
        "at_ms": now_ms(),
        "kind": "round",
        "gateway": round.gateway.0,
        "round": Round::from(round.clone()),
    });
    Event {
        number: None,
        kind: "round".into(),
        data: body.to_string().into(),
    }
}

/// What the fleet leaves to somebody who may wait for the database.
pub(crate) struct FleetTasks(Receiver<Task>);

impl FleetTasks {
    /// Does them, until the fleet is gone.
    pub(crate) async fn run(mut self, registry: Registry) {
        while let Some(task) = self.0.recv().await {
            let done = match task {
                Task::Note(note) => registry.note(&[note], now_ms()).await,
                Task::State(state) => registry.tell_gateway_state(&state, now_ms()).await,
            };
            if let Err(error) = done {
                tracing::warn!(%error, "what a gateway said was not noted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GATEWAY: GatewayId = GatewayId(7);

    async fn sink(fleet: &Arc<Fleet>) -> Sink {
        let key = linewarden_registry::MasterKey::from_bytes([7; 32]);
        Sink {
            fleet: Arc::clone(fleet),
            registry: Registry::in_memory(&key).await.unwrap(),
        }
    }

    fn next(tasks: &mut FleetTasks) -> Option<Task> {
        tasks.0.try_recv().ok()
    }

    /// Whatever a gateway says of itself, others can read it, and it makes no names of metrics of its own.
    #[tokio::test]
    async fn what_a_gateway_tells_is_bounded_and_can_be_read() {
        let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
        sink(&fleet).await.told(
            GATEWAY,
            Told {
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
                ..Told::default()
            },
        );
        let Some(Task::State(state)) = next(&mut tasks) else {
            panic!("nothing is noted")
        };
        let read: Standing = serde_json::from_str(&state.body).unwrap();
        assert_eq!((read.latency_us_p50, read.latency_us_p99), (None, Some(7.5)));
        assert_eq!((read.authentications_per_s, read.sessions), (None, None));
        assert_eq!(read.devices, DEVICES_MAX);
        let counted = [("other".to_owned(), 3), ("reply_ack".to_owned(), 3)];
        assert_eq!(read.verdicts, counted.into());
    }

    /// By what was noted, where this controller began after it had registered.
    #[tokio::test]
    async fn a_gateway_is_known_by_its_registration_before() {
        let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
        let heard = Heard {
            at_ms: 1,
            controller: "a".to_owned(),
            standing: Standing {
                fence: 5,
                version: "0.1.0".to_owned(),
                ..Standing::default()
            },
        };
        lock(&fleet.others).insert(GATEWAY, heard);
        sink(&fleet).await.told(GATEWAY, Told::default());
        let Some(Task::State(state)) = next(&mut tasks) else {
            panic!("nothing is noted")
        };
        let read: Standing = serde_json::from_str(&state.body).unwrap();
        assert_eq!((read.fence, &*read.version), (5, "0.1.0"));
    }

    /// However often a gateway thinks of other names, and whoever has noted them.
    #[tokio::test]
    async fn names_that_change_without_end_are_one() {
        let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
        let sink = sink(&fleet).await;
        let mut seen = BTreeSet::new();
        for round in 0..300 {
            let counts = |known: &str| -> BTreeMap<String, u64> {
                let new = (0..300).map(|name| (format!("drop_{round}_{name}"), 2));
                new.chain([(known.to_owned(), 5)]).collect()
            };
            sink.told(
                GATEWAY,
                Told {
                    verdicts: counts("drop_tag"),
                    dropped_types: counts("profinet"),
                    kernel_drops: counts("tickets"),
                    tickets: counts("limited"),
                    ..Told::default()
                },
            );
            let told = fleet.all().remove(&GATEWAY).unwrap().standing;
            for counts in [told.verdicts, told.dropped_types, told.kernel_drops, told.tickets] {
                assert_eq!(counts["other"], 600);
                seen.extend(counts.into_keys());
            }
        }
        let Some(Task::State(mut state)) = next(&mut tasks) else {
            panic!("nothing is noted")
        };
        let noted = Standing {
            verdicts: [("drop_new".to_owned(), 1), ("other".to_owned(), 2)].into(),
            ..Standing::default()
        };
        state.body = serde_json::to_string(&noted).unwrap();
        seen.extend(heard(state).unwrap().standing.verdicts.into_keys());
        let names = ["drop_tag", "profinet", "tickets", "limited", OTHER];
        assert_eq!(seen, names.map(str::to_owned).into());
    }

    #[test]
    fn a_gateway_that_has_gone_to_another_controller_is_not_lost() {
        for (is_heard_elsewhere, notes) in [(false, 1), (true, 0)] {
            let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
            lock(&fleet.own).insert(GATEWAY, Own::default());
            if is_heard_elsewhere {
                let heard = Heard {
                    at_ms: now_ms(),
                    controller: "b".to_owned(),
                    standing: Standing::default(),
                };
                lock(&fleet.others).insert(GATEWAY, heard);
            }
            fleet.watch();
            fleet.watch();
            let told = std::iter::from_fn(|| next(&mut tasks)).count();
            assert_eq!(told, notes);
        }
    }

    /// The clock of a controller was ahead by an hour for a moment, and is right again.
    #[test]
    fn what_was_noted_ahead_of_now_was_not_heard() {
        const NOW_MS: u64 = 1_800_000_000_000;
        const HOUR_MS: u64 = 3_600_000;
        for (own_ms, noted_ms, at_ms, notes) in [
            (NOW_MS - SILENT_MS, NOW_MS + HOUR_MS, NOW_MS - SILENT_MS, 1),
            (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 1),
            (NOW_MS + HOUR_MS, NOW_MS, NOW_MS, 0),
            (NOW_MS, NOW_MS + HOUR_MS, NOW_MS, 0),
            // Clocks differ.
            (
                NOW_MS - SILENT_MS,
                NOW_MS + NOTED_AHEAD_MS,
                NOW_MS + NOTED_AHEAD_MS,
                0,
            ),
        ] {
            let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
            let own = Own {
                heard_ms: own_ms,
                ..Own::default()
            };
            lock(&fleet.own).insert(GATEWAY, own);
            let heard = Heard {
                at_ms: noted_ms,
                controller: "b".to_owned(),
                standing: Standing::default(),
            };
            lock(&fleet.others).insert(GATEWAY, heard);
            assert_eq!(fleet.all_at(NOW_MS)[&GATEWAY].at_ms, at_ms, "{own_ms} {noted_ms}");
            fleet.watch_at(NOW_MS);
            fleet.watch_at(NOW_MS);
            let told = std::iter::from_fn(|| next(&mut tasks)).count();
            assert_eq!(told, notes, "{own_ms} {noted_ms}");
        }
        assert_eq!(age_ms(NOW_MS, NOW_MS + HOUR_MS), NOW_MS);
        assert_eq!(age_ms(NOW_MS, NOW_MS + NOTED_AHEAD_MS), 0);
    }

    /// A gateway that was lost while the database did not keep up is told as lost once it does.
    #[test]
    fn a_loss_that_was_not_noted_is_noted_later() {
        let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
        lock(&fleet.own).insert(GATEWAY, Own::default());
        while fleet.note("other", GATEWAY, String::new()) {}
        fleet.watch();
        while next(&mut tasks).is_some() {}
        fleet.watch();
        let told = next(&mut tasks);
        assert!(matches!(told, Some(Task::Note(note)) if note.kind == "gateway_lost"));
        fleet.watch();
        assert!(next(&mut tasks).is_none(), "once");
    }

    #[test]
    fn what_waits_for_the_database_is_bounded() {
        let (fleet, mut tasks) = Fleet::new("a".into(), Stream::new());
        for _ in 0..2 * TASKS_MAX {
            fleet.note("gateway_lost", GATEWAY, String::new());
        }
        assert_eq!(std::iter::from_fn(|| next(&mut tasks)).count(), TASKS_MAX);
    }
}
