/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Comparison of tags in constant time. Without the barriers clang turns a combined difference into one branch per
 * half, and moves work for the second half behind the first branch. A test checks the compiled programs
 * (`compare_test.rs`).
 */
#ifndef LW_COMPARE_H
#define LW_COMPARE_H

#include <linux/types.h>

/* Hides the value from the compiler, which therefore must compute it. */
#define LW_BARRIER(value) asm volatile("" : "+r"(value))

/* 0 if the tags are equal. */
static __always_inline __u64 lw_tags_differ(const __u64 first[2], const __u64 second[2])
{
	__u64 low = first[0] ^ second[0], high = first[1] ^ second[1];

	asm volatile("" : "+r"(low), "+r"(high));
	low |= high;
	LW_BARRIER(low);
	return low;
}

#endif
