//! Receivers, scheduler and lanes as one: datagrams in, verified messages out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::{fmt, io};

use crate::flood::{FilterChange, Filtering, Flood, Stranger};
use crate::key::Material;
use crate::lane::{Eight, Graphics, Lost, OneByOne, Places};
use crate::message::{Envelope, KeyId, TimeMs};
use crate::receive::{Checked, Receiver, Verified};
use crate::refusal::Refusal;
use crate::reputation::{Newcomers, Recently};
use crate::scheduler::engine::{
    Closed, Done, Ending, Engine, EngineError, Lane, LaneLost, Sink, Snapshot, Submitter,
};
use crate::scheduler::policy::Policy;
use crate::scheduler::{
    Class, Config, Dropped, FingerprintKey, Job, LaneKind, LaneSpec, Meta, ORDINARY_WORK, Outcome, Priority,
    Shed, Source, Span, Time,
};
use crate::scheme::Scheme;
use crate::source::Origin;
use crate::store::Revocations;
use crate::udp::{Attachment, Datagram, Inbox};

/// Where verified messages go. Called from lanes' threads.
pub trait Delivery: Send + Sync {
    /// A message that is its signer's, fresh, and accepted for the first time; and how long after its arrival.
    fn verified(&self, message: Verified, latency: Span);
}

/// The time, as the signers' clocks have it.
pub type Clock = fn() -> TimeMs;

/// When a result is wanted, by priority: 1 ms for what is immediate, 10 ms for the next, 100 ms for the others.
fn deadline(priority: Priority) -> Span {
    match priority.number() {
        0 => Span::from_millis(1),
        1 => Span::from_millis(10),
        _ => Span::from_millis(100),
    }
}

/// What a message's equation is.
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

/// The work of hashing a component of RA, in thousandths of an ordinary message's. Lines in work follow what lanes really take.
const COMPONENT_WORK: u32 = 200;
/// The work of a message of ECDSA or Ed25519 of whose signer no multiples were computed ahead.
const NEW_SIGNER_WORK: u32 = 2_500;

/// The lane time that a message takes. What is kept of RA's components is looked up for strangers, who choose them; for known senders it
/// is what their messages took lately.
fn work(message: &Checked, known: bool) -> u32 {
    let key = message.key();
    let (ra, digits) = match (key.material(), message.rapid()) {
        (Material::Ra(ra), Some((digits, _))) => (ra, digits),
        (Material::EcdsaP256(..) | Material::Ed25519(..), _) if !key.has_table() => return NEW_SIGNER_WORK,
        _ => return ORDINARY_WORK,
    };
    let missing = if known {
        ra.recently_missed()
    } else {
        ra.missing(digits)
    };
    // A message has at most 64 components.
    ORDINARY_WORK + COMPONENT_WORK * missing as u32
}

impl Lane<Checked> for OneByOne {
    fn run(&mut self, _: Class, jobs: &mut [Checked], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(jobs.iter().map(|message| outcome(self.holds(message))));
        Ok(())
    }
}

impl Lane<Checked> for Eight {
    fn run(&mut self, _: Class, jobs: &mut [Checked], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(self.holds(jobs).into_iter().map(outcome));
        Ok(())
    }
}

impl Lane<Checked> for Graphics {
    fn run(&mut self, _: Class, jobs: &mut [Checked], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(self.holds(jobs).map_err(lane_lost)?.into_iter().map(outcome));
        Ok(())
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        self.make_masks(count).map_err(lane_lost)
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        self.reopen().map_err(lane_lost)
    }
}

/// The engine knows the lane.
fn lane_lost(lost: Lost) -> LaneLost {
    LaneLost(lost.reason)
}

fn outcome(holds: bool) -> Outcome {
    match holds {
        true => Outcome::Accepted,
        false => Outcome::Rejected,
    }
}

