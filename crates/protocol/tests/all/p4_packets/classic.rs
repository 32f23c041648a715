//! classic_puf.p4: both profiles of the papers in all sizes, compared with the oracle's verifier.

use linewarden_protocol::classic::gateway::PublishedGateway;
use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::classic::verifier::{Crp, Verifier};
use linewarden_protocol::classic::{
    Block, CLASSIC_PORT, Message, Profile, ResponseBits, device, message_type,
};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::{Gateway, GatewayConfig};
use linewarden_protocol::verdict::Verdict;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::packet_tester::{
    GATEWAY, OWN_V6, PacketTester, device_endpoint, gateway_endpoint, service_endpoint, v6,
};
use super::stf::Stf;

const SEED: u64 = 0x1234_5678_9abc_def0;
/// Numbers of pairs of the identifiers 1, 2 and 3.
const PAIRS: [usize; 3] = [9, 7, 2];

/// A datagram to the classic port.
fn to_classic(from: Endpoint, payload: &[u8]) -> Vec<u8> {
    let to = match from.ip.is_ipv6() {
        true => v6(gateway_endpoint()),
        false => gateway_endpoint(),
    };
    let to = Endpoint {
        port: CLASSIC_PORT,
        ..to
    };
    FrameBuilder::new(from, to).udp(payload)
}

fn bytes(message: &Message, bits: ResponseBits) -> Vec<u8> {
    let mut payload = vec![0; bits.message_bytes()];
    message.write(bits, &mut payload).unwrap();
    payload
}

fn pairs(bits: ResponseBits) -> Vec<Vec<Crp>> {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::try_from(bits.bytes()).unwrap());
    let mut pair = || {
        let mut response: Block = [0; 32];
        rng.fill_bytes(&mut response[..bits.bytes()]);
        Crp {
            challenge: rng.next_u32(),
            response,
        }
    };
    PAIRS.map(|count| (0..count).map(|_| pair()).collect()).into()
}

/// Returns the tables that may contain a pair, the key field, and the action.
fn tables(
    profile: Profile,
    index: usize,
    count: usize,
) -> (&'static [&'static str], &'static str, &'static str) {
    match profile {
        Profile::Iot => (
            &["first_pairs0", "first_pairs1", "first_pairs2", "first_pairs3"],
            "meta.first",
            "set_first",
        ),
        Profile::Uav if index < count / 2 => (&["first_pairs0", "first_pairs1"], "meta.first", "set_first"),
        Profile::Uav => (&["second_pairs0", "second_pairs1"], "meta.second", "set_second"),
    }
}

fn install(tester: &mut PacketTester, profile: Profile, bits: ResponseBits, crps: &[Vec<Crp>]) {
    tester.comment("The pairs, distributed over the tables.");
    for (identifier, pairs) in (1..).zip(crps) {
        let served = match profile {
            Profile::Iot => pairs.len(),
            Profile::Uav => pairs.len() / 2,
        };
        let device = 100 + identifier;
        tester.stf.line(&format!(
            "add ClassicIngress.devices hdr.message.identifier:{identifier} set_device(device:{device}, pairs:{served})"
        ));
        for (index, pair) in pairs.iter().enumerate() {
            let (names, key, action) = tables(profile, index, pairs.len());
            tester.stf.line(&format!(
                "add ClassicIngress.{} hdr.message.identifier:{identifier} {key}:{index} \
                 {action}(challenge:{:#010x}, response:0x{})",
                names[index % names.len()],
                pair.challenge,
                hex::encode(&pair.response[..bits.bytes()])
            ));
        }
    }
}

/// Returns the RESP of the device with these pairs to a CH.
fn respond(crps: &[Crp], challenge: &Message, bits: ResponseBits, has_two_pairs: bool) -> Message {
    let response = |challenge_number: u32| {
        &crps
            .iter()
            .find(|crp| crp.challenge == challenge_number)
            .unwrap()
            .response
    };
    let r2 = has_two_pairs.then(|| response(challenge.challenge2));
    device::respond(challenge, bits, response(challenge.challenge1), r2).unwrap()
}

fn message(frame: &[u8], bits: ResponseBits, is_v6: bool) -> Message {
    let at = if is_v6 { 62 } else { 42 };
    Message::parse(bits, &frame[at..]).unwrap()
}

