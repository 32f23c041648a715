//! `p4dra-classic` (LAP/1 3.1): frames with one flipped bit; random rounds and frames (valid, invalid and mutated) on
//! the oracle, `xdp` and `host`; batches of frames; several CPUs with the same frames; frames over a link.
//!
//! `LINEWARDEN_SEEDS` sets the number of random runs (default 30), `LINEWARDEN_SEED` the first seed; a failure prints
//! the seed of its run.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions, P4draBatch};
use linewarden_dataplane::{Config, ConfigError, DataPlane, DataPlaneError, Gate, P4dra, Telemetry as _};
use linewarden_forro::Backend;
use linewarden_harness::skip;
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, Round};
use linewarden_protocol::verdict::Verdict;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::support::device::{A, TestDevice, gateway_end};
use crate::support::fixture::p4dra::{frame, id, reply, round, tagged};
use crate::support::fixture::{TestFixture, load_xdp};
use crate::support::netns::{index_of, ip, leave_namespace, packet_socket};
use crate::support::number;
use crate::support::test_config::{P4DRA_PROVERS, TestConfig};

/// Maximum time to wait for an expected event; a loaded machine can be slow.
const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn all_data_planes_agree_on_each_bit_of_a_frame() {
    let mut fixture = TestFixture::new(TestConfig::P4DRA);
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    for bit in 0..111 * 8 {
        // Each frame has its own round, because some frames are accepted although a bit is flipped.
        let requested = fixture.p4dra_round();
        let mut frame = reply(A, &requested, 1);
        frame[bit / 8] ^= 1 << (bit % 8);
        *verdicts.entry(fixture.send(&frame)).or_default() += 1;
    }
    let expected = [
        (Verdict::PassForeign, 63),
        (Verdict::ReplyP4draVerified, 47),
        (Verdict::DropUnanswerable, 2),
        (Verdict::DropP4draMalformed, 8),
        (Verdict::DropP4draRound, 128),
        (Verdict::DropP4draProver, 128),
        (Verdict::DropP4draProof, 512),
    ];
    assert_eq!(verdicts, BTreeMap::from(expected));
}

struct Run<'a> {
    fixture: &'a mut TestFixture,
    rng: ChaCha8Rng,
    history: Vec<Vec<u8>>,
    verdicts: BTreeMap<Verdict, u64>,
}

impl Run<'_> {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn step(&mut self) {
        if self.one_in(12) {
            self.fixture.p4dra_round();
        }
        let device = TestDevice(self.rng.random_range(1..=P4DRA_PROVERS + 2));
        let rounds_ago = if self.one_in(3) {
            self.rng.random_range(0..4)
        } else {
            0
        };
        let mut requested = self.fixture.p4dra_ago(rounds_ago);
        if self.one_in(20) {
            requested.n = round(self.rng.random()).n;
        }
        let runs = if self.one_in(4) { 2 } else { 1 };
        let mut frame = match self.one_in(10) {
            true => frame(device, &self.other_message(device, requested)),
            false => reply(device, &requested, runs),
        };
        if self.one_in(8) {
            let index = self.rng.random_range(0..frame.len());
            frame[index] ^= 1 << self.rng.random_range(0..8);
        }
        if self.one_in(15) {
            frame.resize(self.rng.random_range(14..220), 0);
        }
        if self.one_in(8) {
            frame = tagged(&frame, self.rng.random_range(1..=3));
        }
        if !self.history.is_empty() && self.one_in(6) {
            frame = self.history[self.rng.random_range(0..self.history.len())].clone();
        }
        let verdict = self.fixture.send(&frame);
        *self.verdicts.entry(verdict).or_default() += 1;
        match self.history.len() < 30 {
            true => self.history.push(frame),
            false => self.history[usize::from(device.0) % 30] = frame,
        }
    }

    fn other_message(&mut self, device: TestDevice, requested: Round) -> Message {
        let random_bytes = [self.rng.random(); 64];
        match self.rng.random_range(0..4) {
            0 => Message::Start(requested),
            1 => Message::Request(requested),
            2 => Message::Calculating(requested, id(device), self.rng.random(), [7; 16], random_bytes),
            _ => Message::Verified(requested, id(device), random_bytes, random_bytes),
        }
    }
}

