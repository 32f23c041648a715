//! The signing service: each payload is signed and sent exactly once, with its own mask.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{NOW, key, payload, receiver, stamp, table};
use linewarden_signatures::gpu::{Emulation, Gpu, GpuUnavailable};
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::{GpuLane, KeyMemory, KeyPlacement, SingleLane};
use linewarden_signatures::message::{Envelope, PayloadKind};
use linewarden_signatures::ra::Table;
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::signer::{SignError, Signer};
use linewarden_signatures::signing::{
    IN_FLIGHT_MAX, SignedMessageSink, SigningCounts, SigningService, SigningSettings,
};

#[derive(Default)]
struct SentMessages(Mutex<Vec<Vec<u8>>>);

impl SignedMessageSink for SentMessages {
    fn signed(&self, messages: Vec<Vec<u8>>) {
        self.0.lock().unwrap().extend(messages);
    }
}

/// A signer with a copy of the key of this scheme. Only tests copy keys, by means of the file format.
fn signer(scheme: Scheme) -> Arc<Signer> {
    let key = PrivateKey::from_bytes(&key(scheme).to_bytes().unwrap()).unwrap();
    let table = (scheme == Scheme::RaRsa2048).then(|| {
        let public = key.ra().unwrap().public().clone();
        Table::from_bytes(public, &table().to_bytes().unwrap()).unwrap()
    });
    Arc::new(Signer::new(key, table, None))
}

fn start(signer: &Arc<Signer>, lanes: usize, idle_masks: usize) -> (SigningService, Arc<SentMessages>) {
    start_with(signer, lanes, idle_masks, Vec::new())
}

fn start_with(
    signer: &Arc<Signer>,
    lanes: usize,
    idle_masks: usize,
    gpus: Vec<GpuLane>,
) -> (SigningService, Arc<SentMessages>) {
    let sent = Arc::new(SentMessages::default());
    let settings = SigningSettings { lanes, idle_masks };
    let sink: Arc<dyn SignedMessageSink> = Arc::<SentMessages>::clone(&sent);
    let service = SigningService::start(
        Arc::clone(signer),
        settings,
        gpus,
        Box::new(Adaptive::default()),
        sink,
    );
    (service.unwrap(), sent)
}

/// Signs `count` different messages, and checks that a receiver accepts each message.
fn exchange(mut service: SigningService, sent: &SentMessages, scheme: Scheme, count: usize) -> SigningCounts {
    let mut expected = Vec::new();
    for number in 0..count {
        let (kind, payload) = payload(scheme, (number % 200) as u8);
        service
            .enqueue(stamp(NOW, (number % 8) as u8), kind, &payload)
            .unwrap();
        expected.push(payload);
        if service.waiting() == 64 {
            service.submit().unwrap();
        }
    }
    let (counts, _, problem) = service.finish().unwrap();
    assert!(problem.is_none(), "{problem:?}");
    let (mut receiver, mut lane) = (receiver(), SingleLane::default());
    let mut received = Vec::new();
    for message in sent.0.lock().unwrap().drain(..) {
        let checked = receiver.screen(message, NOW).unwrap();
        let is_valid = lane.verify_one(&checked);
        received.push(
            receiver
                .accept(checked, is_valid, NOW)
                .unwrap()
                .message()
                .payload()
                .to_vec(),
        );
    }
    expected.sort();
    received.sort();
    assert_eq!(received, expected);
    counts
}

#[test]
fn every_scheme_signs_each_payload_once() {
    for scheme in [Scheme::RsaPss2048, Scheme::EcdsaP256, Scheme::Ed25519] {
        let (service, sent) = start(&signer(scheme), 2, 16);
        let counts = exchange(service, &sent, scheme, 150);
        assert_eq!((counts.plain, counts.signed()), (150, 150), "{scheme:?}");
    }
    let (service, sent) = start(&signer(Scheme::RaRsa2048), 2, 0);
    let counts = exchange(service, &sent, Scheme::RaRsa2048, 50);
    assert_eq!((counts.unmasked, counts.signed()), (50, 50));
}

