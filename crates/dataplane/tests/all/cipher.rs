//! Compares the ciphers of the eBPF programs with user space: Forró with `linewarden-forro`, ChaCha and the AEADs
//! with RustCrypto, and all of them with published vectors.
//!
//! `LINEWARDEN_SEED` sets the seed of the random inputs; the output of a failed test contains the seed.

use std::net::{IpAddr, Ipv4Addr};

use chacha20::cipher::{KeyIvInit as _, StreamCipherCore as _};
use chacha20::{ChaChaCore, R8, R12, R20, variants::Ietf};
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::bench::cipher::{
    AAD_BYTES_MAX, Aead, AeadInput, AeadOperation, BLOCK_BYTES, Cipher, CipherBench, PAYLOAD_BYTES_MAX,
    Program, TAG_BYTES, Width,
};
use linewarden_forro::{Matrix, R6, R10, R14, XForro14Poly1305};
use linewarden_harness::skip;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use poly1305::Poly1305;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

const PASS: u32 = libbpf_rs::libbpf_sys::XDP_PASS;
const DROP: u32 = libbpf_rs::libbpf_sys::XDP_DROP;
const TX: u32 = libbpf_rs::libbpf_sys::XDP_TX;

/// Start of the payload: after the Ethernet, IPv4 and UDP headers.
const PAYLOAD_AT: usize = 42;
/// Bytes after the datagram, as in short frames; they must stay unchanged.
const PADDING: [u8; 5] = [0xa5; 5];

const ENDPOINTS: [Endpoint; 2] = [
    Endpoint {
        mac: [2, 0, 0, 0, 0, 1],
        ip: IpAddr::V4(Ipv4Addr::new(10, 66, 1, 1)),
        port: 40_000,
    },
    Endpoint {
        mac: [2, 0, 0, 0, 0, 2],
        ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
        port: 5683,
    },
];

