//! `p4dra-classic`, on the oracle and both data planes alike.

use linewarden_dataplane::DataPlane as _;
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::prover::Prover;
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, ProverId, Round, bytes_of};
use linewarden_protocol::frame::{Mac, Network, parse};
use linewarden_protocol::verdict::Verdict;

use super::{World, hex};
use crate::support::device::{Dev, gateway_end};
use crate::support::shape::P4DRA_PROVERS;

/// Sparse: no two differ in a bit only.
pub fn id(device: Dev) -> ProverId {
    let mut id = *b"provers: number ";
    let mixed = u64::from(device.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    id[8..].copy_from_slice(&mixed.to_be_bytes());
    ProverId(id)
}

pub fn key(device: Dev) -> AttestationKey {
    let mut key: [u8; 32] = std::array::from_fn(|at| 7 * at as u8 + 1);
    key[5..7].copy_from_slice(&device.0.to_be_bytes());
    AttestationKey::from_bytes(key)
}

/// What a device runs, by a number; 1 is what it should.
pub fn h(runs: u8) -> ConfigurationHash {
    ConfigurationHash(std::array::from_fn(|at| (3 * at as u8) ^ runs))
}

/// The round of that number.
pub fn round(number: u64) -> Round {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Round {
        r: number.to_be_bytes(),
        n: mixed.to_be_bytes(),
    }
}

/// The frame of a message between those two.
pub fn frame_between(to: Mac, from: Mac, message: &Message) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend(ETHER_TYPE.to_be_bytes());
    frame.resize(14 + bytes_of(message.operation()).unwrap(), 0);
    message.write(&mut frame[14..]).unwrap();
    frame
}

/// The frame of a message to the gateway.
pub fn frame(device: Dev, message: &Message) -> Vec<u8> {
    frame_between(gateway_end(false).mac, device.mac(), message)
}

/// The reply of a device that runs that.
pub fn reply(device: Dev, round: &Round, runs: u8) -> Vec<u8> {
    let mut request = [0; 17];
    Message::Request(*round).write(&mut request).unwrap();
    let prover = Prover::new(&key(device), id(device), &h(runs));
    let mut frame = frame(device, &Message::Start(*round));
    frame.truncate(14);
    frame.extend(prover.answer(&request).unwrap());
    frame
}

/// With VLAN tags.
pub fn tagged(frame: &[u8], tags: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for tag in 0..tags {
        drop(frame.splice(12..12, [0x81, 0, 0x60, tag as u8]));
    }
    frame
}

/// How many VLAN tags a frame of the profile has; `None`: it is none.
fn tags_of(frame: &[u8]) -> Option<usize> {
    let parsed = parse(frame).ok()?;
    (parsed.network == Network::Other(ETHER_TYPE)).then_some((parsed.network_at - 14) / 4)
}

impl World {
    /// Opens a round that never was.
    pub fn p4dra_round(&mut self) -> Round {
        self.nonces += 1;
        let round = round(self.nonces);
        assert!(self.open_p4dra(round));
        round
    }

    /// Opens that round; whether it was accepted.
    pub fn open_p4dra(&mut self, round: Round) -> bool {
        let is_ok = self.oracle.p4dra().unwrap().verifier.open_round(round);
        self.each_plane(|plane, _| assert_eq!(plane.p4dra().unwrap().open_round(round), is_ok));
        if is_ok {
            self.p4dra_rounds.push(round);
        }
        is_ok
    }

    /// The round that was opened so many rounds ago; 0: the running one.
    pub fn p4dra_ago(&self, ago: usize) -> Round {
        self.p4dra_rounds[self.p4dra_rounds.len() - 1 - ago]
    }

    /// Who is ok in the last rounds.
    pub(super) fn compare_p4dra(&mut self) {
        let rounds: Vec<Round> = self.p4dra_rounds.iter().rev().take(3).copied().collect();
        for (round, device) in rounds
            .iter()
            .flat_map(|round| (1..=P4DRA_PROVERS + 1).map(move |number| (*round, Dev(number))))
        {
            let expected = self
                .oracle
                .p4dra()
                .unwrap()
                .verifier
                .is_proved(&id(device), &round);
            self.each_plane(|plane, _| {
                let got = plane.p4dra().unwrap().is_proved(&id(device), &round);
                assert_eq!(got, expected, "{}: {device:?}", plane.name());
            });
        }
    }

    /// `host` never sees a frame with VLAN tags; here it gets them without, so that it knows what the others know. Frames for
    /// other stations do not reach its sockets' buffers at all (PACKET_OTHERHOST).
    pub(super) fn send_p4dra_host(&mut self, frame: &[u8], verdict: Verdict, out: &[u8]) {
        let (Some(side), Some(tags)) = (self.host.as_mut(), tags_of(frame)) else {
            return;
        };
        if frame[0] & 1 == 0 && frame[..6] != gateway_end(false).mac {
            return;
        }
        let untagged = |frame: &[u8]| [&frame[..12], &frame[12 + 4 * tags..]].concat();
        let out = untagged(out);
        assert_eq!(side.batch.fill(&[untagged(frame)]), 1);
        side.engine.process_p4dra(&mut side.thread, &mut side.batch);
        self.sent[2] += 1;
        let counted = side.host.counters().unwrap();
        let counts: Vec<_> = counted.since(&side.counted).nonzero().collect();
        side.counted = counted;
        assert_eq!(counts, [(verdict, 1)], "host; {}", hex(frame));
        let (got, became) = side.batch.judged().next().unwrap();
        assert_eq!(got, verdict);
        if out.len() <= became.len() {
            assert_eq!(hex(became), hex(&out), "host, {verdict}");
        }
    }
}

/// What the published switch sends, judged without the oracle.
pub(super) fn check_reply(sent: &[u8], got: &[u8]) {
    let at = 14 + 4 * tags_of(sent).unwrap();
    assert_eq!((sent.len(), got.len()), (at + 97, at + 161));
    assert_eq!((&got[..6], &got[6..12]), (&CONTROLLER[..], &sent[..6]));
    assert_eq!(got[12..at], sent[12..at], "tags and type");
    assert_eq!(got[at], 4);
    assert_eq!(
        got[at + 1..at + 97],
        sent[at + 1..at + 97],
        "r, n, d; V, which is P"
    );
    assert_eq!(got[at + 97..], sent[at + 33..], "P");
}
