//! Receiver, scheduler and lanes combined: datagrams in, verified messages out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::{fmt, io};

use crate::flood::{FilterChange, FilterStatus, Flood, UnknownSenderMessage};
use crate::key::Material;
use crate::lane::{BatchLane, GpuLane, KeyPlacement, SingleLane, VerifierLost};
use crate::message::{Envelope, KeyId, TimeMs};
use crate::receive::{Checked, Receiver, Verified};
use crate::refusal::Refusal;
use crate::reputation::{NewSenderLimit, RecentSources};
use crate::scheduler::engine::{
    BatchResult, Engine, EngineClosed, EngineError, Lane, LaneLost, ShutdownMode, Sink, Snapshot, Submitter,
};
use crate::scheduler::policy::Policy;
use crate::scheduler::{
    Class, Config, Dropped, FingerprintKey, Job, LaneKind, LaneSpec, Meta, ORDINARY_WORK, Outcome, Priority,
    ShedReason, Source, Span, Time,
};
use crate::scheme::Scheme;
use crate::source::Origin;
use crate::store::Revocations;
use crate::udp::{Datagram, FilterAttachment, UdpReceiver};

/// Receives verified messages. Called from the threads of lanes.
pub trait VerifiedMessageSink: Send + Sync {
    /// Receives a valid, recent message that is accepted for the first time, and the time since the message arrived.
    fn verified(&self, message: Verified, latency: Span);
}

/// The current time on the signers' time scale.
pub type Clock = fn() -> TimeMs;

/// Time from the arrival of a message to the deadline of the result: 1 ms for immediate messages, 10 ms for the next
/// priority, 100 ms for others.
fn deadline(priority: Priority) -> Span {
    match priority.number() {
        0 => Span::from_millis(1),
        1 => Span::from_millis(10),
        _ => Span::from_millis(100),
    }
}

/// The operation class of verifying a message of this scheme.
#[must_use]
pub fn class(scheme: Scheme) -> Class {
    match scheme {
        Scheme::RaRsa2048 => Class::RA_VERIFY,
        Scheme::RaRsa3072 => Class::RA3072_VERIFY,
        Scheme::RsaPss2048 => Class::RSA_VERIFY,
        Scheme::RsaPss3072 => Class::RSA3072_VERIFY,
        Scheme::EcdsaP256 => Class::P256_VERIFY,
        Scheme::Ed25519 => Class::ED25519_VERIFY,
    }
}

/// The work of hashing a component of RA, in thousandths of the work of an ordinary message. With this value, predicted
/// times match the measured times of lanes.
const COMPONENT_WORK: u32 = 200;
/// The work of an ECDSA or Ed25519 message whose signer has no precomputed table, in thousandths of the work of an
/// ordinary message.
const NEW_SIGNER_WORK: u32 = 2_500;

/// The work of a message, in thousandths of the work of an ordinary message. For an unknown sender, which may choose
/// any components, the work includes the message's components that are not cached. For a known sender, the work
/// includes the recent average number of uncached components in the signer's valid messages.
fn work(message: &Checked, is_known: bool) -> u32 {
    let key = message.key();
    let (ra, digits) = match (key.material(), message.rapid()) {
        (Material::Ra(ra), Some((digits, _))) => (ra, digits),
        (Material::EcdsaP256(..) | Material::Ed25519(..), _) if !key.has_table() => return NEW_SIGNER_WORK,
        _ => return ORDINARY_WORK,
    };
    let missing = if is_known {
        ra.average_missing()
    } else {
        ra.missing(digits)
    };
    // A message has at most 64 components.
    ORDINARY_WORK + COMPONENT_WORK * missing as u32
}

impl Lane<Checked> for SingleLane {
    fn run(&mut self, _: Class, jobs: &mut [Checked], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(jobs.iter().map(|message| outcome(self.verify_one(message))));
        Ok(())
    }
}

impl Lane<Checked> for BatchLane {
    fn run(&mut self, _: Class, jobs: &mut [Checked], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(self.verify_all(jobs).into_iter().map(outcome));
        Ok(())
    }
}

impl Lane<Checked> for GpuLane {
    fn run(&mut self, _: Class, jobs: &mut [Checked], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(
            self.verify_all(jobs)
                .map_err(to_lane_lost)?
                .into_iter()
                .map(outcome),
        );
        Ok(())
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        self.make_masks(count).map_err(to_lane_lost)
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        self.reopen().map_err(to_lane_lost)
    }
}

