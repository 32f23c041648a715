//! The full-domain hash: MGF1 with SHA-256 (RFC 8017, B.2.1) to 128 bits more than the modulus has, reduced by it.
//!
//! With 128 bits more, the distance from the uniform distribution is below 2^-128. What is hashed begins with a byte that says
//! what it is for, and each part has its length before it, in four bytes:
//!
//! ```text
//! component  01 | 00000020 P | 00000002 j | length v
//! mask       02 | 00000020 P | 00000020 r
//! ```
//!
//! MGF1 hashes `x | counter` for 9 counters (13 for 3,072 bits): the blocks of x that come before the counter's are compressed once.

use sha2::{Digest as _, Sha256};

use super::public::PAD_BYTES;
use crate::message::MASK_NAME_BYTES;

/// Bytes of the hash beyond the modulus.
pub const HASH_MARGIN_BYTES: usize = 16;
/// The longest hash, for 3,072 bits.
pub(crate) const HASH_BYTES_MAX: usize = 384 + HASH_MARGIN_BYTES;

const COMPONENT: u8 = 1;
const MASK: u8 = 2;

/// Bytes that stand before a component's value in what is hashed.
pub(crate) const COMPONENT_HEAD_BYTES: usize = 1 + 4 + PAD_BYTES + 4 + 2 + 4;

/// What is hashed for value v of component j, added to `out`.
pub(crate) fn component_input(pad: &[u8; PAD_BYTES], component: u16, value: &[u8], out: &mut Vec<u8>) {
    put_head(COMPONENT, pad, out);
    put_part(&component.to_be_bytes(), out);
    put_part(value, out);
}

/// What stands before a mask's name in what is hashed.
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

/// At most 512 bytes, as layouts demand, behind their length.
fn put_part(part: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(part.len() as u32).to_be_bytes());
    out.extend_from_slice(part);
}

/// What the hashes of one key begin with, compressed as far as it goes.
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

    /// The hash of value v of component j, unreduced, big-endian, as long as `out`.
    pub(crate) fn component(&self, component: u16, value: &[u8], out: &mut [u8]) {
        let hash = self
            .component
            .clone()
            .chain_update(2u32.to_be_bytes())
            .chain_update(component.to_be_bytes())
            // At most 512 bytes, as layouts demand.
            .chain_update((value.len() as u32).to_be_bytes())
            .chain_update(value);
        mgf1(&hash, out);
    }

    /// The hash of a mask's name, likewise.
    pub(crate) fn mask(&self, name: &[u8; MASK_NAME_BYTES], out: &mut [u8]) {
        let hash = self
            .mask
            .clone()
            .chain_update((MASK_NAME_BYTES as u32).to_be_bytes())
            .chain_update(name);
        mgf1(&hash, out);
    }
}

/// MGF1 of what `seed` has taken in so far.
pub(crate) fn mgf1(seed: &Sha256, out: &mut [u8]) {
    for (counter, block) in (0u32..).zip(out.chunks_mut(32)) {
        let hash = seed.clone().chain_update(counter.to_be_bytes()).finalize();
        for (out, byte) in block.iter_mut().zip(hash) {
            *out = byte;
        }
    }
}
