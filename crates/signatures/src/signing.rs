//! A signer behind the scheduler: payloads in, signed messages out. Idle lanes make masks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use linewarden_arithmetic::Backend;

use crate::lane::{GpuLane, VerifierLost};
use crate::message::{PayloadKind, Stamp};
use crate::ra::Mask;
use crate::scheduler::engine::{
    BatchResult, Engine, EngineClosed, EngineError, Lane, LaneLost, ShutdownMode, Sink, Snapshot, Submitter,
};
use crate::scheduler::model::CostModel;
use crate::scheduler::policy::Policy;
use crate::scheduler::{
    Class, Config, Dropped, Job, LaneKind, LaneSpec, MaskLimits, Meta, Outcome, PerClass, QuotaLimits, Rate,
    Source, Span,
};
use crate::scheme::Scheme;
use crate::signer::{PreparedMessage, SignError, Signed, Signer, SigningMethod};

/// Highest limit of messages in flight; [`SigningService::submit`] waits while the limit is reached. A submission larger than the limit
/// waits until no message is in flight.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Lowest limit of messages in flight, and the limit at the start.
const IN_FLIGHT_MIN: usize = 64;
/// How long a message may wait for its signature. The stamp is older than the signature, and receivers refuse messages older than five
/// seconds. If messages wait longer, the limit of messages in flight shrinks.
const WAIT_MAX: Span = Span::from_millis(250);

/// Receives signed messages. Called from the threads of lanes.
pub trait SignedMessageSink: Send + Sync {
    /// Messages that were signed in one batch.
    fn signed(&self, messages: Vec<Vec<u8>>);
}

/// A message on its path through the lanes.
#[derive(Debug)]
pub struct SigningJob {
    message: PreparedMessage,
    signed: Option<Signed>,
}

/// A CPU lane that signs.
pub struct SigningLane {
    signer: Arc<Signer>,
    last_error: Arc<Mutex<Option<SignError>>>,
}

/// A GPU lane that makes masks while idle, and signs large batches with masks.
struct GpuSigningLane {
    gpu: GpuLane,
    signing: SigningLane,
}

/// Why a batch was not signed.
enum BatchFailure {
    /// Another lane may sign the batch.
    Lane(VerifierLost),
    /// No lane could sign the batch.
    Signer(SignError),
}

impl From<SignError> for BatchFailure {
    fn from(error: SignError) -> Self {
        Self::Signer(error)
    }
}

/// Settings of a signing service.
#[derive(Debug, Clone, Copy)]
pub struct SigningSettings {
    /// Number of CPU lanes, at least one.
    pub lanes: usize,
    /// Masks that idle lanes keep ready; refilling starts below a quarter of this number.
    pub idle_masks: usize,
}

/// Signed messages by method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SigningCounts {
    /// Messages signed with a plain scheme.
    pub plain: u64,
    /// Messages signed with RA and a mask.
    pub masked: u64,
    /// Messages signed with RA and without a mask.
    pub unmasked: u64,
    /// Messages that were not signed: signing failed, no lane could process them, or their submission was too large.
    pub failed: u64,
}

impl SigningCounts {
    /// All signed messages.
    #[must_use]
    pub fn signed(self) -> u64 {
        self.plain + self.masked + self.unmasked
    }
}

/// A running signing service.
pub struct SigningService {
    signer: Arc<Signer>,
    class: Class,
    engine: Engine<SigningJob>,
    submitter: Submitter<SigningJob>,
    shared: Arc<Shared>,
    last_error: Arc<Mutex<Option<SignError>>>,
    jobs: Vec<Job<SigningJob>>,
}

struct Shared {
    sink: Arc<dyn SignedMessageSink>,
    /// Indexed by [`SigningMethod`].
    counts: [AtomicU64; 3],
    /// Messages that no lane signed.
    failed: AtomicU64,
    in_flight: Mutex<InFlight>,
    /// Notified when messages are no longer in flight.
    completed: Condvar,
}

