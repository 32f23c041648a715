//! p4dra.p4, and PROOFs of lap.p4: `attest/2` and `p4dra-classic` compared with the oracle.

use linewarden_protocol::attest::{
    AttestationKey, ConfigurationHash, PeriodStart, ProofKey, Round as AttestRound,
};
use linewarden_protocol::classic::gateway::{P4dra, PublishedGateway};
use linewarden_protocol::classic::p4dra::prover::Prover;
use linewarden_protocol::classic::p4dra::verifier::Verifier;
use linewarden_protocol::classic::p4dra::{
    CONTROLLER, ETHER_TYPE, Message, ProverId, Round, Template, swap_word_bytes,
};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::gateway::{Gate, Gateway, GatewayConfig, OpenRound, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber, Suite};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{Header, message_type};
use zerocopy::IntoBytes as _;

use super::lap;
use super::packet_tester::{
    GATEWAY, OWN_V6, PacketTester, device_endpoint, gateway_endpoint, service_endpoint, v6,
};
use super::stf::Stf;

const H: ConfigurationHash = ConfigurationHash([0x21; 32]);
const OTHER_H: ConfigurationHash = ConfigurationHash([0x43; 32]);
const START: PeriodStart = PeriodStart {
    period: Period(0x0102_0304_0506_0708),
    salt: *b"saltsalt",
};
const CPU_PORT: u16 = 510;
/// A time that no test reaches, µs of the switch's clock.
const LATER_US: u64 = 1 << 46;

fn device(number: u8) -> DeviceId {
    DeviceId(0x0a0b_0c0d_0000_1000 + u64::from(number))
}

fn secret(number: u8) -> AttestationKey {
    AttestationKey::from_bytes(std::array::from_fn(|at| number ^ u8::try_from(at * 5).unwrap()))
}

fn key(number: u8, h: &ConfigurationHash) -> ProofKey {
    secret(number)
        .for_period(device(number), &START, h)
        .for_gateway(GATEWAY)
}

fn round(number: u32) -> AttestRound {
    AttestRound {
        gateway: GATEWAY,
        number: RoundNumber(number),
        nonce: (0x1122_3344_5566_0000 + u64::from(number)).to_be_bytes(),
        start: START,
    }
}

fn args<'a>(prefix: &str, words: impl IntoIterator<Item = &'a u32>) -> String {
    let words = (0..).zip(words);
    let words: Vec<_> = words
        .map(|(at, word)| format!("{prefix}{at}:{word:#010x}"))
        .collect();
    words.join(", ")
}

/// A program that verifies PROOFs.
#[derive(Clone, Copy)]
enum Program<'a> {
    /// p4dra.p4, compiled under this name: a table entry has one of the two keys.
    P4dra(&'a str),
    /// lap.p4: a table entry has both keys.
    Lap,
}