#[test]
fn all_data_planes_agree() {
    use Verdict::*;
    let (first, runs) = (number("LINEWARDEN_SEED", 1), number("LINEWARDEN_SEEDS", 30));
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    for gate in [Gate::Off, Gate::Bound, Gate::Sealed] {
        let mut fixture = TestFixture::new(TestConfig {
            gate,
            ..TestConfig::P4DRA
        });
        for _ in 0..4 {
            fixture.p4dra_round();
        }
        for seed in first..first + runs {
            fixture.reset();
            let mut run = Run {
                fixture: &mut fixture,
                rng: ChaCha8Rng::seed_from_u64(seed),
                history: Vec::new(),
                verdicts: BTreeMap::new(),
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (0..200).for_each(|_| run.step());
            }));
            if let Err(panic) = outcome {
                eprintln!("LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats the run with {gate:?}");
                std::panic::resume_unwind(panic);
            }
            for (verdict, count) in run.verdicts {
                *verdicts.entry(verdict).or_default() += count;
            }
        }
    }
    let expected = [
        ReplyP4draVerified,
        DropP4draMalformed,
        DropP4draOperation,
        DropP4draRound,
        DropP4draProver,
        DropP4draProved,
        DropP4draProof,
        PassForeign,
        DropGateType,
    ];
    let missing: Vec<_> = expected
        .iter()
        .filter(|verdict| !verdicts.contains_key(verdict))
        .collect();
    assert!(missing.is_empty(), "never seen: {missing:?}; seen: {verdicts:?}");
}

/// A sealed gate lets unsealed frames of this Ethernet type leave only if the gateway itself sends them.
#[test]
fn a_sealed_gate_drops_requests_of_other_senders() {
    let mut fixture = TestFixture::new(TestConfig {
        gate: Gate::Sealed,
        ..TestConfig::P4DRA
    });
    let request = frame(A, &Message::Request(round(1)));
    assert_eq!(fixture.send_down(&request).0, Verdict::DropUnsealed);
}

/// A `host` data plane with the provers of [`TestConfig::P4DRA`], in which round 1 is open.
fn host(lanes: Backend) -> Host {
    let mut host = Host::with_lanes(&TestConfig::P4DRA.config(), lanes).unwrap();
    assert!(DataPlane::p4dra(&mut host).unwrap().open_round(round(1)));
    host
}

fn counted(host: &Host) -> BTreeMap<Verdict, u64> {
    host.counters().unwrap().nonzero().collect()
}

/// Batches contain valid, invalid, repeated and malformed frames. In a batch, an invalid proof is hashed even if the
/// batch contains a valid proof of the same prover before it. Without a batch, it is not hashed.
#[test]
fn batches_have_the_same_verdicts_as_single_frames() {
    let seed = number("LINEWARDEN_SEED", 1);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let counts = [0, 1, 2, 31, 32, 33, 63, 64];
    for (lanes, count) in Backend::available().flat_map(|lanes| counts.map(|count| (lanes, count))) {
        let frames: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                let device = TestDevice(rng.random_range(1..=P4DRA_PROVERS + 3));
                let mut frame = reply(device, &round(1), rng.random_range(1..=2));
                if rng.random_range(0..10) == 0 {
                    let index = rng.random_range(0..frame.len());
                    frame[index] ^= 1 << rng.random_range(0..8);
                }
                frame
            })
            .collect();
        let (mut batched, mut one_by_one) = (host(lanes), host(Backend::SCALAR));
        let (mut batch, mut thread) = (P4draBatch::default(), batched.thread_state());
        assert_eq!(batch.fill(&frames), count);
        batched.engine().process_p4dra(&mut thread, &mut batch);
        assert_eq!(batch.results().count(), count);
        let (mut single_batch, mut single_thread) = (P4draBatch::default(), one_by_one.thread_state());
        for (frame, (verdict, result)) in frames.iter().zip(batch.results()) {
            single_batch.fill(std::slice::from_ref(frame));
            one_by_one
                .engine()
                .process_p4dra(&mut single_thread, &mut single_batch);
            let (single_verdict, single_result) = single_batch.results().next().unwrap();
            let is_already_proved =
                single_verdict == Verdict::DropP4draProved && verdict == Verdict::DropP4draProof;
            assert!(
                single_verdict == verdict || is_already_proved,
                "{single_verdict} {verdict}"
            );
            assert_eq!(single_result, result);
        }
        for device in (1..=P4DRA_PROVERS).map(TestDevice) {
            let is_ok = |host: &mut Host| DataPlane::p4dra(host).unwrap().is_proved(&id(device), &round(1));
            assert_eq!(is_ok(&mut batched), is_ok(&mut one_by_one));
        }
    }
}