/// Messages in flight.
struct InFlight {
    count: usize,
    /// Limit of `count`.
    limit: usize,
}

impl InFlight {
    /// Subtracts messages that give no information about waiting times, such as dropped messages.
    fn remove(&mut self, count: usize) {
        self.count = self.count.saturating_sub(count);
    }

    /// Subtracts completed messages. Lowers the limit if a message waited too long; raises the limit if all messages
    /// waited only briefly.
    fn complete(&mut self, count: usize, waited: Span) {
        self.remove(count);
        if waited > WAIT_MAX {
            self.limit = (self.limit / 2).max(IN_FLIGHT_MIN);
        } else if waited < Span::from_nanos(WAIT_MAX.as_nanos() / 4) {
            self.limit = (self.limit + count).min(IN_FLIGHT_MAX);
        }
    }
}

impl Shared {
    fn count(&self, method: SigningMethod) {
        let [plain, masked, unmasked] = &self.counts;
        let count = match method {
            SigningMethod::Plain => plain,
            SigningMethod::Masked => masked,
            SigningMethod::Unmasked => unmasked,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> SigningCounts {
        let [plain, masked, unmasked] = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let failed = self.failed.load(Ordering::Relaxed);
        SigningCounts {
            plain,
            masked,
            unmasked,
            failed,
        }
    }

    fn complete(&self, update: impl FnOnce(&mut InFlight)) {
        update(&mut self.in_flight.lock().unwrap_or_else(PoisonError::into_inner));
        self.completed.notify_all();
    }

    /// Waits until `count` more messages may be in flight.
    fn wait_for_capacity(&self, count: usize) -> MutexGuard<'_, InFlight> {
        let in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let too_many = |in_flight: &mut InFlight| {
            in_flight.count > 0 && count > 0 && in_flight.count + count > in_flight.limit
        };
        let in_flight = self.completed.wait_while(in_flight, too_many);
        in_flight.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink<SigningJob> for Shared {
    fn done(&self, result: BatchResult<'_, SigningJob>) {
        /// Completes the messages when dropped, even if the sink panics.
        struct CompletionGuard<'a>(&'a Shared, usize, Span);
        impl Drop for CompletionGuard<'_> {
            fn drop(&mut self) {
                self.0.complete(|flight| flight.complete(self.1, self.2));
            }
        }
        let waited = result
            .entries
            .iter()
            .map(|entry| result.ended_at.saturating_since(entry.meta.arrived));
        let _guard = CompletionGuard(self, result.payloads.len(), waited.max().unwrap_or_default());
        let count = result.payloads.len();
        let signed = result.payloads.drain(..).filter_map(|job| job.signed);
        let (messages, methods): (Vec<_>, Vec<_>) =
            signed.map(|signed| (signed.bytes, signed.method)).unzip();
        self.failed
            .fetch_add((count - methods.len()) as u64, Ordering::Relaxed);
        self.sink.signed(messages);
        methods.into_iter().for_each(|method| self.count(method));
    }

    /// Jobs have no expiry: a dropped job failed on every lane, or its submission exceeded the queue share of one source.
    fn dropped(&self, dropped: &mut Vec<Dropped<SigningJob>>) {
        self.failed.fetch_add(dropped.len() as u64, Ordering::Relaxed);
        self.complete(|flight| flight.remove(dropped.len()));
        dropped.clear();
    }
}

impl SigningLane {
    /// Stores the results of a batch. An error, which every lane would have, is kept until [`SigningService::take_last_error`] is called.
    fn finish(
        &self,
        signed: Result<Vec<Signed>, SignError>,
        jobs: &mut [SigningJob],
        outcomes: &mut Vec<Outcome>,
    ) {
        match signed {
            Ok(signed) => {
                for (job, signed) in jobs.iter_mut().zip(signed) {
                    job.signed = Some(signed);
                    outcomes.push(Outcome::Accepted);
                }
            }
            Err(error) => {
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                outcomes.resize(jobs.len(), Outcome::Rejected);
            }
        }
    }
}

impl Lane<SigningJob> for SigningLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [SigningJob],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        let messages: Vec<&PreparedMessage> = jobs.iter().map(|job| &job.message).collect();
        // The scheduler assigns the available masks to batches of `RA_SIGN`. A batch of `RSA_SIGN` has no assigned
        // masks, and therefore takes no mask.
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
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Ok(0)
            }
        }
    }
}

