//! The GPU lane with kernels compiled for this CPU: changing keys, and losses.

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

/// Two keys of the small layout for each modulus size.
pub const MEMORY: KeyMemory = KeyMemory {
    table_bytes: 4 * 2 * 8453 * 384,
    rsa_keys: 2,
    p256_keys: 2,
};

fn refused(error: linewarden_signatures::gpu::GpuLost) -> GpuUnavailable {
    GpuUnavailable::DriverFailed {
        step: error.step,
        cause: error.cause,
    }
}

fn try_emulated(emulation: Emulation, places: &Arc<KeyPlacement>) -> Result<GpuLane, GpuUnavailable> {
    let mut first = true;
    let open = move || {
        // Stays lost.
        let calls = if std::mem::take(&mut first) {
            emulation.calls
        } else {
            0
        };
        Gpu::emulated(Emulation { calls, ..emulation }).map_err(refused)
    };
    GpuLane::open_with(Box::new(open), Arc::clone(places))
}

/// A device on which the signers of these messages are placed.
pub fn emulated(emulation: Emulation, memory: KeyMemory, messages: &[Checked]) -> GpuLane {
    try_emulated(emulation, &places(memory, messages)).unwrap()
}

fn places(memory: KeyMemory, messages: &[Checked]) -> Arc<KeyPlacement> {
    Arc::new(KeyPlacement::new(messages.iter().map(Checked::key), memory))
}

/// A message of each key in turn, every third of which is corrupted, and its validity.
fn messages_of(keys: &[PrivateKey], count: usize) -> Vec<(Checked, bool)> {
    let receiver = receiver_of(keys.iter().map(PrivateKey::public));
    let message = |number: usize| {
        let is_valid = number % 3 != 2;
        let datagram = datagram_of(&keys[number % keys.len()], number as u8, is_valid);
        (receiver.screen(datagram, NOW).unwrap(), is_valid)
    };
    (0..count).map(message).collect()
}

/// A message with a number as content, or a corrupted one.
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
        let place = bytes.len() - 2;
        bytes[place] ^= 1;
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
    for room in 1..4 {
        let memory = KeyMemory {
            rsa_keys: room,
            p256_keys: room,
            ..MEMORY
        };
        let mut device = emulated(Emulation::default(), memory, &messages);
        for _ in 0..2 {
            assert_eq!(device.verify_all(&messages).unwrap(), expected, "room for {room}");
        }
    }
}

/// Tables of all placed ECDSA signers are made before the first message, and none afterwards.
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
        places(memory, &messages),
    )
    .unwrap();
    let before = launched.load(Ordering::Relaxed);
    for (message, expected) in messages.iter().zip(expected) {
        assert_eq!(
            device.verify_all(std::slice::from_ref(message)).unwrap(),
            [expected]
        );
        // 32 places of the base point, 13 of each key.
        assert_eq!(launched.load(Ordering::Relaxed) - before, 32 + 3 * 13);
    }
}

/// No room for the table, or a text longer than a kernel can hash.
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
        let place = invalid.len() - 1;
        invalid[place] ^= 1;
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
        try_emulated(emulation, &places(MEMORY, &[])).is_ok()
    };
    (0..1000).find(opens).unwrap()
}

/// Reports its loss.
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

/// Starts only after the other lane is lost.
struct DelayedLane(SingleLane, Option<Receiver<()>>);

impl Lane<Checked> for DelayedLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        if let Some(loss) = self.1.take() {
            // Upper bound of any wait: a test that reaches it has failed.
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
    fn done(&self, done: BatchResult<'_, Checked>) {
        let results = done.payloads.drain(..).zip(done.outcomes);
        let results = results.map(|(message, outcome)| (message.bytes().to_vec(), *outcome));
        self.0.lock().unwrap().extend(results);
    }

    fn dropped(&self, dropped: &mut Vec<Dropped<Checked>>) {
        assert!(dropped.is_empty(), "no job is dropped");
    }
}

/// Runs RSA-PSS messages through the engine with an emulated device that gets lost.
fn with_loss(emulation: Emulation, messages: &[(Checked, bool)]) {
    let (lost_sender, lost_receiver) = channel();
    let of: Vec<Checked> = messages.iter().map(|(message, _)| message.clone()).collect();
    let device = emulated(emulation, MEMORY, &of);
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
    let mut found = std::mem::take(&mut *results.0.lock().unwrap());
    let verdict = |is_valid: bool| {
        if is_valid {
            Outcome::Accepted
        } else {
            Outcome::Rejected
        }
    };
    let expected = messages
        .iter()
        .map(|(message, is_valid)| (message.bytes().to_vec(), verdict(*is_valid)));
    let mut expected: Vec<_> = expected.collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, expected, "each message has exactly one verdict");
    let [cpu, device] = &snapshot.lanes[..] else {
        panic!("two lanes")
    };
    assert!(device.last_loss.is_some(), "{emulation:?}");
    assert_eq!(device.jobs + cpu.jobs, messages.len() as u64);
}