impl Program<'_> {
    fn control(self) -> &'static str {
        match self {
            Program::P4dra(_) => "AttestIngress",
            Program::Lap => "LapIngress",
        }
    }

    /// Returns the oracle with the same rules: only `lap` checks the destination MAC address.
    fn gateway(self, provers_max: usize) -> Gateway {
        let own_macs = match self {
            Program::P4dra(_) => None,
            Program::Lap => Some(lap::OWN_MACS.to_vec()),
        };
        Gateway::new(GatewayConfig {
            provers_max,
            sources: None,
            own_macs,
            ..GatewayConfig::new(GATEWAY, &[gateway_endpoint().ip, OWN_V6.into()])
        })
    }

    /// Returns a tester without attested devices.
    fn tester(self) -> PacketTester {
        match self {
            Program::P4dra(program) => {
                PacketTester::new(self.control(), Stf::new(program, "proofs"), self.gateway(0))
            }
            Program::Lap => {
                let mut tester = lap::new_tester("proofs", Gate::Off);
                lap::configure(&mut tester, Gate::Off, false, false);
                tester
            }
        }
    }

    fn begin_to_attest(self, tester: &mut PacketTester) {
        tester.gateway = self.gateway(8).into();
        match self {
            Program::P4dra(_) => {
                let id = GATEWAY.0;
                tester.stf.line(&format!(
                    "setdefault AttestIngress.gateway set_gateway(gateway_id:{id})"
                ));
            }
            Program::Lap => lap::configure(tester, Gate::Off, false, true),
        }
    }

    fn add_keys(self, tester: &mut PacketTester, number: u8, keys: &ProverKeys) {
        let (device, period) = (device(number).0, START.period.0);
        let (current, alternate) = (words(&keys.current), keys.alternate.as_ref().map(words));
        let has_alternate = u8::from(alternate.is_some());
        match self {
            Program::P4dra(_) => {
                let keys_by_index = [(0, Some(current)), (1, alternate)];
                for (key_index, words) in keys_by_index
                    .into_iter()
                    .filter_map(|(key_index, words)| Some((key_index, words?)))
                {
                    tester.stf.line(&format!(
                        "add AttestIngress.proof_keys hdr.lap.device_id:{device:#x} meta.period:{period:#x} \
                         meta.alternate:{key_index} set_key(has_alternate:{has_alternate}, {})",
                        args("k", &words)
                    ));
                }
            }
            Program::Lap => {
                tester.stf.line(&format!(
                    "add LapIngress.proof_keys meta.prover:{number} meta.period:{period:#x} \
                     set_keys({}, has_alternate:{has_alternate}, {})",
                    args("k", &current),
                    args("a", &alternate.unwrap_or_default())
                ));
            }
        }
    }

    fn install(self, tester: &mut PacketTester, number: u8, has_alternate: bool, has_keys: bool) {
        let keys = ProverKeys {
            current: key(number, &H),
            alternate: has_alternate.then(|| key(number, &OTHER_H)),
        };
        tester.stf.line(&format!(
            "add {}.provers hdr.lap.device_id:{:#x} set_prover(prover:{number})",
            self.control(),
            device(number).0
        ));
        // In the oracle a prover without a key of the period has a key of another period.
        let period = Period(START.period.0 + u64::from(!has_keys));
        if has_keys {
            self.add_keys(tester, number, &keys);
        }
        tester
            .gateway
            .install_prover(device(number), period, keys)
            .unwrap();
    }

    /// Begins a round like the control plane, which writes the number last.
    fn open(self, tester: &mut PacketTester, round: &AttestRound, is_late: bool) {
        let round_slot = round.number.0 & 1;
        let lines = [
            ("round_period", round.start.period.0),
            ("round_nonce", u64::from_be_bytes(round.nonce)),
            ("round_until_us", if is_late { 0 } else { LATER_US }),
            ("round_number", round.number.0.into()),
        ];
        for (register, value) in lines {
            let control = self.control();
            tester.stf.line(&format!(
                "register_write {control}.{register} {round_slot} {value}"
            ));
        }
        let deadline_ms = if is_late {
            0
        } else {
            tester.now.monotonic_ms + 1000
        };
        let open = OpenRound {
            round: *round,
            started: Monotonic(0),
            deadline: Monotonic(deadline_ms),
        };
        tester.gateway.open_round(open).unwrap();
    }
}

/// Returns a key in the word order of the programs.
fn words(key: &ProofKey) -> [u32; 8] {
    let (words, _) = key.as_bytes().as_chunks::<4>();
    std::array::from_fn(|at| u32::from_le_bytes(words[at]))
}

/// Returns a PROOF as the device sends it.
fn proof(number: u8, round: &AttestRound, h: &ConfigurationHash) -> Vec<u8> {
    let message = round.proof_message(device(number), key(number, h).prove(round));
    PacketTester::to_lap(device_endpoint(number), message.as_bytes())
}

