//! Port sets, with ports in memory.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linewarden_switch::ports::memory::{MemoryPeer, memory_port};
use linewarden_switch::ports::{
    BURST_FRAMES, Port, PortError, PortId, PortSet, PortSetError, Readiness, Receive, RxCounters, Transmit,
    TxCounters,
};

use crate::ports::net::id;

/// Test timeout, long enough for any machine; only a failing test reaches it.
const LONG: Duration = Duration::from_secs(60);

fn set_of(count: u16, capacity: usize) -> (PortSet, Vec<MemoryPeer>) {
    let mut set = PortSet::new().unwrap();
    let peers = (0..count).map(|number| {
        let (port, peer) = memory_port(capacity).unwrap();
        set.add(id(number), port).unwrap();
        peer
    });
    let peers = peers.collect();
    (set, peers)
}

#[test]
fn frames_reach_their_port_in_order() {
    let (mut set, peers) = set_of(3, 100);
    for number in 0..10u8 {
        assert!(peers[0].send(&[number, 7, 7]));
    }
    let result = set.serve(None, |port, frame, senders| {
        assert_eq!(port, id(0));
        // To the ingress port, to another port, and to a port that does not exist.
        senders.send(port, &frame[..1], &[]);
        senders.send(id(2), &frame[..1], &frame[2..]);
        senders.send(id(99), frame, &[]);
    });
    assert_eq!(result.unwrap(), 10);
    for number in 0..10u8 {
        assert_eq!(peers[0].try_receive(), Some(vec![number]));
        assert_eq!(peers[2].try_receive(), Some(vec![number, 7]));
    }
    assert_eq!((peers[0].try_receive(), peers[1].try_receive()), (None, None));
    assert_eq!(set.senders().sent_to_unknown_port(), 10);
    let counters = set.counters(id(0)).unwrap();
    assert_eq!((counters.rx.frames, counters.rx.bytes), (10, 30));
    assert_eq!((counters.tx.frames, counters.tx.bytes), (10, 10));
    assert_eq!(set.counters(id(99)), None);
}

#[test]
fn full_queue_is_counted_in_its_direction() {
    let (mut set, peers) = set_of(2, 5);
    let accepted = (0..8).filter(|_| peers[0].send(&[0; 64])).count();
    assert_eq!(accepted, 5);
    let result = set.serve(None, |_, frame, senders| {
        senders.send(id(1), frame, &[]);
        senders.send(id(1), frame, &[]);
    });
    assert_eq!(result.unwrap(), 5);
    assert_eq!(set.counters(id(0)).unwrap().rx.dropped_full, 3);
    let tx = set.counters(id(1)).unwrap().tx;
    assert_eq!((tx.frames, tx.dropped_full), (5, 5));
    let mut drained_bytes = 0;
    assert_eq!(peers[1].drain(|frame| drained_bytes += frame.len()), 5);
    assert_eq!(drained_bytes, 5 * 64);
}

#[test]
fn flooded_port_does_not_starve_others() {
    let (mut set, peers) = set_of(3, 10_000);
    for _ in 0..1000 {
        assert!(peers[1].send(&[1]));
    }
    assert!(peers[0].send(&[0]));
    assert!(peers[2].send(&[2]));
    let mut received = [0; 3];
    let frames = set.round(&mut |port, _, _| received[usize::from(port.get())] += 1);
    assert_eq!(
        (frames.unwrap(), received),
        (BURST_FRAMES + 2, [1, BURST_FRAMES, 1])
    );
}

