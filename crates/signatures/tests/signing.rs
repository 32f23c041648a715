//! A signer behind the scheduler: each payload leaves once, signed, with a mask of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod common;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{NOW, key, payload, receiver, stamp, table};
use linewarden_signatures::gpu::{Emulation, Gpu, NoGpu};
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::{Graphics, KeyMemory, OneByOne, Places};
use linewarden_signatures::message::{Envelope, PayloadKind};
use linewarden_signatures::ra::Table;
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::signer::{SignError, Signer};
use linewarden_signatures::signing::{Counts, Dispatch, IN_FLIGHT_MAX, Settings, SigningService};

#[derive(Default)]
struct Sent(Mutex<Vec<Vec<u8>>>);

impl Dispatch for Sent {
    fn signed(&self, messages: Vec<Vec<u8>>) {
        self.0.lock().unwrap().extend(messages);
    }
}

/// Keys are not copied but for tests, through their files' form.
fn signer(scheme: Scheme) -> Arc<Signer> {
    let key = PrivateKey::from_bytes(&key(scheme).to_bytes().unwrap()).unwrap();
    let table = (scheme == Scheme::RaRsa2048).then(|| {
        let public = key.ra().unwrap().public().clone();
        Table::from_bytes(public, &table().to_bytes().unwrap()).unwrap()
    });
    Arc::new(Signer::new(key, table, None))
}

fn start(signer: &Arc<Signer>, lanes: usize, idle_masks: usize) -> (SigningService, Arc<Sent>) {
    start_with(signer, lanes, idle_masks, Vec::new())
}

fn start_with(
    signer: &Arc<Signer>,
    lanes: usize,
    idle_masks: usize,
    gpus: Vec<Graphics>,
) -> (SigningService, Arc<Sent>) {
    let sent = Arc::new(Sent::default());
    let settings = Settings { lanes, idle_masks };
    let dispatch: Arc<dyn Dispatch> = Arc::<Sent>::clone(&sent);
    let service = SigningService::start(
        Arc::clone(signer),
        settings,
        gpus,
        Box::new(Adaptive::default()),
        dispatch,
    );
    (service.unwrap(), sent)
}

/// Signs so many messages that differ, and has a receiver accept each of them.
fn exchange(mut service: SigningService, sent: &Sent, scheme: Scheme, count: usize) -> Counts {
    let mut wanted = Vec::new();
    for number in 0..count {
        let (kind, payload) = payload(scheme, (number % 200) as u8);
        service
            .take(stamp(NOW, (number % 8) as u8), kind, &payload)
            .unwrap();
        wanted.push(payload);
        if service.waiting() == 64 {
            service.submit().unwrap();
        }
    }
    let (counts, _, problem) = service.finish().unwrap();
    assert!(problem.is_none(), "{problem:?}");
    let (mut receiver, mut lane) = (receiver(), OneByOne::default());
    let mut found = Vec::new();
    for message in sent.0.lock().unwrap().drain(..) {
        let checked = receiver.screen(message, NOW).unwrap();
        let holds = lane.holds(&checked);
        found.push(
            receiver
                .admit(checked, holds, NOW)
                .unwrap()
                .message()
                .payload()
                .to_vec(),
        );
    }
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    counts
}

#[test]
fn every_scheme_signs_each_payload_once() {
    for scheme in [Scheme::RsaPss2048, Scheme::EcdsaP256, Scheme::Ed25519] {
        let (service, sent) = start(&signer(scheme), 2, 16);
        let counts = exchange(service, &sent, scheme, 150);
        assert_eq!((counts.plain, counts.total()), (150, 150), "{scheme:?}");
    }
    let (service, sent) = start(&signer(Scheme::RaRsa2048), 2, 0);
    let counts = exchange(service, &sent, Scheme::RaRsa2048, 50);
    assert_eq!((counts.dry, counts.total()), (50, 50));
}