fn proofs(program: Program<'_>) -> Stf {
    let mut tester = program.tester();
    let (first, second) = (round(1), round(2));
    tester.comment("No device is attested yet.");
    tester.expect(Verdict::DropUnsupportedType, &proof(1, &first, &H));
    tester.comment(
        "Provers 1 to 5: another configuration is rolled out to 2 and 3, 4 has no key of the period.",
    );
    program.begin_to_attest(&mut tester);
    for (number, alternate, has_keys) in [
        (1, false, true),
        (2, true, true),
        (3, true, true),
        (4, false, false),
        (5, false, true),
    ] {
        program.install(&mut tester, number, alternate, has_keys);
    }
    tester.comment("No round is open.");
    tester.expect(Verdict::DropRound, &proof(1, &first, &H));
    tester
        .comment("A round: one verdict per prover; the current configuration, or the one being rolled out.");
    program.open(&mut tester, &first, false);
    tester.expect(Verdict::ProofOk, &proof(1, &first, &H));
    tester.expect(Verdict::ProofOk, &proof(2, &first, &OTHER_H));
    tester.stf.line("wait");
    tester.expect(Verdict::DropProof, &proof(5, &first, &OTHER_H));
    tester.expect(Verdict::DropProof, &proof(3, &first, &ConfigurationHash([9; 32])));
    tester.expect(Verdict::DropNoKey, &proof(4, &first, &H));
    tester.expect(Verdict::DropUnknownProver, &proof(6, &first, &H));
    tester.expect(Verdict::DropRound, &proof(3, &second, &H));
    tester.comment("A wrong proof does not affect a later or an earlier proof of the prover.");
    drain(&mut tester);
    tester.expect(Verdict::ProofOk, &proof(5, &first, &H));
    tester.expect(Verdict::ProofOk, &proof(3, &first, &H));
    drain(&mut tester);
    tester.expect(Verdict::DropProved, &proof(1, &first, &H));
    tester.expect(Verdict::DropProved, &proof(2, &first, &H));
    tester.expect(
        Verdict::DropProved,
        &proof(5, &first, &ConfigurationHash([9; 32])),
    );
    tester.comment("The next round is open at the same time, with IPv6 and VLAN tags.");
    program.open(&mut tester, &second, false);
    let message = second.proof_message(device(1), key(1, &H).prove(&second));
    let frame = FrameBuilder::new(v6(device_endpoint(1)), v6(gateway_endpoint()))
        .vlan(7)
        .vlan(9);
    tester.expect(Verdict::ProofOk, &frame.udp(message.as_bytes()));
    tester.expect(Verdict::DropProved, &proof(1, &first, &H));
    tester.comment("Wrong in one bit: the number, the nonce, each word of the proof.");
    let valid = proof(2, &second, &H);
    let payload = 42;
    tester.expect(Verdict::DropGateway, &altered_proofs(&valid, payload + 16));
    tester.expect(Verdict::DropRound, &altered_proofs(&valid, payload + 20));
    tester.expect(Verdict::DropRound, &altered_proofs(&valid, payload + 31));
    for word in 0..16 {
        let at = payload + 32 + word * 4 + word % 4;
        tester.expect(Verdict::DropProof, &altered_proofs(&valid, at));
    }
    drain(&mut tester);
    tester.expect(Verdict::ProofOk, &valid);
    tester.comment("A round after its deadline.");
    program.open(&mut tester, &round(3), true);
    tester.expect(Verdict::DropLate, &proof(3, &round(3), &H));
    tester.expect(Verdict::DropRound, &proof(3, &first, &H));
    tester.comment("Other frames to the port, and frames to other ports.");
    foreign_proofs(&mut tester);
    let frames = [proof(5, &second, &H), proof(3, &second, &OTHER_H)];
    tester.comment("Altered frames; the oracle gives the expected result.");
    tester.send_altered(0x5eed_0001, 250, &frames);
    tester.finish()
}

/// Waits until all recirculating frames have a verdict. Afterwards the program and the oracle decide in the same order.
fn drain(tester: &mut PacketTester) {
    tester.stf.line("wait");
}

fn altered_proofs(frame: &[u8], at: usize) -> Vec<u8> {
    let mut altered_frame = frame.to_vec();
    altered_frame[at] ^= 0x10;
    altered_frame
}

