//! TPM 2.0's key derivations, for SHA-256 (TPM 2.0 Library, Part 1, "Key Derivation Function"), and HMAC.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// HMAC-SHA-256 over the parts, one after the other.
pub(crate) fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    // As in RFC 2104, the key is padded with zeros to the length of a block.
    let mut block = Zeroizing::new([0; 64]);
    for (target, source) in block.iter_mut().zip(key) {
        *target = *source;
    }
    let mut hmac = Hmac::<Sha256>::new((&*block).into());
    for part in parts {
        hmac.update(part);
    }
    hmac.finalize().into_bytes().into()
}

/// SHA-256 over the parts, one after the other.
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// KDFa for at most 256 bits, which are in its first block. `label` has no terminating zero byte.
pub(crate) fn kdfa<const N: usize>(
    key: &[u8; 32],
    label: &str,
    context_u: &[u8],
    context_v: &[u8],
) -> Zeroizing<[u8; N]> {
    let bits = bits_of::<N>();
    let parts = [
        &1u32.to_be_bytes()[..],
        label.as_bytes(),
        &[0],
        context_u,
        context_v,
        &bits,
    ];
    first_bytes(&Zeroizing::new(hmac(key, &parts)))
}

/// KDFe for 256 bits, from the x-coordinates of the shared point and of both public keys.
pub(crate) fn kdfe(shared_x: &[u8], label: &str, party_u_x: &[u8], party_v_x: &[u8]) -> Zeroizing<[u8; 32]> {
    let parts = [
        &1u32.to_be_bytes()[..],
        shared_x,
        label.as_bytes(),
        &[0],
        party_u_x,
        party_v_x,
    ];
    Zeroizing::new(sha256(&parts))
}

const fn bits_of<const N: usize>() -> [u8; 4] {
    const { assert!(N <= 32, "one block of SHA-256") };
    (N as u32 * 8).to_be_bytes()
}

fn first_bytes<const N: usize>(block: &[u8; 32]) -> Zeroizing<[u8; N]> {
    let mut bytes = Zeroizing::new([0; N]);
    for (target, source) in bytes.iter_mut().zip(block) {
        *target = *source;
    }
    bytes
}
