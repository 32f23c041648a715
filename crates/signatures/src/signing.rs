//! A signer behind the scheduler: payloads in, signed messages out; masks are made while nothing else is to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use linewarden_arithmetic::Backend;

use crate::lane::{Graphics, Lost};
use crate::message::{PayloadKind, Stamp};
use crate::ra::Mask;
use crate::scheduler::engine::{
    Closed, Done, Ending, Engine, EngineError, Lane, LaneLost, Sink, Snapshot, Submitter,
};
use crate::scheduler::model::Line;
use crate::scheduler::policy::Policy;
use crate::scheduler::{
    Class, Config, Dropped, Job, LaneKind, LaneSpec, MaskLimits, Meta, Outcome, PerClass, QuotaLimits, Rate,
    Source, Span,
};
use crate::scheme::Scheme;
use crate::signer::{SignError, Signed, Signer, ToSign, Way};

/// Messages that are being signed at most; whoever has more waits. A submission for which there is never room goes alone.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// As many may always be, and as many are in the beginning.
const IN_FLIGHT_MIN: usize = 64;
/// How long a message may wait to be signed: its stamp is from before, and receivers refuse it by that after five seconds. Where
/// processors take longer, fewer may be on their way.
const WAIT_MAX: Span = Span::from_millis(250);

/// Where signed messages go. Called from lanes' threads.
pub trait Dispatch: Send + Sync {
    /// Messages that were signed together.
    fn signed(&self, messages: Vec<Vec<u8>>);
}

/// A message on its way through the lanes.
#[derive(Debug)]
pub struct Item {
    message: ToSign,
    signed: Option<Signed>,
}

/// A processor that signs.
pub struct SigningLane {
    signer: Arc<Signer>,
    problem: Arc<Mutex<Option<SignError>>>,
}

/// A GPU that makes masks while it is idle, and signs with masks where there are many messages.
struct DeviceLane {
    device: Graphics,
    signing: SigningLane,
}

/// Why a batch was not signed.
enum Failed {
    /// Another lane may do it.
    Lane(Lost),
    /// No lane would.
    Signer(SignError),
}

impl From<SignError> for Failed {
    fn from(error: SignError) -> Self {
        Self::Signer(error)
    }
}

/// How signing is done.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Processors that sign, at least one.
    pub lanes: usize,
    /// Masks that they and GPUs keep ready when they are idle; with fewer than a quarter of them they begin to make more.
    pub idle_masks: usize,
}

/// How many messages were signed, by the way in which they were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// By a plain scheme.
    pub plain: u64,
    /// By RA with a mask.
    pub masked: u64,
    /// By RA without one.
    pub dry: u64,
    /// Given up by the scheduler: every processor failed at it, or too much was submitted at once.
    pub lost: u64,
}

impl Counts {
    /// All that were signed.
    #[must_use]
    pub fn total(self) -> u64 {
        self.plain + self.masked + self.dry
    }
}

/// A running signer.
pub struct SigningService {
    signer: Arc<Signer>,
    class: Class,
    engine: Engine<Item>,
    submitter: Submitter<Item>,
    shared: Arc<Shared>,
    problem: Arc<Mutex<Option<SignError>>>,
    jobs: Vec<Job<Item>>,
}

struct Shared {
    dispatch: Arc<dyn Dispatch>,
    /// By [`Way`].
    counts: [AtomicU64; 3],
    /// Messages that no lane signed.
    lost: AtomicU64,
    flight: Mutex<Flight>,
    came_back: Condvar,
}

/// What is on its way.
struct Flight {
    count: usize,
    /// More are not let go.
    limit: usize,
}

impl Flight {
    /// These are on their way no more, and say nothing of how long that takes.
    fn forget(&mut self, count: usize) {
        self.count = self.count.saturating_sub(count);
    }

    /// Fewer from now on where these have waited too long, more where they have hardly waited.
    fn land(&mut self, count: usize, waited: Span) {
        self.forget(count);
        if waited > WAIT_MAX {
            self.limit = (self.limit / 2).max(IN_FLIGHT_MIN);
        } else if waited < Span::from_nanos(WAIT_MAX.as_nanos() / 4) {
            self.limit = (self.limit + count).min(IN_FLIGHT_MAX);
        }
    }
}