impl Lane<SigningJob> for GpuSigningLane {
    /// Messages without an available mask are signed on the CPU, in this thread.
    fn run(
        &mut self,
        _: Class,
        jobs: &mut [SigningJob],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        let messages: Vec<&PreparedMessage> = jobs.iter().map(|job| &job.message).collect();
        let (device, signer) = (&mut self.gpu, &self.signing.signer);
        // Masks are taken only after the device is ready to sign.
        if let Some((table, digits)) = messages
            .first()
            .and_then(|message| signer.table_and_digits(message))
        {
            device
                .prepare(table, digits)
                .map_err(|lost| LaneLost(lost.reason))?;
        }
        let signed = signer.sign_with(&messages, |_, masks, digits| {
            device.sign(masks, digits).map_err(BatchFailure::Lane)
        });
        let signed = match signed {
            Ok(signed) => Ok(signed),
            Err(BatchFailure::Signer(error)) => Err(error),
            Err(BatchFailure::Lane(lost)) => return Err(LaneLost(lost.reason)),
        };
        self.signing.finish(signed, jobs, outcomes);
        Ok(())
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        self.gpu.make_masks(count).map_err(|lost| LaneLost(lost.reason))
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        self.gpu.reopen().map_err(|lost| LaneLost(lost.reason))
    }
}

impl SigningService {
    /// Starts the CPU lanes, and for a key of RA the GPU lanes, which make masks (unless `idle_masks` is 0) and sign.
    ///
    /// # Errors
    /// No lane, or the thread of a lane could not be started.
    pub fn start(
        signer: Arc<Signer>,
        settings: SigningSettings,
        gpus: Vec<GpuLane>,
        policy: Box<dyn Policy>,
        message_sink: Arc<dyn SignedMessageSink>,
    ) -> Result<Self, EngineError> {
        signer.warm_up();
        let class = class(signer.public().scheme());
        let last_error = Arc::new(Mutex::new(None));
        let shared = Arc::new(Shared {
            sink: message_sink,
            counts: [const { AtomicU64::new(0) }; 3],
            failed: AtomicU64::new(0),
            in_flight: Mutex::new(InFlight {
                count: 0,
                limit: IN_FLIGHT_MIN,
            }),
            completed: Condvar::new(),
        });
        let signing_lane = || SigningLane {
            signer: Arc::clone(&signer),
            last_error: Arc::clone(&last_error),
        };
        let lane = |number| {
            (
                spec(number, settings),
                Box::new(signing_lane()) as Box<dyn Lane<SigningJob>>,
            )
        };
        let sink: Arc<dyn Sink<SigningJob>> = Arc::<Shared>::clone(&shared);
        // Messages that a GPU does not sign need a CPU lane.
        let mut lanes: Vec<_> = (0..settings.lanes.max(1)).map(lane).collect();
        if class == Class::RA_SIGN {
            lanes.extend(
                gpus.into_iter()
                    .map(|gpu| gpu_signing_lane(gpu, signing_lane(), settings)),
            );
        }
        let stock = usize::try_from(signer.masks()).unwrap_or(usize::MAX);
        let engine = Engine::start(config(class, stock, settings), policy, lanes, sink)?;
        Ok(Self {
            submitter: engine.submitter(),
            signer,
            class,
            engine,
            shared,
            last_error,
            jobs: Vec::new(),
        })
    }