#[test]
fn ports_are_polled_in_rotation() {
    let (mut set, peers) = set_of(3, 100);
    let mut first_ports = Vec::new();
    for _ in 0..6 {
        for peer in &peers {
            assert!(peer.send(&[0]));
        }
        let mut order = Vec::new();
        set.round(&mut |port, _, _| order.push(port.get())).unwrap();
        first_ports.push(order[0]);
    }
    assert_eq!(first_ports, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn sleeping_worker_wakes_for_frames_and_waker() {
    let (set, peers) = set_of(2, 100);
    let mut set = set.with_spin_rounds(0);
    let waker = set.waker();
    let rounds = Arc::new(AtomicUsize::new(0));
    let worker_rounds = rounds.clone();
    let worker = thread::spawn(move || {
        let mut frames = 0;
        while frames < 200 {
            let timeout = Some(LONG);
            frames += set
                .serve(timeout, |port, frame, senders| senders.send(port, frame, &[]))
                .unwrap();
            worker_rounds.fetch_add(1, Ordering::SeqCst);
        }
        set
    });
    let start = Instant::now();
    for number in 0..200u8 {
        let peer = &peers[usize::from(number % 2)];
        assert!(peer.send(&[number]));
        assert_eq!(peer.receive(LONG), Some(vec![number]));
    }
    let mut set = worker.join().unwrap();
    assert!(start.elapsed() < LONG);
    waker.wake();
    assert_eq!(set.serve(Some(LONG), |_, _, _| {}).unwrap(), 0);
    assert!(start.elapsed() < LONG, "the waker did not end the sleep");
    assert_eq!(
        set.serve(Some(Duration::from_millis(1)), |_, _, _| {}).unwrap(),
        0
    );
}

#[test]
fn ports_can_be_added_and_removed() {
    let (mut set, peers) = set_of(2, 100);
    let (new_port, _) = memory_port(1).unwrap();
    assert!(matches!(set.add(id(1), new_port), Err(PortSetError::PortInUse(port)) if port == id(1)));
    assert_eq!(set.ids(), [id(0), id(1)]);

    assert!(peers[1].send(&[1]));
    let port = set.remove(id(1)).unwrap();
    assert!(set.remove(id(1)).is_none());
    assert_eq!(set.serve(Some(Duration::ZERO), |_, _, _| {}).unwrap(), 0);

    set.add(id(511), port).unwrap();
    let mut received = Vec::new();
    set.serve(None, |port, frame, _| received.push((port, frame.to_vec())))
        .unwrap();
    assert_eq!(received, [(id(511), vec![1])]);
}

#[test]
fn port_numbers_have_nine_bits() {
    assert_eq!(PortId::new(511).map(PortId::get), Some(511));
    assert_eq!(PortId::new(512), None);
}

/// Port that fails in both directions like an unplugged device.
#[derive(Debug)]
struct FailingPort(std::fs::File);

fn interface_removed() -> PortError {
    PortError::NoInterface {
        interface: "usb0".to_owned(),
        source: std::io::Error::from_raw_os_error(libc::ENODEV),
    }
}

impl Receive for FailingPort {
    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        Err(interface_removed())
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Fd(self.0.as_fd())
    }

    fn counters(&mut self) -> RxCounters {
        RxCounters::default()
    }
}

impl Transmit for FailingPort {
    fn send(&mut self, _: &[u8], _: &[u8]) -> Result<(), PortError> {
        Err(interface_removed())
    }

    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        TxCounters::default()
    }
}

fn failing_port() -> FailingPort {
    FailingPort(std::fs::File::open("/dev/null").unwrap())
}

#[test]
fn lost_port_is_reported_and_others_continue() {
    let (mut set, peers) = set_of(2, 100);
    let (good, _peer) = memory_port(100).unwrap();
    let bad_receiver = Port {
        receiver: Box::new(failing_port()),
        ..good
    };
    set.add(id(5), bad_receiver).unwrap();
    let (good, _peer) = memory_port(100).unwrap();
    let bad_sender = Port {
        sender: Box::new(failing_port()),
        ..good
    };
    set.add(id(6), bad_sender).unwrap();

    assert!(peers[0].send(&[1]));
    let mut failed_ports = Vec::new();
    for _ in 0..2 {
        match set.round(&mut |_, frame, senders| {
            senders.send(id(6), frame, &[]);
            senders.send(id(1), frame, &[]);
        }) {
            Err(PortSetError::PortFailed { port, source }) => {
                assert!(
                    source.to_string().starts_with("cannot find interface usb0: "),
                    "{source}"
                );
                failed_ports.push(port.get());
            }
            other => panic!("{other:?}"),
        }
    }
    failed_ports.sort_unstable();
    assert_eq!(failed_ports, [5, 6]);
    assert_eq!(set.ids(), [id(0), id(1)]);
    assert_eq!(peers[1].try_receive(), Some(vec![1]));
    assert!(set.round(&mut |_, _, _| {}).is_ok());
}