impl Shared {
    fn count(&self, way: Way) {
        let [plain, masked, dry] = &self.counts;
        let count = match way {
            Way::Plain => plain,
            Way::Masked => masked,
            Way::Dry => dry,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> Counts {
        let [plain, masked, dry] = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let lost = self.lost.load(Ordering::Relaxed);
        Counts {
            plain,
            masked,
            dry,
            lost,
        }
    }

    fn land(&self, land: impl FnOnce(&mut Flight)) {
        land(&mut self.flight.lock().unwrap_or_else(PoisonError::into_inner));
        self.came_back.notify_all();
    }

    /// Waits until so many more may be on their way.
    fn await_room(&self, count: usize) -> MutexGuard<'_, Flight> {
        let flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
        let too_many =
            |flight: &mut Flight| flight.count > 0 && count > 0 && flight.count + count > flight.limit;
        let flight = self.came_back.wait_while(flight, too_many);
        flight.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink<Item> for Shared {
    fn done(&self, done: Done<'_, Item>) {
        /// Lands what it was made for, also when whoever sends panics.
        struct Landing<'a>(&'a Shared, usize, Span);
        impl Drop for Landing<'_> {
            fn drop(&mut self) {
                self.0.land(|flight| flight.land(self.1, self.2));
            }
        }
        let waited = done
            .tickets
            .iter()
            .map(|ticket| done.at.since(ticket.meta.arrived));
        let _landing = Landing(self, done.payloads.len(), waited.max().unwrap_or_default());
        let handed_in = done.payloads.len();
        let signed = done.payloads.drain(..).filter_map(|item| item.signed);
        let (messages, ways): (Vec<_>, Vec<_>) = signed.map(|signed| (signed.bytes, signed.way)).unzip();
        self.lost
            .fetch_add((handed_in - ways.len()) as u64, Ordering::Relaxed);
        self.dispatch.signed(messages);
        ways.into_iter().for_each(|way| self.count(way));
    }

    /// Nothing expires: this is what every lane failed at, or a submission that is longer than the queue takes from one source.
    fn dropped(&self, dropped: &mut Vec<Dropped<Item>>) {
        self.lost.fetch_add(dropped.len() as u64, Ordering::Relaxed);
        self.land(|flight| flight.forget(dropped.len()));
        dropped.clear();
    }
}

impl SigningLane {
    /// What became of a batch. Of what no other lane would do better the sender is told.
    fn finish(&self, signed: Result<Vec<Signed>, SignError>, jobs: &mut [Item], outcomes: &mut Vec<Outcome>) {
        match signed {
            Ok(signed) => {
                for (item, signed) in jobs.iter_mut().zip(signed) {
                    item.signed = Some(signed);
                    outcomes.push(Outcome::Accepted);
                }
            }
            Err(error) => {
                *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                outcomes.resize(jobs.len(), Outcome::Rejected);
            }
        }
    }
}

impl Lane<Item> for SigningLane {
    fn run(&mut self, class: Class, jobs: &mut [Item], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        let messages: Vec<&ToSign> = jobs.iter().map(|item| &item.message).collect();
        // The scheduler counts masks: what it has given out for one batch is not another's.
        let signed = match class {
            Class::RSA_SIGN => self.signer.sign_without_masks(&messages),
            _ => self.signer.sign(&messages),
        };
        self.finish(signed, jobs, outcomes);
        Ok(())
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        match self.signer.refill(count) {
            Ok(made) => Ok(made),
            Err(error) => {
                *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Ok(0)
            }
        }
    }
}

impl Lane<Item> for DeviceLane {
    /// Messages for which there is no mask any more are signed by this thread's processor.
    fn run(&mut self, _: Class, jobs: &mut [Item], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        let messages: Vec<&ToSign> = jobs.iter().map(|item| &item.message).collect();
        let (device, signer) = (&mut self.device, &self.signing.signer);
        // Masks are taken once it is known that there is something to sign with.
        if let Some((table, digits)) = messages.first().and_then(|message| signer.ready_for(message)) {
            device
                .prepare(table, digits)
                .map_err(|lost| LaneLost(lost.reason))?;
        }
        let signed = signer.sign_by(&messages, |_, masks, digits| {
            device.sign(masks, digits).map_err(Failed::Lane)
        });
        let signed = match signed {
            Ok(signed) => Ok(signed),
            Err(Failed::Signer(error)) => Err(error),
            Err(Failed::Lane(lost)) => return Err(LaneLost(lost.reason)),
        };
        self.signing.finish(signed, jobs, outcomes);
        Ok(())
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        self.device
            .make_masks(count)
            .map_err(|lost| LaneLost(lost.reason))
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        self.device.reopen().map_err(|lost| LaneLost(lost.reason))
    }
}

impl SigningService {
    /// Starts its processors, and GPUs if the key is one of RA: for masks, unless none are to be kept ready, and for messages.
    ///
    /// # Errors
    /// No lane, or no thread for one.
    pub fn start(
        signer: Arc<Signer>,
        settings: Settings,
        gpus: Vec<Graphics>,
        policy: Box<dyn Policy>,
        dispatch: Arc<dyn Dispatch>,
    ) -> Result<Self, EngineError> {
        signer.warm_up();
        let class = class(signer.public().scheme());
        let problem = Arc::new(Mutex::new(None));
        let shared = Arc::new(Shared {
            dispatch,
            counts: [const { AtomicU64::new(0) }; 3],
            lost: AtomicU64::new(0),
            flight: Mutex::new(Flight {
                count: 0,
                limit: IN_FLIGHT_MIN,
            }),
            came_back: Condvar::new(),
        });
        let signing = || SigningLane {
            signer: Arc::clone(&signer),
            problem: Arc::clone(&problem),
        };
        let lane = |number| (spec(number, settings), Box::new(signing()) as Box<dyn Lane<Item>>);
        let sink: Arc<dyn Sink<Item>> = Arc::<Shared>::clone(&shared);
        // What a GPU does not sign needs one.
        let mut lanes: Vec<_> = (0..settings.lanes.max(1)).map(lane).collect();
        if class == Class::RA_SIGN {
            lanes.extend(gpus.into_iter().map(|gpu| device_lane(gpu, signing(), settings)));
        }
        let stock = usize::try_from(signer.masks()).unwrap_or(usize::MAX);
        let engine = Engine::start(config(class, stock, settings), policy, lanes, sink)?;
        Ok(Self {
            submitter: engine.submitter(),
            signer,
            class,
            engine,
            shared,
            problem,
            jobs: Vec::new(),
        })
    }