/// Datagrams that are not PROOFs.
fn foreign_proofs(tester: &mut PacketTester) {
    let message = |kind: u8, bytes: usize| {
        let length = u16::try_from(bytes).unwrap();
        let header = Header::with_length(kind, Suite::SipHash128, 0, device(1), length);
        let mut message = header.as_bytes().to_vec();
        message.resize(bytes, 0);
        message
    };
    for kind in [
        message_type::REQUEST,
        message_type::RESPONSE,
        message_type::CHALLENGE,
        message_type::ACK,
        message_type::NAK,
        message_type::ATTEST_REQUEST,
        8,
    ] {
        tester.send(&PacketTester::to_lap(device_endpoint(1), &message(kind, 64)));
        tester.send(&PacketTester::to_lap(v6(device_endpoint(1)), &message(kind, 65)));
    }
    for (kind, bytes) in [
        (message_type::DATA_UP, 56),
        (message_type::DATA_UP, 156),
        (message_type::DATA_DOWN, 60),
        (message_type::DATA_UP, 55),
        (message_type::PROOF, 95),
        (message_type::PROOF, 64),
        (message_type::REQUEST, 16),
    ] {
        tester.send(&PacketTester::to_lap(device_endpoint(1), &message(kind, bytes)));
    }
    let request = message(message_type::REQUEST, 64);
    for at in [2, 3, 4, 5, 40, 63] {
        tester.send(&PacketTester::to_lap(
            device_endpoint(1),
            &altered_proofs(&request, at),
        ));
    }
    for bytes in [0, 15] {
        tester.send(&PacketTester::to_lap(device_endpoint(1), &request[..bytes]));
    }
    let to_gateway = FrameBuilder::new(device_endpoint(1), gateway_endpoint());
    let to_service = FrameBuilder::new(device_endpoint(1), service_endpoint());
    for frame in [
        to_gateway.clone().fragment(0, true).udp(&request),
        to_gateway.clone().options(&[1]).udp(&request),
        to_service.clone().fragment(3, false).udp(b"rest"),
        to_service.udp(b"foreign"),
        to_service.clone().vlan(3).udp(b"foreign"),
        to_service.ip(6, b"foreign"),
        to_service.arp_request(),
        to_service.ethernet(0x88cc, b"foreign"),
        FrameBuilder::new(v6(device_endpoint(1)), v6(service_endpoint()))
            .extension(0)
            .udp(b"foreign"),
        FrameBuilder::new(v6(device_endpoint(1)), v6(service_endpoint())).neighbor_solicitation([0xfd; 16]),
    ] {
        tester.send(&frame);
    }
    let mut group = to_gateway.udp(&request);
    group[6] |= 1;
    tester.send(&group);
    for source in [[0, 1, 2, 3], [224, 0, 0, 1], [255, 255, 255, 255]] {
        let from = linewarden_protocol::frame::write::Endpoint {
            ip: source.into(),
            ..device_endpoint(1)
        };
        tester.send(&FrameBuilder::new(from, gateway_endpoint()).udp(&request));
    }
}

fn classic_round(number: u8) -> Round {
    Round {
        r: [0x10, 0x21, 0x32, 0x43, 0x54, 0x65, 0x76, number],
        n: [number, 0x0a, 0x0b, 0x1c, 0x0d, 0x0e, 0x0f, 0x70],
    }
}

fn open_classic(tester: &mut PacketTester, round_slot: u8, number: u32, round: &Round) {
    let r = u64::from_be_bytes(swap_word_bytes(round.r));
    let n = u64::from_be_bytes(swap_word_bytes(round.n));
    for (register, value) in [("p4dra_r", r), ("p4dra_n", n), ("p4dra_number", number.into())] {
        tester.stf.line(&format!(
            "register_write AttestIngress.{register} {round_slot} {value}"
        ));
    }
    assert!(tester.gateway.p4dra().unwrap().verifier.open_round(*round));
}

