/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Forró (Coutinho, Passos, Grados Vásquez, de Mendonça, de Sousa, Borges: Latin Dances Reloaded, Journal of
 * Cryptology 2023): a block of 64 bytes from 16 words. `linewarden-forro` is the user-space equivalent and documents
 * its security. Words have native byte order; all callers are little-endian.
 *
 * The pollen word chains the quarter rounds: a quarter round cannot begin before the previous one has ended. A quarter
 * round is 12 dependent operations if a rotation is one instruction. If a rotation is shift, shift and or, a quarter round
 * is 15 operations, and 56 quarter rounds are 840 dependent steps. lw_forro_chained() needs only 12 for a quarter round,
 * with more independent operations. All other work (copies, spills to the stack, other blocks) overlaps with the chain.
 */
#ifndef LW_FORRO_H
#define LW_FORRO_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Pairs of a column round and a diagonal round. 6 and 10 rounds are for measurement only. */
#define LW_FORRO6 3
#define LW_FORRO10 5
#define LW_FORRO14 7

/* Position of a matrix's counter: words 4 and 5. */
#define LW_FORRO_COUNTER 4

#define LW_ROTL32(x, n) (((x) << (n)) | ((x) >> (32 - (n))))

#define LW_FORRO_QUARTER(a, b, c, d, e)   \
	do {                              \
		(d) += (e);               \
		(c) ^= (d);               \
		(b) += (c);               \
		(b) = LW_ROTL32((b), 10); \
		(a) += (b);               \
		(e) ^= (a);               \
		(d) += (e);               \
		(d) = LW_ROTL32((d), 27); \
		(c) += (d);               \
		(b) ^= (c);               \
		(a) += (b);               \
		(a) = LW_ROTL32((a), 8);  \
	} while (0)

/*
 * Hides the composition of a word from clang, which would otherwise reorder additions: a shorter program is a longer
 * chain.
 */
#define LW_OPAQUE(x) asm("" : "+w"(x))

/* (x << n), hidden from the compiler. */
static __always_inline __u32 lw_high(__u32 x, const int n)
{
	x <<= n;
	LW_OPAQUE(x);
	return x;
}

/* x + y, hidden from the compiler. */
static __always_inline __u32 lw_plus(__u32 x, __u32 y)
{
	x += y;
	LW_OPAQUE(x);
	return x;
}

/*
 * x + rotl(y + z, n), where `z` is available last, in three steps after `z` instead of four. A rotated word is a sum
 * of three terms, (y << n) + (z << n) + ((y + z) >> (32 - n)): the first two are available when the third is shifted.
 * The rotated word itself, in *turned, is not on the chain.
 */
static __always_inline __u32 lw_plus_turned(__u32 x, __u32 y, __u32 z, const int n, __u32 *turned)
{
	__u32 high_y = lw_high(y, n), high_z = lw_high(z, n), low = y + z;

	low >>= 32 - n;
	LW_OPAQUE(low);
	*turned = high_y + high_z + low;
	return lw_plus(lw_plus(lw_plus(x, high_y), high_z), low);
}

/* The sum whose rotation by 8 is the pollen of the next quarter round; `late` is the later of the two terms. */
struct lw_forro_chain {
	__u32 early, late;
};

/*
 * LW_FORRO_QUARTER, but `p` gives the pollen: its sum is rotated first and stored in `e`. The last step, which adds `b`
 * to `a` and rotates `a`, is left to the next quarter round.
 */
static __always_inline void lw_forro_chained(__u32 *a, __u32 *b, __u32 *c, __u32 *d, __u32 *e, struct lw_forro_chain *p)
{
	*d = lw_plus_turned(*d, p->early, p->late, 8, e);
	*c ^= *d;
	*a = lw_plus_turned(*a, *b, *c, 10, b);
	*e ^= *a;
	*c = lw_plus_turned(*c, *d, *e, 27, d);
	*b ^= *c;
	p->early = *a;
	p->late = *b;
}

/* `rounds` is one of LW_FORRO6, 10 and 14. All indices are constants, so that words are kept in registers. */
static __always_inline void lw_forro_permute(__u32 m[16], const int rounds)
{
	/* The first pollen is not rotated yet. */
	struct lw_forro_chain p = { LW_ROTL32(m[3], 24), 0 };

#pragma unroll
	for (int i = 0; i < rounds; i++) {
		lw_forro_chained(m + 0, m + 4, m + 8, m + 12, m + 3, &p);
		lw_forro_chained(m + 1, m + 5, m + 9, m + 13, m + 0, &p);
		lw_forro_chained(m + 2, m + 6, m + 10, m + 14, m + 1, &p);
		lw_forro_chained(m + 3, m + 7, m + 11, m + 15, m + 2, &p);
		lw_forro_chained(m + 0, m + 5, m + 10, m + 15, m + 3, &p);
		lw_forro_chained(m + 1, m + 6, m + 11, m + 12, m + 0, &p);
		lw_forro_chained(m + 2, m + 7, m + 8, m + 13, m + 1, &p);
		lw_forro_chained(m + 3, m + 4, m + 9, m + 14, m + 2, &p);
	}
	m[3] = LW_ROTL32(p.early + p.late, 8);
}

