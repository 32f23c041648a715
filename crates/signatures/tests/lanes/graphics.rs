//! The lane on a device, with kernels compiled for this processor in its place: keys that come and go, and losses.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linewarden_signatures::gpu::kernels::{self, KernelInfo};
use linewarden_signatures::gpu::{Emulation, Gpu, NoGpu};
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::{Graphics, KeyMemory, OneByOne, Places};
use linewarden_signatures::message::{PayloadKind, Unsigned};
use linewarden_signatures::ra::{Domain, Layout};
use linewarden_signatures::receive::{Checked, Verified};
use linewarden_signatures::scheduler::engine::{Done, Ending, Engine, Lane, LaneLost, Sink};
use linewarden_signatures::scheduler::model::Line;
use linewarden_signatures::scheduler::policy::FixedTau;
use linewarden_signatures::scheduler::{
    Class, Config, Dropped, Job, LaneKind, LaneSpec, Meta, Outcome, PerClass, Priority, Source, Span, Time,
};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::service::{Delivery, Lanes, Service};
use linewarden_signatures::udp::Datagram;

use crate::common::{NOW, receiver_of, stamp};

/// Two keys of the small layout, of each size of modulus.
pub const MEMORY: KeyMemory = KeyMemory {
    table_bytes: 4 * 2 * 8453 * 384,
    rsa_keys: 2,
    p256_keys: 2,
};

fn refused(error: linewarden_signatures::gpu::GpuLost) -> NoGpu {
    NoGpu::Refused {
        step: error.step,
        cause: error.cause,
    }
}

fn try_emulated(emulation: Emulation, places: &Arc<Places>) -> Result<Graphics, NoGpu> {
    let mut first = true;
    let open = move || {
        // It stays lost.
        let calls = if std::mem::take(&mut first) {
            emulation.calls
        } else {
            0
        };
        Gpu::emulated(Emulation { calls, ..emulation }).map_err(refused)
    };
    Graphics::opened_by(Box::new(open), Arc::clone(places))
}

/// One on which the signers of these messages have places.
pub fn emulated(emulation: Emulation, memory: KeyMemory, messages: &[Checked]) -> Graphics {
    try_emulated(emulation, &places(memory, messages)).unwrap()
}

fn places(memory: KeyMemory, messages: &[Checked]) -> Arc<Places> {
    Arc::new(Places::new(messages.iter().map(Checked::key), memory))
}

/// A message of each key in turn, every third of which is spoilt, and whether it is its signer's.
fn messages_of(keys: &[PrivateKey], count: usize) -> Vec<(Checked, bool)> {
    let receiver = receiver_of(keys.iter().map(PrivateKey::public));
    let message = |number: usize| {
        let good = number % 3 != 2;
        let datagram = datagram_of(&keys[number % keys.len()], number as u8, good);
        (receiver.screen(datagram, NOW).unwrap(), good)
    };
    (0..count).map(message).collect()
}

/// A message that says its number, or one that is spoilt.
pub fn datagram_of(key: &PrivateKey, number: u8, good: bool) -> Vec<u8> {
    let draft = Unsigned {
        scheme: key.public().scheme(),
        key_id: key.public().id(),
        stamp: stamp(NOW, 1),
        kind: PayloadKind::Opaque,
        payload: &[number],
    };
    let mut bytes = key.sign_plainly(draft.encode().unwrap()).unwrap().unwrap();
    if !good {
        let place = bytes.len() - 2;
        bytes[place] ^= 1;
    }
    bytes
}

#[test]
fn keys_beyond_the_memory_take_turns() {
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
            assert_eq!(device.holds(&messages).unwrap(), expected, "room for {room}");
        }
    }
}

