/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Decides which messages of devices that are not installed reach user space (LAP/1 1.4.5, 1.4.6);
 * `store/load_shedder.rs` mirrors this file. The rules, in order: a message of a device that is not enrolled is dropped. A
 * RESPONSE to a CHALLENGE of the slow path is accepted once. REQUESTs share a limit per CPU; all other RESPONSEs share
 * a separate limit, an eighth as large. Once half of a limit is used, a limit per source applies too.
 */
#ifndef LW_SHED_H
#define LW_SHED_H

#include "lw_table.h"

/* Limits are counted in windows of 2^26 ns (67 ms), so that a second's limit is not used up in the first millisecond. */
#define LW_WINDOW_SHIFT 26
#define LW_WINDOWS_PER_S 15
/* One source may use 1 / 64 of the limit of a CPU, and all unsolicited RESPONSEs together may use 1 / 8. */
#define LW_SOURCE_PART 64
#define LW_UNSOLICITED_PART 8

/* A blocked Bloom filter (Putze et al., 2009): one bit in each word of the block that the hash selects. */
static __always_inline int lw_is_enrolled(__u64 device_id)
{
	__u64 hash = lw_hash(device_id, 0);
	struct lw_filter_block *block = lw_at(&enrolled, (__u32)(hash >> 32) & cfg.filter_mask);
	__u64 bits = hash * 0x9e3779b97f4a7c15ULL, all_set = 1;

	if (!block)
		return 1;
#pragma unroll
	for (int i = 0; i < LW_FILTER_WORDS; i++)
		all_set &= block->word[i] >> (bits >> (10 + 6 * i) & 63);
	return all_set;
}

/* Identifies a device and its nonce; never 0. */
static __always_inline __u64 lw_response_key(__u64 device_id, const __u64 nonce[2])
{
	return lw_hash(device_id ^ nonce[0], nonce[1]) | 1;
}

/* Whether the RESPONSE was expected. Afterwards it is no longer expected. */
static __always_inline int lw_take_expected(__u64 response_key)
{
	__u64 *cell = lw_at(&expected, (__u32)(response_key >> 32) & (LW_EXPECTED - 1));

	return cell && LW_READ(*cell) == response_key &&
	       __sync_val_compare_and_swap(cell, response_key, 0) == response_key;
}

/* The limit of one window for `per_second`. */
static __always_inline __u64 lw_window_limit(__u32 per_second)
{
	return per_second / LW_WINDOWS_PER_S + 1;
}

static __always_inline int lw_source_has_share(__u64 window, __u64 source, __u32 per_second)
{
	__u64 *cell = lw_at(&sources, (__u32)source & (LW_SOURCES - 1));
	__u64 limit = lw_window_limit(per_second / LW_SOURCE_PART);

	if (!cell)
		return 0;
	if (*cell >> 32 != (__u32)window)
		*cell = window << 32;
	if ((__u32)*cell >= limit)
		return 0;
	(*cell)++;
	return 1;
}

/* Whether half of the limit is used in this window. Until then, no source limit applies. */
static __always_inline int lw_is_half_used(__u64 window, __u64 limit, __u64 last, __u64 count)
{
	return last == window && 2 * count >= limit;
}

/* Whether `limit` permits an operation in this window. `count` belongs to the window `last`, both of this CPU. */
static __always_inline int lw_is_within(__u64 window, __u64 limit, __u64 *last, __u64 *count)
{
	if (*last != window) {
		*last = window;
		*count = 0;
	}
	if (*count >= limit)
		return 0;
	(*count)++;
	return 1;
}

/* Whether a message is accepted. `response_key` is 0 for a REQUEST; `per_second` is the limit of the CPU. */
static __always_inline int lw_admits_unknown(struct lw_percpu *cpu, __u64 source, __u64 response_key, __u32 per_second)
{
	__u64 window = cpu->clock_ns >> LW_WINDOW_SHIFT;

	if (response_key && lw_take_expected(response_key))
		return 1;
	int has_share = lw_source_has_share(window, source, per_second);

	if (response_key) {
		__u64 limit = lw_window_limit(per_second / LW_UNSOLICITED_PART);

		return (has_share ||
			!lw_is_half_used(window, limit, cpu->unsolicited_window, cpu->unsolicited_count)) &&
		       lw_is_within(window, limit, &cpu->unsolicited_window, &cpu->unsolicited_count);
	}
	__u64 limit = lw_window_limit(per_second);

	return (has_share || !lw_is_half_used(window, limit, cpu->miss_window, cpu->miss_count)) &&
	       lw_is_within(window, limit, &cpu->miss_window, &cpu->miss_count);
}

#endif
