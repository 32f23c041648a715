//! The GPU lane with kernels compiled for this CPU: replacement of keys, and losses of the device.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linewarden_signatures::gpu::kernels::{self, KernelInfo};
use linewarden_signatures::gpu::{Emulation, Gpu, GpuUnavailable};
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::{GpuLane, KeyMemory, KeyPlacement, SingleLane};
use linewarden_signatures::message::{PayloadKind, UnsignedMessage};
use linewarden_signatures::ra::{Domain, Layout};
use linewarden_signatures::receive::{Checked, Verified};
use linewarden_signatures::scheduler::engine::{BatchResult, Engine, Lane, LaneLost, ShutdownMode, Sink};
use linewarden_signatures::scheduler::model::CostModel;
use linewarden_signatures::scheduler::policy::FixedTau;
use linewarden_signatures::scheduler::{
    Class, Config, Dropped, Job, LaneKind, LaneSpec, Meta, Outcome, PerClass, Priority, Source, Span, Time,
};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::service::{Lanes, Service, VerifiedMessageSink};
use linewarden_signatures::udp::Datagram;

use crate::common::{NOW, receiver_of, stamp};

/// Memory for two keys of the small layout for each modulus size.
pub const MEMORY: KeyMemory = KeyMemory {
    table_bytes: 4 * 2 * 8453 * 384,
    rsa_keys: 2,
    p256_keys: 2,
};

fn unavailable(error: linewarden_signatures::gpu::GpuLost) -> GpuUnavailable {
    GpuUnavailable::DriverFailed {
        step: error.step,
        cause: error.cause,
    }
}

fn try_emulated(emulation: Emulation, placement: &Arc<KeyPlacement>) -> Result<GpuLane, GpuUnavailable> {
    let mut is_first_open = true;
    let open = move || {
        // After its first loss the device stays lost.
        let calls = if std::mem::take(&mut is_first_open) {
            emulation.calls
        } else {
            0
        };
        Gpu::emulated(Emulation { calls, ..emulation }).map_err(unavailable)
    };
    GpuLane::open_with(Box::new(open), Arc::clone(placement))
}

/// The lane of an emulated device on which the signers of these messages are placed.
pub fn emulated(emulation: Emulation, memory: KeyMemory, messages: &[Checked]) -> GpuLane {
    try_emulated(emulation, &placement(memory, messages)).unwrap()
}

fn placement(memory: KeyMemory, messages: &[Checked]) -> Arc<KeyPlacement> {
    Arc::new(KeyPlacement::new(messages.iter().map(Checked::key), memory))
}

/// Messages of the keys in turn, with their validity. Every third message is corrupted.
fn messages_of(keys: &[PrivateKey], count: usize) -> Vec<(Checked, bool)> {
    let receiver = receiver_of(keys.iter().map(PrivateKey::public));
    let message = |number: usize| {
        let is_valid = number % 3 != 2;
        let datagram = datagram_of(&keys[number % keys.len()], number as u8, is_valid);
        (receiver.screen(datagram, NOW).unwrap(), is_valid)
    };
    (0..count).map(message).collect()
}

/// A message with `number` as its payload; its signature is corrupted if `is_valid` is false.
pub fn datagram_of(key: &PrivateKey, number: u8, is_valid: bool) -> Vec<u8> {
    let draft = UnsignedMessage {
        scheme: key.public().scheme(),
        key_id: key.public().id(),
        stamp: stamp(NOW, 1),
        kind: PayloadKind::Opaque,
        payload: &[number],
    };
    let mut bytes = key.sign_plain(draft.encode().unwrap()).unwrap().unwrap();
    if !is_valid {
        let offset = bytes.len() - 2;
        bytes[offset] ^= 1;
    }
    bytes
}

#[test]
fn keys_beyond_the_memory_replace_each_other() {
    let keys: Vec<PrivateKey> = [
        Scheme::RsaPss2048,
        Scheme::RsaPss2048,
        Scheme::RsaPss2048,
        Scheme::EcdsaP256,
        Scheme::EcdsaP256,
        Scheme::EcdsaP256,
    ]
    .map(|scheme| PrivateKey::generate(scheme, None).unwrap())
    .into();
    let (messages, expected): (Vec<_>, Vec<_>) = messages_of(&keys, 24).into_iter().unzip();
    for capacity in 1..4 {
        let memory = KeyMemory {
            rsa_keys: capacity,
            p256_keys: capacity,
            ..MEMORY
        };
        let mut device = emulated(Emulation::default(), memory, &messages);
        for _ in 0..2 {
            assert_eq!(
                device.verify_all(&messages).unwrap(),
                expected,
                "capacity {capacity}"
            );
        }
    }
}