/// Tables of all of ECDSA's signers with places are made before the first message, and then none.
#[test]
fn tables_are_made_of_all_placed_signers_at_once() {
    let keys = [(); 3].map(|()| PrivateKey::generate(Scheme::EcdsaP256, None).unwrap());
    let (messages, expected): (Vec<_>, Vec<_>) = messages_of(&keys, 6).into_iter().unzip();
    let launched = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&launched);
    let launcher = move |kernel: &'static KernelInfo, items: usize, arguments: *const c_void| {
        if kernel.name == kernels::P256_TABLES.info.name {
            count.fetch_add(items, Ordering::Relaxed);
        }
        // SAFETY: whoever launches vouches for the arguments and what they name.
        unsafe { kernel.run_on_host(arguments) };
    };
    let gpu = Gpu::emulated_by(Emulation::default(), Box::new(launcher)).unwrap();
    let mut gpu = Some(gpu);
    let memory = KeyMemory {
        p256_keys: 3,
        ..MEMORY
    };
    let mut device = Graphics::opened_by(
        Box::new(move || Ok(gpu.take().unwrap())),
        places(memory, &messages),
    )
    .unwrap();
    let before = launched.load(Ordering::Relaxed);
    for (message, expected) in messages.iter().zip(expected) {
        assert_eq!(device.holds(std::slice::from_ref(message)).unwrap(), [expected]);
        // Of the base point 32 places, of each key 13.
        assert_eq!(launched.load(Ordering::Relaxed) - before, 32 + 3 * 13);
    }
}

/// No room for the table, or a text that is longer than what a kernel hashes.
#[test]
fn what_the_device_does_not_take_the_processor_does() {
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
        let draft = Unsigned {
            scheme: Scheme::RaRsa2048,
            key_id: key.public().id(),
            stamp: stamp(NOW, 1),
            kind,
            payload: &payload,
        };
        let (name, draft) = ([3; 32], draft.encode().unwrap());
        let good = draft.with_mask(&name, &ra.sign(&name, &digits).unwrap());
        let mut bad = good.clone();
        let place = bad.len() - 1;
        bad[place] ^= 1;
        let messages = [good, bad].map(|bytes| receiver.screen(bytes, NOW).unwrap());
        let mut device = emulated(Emulation::default(), memory, &messages);
        assert_eq!(device.holds(&messages).unwrap(), [true, false]);
    }
}

/// The calls that opening takes; what comes after them is a batch's.
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

/// Tells when it is lost.
struct Telling(Graphics, Sender<()>);

impl Lane<Checked> for Telling {
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

/// Does nothing before the other is lost.
struct Waiting(OneByOne, Option<Receiver<()>>);

impl Lane<Checked> for Waiting {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        if let Some(loss) = self.1.take() {
            // Nothing here takes that long: a test that waits for it has failed.
            loss.recv_timeout(Duration::from_secs(60))
                .expect("the device gets a batch and is lost");
        }
        self.0.run(class, jobs, outcomes)
    }
}

/// Message and outcome, as they come.
#[derive(Default)]
struct Results(Mutex<Vec<(Vec<u8>, Outcome)>>);

impl Sink<Checked> for Results {
    fn done(&self, done: Done<'_, Checked>) {
        let results = done.payloads.drain(..).zip(done.outcomes);
        let results = results.map(|(message, outcome)| (message.bytes().to_vec(), *outcome));
        self.0.lock().unwrap().extend(results);
    }

    fn dropped(&self, dropped: &mut Vec<Dropped<Checked>>) {
        assert!(dropped.is_empty(), "nothing is too late or too much");
    }
}

/// Runs messages of RSA-PSS through the engine with a device that behaves so, and is lost.
fn with_loss(emulation: Emulation, messages: &[(Checked, bool)]) {
    let (tell, told) = channel();
    let of: Vec<Checked> = messages.iter().map(|(message, _)| message.clone()).collect();
    let device = emulated(emulation, MEMORY, &of);
    let cpu =
        LaneSpec::new("cpu", LaneKind::Cpu).with(Class::RSA_VERIFY, Line::new(Span::from_micros(1), 1e4));
    let lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)> = vec![
        (cpu, Box::new(Waiting(OneByOne::default(), Some(told)))),
        (device.spec(), Box::new(Telling(device, tell))),
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
    let (_, snapshot) = engine.shut_down(Ending::Finish).unwrap();
    let mut found = std::mem::take(&mut *results.0.lock().unwrap());
    let verdict = |good: bool| {
        if good {
            Outcome::Accepted
        } else {
            Outcome::Rejected
        }
    };
    let expected = messages
        .iter()
        .map(|(message, good)| (message.bytes().to_vec(), verdict(*good)));
    let mut expected: Vec<_> = expected.collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, expected, "each message has its verdict once");
    let [cpu, device] = &snapshot.lanes[..] else {
        panic!("two lanes")
    };
    assert!(device.lost.is_some(), "{emulation:?}");
    assert_eq!(device.jobs + cpu.jobs, messages.len() as u64);
}

