//! p4dra.p4, and lap.p4 of PROOFs: `attest/2` and `p4dra-classic` against the oracle's.

use linewarden_protocol::attest::{
    AttestationKey, ConfigurationHash, PeriodStart, ProofKey, Round as AttestRound,
};
use linewarden_protocol::classic::p4dra::prover::Prover;
use linewarden_protocol::classic::p4dra::verifier::Verifier;
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, ProverId, Round, Template, sw};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::gateway::{Gate, Gateway, GatewayConfig, OpenRound, P4dra, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber, Suite};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{Header, message_type};
use zerocopy::IntoBytes as _;

use super::bench::{Bench, GATEWAY, OWN_V6, device_end, gateway_end, service_end, v6};
use super::lap;
use super::stf::Stf;

const H: ConfigurationHash = ConfigurationHash([0x21; 32]);
const OTHER_H: ConfigurationHash = ConfigurationHash([0x43; 32]);
const START: PeriodStart = PeriodStart {
    period: Period(0x0102_0304_0506_0708),
    salt: *b"saltsalt",
};
const CPU_PORT: u16 = 510;
/// Far ahead, µs of the switch's clock.
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

/// A program that judges PROOFs.
#[derive(Clone, Copy)]
enum Judge<'a> {
    /// p4dra.p4, compiled under that name: a key's entry is of one of the two.
    P4dra(&'a str),
    /// lap.p4: both stand in one.
    Lap,
}

impl Judge<'_> {
    fn control(self) -> &'static str {
        match self {
            Judge::P4dra(_) => "AttestIngress",
            Judge::Lap => "LapIngress",
        }
    }

    /// The oracle of the same rules: `lap` alone looks at the destination MAC address.
    fn gateway(self, provers_max: usize) -> Gateway {
        let own_macs = match self {
            Judge::P4dra(_) => None,
            Judge::Lap => Some(lap::OWN_MACS.to_vec()),
        };
        Gateway::new(GatewayConfig {
            provers_max,
            sources: None,
            own_macs,
            ..GatewayConfig::new(GATEWAY, &[gateway_end().ip, OWN_V6.into()])
        })
    }

    /// Before it attests anybody.
    fn bench(self) -> Bench {
        match self {
            Judge::P4dra(program) => Bench::new(self.control(), Stf::new(program, "proofs"), self.gateway(0)),
            Judge::Lap => {
                let mut bench = lap::bench("proofs", Gate::Off);
                lap::configure(&mut bench, Gate::Off, false, false);
                bench
            }
        }
    }

    fn begin_to_attest(self, bench: &mut Bench) {
        bench.gateway = self.gateway(8);
        match self {
            Judge::P4dra(_) => {
                let id = GATEWAY.0;
                bench.stf.line(&format!(
                    "setdefault AttestIngress.gateway set_gateway(gateway_id:{id})"
                ));
            }
            Judge::Lap => lap::configure(bench, Gate::Off, false, true),
        }
    }

    fn add_keys(self, bench: &mut Bench, number: u8, keys: &ProverKeys) {
        let (device, period) = (device(number).0, START.period.0);
        let (current, other) = (words(&keys.current), keys.alternate.as_ref().map(words));
        let has_other = u8::from(other.is_some());
        match self {
            Judge::P4dra(_) => {
                let all = [(0, Some(current)), (1, other)];
                for (which, words) in all.into_iter().filter_map(|(which, words)| Some((which, words?))) {
                    bench.stf.line(&format!(
                        "add AttestIngress.proof_keys hdr.lap.device_id:{device:#x} meta.period:{period:#x} \
                         meta.alternate:{which} set_key(has_alternate:{has_other}, {})",
                        args("k", &words)
                    ));
                }
            }
            Judge::Lap => {
                bench.stf.line(&format!(
                    "add LapIngress.proof_keys meta.prover:{number} meta.period:{period:#x} \
                     set_keys({}, has_alternate:{has_other}, {})",
                    args("k", &current),
                    args("a", &other.unwrap_or_default())
                ));
            }
        }
    }

    fn install(self, bench: &mut Bench, number: u8, alternate: bool, has_keys: bool) {
        let keys = ProverKeys {
            current: key(number, &H),
            alternate: alternate.then(|| key(number, &OTHER_H)),
        };
        bench.stf.line(&format!(
            "add {}.provers hdr.lap.device_id:{:#x} set_prover(prover:{number})",
            self.control(),
            device(number).0
        ));
        // Known to the oracle by a key of another period, if it has none.
        let period = Period(START.period.0 + u64::from(!has_keys));
        if has_keys {
            self.add_keys(bench, number, &keys);
        }
        bench
            .gateway
            .install_prover(device(number), period, keys)
            .unwrap();
    }

    /// Begins a round, as the control plane does it: its number last.
    fn open(self, bench: &mut Bench, round: &AttestRound, late: bool) {
        let lane = round.number.0 & 1;
        let lines = [
            ("round_period", round.start.period.0),
            ("round_nonce", u64::from_be_bytes(round.nonce)),
            ("round_until_us", if late { 0 } else { LATER_US }),
            ("round_number", round.number.0.into()),
        ];
        for (register, value) in lines {
            let control = self.control();
            bench
                .stf
                .line(&format!("register_write {control}.{register} {lane} {value}"));
        }
        let until = if late { 0 } else { bench.now.monotonic_ms + 1000 };
        let open = OpenRound {
            round: *round,
            started: Monotonic(0),
            until: Monotonic(until),
        };
        bench.gateway.open_round(open).unwrap();
    }
}