/// Loads the programs. Skips the test if this process is not allowed to load eBPF programs.
fn load(programs: &[Program]) -> CipherBench {
    match CipherBench::load(programs) {
        Ok(fixture) => fixture,
        Err(error @ DataPlaneError::Privilege { .. }) => skip!("{error}"),
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

/// A random number generator, whose seed is printed.
fn rng() -> ChaCha8Rng {
    let seed = std::env::var("LINEWARDEN_SEED")
        .map_or_else(|_| getrandom::u64().unwrap(), |seed| seed.parse().unwrap());
    println!("LINEWARDEN_SEED={seed} repeats this run");
    ChaCha8Rng::seed_from_u64(seed)
}

fn bytes(rng: &mut ChaCha8Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// Key, counter and nonce of a cipher.
#[derive(Clone, Debug)]
struct Stream {
    key: [u8; 32],
    counter: u64,
    nonce: [u8; 8],
}

impl Stream {
    fn random(rng: &mut ChaCha8Rng, counter: u64) -> Self {
        Self {
            key: rng.random(),
            counter,
            nonce: rng.random(),
        }
    }

    fn is_forro(cipher: Cipher) -> bool {
        matches!(cipher, Cipher::Forro6 | Cipher::Forro10 | Cipher::Forro14)
    }

    fn matrix(&self, cipher: Cipher) -> [u32; 16] {
        let (key, counter, nonce) = (
            words(&self.key),
            words(&self.counter.to_le_bytes()),
            words(&self.nonce),
        );
        let parts: [&[u32]; 6] = if Self::is_forro(cipher) {
            let constants = [&[0x746c_6f76, 0x6161_6461], &[0x7262_6173, 0x6163_6e61]];
            [&key[..4], &counter, constants[0], &key[4..], &nonce, constants[1]]
        } else {
            let constants = &[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
            [constants, &key, &counter, &nonce, &[], &[]]
        };
        parts.concat().try_into().unwrap()
    }

    /// The first `count` bytes of the keystream, from the user-space cipher.
    fn keystream(&self, cipher: Cipher, count: usize) -> Vec<u8> {
        // The crate has a 32-bit counter. Its nonce begins with the upper half of the 64-bit counter, so each block is
        // created separately.
        macro_rules! chacha {
            ($rounds:ty, $counter:expr) => {{
                let counter: u64 = $counter;
                let nonce: [u8; 12] = [&((counter >> 32) as u32).to_le_bytes()[..], &self.nonce]
                    .concat()
                    .try_into()
                    .unwrap();
                let mut core = ChaChaCore::<$rounds, Ietf>::new(&self.key.into(), &nonce.into());
                core.set_block_pos(counter as u32);
                let mut block = Default::default();
                core.write_keystream_block(&mut block);
                block.into()
            }};
        }
        let block = |counter| -> [u8; BLOCK_BYTES] {
            let forro = Matrix::new(&self.key, counter, &self.nonce);
            match cipher {
                Cipher::Forro6 => forro.block::<R6>(),
                Cipher::Forro10 => forro.block::<R10>(),
                Cipher::Forro14 => forro.block::<R14>(),
                Cipher::Chacha8 => chacha!(R8, counter),
                Cipher::Chacha12 => chacha!(R12, counter),
                Cipher::Chacha20 => chacha!(R20, counter),
            }
        };
        let blocks = (0..count.div_ceil(BLOCK_BYTES) as u64).map(|index| self.counter.wrapping_add(index));
        blocks.flat_map(block).take(count).collect()
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    FrameBuilder::new(ENDPOINTS[0], ENDPOINTS[1])
        .padding(&PADDING)
        .udp(payload)
}

/// The expected reply to a datagram: addresses swapped, no checksum.
fn expected_reply(payload: &[u8]) -> Vec<u8> {
    let mut frame = FrameBuilder::new(ENDPOINTS[1], ENDPOINTS[0])
        .padding(&PADDING)
        .udp(payload);
    frame[40..42].fill(0);
    frame
}

/// Every length up to 257 bytes (four blocks and one byte), and several lengths up to the maximum.
fn lengths(rng: &mut ChaCha8Rng, length_max: usize) -> Vec<usize> {
    let long = [320, 511, 512, 513, 575, 1023, 1024, 1025, 1280, 1407, 1408];
    let random = std::iter::repeat_with(|| rng.random_range(257..=length_max)).take(20);
    (0..=257)
        .chain(long)
        .chain([length_max - 1, length_max])
        .chain(random)
        .collect()
}

#[test]
fn keystream_blocks_are_the_same_as_in_user_space() {
    let blocks = |cipher| Width::ALL.map(|width| Program::Blocks(Some(cipher), width));
    let fixture = load(&Cipher::ALL.map(blocks).concat());
    let mut rng = rng();
    let counters_with_carry = [
        0,
        1,
        0xffff_fffc,
        0xffff_fffd,
        0xffff_fffe,
        0xffff_ffff,
        u64::MAX - 2,
    ];
    for cipher in Cipher::ALL {
        let random: Vec<u64> = (0..20)
            .map(|_| rng.random::<u64>() >> rng.random_range(1..60))
            .collect();
        for counter in counters_with_carry.iter().chain(&random) {
            let stream = Stream::random(&mut rng, *counter);
            fixture.set_matrix(stream.matrix(cipher)).unwrap();
            for width in Width::ALL {
                let run = fixture
                    .run(Program::Blocks(Some(cipher), width), &[0; 64])
                    .unwrap();
                assert_eq!(run.action, TX);
                let expected = stream.keystream(cipher, width.blocks() * BLOCK_BYTES);
                assert_eq!(
                    fixture.keystream(width).unwrap(),
                    expected,
                    "{cipher:?} {width:?} {stream:x?}"
                );
            }
        }
    }
}

#[test]
fn payloads_of_every_length_are_encrypted_in_place_and_decrypted_again() {
    let fixture = load(&Cipher::ALL.map(|cipher| Program::Answer(Some(cipher))));
    let mut rng = rng();
    for cipher in Cipher::ALL {
        for length in lengths(&mut rng, PAYLOAD_BYTES_MAX) {
            // With inputs of more than eight blocks, the counter carries into its upper half.
            let stream = Stream::random(&mut rng, 0xffff_fff8);
            let plain = bytes(&mut rng, length);
            fixture.set_matrix(stream.matrix(cipher)).unwrap();
            let encrypted_run = fixture
                .run(Program::Answer(Some(cipher)), &frame(&plain))
                .unwrap();
            let keystream = stream.keystream(cipher, length);
            let encrypted: Vec<u8> = plain.iter().zip(keystream).map(|(a, b)| a ^ b).collect();
            assert_eq!(encrypted_run.action, TX, "{cipher:?} {length}");
            assert_eq!(
                encrypted_run.frame,
                expected_reply(&encrypted),
                "{cipher:?} {length} {stream:x?}"
            );
            let decrypted_run = fixture
                .run(Program::Answer(Some(cipher)), &encrypted_run.frame)
                .unwrap();
            let mut expected = frame(&plain);
            expected[40..42].fill(0);
            assert_eq!(decrypted_run.frame, expected, "{cipher:?} {length} {stream:x?}");
        }
    }
}

fn seal(aead: Aead, input: &AeadInput, text: &mut [u8]) -> [u8; TAG_BYTES] {
    let (key, aad) = (input.key.into(), input.aad.as_slice());
    let sealed = match aead {
        Aead::XForro14Poly1305 => {
            XForro14Poly1305::new(&key).encrypt_inout_detached(&input.nonce.into(), aad, text.into())
        }
        Aead::ChaCha20Poly1305 => {
            let nonce: [u8; 12] = input.nonce[..12].try_into().unwrap();
            ChaCha20Poly1305::new(&key).encrypt_inout_detached(&nonce.into(), aad, text.into())
        }
    };
    sealed.unwrap().into()
}

fn random_input(rng: &mut ChaCha8Rng) -> AeadInput {
    let aad_bytes = rng.random_range(0..=AAD_BYTES_MAX);
    AeadInput {
        key: rng.random(),
        nonce: rng.random(),
        aad: bytes(rng, aad_bytes),
    }
}

#[test]
fn messages_of_every_length_are_sealed_as_in_user_space_and_opened_again() {
    let programs = Aead::ALL.map(|aead| {
        [AeadOperation::Seal, AeadOperation::Open, AeadOperation::Both]
            .map(|operation| Program::Aead(aead, operation))
    });
    let fixture = load(&programs.concat());
    let mut rng = rng();
    for aead in Aead::ALL {
        for length in lengths(&mut rng, PAYLOAD_BYTES_MAX - TAG_BYTES) {
            let input = random_input(&mut rng);
            fixture.set_aead(&input).unwrap();
            let plain = bytes(&mut rng, length);
            let with_space_for_tag = [plain.as_slice(), &[0; TAG_BYTES]].concat();
            let sealed = fixture
                .run(
                    Program::Aead(aead, AeadOperation::Seal),
                    &frame(&with_space_for_tag),
                )
                .unwrap();
            let mut expected = plain.clone();
            let tag = seal(aead, &input, &mut expected);
            expected.extend_from_slice(&tag);
            assert_eq!(sealed.action, TX, "{aead:?} {length}");
            assert_eq!(
                sealed.frame,
                expected_reply(&expected),
                "{aead:?} {length} {input:x?}"
            );

            let opened = fixture
                .run(Program::Aead(aead, AeadOperation::Open), &sealed.frame)
                .unwrap();
            assert_eq!(opened.action, TX, "{aead:?} {length}");
            let payload = &opened.frame[PAYLOAD_AT..PAYLOAD_AT + length];
            assert_eq!(payload, plain, "{aead:?} {length} {input:x?}");
            let both = fixture
                .run(
                    Program::Aead(aead, AeadOperation::Both),
                    &frame(&with_space_for_tag),
                )
                .unwrap();
            assert_eq!(
                both.frame,
                expected_reply(&[plain, tag.to_vec()].concat()),
                "{aead:?} {length}"
            );
        }
    }
}

/// With one wrong bit in the tag, ciphertext, associated data, nonce or key, the packet is dropped and its payload is
/// not decrypted.
#[test]
fn payloads_with_a_wrong_tag_are_not_decrypted() {
    let fixture = load(&Aead::ALL.map(|aead| Program::Aead(aead, AeadOperation::Open)));
    let mut rng = rng();
    for aead in Aead::ALL {
        for round in 0..200 {
            let mut input = random_input(&mut rng);
            input.aad = bytes(&mut rng, 12);
            let length = rng.random_range(1..300);
            let mut message = bytes(&mut rng, length);
            let tag = seal(aead, &input, &mut message);
            message.extend_from_slice(&tag);
            let bit = 1 << rng.random_range(0..8);
            match round % 5 {
                0 => message[length + round / 5 % TAG_BYTES] ^= bit,
                1 => message[rng.random_range(0..length)] ^= bit,
                2 => input.aad[rng.random_range(0..12)] ^= bit,
                3 => input.nonce[rng.random_range(0..12)] ^= bit,
                _ => input.key[rng.random_range(0..32)] ^= bit,
            }
            fixture.set_aead(&input).unwrap();
            let run = fixture
                .run(Program::Aead(aead, AeadOperation::Open), &frame(&message))
                .unwrap();
            assert_eq!(run.action, DROP, "{aead:?} {round}");
            assert_eq!(run.frame, expected_reply(&message), "{aead:?} {round}");
        }
    }
}

/// The input of Poly1305 in an AEAD: associated data, ciphertext, and the lengths of both.
fn poly1305_input(aad: &[u8], text: &[u8]) -> Vec<u8> {
    let padded = |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(16) - bytes.len()]].concat();
    let lengths = [aad.len() as u64, text.len() as u64]
        .map(u64::to_le_bytes)
        .concat();
    [padded(aad), padded(text), lengths].concat()
}

/// Compares tags of random keys and messages, and of keys and messages that cause carries between the limbs and at the
/// modulus 2^130 - 5.
#[test]
fn poly1305_carries_like_rustcrypto() {
    let fixture = load(&[Program::Poly1305]);
    let mut rng = rng();
    let carry_bytes: [u8; 6] = [0x00, 0xff, 0xfb, 0x01, 0xfc, 0x05];
    for round in 0..3000 {
        let mut input_bytes = |count: usize| match round % 3 {
            0 => vec![carry_bytes[rng.random_range(0..carry_bytes.len())]; count],
            1 => {
                let mut mixed = vec![0; count];
                mixed.fill_with(|| carry_bytes[rng.random_range(0..carry_bytes.len())]);
                mixed
            }
            _ => bytes(&mut rng, count),
        };
        let text_bytes = if round % 7 == 0 { 1456 } else { round % 97 };
        let (key, text) = (input_bytes(32), input_bytes(text_bytes));
        let aad = input_bytes(round % (AAD_BYTES_MAX + 1));
        let mut matrix = [0; 16];
        matrix[..8].copy_from_slice(&words(&key));
        fixture.set_matrix(matrix).unwrap();
        let input = AeadInput {
            key: [0; 32],
            nonce: [0; 24],
            aad: aad.clone(),
        };
        fixture.set_aead(&input).unwrap();
        let with_space_for_tag = [text.as_slice(), &[0; TAG_BYTES]].concat();
        let run = fixture
            .run(Program::Poly1305, &frame(&with_space_for_tag))
            .unwrap();
        let key: [u8; 32] = key.try_into().unwrap();
        let tag = Poly1305::new(&key.into()).compute_unpadded(&poly1305_input(&aad, &text));
        assert_eq!(
            run.frame,
            expected_reply(&[text, tag.to_vec()].concat()),
            "{round} {key:x?}"
        );
    }
}

#[test]
fn incomplete_datagrams_pass_unchanged() {
    let aead = Program::Aead(Aead::XForro14Poly1305, AeadOperation::Seal);
    let stream = Program::Answer(Some(Cipher::Forro14));
    let fixture = load(&[aead, stream]);
    let complete = frame(&[7; 100]);
    let changed = |index: usize, value: u8| {
        let mut frame = complete.clone();
        frame[index] = value;
        frame
    };
    let v6 = [ENDPOINTS[0], ENDPOINTS[1]].map(|end| Endpoint {
        ip: IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ..end
    });
    let cases = [
        ("UDP length smaller than the UDP header", changed(39, 7)),
        ("TCP", changed(23, 6)),
        ("options", changed(14, 0x46)),
        ("fragment", changed(20, 0x20)),
        ("truncated", complete[..41].to_vec()),
        ("IPv6", FrameBuilder::new(v6[0], v6[1]).udp(&[7; 100])),
    ];
    for (name, frame) in &cases {
        for program in [aead, stream] {
            let run = fixture.run(program, frame).unwrap();
            assert_eq!((run.action, &run.frame), (PASS, frame), "{name}, {program:?}");
        }
    }
    // The program has already swapped the addresses when it checks the length; the payload is unchanged.
    let longer_than_the_frame = changed(38, 1);
    let run = fixture.run(stream, &longer_than_the_frame).unwrap();
    assert_eq!(run.action, PASS);
    assert_eq!(run.frame[PAYLOAD_AT..], longer_than_the_frame[PAYLOAD_AT..]);
    let run = fixture.run(aead, &frame(&[7; TAG_BYTES - 1])).unwrap();
    assert_eq!(
        (run.action, &run.frame[PAYLOAD_AT..PAYLOAD_AT + 15]),
        (PASS, &[7; 15][..])
    );
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../forro/tests/vectors/forro.json")).unwrap()
}

/// The bytes of a field: decoded from hexadecimal digits, or from the text in the field with the suffix `_ascii`.
fn field(object: &Value, name: &str) -> Vec<u8> {
    match object[name].as_str() {
        Some(digits) => hex::decode(digits).unwrap(),
        None => object[format!("{name}_ascii")].as_str().unwrap().into(),
    }
}

#[test]
fn streams_match_the_published_vectors() {
    let forro = Program::Blocks(Some(Cipher::Forro14), Width::X2);
    let chacha = Program::Blocks(Some(Cipher::Chacha20), Width::X1);
    let fixture = load(&[forro, chacha]);
    for vector in vectors()["forro14"].as_array().unwrap() {
        let stream = Stream {
            key: field(vector, "key").try_into().unwrap(),
            counter: 0,
            nonce: field(vector, "nonce").try_into().unwrap(),
        };
        fixture.set_matrix(stream.matrix(Cipher::Forro14)).unwrap();
        fixture.run(forro, &[0; 64]).unwrap();
        let blocks = fixture.keystream(Width::X2).unwrap();
        for (expected, block) in vector["blocks"].as_array().unwrap().iter().zip(blocks.chunks(64)) {
            assert_eq!(hex::encode(block), expected.as_str().unwrap());
        }
    }
    // RFC 8439 2.3.2: nonce 00:00:00:09:00:00:00:4a:00:00:00:00, counter 1.
    let stream = Stream {
        key: std::array::from_fn(|index| index as u8),
        counter: 1 | 0x0900_0000 << 32,
        nonce: [0, 0, 0, 0x4a, 0, 0, 0, 0],
    };
    fixture.set_matrix(stream.matrix(Cipher::Chacha20)).unwrap();
    fixture.run(chacha, &[0; 64]).unwrap();
    let expected = "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e\
                    d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e";
    assert_eq!(hex::encode(fixture.keystream(Width::X1).unwrap()), expected);
}

#[test]
fn aeads_match_the_published_vectors() {
    let fixture = load(&Aead::ALL.map(|aead| Program::Aead(aead, AeadOperation::Seal)));
    let sealed = |aead, input: &AeadInput, text: &[u8]| {
        fixture.set_aead(input).unwrap();
        let with_space_for_tag = [text, &[0; TAG_BYTES]].concat();
        let run = fixture
            .run(
                Program::Aead(aead, AeadOperation::Seal),
                &frame(&with_space_for_tag),
            )
            .unwrap();
        run.frame[PAYLOAD_AT..PAYLOAD_AT + with_space_for_tag.len()].to_vec()
    };
    let vectors = vectors();
    let vector = &vectors["xforro14_poly1305"][0];
    let mut input = AeadInput {
        key: field(vector, "key").try_into().unwrap(),
        nonce: field(vector, "nonce").try_into().unwrap(),
        aad: field(vector, "aad"),
    };
    let text = field(vector, "plaintext");
    let expected = [field(vector, "ciphertext"), field(vector, "tag")].concat();
    assert_eq!(sealed(Aead::XForro14Poly1305, &input, &text), expected);
    input.aad.clear();
    let sealed_without_aad = sealed(Aead::XForro14Poly1305, &input, &text);
    assert_eq!(
        hex::encode(&sealed_without_aad[text.len()..]),
        "cf1c92b14adbffa77dff2cd8486ff3c8"
    );

    // RFC 8439 2.8.2.
    let mut nonce = [0; 24];
    nonce[..12].copy_from_slice(&hex::decode("070000004041424344454647").unwrap());
    let input = AeadInput {
        key: std::array::from_fn(|index| 0x80 + index as u8),
        nonce,
        aad: hex::decode("50515253c0c1c2c3c4c5c6c7").unwrap(),
    };
    let text =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
                 sunscreen would be it.";
    let expected = "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
                    3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
                    92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
                    3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691";
    assert_eq!(
        hex::encode(sealed(Aead::ChaCha20Poly1305, &input, text)),
        expected
    );
}

/// Limits of Linux 6.1: the stack of a program has 512 bytes, and the verifier visits at most 1,000,000 instructions.
/// Each program must need less than half of the latter.
#[test]
fn programs_fit_the_kernel_limits() {
    let replies = Cipher::ALL.map(|cipher| Program::Answer(Some(cipher)));
    let aeads = Aead::ALL.map(|aead| Program::Aead(aead, AeadOperation::Both));
    let programs = [&replies[..], &aeads[..]].concat();
    let fixture = load(&programs);
    for program in programs {
        let stats = fixture.stats(program).unwrap();
        assert!(stats.stack_bytes <= 512, "{program:?} {stats:?}");
        assert!((1..500_000).contains(&stats.verified), "{program:?} {stats:?}");
        assert!(
            stats.instructions > 100 && stats.jited_bytes > stats.instructions,
            "{program:?} {stats:?}"
        );
    }
}
