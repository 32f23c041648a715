//! Test vectors of the classic profiles in docs/vectors/classic.json: exchanges made by the crate, recomputed by
//! independent code.

use super::files::{compare_or_write, hex_of, number_of};
use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::classic::verifier::{Crp, Verifier};
use linewarden_protocol::classic::{Block, Message, Profile, ResponseBits, device};
use linewarden_protocol::verdict::Verdict;
use serde_json::{Value, json};

const IDENTIFIER: u32 = 2;
const CRPS: u32 = 4;
const RNG_STATE: u64 = 0x0123_4567_89ab_cdef;

fn crp(identifier: u32, number: u32, bits: ResponseBits) -> Crp {
    let mut response: Block = [0; 32];
    for (at, byte) in response.iter_mut().take(bits.bytes()).enumerate() {
        *byte = (u32::try_from(at).unwrap() * 29 + number * 53 + identifier * 7 + 0x80) as u8;
    }
    Crp {
        challenge: 0xC000_0000 | identifier << 8 | number,
        response,
    }
}

fn make() -> Value {
    let mut exchanges = Vec::new();
    for (profile, name) in [(Profile::Iot, "classic-iot"), (Profile::Uav, "classic-uav")] {
        for bits in ResponseBits::ALL {
            exchanges.push(make_exchanges(profile, name, bits));
        }
    }
    json!({
        "about": "Classic profiles (insecure, for measurement). Integers are numbers, byte strings are hex in wire order; the state of SplitMix64 is a 64-bit word in hex. Written and checked by crates/protocol/tests/all/vectors.",
        "verifiers": exchanges,
    })
}

/// Two exchanges in a row with the same verifier.
fn make_exchanges(profile: Profile, name: &str, bits: ResponseBits) -> Value {
    let pairs = |identifier| {
        (0..CRPS)
            .map(|number| crp(identifier, number, bits))
            .collect::<Vec<_>>()
    };
    let rng = SplitMix64::from_state(RNG_STATE);
    let mut verifier = Verifier::new(profile, bits, rng, (1..=3).map(pairs).collect()).unwrap();
    let exchanges: Vec<Value> = (0..2)
        .map(|_| make_exchange(&mut verifier, profile, bits))
        .collect();
    json!({
        "profile": name,
        "response_bits": bits.bytes() * 8,
        "rng_state": format!("{RNG_STATE:016x}"),
        "identifier": IDENTIFIER,
        "crps": pairs(IDENTIFIER).iter().map(|crp| json!({
            "challenge": crp.challenge,
            "response": hex::encode(&crp.response[..bits.bytes()]),
        })).collect::<Vec<_>>(),
        "exchanges": exchanges,
    })
}

fn make_exchange(verifier: &mut Verifier, profile: Profile, bits: ResponseBits) -> Value {
    let write = |message: &Message| {
        let mut payload = vec![0; bits.message_bytes()];
        message.write(bits, &mut payload).unwrap();
        payload
    };
    let request = write(&device::request(IDENTIFIER));
    let mut challenge = request.clone();
    assert_eq!(verifier.handle(&mut challenge), Verdict::ReplyClassicChallenge);
    let parsed = Message::parse(bits, &challenge).unwrap();
    let response_to = |challenge: u32| {
        let number = (0..CRPS).find(|number| crp(IDENTIFIER, *number, bits).challenge == challenge);
        crp(IDENTIFIER, number.unwrap(), bits).response
    };
    let r1 = response_to(parsed.challenge1);
    let r2 = (profile == Profile::Uav).then(|| response_to(parsed.challenge2));
    let response = write(&device::respond(&parsed, bits, &r1, r2.as_ref()).unwrap());
    let mut ack = response.clone();
    assert_eq!(verifier.handle(&mut ack), Verdict::ReplyClassicAck);
    json!({
        "req": hex::encode(request),
        "ch": hex::encode(challenge),
        "resp": hex::encode(response),
        "ack": hex::encode(ack),
    })
}

#[test]
fn the_file_matches_the_crate_and_independent_code() {
    let file = compare_or_write("classic.json", &make());
    let verifiers = file["verifiers"].as_array().unwrap();
    assert_eq!(verifiers.len(), 6);
    verifiers.iter().for_each(check_verifier);
}

/// No code of the crate is used from here on.
fn check_verifier(verifier: &Value) {
    let has_two_pairs = verifier["profile"] == "classic-uav";
    let bytes = number_of(verifier, "response_bits") as usize / 8;
    let mut state = u64::from_str_radix(verifier["rng_state"].as_str().unwrap(), 16).unwrap();
    let crps = verifier["crps"].as_array().unwrap();
    for (number, exchange) in verifier["exchanges"].as_array().unwrap().iter().enumerate() {
        let half = crps.len() as u64 / 2;
        let indices = if has_two_pairs {
            let draw = split_mix_64(&mut state);
            let first = (draw % (1 << 32)) * half / (1 << 32);
            vec![
                first as usize,
                (half + (draw / (1 << 32)) * half / (1 << 32)) as usize,
            ]
        } else {
            vec![number]
        };
        let rn: Vec<u8> = (0..bytes / 8)
            .flat_map(|_| split_mix_64(&mut state).to_be_bytes())
            .collect();
        let crps: Vec<&Value> = indices.iter().map(|at| &crps[*at]).collect();
        check_exchange(exchange, &crps, &rn, verifier, has_two_pairs);
    }
}

fn check_exchange(exchange: &Value, crps: &[&Value], rn: &[u8], verifier: &Value, has_two_pairs: bool) {
    let responses: Vec<Vec<u8>> = crps.iter().map(|crp| hex_of(crp, "response")).collect();
    let identifier = (number_of(verifier, "identifier") as u32).to_be_bytes();
    let challenges: Vec<u8> = [0, 1]
        .into_iter()
        .flat_map(|at| {
            crps.get(at)
                .map_or(0, |crp| number_of(crp, "challenge") as u32)
                .to_be_bytes()
        })
        .collect();
    let mask: Vec<u8> = (0..rn.len())
        .map(|at| responses.iter().fold(0, |mask, response| mask | response[at]))
        .collect();
    let hash = crc32(&[responses.concat(), rn.to_vec()].concat()).to_be_bytes();
    let masked: Vec<u8> = rn.iter().zip(&mask).map(|(a, b)| a ^ b).collect();
    let zeros = vec![0u8; rn.len()];
    let message = |kind: u8, challenges: &[u8], rn: &[u8], hash: &[u8]| {
        [&[kind], challenges, rn, hash, &identifier, &[0; 8]].concat()
    };
    assert_eq!(crps.len(), if has_two_pairs { 2 } else { 1 });
    assert_eq!(hex_of(exchange, "req"), message(0, &[0; 8], &zeros, &[0; 4]));
    assert_eq!(hex_of(exchange, "ch"), message(1, &challenges, &masked, &[0; 4]));
    assert_eq!(hex_of(exchange, "resp"), message(2, &challenges, &zeros, &hash));
    assert_eq!(hex_of(exchange, "ack"), message(3, &challenges, &zeros, &hash));
    assert_eq!(hex_of(exchange, "req").len(), 25 + rn.len());
}

/// CRC-32 (ISO 3309) bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let differs = (crc ^ u32::from(byte >> bit)) & 1 == 1;
            crc = crc >> 1 ^ if differs { 0xEDB8_8320 } else { 0 };
        }
    }
    !crc
}

fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[test]
fn the_reference_crc_agrees_with_the_check_value() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    assert_eq!(crc32(&[]), 0);
}