#[test]
fn idle_processors_make_masks_and_no_mask_is_used_twice() {
    let signer = signer(Scheme::RaRsa2048);
    let (mut service, sent) = start(&signer, 2, 96);
    let begin = Instant::now();
    while signer.masks() < 96 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no lane makes masks");
        std::thread::yield_now();
    }
    // At this moment, the counter `masks_made` may still be below 96; it is checked after the service has finished.
    for number in 0..60 {
        let (kind, payload) = payload(Scheme::RaRsa2048, number);
        service.enqueue(stamp(NOW, 1), kind, &payload).unwrap();
    }
    let (counts, snapshot, _) = service.finish().unwrap();
    assert_eq!((counts.masked, counts.unmasked, counts.failed), (60, 0, 0));
    assert!(snapshot.counters.masks_made >= 96);
    let sent = sent.0.lock().unwrap();
    let names: HashSet<_> = sent
        .iter()
        .map(|message| *Envelope::parse(message).unwrap().mask_name.unwrap())
        .collect();
    assert_eq!(names.len(), 60, "a mask was used twice");
}

/// Kernels compiled for this CPU emulate a GPU that is permanently lost after `calls` calls.
fn gpu(calls: u64) -> GpuLane {
    let mut was_opened = false;
    let open = move || {
        let calls = if std::mem::replace(&mut was_opened, true) {
            0
        } else {
            calls
        };
        Gpu::emulated(Emulation {
            calls,
            ..Emulation::default()
        })
        .map_err(|lost| GpuUnavailable::DriverFailed {
            step: lost.step,
            cause: lost.cause,
        })
    };
    let memory = KeyMemory {
        table_bytes: 1 << 20,
        rsa_keys: 1,
        p256_keys: 1,
    };
    let no_signers = Arc::new(KeyPlacement::new([], memory));
    GpuLane::open_with(Box::new(open), no_signers).unwrap()
}

/// The GPU is lost during the test, and the CPU lane continues.
#[test]
fn an_idle_gpu_makes_masks_until_it_is_lost() {
    let signer = signer(Scheme::RaRsa2048);
    let gpu = gpu(120);
    let (mut service, sent) = start_with(&signer, 1, 64, vec![gpu]);
    let begin = Instant::now();
    let mut count = 0;
    loop {
        let (kind, payload) = payload(Scheme::RaRsa2048, (count % 200) as u8);
        service.enqueue(stamp(NOW, 1), kind, &payload).unwrap();
        service.submit().unwrap();
        count += 1;
        let lanes = service.snapshot().unwrap().lanes;
        if lanes[1].masks > 0 && lanes[1].last_loss.is_some() {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{lanes:?}");
    }
    let (counts, _, problem) = service.finish().unwrap();
    assert!(problem.is_none() && counts.failed == 0, "{problem:?}");
    assert_eq!(counts.signed(), count);
    let (mut receiver, mut lane) = (receiver(), SingleLane::default());
    for message in sent.0.lock().unwrap().drain(..) {
        let checked = receiver.screen(message, NOW).unwrap();
        let is_valid = lane.verify_one(&checked);
        receiver
            .accept(checked, is_valid, NOW)
            .expect("no mask is used twice");
    }
}

#[test]
fn invalid_payloads_are_refused_immediately() {
    let (mut service, _) = start(&signer(Scheme::RaRsa2048), 1, 0);
    let result = service.enqueue(stamp(NOW, 1), PayloadKind::Opaque, b"text");
    assert!(
        matches!(result, Err(SignError::Payload(Refusal::WrongLayout))),
        "{result:?}"
    );
    let (counts, _, problem) = service.finish().unwrap();
    assert_eq!((counts.signed(), problem.is_none()), (0, true));
}

/// More messages than can be in flight at the same time: the sender waits, and no message is shed.
#[test]
fn a_sender_that_is_too_fast_waits() {
    let scheme = Scheme::Ed25519;
    let (mut service, sent) = start(&signer(scheme), 1, 0);
    let count = IN_FLIGHT_MAX + 500;
    for number in 0..count {
        let (kind, payload) = payload(scheme, number as u8);
        service.enqueue(stamp(NOW, 1), kind, &payload).unwrap();
        if service.waiting() == 64 {
            service.submit().unwrap();
        }
    }
    let (counts, snapshot, _) = service.finish().unwrap();
    assert_eq!(counts.plain, count as u64);
    assert_eq!(sent.0.lock().unwrap().len(), count);
    assert_eq!(snapshot.counters.shed.total(), 0);
}