/// A prover's proof is accepted one time per round, even if several CPUs process it at the same time.
#[test]
fn only_one_of_several_cpus_accepts_a_proof() {
    const ROUNDS: u64 = 40;
    let frames = |requested| -> Vec<Vec<u8>> {
        let provers = (1..=P4DRA_PROVERS).map(TestDevice);
        provers
            .map(|device| reply(device, &round(requested), 1))
            .collect()
    };
    let mut host = Host::new(&TestConfig::P4DRA.config()).unwrap();
    let engine = host.engine();
    let mut threads = [host.thread_state(), host.thread_state()];
    for requested in 1..=ROUNDS {
        assert!(DataPlane::p4dra(&mut host).unwrap().open_round(round(requested)));
        let frames = frames(requested);
        let start = Barrier::new(threads.len());
        std::thread::scope(|scope| {
            for thread in &mut threads {
                scope.spawn(|| {
                    let mut batch = P4draBatch::default();
                    assert_eq!(batch.fill(&frames), frames.len());
                    start.wait();
                    engine.process_p4dra(thread, &mut batch);
                });
            }
        });
    }
    let count = u64::from(P4DRA_PROVERS) * ROUNDS;
    let expected = BTreeMap::from([
        (Verdict::ReplyP4draVerified, count),
        (Verdict::DropP4draProved, count),
    ]);
    assert_eq!(counted(&host), expected);
    let mut xdp = load_xdp(&TestConfig::P4DRA.config());
    for requested in 1..=ROUNDS {
        assert!(DataPlane::p4dra(&mut xdp).unwrap().open_round(round(requested)));
        let (frames, start) = (frames(requested), Barrier::new(2));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    frames.iter().for_each(|frame| drop(xdp.test_run(frame).unwrap()));
                });
            }
        });
    }
    assert_eq!(
        xdp.counters().unwrap().nonzero().collect::<BTreeMap<_, _>>(),
        expected
    );
}

/// The packet socket of a prover or a controller on an interface.
struct Station(OwnedFd);

impl Station {
    fn open(interface: &str) -> Self {
        let fd = packet_socket(interface, ETHER_TYPE);
        let timeout = libc::timeval {
            tv_sec: 20,
            tv_usec: 0,
        };
        // SAFETY: the pointer is to a timeval of the given size, which setsockopt only reads.
        unsafe {
            let bytes = size_of::<libc::timeval>() as u32;
            let value = (&raw const timeout).cast();
            let level = libc::SOL_SOCKET;
            assert_eq!(
                libc::setsockopt(fd.as_raw_fd(), level, libc::SO_RCVTIMEO, value, bytes),
                0
            );
        }
        Self(fd)
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the frame is valid for its length during the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize);
    }

    /// The next frame; `None` after the timeout.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 2000];
        // SAFETY: the buffer is valid for its length during the call.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(length).ok()?);
        Some(frame)
    }
}

/// The frame with the REQUEST of a round that arrives at the devices' side.
fn request(requested: u64) -> Vec<u8> {
    let mut message = [0; 46];
    Message::Request(round(requested)).write(&mut message).unwrap();
    let mac = gateway_end(false).mac;
    [&[0xff; 6][..], &mac, &ETHER_TYPE.to_be_bytes(), &message].concat()
}

/// Runs the published tools' exchange over a link: the data plane sends a request, gets the reply, and sends VERIFIED to
/// the controller. Then the interface is set down and removed. The data plane must report the removal as a failure that
/// contains `failure_text`.
fn run_over_a_link(failure_text: &str, start: impl FnOnce(&mut Config, u32) -> Box<dyn DataPlane>) {
    leave_namespace();
    ip("link add here type veth peer name there");
    let mac = gateway_end(false).mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("link set here address {mac}"));
    // The interface `there` is used by the controller and by a prover.
    ip(&format!(
        "link set there address {}",
        CONTROLLER.map(|byte| format!("{byte:02x}")).join(":")
    ));
    ip("link set here up");
    ip("link set there up");
    let mut config = TestConfig::P4DRA.config();
    let mut data_plane = start(&mut config, index_of("here"));
    // A veth interface receives frames that an XDP program has sent only if NAPI is enabled. An XDP program enables it.
    let mut receiver = load_xdp(&TestConfig::OFF.config());
    receiver.attach(index_of("there")).unwrap();
    let station = Station::open("there");
    for requested in 1..=3 {
        assert!(data_plane.p4dra().unwrap().open_round(round(requested)));
        assert_eq!(
            data_plane.p4dra().unwrap().unproved(&round(requested)).count(),
            usize::from(P4DRA_PROVERS)
        );
        data_plane.send_p4dra_requests(&round(requested)).unwrap();
        assert_eq!(station.receive(), Some(request(requested)));
        let valid_reply = reply(A, &round(requested), 1);
        for frame in [
            &valid_reply[..110],
            &frame(A, &Message::Verified(round(requested), id(A), [7; 64], [7; 64])),
            &reply(A, &round(requested), 2),
            &valid_reply,
        ] {
            station.send(frame);
        }
        let expected = [
            &CONTROLLER,
            &valid_reply[..6],
            &valid_reply[12..14],
            &[4],
            &valid_reply[15..],
            &valid_reply[47..],
        ]
        .concat();
        // The first frame received is the reply to the valid frame: the frames before it got no reply.
        let got = station.receive();
        assert_eq!(
            got,
            Some(expected),
            "{:?}",
            data_plane
                .counters()
                .map(|counters| counters.nonzero().collect::<Vec<_>>())
        );
        let unproved: Vec<_> = data_plane
            .p4dra()
            .unwrap()
            .unproved(&round(requested))
            .copied()
            .collect();
        let other_devices = (1..=P4DRA_PROVERS).map(TestDevice).filter(|device| *device != A);
        assert_eq!(unproved, other_devices.map(id).collect::<Vec<_>>());
    }
    let expected = [
        (Verdict::ReplyP4draVerified, 3),
        (Verdict::DropP4draMalformed, 3),
        (Verdict::DropP4draOperation, 3),
        (Verdict::DropP4draProof, 3),
    ];
    let counters = data_plane.counters().unwrap();
    for (verdict, count) in expected {
        assert_eq!(counters.get(verdict), count, "{verdict}");
    }
    assert_eq!(data_plane.failure(), None);
    ip("link set here down");
    let error = data_plane
        .send_p4dra_requests(&round(4))
        .expect_err("a request was sent on an interface that is down");
    assert!(error.to_string().contains("on interface here"), "{error}");
    assert_eq!(
        data_plane.failure(),
        None,
        "an interface that is down is no failure, because it can come up again"
    );
    // The kernel reports to listening sockets that an interface is down, but not that a down interface was removed.
    ip("link del here");
    let start = Instant::now();
    let failure = loop {
        if let Some(failure) = data_plane.failure() {
            break failure;
        }
        assert!(start.elapsed() < TIMEOUT, "the removed interface is not reported");
        std::thread::yield_now();
    };
    assert!(failure.contains(failure_text), "{failure}");
}