/// Converts the error; the engine adds the name of the lane.
fn to_lane_lost(lost: VerifierLost) -> LaneLost {
    LaneLost(lost.reason)
}

fn outcome(is_valid: bool) -> Outcome {
    match is_valid {
        true => Outcome::Accepted,
        false => Outcome::Rejected,
    }
}

/// A count for each reason of refusal.
#[derive(Default)]
struct RefusalCounts([AtomicU64; Refusal::ALL.len()]);

impl RefusalCounts {
    fn count(&self, refusal: Refusal) {
        if let Some(count) = self.0.get(usize::from(refusal.number()) - 1) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Shared {
    receiver: RwLock<Receiver>,
    sink: Arc<dyn VerifiedMessageSink>,
    placement: Option<Arc<KeyPlacement>>,
    clock: Clock,
    refusals: RefusalCounts,
    received: AtomicU64,
    verified: AtomicU64,
    /// Messages dropped on receipt because too many wait, and datagrams that the kernel dropped while a filter was attached.
    dropped_on_overload: AtomicU64,
    /// Senders of valid messages.
    known_senders: RecentSources,
    /// Sources of invalid messages of unknown senders.
    suspect_sources: RecentSources,
}

impl Sink<Checked> for Shared {
    fn done(&self, batch_result: BatchResult<'_, Checked>) {
        let results = batch_result
            .payloads
            .drain(..)
            .zip(batch_result.entries)
            .zip(batch_result.outcomes);
        for ((message, entry), outcome) in results {
            // Invalid signatures are counted without taking the lock.
            if *outcome != Outcome::Accepted {
                self.refusals.count(Refusal::WrongSignature);
                if entry.is_unknown_sender {
                    self.suspect_sources
                        .record(entry.meta.source, batch_result.ended_at);
                    self.known_senders.forget(entry.meta.sender);
                }
                continue;
            }
            let accepted = {
                let mut receiver = self.receiver.write().unwrap_or_else(PoisonError::into_inner);
                let now = (self.clock)();
                receiver.accept(message, true, now)
            };
            match accepted {
                Ok(verified) => {
                    if let Some(placement) = &self.placement {
                        placement.record_accepted(verified.message().key(), batch_result.ended_at);
                    }
                    self.known_senders
                        .record(entry.meta.sender, batch_result.ended_at);
                    self.verified.fetch_add(1, Ordering::Relaxed);
                    self.sink.verified(
                        verified,
                        batch_result.ended_at.saturating_since(entry.meta.arrived),
                    );
                }
                Err(refusal) => {
                    *outcome = Outcome::Discarded;
                    self.refusals.count(refusal);
                }
            }
        }
    }

    /// Only releases the jobs: the scheduler has already counted them.
    fn dropped(&self, dropped: &mut Vec<Dropped<Checked>>) {
        dropped.clear();
    }
}

/// The lanes of a service.
pub struct Lanes {
    /// Each lane with its spec.
    pub lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)>,
    /// The signers that have a place on a GPU; GPU lanes verify only their messages. `None` if no lane is a GPU lane.
    pub placement: Option<Arc<KeyPlacement>>,
}

/// Adds the classes for signers without a place on a device. A CPU lane supports each of these classes at the cost of
/// the class for signers with a place.
fn with_unplaced_classes(mut spec: LaneSpec) -> LaneSpec {
    if spec.kind == LaneKind::Accelerator {
        return spec;
    }
    for class in Class::all() {
        if let (Some(cost_model), Some(unplaced)) = (*spec.costs.of(class), class.unplaced()) {
            spec = spec.with_class(unplaced, cost_model);
        }
    }
    spec
}

/// A running service.
pub struct Service {
    shared: Arc<Shared>,
    engine: Engine<Checked>,
    submitter: Submitter<Checked>,
    fingerprint_key: FingerprintKey,
    /// Key of the hashes of sources and senders.
    source_key: [u8; 16],
    new_sender_limit: NewSenderLimit,
    flood: Flood,
    jobs: Vec<Job<Checked>>,
}

/// A change to the kernel's flood filter, or the reason why a flood is not filtered.
#[derive(Debug)]
pub enum FloodFilter {
    /// A filter was attached.
    Attached(FilterStatus),
    /// The flood has ended, and no filter is attached.
    Detached,
    /// The kernel rejected a filter. If that filter sampled messages, a filter that samples only other datagrams is tried next.
    Rejected(io::Error),
    /// A flood of messages passes unfiltered: more senders are known than a filter can hold.
    TooManySenders,
}

impl FloodFilter {
    /// The name in events.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Attached(_) => "attached",
            Self::Detached => "detached",
            Self::Rejected(_) => "rejected",
            Self::TooManySenders => "too_many_senders",
        }
    }
}