/// As the programs have it.
fn words(key: &ProofKey) -> [u32; 8] {
    let (words, _) = key.as_bytes().as_chunks::<4>();
    std::array::from_fn(|at| u32::from_le_bytes(words[at]))
}

/// A PROOF as the device sends it.
fn proof(number: u8, round: &AttestRound, h: &ConfigurationHash) -> Vec<u8> {
    let answer = round.answer(device(number), key(number, h).prove(round));
    Bench::to_lap(device_end(number), answer.as_bytes())
}

fn proofs(judge: Judge<'_>) -> Stf {
    let mut bench = judge.bench();
    let (first, second) = (round(1), round(2));
    bench.say("Nobody is attested here yet.");
    bench.expect(Verdict::DropUnsupportedType, &proof(1, &first, &H));
    bench.say(
        "Provers 1 to 5: 2 and 3 are being rolled out to another configuration, 4 has no key of the period.",
    );
    judge.begin_to_attest(&mut bench);
    for (number, alternate, has_keys) in [
        (1, false, true),
        (2, true, true),
        (3, true, true),
        (4, false, false),
        (5, false, true),
    ] {
        judge.install(&mut bench, number, alternate, has_keys);
    }
    bench.say("No round runs.");
    bench.expect(Verdict::DropRound, &proof(1, &first, &H));
    bench.say(
        "A round: one verdict a prover; the configuration that is valid, or the one that is rolled out.",
    );
    judge.open(&mut bench, &first, false);
    bench.expect(Verdict::ProofOk, &proof(1, &first, &H));
    bench.expect(Verdict::ProofOk, &proof(2, &first, &OTHER_H));
    bench.stf.line("wait");
    bench.expect(Verdict::DropProof, &proof(5, &first, &OTHER_H));
    bench.expect(Verdict::DropProof, &proof(3, &first, &ConfigurationHash([9; 32])));
    bench.expect(Verdict::DropNoKey, &proof(4, &first, &H));
    bench.expect(Verdict::DropUnknownProver, &proof(6, &first, &H));
    bench.expect(Verdict::DropRound, &proof(3, &second, &H));
    bench.say(
        "Silence so far does not count against whom the wrong proof named, nor does one that came before.",
    );
    drain(&mut bench);
    bench.expect(Verdict::ProofOk, &proof(5, &first, &H));
    bench.expect(Verdict::ProofOk, &proof(3, &first, &H));
    drain(&mut bench);
    bench.expect(Verdict::DropProved, &proof(1, &first, &H));
    bench.expect(Verdict::DropProved, &proof(2, &first, &H));
    bench.expect(
        Verdict::DropProved,
        &proof(5, &first, &ConfigurationHash([9; 32])),
    );
    bench.say("The next round runs beside it, by IPv6 and behind tags.");
    judge.open(&mut bench, &second, false);
    let answer = second.answer(device(1), key(1, &H).prove(&second));
    let frame = FrameBuilder::new(v6(device_end(1)), v6(gateway_end()))
        .vlan(7)
        .vlan(9);
    bench.expect(Verdict::ProofOk, &frame.udp(answer.as_bytes()));
    bench.expect(Verdict::DropProved, &proof(1, &first, &H));
    bench.say("Wrong in one bit: the number, the nonce, each word of the proof.");
    let right = proof(2, &second, &H);
    let payload = 42;
    bench.expect(Verdict::DropGateway, &bent(&right, payload + 16));
    bench.expect(Verdict::DropRound, &bent(&right, payload + 20));
    bench.expect(Verdict::DropRound, &bent(&right, payload + 31));
    for word in 0..16 {
        let at = payload + 32 + word * 4 + word % 4;
        bench.expect(Verdict::DropProof, &bent(&right, at));
    }
    drain(&mut bench);
    bench.expect(Verdict::ProofOk, &right);
    bench.say("A round whose time is over.");
    judge.open(&mut bench, &round(3), true);
    bench.expect(Verdict::DropLate, &proof(3, &round(3), &H));
    bench.expect(Verdict::DropRound, &proof(3, &first, &H));
    bench.say("What else comes to the port, and what does not.");
    others(&mut bench);
    let frames = [proof(5, &second, &H), proof(3, &second, &OTHER_H)];
    bench.say("Bent: whatever the oracle makes of them.");
    bench.bend(0x5eed_0001, 250, &frames);
    bench.finish()
}

