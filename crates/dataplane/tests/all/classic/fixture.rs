//! One profile, state and clock for the oracle, the eBPF program and the verifier in memory. Every packet goes through
//! all of them, and every difference is a failure.

use linewarden_dataplane::classic::p4dra::{P4dra, P4draBatch, P4draHost, P4draProver};
use linewarden_dataplane::classic::xdp::{ClassicXdp, Profile};
use linewarden_dataplane::classic::{Classic, ClassicProfile, ClassicVerifier, rng_state};
use linewarden_dataplane::{Counters, DataPlaneError};
use linewarden_harness::skip_part;
use linewarden_protocol::classic as oracle_classic;
use linewarden_protocol::classic::gateway::{P4dra as OracleP4dra, PublishedGateway};
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Round};
use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::verdict::{Disposition, Verdict};

use super::p4dra_frames::{check_reply, h, id, key, round, untagged};
use crate::support::device::{TestDevice, gateway_end};
use crate::support::fixture::{INGRESS, as_seen_by_socket, hex, real_now};
use crate::support::test_config::TestConfig;
use crate::support::{pin_to_one_cpu, reply};

pub const CLASSIC_PORT: u16 = 20_551;
pub const CLASSIC_ROWS: usize = 5;
/// `classic-iot` and `classic-uav` know the identifiers 1 to this number (inclusive).
pub const CLASSIC_IDENTIFIERS: u32 = 3;
/// `p4dra-classic` knows the provers 1 to this number (inclusive).
pub const P4DRA_PROVERS: u16 = 40;

/// The profile under test.
#[derive(Clone, Copy, Debug)]
pub enum Served {
    /// The profile, and the bytes of one response.
    Classic(ClassicProfile, usize),
    P4dra,
}

enum Memory {
    Classic(ClassicVerifier, SplitMix64),
    P4dra(Box<(P4draHost, P4draBatch)>),
}

pub struct ClassicFixture {
    oracle: PublishedGateway,
    memory: Memory,
    xdp: Option<ClassicXdp>,
    /// The counters of the eBPF program after the previous frame.
    counted: Counters,
    rounds: Vec<Round>,
}

/// A CRP: its challenge contains identifier and row.
pub fn crp(bytes: usize, identifier: u32, row: usize) -> (u32, Vec<u8>) {
    let challenge = identifier << 16 | row as u32;
    let response = (0..bytes).map(|index| (challenge as usize * 31 + index * 7 + 1) as u8);
    (challenge, response.collect())
}

fn classic(profile: ClassicProfile, response_bytes: usize) -> Classic {
    let rows = |identifier| (0..CLASSIC_ROWS).map(move |row| crp(response_bytes, identifier, row));
    Classic {
        profile,
        port: CLASSIC_PORT,
        response_bytes,
        crps: (1..=CLASSIC_IDENTIFIERS)
            .map(|identifier| rows(identifier).collect())
            .collect(),
        seed: 99,
    }
}

pub fn p4dra_prover(device: TestDevice) -> P4draProver {
    P4draProver {
        id: id(device),
        key: key(device),
        configuration_hash: h(1),
    }
}

pub fn p4dra(provers: u16) -> P4dra {
    P4dra {
        ether_type: ETHER_TYPE,
        controller: CONTROLLER,
        provers: (1..=provers).map(TestDevice).map(p4dra_prover).collect(),
    }
}

/// The oracle's verifier with the same CRPs, and the random numbers of this CPU.
fn oracle_verifier(config: &Classic, cpu: usize) -> oracle_classic::verifier::Verifier {
    let profile = match config.profile {
        ClassicProfile::Iot => oracle_classic::Profile::Iot,
        ClassicProfile::Uav => oracle_classic::Profile::Uav,
    };
    let bits = oracle_classic::ResponseBits::ALL
        .into_iter()
        .find(|bits| bits.bytes() == config.response_bytes)
        .unwrap();
    let crp = |(challenge, bytes): &(u32, Vec<u8>)| {
        let mut response = [0; 32];
        response[..bytes.len()].copy_from_slice(bytes);
        oracle_classic::verifier::Crp {
            challenge: *challenge,
            response,
        }
    };
    let crps = config.crps.iter().map(|rows| rows.iter().map(crp).collect());
    let rng = SplitMix64::from_state(rng_state(config.seed, cpu as u64));
    oracle_classic::verifier::Verifier::new(profile, bits, rng, crps.collect()).unwrap()
}