impl fmt::Display for FloodFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached(FilterStatus {
                sample_one_in,
                known_senders: None,
            }) => write!(
                f,
                "flood filter attached: of datagrams that are not messages, one in {sample_one_in} passes"
            ),
            Self::Attached(FilterStatus {
                sample_one_in,
                known_senders: Some(known),
            }) => write!(
                f,
                "flood filter attached: messages of {known} known senders pass; of other datagrams, one in {sample_one_in} passes"
            ),
            Self::Detached => write!(f, "flood ended, no flood filter is attached"),
            Self::Rejected(error) => write!(
                f,
                "attaching the flood filter failed: {error}; if the kernel cannot allocate memory, raise net.core.optmem_max"
            ),
            Self::TooManySenders => write!(
                f,
                "flood filter for messages disabled: more than 1,024 senders are known"
            ),
        }
    }
}

/// Counters of a service since its start.
#[derive(Debug, Clone)]
pub struct Report {
    /// Datagrams received.
    pub received: u64,
    /// Messages verified and delivered.
    pub verified: u64,
    /// Refused messages by reason; reasons with a count of zero are omitted.
    pub refused: Vec<(Refusal, u64)>,
    /// Snapshot of the engine.
    pub engine: Snapshot,
}

impl Report {
    /// Messages dropped before verification, by reason; reasons with a count of zero are omitted.
    #[must_use]
    pub fn shed(&self) -> Vec<(ShedReason, u64)> {
        self.engine
            .counters
            .shed
            .iter()
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

impl Service {
    /// Starts the lanes. `random` holds two secret keys for hashes.
    ///
    /// # Errors
    /// No lane, or the thread of a lane could not be started.
    pub fn start(
        receiver: Receiver,
        config: Config,
        policy: Box<dyn Policy>,
        Lanes { lanes, placement }: Lanes,
        message_sink: Arc<dyn VerifiedMessageSink>,
        clock: Clock,
        random: [[u8; 16]; 2],
    ) -> Result<Self, EngineError> {
        let [fingerprint_key, source_key] = random;
        let shared = Arc::new(Shared {
            receiver: RwLock::new(receiver),
            sink: message_sink,
            placement,
            clock,
            refusals: RefusalCounts::default(),
            received: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            dropped_on_overload: AtomicU64::new(0),
            known_senders: RecentSources::default(),
            suspect_sources: RecentSources::default(),
        });
        let sink: Arc<dyn Sink<Checked>> = Arc::<Shared>::clone(&shared);
        let lanes = lanes
            .into_iter()
            .map(|(spec, lane)| (with_unplaced_classes(spec), lane));
        let engine = Engine::start(config, policy, lanes.collect(), sink)?;
        Ok(Self {
            submitter: engine.submitter(),
            shared,
            engine,
            fingerprint_key: FingerprintKey::new(fingerprint_key),
            source_key,
            new_sender_limit: NewSenderLimit::new(),
            flood: Flood::new(&source_key),
            jobs: Vec::new(),
        })
    }

    /// Enqueues a datagram; [`Service::submit`] hands all enqueued messages to the lanes. During overload, messages of unknown senders are
    /// dropped here if their source sent invalid messages recently, or if new senders exceed their rate limit.
    pub fn enqueue(&mut self, datagram: &Datagram<'_>) {
        self.shared.received.fetch_add(1, Ordering::Relaxed);
        match self.job(datagram) {
            Ok(Some(job)) => self.jobs.push(job),
            Ok(None) => {
                self.shared.dropped_on_overload.fetch_add(1, Ordering::Relaxed);
            }
            Err(refusal) => self.shared.refusals.count(refusal),
        }
    }

    /// Returns `None` if the message of an unknown sender is dropped because of overload.
    fn job(&mut self, datagram: &Datagram<'_>) -> Result<Option<Job<Checked>>, Refusal> {
        let arrived = self.submitter.at(datagram.arrived);
        let address = datagram.sender.ip();
        let key = match Envelope::parse(datagram.bytes) {
            Ok(envelope) => envelope.key_id,
            Err(refusal) => {
                self.record_malformed(datagram, arrived);
                return Err(refusal);
            }
        };
        let origin = Origin::from_address(address, key, &self.source_key);
        let mut unknown = None;
        if self.shared.known_senders.contains(origin.sender, arrived) {
            self.flood.record_known(address, key, origin.sender, arrived);
        } else {
            let is_overloaded = self.submitter.is_overloaded();
            let when = (arrived, is_overloaded);
            let unknown_message = self
                .flood
                .record_unknown_sender(address, key, origin.sender, when);
            if is_overloaded && self.is_dropped_on_overload(origin.source, (key, unknown_message), arrived)? {
                return Ok(None);
            }
            unknown = Some(unknown_message);
        }
        let screened = self.screen(datagram);
        if let Some(unknown) = unknown {
            match &screened {
                Ok(_) => self.flood.record_candidate(unknown),
                Err(_) => self.flood.record_refusal(unknown),
            }
        }
        let (message, remaining_validity) = screened?;
        let priority = message.stamp().priority;
        let meta = Meta {
            sender: origin.sender,
            work: work(&message, unknown.is_none()),
            deadline: arrived + deadline(priority),
            // A message verified after this time would be refused as too old.
            expires: self.submitter.now() + remaining_validity,
            fingerprint: Some(self.fingerprint_key.of(message.bytes())),
            ..Meta::new(self.class(&message), priority, origin.source, arrived)
        };
        Ok(Some(Job {
            meta,
            payload: message,
        }))
    }

    /// Records a malformed message. A message with a known sender's identity counts as passing, since no filter would
    /// drop the message.
    fn record_malformed(&mut self, datagram: &Datagram<'_>, arrived: Time) {
        let address = datagram.sender.ip();
        let Some(key) = Envelope::named_signer(datagram.bytes) else {
            self.flood.record_non_message(arrived);
            return;
        };
        let sender = Origin::from_address(address, key, &self.source_key).sender;
        if self.shared.known_senders.contains(sender, arrived) {
            self.flood.record_passing(arrived);
        } else {
            let unknown = self
                .flood
                .record_unknown_sender(address, key, sender, (arrived, false));
            self.flood.record_refusal(unknown);
        }
    }

    /// Checks a message, and returns it with the remaining time of its validity.
    fn screen(&self, datagram: &Datagram<'_>) -> Result<(Checked, Span), Refusal> {
        let now = (self.shared.clock)();
        let receiver = self
            .shared
            .receiver
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let message = receiver.screen(datagram.bytes.to_vec(), now)?;
        let remaining_ms = receiver.remaining_validity_ms(message.stamp(), now);
        Ok((message, Span::from_millis(remaining_ms)))
    }

    /// Whether to drop the message of an unknown sender because of overload. A message that names an unknown signer is refused, and does
    /// not count toward the rate limit of new senders.
    fn is_dropped_on_overload(
        &mut self,
        source: Source,
        (key, unknown): (KeyId, UnknownSenderMessage),
        now: Time,
    ) -> Result<bool, Refusal> {
        if self.shared.suspect_sources.contains(source, now) {
            return Ok(true);
        }
        let receiver = self
            .shared
            .receiver
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if !receiver.has_signer(key) {
            self.flood.record_refusal(unknown);
            return Err(Refusal::UnknownSigner);
        }
        Ok(!self.new_sender_limit.try_take(now))
    }

    /// Hands the enqueued messages to the lanes.
    ///
    /// # Errors
    /// The service has been shut down.
    pub fn submit(&mut self) -> Result<(), EngineClosed> {
        self.submitter.submit(&mut self.jobs)
    }

    /// Attaches, replaces or detaches the flood filter on the inbox's socket (ADR 51). Call this function after every
    /// receive. Returns a change if a filter was attached, detached or rejected, or if the filter starts or stops
    /// sampling messages. Returns `None` if only the sample ratio or the list of known senders changes. While a flood
    /// of messages passes because too many senders are known, the function returns [`FloodFilter::TooManySenders`]
    /// repeatedly.
    ///
    /// # Errors
    /// The socket's drop counter cannot be read, or a filter cannot be detached.
    pub fn update_flood_filter(&mut self, inbox: &mut UdpReceiver) -> io::Result<Option<FloodFilter>> {
        let now = self.submitter.now();
        let previous = self.flood.filter_status();
        if previous.is_some() && !inbox.has_filter() {
            self.flood.record_new_socket(now);
        }
        let received_until = self.submitter.at(inbox.received_until());
        let known = &self.shared.known_senders;
        let change = self
            .flood
            .update(now, received_until, |sender| known.contains(sender, now));
        match change {
            None => return Ok(None),
            Some(FilterChange::Attach(program)) => match inbox.attach_filter(&program)? {
                FilterAttachment::Rejected(error) => {
                    self.flood.record_rejection(now);
                    return Ok(Some(FloodFilter::Rejected(error)));
                }
                FilterAttachment::Attached { replaced } => {
                    self.flood.record_attached(self.submitter.now(), replaced);
                }
            },
            Some(FilterChange::Detach { too_many_senders }) => {
                inbox.detach_filter()?;
                return Ok(Some(match too_many_senders {
                    true => FloodFilter::TooManySenders,
                    false => FloodFilter::Detached,
                }));
            }
        }
        let current = self.flood.filter_status();
        let kind = |status: Option<FilterStatus>| status.map(|status| status.known_senders.is_some());
        if kind(previous) == kind(current) {
            return Ok(None);
        }
        Ok(Some(current.map_or(FloodFilter::Detached, FloodFilter::Attached)))
    }

    /// Counts datagrams that the kernel dropped while a filter was attached. Call this function before
    /// [`Service::report`].
    ///
    /// # Errors
    /// Reading the socket's drop counter failed.
    pub fn count_filtered(&mut self, inbox: &mut UdpReceiver) -> io::Result<()> {
        let filtered = inbox.take_filtered()?;
        self.shared
            .dropped_on_overload
            .fetch_add(filtered, Ordering::Relaxed);
        Ok(())
    }

    /// The operation class of a message. A message of a signer without a place on a device has another class, which
    /// only CPU lanes support.
    fn class(&self, message: &Checked) -> Class {
        let class = class(message.key().scheme());
        match (class.unplaced(), &self.shared.placement) {
            (Some(unplaced), Some(placement)) if !placement.is_placed(message.key()) => unplaced,
            _ => class,
        }
    }

    /// Sets the list of revoked signers, which also applies to waiting messages. Returns the previous list.
    pub fn set_revoked(&self, revoked: Revocations) -> Revocations {
        let mut receiver = self
            .shared
            .receiver
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        receiver.set_revoked(revoked)
    }

    /// Messages verified and delivered so far.
    #[must_use]
    pub fn verified(&self) -> u64 {
        self.shared.verified.load(Ordering::Relaxed)
    }

    /// The counters so far.
    ///
    /// # Errors
    /// The latency histograms could not be created or added.
    pub fn report(&self) -> Result<Report, EngineError> {
        Ok(report(&self.shared, self.engine.snapshot()?))
    }

    /// Shuts down: enqueued messages are verified and delivered first.
    ///
    /// # Errors
    /// The latency histograms could not be created or added.
    pub fn finish(mut self) -> Result<Report, EngineError> {
        // Submitting fails only after a shutdown, and the service is shut down only below.
        let _ = self.submit();
        let shared = Arc::clone(&self.shared);
        let (_, engine) = self.engine.shut_down(ShutdownMode::CompleteJobs)?;
        Ok(report(&shared, engine))
    }
}

fn report(shared: &Shared, mut engine: Snapshot) -> Report {
    let dropped = shared.dropped_on_overload.load(Ordering::Relaxed);
    engine.counters.shed.add(ShedReason::Overload, dropped);
    let counts = Refusal::ALL.iter().zip(&shared.refusals.0);
    Report {
        received: shared.received.load(Ordering::Relaxed),
        verified: shared.verified.load(Ordering::Relaxed),
        refused: counts
            .map(|(refusal, count)| (*refusal, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect(),
        engine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lanes_verify_messages_without_a_place_on_a_device() {
        let cost_model = crate::scheduler::model::CostModel::new(Span::from_micros(1), 1e4);
        let classes_of = |kind| {
            let spec = LaneSpec::new("a lane", kind)
                .with_class(Class::RA_VERIFY, cost_model)
                .with_class(Class::P256_VERIFY, cost_model);
            let cost_models = with_unplaced_classes(spec).costs;
            Class::all()
                .filter(|class| cost_models.of(*class).is_some())
                .collect::<Vec<_>>()
        };
        let classes = [Class::RA_VERIFY, Class::P256_VERIFY];
        assert_eq!(classes_of(LaneKind::Accelerator), classes);
        assert_eq!(
            classes_of(LaneKind::Cpu),
            [
                classes.as_slice(),
                &[Class::RA_VERIFY_UNPLACED, Class::P256_VERIFY_UNPLACED]
            ]
            .concat()
        );
    }
}