fn test(name: &str, profile: Profile, bits: ResponseBits) -> Stf {
    let crps = pairs(bits);
    let mut gateway = PublishedGateway::from(Gateway::new(GatewayConfig {
        // LAP/1 is not served.
        lap_port: 0xffff,
        own_macs: None,
        ..GatewayConfig::new(GATEWAY, &[gateway_endpoint().ip, OWN_V6.into()])
    }));
    let rng = SplitMix64::from_state(SEED);
    gateway.serve_classic(
        CLASSIC_PORT,
        Verifier::new(profile, bits, rng, crps.clone()).unwrap(),
    );
    let program = format!("classic-{name}-{}", bits.bytes() * 8);
    let mut tester = PacketTester::new("ClassicIngress", Stf::new(&program, "exchanges"), gateway);
    install(&mut tester, profile, bits, &crps);
    tester
        .stf
        .line(&format!("register_write ClassicIngress.random_state 0 {SEED}"));
    let has_two_pairs = profile == Profile::Uav;
    let mut recorded = Vec::new();

    tester.comment("Exchanges over IPv4 and IPv6. A hash is accepted once, a wrong one changes nothing.");
    for (number, identifier) in [1u32, 2, 1, 3, 2, 1].into_iter().enumerate() {
        let from = device_endpoint(u8::try_from(identifier).unwrap());
        let is_v6 = number % 2 == 1;
        let from = if is_v6 { v6(from) } else { from };
        let request = to_classic(from, &bytes(&device::request(identifier), bits));
        let (verdict, reply) = tester.send_on(super::packet_tester::PORT, &request);
        assert_eq!(verdict, Verdict::ReplyClassicChallenge);
        let challenge = message(&reply, bits, is_v6);
        let response = respond(
            &crps[usize::try_from(identifier).unwrap() - 1],
            &challenge,
            bits,
            has_two_pairs,
        );
        let mut wrong = response;
        wrong.hash ^= 1;
        let valid = to_classic(from, &bytes(&response, bits));
        tester.expect(Verdict::DropClassicHash, &to_classic(from, &bytes(&wrong, bits)));
        tester.expect(Verdict::ReplyClassicAck, &valid);
        tester.expect(Verdict::DropClassicHash, &valid);
        recorded.extend([request, valid]);
    }
    tester.comment("Without a challenge a hash of zeros is not accepted.");
    let mut zero = Message::new(message_type::RESP, 2);
    tester.expect(
        Verdict::DropClassicHash,
        &to_classic(device_endpoint(2), &bytes(&zero, bits)),
    );
    tester.comment("Unknown identifiers.");
    for identifier in [0, 4, u32::MAX] {
        let request = bytes(&device::request(identifier), bits);
        tester.expect(
            Verdict::DropClassicUnknown,
            &to_classic(device_endpoint(2), &request),
        );
        zero.identifier = identifier;
        let response = bytes(&zero, bits);
        tester.expect(
            Verdict::DropClassicUnknown,
            &to_classic(device_endpoint(2), &response),
        );
    }
    tester.comment("A new REQ replaces the outstanding challenge, as the papers specify.");
    let request = to_classic(device_endpoint(1), &bytes(&device::request(1), bits));
    let (_, first) = tester.send_on(super::packet_tester::PORT, &request);
    let (_, second) = tester.send_on(super::packet_tester::PORT, &request);
    for (reply, verdict) in [
        (first, Verdict::DropClassicHash),
        (second, Verdict::ReplyClassicAck),
    ] {
        let response = respond(&crps[0], &message(&reply, bits, false), bits, has_two_pairs);
        tester.expect(verdict, &to_classic(device_endpoint(1), &bytes(&response, bits)));
    }
    tester.comment("Malformed messages: types, lengths; padding is kept, other ports pass.");
    for kind in [message_type::CH, message_type::ACK, 4, 255] {
        let bytes = bytes(&Message::new(kind, 1), bits);
        tester.expect(
            Verdict::DropClassicMalformed,
            &to_classic(device_endpoint(1), &bytes),
        );
    }
    let plain = bytes(&device::request(1), bits);
    for payload in [&plain[1..], &plain[..20], &[], &[&plain[..], &[0]].concat()] {
        tester.expect(
            Verdict::DropClassicMalformed,
            &to_classic(device_endpoint(1), payload),
        );
    }
    let to_port = Endpoint {
        port: CLASSIC_PORT,
        ..gateway_endpoint()
    };
    let padded = FrameBuilder::new(device_endpoint(1), to_port).vlan(12).vlan(13);
    tester.send(&padded.ip_fields(0x28, 0x7777, 9).padding(&[0xaa; 11]).udp(&plain));
    let to_service = FrameBuilder::new(device_endpoint(1), service_endpoint());
    tester.expect(Verdict::PassForeign, &to_service.udp(&plain));
    tester.expect(
        Verdict::PassForeign,
        &to_service.clone().fragment(1, true).udp(&plain),
    );
    tester.expect(Verdict::PassForeign, &to_service.arp_request());
    let to_gateway = FrameBuilder::new(device_endpoint(1), to_port);
    tester.expect(
        Verdict::PassUnparsed,
        &to_gateway.clone().fragment(0, true).udp(&plain),
    );
    tester.expect(
        Verdict::PassUnparsed,
        &to_gateway.clone().options(&[1]).udp(&plain),
    );
    let mut group = to_gateway.udp(&plain);
    group[0] |= 1;
    tester.expect(Verdict::DropUnanswerable, &group);
    if profile == Profile::Iot {
        tester.comment("Spent pairs are not used again.");
        for _ in 0..PAIRS[2] {
            tester.send(&to_classic(device_endpoint(3), &bytes(&device::request(3), bits)));
        }
        let request = bytes(&device::request(3), bits);
        tester.expect(
            Verdict::DropClassicUnknown,
            &to_classic(device_endpoint(3), &request),
        );
    }
    tester.comment("Altered frames; the oracle gives the expected result.");
    tester.send_altered(0x5eed_0003, 200, &recorded);
    tester.finish()
}

pub fn tests() -> Vec<Stf> {
    let profiles = [("iot", Profile::Iot), ("uav", Profile::Uav)];
    profiles
        .into_iter()
        .flat_map(|(name, profile)| ResponseBits::ALL.map(|bits| test(name, profile, bits)))
        .collect()
}