/// A count for each reason of refusal.
#[derive(Default)]
struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    fn count(&self, refusal: Refusal) {
        if let Some(count) = self.0.get(usize::from(refusal.number()) - 1) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Shared {
    receiver: RwLock<Receiver>,
    delivery: Arc<dyn Delivery>,
    places: Option<Arc<Places>>,
    clock: Clock,
    refusals: Refusals,
    received: AtomicU64,
    verified: AtomicU64,
    /// Messages that were dropped on receipt because too many wait, and datagrams that the kernel dropped while a filter was attached.
    crowded_out: AtomicU64,
    /// Senders of valid messages.
    known: Recently,
    /// Sources of strangers' invalid messages.
    suspects: Recently,
}

impl Sink<Checked> for Shared {
    fn done(&self, done: Done<'_, Checked>) {
        let results = done.payloads.drain(..).zip(done.tickets).zip(done.outcomes);
        for ((message, ticket), outcome) in results {
            // Forgeries take no lock.
            if *outcome != Outcome::Accepted {
                self.refusals.count(Refusal::WrongSignature);
                if ticket.stranger {
                    self.suspects.note(ticket.meta.source, done.at);
                    self.known.forget(ticket.meta.sender);
                }
                continue;
            }
            let admitted = {
                let mut receiver = self.receiver.write().unwrap_or_else(PoisonError::into_inner);
                let now = (self.clock)();
                receiver.admit(message, true, now)
            };
            match admitted {
                Ok(verified) => {
                    if let Some(places) = &self.places {
                        places.held(verified.message().key(), done.at);
                    }
                    self.known.note(ticket.meta.sender, done.at);
                    self.verified.fetch_add(1, Ordering::Relaxed);
                    self.delivery
                        .verified(verified, done.at.since(ticket.meta.arrived));
                }
                Err(refusal) => {
                    *outcome = Outcome::Refused;
                    self.refusals.count(refusal);
                }
            }
        }
    }

    /// The core counts them.
    fn dropped(&self, dropped: &mut Vec<Dropped<Checked>>) {
        dropped.clear();
    }
}

/// What computes for a service.
pub struct Lanes {
    /// Each with what it takes.
    pub lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)>,
    /// Whose messages are for devices among them, if there are any.
    pub places: Option<Arc<Places>>,
}

/// A processor does the same for a signer without a place on a device, and takes as long.
fn with_unplaced(mut spec: LaneSpec) -> LaneSpec {
    if spec.kind == LaneKind::Accelerator {
        return spec;
    }
    for class in Class::all() {
        if let (Some(line), Some(unplaced)) = (*spec.lines.of(class), class.unplaced()) {
            spec = spec.with(unplaced, line);
        }
    }
    spec
}

/// A running service.
pub struct Service {
    shared: Arc<Shared>,
    engine: Engine<Checked>,
    submitter: Submitter<Checked>,
    fingerprints: FingerprintKey,
    sources: [u8; 16],
    newcomers: Newcomers,
    flood: Flood,
    jobs: Vec<Job<Checked>>,
}

/// A change to the kernel's flood filter, or the reason why a flood is not filtered.
#[derive(Debug)]
pub enum FloodFilter {
    /// A filter was attached.
    Attached(Filtering),
    /// The flood has ended, and no filter is attached.
    Detached,
    /// The kernel has rejected a filter. After a filter that samples messages, one that samples only other datagrams is tried.
    Rejected(io::Error),
    /// There is a flood of messages, and it passes: more senders are known than a filter has room for.
    TooManySenders,
}

