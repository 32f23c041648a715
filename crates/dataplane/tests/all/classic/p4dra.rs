//! `p4dra-classic` (LAP/1 3.1): frames with one flipped bit; random rounds and frames (valid, invalid and mutated) on
//! the oracle, `xdp` and `host`; batches of frames; several CPUs with the same frames; frames over a link.
//!
//! `LINEWARDEN_SEEDS` sets the number of random runs (default 30), `LINEWARDEN_SEED` the first seed; a failure prints
//! the seed of its run.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Barrier;

use linewarden_dataplane::classic::p4dra::{P4dra, P4draBatch, P4draHost};
use linewarden_dataplane::classic::xdp::{ClassicXdp, Profile};
use linewarden_dataplane::{ConfigError, DataPlaneError};
use linewarden_forro::Backend;
use linewarden_harness::skip;
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, Round};
use linewarden_protocol::verdict::Verdict;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::fixture::{ClassicFixture, P4DRA_PROVERS, Served, load_xdp, p4dra};
use super::p4dra_frames::{frame, id, reply, round, tagged};
use crate::support::device::{A, TestDevice, gateway_end};
use crate::support::fixture;
use crate::support::netns::{index_of, ip, leave_namespace, packet_socket};
use crate::support::number;
use crate::support::test_config::TestConfig;

#[test]
fn all_data_planes_agree_on_each_bit_of_a_frame() {
    let mut fixture = ClassicFixture::new(Served::P4dra);
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    for bit in 0..111 * 8 {
        // Each frame has its own round, because some frames are accepted although a bit is flipped.
        let requested = fixture.open_new_round();
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
    fixture: &'a mut ClassicFixture,
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
            self.fixture.open_new_round();
        }
        let device = TestDevice(self.rng.random_range(1..=P4DRA_PROVERS + 2));
        let rounds_ago = if self.one_in(3) {
            self.rng.random_range(0..4)
        } else {
            0
        };
        let mut requested = self.fixture.round_ago(rounds_ago);
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
    let mut fixture = ClassicFixture::new(Served::P4dra);
    for _ in 0..4 {
        fixture.open_new_round();
    }
    for seed in first..first + runs {
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
            eprintln!("LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats the run");
            std::panic::resume_unwind(panic);
        }
        for (verdict, count) in run.verdicts {
            *verdicts.entry(verdict).or_default() += count;
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
    ];
    let missing: Vec<_> = expected
        .iter()
        .filter(|verdict| !verdicts.contains_key(verdict))
        .collect();
    assert!(missing.is_empty(), "never seen: {missing:?}; seen: {verdicts:?}");
}

/// The verifier in memory with the provers of the tests, in which round 1 is open.
fn host(lanes: Backend) -> P4draHost {
    let seed = TestConfig::OFF.config().geometry.hash_seed;
    let mut host = P4draHost::with_lanes(&p4dra(P4DRA_PROVERS), seed, lanes).unwrap();
    assert!(host.control().open_round(round(1)));
    host
}

fn verdicts_of(batch: &P4draBatch) -> Vec<Verdict> {
    batch.results().map(|(verdict, _)| verdict).collect()
}

fn counted(verdicts: &[Verdict]) -> BTreeMap<Verdict, u64> {
    let mut counts = BTreeMap::new();
    verdicts
        .iter()
        .for_each(|verdict| *counts.entry(*verdict).or_default() += 1);
    counts
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
        let mut batch = P4draBatch::default();
        assert_eq!(batch.fill(&frames), count);
        batched.process(&mut batch);
        assert_eq!(batch.results().count(), count);
        let mut single_batch = P4draBatch::default();
        for (frame, (verdict, result)) in frames.iter().zip(batch.results()) {
            single_batch.fill(std::slice::from_ref(frame));
            one_by_one.process(&mut single_batch);
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
            let is_ok = |host: &mut P4draHost| host.control().is_proved(&id(device), &round(1));
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
    let seed = TestConfig::OFF.config().geometry.hash_seed;
    let mut host = P4draHost::new(&p4dra(P4DRA_PROVERS), seed).unwrap();
    let mut verdicts = Vec::new();
    for requested in 1..=ROUNDS {
        assert!(host.control().open_round(round(requested)));
        let (frames, host) = (frames(requested), &host);
        let start = Barrier::new(2);
        let verify = || {
            let mut batch = P4draBatch::default();
            assert_eq!(batch.fill(&frames), frames.len());
            start.wait();
            host.process(&mut batch);
            verdicts_of(&batch)
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(verify), scope.spawn(verify)];
            verdicts.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap()));
        });
    }
    let count = u64::from(P4DRA_PROVERS) * ROUNDS;
    let expected = BTreeMap::from([
        (Verdict::ReplyP4draVerified, count),
        (Verdict::DropP4draProved, count),
    ]);
    assert_eq!(counted(&verdicts), expected);
    let mut xdp = xdp();
    for requested in 1..=ROUNDS {
        assert!(xdp.p4dra().unwrap().open_round(round(requested)));
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

/// The programs with the provers of the tests. Skips the test if this process is not permitted to load them.
fn xdp() -> ClassicXdp {
    load_xdp(Profile::P4dra(&p4dra(P4DRA_PROVERS))).unwrap_or_else(|| skip!("the programs cannot be loaded"))
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

/// A prover's frames over a link: the program sends VERIFIED to the controller.
#[test]
fn the_program_serves_an_interface() {
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
    let mut xdp = xdp();
    xdp.attach(index_of("here")).unwrap();
    // A veth interface receives frames that an XDP program has sent only if NAPI is enabled. An XDP program enables it.
    let mut receiver = fixture::load_xdp(&TestConfig::OFF.config());
    receiver.attach(index_of("there")).unwrap();
    let station = Station::open("there");
    for requested in 1..=3 {
        assert!(xdp.p4dra().unwrap().open_round(round(requested)));
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
        assert_eq!(station.receive(), Some(expected));
    }
    let expected = [
        (Verdict::ReplyP4draVerified, 3),
        (Verdict::DropP4draMalformed, 3),
        (Verdict::DropP4draOperation, 3),
        (Verdict::DropP4draProof, 3),
    ];
    let counters = xdp.counters().unwrap();
    for (verdict, count) in expected {
        assert_eq!(counters.get(verdict), count, "{verdict}");
    }
}

#[test]
fn invalid_settings_are_refused() {
    let field = |change: &dyn Fn(&mut P4dra)| {
        let mut config = p4dra(P4DRA_PROVERS);
        change(&mut config);
        match P4draHost::new(&config, [1, 2]) {
            Err(DataPlaneError::Config(ConfigError::Field { field, .. })) => field,
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
    let config = p4dra(20_000);
    for seed in 0..3 {
        let mut host = P4draHost::new(&config, [seed, !seed]).unwrap();
        assert!(host.control().open_round(round(1)));
        let (mut batch, mut verdicts) = (P4draBatch::default(), Vec::new());
        let numbers: Vec<u16> = (1..=20_064).collect();
        for batch_numbers in numbers.chunks(64) {
            let frames: Vec<_> = batch_numbers
                .iter()
                .map(|number| reply(TestDevice(*number), &round(1), 1))
                .collect();
            batch.fill(&frames);
            host.process(&mut batch);
            verdicts.extend(verdicts_of(&batch));
        }
        let expected = [
            (Verdict::ReplyP4draVerified, 20_000),
            (Verdict::DropP4draProver, 64),
        ];
        assert_eq!(counted(&verdicts), BTreeMap::from(expected));
    }
}
