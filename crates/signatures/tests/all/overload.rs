//! During an overload by unknown senders, the service drops messages before its lanes, and the kernel drops datagrams.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::{NOW, receiver, sign, stamp};
use linewarden_signatures::lane::SingleLane;
use linewarden_signatures::message::TimeMs;
use linewarden_signatures::receive::{Checked, Verified};
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::scheduler::engine::{Lane, LaneLost};
use linewarden_signatures::scheduler::model::CostModel;
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheduler::{Class, Config, LaneKind, LaneSpec, Outcome, ShedReason, Span};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::service::{FloodFilter, Lanes, Report, Service, VerifiedMessageSink};
use linewarden_signatures::udp::{BATCH, Datagram, UdpReceiver, UdpSender};

/// Controls a lane; records the number of verified messages and the latency of the latest verified message.
#[derive(Default)]
struct LaneControl {
    /// Whether the lane may verify, and the number of verified messages.
    state: Mutex<(bool, u64)>,
    latency: Mutex<Span>,
    changed: Condvar,
}

impl LaneControl {
    fn set_enabled(&self, is_enabled: bool) {
        self.state.lock().unwrap().0 = is_enabled;
        self.changed.notify_all();
    }

    fn wait_until(&self, condition: impl Fn(&(bool, u64)) -> bool) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !condition(state)).unwrap());
    }
}

impl VerifiedMessageSink for LaneControl {
    fn verified(&self, _: Verified, latency: Span) {
        *self.latency.lock().unwrap() = latency;
        self.state.lock().unwrap().1 += 1;
        self.changed.notify_all();
    }
}

/// A lane that waits until the control enables it, and then verifies messages.
struct ControlledLane(SingleLane, Arc<LaneControl>);

impl Lane<Checked> for ControlledLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        self.1.wait_until(|(is_enabled, _)| *is_enabled);
        self.0.run(class, jobs, outcomes)
    }
}

fn now() -> TimeMs {
    NOW
}

fn service(lane_control: &Arc<LaneControl>) -> Service {
    // The spec claims a millisecond per message, so 50 waiting messages are an overload.
    let cost_model = CostModel::new(Span::ZERO, 1_000.0);
    let spec = LaneSpec::new("gated", LaneKind::Cpu).with_class(Class::ED25519_VERIFY, cost_model);
    let lane: Box<dyn Lane<Checked>> =
        Box::new(ControlledLane(SingleLane::default(), Arc::clone(lane_control)));
    let lanes = Lanes {
        lanes: vec![(spec, lane)],
        placement: None,
    };
    let delivery: Arc<dyn VerifiedMessageSink> = Arc::<LaneControl>::clone(lane_control);
    let policy = Box::new(Adaptive::default());
    Service::start(
        receiver(),
        Config::default(),
        policy,
        lanes,
        delivery,
        now,
        [[1; 16], [2; 16]],
    )
    .unwrap()
}

fn submit_datagram(service: &mut Service, bytes: &[u8], sender: &str) {
    let sender: SocketAddr = sender.parse().unwrap();
    let arrived = Instant::now();
    service.enqueue(&Datagram {
        bytes,
        sender,
        arrived,
    });
    service.submit().unwrap();
}

/// A datagram may have waited in the socket before the receiver reads it.
#[test]
fn the_latency_of_a_message_begins_when_the_message_arrives() {
    let waited = Duration::from_millis(20);
    let lane_control = Arc::new(LaneControl::default());
    lane_control.set_enabled(true);
    let mut service = service(&lane_control);
    let arrived = Instant::now();
    while arrived.elapsed() < waited {
        std::thread::yield_now();
    }
    let bytes = message(1);
    service.enqueue(&Datagram {
        bytes: &bytes,
        sender: GENUINE.parse().unwrap(),
        arrived,
    });
    service.submit().unwrap();
    lane_control.wait_until(|(_, verified)| *verified == 1);
    let latency = *lane_control.latency.lock().unwrap();
    assert!(latency >= waited.into(), "{latency:?}");
}

fn message(number: u8) -> Vec<u8> {
    sign(Scheme::Ed25519, stamp(NOW, 1), number)
}

/// A message with an invalid signature, which depends on the number.
fn forged(number: u32) -> Vec<u8> {
    let mut forged = message(9);
    let offset = forged.len() - 64;
    for (byte, number_byte) in forged[offset + 32..].iter_mut().zip(number.to_le_bytes()) {
        *byte ^= number_byte;
    }
    forged
}

/// Submits more messages than the scheduler's submission queue holds, from many sources.
fn overload(service: &mut Service) {
    for number in 0..1_100 {
        let [high, low] = (number as u16).to_be_bytes();
        submit_datagram(service, &forged(2 + number), &format!("203.0.{high}.{low}:9"));
    }
}

fn dropped_on_overload(report: &Report) -> u64 {
    let shed = report.shed();
    let dropped = shed.iter().find(|(reason, _)| *reason == ShedReason::Overload);
    dropped.map_or(0, |(_, count)| *count)
}

const GENUINE: &str = "192.0.2.1:7447";
const FLOOD: &str = "192.0.2.66:9";