/// A message after the Ethernet header, from a device to the gateway.
fn classic_frame(message: &Message, vlans: &[u16]) -> Vec<u8> {
    let mut bytes = [0; 162];
    let length = message.write(&mut bytes).unwrap();
    let mut frame = FrameBuilder::new(device_endpoint(1), gateway_endpoint());
    for vlan in vlans {
        frame = frame.vlan(*vlan);
    }
    frame.ethernet(ETHER_TYPE, &bytes[..length])
}

fn classic(program: &str) -> Stf {
    let mut verifier = Verifier::new();
    let id = |number: u8| ProverId(std::array::from_fn(|at| number ^ u8::try_from(at * 11).unwrap()));
    let h = |number: u8| ConfigurationHash(std::array::from_fn(|at| number ^ u8::try_from(at * 7).unwrap()));
    let published = (
        AttestationKey::from_bytes(*b"12345678901234567890123456789012"),
        ProverId(*b"1234567890123456"),
        ConfigurationHash([0; 32]),
    );
    let all_provers: Vec<_> = std::iter::once(published)
        .chain((1..4).map(|number| (secret(number), id(number), h(number))))
        .collect();
    for (key, id, h) in &all_provers {
        verifier.install(*id, key, h);
    }
    let mut gateway = PublishedGateway::from(Program::P4dra(program).gateway(0));
    gateway.serve_p4dra(P4dra {
        ether_type: ETHER_TYPE,
        controller: CONTROLLER,
        verifier,
    });
    let mut tester = PacketTester::new("AttestIngress", Stf::new(program, "classic"), gateway);
    tester.comment("Provers: 0 is that of the published tools.");
    for (number, (key, id, h)) in (0..).zip(&all_provers) {
        let words = *Template::new(key, id, h).words();
        tester.stf.line(&format!(
            "add AttestIngress.p4dra_provers hdr.prover.d:0x{} set_template(prover:{number}, {})",
            hex::encode(swap_word_bytes(id.0)),
            args("t", &words)
        ));
    }
    let published_round = Round {
        r: *b"12345678",
        n: *b"12345678",
    };
    let provers: Vec<_> = all_provers
        .iter()
        .map(|(key, id, h)| Prover::new(key, *id, h))
        .collect();
    let reply = |number: usize, round: &Round| {
        let mut request = [0; 64];
        let bytes = Message::Request(*round).write(&mut request).unwrap();
        let proof_reply = provers[number].reply(&request[..bytes]).unwrap();
        FrameBuilder::new(device_endpoint(1), gateway_endpoint()).ethernet(ETHER_TYPE, &proof_reply)
    };
    tester.comment("No round is open.");
    tester.expect(Verdict::DropP4draRound, &reply(0, &published_round));
    tester.comment("The published proof, once.");
    open_classic(&mut tester, 0, 1, &published_round);
    let (verdict, out) = tester.send_on(super::packet_tester::PORT, &reply(0, &published_round));
    assert_eq!(verdict, Verdict::ReplyP4draVerified);
    let block = "ef38e2dfffe258d31856116a1bedcb35a6caea99f859ac964f853e8aefd7832f\
                 8116ab97b37ea2a49cd9c4ec3874e5654c31cc05e7f0760b721391033314d2e4";
    let block: [u8; 64] = hex::decode(block).unwrap().try_into().unwrap();
    assert_eq!(
        out[47..111],
        swap_word_bytes(block),
        "VERIFIED carries the published block"
    );
    drain(&mut tester);
    tester.expect(Verdict::DropP4draProved, &reply(0, &published_round));
    tester.comment("Two open rounds at a time, not three.");
    open_classic(&mut tester, 1, 2, &classic_round(2));
    for number in 0..4 {
        tester.expect(Verdict::ReplyP4draVerified, &reply(number, &classic_round(2)));
    }
    drain(&mut tester);
    tester.expect(Verdict::ReplyP4draVerified, &reply(1, &published_round));
    open_classic(&mut tester, 0, 3, &classic_round(3));
    tester.expect(Verdict::DropP4draRound, &reply(2, &published_round));
    tester.expect(Verdict::DropP4draProved, &reply(2, &classic_round(2)));
    tester.comment("Each word of r, n, d and the proof counts.");
    let valid = reply(3, &classic_round(3));
    for at in (15..31).step_by(3) {
        tester.expect(Verdict::DropP4draRound, &altered_proofs(&valid, at));
    }
    for at in (31..47).step_by(4) {
        tester.expect(Verdict::DropP4draProver, &altered_proofs(&valid, at));
    }
    for word in 0..16 {
        tester.expect(
            Verdict::DropP4draProof,
            &altered_proofs(&valid, 47 + word * 4 + word % 4),
        );
    }
    drain(&mut tester);
    tester.comment("With VLAN tags; the reply keeps them.");
    let payload = &valid[14..];
    let tagged = FrameBuilder::new(device_endpoint(1), gateway_endpoint())
        .vlan(5)
        .vlan(6);
    tester.expect(Verdict::ReplyP4draVerified, &tagged.ethernet(ETHER_TYPE, payload));
    let three_tags = tagged.vlan(7).ethernet(ETHER_TYPE, payload);
    tester.expect(Verdict::PassForeign, &three_tags);
    tester.comment(
        "Frames that the published switch sends to itself, and frames that provers do not send, are dropped.",
    );
    let round = classic_round(3);
    let zeros = [0; 64];
    for message in [
        Message::Start(round),
        Message::Request(round),
        Message::Calculating(round, id(2), 56, [0; 16], zeros),
        Message::Calculating(round, id(9), 0, [7; 16], zeros),
        Message::Verified(round, id(2), zeros, zeros),
        Message::Setup(secret(1), id(1)),
    ] {
        tester.expect(Verdict::DropP4draOperation, &classic_frame(&message, &[]));
        tester.expect(Verdict::DropP4draOperation, &classic_frame(&message, &[5]));
    }
    tester.comment("Lengths: only the two short messages may be padded.");
    let start = classic_frame(&Message::Start(round), &[]);
    let longer = |frame: &[u8], bytes: usize| [frame, &vec![0x55; bytes]].concat();
    tester.expect(Verdict::DropP4draOperation, &longer(&start, 29));
    tester.expect(Verdict::DropP4draMalformed, &longer(&start, 30));
    tester.expect(Verdict::DropP4draMalformed, &longer(&valid, 1));
    tester.expect(Verdict::DropP4draMalformed, &valid[..110]);
    tester.expect(Verdict::DropP4draMalformed, &valid[..40]);
    tester.expect(Verdict::DropP4draMalformed, &valid[..14]);
    let mut unknown = valid.clone();
    unknown[14] = 6;
    tester.expect(Verdict::DropP4draMalformed, &unknown);
    tester.comment("To or from group addresses.");
    let mut group = reply(1, &round);
    group[0] |= 1;
    tester.expect(Verdict::DropUnanswerable, &group);
    tester.comment("Frames of the control plane: to one port, and to the device ports.");
    let request = classic_frame(&Message::Request(round), &[]);
    for line in [
        "mc_mgrp_create 1",
        "mc_node_create 0 3 4",
        "mc_node_associate 1 0",
    ] {
        tester.stf.line(line);
    }
    tester
        .stf
        .packet(CPU_PORT, &[&[0, 3][..], &request].concat())
        .expect(3, &request);
    tester.stf.packet(CPU_PORT, &[&[0, 0][..], &request].concat());
    tester.stf.expect(3, &request).expect(4, &request);
    tester.comment("Altered frames; the oracle gives the expected result.");
    let frames = [reply(0, &round), reply(1, &round), start];
    tester.send_altered(0x5eed_0002, 250, &frames);
    tester.finish()
}

pub fn tests() -> Vec<Stf> {
    let programs = ["p4dra-recirculating", "p4dra-one-pass"];
    programs
        .into_iter()
        .flat_map(|program| [proofs(Program::P4dra(program)), classic(program)])
        .chain([proofs(Program::Lap)])
        .collect()
}
