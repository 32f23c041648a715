/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Two-choice hash tables over arrays: the device index, which only user space writes, and the bindings of addresses
 * to sessions, which the packet path claims. An entry is a hint: what it names is always compared in full.
 */
#ifndef LW_TABLE_H
#define LW_TABLE_H

#include "lw_maps.h"

/* Keyed 64-bit mix of up to two words (multiply-xorshift, the finalizer of MurmurHash3); `table.rs` mirrors it. */
static __always_inline __u64 lw_hash(__u64 a, __u64 b)
{
	__u64 h = a ^ cfg.hash_seed[0];

	h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
	h ^= b ^ cfg.hash_seed[1];
	h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
	return h ^ (h >> 33);
}

/* The low half picks the first bucket, the fingerprint the second; a fingerprint is never 0. */
static __always_inline __u32 lw_fingerprint(__u64 hash)
{
	return (__u32)(hash >> 32) | 1;
}
static __always_inline __u32 lw_bucket_1(__u64 hash)
{
	return (__u32)hash & cfg.bucket_mask;
}
static __always_inline __u32 lw_bucket_2(__u64 hash)
{
	return ((__u32)hash ^ lw_fingerprint(hash) * 0x5bd1e995U) & cfg.bucket_mask;
}

/*
 * Branch-free over the ways of a bucket: a branch for each would be mispredicted, and would multiply the states that
 * the kernel's verifier walks. 1 if `x` is 0, else 0; `x` below 2^63.
 */
static __always_inline __u64 lw_is_zero(__u64 x)
{
	return (x - 1) >> 63;
}

/* The bucket's entry with that fingerprint, 0 if there is none; the last one of several. */
static __always_inline __u64 lw_match(const struct lw_bucket *bucket, __u32 fingerprint)
{
	__u64 found = 0;

#pragma unroll
	for (int way = 0; way < LW_WAYS; way++) {
		__u64 entry = LW_READ(bucket->entry[way]);
		__u64 mask = -lw_is_zero((entry >> 32) ^ fingerprint);

		found = (found & ~mask) | (entry & mask);
	}
	return found;
}

/*
 * The line of a device, and its slot; NULL when there is none. User space never puts two entries of one fingerprint
 * into one bucket of this table.
 */
static __always_inline struct lw_line *lw_find_device(__u64 device_id, __u32 *slot)
{
	__u64 hash = lw_hash(device_id, 0);
	__u32 fingerprint = lw_fingerprint(hash);

#pragma unroll
	for (int choice = 0; choice < 2; choice++) {
		struct lw_bucket *bucket = lw_at(&device_index, choice ? lw_bucket_2(hash) : lw_bucket_1(hash));

		if (!bucket)
			return NULL;
		*slot = (__u32)lw_match(bucket, fingerprint) - 1;
		/* Without an entry the slot is 2^32 - 1, which no array has. */
		struct lw_line *line = lw_at(&lines, *slot);

		if (line && line->device_id == device_id)
			return line;
	}
	return NULL;
}

#endif
