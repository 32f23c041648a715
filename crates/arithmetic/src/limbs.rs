//! Long numbers in bytes and in limbs of 64 bits.

/// Writes the limbs of a big-endian number to `limbs`, least significant first; limbs beyond the number become zero.
pub(super) fn from_be(limbs: &mut [u64], bytes: &[u8]) {
    limbs.fill(0);
    let (leading, full_words) = bytes.as_rchunks();
    let top = leading.iter().fold(0, |limb, byte| limb << 8 | u64::from(*byte));
    let full_words = full_words.iter().rev().map(|bytes| u64::from_be_bytes(*bytes));
    for (limb, value) in limbs.iter_mut().zip(full_words.chain([top])) {
        *limb = value;
    }
}

/// Writes a number to `bytes` in big-endian order; `bytes` has eight bytes per limb.
pub(super) fn to_be(bytes: &mut [u8], limbs: &[u64]) {
    for (bytes, limb) in bytes.rchunks_exact_mut(8).zip(limbs) {
        bytes.copy_from_slice(&limb.to_be_bytes());
    }
}

/// `bits` bits (fewer than 64) of a number, from bit `first` on. Runs in constant time for a given `first`.
pub(super) fn digit(limbs: &[u64], first: usize, bits: usize) -> u64 {
    let limb = |index: usize| limbs.get(index).copied().unwrap_or_default();
    let (index, shift) = (first / 64, (first % 64) as u32);
    let upper = limb(index + 1).checked_shl(64 - shift).unwrap_or_default();
    (limb(index) >> shift | upper) & ((1 << bits) - 1)
}
