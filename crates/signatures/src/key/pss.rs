//! EMSA-PSS (RFC 8017, 9.1.2) with SHA-256, MGF1 with SHA-256, and a salt of 32 bytes.

use sha2::{Digest as _, Sha256};

/// Bytes of a message hash, and of the salt.
pub const DIGEST_BYTES: usize = 32;
const TRAILER: u8 = 0xbc;
/// Bytes of the longest encoded message of the supported keys.
const ENCODED_BYTES_MAX: usize = 384;

/// Whether `encoded`, which is `s^e mod n` for a modulus of a whole number of bytes, is an encoding of this hash. Variable time: all
/// inputs are public.
#[must_use]
pub fn pss_matches(encoded: &[u8], digest: &[u8; DIGEST_BYTES]) -> bool {
    let Some((body, [TRAILER])) = encoded.split_last_chunk::<1>() else {
        return false;
    };
    let Some((masked, hash)) = body.split_last_chunk::<DIGEST_BYTES>() else {
        return false;
    };
    let mut block = [0u8; ENCODED_BYTES_MAX];
    let Some(block) = block.get_mut(..masked.len()) else {
        return false;
    };
    // emBits is one less than the bits of the modulus: the topmost bit is zero.
    if masked.first().is_none_or(|first| first & 0x80 != 0) {
        return false;
    }
    for (counter, chunk) in (0u32..).zip(block.chunks_mut(DIGEST_BYTES)) {
        let mask = Sha256::new()
            .chain_update(hash)
            .chain_update(counter.to_be_bytes())
            .finalize();
        for (byte, mask_byte) in chunk.iter_mut().zip(mask) {
            *byte = mask_byte;
        }
    }
    for (byte, masked_byte) in block.iter_mut().zip(masked) {
        *byte ^= masked_byte;
    }
    if let Some(first) = block.first_mut() {
        *first &= 0x7f;
    }
    let Some((padding, salt)) = block.split_last_chunk::<DIGEST_BYTES>() else {
        return false;
    };
    let Some((1, zeros)) = padding.split_last() else {
        return false;
    };
    let expected = Sha256::new()
        .chain_update([0; 8])
        .chain_update(digest)
        .chain_update(salt)
        .finalize();
    zeros.iter().all(|byte| *byte == 0) && expected.as_slice() == hash
}
