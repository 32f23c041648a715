/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Two-choice hash tables over arrays: the device index, which only user space writes, and the bindings of addresses
 * to sessions, which the packet path claims. An entry is a hint: the line that the entry names is always compared in full.
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

/* The low half of a hash selects the first bucket, the fingerprint the second bucket; a fingerprint is never 0. */
static __always_inline __u32 lw_fingerprint(__u64 hash)
{
	return (__u32)(hash >> 32) | 1;
}
static __always_inline __u32 lw_bucket(__u64 hash, int choice)
{
	return choice ? (__u32)hash ^ lw_fingerprint(hash) * 0x5bd1e995U : (__u32)hash;
}
static __always_inline __u32 lw_bucket_1(__u64 hash)
{
	return lw_bucket(hash, 0) & cfg.bucket_mask;
}
static __always_inline __u32 lw_bucket_2(__u64 hash)
{
	return lw_bucket(hash, 1) & cfg.bucket_mask;
}

/*
 * 1 if `x` is 0, else 0; `x` must be below 2^63. Without a branch: a branch per way of a bucket would be mispredicted, and
 * would multiply the states that the kernel's verifier processes.
 */
static __always_inline __u64 lw_is_zero(__u64 x)
{
	__u64 is_one = (x - 1) >> 63;

	/* Hidden from clang, which would turn it into a comparison and a branch. */
	asm volatile("" : "+r"(is_one));
	return is_one;
}

/* The bucket's entry with that fingerprint; 0 if there is none. If several entries match, the last of them. */
static __always_inline __u64 lw_match(const struct lw_bucket *bucket, __u32 fingerprint)
{
	__u64 match = 0;

#pragma unroll
	for (int way = 0; way < LW_WAYS; way++) {
		__u64 entry = LW_READ(bucket->entry[way]);
		__u64 mask = -lw_is_zero((entry >> 32) ^ fingerprint);

		match = (match & ~mask) | (entry & mask);
	}
	return match;
}

/* The line at a place. */
static __always_inline struct lw_line *lw_line_at(__u32 place)
{
	struct lw_home *home = lw_at(&lines, place / LW_HOME_WAYS);

	return home ? &home->way[place % LW_HOME_WAYS] : NULL;
}

/* As lw_is_zero(), for every `x`. */
static __always_inline __u64 lw_is_zero_64(__u64 x)
{
	__u64 is_one = (x | -x) >> 63;

	asm volatile("" : "+r"(is_one));
	return is_one ^ 1;
}

/*
 * The line of a device, and its place; NULL if there is none. User space never puts two entries with the same
 * fingerprint into one bucket of the index.
 */
static __always_inline struct lw_line *lw_find_device(__u64 device_id, __u32 *place)
{
	__u64 hash = lw_hash(device_id, 0);
	__u32 number = (__u32)hash & cfg.home_mask;
	struct lw_home *home = lw_at(&lines, number);

	if (!home)
		return NULL;
	/* The four loads are issued in parallel. */
	__u32 way = lw_is_zero_64(home->way[1].device_id ^ device_id) +
		    2 * lw_is_zero_64(home->way[2].device_id ^ device_id) +
		    3 * lw_is_zero_64(home->way[3].device_id ^ device_id);
	struct lw_line *line = &home->way[way % LW_HOME_WAYS];

	*place = number * LW_HOME_WAYS + way;
	if (line->device_id == device_id)
		return line;
	__u32 fingerprint = lw_fingerprint(hash);

#pragma unroll
	for (int choice = 0; choice < 2; choice++) {
		__u32 index = lw_bucket(hash, choice) & cfg.index_mask;
		struct lw_bucket *bucket = lw_at(&device_index, index);

		if (!bucket)
			return NULL;
		*place = (__u32)lw_match(bucket, fingerprint) - 1;
		/* Without an entry the place is 2^32 - 1, which no array contains. */
		line = lw_line_at(*place);
		if (line && line->device_id == device_id)
			return line;
	}
	return NULL;
}

#endif
