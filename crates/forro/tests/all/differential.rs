//! Compares every backend with the plain implementation in `support`, and tests edge cases: lengths, wrapping counters,
//! seeking.

use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use linewarden_forro::cipher::{
    KeyIvInit, StreamCipher as _, StreamCipherCore as _, StreamCipherCoreWrapper, StreamCipherSeek as _,
    StreamCipherSeekCore as _,
};
use linewarden_forro::{
    Backend, Forro14, Forro14Ietf, ForroCore, ForroIetfCore, Inputs, Matrix, R6, R10, R14, Rounds,
    XForro14Core, XForro14Poly1305, blocks, matching_blocks,
};
use proptest::prelude::*;

const KEY: [u8; 32] = *b"an own key for differential runs";
const NONCE: [u8; 8] = *b"a nonce.";

fn core<R: Rounds>(backend: Backend, key: [u8; 32], nonce: [u8; 8]) -> ForroCore<R> {
    ForroCore::new(&key.into(), &nonce.into()).with_backend(backend)
}

fn stream<R: Rounds>(backend: Backend, first_block: u64, length: usize) -> Vec<u8> {
    let mut core = core::<R>(backend, KEY, NONCE);
    core.set_block_pos(first_block);
    let mut out = vec![0; length];
    StreamCipherCoreWrapper::from_core(core).apply_keystream(&mut out);
    out
}

fn expected(rounds: usize, first_block: u64, length: usize) -> Vec<u8> {
    (0..length.div_ceil(64) as u64)
        .flat_map(|index| crate::support::block(&KEY, first_block.wrapping_add(index), &NONCE, rounds))
        .take(length)
        .collect()
}

fn rounds_of<R: Rounds>() -> usize {
    2 * R::DOUBLE_ROUNDS
}

fn check_every_length<R: Rounds>() {
    for backend in Backend::available() {
        // Three groups of blocks and one byte, so that groups, half groups and single blocks follow each other.
        let longest = 64 * 3 * backend.lanes() + 1;
        let expected = expected(rounds_of::<R>(), 0, longest);
        for length in 0..=longest {
            assert!(
                stream::<R>(backend, 0, length) == expected[..length],
                "{} rounds, {}, {length} bytes",
                rounds_of::<R>(),
                backend.name()
            );
        }
    }
}

#[test]
fn keystreams_of_every_length_are_correct_with_6_rounds() {
    check_every_length::<R6>();
}

#[test]
fn keystreams_of_every_length_are_correct_with_10_rounds() {
    check_every_length::<R10>();
}

#[test]
fn keystreams_of_every_length_are_correct_with_14_rounds() {
    check_every_length::<R14>();
}

#[test]
fn the_widest_backend_of_this_machine_is_tested() {
    let backends: Vec<_> = Backend::available().collect();
    assert_eq!(backends[..2], [Backend::SCALAR, Backend::PORTABLE]);
    assert_eq!(backends.last(), Some(&Backend::widest()));
    println!(
        "{:?}",
        backends.iter().map(|backend| backend.name()).collect::<Vec<_>>()
    );
}

/// The carry between the counter's words occurs at each position of a group of blocks.
#[test]
fn carry_reaches_the_upper_word_of_the_counter() {
    for backend in Backend::available() {
        for distance in 0..=2 * backend.lanes() as u64 {
            let first_block = (1 << 32) - distance;
            let length = 64 * 3 * backend.lanes();
            assert!(
                stream::<R14>(backend, first_block, length) == expected(14, first_block, length),
                "{}, {distance} blocks before the carry",
                backend.name()
            );
        }
    }
}

/// With a 12-byte nonce there are 2^32 blocks: word 5 belongs to the nonce, and no carry changes word 5.
#[test]
fn a_short_counter_ends_without_changing_the_nonce() {
    let nonce = *b"twelve bytes";
    let words =
        [0, 1, 2].map(|index| u32::from_le_bytes(nonce[4 * index..4 * index + 4].try_into().unwrap()));
    for backend in Backend::available() {
        for remaining in 1..=2 * backend.lanes() as u32 {
            let first_block = remaining.wrapping_neg();
            let mut core = ForroIetfCore::<R14>::new(&KEY.into(), &nonce.into()).with_backend(backend);
            core.set_block_pos(first_block);
            assert_eq!(core.remaining_blocks(), Some(remaining as usize - 1));
            let mut cipher = StreamCipherCoreWrapper::from_core(core);
            let mut out = vec![0; 64 * remaining as usize];
            assert!(cipher.try_apply_keystream(&mut vec![0; out.len() + 1]).is_err());
            // The trait's block counter cannot represent the position after the last block: the last block is not usable.
            let usable = out.len() - 64;
            cipher.try_apply_keystream(&mut out[..usable]).unwrap();
            for (index, block) in out[..usable].chunks(64).enumerate() {
                let input = [first_block + index as u32, words[0], words[1], words[2]];
                assert_eq!(
                    block,
                    crate::support::block_of_words(crate::support::matrix(&KEY, input), 14)
                );
            }
        }
    }
}