impl FloodFilter {
    /// Its name in events.
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
            Self::Attached(Filtering {
                sample_one_in,
                known_senders: None,
            }) => write!(
                f,
                "flood filter attached: of datagrams that are not messages, one in {sample_one_in} passes"
            ),
            Self::Attached(Filtering {
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

/// What a service has done so far.
#[derive(Debug, Clone)]
pub struct Report {
    /// Datagrams that came in.
    pub received: u64,
    /// Messages that were verified and handed on.
    pub verified: u64,
    /// Refused messages, by reason; those of no message are left out.
    pub refused: Vec<(Refusal, u64)>,
    /// What the engine says.
    pub engine: Snapshot,
}

impl Report {
    /// Messages that were dropped before they were verified, by reason; those of no message are left out.
    #[must_use]
    pub fn shed(&self) -> Vec<(Shed, u64)> {
        self.engine
            .counters
            .shed
            .iter()
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

impl Service {
    /// Starts lanes. `random` is for the keys of hashes, secret.
    ///
    /// # Errors
    /// No lane, or no thread for one.
    pub fn start(
        receiver: Receiver,
        config: Config,
        policy: Box<dyn Policy>,
        Lanes { lanes, places }: Lanes,
        delivery: Arc<dyn Delivery>,
        clock: Clock,
        random: [[u8; 16]; 2],
    ) -> Result<Self, EngineError> {
        let [fingerprints, sources] = random;
        let shared = Arc::new(Shared {
            receiver: RwLock::new(receiver),
            delivery,
            places,
            clock,
            refusals: Refusals::default(),
            received: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            crowded_out: AtomicU64::new(0),
            known: Recently::default(),
            suspects: Recently::default(),
        });
        let sink: Arc<dyn Sink<Checked>> = Arc::<Shared>::clone(&shared);
        let lanes = lanes.into_iter().map(|(spec, lane)| (with_unplaced(spec), lane));
        let engine = Engine::start(config, policy, lanes.collect(), sink)?;
        Ok(Self {
            submitter: engine.submitter(),
            shared,
            engine,
            fingerprints: FingerprintKey::new(fingerprints),
            sources,
            newcomers: Newcomers::new(),
            flood: Flood::new(&sources),
            jobs: Vec::new(),
        })
    }

    /// Takes in a datagram; it is handed to the lanes with others, by [`Service::submit`]. While messages of strangers wait for too long,
    /// those of sources that have sent invalid ones are dropped here, and those of new sources beyond a rate.
    pub fn take(&mut self, datagram: &Datagram<'_>) {
        self.shared.received.fetch_add(1, Ordering::Relaxed);
        match self.job(datagram) {
            Ok(Some(job)) => self.jobs.push(job),
            Ok(None) => {
                self.shared.crowded_out.fetch_add(1, Ordering::Relaxed);
            }
            Err(refusal) => self.shared.refusals.count(refusal),
        }
    }

    /// Returns `None` if a stranger's message is dropped because too many wait.
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
        let from = Origin::of(address, key, &self.sources);
        let mut stranger = None;
        if self.shared.known.has(from.sender, arrived) {
            self.flood.record_known(address, key, from.sender, arrived);
        } else {
            let is_crowded = self.submitter.is_crowded();
            let when = (arrived, is_crowded);
            let counted = self.flood.record_stranger(address, key, from.sender, when);
            if is_crowded && self.is_crowded_out(from.source, (key, counted), arrived)? {
                return Ok(None);
            }
            stranger = Some(counted);
        }
        let screened = self.screen(datagram);
        if let Some(stranger) = stranger {
            match &screened {
                Ok(_) => self.flood.record_candidate(stranger),
                Err(_) => self.flood.record_refusal(stranger),
            }
        }
        let (message, fresh_for) = screened?;
        let priority = message.stamp().priority;
        let meta = Meta {
            sender: from.sender,
            work: work(&message, stranger.is_none()),
            deadline: arrived + deadline(priority),
            // Verified later, it would be refused as too old.
            expires: self.submitter.now() + fresh_for,
            fingerprint: Some(self.fingerprints.of(message.bytes())),
            ..Meta::new(self.class(&message), priority, from.source, arrived)
        };
        Ok(Some(Job {
            meta,
            payload: message,
        }))
    }

    /// A malformed message in a known sender's name passes every filter. Such a message is not counted, since a filter would not drop it.
    fn record_malformed(&mut self, datagram: &Datagram<'_>, arrived: Time) {
        let address = datagram.sender.ip();
        let Some(key) = Envelope::named_signer(datagram.bytes) else {
            self.flood.record_non_message(arrived);
            return;
        };
        let sender = Origin::of(address, key, &self.sources).sender;
        if self.shared.known.has(sender, arrived) {
            self.flood.record_passing(arrived);
        } else {
            let stranger = self.flood.record_stranger(address, key, sender, (arrived, false));
            self.flood.record_refusal(stranger);
        }
    }

    /// The message if it may be verified, and how long it is fresh.
    fn screen(&self, datagram: &Datagram<'_>) -> Result<(Checked, Span), Refusal> {
        let now = (self.shared.clock)();
        let receiver = self
            .shared
            .receiver
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let message = receiver.screen(datagram.bytes.to_vec(), now)?;
        let fresh_for_ms = receiver.fresh_for_ms(message.stamp(), now);
        Ok((message, Span::from_millis(fresh_for_ms)))
    }

    /// Whether to drop a stranger's message because too many wait. A message that names an unknown signer is refused, and does not count
    /// toward the rate limit of new senders.
    fn is_crowded_out(
        &mut self,
        source: Source,
        (key, stranger): (KeyId, Stranger),
        now: Time,
    ) -> Result<bool, Refusal> {
        if self.shared.suspects.has(source, now) {
            return Ok(true);
        }
        let receiver = self
            .shared
            .receiver
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if !receiver.has_signer(key) {
            self.flood.record_refusal(stranger);
            return Err(Refusal::UnknownSigner);
        }
        Ok(!self.newcomers.try_take(now))
    }

    /// Hands what was taken in to the lanes.
    ///
    /// # Errors
    /// The service has been shut down.
    pub fn submit(&mut self) -> Result<(), Closed> {
        self.submitter.submit(&mut self.jobs)
    }

    /// Attaches, replaces or detaches the flood filter on the inbox's socket (ADR 54). Call after every receive. Returns a change if a filter
    /// was attached, detached or rejected, or starts or stops sampling messages. A new sample rate or a new list of known senders alone is not
    /// returned. While a flood of messages passes because too many senders are known, [`FloodFilter::TooManySenders`] is returned repeatedly.
    ///
    /// # Errors
    /// The socket's drop counter cannot be read, or a filter cannot be detached.
    pub fn update_flood_filter(&mut self, inbox: &mut Inbox) -> io::Result<Option<FloodFilter>> {
        let now = self.submitter.now();
        let before = self.flood.filtering();
        if before.is_some() && !inbox.has_filter() {
            self.flood.record_new_socket(now);
        }
        let received_until = self.submitter.at(inbox.received_until());
        let known = &self.shared.known;
        let change = self
            .flood
            .update(now, received_until, |sender| known.has(sender, now));
        match change {
            None => return Ok(None),
            Some(FilterChange::Attach(program)) => match inbox.attach_filter(&program)? {
                Attachment::Rejected(error) => {
                    self.flood.record_rejection(now);
                    return Ok(Some(FloodFilter::Rejected(error)));
                }
                Attachment::Attached { replaced } => {
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
        let filtering = self.flood.filtering();
        let kind =
            |filtering: Option<Filtering>| filtering.map(|filtering| filtering.known_senders.is_some());
        if kind(before) == kind(filtering) {
            return Ok(None);
        }
        Ok(Some(
            filtering.map_or(FloodFilter::Detached, FloodFilter::Attached),
        ))
    }

    /// Counts what the kernel has dropped while a filter was attached. Call before a report is made.
    ///
    /// # Errors
    /// The kernel's.
    pub fn count_filtered(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let filtered = inbox.take_filtered()?;
        self.shared.crowded_out.fetch_add(filtered, Ordering::Relaxed);
        Ok(())
    }

    /// What only processors are to be given, since the signer has no place on a device, is a class of its own.
    fn class(&self, message: &Checked) -> Class {
        let class = class(message.key().scheme());
        match (class.unplaced(), &self.shared.places) {
            (Some(unplaced), Some(places)) if !places.has(message.key()) => unplaced,
            _ => class,
        }
    }

    /// Takes over a list of revoked signers, and gives back the one before; it also holds for messages that wait.
    pub fn set_revoked(&self, revoked: Revocations) -> Revocations {
        let mut receiver = self
            .shared
            .receiver
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        receiver.set_revoked(revoked)
    }

    /// Messages that were verified and handed on so far.
    #[must_use]
    pub fn verified(&self) -> u64 {
        self.shared.verified.load(Ordering::Relaxed)
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// None, but for the histograms' types.
    pub fn report(&self) -> Result<Report, EngineError> {
        Ok(report(&self.shared, self.engine.snapshot()?))
    }

    /// Ends it: what was taken in is worked on, and handed on.
    ///
    /// # Errors
    /// None, but for the histograms' types.
    pub fn finish(mut self) -> Result<Report, EngineError> {
        // Only a service that has been shut down takes nothing, and this is the only place where it is.
        let _ = self.submit();
        let shared = Arc::clone(&self.shared);
        let (_, engine) = self.engine.shut_down(Ending::Finish)?;
        Ok(report(&shared, engine))
    }
}

fn report(shared: &Shared, mut engine: Snapshot) -> Report {
    let crowded_out = shared.crowded_out.load(Ordering::Relaxed);
    engine.counters.shed.add(Shed::Crowded, crowded_out);
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
    fn processors_do_what_devices_are_not_given() {
        let line = crate::scheduler::model::Line::new(Span::from_micros(1), 1e4);
        let of = |kind| {
            let spec = LaneSpec::new("a lane", kind)
                .with(Class::RA_VERIFY, line)
                .with(Class::P256_VERIFY, line);
            let lines = with_unplaced(spec).lines;
            Class::all()
                .filter(|class| lines.of(*class).is_some())
                .collect::<Vec<_>>()
        };
        let both = [Class::RA_VERIFY, Class::P256_VERIFY];
        assert_eq!(of(LaneKind::Accelerator), both);
        assert_eq!(
            of(LaneKind::Cpu),
            [
                both.as_slice(),
                &[Class::RA_VERIFY_UNPLACED, Class::P256_VERIFY_UNPLACED]
            ]
            .concat()
        );
    }
}