/// The tables of all placed ECDSA signers are made before the first message; no table is made afterwards.
#[test]
fn tables_of_all_placed_signers_are_made_together() {
    let keys = [(); 3].map(|()| PrivateKey::generate(Scheme::EcdsaP256, None).unwrap());
    let (messages, expected): (Vec<_>, Vec<_>) = messages_of(&keys, 6).into_iter().unzip();
    let launched = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&launched);
    let launcher = move |kernel: &'static KernelInfo, items: usize, arguments: *const c_void| {
        if kernel.name == kernels::P256_TABLES.info.name {
            count.fetch_add(items, Ordering::Relaxed);
        }
        // SAFETY: the caller of the launch guarantees valid arguments and arrays.
        unsafe { kernel.run_on_host(arguments) };
    };
    let gpu = Gpu::emulated_by(Emulation::default(), Box::new(launcher)).unwrap();
    let mut gpu = Some(gpu);
    let memory = KeyMemory {
        p256_keys: 3,
        ..MEMORY
    };
    let mut device = GpuLane::open_with(
        Box::new(move || Ok(gpu.take().unwrap())),
        placement(memory, &messages),
    )
    .unwrap();
    let launched_before = launched.load(Ordering::Relaxed);
    for (message, expected) in messages.iter().zip(expected) {
        assert_eq!(
            device.verify_all(std::slice::from_ref(message)).unwrap(),
            [expected]
        );
        // 32 digit positions of the base point, 13 of each key.
        assert_eq!(launched.load(Ordering::Relaxed) - launched_before, 32 + 3 * 13);
    }
}

/// The table does not fit, or a text is longer than a kernel can hash.
#[test]
fn messages_that_the_device_does_not_support_are_verified_on_the_cpu() {
    let layout = |text: &str| {
        let texts = Domain::Submessages(vec![text.to_owned(), "b".to_owned()]);
        Layout::new(PayloadKind::Submessages, vec![texts]).unwrap()
    };
    let long = "x".repeat(82);
    for (layout, memory) in [
        (
            layout("a"),
            KeyMemory {
                table_bytes: 1 << 20,
                ..MEMORY
            },
        ),
        (layout(&long), MEMORY),
        (layout(&long[1..]), MEMORY),
    ] {
        let key = PrivateKey::generate(Scheme::RaRsa2048, Some(layout)).unwrap();
        let receiver = receiver_of([key.public()].into_iter());
        let ra = key.ra().unwrap();
        let (kind, payload) = (PayloadKind::Submessages, [0]);
        let digits = ra
            .public()
            .layout()
            .digits(stamp(NOW, 1), kind, &payload)
            .unwrap();
        let draft = UnsignedMessage {
            scheme: Scheme::RaRsa2048,
            key_id: key.public().id(),
            stamp: stamp(NOW, 1),
            kind,
            payload: &payload,
        };
        let (name, draft) = ([3; 32], draft.encode().unwrap());
        let valid = draft.with_mask(&name, &ra.sign(&name, &digits).unwrap());
        let mut invalid = valid.clone();
        let offset = invalid.len() - 1;
        invalid[offset] ^= 1;
        let messages = [valid, invalid].map(|bytes| receiver.screen(bytes, NOW).unwrap());
        let mut device = emulated(Emulation::default(), memory, &messages);
        assert_eq!(device.verify_all(&messages).unwrap(), [true, false]);
    }
}

/// Number of calls for opening a device; later calls belong to a batch.
fn calls_to_open() -> u64 {
    let opens = |calls: &u64| {
        let emulation = Emulation {
            calls: *calls,
            ..Emulation::default()
        };
        try_emulated(emulation, &placement(MEMORY, &[])).is_ok()
    };
    (0..1000).find(opens).unwrap()
}

/// A lane that reports its loss.
struct ReportingLane(GpuLane, Sender<()>);

impl Lane<Checked> for ReportingLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        self.0.run(class, jobs, outcomes).inspect_err(|_| {
            let _ = self.1.send(());
        })
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        self.0.probe()
    }
}

/// A lane that starts only after the device is lost.
struct DelayedLane(SingleLane, Option<Receiver<()>>);

impl Lane<Checked> for DelayedLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        if let Some(loss) = self.1.take() {
            // Upper bound of the wait: a test that waits for 60 s has failed.
            loss.recv_timeout(Duration::from_secs(60))
                .expect("the device must get a batch and be lost");
        }
        self.0.run(class, jobs, outcomes)
    }
}

/// Messages and outcomes in the order of completion.
#[derive(Default)]
struct Results(Mutex<Vec<(Vec<u8>, Outcome)>>);

impl Sink<Checked> for Results {
    fn done(&self, result: BatchResult<'_, Checked>) {
        let results = result.payloads.drain(..).zip(result.outcomes);
        let results = results.map(|(message, outcome)| (message.bytes().to_vec(), *outcome));
        self.0.lock().unwrap().extend(results);
    }