#[test]
fn the_end_of_the_long_counter_is_refused() {
    let mut cipher = Forro14::new(&KEY.into(), &NONCE.into());
    let mut core = ForroCore::<R14>::new(&KEY.into(), &NONCE.into());
    core.set_block_pos(u64::MAX - 1);
    assert_eq!(core.remaining_blocks(), Some(1));
    let mut at_end = StreamCipherCoreWrapper::from_core(core);
    assert!(at_end.try_apply_keystream(&mut [0; 129]).is_err());
    at_end.try_apply_keystream(&mut [0; 64]).unwrap();
    // This position is beyond 2^64 bytes; the trait counts bytes in u128.
    cipher.try_seek(1u128 << 69).unwrap();
    let mut block = [0; 64];
    cipher.apply_keystream(&mut block);
    assert_eq!(block[..], crate::support::block(&KEY, 1 << 63, &NONCE, 14)[..]);
}

#[test]
fn debug_output_shows_no_secret() {
    let key = [0xab; 32];
    let debug_text = format!(
        "{:?} {:?}",
        Matrix::new(&key, 1, &NONCE),
        ForroCore::<R14>::new(&key.into(), &NONCE.into())
    );
    assert_eq!(debug_text, "Matrix { .. } ForroCore { .. }");
}

/// A random counter and nonce, or one of two fixed pairs, so that some pairs occur several times.
fn counter_and_nonce() -> impl Strategy<Value = (u64, [u8; 8])> {
    (0..3u64, any::<u64>()).prop_map(|(choice, number)| match choice {
        0 => (number, number.to_be_bytes()),
        choice => (u64::MAX << (16 * choice), [choice as u8; 8]),
    })
}

fn words(key: &[u8; 32]) -> [u64; 4] {
    let words = key
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes));
    words.collect::<Vec<_>>().try_into().unwrap()
}