/// Lets everything that recirculates come to its verdict: the order of verdicts is that of the oracle again.
fn drain(bench: &mut Bench) {
    bench.stf.line("wait");
}

fn bent(frame: &[u8], at: usize) -> Vec<u8> {
    let mut bent = frame.to_vec();
    bent[at] ^= 0x10;
    bent
}

/// Datagrams that are no PROOFs.
fn others(bench: &mut Bench) {
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
        bench.send(&Bench::to_lap(device_end(1), &message(kind, 64)));
        bench.send(&Bench::to_lap(v6(device_end(1)), &message(kind, 65)));
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
        bench.send(&Bench::to_lap(device_end(1), &message(kind, bytes)));
    }
    let request = message(message_type::REQUEST, 64);
    for at in [2, 3, 4, 5, 40, 63] {
        bench.send(&Bench::to_lap(device_end(1), &bent(&request, at)));
    }
    for bytes in [0, 15] {
        bench.send(&Bench::to_lap(device_end(1), &request[..bytes]));
    }
    let to_gateway = FrameBuilder::new(device_end(1), gateway_end());
    let to_service = FrameBuilder::new(device_end(1), service_end());
    for frame in [
        to_gateway.clone().fragment(0, true).udp(&request),
        to_gateway.clone().options(&[1]).udp(&request),
        to_service.clone().fragment(3, false).udp(b"rest"),
        to_service.udp(b"foreign"),
        to_service.clone().vlan(3).udp(b"foreign"),
        to_service.ip(6, b"foreign"),
        to_service.arp_request(),
        to_service.ethernet(0x88cc, b"foreign"),
        FrameBuilder::new(v6(device_end(1)), v6(service_end()))
            .extension(0)
            .udp(b"foreign"),
        FrameBuilder::new(v6(device_end(1)), v6(service_end())).neighbour_solicitation([0xfd; 16]),
    ] {
        bench.send(&frame);
    }
    let mut group = to_gateway.udp(&request);
    group[6] |= 1;
    bench.send(&group);
    for source in [[0, 1, 2, 3], [224, 0, 0, 1], [255, 255, 255, 255]] {
        let from = linewarden_protocol::frame::write::Endpoint {
            ip: source.into(),
            ..device_end(1)
        };
        bench.send(&FrameBuilder::new(from, gateway_end()).udp(&request));
    }
}