    fn dropped(&self, dropped: &mut Vec<Dropped<Checked>>) {
        assert!(dropped.is_empty(), "no job is dropped");
    }
}

/// Runs RSA-PSS messages through the engine with an emulated device that is lost meanwhile. Checks that each message has
/// exactly one outcome.
fn check_loss(emulation: Emulation, messages: &[(Checked, bool)]) {
    let (lost_sender, lost_receiver) = channel();
    let checked: Vec<Checked> = messages.iter().map(|(message, _)| message.clone()).collect();
    let device = emulated(emulation, MEMORY, &checked);
    let cpu = LaneSpec::new("cpu", LaneKind::Cpu)
        .with_class(Class::RSA_VERIFY, CostModel::new(Span::from_micros(1), 1e4));
    let lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)> = vec![
        (
            cpu,
            Box::new(DelayedLane(SingleLane::default(), Some(lost_receiver))),
        ),
        (device.spec(), Box::new(ReportingLane(device, lost_sender))),
    ];
    let results = Arc::new(Results::default());
    let sink: Arc<dyn Sink<Checked>> = Arc::<Results>::clone(&results);
    let engine = Engine::start(
        Config::default(),
        Box::new(FixedTau::new(PerClass::from_fn(|_| 8))),
        lanes,
        sink,
    )
    .unwrap();
    let submitter = engine.submitter();
    let mut jobs: Vec<Job<Checked>> = messages
        .iter()
        .map(|(message, _)| Job {
            meta: Meta::new(
                Class::RSA_VERIFY,
                Priority::try_from(7).unwrap(),
                Source(1),
                submitter.now(),
            ),
            payload: message.clone(),
        })
        .collect();
    submitter.submit(&mut jobs).unwrap();
    let (_, snapshot) = engine.shut_down(ShutdownMode::CompleteJobs).unwrap();
    let mut completed = std::mem::take(&mut *results.0.lock().unwrap());
    let outcome_of = |is_valid: bool| {
        if is_valid {
            Outcome::Accepted
        } else {
            Outcome::Rejected
        }
    };
    let expected = messages
        .iter()
        .map(|(message, is_valid)| (message.bytes().to_vec(), outcome_of(*is_valid)));
    let mut expected: Vec<_> = expected.collect();
    completed.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(completed, expected, "each message has exactly one outcome");
    let [cpu, device] = &snapshot.lanes[..] else {
        panic!("two lanes")
    };
    assert!(device.last_loss.is_some(), "{emulation:?}");
    assert_eq!(device.jobs + cpu.jobs, messages.len() as u64);
}

/// The device is lost while keys are uploaded, or during copying or computing, or the device does not respond.
#[test]
fn messages_of_a_lost_device_are_verified_once_on_the_cpu() {
    let keys = [PrivateKey::generate(Scheme::RsaPss2048, None).unwrap()];
    let messages = messages_of(&keys, 96);
    let open = calls_to_open();
    for calls in [open + 1, open + 6, open + 12, open + 15] {
        check_loss(
            Emulation {
                calls,
                ..Emulation::default()
            },
            &messages,
        );
    }
    let with_waits = |completed_waits| Emulation {
        completed_waits,
        ..Emulation::default()
    };
    let opens = |count: &u64| try_emulated(with_waits(*count), &placement(MEMORY, &[])).is_ok();
    let open = (0..1000).find(opens).unwrap();
    check_loss(with_waits(open + 1), &messages);
}

/// The device stops responding during a batch, or during an attempt to open it again after a loss.
#[test]
fn an_unresponsive_device_is_not_opened_again() {
    let messages = messages_of(&[PrivateKey::generate(Scheme::EcdsaP256, None).unwrap()], 3);
    let messages: Vec<Checked> = messages.into_iter().map(|(message, _)| message).collect();
    let working = Emulation::default();
    let unresponsive = Emulation {
        completed_waits: 8,
        ..working
    };
    let hangs_at_once = Emulation {
        completed_waits: 0,
        ..working
    };
    let fails = Emulation { calls: 80, ..working };
    for (first, second, is_reopened, open_count) in [
        (unresponsive, working, false, 1),
        (fails, working, true, 2),
        (fails, hangs_at_once, false, 2),
    ] {
        let opened = Arc::new(Mutex::new(0));
        let count = Arc::clone(&opened);
        let open = move || {
            let mut count = count.lock().unwrap();
            *count += 1;
            Gpu::emulated(if *count == 1 { first } else { second }).map_err(unavailable)
        };
        let mut device = GpuLane::open_with(Box::new(open), placement(MEMORY, &messages)).unwrap();
        let lost = (0..1000)
            .find_map(|_| device.verify_all(&messages).err())
            .unwrap();
        assert_eq!(device.verify_all(&messages).unwrap_err(), lost, "stays lost");
        for _ in 0..2 {
            assert_eq!(device.reopen().is_ok(), is_reopened, "{first:?} {second:?}");
        }
        assert_eq!(*opened.lock().unwrap(), open_count, "{first:?} {second:?}");
    }
}