proptest! {
    /// Keystream that is read in pieces equals the keystream in one piece, from any start position.
    #[test]
    fn pieces_are_one_stream(
        pieces in prop::collection::vec(0usize..700, 1..12),
        start_position in 0u64..10_000,
        backend in 0usize..3,
    ) {
        let available: Vec<_> = Backend::available().collect();
        let backend = available[backend % available.len()];
        let mut cipher = StreamCipherCoreWrapper::from_core(core::<R14>(backend, KEY, NONCE));
        cipher.seek(start_position);
        let total: usize = pieces.iter().sum();
        let mut out = vec![0; total];
        let mut remaining = out.as_mut_slice();
        for piece in pieces {
            let (head, tail) = remaining.split_at_mut(piece);
            cipher.apply_keystream(head);
            remaining = tail;
        }
        prop_assert_eq!(cipher.current_pos::<u64>(), start_position + total as u64);
        let skipped = (start_position % 64) as usize;
        let expected = expected(14, start_position / 64, total + skipped);
        prop_assert_eq!(&out[..], &expected[skipped..]);
    }

    /// `blocks` computes the same blocks as the plain implementation, for any number of keys.
    #[test]
    fn blocks_of_many_keys_equal_single_blocks(
        inputs in prop::collection::vec((any::<[u8; 32]>(), any::<u64>(), any::<[u8; 8]>()), 0..100),
    ) {
        let matrices: Vec<_> = inputs
            .iter()
            .map(|(key, counter, nonce)| Matrix::new(key, *counter, nonce))
            .collect();
        for backend in Backend::available() {
            let mut out = vec![[0; 64]; inputs.len()];
            blocks::<R14>(backend, &matrices, &mut out);
            for ((key, counter, nonce), out) in inputs.iter().zip(&out) {
                prop_assert_eq!(&crate::support::block(key, *counter, nonce, 14), out, "{}", backend.name());
            }
            // The output has fewer slots than there are matrices.
            let mut fewer = vec![[0; 64]; inputs.len() / 2];
            blocks::<R14>(backend, &matrices, &mut fewer);
            prop_assert!(fewer == out[..fewer.len()]);
        }
    }

    /// `matching_blocks` reports exactly the unchanged blocks. The previous content of the slots has no effect.
    #[test]
    fn matching_blocks_reports_exactly_the_unchanged_blocks(
        keys in prop::collection::vec((any::<[u8; 32]>(), counter_and_nonce(), counter_and_nonce()), 0..=Inputs::BLOCKS_MAX),
        shared in counter_and_nonce(),
        flips in prop::collection::vec((0..Inputs::BLOCKS_MAX, 0..512usize), 0..20),
    ) {
        let mut inputs = Inputs::default();
        for slot in 0..Inputs::BLOCKS_MAX + 1 {
            inputs.set_matrix(slot, &Matrix::from_words([slot as u32; 16]));
        }
        // The inputs are filled two times, like those of a caller that reuses them: counter and nonce of one slot must
                // not become the shared counter and nonce.
        let first_inputs = keys.iter().map(|(key, first, _)| (key, first));
        let second_inputs = keys.iter().map(|(key, _, second)| (key, second));
        inputs.set_shared_counter_and_nonce(shared.0, &shared.1);
        for (slot, (key, (counter, nonce))) in first_inputs.enumerate() {
            inputs.set_counter_and_nonce(slot, *counter, nonce);
            inputs.set_key(slot, &words(key));
        }
        inputs.set_shared_counter_and_nonce(shared.0, &shared.1);
        let mut candidates: Vec<[u8; 64]> = Vec::new();
        for (slot, (key, (counter, nonce))) in second_inputs.clone().enumerate() {
            if (*counter, *nonce) != shared {
                inputs.set_counter_and_nonce(slot, *counter, nonce);
            }
            inputs.set_key(slot, &words(key));
            candidates.push(crate::support::block(key, *counter, nonce, 14).try_into().unwrap());
        }
        let mut expected = (0..candidates.len()).fold(0, |bits, slot| bits | 1u64 << slot);
        for (slot, bit) in flips {
            if let Some(block) = candidates.get_mut(slot) {
                block[bit / 8] ^= 1 << (bit % 8);
            }
        }
        for (slot, ((key, (counter, nonce)), candidate)) in second_inputs.zip(&candidates).enumerate() {
            if crate::support::block(key, *counter, nonce, 14) != candidate[..] {
                expected &= !(1 << slot);
            }
        }
        let candidates: Vec<&[u8; 64]> = candidates.iter().collect();
        for backend in Backend::available() {
            prop_assert_eq!(matching_blocks::<R14>(backend, &inputs, &candidates), expected, "{}", backend.name());
        }
    }

    /// Decryption accepts a sealed message. It rejects a message with a changed bit, and leaves the buffer unchanged.
    #[test]
    fn a_changed_message_does_not_open(
        key in any::<[u8; 32]>(),
        nonce in any::<[u8; 24]>(),
        text in prop::collection::vec(any::<u8>(), 0..300),
        ad in prop::collection::vec(any::<u8>(), 0..40),
        flip in any::<prop::sample::Index>(),
    ) {
        let aead = XForro14Poly1305::new(&key.into());
        let mut sealed = text.clone();
        let tag = aead.encrypt_inout_detached(&nonce.into(), &ad, sealed.as_mut_slice().into()).unwrap();
        let mut opened = sealed.clone();
        aead.decrypt_inout_detached(&nonce.into(), &ad, opened.as_mut_slice().into(), &tag).unwrap();
        prop_assert_eq!(&opened, &text);
        // Flip one bit of text, tag, associated data or nonce.
        let bits = 8 * (sealed.len() + 16 + ad.len() + 24);
        let (bit, mut changed, mut tag, mut ad, mut nonce) = (flip.index(bits), sealed, tag, ad, nonce);
        {
            let mut all_bytes = changed.iter_mut().chain(tag.iter_mut()).chain(&mut ad).chain(&mut nonce);
            *all_bytes.nth(bit / 8).unwrap() ^= 1 << (bit % 8);
        }
        let before_decryption = changed.clone();
        prop_assert!(aead.decrypt_inout_detached(&nonce.into(), &ad, changed.as_mut_slice().into(), &tag).is_err());
        prop_assert_eq!(changed, before_decryption);
    }
}

/// XForró gives the same stream with every backend.
#[test]
fn xforro_streams_are_equal_on_every_backend() {
    let nonce = [7; 24];
    let stream = |backend| {
        let core = XForro14Core::new(&KEY.into(), &nonce.into()).with_backend(backend);
        let mut out = vec![0; 64 * 70];
        StreamCipherCoreWrapper::from_core(core).apply_keystream(&mut out);
        out
    };
    for backend in Backend::available() {
        assert!(stream(backend) == stream(Backend::PORTABLE));
    }
    // XForró derives another key and nonce; otherwise both ciphers would be equal.
    let mut forro_block = vec![0; 64];
    Forro14Ietf::new(&KEY.into(), &[7; 12].into()).apply_keystream(&mut forro_block);
    assert!(forro_block != stream(Backend::PORTABLE)[..64]);
}
