/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ChaCha (Bernstein 2008; RFC 8439 2.3), for comparison with lw_forro.h. The four quarter rounds of a round are
 * independent, so one block uses all units of a wide CPU. Here the number of registers is the limit, and parallel
 * blocks gain nothing.
 */
#ifndef LW_CHACHA_H
#define LW_CHACHA_H

#include "lw_forro.h"

/* Pairs of a column round and a diagonal round. 8 and 12 rounds are for measurement. */
#define LW_CHACHA8 4
#define LW_CHACHA12 6
#define LW_CHACHA20 10

#define LW_CHACHA_QUARTER(a, b, c, d)     \
	do {                              \
		(a) += (b);               \
		(d) ^= (a);               \
		(d) = LW_ROTL32((d), 16); \
		(c) += (d);               \
		(b) ^= (c);               \
		(b) = LW_ROTL32((b), 12); \
		(a) += (b);               \
		(d) ^= (a);               \
		(d) = LW_ROTL32((d), 8);  \
		(c) += (d);               \
		(b) ^= (c);               \
		(b) = LW_ROTL32((b), 7);  \
	} while (0)

/* `rounds` is one of LW_CHACHA8, 12 and 20. The loop is as fast as unrolled code, and smaller. */
static __always_inline void lw_chacha_permute(__u32 m[16], const int rounds)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < rounds; i++) {
		LW_CHACHA_QUARTER(m[0], m[4], m[8], m[12]);
		LW_CHACHA_QUARTER(m[1], m[5], m[9], m[13]);
		LW_CHACHA_QUARTER(m[2], m[6], m[10], m[14]);
		LW_CHACHA_QUARTER(m[3], m[7], m[11], m[15]);
		LW_CHACHA_QUARTER(m[0], m[5], m[10], m[15]);
		LW_CHACHA_QUARTER(m[1], m[6], m[11], m[12]);
		LW_CHACHA_QUARTER(m[2], m[7], m[8], m[13]);
		LW_CHACHA_QUARTER(m[3], m[4], m[9], m[14]);
	}
}

static __always_inline void lw_chacha_quarter(volatile __u32 m[16], int ia, int ib, int ic, int id)
{
	__u32 a = m[ia], b = m[ib], c = m[ic], d = m[id];

	LW_CHACHA_QUARTER(a, b, c, d);
	m[ia] = a;
	m[ib] = b;
	m[ic] = c;
	m[id] = d;
}

/* As lw_forro_permute_wide(), for measurement. */
static __always_inline void lw_chacha_permute_wide(volatile __u32 m[][16], const int rounds, const int width)
{
#define LW_LANES(a, b, c, d)                                        \
	do {                                                        \
		lw_chacha_quarter(m[0], a, b, c, d);                \
		lw_chacha_quarter(m[1], a, b, c, d);                \
		if (width > 2) {                                    \
			lw_chacha_quarter(m[2], a, b, c, d);        \
			lw_chacha_quarter(m[3], a, b, c, d);        \
		}                                                   \
	} while (0)
#pragma clang loop unroll(disable)
	for (int i = 0; i < rounds; i++) {
		LW_LANES(0, 4, 8, 12);
		LW_LANES(1, 5, 9, 13);
		LW_LANES(2, 6, 10, 14);
		LW_LANES(3, 7, 11, 15);
		LW_LANES(0, 5, 10, 15);
		LW_LANES(1, 6, 11, 12);
		LW_LANES(2, 7, 8, 13);
		LW_LANES(3, 4, 9, 14);
	}
#undef LW_LANES
}

/* Fills the matrix (RFC 8439 2.3): counter and nonce are the last four words. */
static __always_inline void lw_chacha_matrix(__u32 m[16], const __u32 key[8], __u32 counter, const __u32 nonce[3])
{
	m[0] = 0x61707865;
	m[1] = 0x3320646e;
	m[2] = 0x79622d32;
	m[3] = 0x6b206574;
#pragma unroll
	for (int i = 0; i < 8; i++)
		m[4 + i] = key[i];
	m[12] = counter;
	m[13] = nonce[0];
	m[14] = nonce[1];
	m[15] = nonce[2];
}

#endif
