//! cipher.p4: its Forró is compared with the Forró of this project, its ChaCha with the ChaCha of `rand_chacha`.

use linewarden_forro::{Matrix, R6, R10, R14};
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use rand_chacha::{ChaCha8Rng, ChaCha12Rng, ChaCha20Rng};

use super::stf::Stf;

const ENCRYPT: u8 = 1;
const DECRYPT: u8 = 2;
const PLAIN: u8 = 3;
const OUTPUT: u16 = 2;
const SWITCH_NUMBER: u32 = 0x0102_0304;

/// Key of an input port, and its number of rounds.
#[derive(Clone, Copy)]
struct Key {
    port: u16,
    rounds: u8,
    bytes: [u8; 32],
}

impl Key {
    /// Returns 64 bytes of keystream. The first 32 bits of the 96-bit nonce are the upper half of a 64-bit counter.
    fn block(&self, forro: bool, counter: u32, nonce: [u8; 12]) -> [u8; 64] {
        let (high, low) = nonce.split_first_chunk::<4>().unwrap();
        let counter = u64::from(u32::from_le_bytes(*high)) << 32 | u64::from(counter);
        let nonce: [u8; 8] = low.try_into().unwrap();
        if forro {
            let matrix = Matrix::new(&self.bytes, counter, &nonce);
            return match self.rounds {
                6 => matrix.block::<R6>(),
                10 => matrix.block::<R10>(),
                _ => matrix.block::<R14>(),
            };
        }
        let mut block = [0; 64];
        macro_rules! chacha {
            ($rng:ty) => {{
                let mut rng = <$rng>::from_seed(self.bytes);
                rng.set_stream(u64::from_le_bytes(nonce));
                rng.set_word_pos(u128::from(counter) * 16);
                rng.fill_bytes(&mut block);
            }};
        }
        match self.rounds {
            8 => chacha!(ChaCha8Rng),
            12 => chacha!(ChaCha12Rng),
            _ => chacha!(ChaCha20Rng),
        }
        block
    }

    fn add(&self, stf: &mut Stf) {
        let words = self.bytes.as_chunks::<4>().0.iter();
        let words: Vec<_> = (0..)
            .zip(words)
            .map(|(index, word)| format!("k{index}:{:#010x}", u32::from_le_bytes(*word)))
            .collect();
        stf.line(&format!(
            "add keys meta.port:{} use_key(output:{OUTPUT}, rounds:{}, switch_number:{SWITCH_NUMBER:#x}, {})",
            self.port,
            self.rounds,
            words.join(", ")
        ));
    }
}

fn frame(operation: u8, counter: u32, nonce: [u8; 12], text: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, operation, 0, 0, 0];
    frame.extend_from_slice(&counter.to_be_bytes());
    frame.extend_from_slice(&nonce);
    frame.extend_from_slice(text);
    frame
}

fn xor(block: [u8; 64], text: [u8; 64]) -> [u8; 64] {
    std::array::from_fn(|at| block[at] ^ text[at])
}

/// Keystream block of RFC 8439 2.3.2, with which the reference cipher is checked.
const RFC8439_BLOCK: &str = "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e\
     d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e";