#[test]
fn overload_drops_messages_of_suspects_but_not_of_known_senders() {
    let lane_control = Arc::new(LaneControl::default());
    let mut service = service(&lane_control);
    lane_control.set_enabled(true);
    // One sender becomes known; one source becomes suspect.
    submit_datagram(&mut service, &forged(1), FLOOD);
    submit_datagram(&mut service, &message(1), GENUINE);
    lane_control.wait_until(|(_, verified)| *verified == 1);
    assert_eq!(service.report().unwrap().refused, [(Refusal::WrongSignature, 1)]);
    lane_control.set_enabled(false);
    overload(&mut service);
    let dropped_before = dropped_on_overload(&service.report().unwrap());
    for number in 0..100 {
        submit_datagram(&mut service, &forged(5_000 + number), FLOOD);
    }
    assert_eq!(
        dropped_on_overload(&service.report().unwrap()),
        dropped_before + 100,
        "all messages of suspects are dropped"
    );
    for number in 2..=101 {
        submit_datagram(&mut service, &message(number), GENUINE);
    }
    assert_eq!(
        dropped_on_overload(&service.report().unwrap()),
        dropped_before + 100,
        "no message of a known sender is dropped"
    );
    // Some messages of new sources are accepted, since otherwise no new sender could become known.
    for number in 0..1_000u16 {
        let [high, low] = number.to_be_bytes();
        submit_datagram(
            &mut service,
            &forged(6_000 + u32::from(number)),
            &format!("198.51.{high}.{low}:9"),
        );
    }
    let dropped_new = dropped_on_overload(&service.report().unwrap()) - dropped_before - 100;
    assert!(
        dropped_new < 1_000,
        "{dropped_new} of 1,000 new sources' messages were dropped"
    );
    lane_control.set_enabled(true);
    let report = service.finish().unwrap();
    assert_eq!(report.verified, 101);
}

#[test]
fn messages_of_unknown_signers_do_not_count_toward_the_limit_of_new_senders() {
    let lane_control = Arc::new(LaneControl::default());
    let mut service = service(&lane_control);
    overload(&mut service);
    let dropped_before = dropped_on_overload(&service.report().unwrap());
    let mut unknown_signer = message(1);
    unknown_signer[4] ^= 1;
    for number in 0..1_000u16 {
        let [high, low] = number.to_be_bytes();
        submit_datagram(&mut service, &unknown_signer, &format!("198.51.{high}.{low}:9"));
    }
    let report = service.report().unwrap();
    assert_eq!(report.refused, [(Refusal::UnknownSigner, 1_000)]);
    submit_datagram(&mut service, &message(1), GENUINE);
    assert_eq!(dropped_on_overload(&service.report().unwrap()), dropped_before);
    lane_control.set_enabled(true);
    assert_eq!(service.finish().unwrap().verified, 1);
}

/// Receives on a socket until `is_expected` returns true for a change of the filter.
fn receive_until(service: &mut Service, inbox: &mut UdpReceiver, is_expected: impl Fn(&FloodFilter) -> bool) {
    loop {
        inbox.receive(|datagram| service.enqueue(&datagram)).unwrap();
        service.submit().unwrap();
        match service.update_flood_filter(inbox).unwrap() {
            Some(FloodFilter::Rejected(error)) => panic!("{error}"),
            Some(change) if is_expected(&change) => return,
            _ => {}
        }
    }
}

/// The messages of the flood are malformed, so they are refused without overloading lanes. Each datagram is received,
/// dropped by the filter, or lost in the socket.
#[test]
fn the_kernel_drops_a_flood_except_known_senders() {
    let lane_control = Arc::new(LaneControl::default());
    lane_control.set_enabled(true);
    let mut service = service(&lane_control);
    let address = "127.0.0.1:0".parse().unwrap();
    let mut inbox = UdpReceiver::open(address, 0, Duration::from_millis(1)).unwrap();
    let receiver_address = inbox.address().unwrap();
    let genuine = UdpSocket::bind("127.0.0.2:0").unwrap();
    genuine.send_to(&message(1), receiver_address).unwrap();
    while service.verified() < 1 {
        inbox.receive(|datagram| service.enqueue(&datagram)).unwrap();
        service.submit().unwrap();
    }
    let mut malformed = message(1);
    malformed[3] = 0xff;
    let (sent, is_flood_ended) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop_flood = StopOnDrop(&is_flood_ended);
        scope.spawn(|| {
            let flood = UdpSender::open(receiver_address, 0, 0).unwrap();
            let batch = vec![malformed; BATCH];
            while !is_flood_ended.load(Ordering::Relaxed) {
                flood.send(&batch).unwrap();
                sent.fetch_add(BATCH as u64, Ordering::Relaxed);
            }
        });
        receive_until(
            &mut service,
            &mut inbox,
            |change| matches!(change, FloodFilter::Attached(status) if status.known_senders == Some(1)),
        );
        for number in 2..=50 {
            genuine.send_to(&message(number), receiver_address).unwrap();
            sent.fetch_add(1, Ordering::Relaxed);
        }
        // The flood ends only when the filter has dropped a part of it: on a busy machine, the flooding thread may not run
        // between the attachment of the filter and the last genuine message.
        while service.verified() < 50 || dropped_on_overload(&service.report().unwrap()) == 0 {
            inbox.receive(|datagram| service.enqueue(&datagram)).unwrap();
            service.submit().unwrap();
            service.count_filtered(&mut inbox).unwrap();
        }
        drop(stop_flood);
    });
    receive_until(&mut service, &mut inbox, |change| {
        matches!(change, FloodFilter::Detached)
    });
    while inbox.receive(|datagram| service.enqueue(&datagram)).unwrap() > 0 {}
    service.count_filtered(&mut inbox).unwrap();
    let report = service.finish().unwrap();
    let filtered = dropped_on_overload(&report);
    let accounted = report.received + filtered + inbox.dropped().unwrap();
    assert_eq!(accounted, sent.load(Ordering::Relaxed));
}

/// Sets the flag when dropped, so that the flood thread stops even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