    /// Waits until `count` messages may be submitted at once. A caller that stamps messages after this call keeps no
    /// stamped message waiting, except messages that are being signed.
    pub fn wait_for_capacity(&self, count: usize) {
        drop(self.shared.wait_for_capacity(count));
    }

    /// Enqueues a payload; [`SigningService::submit`] hands all enqueued payloads to the lanes.
    ///
    /// # Errors
    /// A payload that this key does not sign.
    pub fn enqueue(&mut self, stamp: Stamp, kind: PayloadKind, payload: &[u8]) -> Result<(), SignError> {
        let message = self.signer.prepare(stamp, kind, payload)?;
        let meta = Meta::new(self.class, stamp.priority, Source(0), self.submitter.now());
        let signed = None;
        let payload = SigningJob { message, signed };
        self.jobs.push(Job { meta, payload });
        Ok(())
    }

    /// Payloads enqueued and not submitted yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// Hands the enqueued payloads to the lanes; waits while too many messages are in flight.
    ///
    /// # Errors
    /// The service has been shut down.
    pub fn submit(&mut self) -> Result<(), EngineClosed> {
        self.shared.wait_for_capacity(self.jobs.len()).count += self.jobs.len();
        self.submitter.submit(&mut self.jobs)
    }

    /// Snapshot of the engine.
    ///
    /// # Errors
    /// The latency histograms could not be created or added.
    pub fn snapshot(&self) -> Result<Snapshot, EngineError> {
        self.engine.snapshot()
    }

    /// Messages signed and delivered so far.
    #[must_use]
    pub fn counts(&self) -> SigningCounts {
        self.shared.counts()
    }

    /// Takes the latest error that prevented signing.
    #[must_use]
    pub fn take_last_error(&self) -> Option<SignError> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Shuts down: enqueued payloads are signed and delivered first. Returns the counts, the engine's snapshot and the
    /// latest error.
    ///
    /// # Errors
    /// The latency histograms could not be created or added.
    pub fn finish(mut self) -> Result<(SigningCounts, Snapshot, Option<SignError>), EngineError> {
        // Submitting fails only after a shutdown, and the service is shut down only below.
        let _ = self.submit();
        let last_error = Arc::clone(&self.last_error);
        let shared = Arc::clone(&self.shared);
        let (unfinished, snapshot) = self.engine.shut_down(ShutdownMode::CompleteJobs)?;
        let last_error = last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut counts = shared.counts();
        counts.failed += unfinished.len() as u64;
        Ok((counts, snapshot, last_error))
    }
}

/// The operation class of signing with a key of this scheme.
fn class(scheme: Scheme) -> Class {
    match scheme {
        Scheme::RaRsa2048 | Scheme::RaRsa3072 => Class::RA_SIGN,
        Scheme::RsaPss2048 | Scheme::RsaPss3072 => Class::RSA_SIGN,
        Scheme::EcdsaP256 => Class::P256_SIGN,
        Scheme::Ed25519 => Class::ED25519_SIGN,
    }
}

/// The spec of a CPU lane, with assumed rates; the engine corrects the rates from measurements.
fn spec(number: usize, settings: SigningSettings) -> LaneSpec {
    let rates = [
        (Class::RA_SIGN, 20_000.0),
        (Class::RSA_SIGN, 1_000.0),
        (Class::MASK_REFILL, 1_000.0),
        (Class::P256_SIGN, 40_000.0),
        (Class::ED25519_SIGN, 60_000.0),
    ];
    // Eight signatures in one batch take as long as about four single signatures; without vector instructions a batch
    // gains nothing.
    let grain = Backend::widest().map_or(1, |_| 8);
    let spec = LaneSpec::new(format!("cpu {number}"), LaneKind::Cpu).with_grain(grain);
    let spec = rates.into_iter().fold(spec, |spec, (class, rate)| {
        spec.with_class(class, CostModel::new(Span::from_micros(1), rate))
    });
    match settings.idle_masks {
        0 => spec,
        _ => spec.with_refill(),
    }
}