    /// Waits until so many messages may be handed over at once: whoever does so before he stamps them has none wait with its stamp on, but
    /// those that are being signed.
    pub fn await_room(&self, count: usize) {
        drop(self.shared.await_room(count));
    }

    /// Takes in a payload; it is handed to the lanes with others, by [`SigningService::submit`].
    ///
    /// # Errors
    /// A payload that this key does not sign.
    pub fn take(&mut self, stamp: Stamp, kind: PayloadKind, payload: &[u8]) -> Result<(), SignError> {
        let message = self.signer.prepare(stamp, kind, payload)?;
        let meta = Meta::new(self.class, stamp.priority, Source(0), self.submitter.now());
        let signed = None;
        let payload = Item { message, signed };
        self.jobs.push(Job { meta, payload });
        Ok(())
    }

    /// Payloads that were taken in and not handed over yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// Hands what was taken in to the lanes; waits while they have too much.
    ///
    /// # Errors
    /// The service has been shut down.
    pub fn submit(&mut self) -> Result<(), Closed> {
        self.shared.await_room(self.jobs.len()).count += self.jobs.len();
        self.submitter.submit(&mut self.jobs)
    }

    /// What the engine says so far.
    ///
    /// # Errors
    /// None, but for the histograms' types.
    pub fn snapshot(&self) -> Result<Snapshot, EngineError> {
        self.engine.snapshot()
    }