fn classic_round(number: u8) -> Round {
    Round {
        r: [0x10, 0x21, 0x32, 0x43, 0x54, 0x65, 0x76, number],
        n: [number, 0x0a, 0x0b, 0x1c, 0x0d, 0x0e, 0x0f, 0x70],
    }
}

fn open_classic(bench: &mut Bench, lane: u8, number: u32, round: &Round) {
    let r = u64::from_be_bytes(sw(round.r));
    let n = u64::from_be_bytes(sw(round.n));
    for (register, value) in [("p4dra_r", r), ("p4dra_n", n), ("p4dra_number", number.into())] {
        bench
            .stf
            .line(&format!("register_write AttestIngress.{register} {lane} {value}"));
    }
    assert!(bench.gateway.p4dra().unwrap().verifier.open_round(*round));
}

/// A message behind Ethernet, from a device to the gateway.
fn classic_frame(message: &Message, vlans: &[u16]) -> Vec<u8> {
    let mut bytes = [0; 162];
    let length = message.write(&mut bytes).unwrap();
    let mut frame = FrameBuilder::new(device_end(1), gateway_end());
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
    let all: Vec<_> = std::iter::once(published)
        .chain((1..4).map(|number| (secret(number), id(number), h(number))))
        .collect();
    for (key, id, h) in &all {
        verifier.install(*id, key, h);
    }
    let mut gateway = Judge::P4dra(program).gateway(0);
    gateway.serve_p4dra(P4dra {
        ether_type: ETHER_TYPE,
        controller: CONTROLLER,
        verifier,
    });
    let mut bench = Bench::new("AttestIngress", Stf::new(program, "classic"), gateway);
    bench.say("Provers: 0 is the published tools'.");
    for (number, (key, id, h)) in (0..).zip(&all) {
        let words = *Template::new(key, id, h).words();
        bench.stf.line(&format!(
            "add AttestIngress.p4dra_provers hdr.prover.d:0x{} set_template(prover:{number}, {})",
            hex::encode(sw(id.0)),
            args("t", &words)
        ));
    }
    let published_round = Round {
        r: *b"12345678",
        n: *b"12345678",
    };
    let provers: Vec<_> = all.iter().map(|(key, id, h)| Prover::new(key, *id, h)).collect();
    let reply = |number: usize, round: &Round| {
        let mut request = [0; 64];
        let bytes = Message::Request(*round).write(&mut request).unwrap();
        let answer = provers[number].answer(&request[..bytes]).unwrap();
        FrameBuilder::new(device_end(1), gateway_end()).ethernet(ETHER_TYPE, &answer)
    };
    bench.say("No round runs.");
    bench.expect(Verdict::DropP4draRound, &reply(0, &published_round));
    bench.say("The published proof, once.");
    open_classic(&mut bench, 0, 1, &published_round);
    let (verdict, out) = bench.send_on(super::bench::PORT, &reply(0, &published_round));
    assert_eq!(verdict, Verdict::ReplyP4draVerified);
    let block = "ef38e2dfffe258d31856116a1bedcb35a6caea99f859ac964f853e8aefd7832f\
                 8116ab97b37ea2a49cd9c4ec3874e5654c31cc05e7f0760b721391033314d2e4";
    let block: [u8; 64] = hex::decode(block).unwrap().try_into().unwrap();
    assert_eq!(out[47..111], sw(block), "VERIFIED carries the published block");
    drain(&mut bench);
    bench.expect(Verdict::DropP4draProved, &reply(0, &published_round));
    bench.say("Two rounds at a time, and no third.");
    open_classic(&mut bench, 1, 2, &classic_round(2));
    for number in 0..4 {
        bench.expect(Verdict::ReplyP4draVerified, &reply(number, &classic_round(2)));
    }
    drain(&mut bench);
    bench.expect(Verdict::ReplyP4draVerified, &reply(1, &published_round));
    open_classic(&mut bench, 0, 3, &classic_round(3));
    bench.expect(Verdict::DropP4draRound, &reply(2, &published_round));
    bench.expect(Verdict::DropP4draProved, &reply(2, &classic_round(2)));
    bench.say("Each word of r, n, d and the proof counts.");
    let right = reply(3, &classic_round(3));
    for at in (15..31).step_by(3) {
        bench.expect(Verdict::DropP4draRound, &bent(&right, at));
    }
    for at in (31..47).step_by(4) {
        bench.expect(Verdict::DropP4draProver, &bent(&right, at));
    }
    for word in 0..16 {
        bench.expect(Verdict::DropP4draProof, &bent(&right, 47 + word * 4 + word % 4));
    }
    drain(&mut bench);
    bench.say("Behind tags; the reply keeps them.");
    let payload = &right[14..];
    let tagged = FrameBuilder::new(device_end(1), gateway_end()).vlan(5).vlan(6);
    bench.expect(Verdict::ReplyP4draVerified, &tagged.ethernet(ETHER_TYPE, payload));
    let thrice = tagged.vlan(7).ethernet(ETHER_TYPE, payload);
    bench.expect(Verdict::PassForeign, &thrice);
    bench.say(
        "What the published switch sends itself is taken from nobody, nor is what a prover does not send.",
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
        bench.expect(Verdict::DropP4draOperation, &classic_frame(&message, &[]));
        bench.expect(Verdict::DropP4draOperation, &classic_frame(&message, &[5]));
    }
    bench.say("Lengths: padding behind the two short ones only.");
    let start = classic_frame(&Message::Start(round), &[]);
    let longer = |frame: &[u8], bytes: usize| [frame, &vec![0x55; bytes]].concat();
    bench.expect(Verdict::DropP4draOperation, &longer(&start, 29));
    bench.expect(Verdict::DropP4draMalformed, &longer(&start, 30));
    bench.expect(Verdict::DropP4draMalformed, &longer(&right, 1));
    bench.expect(Verdict::DropP4draMalformed, &right[..110]);
    bench.expect(Verdict::DropP4draMalformed, &right[..40]);
    bench.expect(Verdict::DropP4draMalformed, &right[..14]);
    let mut unknown = right.clone();
    unknown[14] = 6;
    bench.expect(Verdict::DropP4draMalformed, &unknown);
    bench.say("To nobody alone, or from nobody.");
    let mut group = reply(1, &round);
    group[0] |= 1;
    bench.expect(Verdict::DropUnanswerable, &group);
    bench.say("The control plane's own frames: to one port, and to the devices' ports.");
    let request = classic_frame(&Message::Request(round), &[]);
    for line in [
        "mc_mgrp_create 1",
        "mc_node_create 0 3 4",
        "mc_node_associate 1 0",
    ] {
        bench.stf.line(line);
    }
    bench
        .stf
        .packet(CPU_PORT, &[&[0, 3][..], &request].concat())
        .expect(3, &request);
    bench.stf.packet(CPU_PORT, &[&[0, 0][..], &request].concat());
    bench.stf.expect(3, &request).expect(4, &request);
    bench.say("Bent: whatever the oracle makes of them.");
    let frames = [reply(0, &round), reply(1, &round), start];
    bench.bend(0x5eed_0002, 250, &frames);
    bench.finish()
}

pub fn tests() -> Vec<Stf> {
    let programs = ["p4dra-recirculating", "p4dra-one-pass"];
    programs
        .into_iter()
        .flat_map(|program| [proofs(Judge::P4dra(program)), classic(program)])
        .chain([proofs(Judge::Lap)])
        .collect()
}