fn gpu_signing_lane(
    gpu: GpuLane,
    signing: SigningLane,
    settings: SigningSettings,
) -> (LaneSpec, Box<dyn Lane<SigningJob>>) {
    let pool = Arc::clone(&signing.signer);
    let deliver = Box::new(move |masks: Vec<Mask>| pool.add_masks(masks));
    let device = gpu.with_signer(Arc::clone(signing.signer.key()), deliver);
    let spec = device.spec();
    let is_used = |class| match class {
        Class::RA_SIGN => true,
        Class::MASK_REFILL => settings.idle_masks > 0,
        _ => false,
    };
    let spec = LaneSpec {
        costs: PerClass::from_fn(|class| spec.costs.of(class).filter(|_| is_used(class))),
        refills: is_used(Class::MASK_REFILL),
        ..spec
    };
    let spec = spec.with_batch_max(GpuLane::SIGNED_MAX);
    (spec, Box::new(GpuSigningLane { gpu: device, signing }))
}

/// Time limit of one refill on a GPU. One CRT signature takes some milliseconds, and a full batch takes as long as one
/// signature.
const GPU_SLICE: Span = Span::from_millis(20);

/// Configuration of the scheduler. No quota applies to sources, since the service trusts the priorities of its own messages.
fn config(class: Class, stock: usize, settings: SigningSettings) -> Config {
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
            unknown_senders: unbounded,
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
    use crate::gpu::{BatchError, Emulation, Gpu, GpuUnavailable};
    use crate::lane::{KeyMemory, KeyPlacement};

    fn items(signer: &Signer) -> Vec<SigningJob> {
        let job = |payload: &[u8; 1]| SigningJob {
            message: signer.prepare(stamp(), PayloadKind::Opaque, payload).unwrap(),
            signed: None,
        };
        PAYLOADS.iter().map(job).collect()
    }

    /// Kernels compiled for this CPU emulate a GPU that is lost after `calls` calls.
    fn gpu(calls: u64) -> Result<GpuLane, GpuUnavailable> {
        let open = move || {
            let emulation = Emulation {
                calls,
                ..Emulation::default()
            };
            Gpu::emulated(emulation).map_err(|lost| GpuUnavailable::from(BatchError::from(lost)))
        };
        let memory = KeyMemory {
            table_bytes: 1 << 20,
            rsa_keys: 1,
            p256_keys: 1,
        };
        GpuLane::open_with(Box::new(open), Arc::new(KeyPlacement::new([], memory)))
    }

    fn lane(signer: &Arc<Signer>, gpu: GpuLane) -> Box<dyn Lane<SigningJob>> {
        let signing = SigningLane {
            signer: Arc::clone(signer),
            last_error: Arc::default(),
        };
        let settings = SigningSettings {
            lanes: 1,
            idle_masks: 0,
        };
        let (spec, lane) = gpu_signing_lane(gpu, signing, settings);
        assert!(spec.costs.of(Class::RA_SIGN).is_some() && !spec.refills);
        lane
    }

    fn signer() -> Arc<Signer> {
        let key = key();
        let table = table(key.ra().unwrap());
        Arc::new(Signer::new(key, Some(table), None))
    }

    fn check(signer: &Signer, items: &[SigningJob], methods: [SigningMethod; 3]) {
        let public = signer.public().ra().unwrap();
        for ((job, method), payload) in items.iter().zip(methods).zip(PAYLOADS) {
            let signed = job.signed.as_ref().unwrap();
            assert_eq!(signed.method, method);
            let (head, number) = signed.bytes.split_at(signed.bytes.len() - 256);
            let digits = public
                .layout()
                .digits(stamp(), PayloadKind::Opaque, &payload)
                .unwrap();
            assert!(public.verify(head.last_chunk().unwrap(), &digits, number));
        }
    }

    #[test]
    fn a_gpu_signs_with_the_available_masks() {
        let signer = signer();
        let mut lane = lane(&signer, gpu(u64::MAX).unwrap());
        for (masks, methods) in [
            (3, [SigningMethod::Masked; 3]),
            (
                2,
                [
                    SigningMethod::Masked,
                    SigningMethod::Masked,
                    SigningMethod::Unmasked,
                ],
            ),
        ] {
            signer.refill(masks).unwrap();
            let (mut items, mut outcomes) = (items(&signer), Vec::new());
            lane.run(Class::RA_SIGN, &mut items, &mut outcomes).unwrap();
            assert_eq!((outcomes, signer.masks()), (vec![Outcome::Accepted; 3], 0));
            check(&signer, &items, methods);
        }
    }

    /// A batch on a lost device signs nothing, and no mask is taken before the device is ready.
    #[test]
    fn messages_of_a_lost_gpu_are_returned_unsigned() {
        let signer = signer();
        // Number of masks taken by a batch whose device failed after so many calls; `None` if the messages were signed.
        let masks_taken = |calls| {
            let Ok(gpu) = gpu(calls) else { return Some(0) };
            let mut lane = lane(&signer, gpu);
            signer.refill(3).unwrap();
            let before = signer.masks();
            let (mut items, mut outcomes) = (items(&signer), Vec::new());
            if lane.run(Class::RA_SIGN, &mut items, &mut outcomes).is_ok() {
                check(&signer, &items, [SigningMethod::Masked; 3]);
                return None;
            }
            assert!(outcomes.is_empty() && items.iter().all(|job| job.signed.is_none()));
            Some(before - signer.masks())
        };
        let (mut too_few_calls, mut enough_calls) = (0u64, 1);
        while masks_taken(enough_calls).is_some() {
            (too_few_calls, enough_calls) = (enough_calls, 2 * enough_calls);
        }
        while enough_calls - too_few_calls > 1 {
            let middle = u64::midpoint(too_few_calls, enough_calls);
            match masks_taken(middle) {
                Some(_) => too_few_calls = middle,
                None => enough_calls = middle,
            }
        }
        // Most calls upload the table in parts: the test tries a few of these calls, and each call that signs or
        // verifies.
        let tested_singly_from = enough_calls - 32;
        let call_counts = (0..tested_singly_from)
            .step_by(61)
            .chain(tested_singly_from..enough_calls);
        let taken: Vec<u64> = call_counts.map(|calls| masks_taken(calls).unwrap()).collect();
        println!("{enough_calls} calls; masks taken: {taken:?}");
        assert!(taken.is_sorted() && taken.last() == Some(&3));
        // In the last 32 cases, the device was opened and failed later.
        assert!(gpu(tested_singly_from).is_ok() && taken[taken.len() - 32..].contains(&0));
        assert!(taken.iter().all(|taken| [0, 3].contains(taken)));
    }

    /// The longest wait of a message, if CPU lanes sign `per_s` messages a second, and a caller with an unlimited backlog makes submissions
    /// of 64 messages.
    fn longest_wait_ms(per_s: u64) -> u64 {
        let mut flight = InFlight {
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
            flight.complete(8, Span::from_millis(waited_ms));
        }
        longest
    }

    #[test]
    fn no_message_waits_until_its_stamp_is_too_old() {
        // RSA-3072 on one CPU lane, and on a slow lane; RA with masks on one lane; Ed25519 on eight lanes.
        for (per_s, max_ms) in [(440, 350), (64, 1_000), (20_000, 300), (400_000, 11)] {
            let waited_ms = longest_wait_ms(per_s);
            assert!(waited_ms <= max_ms, "{per_s}/s: {waited_ms} ms");
        }
        // A lane that is fast enough reaches the limit in flight.
        assert_eq!(longest_wait_ms(400_000), IN_FLIGHT_MAX as u64 * 1_000 / 400_000);
    }
}