#[test]
fn host_serves_an_interface() {
    run_over_a_link("interface here no longer exists", |config, interface| {
        config.local = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        config.p4dra.as_mut().unwrap().interfaces = vec![interface];
        ip("link set lo up");
        let options = HostOptions {
            threads: 1,
            ..HostOptions::default()
        };
        match Host::start(config, &options) {
            Ok(host) => Box::new(host),
            Err(error @ DataPlaneError::Privilege { .. }) => skip!("{error}"),
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn xdp_serves_an_interface() {
    for gate in [Gate::Off, Gate::Bound, Gate::Sealed] {
        run_over_a_link("an interface", |config, interface| {
            config.gate = gate;
            let mut xdp = load_xdp(config);
            xdp.attach(interface).unwrap();
            Box::new(xdp)
        });
    }
}

#[test]
fn unsupported_settings_are_refused() {
    let valid_config = TestConfig::P4DRA.config();
    assert_eq!(valid_config.check(), Ok(()));
    let field = |change: &dyn Fn(&mut P4dra)| {
        let mut config = valid_config.clone();
        change(config.p4dra.as_mut().unwrap());
        match config.check() {
            Err(ConfigError::Field { field, .. }) => field,
            result => panic!("{result:?}"),
        }
    };
    for ether_type in [0, 0x05ff, 0x0800, 0x0806, 0x8100, 0x88a8, 0x86dd] {
        assert_eq!(field(&|p4dra| p4dra.ether_type = ether_type), "p4dra.ether_type");
    }
    for mac in [[0; 6], [1, 0, 0, 0, 0, 0], [0xff; 6]] {
        assert_eq!(field(&|p4dra| p4dra.controller = mac), "p4dra.controller");
    }
    let duplicate_prover = |p4dra: &mut P4dra| p4dra.provers.push(p4dra.provers[0].clone());
    assert_eq!(field(&duplicate_prover), "p4dra.provers");
}

/// With as many provers as the published switch supports, each prover is found, and no other id is found.
#[test]
fn as_many_provers_as_a_switch_holds_are_found() {
    for seed in 0..3 {
        let mut config = TestConfig::P4DRA.config();
        config.geometry.hash_seed = [seed, !seed];
        config.p4dra.as_mut().unwrap().provers = (1..=20_000)
            .map(TestDevice)
            .map(TestConfig::p4dra_prover)
            .collect();
        let mut host = Host::new(&config).unwrap();
        assert!(DataPlane::p4dra(&mut host).unwrap().open_round(round(1)));
        let (engine, mut thread, mut batch) = (host.engine(), host.thread_state(), P4draBatch::default());
        let numbers: Vec<u16> = (1..=20_064).collect();
        for batch_numbers in numbers.chunks(64) {
            let frames: Vec<_> = batch_numbers
                .iter()
                .map(|number| reply(TestDevice(*number), &round(1), 1))
                .collect();
            batch.fill(&frames);
            engine.process_p4dra(&mut thread, &mut batch);
        }
        let expected = [
            (Verdict::ReplyP4draVerified, 20_000),
            (Verdict::DropP4draProver, 64),
        ];
        assert_eq!(counted(&host), BTreeMap::from(expected));
    }
}