/// A lane that counts the messages that reach the inner lane.
struct CountingLane(GpuLane, Arc<AtomicUsize>);

impl Lane<Checked> for CountingLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        self.1.fetch_add(jobs.len(), Ordering::Relaxed);
        self.0.run(class, jobs, outcomes)
    }
}

struct IgnoringSink;

impl VerifiedMessageSink for IgnoringSink {
    fn verified(&self, _: Verified, _: Span) {}
}

/// Forgeries that name a signer without a place on the device use no time of the device. An active signer replaces an
/// inactive signer.
#[test]
fn a_device_gets_only_messages_of_placed_signers() {
    for (scheme, unplaced) in [
        (Scheme::RsaPss2048, Class::RSA_VERIFY_UNPLACED),
        (Scheme::EcdsaP256, Class::P256_VERIFY_UNPLACED),
    ] {
        check_placed_signers(scheme, unplaced);
    }
}

fn check_placed_signers(scheme: Scheme, unplaced: Class) {
    let keys = [(); 2].map(|()| PrivateKey::generate(scheme, None).unwrap());
    let receiver = receiver_of(keys.iter().map(PrivateKey::public));
    let key_of = |key: &PrivateKey| {
        let mut signers = receiver.signers();
        Arc::clone(signers.find(|signer| signer.id() == key.public().id()).unwrap())
    };
    let ([placed, other], memory) = (
        &keys,
        KeyMemory {
            rsa_keys: 1,
            p256_keys: 1,
            ..MEMORY
        },
    );
    let (placed_key, other_key) = (key_of(placed), key_of(other));
    let placement = Arc::new(KeyPlacement::new([&placed_key, &other_key], memory));
    let device = GpuLane::open_with(
        Box::new(|| Gpu::emulated(Emulation::default()).map_err(unavailable)),
        Arc::clone(&placement),
    )
    .unwrap();
    let device_jobs = Arc::new(AtomicUsize::new(0));
    let cost_model = CostModel::new(Span::from_micros(1), 1e4);
    let lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)> = vec![
        // The CPU lane supports only the class for signers without a place, so that the executing lane is known.
        (
            LaneSpec::new("cpu", LaneKind::Cpu).with_class(unplaced, cost_model),
            Box::new(SingleLane::default()),
        ),
        (
            device.spec(),
            Box::new(CountingLane(device, Arc::clone(&device_jobs))),
        ),
    ];
    let lanes = Lanes {
        lanes,
        placement: Some(Arc::clone(&placement)),
    };
    let policy = Box::new(FixedTau::new(PerClass::from_fn(|_| 1)));
    let (config, random) = (Config::default(), [[1; 16]; 2]);
    let mut service = Service::start(
        receiver,
        config,
        policy,
        lanes,
        Arc::new(IgnoringSink),
        || NOW,
        random,
    )
    .unwrap();
    let (mut sent, mut on_device) = (0, 0);
    // All of these messages go to the device if `to_device` is true; else none.
    let mut send = |key: &PrivateKey, numbers: std::ops::Range<u8>, is_valid: bool, to_device: bool| {
        for number in numbers {
            let datagram = datagram_of(key, number, is_valid);
            service.enqueue(&Datagram {
                bytes: &datagram,
                sender: "192.0.2.1:5000".parse().unwrap(),
                arrived: std::time::Instant::now(),
            });
            sent += 1;
            on_device += usize::from(to_device);
        }
        service.submit().unwrap();
        loop {
            let report = service.report().unwrap();
            let refused: u64 = report.refused.iter().map(|(_, count)| count).sum();
            assert!(report.shed().is_empty());
            if report.verified + refused == sent {
                break;
            }
            std::thread::yield_now();
        }
        assert_eq!(device_jobs.load(Ordering::Relaxed), on_device);
    };
    let time_after_s = |seconds: u64| Time::from_nanos(1_000_000_000 * seconds);
    send(placed, 0..3, true, true);
    send(other, 0..100, false, false);
    send(other, 100..101, true, false);
    placement.record_accepted(&other_key, time_after_s(10));
    assert!(placement.is_placed(&placed_key), "active since the start");
    placement.record_accepted(&other_key, time_after_s(20));
    send(other, 101..103, true, true);
    send(placed, 3..9, false, false);
    send(placed, 9..10, true, false);
}