/// Loads the programs. If this process is not permitted to load them, the test runs without them, and counts as ignored.
pub fn load_xdp(profile: Profile<'_>) -> Option<ClassicXdp> {
    match ClassicXdp::load(&TestConfig::OFF.config(), profile) {
        Ok(xdp) => {
            assert!(xdp.set_own_macs(INGRESS, &[gateway_end(false).mac]));
            Some(xdp)
        }
        Err(error @ DataPlaneError::Privilege { .. }) => {
            skip_part!("{error}");
            None
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

impl ClassicFixture {
    pub fn new(served: Served) -> Self {
        // Random numbers of the eBPF program are per CPU.
        let cpu = pin_to_one_cpu();
        let seed = TestConfig::OFF.config().geometry.hash_seed;
        let mut oracle = PublishedGateway::from(TestConfig::OFF.oracle());
        let (memory, xdp) = match served {
            Served::Classic(profile, bytes) => {
                let config = classic(profile, bytes);
                oracle.serve_classic(CLASSIC_PORT, oracle_verifier(&config, cpu));
                let rng = SplitMix64::from_state(rng_state(config.seed, cpu as u64));
                let memory = Memory::Classic(ClassicVerifier::new(&config).unwrap(), rng);
                (memory, load_xdp(Profile::Classic(&config)))
            }
            Served::P4dra => {
                let config = p4dra(P4DRA_PROVERS);
                let mut verifier = oracle_classic::p4dra::verifier::Verifier::new();
                for prover in &config.provers {
                    verifier.install(prover.id, &prover.key, &prover.configuration_hash);
                }
                oracle.serve_p4dra(OracleP4dra {
                    ether_type: config.ether_type,
                    controller: config.controller,
                    verifier,
                });
                let host = P4draHost::new(&config, seed).unwrap();
                let memory = Memory::P4dra(Box::new((host, P4draBatch::default())));
                (memory, load_xdp(Profile::P4dra(&config)))
            }
        };
        Self {
            oracle,
            memory,
            xdp,
            counted: Counters::default(),
            rounds: Vec::new(),
        }
    }

    /// Sends a frame through the oracle, the eBPF program and the verifier in memory; returns the verdict that they
    /// agree on.
    pub fn send(&mut self, frame: &[u8]) -> Verdict {
        self.send_for_reply(frame).0
    }

    /// Like [`Self::send`]; also returns the resulting frame.
    pub fn send_for_reply(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut out = frame.to_vec();
        let handled = self.oracle.handle(real_now(), INGRESS, &mut out);
        let verdict = handled.verdict;
        out.extend(handled.trailer.into_iter().flatten());
        match verdict {
            Verdict::ReplyP4draVerified => check_reply(frame, &out),
            _ if verdict.disposition() == Disposition::Reply => reply::check_headers(frame, &out),
            _ => assert_eq!(frame, out, "only a reply changes the frame"),
        }
        self.send_xdp(frame, verdict, &out);
        self.send_to_memory(frame, verdict, &out);
        self.compare_provers();
        (verdict, out)
    }

    fn send_xdp(&mut self, frame: &[u8], verdict: Verdict, out: &[u8]) {
        // The kernel does not run a program on less than an Ethernet header.
        let Some(xdp) = self.xdp.as_mut().filter(|_| frame.len() >= 14) else {
            return;
        };
        let run = xdp.test_run(frame).unwrap();
        let counted = xdp.counters().unwrap();
        let counts: Vec<_> = counted.since(&self.counted).nonzero().collect();
        self.counted = counted;
        assert_eq!(counts, [(verdict, 1)], "xdp; oracle: {verdict}; {}", hex(frame));
        // XDP_DROP, XDP_PASS, XDP_TX.
        let action = match verdict.disposition() {
            Disposition::Drop => 1,
            Disposition::Pass => 2,
            Disposition::Reply => 3,
        };
        assert_eq!(run.action, action, "{verdict}, of {}", hex(frame));
        if action != 1 {
            assert_eq!(hex(&run.frame), hex(out), "xdp, {verdict}, of {}", hex(frame));
        }
    }

    /// A socket receives no frames for other stations; they are skipped.
    fn send_to_memory(&mut self, frame: &[u8], verdict: Verdict, out: &[u8]) {
        match &mut self.memory {
            Memory::Classic(verifier, rng) => {
                let Some((meta, payload)) = as_seen_by_socket(frame) else {
                    return;
                };
                if meta.dst_port != CLASSIC_PORT {
                    return;
                }
                let mut message = frame[payload.clone()].to_vec();
                assert_eq!(
                    verifier.handle(rng, &mut message),
                    verdict,
                    "memory; {}",
                    hex(frame)
                );
                if verdict.disposition() == Disposition::Reply {
                    assert_eq!(hex(&message), hex(&out[payload]), "memory, {verdict}");
                }
            }
            // The verifier never receives VLAN tags, so they are removed here: all verifiers then have the same state.
            Memory::P4dra(side) => {
                let (host, batch) = side.as_mut();
                let is_for_gateway = frame[0] & 1 == 1 || frame[..6] == gateway_end(false).mac;
                let Some(untagged_frame) = untagged(frame, frame).filter(|_| is_for_gateway) else {
                    return;
                };
                assert_eq!(batch.fill(&[untagged_frame]), 1);
                host.process(batch);
                let (got, reply) = batch.results().next().unwrap();
                assert_eq!(got, verdict, "memory; {}", hex(frame));
                let out = untagged(frame, out).unwrap();
                if out.len() <= reply.len() {
                    assert_eq!(hex(reply), hex(&out), "memory, {verdict}");
                }
            }
        }
    }

    /// Opens a round of `p4dra-classic` that was not used before.
    pub fn open_new_round(&mut self) -> Round {
        let round = round(self.rounds.len() as u64 + 1);
        assert!(self.open_round(round));
        self.rounds.push(round);
        round
    }

    /// Opens a round; returns whether it was accepted.
    pub fn open_round(&mut self, round: Round) -> bool {
        let is_ok = self.oracle.p4dra().unwrap().verifier.open_round(round);
        self.each_control(|control| assert_eq!(control.open_round(round), is_ok));
        is_ok
    }

    /// The round that was opened `rounds_ago` rounds before the running round.
    pub fn round_ago(&self, rounds_ago: usize) -> Round {
        self.rounds[self.rounds.len() - 1 - rounds_ago]
    }

    fn each_control(
        &mut self,
        mut work: impl FnMut(&mut linewarden_dataplane::classic::p4dra::P4draControl),
    ) {
        if let Memory::P4dra(side) = &mut self.memory {
            work(side.0.control());
        }
        if let Some(control) = self.xdp.as_mut().and_then(ClassicXdp::p4dra) {
            work(control);
        }
    }

    /// Compares which provers are ok in the latest three rounds.
    fn compare_provers(&mut self) {
        let rounds: Vec<Round> = self.rounds.iter().rev().take(3).copied().collect();
        for (round, device) in rounds
            .iter()
            .flat_map(|round| (1..=P4DRA_PROVERS + 1).map(move |number| (*round, TestDevice(number))))
        {
            let verifier = &self.oracle.p4dra().unwrap().verifier;
            let expected = verifier.has_proven(&id(device), &round);
            self.each_control(|control| {
                assert_eq!(control.is_proved(&id(device), &round), expected, "{device:?}");
            });
        }
    }
}