/// While uploading keys, copying, or computing; and with a device that does not respond.
#[test]
fn messages_of_a_lost_device_are_verified_once_on_the_cpu() {
    let keys = [PrivateKey::generate(Scheme::RsaPss2048, None).unwrap()];
    let messages = messages_of(&keys, 96);
    let open = calls_to_open();
    for calls in [open + 1, open + 6, open + 12, open + 15] {
        with_loss(
            Emulation {
                calls,
                ..Emulation::default()
            },
            &messages,
        );
    }
    let answers = |answers| Emulation {
        completed_waits: answers,
        ..Emulation::default()
    };
    let opens = |count: &u64| try_emulated(answers(*count), &places(MEMORY, &[])).is_ok();
    let open = (0..1000).find(opens).unwrap();
    with_loss(answers(open + 1), &messages);
}

/// The device stops responding during work, or when it is opened again after a loss.
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
    for (first, then, is_opened, times) in [
        (unresponsive, working, false, 1),
        (fails, working, true, 2),
        (fails, hangs_at_once, false, 2),
    ] {
        let opened = Arc::new(Mutex::new(0));
        let count = Arc::clone(&opened);
        let open = move || {
            let mut count = count.lock().unwrap();
            *count += 1;
            Gpu::emulated(if *count == 1 { first } else { then }).map_err(refused)
        };
        let mut device = GpuLane::open_with(Box::new(open), places(MEMORY, &messages)).unwrap();
        let lost = (0..1000)
            .find_map(|_| device.verify_all(&messages).err())
            .unwrap();
        assert_eq!(device.verify_all(&messages).unwrap_err(), lost, "stays lost");
        for _ in 0..2 {
            assert_eq!(device.reopen().is_ok(), is_opened, "{first:?} {then:?}");
        }
        assert_eq!(*opened.lock().unwrap(), times, "{first:?} {then:?}");
    }
}

/// Counts the messages that reach the inner lane.
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

/// Forgeries in the name of a signer without a place use no time of the device; an active signer replaces an inactive one.
#[test]
fn a_device_gets_only_messages_of_placed_signers() {
    for (scheme, unplaced) in [
        (Scheme::RsaPss2048, Class::RSA_VERIFY_UNPLACED),
        (Scheme::EcdsaP256, Class::P256_VERIFY_UNPLACED),
    ] {
        signers_with_places(scheme, unplaced);
    }
}

fn signers_with_places(scheme: Scheme, unplaced: Class) {
    let keys = [(); 2].map(|()| PrivateKey::generate(scheme, None).unwrap());
    let receiver = receiver_of(keys.iter().map(PrivateKey::public));
    let of = |key: &PrivateKey| {
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
    let (of_placed, of_other) = (of(placed), of(other));
    let places = Arc::new(KeyPlacement::new([&of_placed, &of_other], memory));
    let device = GpuLane::open_with(
        Box::new(|| Gpu::emulated(Emulation::default()).map_err(refused)),
        Arc::clone(&places),
    )
    .unwrap();
    let got = Arc::new(AtomicUsize::new(0));
    let line = CostModel::new(Span::from_micros(1), 1e4);
    let lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)> = vec![
        // Classes that the device supports are removed from the CPU lane, so that the executing lane is known.
        (
            LaneSpec::new("cpu", LaneKind::Cpu).with_class(unplaced, line),
            Box::new(SingleLane::default()),
        ),
        (device.spec(), Box::new(CountingLane(device, Arc::clone(&got)))),
    ];
    let lanes = Lanes {
        lanes,
        placement: Some(Arc::clone(&places)),
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
    // All of them go to the device, or none.
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
        assert_eq!(got.load(Ordering::Relaxed), on_device);
    };
    let at = |seconds: u64| Time::from_nanos(1_000_000_000 * seconds);
    send(placed, 0..3, true, true);
    send(other, 0..100, false, false);
    send(other, 100..101, true, false);
    places.record_accepted(&of_other, at(10));
    assert!(places.is_placed(&of_placed), "active since the start");
    places.record_accepted(&of_other, at(20));
    send(other, 101..103, true, true);
    send(placed, 3..9, false, false);
    send(placed, 9..10, true, false);
}
