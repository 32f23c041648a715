/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* For the benches: copies a prepared frame into the packet. */
#ifndef LW_LAY_OUT_H
#define LW_LAY_OUT_H

#include <linux/types.h>

/* Frames are padded to this size; bytes after the datagram are Ethernet padding. */
#define LW_CASE_BYTES 128

#define LW_PUT(to, from, type, at) (*(volatile type *)((to) + (at)) = *(volatile type *)((from) + (at)))

/*
 * Stores with the sizes and offsets of the packet path's loads (an untagged IPv4 frame). A load that straddles two
 * pending stores would stall, which packets from devices do not cause.
 */
static __always_inline void lw_lay_out(__u8 *to, const __u8 *from)
{
	LW_PUT(to, from, __u32, 0);
	LW_PUT(to, from, __u32, 4);
	LW_PUT(to, from, __u32, 8);
	LW_PUT(to, from, __u16, 12);
#pragma unroll
	for (int at = 14; at < 42; at += 4)
		LW_PUT(to, from, __u32, at);
#pragma unroll
	for (int at = 42; at + 8 <= LW_CASE_BYTES; at += 8)
		LW_PUT(to, from, __u64, at);
}

#endif
