//! The full-domain hash: MGF1 with SHA-256 (RFC 8017, B.2.1) with 128 bits more than the modulus, reduced modulo the
//! modulus.
//!
//! The 128 additional bits make the distance from the uniform distribution less than 2^-128. The hashed bytes begin
//! with a byte for the purpose, and each part is preceded by its length in four bytes. P is the pad, j a component, v
//! its value, and r the name of a mask:
//!
//! ```text
//! component  01 | 00000020 P | 00000002 j | length v
//! mask       02 | 00000020 P | 00000020 r
//! ```
//!
//! With the hashed bytes x, MGF1 hashes `x | counter` for 9 counters (13 for 3,072 bits). The SHA-256 blocks that
//! precede the block with the counter are compressed only once.

use sha2::{Digest as _, Sha256};

use crate::message::MASK_NAME_BYTES;

/// Bytes of the pad P.
pub const PAD_BYTES: usize = 32;

/// Number of bytes by which the hash is longer than the modulus.
pub const HASH_MARGIN_BYTES: usize = 16;
/// The longest hash, for 3,072 bits.
pub(crate) const HASH_BYTES_MAX: usize = 384 + HASH_MARGIN_BYTES;

const COMPONENT: u8 = 1;
const MASK: u8 = 2;

/// Bytes before a component's value in the hashed bytes.
pub(crate) const COMPONENT_HEAD_BYTES: usize = 1 + 4 + PAD_BYTES + 4 + 2 + 4;

/// Appends the hashed bytes of value v of component j to `out`.
pub(crate) fn component_input(pad: &[u8; PAD_BYTES], component: u16, value: &[u8], out: &mut Vec<u8>) {
    put_head(COMPONENT, pad, out);
    put_part(&component.to_be_bytes(), out);
    put_part(value, out);
}

/// The hashed bytes before a mask's name.
pub(crate) fn mask_head(pad: &[u8; PAD_BYTES]) -> Vec<u8> {
    let mut out = Vec::new();
    put_head(MASK, pad, &mut out);
    out.extend_from_slice(&(MASK_NAME_BYTES as u32).to_be_bytes());
    out
}

fn put_head(purpose: u8, pad: &[u8; PAD_BYTES], out: &mut Vec<u8>) {
    out.push(purpose);
    put_part(pad, out);
}

/// Appends a part after its length. Parts have at most 512 bytes, as layouts require.
fn put_part(part: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(part.len() as u32).to_be_bytes());
    out.extend_from_slice(part);
}

/// States of SHA-256 after the prefixes that all hashes of one key have in common.
#[derive(Clone)]
pub(crate) struct Prefixes {
    component: Sha256,
    mask: Sha256,
}

impl Prefixes {
    pub(crate) fn new(pad: &[u8; PAD_BYTES]) -> Self {
        let prefix = |purpose: u8| {
            Sha256::new()
                .chain_update([purpose])
                .chain_update((PAD_BYTES as u32).to_be_bytes())
                .chain_update(pad)
        };
        Self {
            component: prefix(COMPONENT),
            mask: prefix(MASK),
        }
    }

    /// The unreduced hash of value v of component j, big-endian, as long as `out`.
    pub(crate) fn component(&self, component: u16, value: &[u8], out: &mut [u8]) {
        let hash = self
            .component
            .clone()
            .chain_update(2u32.to_be_bytes())
            .chain_update(component.to_be_bytes())
            // At most 512 bytes, as layouts require.
            .chain_update((value.len() as u32).to_be_bytes())
            .chain_update(value);
        mgf1(&hash, out);
    }

    /// The unreduced hash of a mask's name, big-endian, as long as `out`.
    pub(crate) fn mask(&self, name: &[u8; MASK_NAME_BYTES], out: &mut [u8]) {
        let hash = self
            .mask
            .clone()
            .chain_update((MASK_NAME_BYTES as u32).to_be_bytes())
            .chain_update(name);
        mgf1(&hash, out);
    }
}

/// MGF1 of the bytes that `seed` has absorbed.
pub(crate) fn mgf1(seed: &Sha256, out: &mut [u8]) {
    for (counter, block) in (0u32..).zip(out.chunks_mut(32)) {
        let hash = seed.clone().chain_update(counter.to_be_bytes()).finalize();
        for (out, byte) in block.iter_mut().zip(hash) {
            *out = byte;
        }
    }
}