/// In the middle of putting keys, of copying, of computing; and one that hangs instead.
#[test]
fn what_a_lost_device_had_the_processor_does_once() {
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
        answers,
        ..Emulation::default()
    };
    let opens = |count: &u64| try_emulated(answers(*count), &places(MEMORY, &[])).is_ok();
    let open = (0..1000).find(opens).unwrap();
    with_loss(answers(open + 1), &messages);
}

/// Whether it hangs at work, or as it is opened again after a loss.
#[test]
fn a_device_that_hangs_is_left_alone() {
    let messages = messages_of(&[PrivateKey::generate(Scheme::EcdsaP256, None).unwrap()], 3);
    let messages: Vec<Checked> = messages.into_iter().map(|(message, _)| message).collect();
    let working = Emulation::default();
    let hangs = Emulation {
        answers: 8,
        ..working
    };
    let hangs_at_once = Emulation {
        answers: 0,
        ..working
    };
    let fails = Emulation { calls: 80, ..working };
    for (first, then, is_opened, times) in [
        (hangs, working, false, 1),
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
        let mut device = Graphics::opened_by(Box::new(open), places(MEMORY, &messages)).unwrap();
        let lost = (0..1000).find_map(|_| device.holds(&messages).err()).unwrap();
        assert_eq!(device.holds(&messages).unwrap_err(), lost, "it stays lost");
        for _ in 0..2 {
            assert_eq!(device.reopen().is_ok(), is_opened, "{first:?} {then:?}");
        }
        assert_eq!(*opened.lock().unwrap(), times, "{first:?} {then:?}");
    }
}

/// Counts the messages that it gets.
struct Counting(Graphics, Arc<AtomicUsize>);

impl Lane<Checked> for Counting {
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

struct Nobody;

impl Delivery for Nobody {
    fn verified(&self, _: Verified, _: Span) {}
}

/// What is forged in the name of a signer without a place takes none of the device's time; who is heard of gets the place of one who is not.
#[test]
fn a_device_is_given_messages_of_signers_who_have_places() {
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
    let places = Arc::new(Places::new([&of_placed, &of_other], memory));
    let device = Graphics::opened_by(
        Box::new(|| Gpu::emulated(Emulation::default()).map_err(refused)),
        Arc::clone(&places),
    )
    .unwrap();
    let got = Arc::new(AtomicUsize::new(0));
    let line = Line::new(Span::from_micros(1), 1e4);
    let lanes: Vec<(LaneSpec, Box<dyn Lane<Checked>>)> = vec![
        // What a device takes is for the device alone, so that it is known who does what.
        (
            LaneSpec::new("cpu", LaneKind::Cpu).with(unplaced, line),
            Box::new(OneByOne::default()),
        ),
        (device.spec(), Box::new(Counting(device, Arc::clone(&got)))),
    ];
    let lanes = Lanes {
        lanes,
        places: Some(Arc::clone(&places)),
    };
    let policy = Box::new(FixedTau::new(PerClass::from_fn(|_| 1)));
    let (config, random) = (Config::default(), [[1; 16]; 2]);
    let mut service =
        Service::start(receiver, config, policy, lanes, Arc::new(Nobody), || NOW, random).unwrap();
    let (mut sent, mut on_device) = (0, 0);
    // All of them to the device, or none.
    let mut send = |key: &PrivateKey, numbers: std::ops::Range<u8>, good: bool, to_device: bool| {
        for number in numbers {
            let datagram = datagram_of(key, number, good);
            service.take(&Datagram {
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
    places.held(&of_other, at(10));
    assert!(places.has(&of_placed), "it was heard of since the start");
    places.held(&of_other, at(20));
    send(other, 101..103, true, true);
    send(placed, 3..9, false, false);
    send(placed, 9..10, true, false);
}