static __always_inline void lw_forro_quarter(volatile __u32 m[16], int ia, int ib, int ic, int id, int ie)
{
	__u32 a = m[ia], b = m[ib], c = m[ic], d = m[id], e = m[ie];

	LW_FORRO_QUARTER(a, b, c, d, e);
	m[ia] = a;
	m[ib] = b;
	m[ic] = c;
	m[id] = d;
	m[ie] = e;
}

/*
 * Two or four matrices in parallel. Volatile, so that they stay in place: spilled by the compiler, each word would
 * take eight bytes, and four matrices would not fit the stack.
 */
static __always_inline void lw_forro_permute_wide(volatile __u32 m[][16], const int rounds, const int width)
{
	/* Written out: clang would not unroll a loop over two matrices, and its addresses would occupy registers. */
#define LW_LANES(a, b, c, d, e)                                        \
	do {                                                           \
		lw_forro_quarter(m[0], a, b, c, d, e);                 \
		lw_forro_quarter(m[1], a, b, c, d, e);                 \
		if (width > 2) {                                       \
			lw_forro_quarter(m[2], a, b, c, d, e);         \
			lw_forro_quarter(m[3], a, b, c, d, e);         \
		}                                                      \
	} while (0)
#pragma clang loop unroll(disable)
	for (int i = 0; i < rounds; i++) {
		LW_LANES(0, 4, 8, 12, 3);
		LW_LANES(1, 5, 9, 13, 0);
		LW_LANES(2, 6, 10, 14, 1);
		LW_LANES(3, 7, 11, 15, 2);
		LW_LANES(0, 5, 10, 15, 3);
		LW_LANES(1, 6, 11, 12, 0);
		LW_LANES(2, 7, 8, 13, 1);
		LW_LANES(3, 4, 9, 14, 2);
	}
#undef LW_LANES
}

/*
 * The block of any 16 words. Without the constants this is not Forró, and Forró's security results do not apply.
 * `matrix` may be in a map; it is read again for the feed-forward.
 */
static __always_inline void lw_forro_matrix_block(const __u32 matrix[16], __u32 out[16], const int rounds)
{
	__u32 m[16];

#pragma unroll
	for (int i = 0; i < 16; i++)
		m[i] = matrix[i];
	lw_forro_permute(m, rounds);
#pragma unroll
	for (int i = 0; i < 16; i++)
		out[i] = m[i] + matrix[i];
}

/* Fills the matrix, with the constants "voltadaasabranca", after a song. Key and nonce are little-endian words. */
static __always_inline void lw_forro_matrix(__u32 m[16], const __u32 key[8], __u64 counter, const __u32 nonce[2])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		m[i] = key[i];
		m[8 + i] = key[4 + i];
	}
	m[4] = counter;
	m[5] = counter >> 32;
	m[6] = 0x746c6f76;
	m[7] = 0x61616461;
	m[12] = nonce[0];
	m[13] = nonce[1];
	m[14] = 0x72626173;
	m[15] = 0x61636e61;
}

/* Block `counter` of the keystream. */
static __always_inline void lw_forro_block(const __u32 key[8], __u64 counter, const __u32 nonce[2], __u32 out[16],
					   const int rounds)
{
	__u32 matrix[16];

	lw_forro_matrix(matrix, key, counter, nonce);
	lw_forro_matrix_block(matrix, out, rounds);
}

/*
 * Derives a key from a key and 16 bytes that need not be secret, like HChaCha20: the permuted words without the
 * feed-forward.
 */
static __always_inline void lw_hforro14(const __u32 key[8], const __u32 input[4], __u32 out[8])
{
	__u32 m[16];

	lw_forro_matrix(m, key, (__u64)input[1] << 32 | input[0], input + 2);
	lw_forro_permute(m, LW_FORRO14);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		out[i] = m[6 + i];
		out[2 + i] = m[14 + i];
		out[4 + i] = m[4 + i];
		out[6 + i] = m[12 + i];
	}
}

#endif