fn test(program: &str, forro: bool) -> Stf {
    let mut stf = Stf::new(program, "text");
    let round_counts = if forro { [6, 10, 14] } else { [8, 12, 20] };
    let counting_key: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).unwrap());
    let keys: Vec<_> = (4u16..)
        .zip(round_counts)
        .map(|(port, rounds)| Key {
            port,
            rounds,
            bytes: counting_key,
        })
        .collect();
    keys.iter().for_each(|key| key.add(&mut stf));
    let published = Key {
        port: 1,
        rounds: round_counts[2],
        bytes: if forro {
            *b"minha vida e andar por este pais"
        } else {
            counting_key
        },
    };
    published.add(&mut stf);

    stf.comment("Published known answers: the keystream of a text of zeros.");
    let (blocks_out, nonce): (Vec<_>, [u8; 12]) = if forro {
        let blocks = [
            "c5a96c62f29352aff26295b58da0595c62108225f14e331116ad3f7b4ea000fec0f0368e421149b26b0b4398db7b3bbb99e3f5d7a91bf028996a8c4651707ef1",
            "dcbee0c1271a0cf7e00eb1bc1e6ff86ef23caca986a0037e02922ba5aa6a1d6df09f5bd1c540b0d9d1cc8b3ec390660ae68a8849fb57ea3a71d844e720b48470",
        ];
        let blocks_out = (0u32..).zip(blocks).collect();
        (blocks_out, *b"\0\0\0\0mostro a")
    } else {
        (vec![(1, RFC8439_BLOCK)], [0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0])
    };
    for (counter, expected_block) in blocks_out {
        let expected_block = hex::decode(expected_block).unwrap();
        assert_eq!(
            published.block(forro, counter, nonce)[..],
            expected_block,
            "the reference keystream is wrong"
        );
        stf.packet(1, &frame(DECRYPT, counter, nonce, &[0; 64]));
        stf.expect(OUTPUT, &frame(PLAIN, counter, nonce, &expected_block));
    }

    stf.comment("Each number of rounds, with counters and nonces that distinguish byte orders.");
    let text: [u8; 64] = std::array::from_fn(|at| u8::try_from(at * 3 % 251).unwrap());
    let nonce = [
        0x10, 0x21, 0x32, 0x43, 0x54, 0x65, 0x76, 0x87, 0x98, 0xa9, 0xba, 0xcb,
    ];
    for key in &keys {
        for counter in [0, 0x0102_0304, u32::MAX] {
            let block = key.block(forro, counter, nonce);
            stf.packet(key.port, &frame(DECRYPT, counter, nonce, &text));
            stf.expect(OUTPUT, &frame(PLAIN, counter, nonce, &xor(block, text)));
        }
    }

    stf.comment("No first nonce is set: nothing is encrypted.");
    stf.packet(1, &frame(ENCRYPT, 0, [0; 12], &text));
    stf.comment("Nonces increase; the content of the frame is irrelevant.");
    let first_nonce = 0x0011_2233_4455_66ffu64;
    stf.line(&format!("register_write CipherIngress.nonces 0 {first_nonce}"));
    for (key, number) in keys.iter().zip(first_nonce..) {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&SWITCH_NUMBER.to_be_bytes());
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let ciphertext = xor(key.block(forro, 5, nonce), text);
        stf.packet(key.port, &frame(ENCRYPT, 5, [0xee; 12], &text));
        stf.expect(OUTPUT, &frame(DECRYPT, 5, nonce, &ciphertext));
        stf.packet(key.port, &frame(DECRYPT, 5, nonce, &ciphertext));
        stf.expect(OUTPUT, &frame(PLAIN, 5, nonce, &text));
    }

    stf.comment("Dropped: a port without a key, another operation, a truncated text, another type, a frame that imitates an intermediate one.");
    stf.packet(3, &frame(DECRYPT, 0, nonce, &text));
    for operation in [0, PLAIN, 4, 255] {
        stf.packet(1, &frame(operation, 0, nonce, &text));
    }
    stf.packet(1, &frame(DECRYPT, 0, nonce, &text[..63]));
    let mut other_type = frame(DECRYPT, 0, nonce, &text);
    other_type[13] = 0xb6;
    stf.packet(1, &other_type);
    let mut intermediate = vec![56, 56];
    intermediate.extend_from_slice(&[0x77; 64]);
    intermediate.extend_from_slice(&frame(DECRYPT, 0, nonce, &text));
    stf.packet(1, &intermediate);
    stf
}

pub fn tests() -> Vec<Stf> {
    let passes = ["quarter-round", "round", "one-pass"];
    let ciphers = [("forro", true), ("chacha", false)];
    let all = ciphers
        .into_iter()
        .flat_map(|cipher| passes.map(|pass| (cipher, pass)));
    all.map(|((name, forro), pass)| test(&format!("cipher-{name}-{pass}"), forro))
        .collect()
}