#[test]
fn idle_processors_make_masks_and_none_is_used_twice() {
    let signer = signer(Scheme::RaRsa2048);
    let (mut service, sent) = start(&signer, 2, 96);
    let begin = Instant::now();
    while signer.masks() < 96 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody makes masks");
        std::thread::yield_now();
    }
    // What was made last may not be counted yet.
    for number in 0..60 {
        let (kind, payload) = payload(Scheme::RaRsa2048, number);
        service.take(stamp(NOW, 1), kind, &payload).unwrap();
    }
    let (counts, snapshot, _) = service.finish().unwrap();
    assert_eq!((counts.masked, counts.dry, counts.lost), (60, 0, 0));
    assert!(snapshot.counters.masks_made >= 96);
    let sent = sent.0.lock().unwrap();
    let names: HashSet<_> = sent
        .iter()
        .map(|message| *Envelope::parse(message).unwrap().mask_name.unwrap())
        .collect();
    assert_eq!(names.len(), 60, "a mask was used twice");
}

/// Kernels for this processor stand in for a GPU, which is lost for good after so many calls.
fn gpu(calls: u64) -> Graphics {
    let mut opened = false;
    let open = move || {
        let calls = if std::mem::replace(&mut opened, true) {
            0
        } else {
            calls
        };
        Gpu::emulated(Emulation {
            calls,
            ..Emulation::default()
        })
        .map_err(|lost| NoGpu::Refused {
            step: lost.step,
            cause: lost.cause,
        })
    };
    let memory = KeyMemory {
        table_bytes: 1 << 20,
        rsa_keys: 1,
        p256_keys: 1,
    };
    let nobody = Arc::new(Places::new([], memory));
    Graphics::opened_by(Box::new(open), nobody).unwrap()
}

/// It is lost at last, and the processor goes on.
#[test]
fn an_idle_gpu_makes_masks_as_long_as_it_is_there() {
    let signer = signer(Scheme::RaRsa2048);
    let gpu = gpu(120);
    let (mut service, sent) = start_with(&signer, 1, 64, vec![gpu]);
    let begin = Instant::now();
    let mut count = 0;
    loop {
        let (kind, payload) = payload(Scheme::RaRsa2048, (count % 200) as u8);
        service.take(stamp(NOW, 1), kind, &payload).unwrap();
        service.submit().unwrap();
        count += 1;
        let lanes = service.snapshot().unwrap().lanes;
        if lanes[1].masks > 0 && lanes[1].lost.is_some() {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{lanes:?}");
    }
    let (counts, _, problem) = service.finish().unwrap();
    assert!(problem.is_none() && counts.lost == 0, "{problem:?}");
    assert_eq!(counts.total(), count);
    let (mut receiver, mut lane) = (receiver(), OneByOne::default());
    for message in sent.0.lock().unwrap().drain(..) {
        let checked = receiver.screen(message, NOW).unwrap();
        let holds = lane.holds(&checked);
        receiver
            .admit(checked, holds, NOW)
            .expect("no mask is used twice");
    }
}

#[test]
fn what_a_key_does_not_sign_is_said_at_once() {
    let (mut service, _) = start(&signer(Scheme::RaRsa2048), 1, 0);
    let refused = service.take(stamp(NOW, 1), PayloadKind::Opaque, b"text");
    assert!(
        matches!(refused, Err(SignError::Payload(Refusal::WrongLayout))),
        "{refused:?}"
    );
    let (counts, _, problem) = service.finish().unwrap();
    assert_eq!((counts.total(), problem.is_none()), (0, true));
}

/// More than may be on their way at once: whoever submits waits, and nothing is shed.
#[test]
fn a_sender_that_is_too_fast_waits() {
    let scheme = Scheme::Ed25519;
    let (mut service, sent) = start(&signer(scheme), 1, 0);
    let count = IN_FLIGHT_MAX + 500;
    for number in 0..count {
        let (kind, payload) = payload(scheme, number as u8);
        service.take(stamp(NOW, 1), kind, &payload).unwrap();
        if service.waiting() == 64 {
            service.submit().unwrap();
        }
    }
    let (counts, snapshot, _) = service.finish().unwrap();
    assert_eq!(counts.plain, count as u64);
    assert_eq!(sent.0.lock().unwrap().len(), count);
    assert_eq!(snapshot.counters.shed.total(), 0);
}