    /// What was signed and handed on so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Why the last message was not signed that was not, once.
    #[must_use]
    pub fn problem(&self) -> Option<SignError> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends it: what was taken in is signed, and handed on. What was signed, what the engine says, and the last problem.
    ///
    /// # Errors
    /// None, but for the histograms' types.
    pub fn finish(mut self) -> Result<(Counts, Snapshot, Option<SignError>), EngineError> {
        // Only a service that has been shut down takes nothing, and this is the only place where it is.
        let _ = self.submit();
        let problem = Arc::clone(&self.problem);
        let shared = Arc::clone(&self.shared);
        let (left, snapshot) = self.engine.shut_down(Ending::Finish)?;
        let problem = problem.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut counts = shared.counts();
        counts.lost += left.len() as u64;
        Ok((counts, snapshot, problem))
    }
}

/// What signing with a key of this scheme is.
fn class(scheme: Scheme) -> Class {
    match scheme {
        Scheme::RaRsa2048 | Scheme::RaRsa3072 => Class::RA_SIGN,
        Scheme::RsaPss2048 | Scheme::RsaPss3072 => Class::RSA_SIGN,
        Scheme::EcdsaP256 => Class::P256_SIGN,
        Scheme::Ed25519 => Class::ED25519_SIGN,
    }
}

/// A processor, with what it does a second where nothing has been measured yet: the engine corrects it as it goes.
fn spec(number: usize, settings: Settings) -> LaneSpec {
    let rates = [
        (Class::RA_SIGN, 20_000.0),
        (Class::RSA_SIGN, 1_000.0),
        (Class::MASK_REFILL, 1_000.0),
        (Class::P256_SIGN, 40_000.0),
        (Class::ED25519_SIGN, 60_000.0),
    ];
    // Side by side eight take as long as some four one after the other; without vectors nothing is gained by taking them together.
    let grain = Backend::widest().map_or(1, |_| 8);
    let spec = LaneSpec::new(format!("cpu {number}"), LaneKind::Cpu).with_grain(grain);
    let spec = rates.into_iter().fold(spec, |spec, (class, rate)| {
        spec.with(class, Line::new(Span::from_micros(1), rate))
    });
    match settings.idle_masks {
        0 => spec,
        _ => spec.refilling(),
    }
}

fn device_lane(gpu: Graphics, signing: SigningLane, settings: Settings) -> (LaneSpec, Box<dyn Lane<Item>>) {
    let pool = Arc::clone(&signing.signer);
    let deliver = Box::new(move |masks: Vec<Mask>| pool.add_masks(masks));
    let device = gpu.with_signer(Arc::clone(signing.signer.key()), deliver);
    let spec = device.spec();
    let wanted = |class| match class {
        Class::RA_SIGN => true,
        Class::MASK_REFILL => settings.idle_masks > 0,
        _ => false,
    };
    let spec = LaneSpec {
        lines: PerClass::from_fn(|class| spec.lines.of(class).filter(|_| wanted(class))),
        refills: wanted(Class::MASK_REFILL),
        ..spec
    };
    let spec = spec.with_batch_max(Graphics::SIGNED_MAX);
    (spec, Box::new(DeviceLane { device, signing }))
}

/// What a GPU makes masks for in one go: a signature by CRT takes it some milliseconds, and as many again at once.
const GPU_SLICE: Span = Span::from_millis(20);

/// Its own messages are all as urgent as they say.
fn config(class: Class, stock: usize, settings: Settings) -> Config {
    let unbounded = Rate {
        burst: u32::MAX,
        interval: Span::from_nanos(1),
    };
    let defaults = Config::default();
    let masks = (class == Class::RA_SIGN).then_some(MaskLimits {
        sign: Class::RA_SIGN,
        plain: Class::RSA_SIGN,
        refill: Class::MASK_REFILL,
        low: settings.idle_masks / 4,
        high: settings.idle_masks,
        stock,
        slice: GPU_SLICE,
    });
    Config {
        quotas: QuotaLimits {
            source: unbounded,
            strangers: unbounded,
            ..defaults.quotas
        },
        masks,
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::rapid::tests::{PAYLOADS, key, stamp, table};
    use crate::gpu::{BatchError, Emulation, Gpu, NoGpu};
    use crate::lane::{KeyMemory, Places};

    fn items(signer: &Signer) -> Vec<Item> {
        let item = |payload: &[u8; 1]| Item {
            message: signer.prepare(stamp(), PayloadKind::Opaque, payload).unwrap(),
            signed: None,
        };
        PAYLOADS.iter().map(item).collect()
    }

    /// Kernels for this processor stand in for a GPU, which is lost after so many calls.
    fn gpu(calls: u64) -> Result<Graphics, NoGpu> {
        let open = move || {
            let emulation = Emulation {
                calls,
                ..Emulation::default()
            };
            Gpu::emulated(emulation).map_err(|lost| NoGpu::from(BatchError::from(lost)))
        };
        let memory = KeyMemory {
            table_bytes: 1 << 20,
            rsa_keys: 1,
            p256_keys: 1,
        };
        Graphics::opened_by(Box::new(open), Arc::new(Places::new([], memory)))
    }

    fn lane(signer: &Arc<Signer>, gpu: Graphics) -> Box<dyn Lane<Item>> {
        let signing = SigningLane {
            signer: Arc::clone(signer),
            problem: Arc::default(),
        };
        let settings = Settings {
            lanes: 1,
            idle_masks: 0,
        };
        let (spec, lane) = device_lane(gpu, signing, settings);
        assert!(spec.lines.of(Class::RA_SIGN).is_some() && !spec.refills);
        lane
    }

    fn signer() -> Arc<Signer> {
        let key = key();
        let table = table(key.ra().unwrap());
        Arc::new(Signer::new(key, Some(table), None))
    }

    fn check(signer: &Signer, items: &[Item], ways: [Way; 3]) {
        let public = signer.public().ra().unwrap();
        for ((item, way), payload) in items.iter().zip(ways).zip(PAYLOADS) {
            let signed = item.signed.as_ref().unwrap();
            assert_eq!(signed.way, way);
            let (rest, number) = signed.bytes.split_at(signed.bytes.len() - 256);
            let digits = public
                .layout()
                .digits(stamp(), PayloadKind::Opaque, &payload)
                .unwrap();
            assert!(public.verify(rest.last_chunk().unwrap(), &digits, number));
        }
    }

    #[test]
    fn a_gpu_signs_with_the_masks_that_there_are() {
        let signer = signer();
        let mut lane = lane(&signer, gpu(u64::MAX).unwrap());
        for (masks, ways) in [(3, [Way::Masked; 3]), (2, [Way::Masked, Way::Masked, Way::Dry])] {
            signer.refill(masks).unwrap();
            let (mut items, mut outcomes) = (items(&signer), Vec::new());
            lane.run(Class::RA_SIGN, &mut items, &mut outcomes).unwrap();
            assert_eq!((outcomes, signer.masks()), (vec![Outcome::Accepted; 3], 0));
            check(&signer, &items, ways);
        }
    }

    /// Nothing is signed by a batch whose device is lost, and no mask is taken where there is nothing to sign with.
    #[test]
    fn a_gpu_that_is_lost_leaves_its_messages() {
        let signer = signer();
        // The masks that a batch took whose device failed after so many calls; `None`: its messages were signed.
        let masks_taken = |calls| {
            let Ok(gpu) = gpu(calls) else { return Some(0) };
            let mut lane = lane(&signer, gpu);
            signer.refill(3).unwrap();
            let before = signer.masks();
            let (mut items, mut outcomes) = (items(&signer), Vec::new());
            if lane.run(Class::RA_SIGN, &mut items, &mut outcomes).is_ok() {
                check(&signer, &items, [Way::Masked; 3]);
                return None;
            }
            assert!(outcomes.is_empty() && items.iter().all(|item| item.signed.is_none()));
            Some(before - signer.masks())
        };
        let (mut too_few, mut enough) = (0u64, 1);
        while masks_taken(enough).is_some() {
            (too_few, enough) = (enough, 2 * enough);
        }
        while enough - too_few > 1 {
            let between = u64::midpoint(too_few, enough);
            match masks_taken(between) {
                Some(_) => too_few = between,
                None => enough = between,
            }
        }
        // Nearly all bring the table there, part by part: of them a few, and each of those that sign and verify.
        let last = enough - 32;
        let some = (0..last).step_by(61).chain(last..enough);
        let taken: Vec<u64> = some.map(|calls| masks_taken(calls).unwrap()).collect();
        println!("{enough} calls; masks that were taken: {taken:?}");
        assert!(taken.is_sorted() && taken.last() == Some(&3));
        // Not because there was no device yet.
        assert!(gpu(last).is_ok() && taken[taken.len() - 32..].contains(&0));
        assert!(taken.iter().all(|taken| [0, 3].contains(taken)));
    }

    /// Processors that sign `per_s` messages a second, and a sender that always has more, in submissions of 64.
    fn longest_wait_ms(per_s: u64) -> u64 {
        let mut flight = Flight {
            count: 0,
            limit: IN_FLIGHT_MIN,
        };
        let mut longest = 0;
        for round in 0..10_000 {
            while flight.count == 0 || flight.count + 64 <= flight.limit {
                flight.count += 64;
            }
            let waited_ms = flight.count as u64 * 1_000 / per_s;
            if round > 100 {
                longest = longest.max(waited_ms);
            }
            flight.land(8, Span::from_millis(waited_ms));
        }
        longest
    }

    #[test]
    fn no_message_waits_until_its_stamp_is_too_old() {
        // RSA-3072 on one processor, and on a slow one; RA with masks; Ed25519 on eight.
        for (per_s, most_ms) in [(440, 350), (64, 1_000), (20_000, 300), (400_000, 11)] {
            let waited_ms = longest_wait_ms(per_s);
            assert!(waited_ms <= most_ms, "{per_s}/s: {waited_ms} ms");
        }
        // Who is fast enough has as many on their way as there may be.
        assert_eq!(longest_wait_ms(400_000), IN_FLIGHT_MAX as u64 * 1_000 / 400_000);
    }
}
