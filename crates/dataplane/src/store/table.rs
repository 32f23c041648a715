//! Two-choice hash tables in shared memory: the mirror of `xdp/bpf/lw_table.h`.
//!
//! Only user space writes the device index. The packet path claims entries of binding tables; user space sweeps them.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::layout::Bucket;

/// Keyed 64-bit mix of up to two words; must equal `lw_hash`.
#[must_use]
pub fn hash(seed: [u64; 2], a: u64, b: u64) -> u64 {
    let mut h = a ^ seed[0];
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= b ^ seed[1];
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

/// Distinguishes entries of one bucket; never 0.
#[must_use]
pub fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

/// The two buckets for a hash.
#[must_use]
pub fn choices(hash: u64, mask: u32) -> [usize; 2] {
    let low = hash as u32;
    let second = low ^ fingerprint(hash).wrapping_mul(0x5bd1_e995);
    [(low & mask) as usize, (second & mask) as usize]
}

/// The entry for the line at `place` under `hash`.
#[must_use]
pub fn entry(hash: u64, place: u32) -> u64 {
    u64::from(fingerprint(hash)) << 32 | (u64::from(place) + 1)
}

/// The places in entries with the fingerprint of `hash`, entries of the first bucket first. The caller must compare each
/// line in full.
pub fn candidates(table: &[Bucket], mask: u32, hash: u64) -> impl Iterator<Item = u32> + '_ {
    let fingerprint = fingerprint(hash);
    choices(hash, mask)
        .into_iter()
        .filter_map(move |bucket| table.get(bucket))
        .flat_map(|bucket| bucket.entry.iter())
        .map(|cell| cell.load(Acquire))
        .filter(move |entry| (entry >> 32) as u32 == fingerprint)
        .map(|entry| (entry as u32).wrapping_sub(1))
}

/// Writes an entry into the emptier of its two buckets, but never next to an entry with the same fingerprint, which
/// the packet path could not distinguish. Returns `false` if neither bucket accepts it.
#[must_use]
pub fn insert(table: &[Bucket], mask: u32, hash: u64, place: u32) -> bool {
    let used = |bucket: &Bucket| bucket.entry.iter().filter(|cell| cell.load(Acquire) != 0).count();
    let fingerprint = fingerprint(hash);
    let has_twin = |bucket: &Bucket| {
        bucket
            .entry
            .iter()
            .any(|cell| (cell.load(Acquire) >> 32) as u32 == fingerprint)
    };
    let mut buckets: Vec<&Bucket> = choices(hash, mask)
        .iter()
        .filter_map(|bucket| table.get(*bucket))
        .collect();
    buckets.retain(|bucket| !has_twin(bucket));
    buckets.sort_by_key(|bucket| used(bucket));
    buckets.iter().flat_map(|bucket| bucket.entry.iter()).any(|cell| {
        cell.compare_exchange(0, entry(hash, place), AcqRel, Acquire)
            .is_ok()
    })
}

/// Removes the entry of `place` under `hash`. Returns `false` if there is none.
pub fn remove(table: &[Bucket], mask: u32, hash: u64, place: u32) -> bool {
    choices(hash, mask)
        .into_iter()
        .filter_map(|bucket| table.get(bucket))
        .flat_map(|bucket| bucket.entry.iter())
        .any(|cell| {
            cell.compare_exchange(entry(hash, place), 0, AcqRel, Acquire)
                .is_ok()
        })
}
